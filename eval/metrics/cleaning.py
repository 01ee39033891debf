"""Which labels are likely wrong, and which items are nearly the same, by their embeddings."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from likeness.eval.progress import report
from likeness.eval.types import Floats, Floats32

_BLOCK = 2**22  # similarities that are computed at once
_MAX_PAIRS = 1_000_000
_LEAST_NEARER = 0.1  # of the other classes, for a label that is likely wrong
_TWIN_SHARE = 0.4  # of the items of two classes, for classes that are likely one


@dataclass(frozen=True)
class Fit:
    """How well each of N items fits its class, and which other class it is nearest to.

    Attributes:
        numbers: (N,) the class of each item, from 0.
        own: (N,) the cosine to the mean of its own class without itself; NaN where it is alone.
        other: (N,) the cosine to the mean of the nearest other class.
        looks_like: (N,) the number of that class.
        nearer: (N,) the share of the other classes that are at least as near as its own.
    """

    numbers: NDArray[np.int64]
    own: Floats
    other: Floats
    looks_like: NDArray[np.int64]
    nearer: Floats


def fit_of(unit: Floats32, numbers: NDArray[np.int64]) -> Fit:
    """Compares every item with the means of all classes.

    The means are those by which face and voice data are cleaned (for one centre per class: Deng et
    al. 2020, Sub-center ArcFace, section 3.4).

    Args:
        unit: (N, D) embeddings of length 1.
        numbers: (N,) the class of each, from 0. A number without items is no class.

    Example:
        >>> unit = np.eye(2, dtype=np.float32)[[0, 0, 1, 1, 0]]
        >>> fit_of(unit, np.array([0, 0, 1, 1, 1])).looks_like.tolist()
        [1, 1, 0, 0, 0]
    """
    counts = np.bincount(numbers)
    sums = np.zeros((len(counts), unit.shape[1]), dtype=np.float64)
    np.add.at(sums, numbers, unit)
    without: Floats = sums[numbers] - unit
    own = (without * unit).sum(axis=1) / np.maximum(np.linalg.norm(without, axis=1), 1e-12)
    own[counts[numbers] < 2] = np.nan
    lengths: Floats = np.linalg.norm(sums, axis=1, keepdims=True)
    means = (sums / np.maximum(lengths, 1e-12)).astype(np.float32)
    other, looks_like = np.full(len(unit), -np.inf), np.full(len(unit), -1, dtype=np.int64)
    nearer = np.zeros(len(unit))
    height = max(1, _BLOCK // max(1, len(counts)))
    for start in range(0, len(unit), height):
        rows = np.arange(start, min(start + height, len(unit)))
        similar = (unit[rows] @ means.T).astype(np.float64)
        similar[:, counts == 0] = -np.inf
        similar[np.arange(len(rows)), numbers[rows]] = -np.inf
        looks_like[rows], other[rows] = similar.argmax(axis=1), similar.max(axis=1)
        nearer[rows] = (similar >= own[rows, None]).sum(axis=1)
        report("comparing with the classes", int(rows[-1]) + 1, len(unit))
    others = max(1, int((counts > 0).sum()) - 1)
    return Fit(numbers, own, other, looks_like, nearer / others)


def suspects(fit: Fit) -> NDArray[np.int64]:
    """Finds the items whose label is likely wrong.

    An item is named where at least a tenth of the other classes is as near to it as its own class
    without itself. For an item of some other class the share is uniform between 0 and 1, whichever
    network made the embeddings, so that nine of ten wrong labels are named.
    docs/reference/results.md has the precision that was measured.

    Returns:
        Their rows, in the order of how much nearer the other class is. Items that are alone in
        their class are none.

    Example:
        >>> unit = np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 1]]
        >>> suspects(fit_of(unit, np.array([0, 0, 0, 1, 1, 1, 0]))).tolist()
        [6]
    """
    rows = np.flatnonzero(fit.nearer >= _LEAST_NEARER)
    return rows[np.argsort(fit.own[rows] - fit.other[rows], kind="stable")]


def twins(fit: Fit) -> NDArray[np.int64]:
    """Finds the pairs of classes that are likely one.

    A pair is named where two fifths of the items of both are nearest to the other class, of all
    classes with their own. An item that is alone in its class counts where it is as near to the
    other as the median item is to its own. Leave out the suspects first: where the items of a class
    do not fit each other, the nearest class is of no meaning.

    Returns:
        (P, 2) numbers of classes, the first smaller than the second.

    Example:
        >>> unit = np.eye(2, dtype=np.float32)[[0, 0, 0, 0, 1, 1]]
        >>> twins(fit_of(unit, np.array([0, 0, 1, 1, 2, 2]))).tolist()
        [[0, 1]]
    """
    known = fit.own[~np.isnan(fit.own)]
    if not known.size:
        return np.empty((0, 2), np.int64)
    away = fit.other >= np.where(np.isnan(fit.own), np.median(known), fit.own)
    pairs = np.sort(np.stack([fit.numbers[away], fit.looks_like[away]], axis=1), axis=1)
    pairs, count = np.unique(pairs, axis=0, return_counts=True)
    sizes = np.bincount(fit.numbers)[pairs].sum(axis=1)
    named: NDArray[np.int64] = pairs[count >= _TWIN_SHARE * sizes]
    return named


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
