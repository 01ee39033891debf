"""Long recordings in several inputs: evenly spaced crops, or chunks, with or without pauses.

Chunks are streamed, so that the length of a file needs no memory. Pauses are found by their energy,
as Kaldi decides it, which is not a model of speech: music and noise pass.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.items.suffixes import AV_SOUNDS
from likeness.modalities.speaker import audio, decoding
from likeness.modalities.speaker.bandwidth import is_narrow, narrow_audio
from likeness.modalities.speaker.content import lack_of_voice
from likeness.modalities.speaker.decoding import SILENCE_DBFS, BadAudio, Wave
from likeness.toolkit.data.reading import Lack, refuse_empty

MAX_SECONDS = 86_400.0  # the longest duration that a header may claim in chunks: a day
# Samples x channels in chunks, which is a day of stereo at 96 kHz. A small file can claim far more
# work.
MAX_VALUES = 2**34
FRAME_SECONDS, HOP_SECONDS = 0.025, 0.01  # in which the energy of speech is measured
CROP_SECONDS = 4.0
_SCALE = 32768.0  # Kaldi's integer levels, for which its threshold is meant
_FLOOR = 1.1920929e-07


def check(crops: int, chunk_seconds: float) -> None:
    """Refuse a reading that `read` does not know.

    Raises:
        LikenessError: Crops and chunks are both set, or one of them is out of range.
    """
    is_known = chunk_seconds == 0 or 1 <= chunk_seconds < math.inf
    if crops < 0 or not is_known or (crops and chunk_seconds):
        raise LikenessError(
            f"{crops} crops and chunk_seconds {chunk_seconds:g} are set; choose one of them, crops "
            "or chunks of at least 1 s"
        )


def read(
    item: Item,
    *,
    crops: int = 0,
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
    read chunk by chunk, for up to a day of audio, and chunks that certainly hold no voice are left
    out.

    Args:
        item: The file, or the span of a tar shard, to read.
        crops: How many windows of 4 s to take, evenly spaced from the beginning to the end
            (voxceleb_trainer's test takes 10: DatasetLoader.py loadWAV with evalmode). A recording
            that is shorter than a window is repeated, end to beginning, and is one window.
        chunk_seconds: The longest chunk in seconds. The whole recording is cut into chunks of equal
            length, as few as possible. 0 means no chunks.
        only_speech: Whether to cut the pauses out (`cut_pauses`). In chunks, each chunk is
            judged by its own mean energy.
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
        Empty: No chunk can hold a voice.
    """
    streamed = chunk_seconds > 0 and decoding.kind_of(item) not in AV_SOUNDS
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
    used, lacks = 0, list[Lack | None]()
    for part in parts:
        if streamed:
            lacks.append(lack_of_voice(part, rate_hz))
            if lacks[-1] is not None and lacks[-1].is_sure:
                continue
        if needs_hz and is_narrow(part, rate_hz, needs_hz):
            raise narrow_audio(item, needs_hz)
        if level_dbfs is not None:
            part = audio.at_level(audio.cut_digital_silence(part), level_dbfs)
        if only_speech:
            part = cut_pauses(part, rate_hz)
        # A shorter part is what a resampler's rounding left at the end, or the little speech that
        # was in a chunk.
        if len(part) < math.ceil(min_seconds * rate_hz):
            continue
        used += 1
        if crops:
            yield from _windows(part, crops, round(CROP_SECONDS * rate_hz))
        else:
            yield from _chunks(part, 0.0 if streamed else chunk_seconds * rate_hz)
    if lacks and None not in lacks:  # by chance one of many chunks of noise leaves a doubt
        every = sorted(filter(None, lacks), key=lambda lack: lack.is_sure)
        refuse_empty(item.name, every[len(every) // 2])
    if not used:
        what = "less than {} s of speech by its energy" if only_speech else "too short"
        raise BadAudio(
            f"{item.name}: {what.format(min_seconds)}; {min_seconds} s above {SILENCE_DBFS:.0f} "
            "dBFS are needed; remove the file, or embed it with its pauses"
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


def _stream(
    item: Item, chunk_seconds: float, rate_hz: int, max_seconds: float, max_values: int
) -> Iterator[Wave]:
    """Yield the pieces of an item at rate_hz.

    The memory is a piece and a block, whatever the item's length.
    """
    pending: list[Wave] = []
    size = length = 0
    blocks = audio.mono_blocks(item, rate_hz, max_seconds=max_seconds, max_values=max_values)
    for block, total in blocks:
        size = math.ceil(total / max(1, math.ceil(total / (chunk_seconds * rate_hz))))
        pending.append(block)
        length += len(block)
        while length >= size:
            joined = np.concatenate(pending)
            pending, length = [joined[size:]], length - size
            yield joined[:size]
    if length:
        yield np.concatenate(pending)


def log_energy(wave: Wave, rate_hz: int = 16_000) -> NDArray[np.float64]:
    """Compute the logarithm of the energy of every frame, which is Kaldi's raw energy.

    The energy is the sum of squares of each 25 ms frame every 10 ms, at int16 scale, after the mean
    of the frame is removed. Source: Kaldi, feat/feature-window.cc, ProcessWindow, without dither
    and with snip_edges. A wave that is shorter than a frame is one frame.

    Args:
        wave: (samples,) in [-1, 1].
        rate_hz: The rate of the wave in Hz.

    Returns:
        (T,) natural logarithms.
    """
    frame, hop = min(int(FRAME_SECONDS * rate_hz), len(wave)), int(HOP_SECONDS * rate_hz)
    scaled = _SCALE * wave.astype(np.float64)
    sums = [np.concatenate([[0.0], np.cumsum(power)]) for power in (scaled, scaled**2)]
    starts = np.arange(1 + (len(wave) - frame) // hop) * hop
    total, squares = (sum_to[starts + frame] - sum_to[starts] for sum_to in sums)
    energy: NDArray[np.float64] = np.log(np.maximum(squares - total**2 / frame, _FLOOR))
    return energy


def cut_pauses(wave: Wave, rate_hz: int = 16_000) -> Wave:
    """Cut the pauses out of a wave and join the rest end to end.

    A frame is speech if its energy is above 5 + 0.5 x (the mean over the frames), which is the rule
    with the defaults of Kaldi's compute-vad. Source: Kaldi, ivector/voice-activity-detection.cc,
    ComputeVadEnergy.

    The rest is the 10 ms that every speech frame begins with, and what follows the last frame if
    that is speech.

    Args:
        wave: (samples,).
        rate_hz: The rate of the wave in Hz.

    Returns:
        The samples of speech; there may be none.
    """
    if len(wave) == 0:
        return wave
    energy = log_energy(wave, rate_hz)
    speech = energy > 5.0 + 0.5 * energy.mean()
    hop = int(HOP_SECONDS * rate_hz)
    keep = np.repeat(speech, hop)[: len(wave)]
    kept: Wave = wave[np.concatenate([keep, np.full(len(wave) - len(keep), speech[-1])])]
    return kept
