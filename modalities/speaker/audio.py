"""Audio files become float32 mono waves at one rate; a file that cannot be used is refused.

Every refusal is a `BadAudio` that names the file and the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Literal, Protocol, overload

import numpy as np
import soxr

from eval.errors import LikenessError
from modalities.speaker.bandwidth import refuse_narrow
from modalities.speaker.decoding import (
    AV_SUFFIXES,
    MAX_SECONDS,
    MAX_VALUES,
    RATES_HZ,
    SILENCE_DBFS,
    SPEED_MARK,
    BadAudio,
    SilentAudio,
    Wave,
    decode_av,
    decode_soundfile,
    mix,
    refuse_level,
    speed_of,
)
from modalities.speaker.level import levelled
from modalities.speaker.recording import open_recording
from toolkit.data.items import Item, Items


class Sliceable(Protocol):
    """What crop() cuts from: a wave, or a Recording (recording.py), which decodes the slice."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Wave: ...


@overload
def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
    needs_hz: float = 0.0,
    level_dbfs: float | None = None,
    decoded: Literal[True] = True,
) -> Wave: ...


@overload
def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
    needs_hz: float = 0.0,
    level_dbfs: float | None = None,
    decoded: bool,
) -> Wave | Sliceable: ...


def read(
    item: Item,
    *,
    rate_hz: int = 16_000,
    min_seconds: float = 0.1,
    max_seconds: float = MAX_SECONDS,
    max_values: int = MAX_VALUES,
    needs_hz: float = 0.0,
    level_dbfs: float | None = None,
    decoded: bool = True,
) -> Wave | Sliceable:
    """Read one item as a mono wave at the wanted rate.

    Any rate and any number of channels can be read. Channels are averaged, and integers are scaled
    to [-1, 1). The file is decoded, mixed and resampled block by block: the memory is the result
    and a few MiB, whatever the number of channels and the rate of the file.

    An id that ends in "#speed=0.9" is read at that speed, as sox changes it: the duration is
    divided by the speed, and pitch and formants are multiplied by it.

    Args:
        item: The file, or the span of a tar shard, to read.
        rate_hz: The rate of the result in Hz.
        min_seconds: The shortest duration that is accepted, before the change of speed.
        max_seconds: The longest duration that is accepted, before the change of speed.
        max_values: The most samples x channels that are decoded, which bounds the work.
        needs_hz: A recording that has nothing above this frequency is refused, such as one of a
            telephone (bandwidth.py); 0 refuses none.
        level_dbfs: The level of speech that every recording is brought to, after digital silence
            was cut out (level.py); None leaves both as they are.
        decoded: False leaves the decoding of a long WAV or FLAC file to crop(), which then decodes
            only what it cuts out (recording.py), to the same numbers. Damage of the file is found
            where a crop meets it.

    Returns:
        The wave, (samples,) float32; perhaps a Recording, which is sliced as a wave is, where
        `decoded` is False.

    Raises:
        BadAudio: The file cannot be decoded, is empty, is cut short, or is shorter than min_seconds
            or longer than max_seconds. It holds NaN or infinity. It is silent: its peak is below
            -90 dBFS after the channels are averaged. It is absurdly loud: its peak is above 2^31,
            where full scale is 1, which only files of floats can hold. Its header claims an absurd
            rate or size. It has nothing above needs_hz.
        LikenessError: The speed in the id is no number within 0.5 to 2.
    """
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        raise LikenessError(
            f"rate_hz {rate_hz}: recordings are read at {RATES_HZ[0]:,} to {RATES_HZ[1]:,} Hz"
        )
    if not decoded and not needs_hz and level_dbfs is None:
        read_whole = partial(
            read,
            item,
            rate_hz=rate_hz,
            min_seconds=min_seconds,
            max_seconds=max_seconds,
            max_values=max_values,
        )
        recording = open_recording(
            item,
            read_whole,
            rate_hz=rate_hz,
            min_seconds=min_seconds,
            max_seconds=max_seconds,
            max_values=max_values,
        )
        if recording is not None:
            return recording
    name, speed = item.name, speed_of(item.id)
    decode = decode_av if item.suffix in AV_SUFFIXES else decode_soundfile
    resampled: list[Wave] = []
    to_rate: soxr.ResampleStream | None = None
    samples, values, bad, peak, file_hz = 0, 0, 0, 0.0, 0
    for raw, file_hz in decode(item, max_seconds, max_values):
        samples, values = samples + len(raw), values + raw.size
        bad += int(np.count_nonzero(~np.isfinite(raw)))
        block = mix(raw)
        # NumPy's maximum keeps NaN, unlike Python's max.
        peak = float(np.maximum(peak, np.abs(block).max(initial=0)))
        if file_hz * speed != rate_hz:
            # The stream of soxr gives the same bits as soxr.resample of the whole wave.
            to_rate = to_rate or soxr.ResampleStream(
                file_hz * speed, rate_hz, 1, dtype="float32", quality="HQ"
            )
            block = to_rate.resample_chunk(block)
        resampled.append(block)
    _refuse_short(name, samples, file_hz, min_seconds)
    _refuse_not_finite(name, bad, values)
    _refuse_silence(name, peak)
    refuse_level(name, peak)
    if to_rate is not None:
        resampled.append(to_rate.resample_chunk(np.empty(0, np.float32), last=True))
    wave = resampled[0] if len(resampled) == 1 else np.concatenate(resampled)
    refuse_narrow(name, wave, rate_hz, needs_hz)
    if level_dbfs is None:
        return wave
    wave = levelled(wave, level_dbfs)
    _refuse_short(name, len(wave), rate_hz, min_seconds)
    return wave


