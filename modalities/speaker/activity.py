"""Where somebody speaks in a recording, by the energy of its frames and a floor of noise.

This is not a model of speech: music passes, and so does noise that comes and goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from modalities.speaker.decoding import ROUNDING, Wave

HOP_SECONDS = 0.01
Frames = NDArray[np.float64]


@dataclass(frozen=True)
class Activity:
    """How speech is found.

    Attributes:
        floor_quantile: The quantile of the frames' levels that is taken for the noise.
        loud_quantile: The quantile that is taken for the loud parts of speech.
        share: Where the threshold lies between the noise (0) and the loud parts (1), in decibels.
        least_range_db: Where the loud parts are no more than this above the noise, there is no
            speech.
        most_below_db: The threshold is at most so far below the loud parts.
        smooth_seconds: Over which the power is averaged.
        hangover_seconds: Pauses up to this length are part of the speech around them.
        least_seconds: Speech that is shorter is left out: a click.
        margin_seconds: Speech begins and ends so much before and after.
    """

    floor_quantile: float = 0.1
    loud_quantile: float = 0.98
    share: float = 0.25
    least_range_db: float = 6.0
    most_below_db: float = 40.0
    smooth_seconds: float = 0.05
    hangover_seconds: float = 0.3
    least_seconds: float = 0.15
    margin_seconds: float = 0.02

    def __post_init__(self) -> None:
        quantiles = self.floor_quantile, self.loud_quantile, self.share
        lengths = self.smooth_seconds, self.hangover_seconds, self.least_seconds
        if not 0 <= self.floor_quantile < self.loud_quantile <= 1 or not 0 < self.share < 1:
            raise LikenessError(
                f"the quantiles and the share are {quantiles}; the noise lies below the loud "
                "parts, both within 0 to 1, and the threshold between them"
            )
        if not all(0 <= length < math.inf for length in (*lengths, self.margin_seconds)):
            raise LikenessError(f"the lengths are {lengths} s; 0 or more are allowed")


USUAL = Activity()


def frame_powers(blocks: Iterable[Wave], rate_hz: int) -> Frames:
    """Compute the power of every 10 ms of a recording that comes block by block.

    Args:
        blocks: Waves (samples,) that follow each other.
        rate_hz: Their rate in Hz.

    Returns:
        (T,) mean squares about the mean of each frame. The last frame may be shorter.

    Example:
        >>> wave = np.tile(np.array([0.5, -0.5], np.float32), 120)
        >>> frame_powers([wave[:100], wave[100:]], 16_000).tolist()
        [0.25, 0.25]
    """
    size = max(1, round(HOP_SECONDS * rate_hz))
    return np.concatenate([np.empty(0), *_powers(blocks, size)])


def _powers(blocks: Iterable[Wave], size: int) -> Iterator[Frames]:
    rest = np.empty(0, np.float32)
    for block in blocks:
        wave = np.concatenate([rest, block])
        whole = len(wave) // size * size
        yield wave[:whole].reshape(-1, size).astype(np.float64).var(axis=1)
        rest = wave[whole:]
    if len(rest):
        yield np.array([rest.astype(np.float64).var()])


def speech(powers: Frames, how: Activity = USUAL) -> NDArray[np.int64]:
    """Find the stretches of speech from the powers of the frames.

    A frame is speech if its level reaches a threshold between the noise and the loud parts of the
    whole recording, which are quantiles. Digital silence takes no part in the quantiles, and is
    never speech. Pauses up to the hangover are closed then, short bursts are dropped, and what is
    left is widened by the margin.

    Args:
        powers: (T,), as `frame_powers` gives them.
        how: The quantiles and lengths.

    Returns:
        (stretches, 2): the first frame of each and the one after its last, in order and apart.

    Example:
        >>> powers = np.repeat([1e-8, 1e-2, 1e-8], [100, 50, 100])
        >>> speech(powers, Activity(margin_seconds=0, smooth_seconds=0)).tolist()
        [[100, 150]]
    """
    width = 2 * _frames(how.smooth_seconds / 2) + 1
    padded = np.pad(powers, width // 2, mode="edge") if len(powers) else powers
    sums = np.concatenate([[0.0], np.cumsum(padded)])
    smooth = np.maximum(sums[width:] - sums[:-width], 0.0) / width
    sounding = smooth > ROUNDING
    if not sounding.any():
        return np.empty((0, 2), dtype=np.int64)
    levels = 10 * np.log10(np.maximum(smooth, ROUNDING))
    floor, loud = np.quantile(levels[sounding], [how.floor_quantile, how.loud_quantile])
    if loud - floor < how.least_range_db and sounding.all():
        return np.empty((0, 2), dtype=np.int64)
    threshold = max(floor + how.share * (loud - floor), loud - how.most_below_db)
    stretches = runs(sounding & (levels >= threshold))
    stretches = closed(stretches, _frames(how.hangover_seconds))
    long = stretches[:, 1] - stretches[:, 0] >= max(1, _frames(how.least_seconds))
    margin = _frames(how.margin_seconds)
    wider = np.clip(stretches[long] + np.array([-margin, margin]), 0, len(powers))
    return closed(wider, 0)


def _frames(seconds: float) -> int:
    return round(seconds / HOP_SECONDS)


def runs(active: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the stretches of True (stretches, 2): the first of each and the one after its last.

    Example:
        >>> runs(np.array([True, True, False, True])).tolist()
        [[0, 2], [3, 4]]
    """
    change = np.flatnonzero(np.diff(np.concatenate([[False], active, [False]]).astype(np.int8)))
    return change.reshape(-1, 2)


def closed(stretches: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Join stretches, which are in order, that have at most so many frames between them.

    Example:
        >>> closed(np.array([[0, 2], [3, 4], [9, 10]]), 1).tolist()
        [[0, 4], [9, 10]]
    """
    if not len(stretches):
        return stretches
    apart = stretches[1:, 0] - stretches[:-1, 1] > most
    starts = stretches[np.concatenate([[True], apart]), 0]
    ends = stretches[np.concatenate([apart, [True]]), 1]
    return np.stack([starts, ends], axis=1)
