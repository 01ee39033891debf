"""Recordings in crops and chunks, and without their pauses."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from likeness.modalities.speaker import audio, decoding, long, vad
from likeness.modalities.speaker.decoding import BadAudio
from likeness.toolkit.data.items import Item

RATE = 16_000


def noise(seconds: float, rate_hz: int = RATE, seed: int = 0) -> decoding.Wave:
    wave: decoding.Wave = (
        np.random.default_rng(seed).standard_normal(round(seconds * rate_hz)) * 0.1
    ).astype(np.float32)
    return wave


def item(path: Path, wave: np.ndarray, rate_hz: int = RATE, id: str = "a", **more: str) -> Item:
    soundfile.write(path, wave, rate_hz, **more)
    return Item(id, path)


def test_one_piece_is_the_plain_reading(tmp_path: Path) -> None:
    for name, rate_hz in (("a.flac", RATE), ("b.wav", 22_050)):
        first = item(tmp_path / name, noise(1.3, rate_hz), rate_hz)
        (whole,) = long.read(first)
        np.testing.assert_array_equal(whole, audio.read(first))
        (streamed,) = long.read(first, chunk_seconds=5)
        assert abs(len(streamed) - len(whole)) <= 1
        np.testing.assert_allclose(streamed[: len(whole)], whole[: len(streamed)], atol=1e-6)


@pytest.mark.parametrize(
    ("rate_hz", "channels", "suffix"),
    [(16_000, 1, "flac"), (8_000, 1, "wav"), (44_100, 2, "wav"), (16_000, 1, "ogg")],
)
def test_chunks_are_the_recording_in_equal_pieces(
    tmp_path: Path, rate_hz: int, channels: int, suffix: str
) -> None:
    first = item(
        tmp_path / f"a.{suffix}", np.stack([noise(25.3, rate_hz)] * channels, axis=1), rate_hz
    )
    parts = list(long.read(first, chunk_seconds=10))
    assert len(parts) == 3
    assert max(map(len, parts)) <= 10 * RATE
    assert max(map(len, parts)) - min(map(len, parts)) <= 3
    joined, whole = np.concatenate(parts), audio.read(first)
    assert abs(len(joined) - len(whole)) <= 3
    np.testing.assert_allclose(joined[: len(whole)], whole[: len(joined)], atol=1e-6)
    contents = first._replace(
        path=tmp_path / "s.tar", span=(3, first.path.stat().st_size), ending=f".{suffix}"
    )
    contents.path.write_bytes(b"abc" + first.path.read_bytes())
    assert abs(len(np.concatenate(list(long.read(contents, chunk_seconds=10)))) - len(whole)) <= 3


def test_three_hours_take_the_memory_of_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "long recording.v1 ü.wav"
    second = (noise(1) * 32767).astype(np.int16)
    with soundfile.SoundFile(path, "w", RATE, 1, "PCM_16") as file:
        for _ in range(108):
            file.write(np.tile(second, 100))
    with pytest.raises(BadAudio, match="too long, 10800"):
        audio.read(Item("x", path))
    tracemalloc.start()
    sizes = [len(part) for part in long.read(Item("x", path), chunk_seconds=60)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sizes == [60 * RATE] * 180
    assert peak < 40e6


@given(st.integers(1, 12), st.floats(0.1, 3.0), st.integers(1_600, 48_000))
def test_crops_are_evenly_spaced_from_end_to_end(crops: int, seconds: float, samples: int) -> None:
    wave, size = np.arange(samples, dtype=np.float32), round(seconds * RATE)
    result = list(long._windows(wave, crops, size))
    assert {len(value) for value in result} == {size}
    if samples <= size:
        assert len(result) == 1
        np.testing.assert_array_equal(result[0], wave[np.arange(size) % samples])
        return
    starts = [int(entry[0]) for entry in result]
    assert len(result) == crops
    assert starts[0] == 0
    assert crops == 1 or starts[-1] == samples - size
    assert crops < 3 or max(np.diff(starts)) - min(np.diff(starts)) <= 1
    assert all((np.diff(value) == 1).all() for value in result)


def test_silent_chunks_are_left_out(tmp_path: Path) -> None:
    parts = list(
        long.read(
            item(tmp_path / "a.wav", np.r_[noise(2), np.zeros(2 * RATE), noise(2)]), chunk_seconds=2
        )
    )
    assert [len(part) for part in parts] == [2 * RATE] * 2


def test_pauses_are_left_out(tmp_path: Path) -> None:
    quiet = noise(1) * 1e-3
    wave = np.r_[quiet, noise(2), quiet, quiet]
    first = item(tmp_path / "a.wav", wave, subtype="FLOAT")
    (spoken,) = long.read(first, only_speech=True)
    assert len(spoken) == pytest.approx(2 * RATE, abs=0.05 * RATE)
    assert (np.isin(spoken, wave[RATE : 3 * RATE]).mean()) > 0.98
    (again,) = long.read(first, only_speech=True)
    np.testing.assert_array_equal(again, spoken)
    with pytest.raises(BadAudio, match="speech by its energy"):
        list(
            long.read(item(tmp_path / "b.wav", noise(1) * 1e-3, subtype="FLOAT"), only_speech=True)
        )


def test_energies_are_kaldis() -> None:
    """torchaudio's Kaldi features with use_energy and raw_energy have the frame's energy first."""
    import torch

    from likeness.toolkit.backbones.torchaudio_cpu import import_torchaudio

    kaldi = import_torchaudio().compliance.kaldi
    wave = noise(1.03) + np.float32(0.2)
    theirs = kaldi.mfcc(
        torch.from_numpy(wave * 32768)[None],
        use_energy=True,
        raw_energy=True,
        energy_floor=0.0,
        dither=0.0,
    )[:, 0].numpy()
    np.testing.assert_allclose(vad.log_energy(wave), theirs, atol=2e-4)


def test_a_stream_that_was_cut_short_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    soundfile.write(path, noise(20), RATE)
    assert len(list(long.read(Item("a", path), chunk_seconds=5))) == 4
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadAudio, match=r"a.mp3: .*cut short, .* of the 20.0 s"):
        list(long.read(Item("a", path), chunk_seconds=5))


def test_channels_and_rates_take_no_memory(tmp_path: Path) -> None:
    """A block of ten seconds would be 30 MiB of float32, and a third more to look at it."""
    path = tmp_path / "a.flac"
    with soundfile.SoundFile(path, "w", 96_000, 8) as file:
        for second in range(12):
            file.write(np.full((96_000, 8), 0.1 if second == 0 else 0.0, np.float32))
    tracemalloc.start()
    try:
        assert sum(map(len, long.read(Item("a", path), chunk_seconds=4))) > 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * 2**20