def _refuse_short(name: str, samples: int, file_hz: int, min_seconds: float) -> None:
    """Raise BadAudio for a file of no samples, or of less than min_seconds."""
    if samples == 0:
        raise BadAudio(
            f"{name}: the audio is empty, 0 samples; at least {min_seconds} s are needed; "
            "remove the file"
        )
    if samples < min_seconds * file_hz:
        raise BadAudio(
            f"{name}: the audio is too short, {samples / file_hz:.3f} s; at least {min_seconds} s "
            "are needed; give a longer recording, or leave this one out"
        )


def _refuse_not_finite(name: str, bad: int, values: int) -> None:
    """Raise BadAudio where any of the values is NaN or infinite."""
    if bad:
        raise BadAudio(
            f"{name}: {bad} of {values} samples are NaN or infinite; all must be finite; write the "
            "file again"
        )


def _refuse_silence(name: str, peak: float) -> None:
    """Raise SilentAudio for a wave whose largest absolute value is below SILENCE_DBFS."""
    if peak < 10 ** (SILENCE_DBFS / 20):
        level = (
            f"its peak is {20 * np.log10(peak):.1f} dBFS" if peak > 0 else "all samples are zero"
        )
        raise SilentAudio(
            f"{name}: the audio is silent, {level} after its channels are averaged; at least "
            f"{SILENCE_DBFS:.0f} dBFS is needed; remove the file"
        )


def resample(wave: Wave, from_hz: float, to_hz: float) -> Wave:
    """Resample a wave with the high-quality filter of soxr.

    Args:
        wave: (samples,) at from_hz.
        from_hz: The rate of the wave in Hz. The rates need not be integers, which is how the speed
            of a recording is changed.
        to_hz: The rate of the result in Hz.

    Returns:
        About samples x to_hz / from_hz samples.
    """
    if from_hz == to_hz:
        return wave
    resampled: Wave = soxr.resample(wave, from_hz, to_hz, quality="HQ")
    return resampled


def speed_copies(items: Iterable[Item], speeds: Iterable[float] = (0.9, 1.1)) -> Items:
    """Return the items, followed by one copy of all of them for each speed.

    A copy has "#speed=..." appended to its id and to its label: a speaker at another speed is a new
    class, which counts like any other. Unlabelled items stay unlabelled.

    Args:
        items: The items to copy.
        speeds: The speeds of the copies, within 0.5 to 2. No speed may be repeated, and none may be
            1.

    Returns:
        len(items) x (1 + len(speeds)) items.

    Raises:
        LikenessError: A speed is outside 0.5 to 2, repeated, or 1.

    Example:
        >>> from pathlib import Path
        >>> items = [Item("a/1", Path("a/1.flac"), "a")]
        >>> [(item.id, item.label) for item in speed_copies(items, speeds=(0.9,))]
        [('a/1', 'a'), ('a/1#speed=0.9', 'a#speed=0.9')]
    """
    originals, factors = Items.of(items), list(speeds)
    if 1.0 in factors or len(set(factors)) != len(factors):
        raise LikenessError(
            f"the speeds are {factors}; give each speed once, and leave out 1, because the "
            "originals are kept"
        )
    marks = [f"{SPEED_MARK}{speed:g}" for speed in factors]
    for mark in marks:
        speed_of(mark)
    if not marks:
        return originals
    copies = (
        item._replace(id=item.id + mark, label=None if item.label is None else item.label + mark)
        for mark in marks
        for item in originals
    )
    return Items.of(chain(originals, copies))


def crop(wave: Wave | Sliceable, num_samples: int, rng: np.random.Generator) -> Wave:
    """Cut a stretch from a uniformly drawn start of a wave.

    A wave that is too short is repeated, end to beginning. Either case takes one draw.

    Args:
        wave: (samples,), at least one. Of a Recording, only the stretch is decoded.
        num_samples: The length of the result, at least 1.
        rng: The generator of the start.

    Returns:
        The stretch, (num_samples,).

    Raises:
        LikenessError: num_samples is below 1, or the wave is empty.

    Example:
        >>> crop(np.arange(3, dtype=np.float32), 3, np.random.default_rng(0)).tolist()
        [0.0, 1.0, 2.0]
    """
    if num_samples < 1 or len(wave) < 1:
        raise LikenessError(
            f"crop: {num_samples} samples are to be cut from a wave of {len(wave)}; both numbers "
            "must be 1 or more"
        )
    if len(wave) >= num_samples:
        start = int(rng.integers(len(wave) - num_samples + 1))
        return wave[start : start + num_samples].copy()
    start = int(rng.integers(len(wave)))
    return np.take(wave[:], np.arange(start, start + num_samples), mode="wrap")
