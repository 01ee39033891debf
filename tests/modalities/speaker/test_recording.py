"""What is read of a recording: views, its level and its band."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from likeness.eval.items.items import Item
from likeness.modalities.speaker import audio, long
from likeness.modalities.speaker.audio import at_level, cut_digital_silence
from likeness.modalities.speaker.bandwidth import is_narrow, powers
from likeness.modalities.speaker.decoding import BadAudio
from tests.sounds import chatter


def speech(seconds: float = 3.0) -> np.ndarray:
    """Noise in bursts of half a second, 40 dB above the pauses between them."""
    noise = chatter(seconds, level=1.0)
    bursts = np.arange(len(noise)) // 8_000 % 2 == 0
    return (noise * np.where(bursts, 0.1, 0.001)).astype(np.float32)


def test_the_level_is_that_of_the_bursts_and_a_gain_changes_nothing() -> None:
    wave = at_level(speech(), -26.0)
    bursts = np.arange(len(wave)) // 8_000 % 2 == 0
    assert 20 * np.log10(np.std(wave[bursts])) == pytest.approx(-26, abs=0.05)
    for gain in (0.01, 10.0):
        louder = at_level(np.float32(gain) * speech(), -26.0)
        np.testing.assert_allclose(louder, wave, rtol=1e-5, atol=1e-7)
    clicked = speech()
    clicked[100] = 30.0  # one frame of 120
    np.testing.assert_allclose(at_level(clicked, -26.0)[200:], wave[200:], rtol=0.2)
    assert not at_level(np.zeros(1000, np.float32), -26.0).any()
    assert not len(at_level(np.zeros(0, np.float32), -26.0))
    assert at_level(speech()[:100], -26.0).dtype == np.float32


def test_digital_silence_is_cut_and_quiet_pauses_stay() -> None:
    wave, zeros = speech(), np.zeros(8_000, np.float32)
    padded = np.concatenate([zeros, wave[:16_000], zeros, wave[16_000:], zeros])
    np.testing.assert_array_equal(cut_digital_silence(padded), wave)
    assert cut_digital_silence(wave) is wave
    assert not len(cut_digital_silence(zeros))


def test_every_reading_brings_recordings_to_the_level(tmp_path: Path) -> None:
    zeros = np.zeros(8_000, np.float32)
    for name, wave in (("a", speech()), ("b", np.concatenate([zeros, 0.1 * speech()]))):
        soundfile.write(tmp_path / f"{name}.wav", wave, 16_000, subtype="FLOAT")
    first, second = (Item(name, tmp_path / f"{name}.wav") for name in "ab")
    for reading in (
        lambda item: audio.read(item, level_dbfs=-26.0),
        lambda item: next(iter(long.read(item, level_dbfs=-26.0, chunk_seconds=30.0))),
    ):
        np.testing.assert_allclose(reading(first), reading(second), rtol=1e-4, atol=1e-6)
    soundfile.write(tmp_path / "c.wav", np.concatenate([zeros, zeros, speech(0.5)]), 16_000)
    with pytest.raises(BadAudio, match=r"too short, 0\.500 s"):
        audio.read(Item("c", tmp_path / "c.wav"), level_dbfs=-26.0, min_seconds=1.0)


def noise(rate_hz: int, seconds: float = 3.0) -> np.ndarray:
    return (0.1 * np.random.default_rng(0).normal(size=round(rate_hz * seconds))).astype(np.float32)


def file_of(folder: Path, wave: np.ndarray, rate_hz: int) -> Item:
    path = folder / "a.wav"
    soundfile.write(path, wave, rate_hz, subtype="PCM_16")
    return Item("a", path)


def test_the_powers_are_those_of_a_fourier_transform() -> None:
    """White noise plus a loud tone below the edge, by one transform of the whole wave."""
    wave = noise(16_000) + np.sin(2 * np.pi * 1000 * np.arange(48_000) / 16_000).astype(np.float32)
    power = np.abs(np.fft.rfft(wave.astype(np.float64))) ** 2 * 2 / len(wave) ** 2
    above = power[np.fft.rfftfreq(len(wave), 1 / 16_000) > 4300].sum()
    expected = [power.sum(), above]
    assert powers(wave, 16_000, 4300.0).mean(axis=0) == pytest.approx(expected, rel=0.05)
    for samples in (1, 2, 511, 513):
        assert np.isfinite(powers(wave[:samples], 16_000, 4300.0)).all()
        assert is_narrow(np.zeros(samples, np.float32), 16_000, 4300.0)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_telephone_band_is_refused_at_any_rate(tmp_path: Path, rate_hz: int) -> None:
    narrow = audio.resample(chatter(3, 8_000), 8_000, rate_hz)
    item = file_of(tmp_path, narrow, rate_hz)
    assert len(audio.read(item)) == 48_000  # other models take it
    with pytest.raises(BadAudio, match=r"4\.3 kHz"):
        audio.read(item, needs_hz=4300.0)
    for reading in ({}, {"chunk_seconds": 1.0}, {"crops": 2}, {"only_speech": True}):
        with pytest.raises(BadAudio, match="nothing above"):
            list(long.read(item, needs_hz=4300.0, **reading))


def test_wide_band_is_read_as_ever(tmp_path: Path) -> None:
    item = file_of(tmp_path, chatter(3), 16_000)
    np.testing.assert_array_equal(audio.read(item, needs_hz=4300.0), audio.read(item))
    with pytest.raises(ValueError, match="below half of that"):
        audio.read(item, needs_hz=8000.0)
    parts = list(long.read(item, needs_hz=4300.0, chunk_seconds=1.0))
    assert [len(part) for part in parts] == [16_000] * 3


def rounded(wave: np.ndarray) -> np.ndarray:
    return np.round(np.clip(wave, -1, 1) * 2**15).astype(np.float32) / 2**15


def test_the_limit_lies_between_rounding_and_a_quiet_room() -> None:
    """-70 dB of noise in all bands beside speech is a room; rounding to 16 bits is far below."""
    low = audio.resample(noise(8_000), 8_000, 16_000)
    assert is_narrow(rounded(low), 16_000, 4300.0)
    room = low + 10 ** (-60 / 20) * noise(16_000)[: len(low)]
    assert not is_narrow(room, 16_000, 4300.0)


@pytest.mark.parametrize("level_db", [-60, -40, -20, 0, 15])
def test_the_level_of_a_telephone_recording_hides_nothing(level_db: float) -> None:
    """Rounding is a large share of a quiet recording; a loud one was scaled after rounding."""
    low = audio.resample(noise(8_000), 8_000, 16_000)
    gain = np.float32(10 ** (level_db / 20))
    wave = rounded(low * gain) if level_db <= 0 else rounded(low) * gain
    assert is_narrow(wave, 16_000, 4300.0)


def test_a_click_a_beep_or_a_wide_announcement_hides_nothing() -> None:
    low = rounded(audio.resample(noise(8_000, 80.0), 8_000, 16_000))
    click = low.copy()
    click[len(low) // 2] = 0.9
    beep = low.copy()
    beep[100_000:116_000] += 0.5 * np.sin(2.4 * np.arange(16_000)).astype(np.float32)  # 6.1 kHz
    middle = low.copy()
    middle[400_000:900_000] = noise(16_000, 80.0)[400_000:900_000]
    for wave in (click, beep, middle):
        assert is_narrow(wave, 16_000, 4300.0)
