"""Reading audio: every rate and format, cut or damaged files, and headers that lie."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.items.items import Item
from likeness.modalities.speaker.audio import crop, decoded, speed_copies
from likeness.modalities.speaker.decoding import BadAudio, Wave, speed_of


def tone(hz: float, seconds: float = 1.0, rate_hz: int = 16000) -> Wave:
    time = np.arange(round(seconds * rate_hz)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * hz * time)).astype(np.float32)


def loudest_hz(wave: Wave, rate_hz: int = 16000) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(wave * np.hanning(len(wave)))))) * rate_hz / len(wave)


def write(path: Path, wave: Wave, rate_hz: int = 16000, subtype: str | None = None) -> Path:
    soundfile.write(path, wave, rate_hz, subtype=subtype)
    return path


def read_file(path: Path, max_seconds: float = 60.0) -> Wave:
    return decoded(Item("a", path), max_seconds=max_seconds)


@pytest.mark.parametrize("suffix", ["wav", "flac", "ogg", "mp3", "aiff"])
@pytest.mark.parametrize("rate_hz", [8000, 16000, 44100])
def test_any_rate_and_format_becomes_16_khz(tmp_path: Path, suffix: str, rate_hz: int) -> None:
    wave = read_file(write(tmp_path / f"a.{suffix}", tone(440, rate_hz=rate_hz), rate_hz))
    assert wave.dtype == np.float32
    assert wave.ndim == 1
    assert abs(len(wave) - 16000) <= 2000  # mp3 pads whole blocks
    assert loudest_hz(wave) == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(wave[4000:8000] ** 2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.03)


def test_16_bit_samples_are_exact_and_channels_averaged(tmp_path: Path) -> None:
    integers = np.random.default_rng(0).integers(-(2**15), 2**15, (4000, 3)).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", integers, 16000)
    expected = integers.astype(np.float64).mean(axis=1) / 32768
    np.testing.assert_allclose(read_file(tmp_path / "a.wav"), expected, atol=1e-6)


def test_an_id_carries_its_speed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.flac", tone(400, rate_hz=22050), 22050)
    copies = speed_copies([Item("a", path, "x")])
    plain, slow, fast = map(decoded, copies)
    sizes = [len(plain), len(slow), len(fast)]
    assert sizes == pytest.approx([16000, 16000 / 0.9, 16000 / 1.1], abs=2)
    assert loudest_hz(slow) == pytest.approx(360, abs=2)
    assert loudest_hz(fast) == pytest.approx(440, abs=2)
    (tmp_path / "s.tar").write_bytes(b"front" + path.read_bytes() + b"behind")
    spanned = Item("a", tmp_path / "s.tar", "x", (5, path.stat().st_size), ".flac")
    for item, wave in zip(speed_copies([spanned]), (plain, slow, fast), strict=True):
        np.testing.assert_array_equal(decoded(item), wave)


def test_speed_copies_are_new_classes() -> None:
    items = [Item("a/1", Path("1"), "a"), Item("b/1", Path("2"), None)]
    copies = speed_copies(items, speeds=(0.9, 1.1))
    ends = ("", "#speed=0.9", "#speed=1.1")
    assert [item.id for item in copies] == [f"{id}{end}" for end in ends for id in ("a/1", "b/1")]
    assert [item.label for item in copies[::2]] == [f"a{end}" for end in ends]
    assert [item.label for item in copies[1::2]] == [None] * 3
    assert speed_copies(copies[:2], speeds=()) == copies[:2]
    for wrong in [(1.0,), (0.9, 0.9), (3.0,), (0.0,), (float("nan"),)]:
        with pytest.raises(ValueError, match="speed"):
            speed_copies(copies[:2], speeds=wrong)
    with pytest.raises(ValueError, match=r"'fast' is not a number"):
        speed_of("a#speed=fast")


@pytest.mark.parametrize(
    ("wave", "sentence"),
    [
        (np.zeros(0), "too short, 0.000 s"),
        (np.ones(800) * 0.1, "too short, 0.050 s; at least 0.1 s"),
        (np.r_[np.ones(8000), np.nan, np.ones(8000)], "NaN or infinite"),
        (np.r_[np.ones(8000), -np.inf, np.ones(8000)], "NaN or infinite"),
        (np.ones(32000), "too long, 2.0 s .* at most 1.5 s"),
    ],
)
def test_unusable_waves_are_refused(tmp_path: Path, wave: np.ndarray, sentence: str) -> None:
    path = write(tmp_path / "a.wav", wave.astype(np.float32), subtype="FLOAT")
    with pytest.raises(BadAudio, match=sentence) as caught:
        read_file(path, max_seconds=1.5)
    assert str(path) in str(caught.value)


def test_files_that_are_not_there_or_hold_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "nothing.flac").touch()
    for name, word in (("nothing.flac", "unreadable"), ("none.wav", "no such"), ("", "no such")):
        with pytest.raises(BadAudio, match=word):
            read_file(tmp_path / name)


@pytest.mark.parametrize(
    ("suffix", "channels", "rate_hz"), [("flac", 8, 96_000), ("wav", 200, 4_000)]
)
def test_channels_cost_no_memory(tmp_path: Path, suffix: str, channels: int, rate_hz: int) -> None:
    """A small file that states much: 8 MiB or more of float32 if it were decoded whole, and twice
    that to mix it.
    """
    path = tmp_path / f"a.{suffix}"
    blocks = 6 * 2**20 // (channels * rate_hz) + 1
    with soundfile.SoundFile(path, "w", rate_hz, channels) as file:
        for second in range(blocks):
            file.write(np.full((rate_hz, channels), 0.1 if second == 0 else 0.0, np.float32))
    tracemalloc.start()
    try:
        wave = read_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(wave) == 16_000 * blocks
    assert peak < 12 * 2**20  # a block, and whether its values are finite; the whole is 24 MiB
    with pytest.raises(BadAudio, match="too large"):
        decoded(Item("a", path), max_values=blocks * rate_hz * channels - 1)


def test_blocks_make_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, (30_000, 2)).clip(-1, 1).astype(np.float32)
    endings = ("wav", "flac", "ogg", "mp3", "aiff")
    paths = [write(tmp_path / f"a.{suffix}", noise, 22_050) for suffix in endings]
    whole = [read_file(path) for path in paths]
    monkeypatch.setattr("likeness.modalities.speaker.decoding._BLOCK_VALUES", 5_000)
    for path, wave in zip(paths, whole, strict=True):
        np.testing.assert_array_equal(read_file(path), wave)


def test_an_mp3_whose_length_libsndfile_guesses_is_not_called_cut_short(tmp_path: Path) -> None:
    """Without its first frame, which counts the others, a variable bit rate that begins low makes
    libsndfile expect several times the length.
    """
    path = tmp_path / "a.mp3"
    noise = np.random.default_rng(0).standard_normal(16000 * 10).astype(np.float32) * 0.2
    low_first = np.r_[np.zeros(16000 * 3, np.float32), noise]
    soundfile.write(path, low_first, 16000, bitrate_mode="VARIABLE", compression_level=0.1)
    whole = path.read_bytes()
    path.write_bytes(whole[whole.index(whole[:2], 4) :])  # from the second frame's sync word on
    assert soundfile.info(path).frames > 2 * 16000 * 13
    assert len(read_file(path)) == pytest.approx(16000 * 13, rel=0.01)


@given(st.integers(1, 50), st.integers(1, 120), st.integers(0, 2**32 - 1))
def test_crop_is_a_run_of_the_repeated_wave(samples: int, wanted: int, seed: int) -> None:
    cut = crop(np.arange(samples, dtype=np.float32), wanted, np.random.default_rng(seed))
    assert cut.shape == (wanted,)
    assert cut.dtype == np.float32
    steps = np.diff(cut)
    assert ((steps == 1) | (steps == 1 - samples)).all()
    assert samples < wanted or (steps == 1).all()
