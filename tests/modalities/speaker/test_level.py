"""One level for all recordings, whatever their gain, pauses and padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from likeness.modalities.speaker import audio, long
from likeness.modalities.speaker.decoding import BadAudio
from likeness.modalities.speaker.level import at_level, without_digital_silence
from likeness.toolkit.data.items import Item


def speech(seconds: float = 3.0) -> np.ndarray:
    """Noise in bursts of half a second, 40 dB above the pauses between them."""
    noise = np.random.default_rng(0).normal(size=round(16_000 * seconds))
    bursts = np.arange(len(noise)) // 8_000 % 2 == 0
    return (noise * np.where(bursts, 0.1, 0.001)).astype(np.float32)


def test_the_level_is_that_of_the_bursts_and_a_gain_changes_nothing() -> None:
    wave = at_level(speech(), -26.0)
    bursts = np.arange(len(wave)) // 8_000 % 2 == 0
    assert 20 * np.log10(np.std(wave[bursts])) == pytest.approx(-26, abs=0.05)
    for gain in (0.01, 10.0):
        np.testing.assert_allclose(
            at_level(np.float32(gain) * speech(), -26.0), wave, rtol=1e-5, atol=1e-7
        )
    clicked = speech()
    clicked[100] = 30.0  # one frame of 120
    np.testing.assert_allclose(at_level(clicked, -26.0)[200:], wave[200:], rtol=0.2)
    assert not at_level(np.zeros(1000, np.float32), -26.0).any()
    assert not len(at_level(np.zeros(0, np.float32), -26.0))
    assert at_level(speech()[:100], -26.0).dtype == np.float32


def test_digital_silence_is_cut_and_quiet_pauses_stay() -> None:
    wave, zeros = speech(), np.zeros(8_000, np.float32)
    padded = np.concatenate([zeros, wave[:16_000], zeros, wave[16_000:], zeros])
    np.testing.assert_array_equal(without_digital_silence(padded), wave)
    assert without_digital_silence(wave) is wave
    assert not len(without_digital_silence(zeros))


def test_every_reading_brings_recordings_to_the_level(tmp_path: Path) -> None:
    zeros = np.zeros(8_000, np.float32)
    for name, wave in (("a", speech()), ("b", np.concatenate([zeros, 0.1 * speech()]))):
        soundfile.write(tmp_path / f"{name}.wav", wave, 16_000, subtype="FLOAT")
    first, second = (Item(name, tmp_path / f"{name}.wav") for name in "ab")
    for reading in (
        lambda item: audio.read(item, level_dbfs=-26.0),
        lambda item: audio.read(item, level_dbfs=-26.0, decoded=False),
        lambda item: next(iter(long.read(item, level_dbfs=-26.0, chunk_seconds=30.0))),
    ):
        np.testing.assert_allclose(reading(first), reading(second), rtol=1e-4, atol=1e-6)
    soundfile.write(tmp_path / "c.wav", np.concatenate([zeros, zeros, speech(0.5)]), 16_000)
    with pytest.raises(BadAudio, match=r"too short, 0\.500 s"):
        audio.read(Item("c", tmp_path / "c.wav"), level_dbfs=-26.0, min_seconds=1.0)
