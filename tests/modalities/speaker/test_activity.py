"""Speech by its energy and by Silero's network, and recordings that are read block by block."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile

from modalities.speaker import activity, audio, long
from modalities.speaker.activity import Activity
from modalities.speaker.decoding import BadAudio, Wave
from toolkit.data.items import Item

RATE_HZ = 16_000


def talk(*parts: tuple[float, float], seed: int = 0) -> Wave:
    """Noise of so many seconds and levels in dB of full scale, one part after the other."""
    rng = np.random.default_rng(seed)
    waves = [rng.normal(0, 10 ** (db / 20), round(RATE_HZ * seconds)) for seconds, db in parts]
    return np.concatenate(waves).astype(np.float32)


def stretches(wave: Wave, how: Activity = activity.USUAL) -> list[list[int]]:
    return activity.speech(activity.frame_powers([wave], RATE_HZ), how).tolist()


@pytest.mark.parametrize("level", [-60, -40])
def test_speech_begins_and_ends_where_it_does(level: int) -> None:
    quiet = -40 + level
    found = stretches(talk((1, quiet), (1.5, level), (1, quiet), (0.8, level), (1, quiet)))
    edges = np.array(found) / 100
    assert edges == pytest.approx(np.array([[1, 2.5], [3.5, 4.3]]), abs=0.05)


def test_pauses_are_closed_and_clicks_dropped() -> None:
    wave = talk((1, -80), (1, -20), (0.2, -80), (1, -20), (1, -80), (0.06, -20), (1, -80))
    ((start, end),) = stretches(wave)
    assert (start, end) == pytest.approx((100, 320), abs=5)


@pytest.mark.parametrize(
    "wave", [talk((3, -30)), np.zeros(RATE_HZ, np.float32), np.zeros(0, np.float32)]
)
def test_steady_noise_and_silence_are_no_speech(wave: Wave) -> None:
    assert stretches(wave) == []


def test_digital_silence_is_no_floor_of_noise() -> None:
    """An editor's silence, nine tenths of a file, must not make noise look like speech."""
    spoken = talk((0.5, -60), (1, -20), (0.5, -60))
    wave = np.concatenate([np.zeros(9 * len(spoken), np.float32), spoken])
    ((start, end),) = stretches(wave)
    assert (start, end) == pytest.approx((1850, 1950), abs=6)


def test_blocks_of_any_size_have_the_same_powers() -> None:
    wave = talk((0.5, -20), (0.503, -40))
    whole = activity.frame_powers([wave], RATE_HZ)
    parts = activity.frame_powers(np.array_split(wave, 37), RATE_HZ)
    np.testing.assert_array_equal(whole, parts)
    assert len(whole) == 101


@pytest.mark.parametrize("suffix", [".wav", ".mp3"])
def test_blocks_are_the_recording(tmp_path: Path, suffix: str) -> None:
    wave = np.concatenate([talk((13, -30)), np.zeros(11 * RATE_HZ, np.float32), talk((2, -30))])
    path = tmp_path / f"a{suffix}"
    soundfile.write(path, np.stack([wave, wave / 2], axis=1), RATE_HZ)
    item = Item("a", path)
    parts = list(long.blocks(item))
    assert max(map(len, parts)) <= 10 * RATE_HZ
    np.testing.assert_allclose(np.concatenate(parts), audio.read(item), atol=1e-7)
    stretch = item._replace(stretch=(1.0, 14.0))
    inside = np.concatenate(list(long.blocks(stretch, rate_hz=8000)))
    np.testing.assert_allclose(inside, audio.read(stretch, rate_hz=8000), atol=1e-6)


def test_a_recording_that_is_no_good_is_refused(tmp_path: Path) -> None:
    wave = talk((2, -30))
    wave[20_000] = np.nan
    soundfile.write(tmp_path / "nan.wav", wave, RATE_HZ, subtype="FLOAT")
    with pytest.raises(BadAudio, match="NaN"):
        list(long.blocks(Item("nan", tmp_path / "nan.wav")))
    soundfile.write(tmp_path / "long.wav", talk((2, -30)), RATE_HZ)
    with pytest.raises(BadAudio, match=r"2 s.*at most 1 s"):
        list(long.blocks(Item("long", tmp_path / "long.wav"), max_seconds=1))


@pytest.mark.parametrize(
    "wrong", [{"share": 1.0}, {"floor_quantile": 0.99}, {"margin_seconds": -1}]
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"quantiles|lengths"):
        Activity(**wrong)


def test_silero_hears_no_speech_in_noise_and_another_network_is_refused(tmp_path: Path) -> None:
    from modalities.speaker import silero

    spec = find_spec("silero_vad")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("silero-vad is not installed")
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    network = silero.open_network(
        Path(spec.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
    )
    assert not len(silero.speech([talk((1, -30))], network))
    with pytest.raises(ValueError, match="exist"):
        silero.open_network(tmp_path / "none.onnx")


class Loudness:
    """Stands for Silero's network: the probability is the peak of what it hears."""

    def run(self, outputs: object, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        heard = inputs["input"]
        assert heard.shape == (1, 576)  # a step of 512 and 64 before it
        return [np.array([[np.abs(heard[0, 64:]).max()]]), inputs["state"] + 1]


def test_the_steps_of_a_network_become_frames() -> None:
    from modalities.speaker import silero

    wave = np.zeros(2 * RATE_HZ, np.float32)
    wave[512 * 20 : 512 * 40] = 0.9
    wave[512 * 42 : 512 * 44] = 0.4  # above the lower bound, below the higher one
    wave[512 * 50 : 512 * 52] = 0.9  # too short
    found = silero.speech(np.array_split(wave, 7), Loudness())
    assert found.tolist() == [[61, 131]]
