"""Long recordings in several inputs: evenly spaced crops, or chunks, with or without pauses.

Chunks are streamed, so that the length of a file needs no memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import soundfile
import soxr

from eval.errors import LikenessError
from modalities.speaker import audio, decoding, vad
from modalities.speaker.bandwidth import refuse_narrow
from modalities.speaker.decoding import AV_SUFFIXES, SILENCE_DBFS, BadAudio, Wave
from modalities.speaker.level import levelled
from toolkit.data.items import Item

MAX_SECONDS = 86_400.0  # the longest duration that a header may claim in chunks: a day
# Samples x channels in chunks, which is a day of stereo at 96 kHz. A small file can claim far more
# work.
MAX_VALUES = 2**34
_BLOCK_SECONDS = 10.0


def read(
    item: Item,
    *,
    crops: int = 0,
    crop_seconds: float = 4.0,
    chunk_seconds: float = 0.0,
    only_speech: bool = False,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = 0.0,
    max_values: int = 0,
    needs_hz: float = 0.0,
    level_dbfs: float | None = None,
) -> Iterator[Wave]:
    """Read a recording as waves whose embeddings are to be averaged, weighted by length.

    With neither crops nor chunks the recording comes in one piece. Files that libsndfile reads are
    read chunk by chunk, for up to a day of audio, and silent chunks are left out.

    Args:
        item: The file, or the span of a tar shard, to read.
        crops: How many windows of crop_seconds to take, evenly spaced from the beginning to the end
            (voxceleb_trainer's test takes 10 of 4 s: DatasetLoader.py loadWAV with evalmode). A
            recording that is shorter than a window is repeated, end to beginning, and is one
            window.
        crop_seconds: The length of a window in seconds.
        chunk_seconds: The longest chunk in seconds. The whole recording is cut into chunks of equal
            length, as few as possible. 0 means no chunks.
        only_speech: Whether to cut the pauses out (vad.trim). In chunks, each chunk is judged by
            its own mean energy.
        rate_hz: The rate of the waves in Hz.
        min_seconds: The shortest duration that is accepted.
        max_seconds: The longest duration, as for audio.read. 0 means its default, and a day in
            chunks.
        max_values: The most samples x channels, as for audio.read. 0 means its default, and 2^34 in
            chunks.
        needs_hz: As for audio.read; each chunk of a file is judged by itself.
        level_dbfs: As for audio.read; each chunk of a file is brought to it by itself.

    Yields:
        Waves (samples,) float32 at rate_hz.

    Raises:
        BadAudio: As audio.read does, also after the first chunks of a damaged file, and where no
            speech is left.
        LikenessError: crops and chunks are both set, or one of them is out of range.
    """
    _check(crops, crop_seconds, chunk_seconds, min_seconds)
    streamed = _is_streamed(item, chunk_seconds)
    if streamed:
        limits = max_seconds or MAX_SECONDS, max_values or MAX_VALUES
        parts = _stream(item, chunk_seconds, rate_hz, *limits)
    else:
        limits = max_seconds or decoding.MAX_SECONDS, max_values or decoding.MAX_VALUES
        whole = audio.read(
            item,
            rate_hz=rate_hz,
            min_seconds=min_seconds,
            max_seconds=limits[0],
            max_values=limits[1],
        )
        parts = iter((whole,))
    shortest = math.ceil(min_seconds * rate_hz)
    used = 0
    for part in parts:
        if needs_hz:
            refuse_narrow(item.name, part, rate_hz, needs_hz)
        if level_dbfs is not None:
            part = levelled(part, level_dbfs)
        if only_speech:
            part = vad.trim(part, rate_hz)
        # A shorter part is what a resampler's rounding left at the end, or the little speech that
        # was in a chunk.
        if len(part) < shortest:
            continue
        used += 1
        if crops:
            yield from _windows(part, crops, round(crop_seconds * rate_hz))
        else:
            yield from _chunks(part, 0.0 if streamed else chunk_seconds * rate_hz)
    if not used:
        raise BadAudio(f"{item.name}: {_nothing_left(only_speech, min_seconds)}")


def _is_streamed(item: Item, chunk_seconds: float) -> bool:
    """Return whether an item is a file of its own that libsndfile can read chunk by chunk."""
    return (
        chunk_seconds > 0
        and item.span is None
        and item.suffix not in AV_SUFFIXES
        and not (item.stretch is not None and item.suffix == ".mp3")  # which cannot be sought
        and os.path.isfile(item.path)
    )


def _nothing_left(only_speech: bool, min_seconds: float) -> str:
    """Say why a recording gives no waves."""
    if only_speech:
        return (
            f"less than {min_seconds} s of speech by its energy; remove the file or embed it with "
            "its pauses"
        )
    return (
        f"the audio is silent or too short; {min_seconds} s above {SILENCE_DBFS:.0f} dBFS are "
        "needed; remove the file"
    )


def _check(crops: int, crop_seconds: float, chunk_seconds: float, min_seconds: float) -> None:
    """Refuse crops and chunks that contradict each other or are out of range."""
    if crops and chunk_seconds:
        raise LikenessError(
            f"{crops} crops and chunks of {chunk_seconds:g} s are both set; choose one of them"
        )
    if crops < 0 or crop_seconds < min_seconds:
        raise LikenessError(
            f"crops is {crops}, of {crop_seconds:g} s each; 0 or more crops of {min_seconds:g} s "
            "or more are allowed"
        )
    if chunk_seconds < 0 or 0 < chunk_seconds < 2 * min_seconds:
        raise LikenessError(
            f"chunks of {chunk_seconds:g} s are set; 0 (no chunks) or {2 * min_seconds:g} s or "
            "more is allowed"
        )


def _windows(wave: Wave, num: int, size: int) -> Iterator[Wave]:
    """Yield `num` evenly spaced windows, or a wave that is too short repeated to one window."""
    if len(wave) <= size:
        yield np.take(wave, np.arange(size), mode="wrap")
        return
    for start in np.linspace(0, len(wave) - size, num).astype(np.int64):
        yield wave[start : start + size]


def _chunks(wave: Wave, size: float) -> Iterator[Wave]:
    """Yield pieces of equal length, none longer than size; a size of 0 means one piece."""
    num = math.ceil(len(wave) / size) if size else 1
    edges = np.linspace(0, len(wave), num + 1).round().astype(np.int64)
    for start, end in pairwise(edges):
        yield wave[start:end]


@contextmanager
def _opened(
    item: Item, max_seconds: float, max_values: int
) -> Iterator[tuple[soundfile.SoundFile, int, float]]:
    """Open a file at the first sample of an item; give it, the samples to read, and the speed.

    Unreadable files are refused, also where the block finds them to be so.
    """
    try:
        with soundfile.SoundFile(item.path) as file:
            rate_hz, frames = int(file.samplerate), int(file.frames)
            decoding.check_header(
                item.name, rate_hz, int(file.channels), frames, max_seconds, max_values
            )
            begin, stop = decoding.frames_of(item, rate_hz, frames)
            if begin:
                file.seek(begin)
            yield file, stop - begin, decoding.speed_of(item.id)
    except (soundfile.SoundFileError, OSError) as error:
        reason = str(error.error_string if isinstance(error, soundfile.LibsndfileError) else error)
        raise BadAudio(
            f"{item.name}: unreadable, {reason.rstrip('. ')}; {', '.join(decoding.SUFFIXES)} "
            "are read in chunks"
        ) from error


def _stream(
    item: Item, chunk_seconds: float, rate_hz: int, max_seconds: float, max_values: int
) -> Iterator[Wave]:
    """Yield the file's pieces at rate_hz; silent pieces are left out.

    The memory is a piece and a block, whatever the file's length. Unreadable files are refused.
    """
    with _opened(item, max_seconds, max_values) as (file, frames, speed):
        total = frames / int(file.samplerate) / speed * rate_hz
        num_pieces = max(1, math.ceil(total / (chunk_seconds * rate_hz)))
        size = max(1, math.ceil(total / num_pieces))
        pending: list[Wave] = []
        length = 0
        for block, last in _blocks(item, file, frames, speed, rate_hz):
            pending.append(block)
            length += len(block)
            while length >= size or (last and length):
                joined = np.concatenate(pending)
                piece, rest = joined[:size], joined[size:]
                pending, length = [rest], len(rest)
                if float(np.abs(piece).max()) >= 10 ** (SILENCE_DBFS / 20):
                    yield piece


def _blocks(
    item: Item, file: soundfile.SoundFile, frames: int, speed: float, rate_hz: int
) -> Iterator[tuple[Wave, bool]]:
    """Yield mono blocks of the next frames at rate_hz, each with whether it is the last one.

    A block that no recording has is refused, and after the last one also a file that was cut short.
    """
    file_hz = int(file.samplerate)
    to_rate = None
    if file_hz * speed != rate_hz:
        to_rate = soxr.ResampleStream(file_hz * speed, rate_hz, 1, dtype="float32", quality="HQ")
    size = min(int(_BLOCK_SECONDS * file_hz), decoding.block_frames(int(file.channels)))
    place = 0
    last = False
    while not last:
        raw = file.read(min(size, frames - place), dtype="float32", always_2d=True)
        last = len(raw) == 0
        bad = int(np.count_nonzero(~np.isfinite(raw)))
        if bad:
            raise BadAudio(
                f"{item.name}: {bad} samples from {place / file_hz:g} s on are NaN or infinite; "
                "all must be finite; write the file again"
            )
        place += len(raw)
        wave = decoding.mix(raw)
        decoding.refuse_level(item.name, float(np.abs(wave).max(initial=0.0)))
        yield (wave if to_rate is None else to_rate.resample_chunk(wave, last=last)), last
    decoding.check_whole(item, file.format, place, frames, file_hz)
