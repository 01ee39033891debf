"""Recordings in several inputs: evenly spaced crops, or a long file in chunks, streamed so that its
length needs no memory; with or without its pauses.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import soundfile
import soxr

from modalities.speaker import audio, vad
from modalities.speaker.audio import AV_SUFFIXES, SILENCE_DBFS, BadAudio, Wave
from toolkit.data.batch import Item

MAX_SECONDS = 86_400.0  # what a header may claim in chunks: a day
MAX_VALUES = (
    2**34
)  # samples x channels in chunks: a day of stereo at 96 kHz; a small file can claim far more work
_BLOCK_SECONDS = 10.0
_MAX_CHANNELS = 64


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
) -> Iterator[Wave]:
    """item -> waves (samples,) at rate_hz whose embeddings are to be averaged, weighted by length.

    crops: so many windows of crop_seconds, evenly spaced from the beginning to the end
    (voxceleb_trainer's test: 10 of 4 s, DatasetLoader.py loadWAV with evalmode); a recording
    shorter than a window is repeated, end to beginning, and is one window. chunk_seconds: the whole
    recording in pieces of equal length, as few as are not longer than this; files through
    libsndfile are read piece by piece, for up to a day of audio, and silent pieces are left out.
    Neither: the recording in one piece. only_speech: without the pauses (vad.trim); in chunks, each
    chunk by its own mean energy.
    max_seconds, max_values: as for audio.read. 0: its defaults, and in chunks a day and 2^34
    values. Raises BadAudio as audio.read does, also after the first pieces of a damaged file, and
    where no speech is left; ValueError for crops with chunks.
    """
    if crops and chunk_seconds:
        raise ValueError(f"{crops} crops and chunks of {chunk_seconds:g} s: choose one of them")
    if (
        crops < 0
        or crop_seconds < min_seconds
        or chunk_seconds < 0
        or 0 < chunk_seconds < 2 * min_seconds
    ):
        raise ValueError(
            f"crops {crops} of {crop_seconds:g} s, chunks of {chunk_seconds:g} s: crops must be 0 "
            f"or more of {min_seconds:g} s or more,"
            f" and chunks 0 (none) or {2 * min_seconds:g} s or more"
        )
    streamed = (
        chunk_seconds > 0
        and item.span is None
        and item.suffix not in AV_SUFFIXES
        and os.path.isfile(item.path)
    )
    if streamed:
        parts = _stream(
            item, chunk_seconds, rate_hz, max_seconds or MAX_SECONDS, max_values or MAX_VALUES
        )
    else:
        seconds, values = max_seconds or audio.MAX_SECONDS, max_values or audio.MAX_VALUES
        parts = iter(
            [
                audio.read(
                    item,
                    rate_hz=rate_hz,
                    min_seconds=min_seconds,
                    max_seconds=seconds,
                    max_values=values,
                )
            ]
        )
    if only_speech:
        parts = (vad.trim(part, rate_hz) for part in parts)
    shortest = math.ceil(min_seconds * rate_hz)
    given = 0
    for part in parts:
        if (
            len(part) >= shortest
        ):  # else what a resampler's rounding left at the end, or what little speech was in a chunk
            given += 1
            yield from (
                _windows(part, crops, round(crop_seconds * rate_hz))
                if crops
                else [part]
                if streamed
                else _chunks(part, chunk_seconds * rate_hz)
            )
    if not given:
        what = (
            f"less than {min_seconds} s of speech by its energy"
            if only_speech
            else f"silent or too short; {min_seconds} s above {SILENCE_DBFS:.0f} dBFS are needed"
        )
        raise BadAudio(
            f"{item.name}: {what}; remove the file"
            + (" or embed it with its pauses" if only_speech else "")
        )


def _windows(wave: Wave, num: int, size: int) -> Iterator[Wave]:
    if len(wave) <= size:
        yield np.take(wave, np.arange(size), mode="wrap")
        return
    for start in np.linspace(0, len(wave) - size, num).astype(np.int64):
        yield wave[start : start + size]


def _chunks(wave: Wave, size: float) -> Iterator[Wave]:
    """Pieces of equal length, none longer than size; size 0: one piece."""
    num = math.ceil(len(wave) / size) if size else 1
    edges = np.linspace(0, len(wave), num + 1).round().astype(np.int64)
    for start, end in pairwise(edges):
        yield wave[start:end]


def _stream(
    item: Item, chunk_seconds: float, rate_hz: int, max_seconds: float, max_values: int
) -> Iterator[Wave]:
    """The file's pieces at rate_hz; memory is a piece and a block, whatever the file's length.

    Silent pieces are left out, unreadable files are refused.
    """
    try:
        with soundfile.SoundFile(item.path) as file:
            file_hz, channels, frames = int(file.samplerate), int(file.channels), int(file.frames)
            seconds = frames / max(1, file_hz)
            if not 1_000 <= file_hz <= 768_000 or not 1 <= channels <= _MAX_CHANNELS:
                raise BadAudio(
                    f"{item.name}: the header states {file_hz} Hz and {channels} channels; 1000 to "
                    f"768000 and 1 to {_MAX_CHANNELS} are allowed"
                )
            if not 0 < seconds <= max_seconds:
                raise BadAudio(
                    f"{item.name}: the header states {seconds:g} s; above 0 and at most "
                    f"{max_seconds:g} s are read in chunks; cut it first"
                )
            if frames * channels > max_values:
                raise BadAudio(
                    f"{item.name}: the header states {frames} samples of {channels} channels; at "
                    f"most {max_values} values are read in chunks; cut it first"
                )
            speed = audio.speed_of(item.id)
            to_rate = (
                None
                if file_hz * speed == rate_hz
                else soxr.ResampleStream(file_hz * speed, rate_hz, 1, dtype="float32", quality="HQ")
            )
            total = seconds / speed * rate_hz
            size = math.ceil(total / math.ceil(total / (chunk_seconds * rate_hz)))
            held: list[Wave] = []
            length, place = 0, 0
            block = min(int(_BLOCK_SECONDS * file_hz), audio.block_frames(channels))
            while True:
                raw = file.read(block, dtype="float32", always_2d=True)
                last = len(raw) == 0
                bad = int(np.count_nonzero(~np.isfinite(raw)))
                if bad:
                    raise BadAudio(
                        f"{item.name}: {bad} samples from {place / file_hz:g} s on are NaN or "
                        "infinite; all must be finite; write the file again"
                    )
                place += len(raw)
                wave = audio.mix(raw)
                audio.refuse_level(item.name, float(np.abs(wave).max(initial=0.0)))
                held.append(wave if to_rate is None else to_rate.resample_chunk(wave, last=last))
                length += len(held[-1])
                while length >= size or (last and length):
                    joined = np.concatenate(held)
                    piece, rest = joined[:size], joined[size:]
                    held, length = [rest], len(rest)
                    if float(np.abs(piece).max()) >= 10 ** (SILENCE_DBFS / 20):
                        yield piece
                if last:
                    audio.check_whole(item, file.format, place, frames, file_hz)
                    return
    except (soundfile.SoundFileError, OSError) as error:
        reason = str(error.error_string if isinstance(error, soundfile.LibsndfileError) else error)
        raise BadAudio(
            f"{item.name}: unreadable, {reason.rstrip('. ')}; {', '.join(audio.SUFFIXES)} are read "
            "in chunks"
        ) from error
