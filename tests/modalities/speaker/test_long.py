"""Long recordings in pieces, and stretches of recordings."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.items.items import Item
from likeness.modalities.speaker import audio, long
from likeness.modalities.speaker.decoding import BadAudio
from tests.sounds import chatter

RATE = 16_000


def item(path: Path, wave: np.ndarray, rate_hz: int = RATE, id: str = "a", **more: str) -> Item:
    soundfile.write(path, wave, rate_hz, **more)
    return Item(id, path)


@pytest.mark.parametrize(
    ("rate_hz", "channels", "suffix"),
    [(16_000, 1, "flac"), (8_000, 1, "wav"), (44_100, 2, "wav"), (16_000, 1, "ogg")],
)
def test_chunks_are_equal(tmp_path: Path, rate_hz: int, channels: int, suffix: str) -> None:
    wave = np.stack([chatter(25.3, rate_hz)] * channels, axis=1)
    first = item(tmp_path / f"a.{suffix}", wave, rate_hz)
    parts = list(long.read(first, chunk_seconds=10))
    assert len(parts) == 3
    assert max(map(len, parts)) <= 10 * RATE
    assert max(map(len, parts)) - min(map(len, parts)) <= 3
    joined, whole = np.concatenate(parts), audio.read(first)
    (plain,) = long.read(first)
    np.testing.assert_array_equal(plain, whole)
    assert abs(len(joined) - len(whole)) <= 3
    np.testing.assert_allclose(joined[: len(whole)], whole[: len(joined)], atol=1e-6)
    shard, size = tmp_path / "s.tar", first.path.stat().st_size
    contents = first._replace(path=shard, span=(3, size), ending=f".{suffix}")
    shard.write_bytes(b"abc" + first.path.read_bytes())
    assert abs(len(np.concatenate(list(long.read(contents, chunk_seconds=10)))) - len(whole)) <= 3


def test_three_hours_take_the_memory_of_a_chunk(tmp_path: Path) -> None:
    path = tmp_path / "long recording.v1 ü.wav"
    second = (chatter(1) * 32767).astype(np.int16)
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
    wave = np.r_[chatter(2), np.zeros(2 * RATE), chatter(2)]
    parts = list(long.read(item(tmp_path / "a.wav", wave), chunk_seconds=2))
    assert [len(part) for part in parts] == [2 * RATE] * 2


def test_pauses_are_left_out(tmp_path: Path) -> None:
    quiet = chatter(1) * 1e-3
    wave = np.r_[quiet, chatter(2), quiet, quiet]
    first = item(tmp_path / "a.wav", wave, subtype="FLOAT")
    (spoken,) = long.read(first, only_speech=True)
    assert len(spoken) == pytest.approx(2 * RATE, abs=0.05 * RATE)
    assert (np.isin(spoken, wave[RATE : 3 * RATE]).mean()) > 0.98
    (again,) = long.read(first, only_speech=True)
    np.testing.assert_array_equal(again, spoken)
    with pytest.raises(BadAudio, match="speech by its energy"):
        list(long.read(item(tmp_path / "b.wav", quiet, subtype="FLOAT"), only_speech=True))


def test_energies_are_kaldis() -> None:
    """torchaudio's Kaldi features with use_energy and raw_energy have the frame's energy first."""
    import torch

    from likeness.toolkit.backbones.ecapa import import_torchaudio

    kaldi = import_torchaudio().compliance.kaldi
    wave = chatter(1.03) + np.float32(0.2)
    of_energy = {"use_energy": True, "raw_energy": True, "energy_floor": 0.0, "dither": 0.0}
    theirs = kaldi.mfcc(torch.from_numpy(wave * 32768)[None], **of_energy)[:, 0].numpy()
    np.testing.assert_allclose(long.log_energy(wave), theirs, atol=2e-4)


def test_a_stream_that_was_cut_short_is_refused_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.mp3"
    soundfile.write(path, chatter(20), RATE)
    assert len(list(long.read(Item("a", path), chunk_seconds=5))) == 4
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadAudio, match=r"a.mp3: .*cut short, .* of the 20.0 s"):
        list(long.read(Item("a", path), chunk_seconds=5))


@pytest.fixture(params=["wav", "flac", "ogg", "mp3"])
def stretched(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return item(tmp_path / f"r.{request.param}", chatter(12, RATE)).path


def test_it_is_a_slice_of_the_whole(stretched: Path) -> None:
    whole = audio.read(Item("a", stretched))
    item = Item("a", stretched, stretch=(2.5, 11.75))
    expected = whole[int(2.5 * RATE) : int(11.75 * RATE)]
    np.testing.assert_array_equal(audio.read(item), expected)
    chunks = np.concatenate(list(long.read(item, chunk_seconds=4)))
    np.testing.assert_array_equal(chunks, expected)
    to_the_end = audio.read(Item("a", stretched, stretch=(2.5, np.inf)))
    np.testing.assert_array_equal(to_the_end, whole[int(2.5 * RATE) :])


def test_times_outside_are_refused_and_a_little_more_is_cut(stretched: Path) -> None:
    assert len(audio.read(Item("a", stretched, stretch=(11.0, 12.4)))) == RATE
    for stretch in ((11.0, 12.6), (12.0, 12.2), (13.0, np.inf), (0.0, 1e9)):
        item = Item("a", stretched, stretch=stretch)
        for read in (audio.read, lambda item: list(long.read(item, chunk_seconds=4))):
            with pytest.raises(BadAudio, match="ends at 12"):
                read(item)
    with pytest.raises(BadAudio, match="short"):
        audio.read(Item("a", stretched, stretch=(1.0, 1.05)))


def test_a_stretch_of_a_long_recording_is_read(tmp_path: Path) -> None:
    """20 minutes is the most of a whole recording."""
    first = item(tmp_path / "r.flac", np.resize([0.1, -0.1], 1000 * 1500), 1000)
    for too_long in (first, first._replace(stretch=(0, 1400))):
        with pytest.raises(BadAudio, match="too long"):
            audio.read(too_long)
    assert len(audio.read(first._replace(stretch=(1400, 1402)), rate_hz=1000)) == 2000


def test_another_speed_is_that_of_the_stretch(tmp_path: Path) -> None:
    first = item(tmp_path / "r.wav", chatter(4, RATE))._replace(label="ann", stretch=(1.0, 3.0))
    (_, copy) = audio.speed_copies([first], speeds=(0.8,))
    assert copy.stretch == first.stretch
    assert len(audio.read(copy)) == pytest.approx(2 / 0.8 * RATE, abs=2)
