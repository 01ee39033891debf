"""Which labels are likely wrong, and which items are nearly the same, by their embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from likeness.eval.progress import report
from likeness.eval.types import Floats, Floats32

_BLOCK = 2**22  # similarities that are computed at once
_MAX_PAIRS = 1_000_000


@dataclass(frozen=True)
class Suspects:
    """Items that look like another class than their own, the surest first.

    Attributes:
        rows: (S,) the rows of the items.
        looks_like: (S,) the number of the class that each looks like.
        own: (S,) the cosine to the mean of its own class without itself.
        other: (S,) the cosine to the mean of the class that it looks like.
    """

    rows: NDArray[np.int64]
    looks_like: NDArray[np.int64]
    own: Floats
    other: Floats


def suspects(unit: Floats32, numbers: NDArray[np.int64]) -> Suspects:
    """Finds the items whose label is likely wrong.

    An item is named where it is nearer to the mean of another class than to that of its own class
    without itself, and as near to the other as that class's own items are on average. The second
    condition is the threshold of each class of confident learning (Northcutt, Jiang & Chuang 2021,
    equation 2), with cosines in place of probabilities. The means are those by which face and voice
    data are cleaned (for one centre per class: Deng et al. 2020, Sub-center ArcFace, section 3.4).

    Args:
        unit: (N, D) embeddings of length 1.
        numbers: (N,) the class of each, from 0.

    Returns:
        The suspects, in the order of how much nearer the other class is. Items that are alone in
        their class are none.

    Example:
        >>> unit = np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 1]]
        >>> suspects(unit, np.array([0, 0, 0, 1, 1, 1, 0])).rows.tolist()
        [6]
    """
    num_classes = int(numbers.max(initial=-1)) + 1
    counts = np.bincount(numbers, minlength=num_classes)
    sums = np.zeros((num_classes, unit.shape[1]), dtype=np.float64)
    np.add.at(sums, numbers, unit)
    without = sums[numbers] - unit
    own = (without * unit).sum(axis=1) / np.maximum(np.linalg.norm(without, axis=1), 1e-12)
    own[counts[numbers] < 2] = np.nan
    means = (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)).astype(
        np.float32
    )
    several = ~np.isnan(own)
    least = np.full(num_classes, np.inf)  # of a class of one item nobody knows how near is near
    total = np.bincount(numbers[several], own[several], minlength=num_classes)
    known = counts >= 2
    least[known] = total[known] / counts[known]
    other, looks_like = np.full(len(unit), -np.inf), np.full(len(unit), -1, dtype=np.int64)
    height = max(1, _BLOCK // max(1, num_classes))
    for start in range(0, len(unit), height):
        rows = np.arange(start, min(start + height, len(unit)))
        similar = (unit[rows] @ means.T).astype(np.float64)
        similar[similar < least] = -np.inf
        similar[np.arange(len(rows)), numbers[rows]] = -np.inf
        looks_like[rows] = similar.argmax(axis=1)
        other[rows] = similar.max(axis=1)
        report("comparing with the classes", int(rows[-1]) + 1, len(unit))
    suspicious = np.flatnonzero(other > own)
    suspicious = suspicious[np.argsort(own[suspicious] - other[suspicious], kind="stable")]
    return Suspects(suspicious, looks_like[suspicious], own[suspicious], other[suspicious])


def near_pairs(unit: Floats32, least: float) -> NDArray[np.int64]:
    """Finds the pairs of items whose cosine is at least this.

    Args:
        unit: (N, D) embeddings of length 1.
        least: The lowest cosine.

    Returns:
        (P, 2) rows, the first smaller than the second, in their order; at most a million.

    Example:
        >>> near_pairs(np.eye(3, dtype=np.float32)[[0, 1, 0]], 0.9).tolist()
        [[0, 2]]
    """
    pairs, count = [], 0
    height = max(1, _BLOCK // max(1, len(unit)))
    for start in range(0, len(unit), height):
        stop = min(start + height, len(unit))
        similar = unit[start:stop] @ unit[start:].T
        first, second = np.nonzero(similar >= least)
        later = second > first
        pairs.append(np.stack([first[later], second[later]], axis=1) + start)
        count += int(later.sum())
        report("comparing all pairs", stop, len(unit))
        if count >= _MAX_PAIRS:
            break
    return np.concatenate(pairs)[:_MAX_PAIRS] if pairs else np.empty((0, 2), np.int64)
