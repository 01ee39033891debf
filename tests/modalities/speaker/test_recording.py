"""Recordings of which only the crop is decoded: the same views, the same refusals."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile

from likeness.modalities.speaker import audio, decoding
from likeness.modalities.speaker.augment import train_view
from likeness.modalities.speaker.decoding import BadAudio
from likeness.modalities.speaker.recording import Recording
from likeness.toolkit.data import shards
from likeness.toolkit.data.items import Item

SECONDS = 12
open_item = partial(audio.read, decoded=False)


def sound(channels: int = 1, seconds: float = SECONDS) -> np.ndarray:
    noise = np.random.default_rng(channels).standard_normal((int(seconds * 16_000), channels))
    return 0.1 * noise


def written(path: Path, wave: np.ndarray, subtype: str = "PCM_16", rate_hz: int = 16_000) -> Item:
    soundfile.write(path, wave, rate_hz, subtype=subtype)
    return Item(path.name, path)


@pytest.mark.parametrize(
    ("name", "channels", "subtype"),
    [
        ("a.flac", 1, "PCM_16"),
        ("a.flac", 2, "PCM_24"),
        ("a.wav", 1, "PCM_16"),
        ("a.wav", 3, "PCM_U8"),
        ("a.wav", 2, "PCM_32"),
    ],
)
def test_views_are_those_of_the_whole_wave(
    tmp_path: Path, name: str, channels: int, subtype: str
) -> None:
    item = written(tmp_path / name, sound(channels), subtype)
    recording, wave = open_item(item), audio.read(item)
    assert isinstance(recording, Recording)
    assert len(recording) == len(wave)
    np.testing.assert_array_equal(recording[:], wave)
    for seed, seconds in ((0, 0.5), (1, 3.0), (2, SECONDS), (3, SECONDS + 2.0)):
        ours, expected = (
            train_view(
                source,
                np.random.default_rng(seed),
                np.random.default_rng(0),
                seconds=(seconds, seconds),
                gain_prob=0.5,
            )
            for source in (recording, wave)
        )
        np.testing.assert_array_equal(ours, expected)


def test_recordings_in_shards_and_after_pickling(tmp_path: Path) -> None:
    item = written(tmp_path / "a.flac", sound(seconds=30))._replace(label="x")
    shards.write([item], tmp_path / "tar")
    (packed,) = shards.items(tmp_path / "tar", suffixes=decoding.SUFFIXES)
    recording, wave = open_item(packed), audio.read(item)
    assert isinstance(recording, Recording)
    again = pickle.loads(pickle.dumps(recording))
    for source in (recording, again, recording):
        np.testing.assert_array_equal(source[1000:5000], wave[1000:5000])


@pytest.mark.parametrize(
    ("name", "subtype", "rate_hz", "seconds", "id"),
    [
        ("short.wav", "PCM_16", 16_000, 2, "short"),
        ("floats.wav", "FLOAT", 16_000, SECONDS, "floats"),
        ("rate.wav", "PCM_16", 22_050, SECONDS, "rate"),
        ("ogg.ogg", "VORBIS", 16_000, 3 * SECONDS, "ogg"),
        ("speed.wav", "PCM_16", 16_000, SECONDS, "speed#speed=0.9"),
    ],
)
def test_others_are_read_whole(
    tmp_path: Path, name: str, subtype: str, rate_hz: int, seconds: float, id: str
) -> None:
    item = written(tmp_path / name, sound(1, seconds), subtype, rate_hz)._replace(id=id)
    wave = open_item(item)
    assert isinstance(wave, np.ndarray)
    np.testing.assert_array_equal(wave, audio.read(item))


def test_what_is_refused_whole_is_refused(tmp_path: Path) -> None:
    silent = written(tmp_path / "silent.wav", np.zeros((SECONDS * 16_000, 1)))
    recording = open_item(silent)
    with pytest.raises(BadAudio, match="silent"):
        audio.crop(recording, 16_000, np.random.default_rng(0))
    cut = written(tmp_path / "cut.flac", sound(seconds=40))
    cut.path.write_bytes(cut.path.read_bytes()[: cut.path.stat().st_size // 2])
    long = written(tmp_path / "long.wav", sound())
    for item, settings, says in (
        (cut, {}, "cut short|unreadable"),
        (long, {"max_seconds": 5.0}, "too long"),
        (long, {"max_values": 1000}, "too large"),
        (long, {"min_seconds": 60.0}, "too short"),
        (Item("missing", tmp_path / "missing.wav"), {}, "no such file"),
    ):
        with pytest.raises(BadAudio, match=says):
            open_item(item, **settings)


def test_damage_is_found_where_a_crop_meets_it(tmp_path: Path) -> None:
    item = written(tmp_path / "a.wav", sound())
    recording = open_item(item)
    assert isinstance(recording, Recording)
    item.path.write_bytes(b"RIFF")
    with pytest.raises(BadAudio, match="unreadable"):
        recording[:16_000]


@pytest.mark.parametrize(
    ("seconds", "channels", "subtype", "rate_hz"),
    [
        (SECONDS, 1, "PCM_16", 8_000),
        (SECONDS, 1, "FLOAT", 16_000),
        (SECONDS, 2, "PCM_16", 16_000),
        (SECONDS + 1, 1, "PCM_16", 16_000),
        (SECONDS - 1, 1, "PCM_16", 16_000),
    ],
)
def test_a_file_that_was_replaced_is_refused(
    tmp_path: Path, seconds: float, channels: int, subtype: str, rate_hz: int
) -> None:
    recording = open_item(written(tmp_path / "a.wav", sound()))
    assert isinstance(recording, Recording)
    written(tmp_path / "a.wav", sound(channels, seconds), subtype, rate_hz)
    with pytest.raises(BadAudio, match=r"a\.wav.*replaced"):
        recording[:16_000]
