"""A stretch of a recording is read as the samples between its times, by every reader."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from likeness.modalities.speaker import audio, long
from likeness.modalities.speaker.decoding import BadAudio
from likeness.toolkit.data.items import Item

HZ, SECONDS = 16_000, 12


@pytest.fixture(params=["wav", "flac", "ogg", "mp3"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    wave = np.random.default_rng(0).normal(0, 0.1, HZ * SECONDS)
    soundfile.write(tmp_path / f"r.{request.param}", wave, HZ)
    return tmp_path / f"r.{request.param}"


def test_it_is_a_slice_of_the_whole(recording: Path) -> None:
    whole = audio.read(Item("a", recording))
    item = Item("a", recording, stretch=(2.5, 11.75))
    expected = whole[int(2.5 * HZ) : int(11.75 * HZ)]
    np.testing.assert_array_equal(audio.read(item), expected)
    sliced = audio.read(item, decoded=False)
    assert len(sliced) == len(expected)
    np.testing.assert_array_equal(sliced[1000:3000], expected[1000:3000])
    chunks = np.concatenate(list(long.read(item, chunk_seconds=4)))
    np.testing.assert_array_equal(chunks, expected)
    to_the_end = audio.read(Item("a", recording, stretch=(2.5, np.inf)))
    np.testing.assert_array_equal(to_the_end, whole[int(2.5 * HZ) :])


def test_times_outside_are_refused_and_a_little_more_is_cut(recording: Path) -> None:
    assert len(audio.read(Item("a", recording, stretch=(11.0, 12.4)))) == HZ
    for stretch in ((11.0, 12.6), (12.0, 12.2), (13.0, np.inf), (0.0, 1e9)):
        item = Item("a", recording, stretch=stretch)
        for read in (
            lambda item: audio.read(item),
            lambda item: audio.read(item, decoded=False),
            lambda item: list(long.read(item, chunk_seconds=4)),
        ):
            with pytest.raises(BadAudio, match="ends at 12"):
                read(item)
    with pytest.raises(BadAudio, match="short"):
        audio.read(Item("a", recording, stretch=(1.0, 1.05)))


def test_a_stretch_of_a_long_recording_is_read(tmp_path: Path) -> None:
    """20 minutes is the most of a whole recording."""
    soundfile.write(tmp_path / "r.flac", np.resize([0.1, -0.1], 1000 * 1500), 1000)
    with pytest.raises(BadAudio, match="too long"):
        audio.read(Item("a", tmp_path / "r.flac"))
    assert (
        len(audio.read(Item("a", tmp_path / "r.flac", stretch=(1400, 1402)), rate_hz=1000)) == 2000
    )
    with pytest.raises(BadAudio, match="too long"):
        audio.read(Item("a", tmp_path / "r.flac", stretch=(0, 1400)))


def test_another_speed_is_that_of_the_stretch(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "r.wav", np.random.default_rng(0).normal(0, 0.1, HZ * 4), HZ)
    item = Item("a", tmp_path / "r.wav", "ann", stretch=(1.0, 3.0))
    (_, copy) = audio.speed_copies([item], speeds=(0.8,))
    assert copy.stretch == item.stretch
    assert len(audio.read(copy)) == pytest.approx(2 / 0.8 * HZ, abs=2)
