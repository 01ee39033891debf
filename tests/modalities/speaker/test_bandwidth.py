"""Recordings in narrow band are refused where a model asks for it, in every way of reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from modalities.speaker import audio, long
from modalities.speaker.bandwidth import LEAST_SHARE, share_above
from modalities.speaker.decoding import BadAudio
from toolkit.data.items import Item


def noise(rate_hz: int, seconds: float = 3.0) -> np.ndarray:
    return (0.1 * np.random.default_rng(0).normal(size=round(rate_hz * seconds))).astype(np.float32)


def written(folder: Path, wave: np.ndarray, rate_hz: int) -> Item:
    path = folder / "a.wav"
    soundfile.write(path, wave, rate_hz, subtype="PCM_16")
    return Item("a", path)


def test_the_share_is_that_of_a_fourier_transform() -> None:
    """White noise plus a loud tone below the edge, by one transform of the whole wave."""
    wave = noise(16_000) + np.sin(2 * np.pi * 1000 * np.arange(48_000) / 16_000).astype(np.float32)
    power = np.abs(np.fft.rfft(wave.astype(np.float64))) ** 2
    expected = power[np.fft.rfftfreq(len(wave), 1 / 16_000) > 4300].sum() / power.sum()
    assert share_above(wave, 16_000, 4300.0) == pytest.approx(expected, rel=0.05)
    assert share_above(np.zeros(1000, np.float32), 16_000, 4300.0) == 0


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_telephone_band_is_refused_at_any_rate(tmp_path: Path, rate_hz: int) -> None:
    narrow = audio.resample(noise(8_000), 8_000, rate_hz)
    item = written(tmp_path, narrow, rate_hz)
    assert len(audio.read(item)) == 48_000  # other models take it
    for decoded in (True, False):
        with pytest.raises(BadAudio, match=r"a\.wav: the recording has nothing above 4\.3 kHz"):
            audio.read(item, needs_hz=4300.0, decoded=decoded)
    for reading in ({}, {"chunk_seconds": 1.0}, {"crops": 2}, {"only_speech": True}):
        with pytest.raises(BadAudio, match="nothing above"):
            list(long.read(item, needs_hz=4300.0, **reading))


def test_wide_band_is_read_as_ever(tmp_path: Path) -> None:
    item = written(tmp_path, noise(16_000), 16_000)
    np.testing.assert_array_equal(audio.read(item, needs_hz=4300.0), audio.read(item))
    with pytest.raises(ValueError, match="below half of that"):
        audio.read(item, needs_hz=8000.0)
    parts = list(long.read(item, needs_hz=4300.0, chunk_seconds=1.0))
    assert [len(part) for part in parts] == [16_000] * 3


def test_the_limit_lies_between_rounding_and_a_quiet_room() -> None:
    """-70 dB of noise in all bands beside speech is a room; rounding to 16 bits is far below."""
    low = audio.resample(noise(8_000), 8_000, 16_000)
    rounded = np.round(low * 2**15).astype(np.float32) / 2**15
    assert share_above(rounded, 16_000, 4300.0) < LEAST_SHARE
    room = low + 10 ** (-60 / 20) * noise(16_000)[: len(low)]
    assert share_above(room, 16_000, 4300.0) > LEAST_SHARE
