"""A threshold for a new place from its unlabelled items: nobody says who is in them.

In a new place a model accepts more pairs of two people than where its threshold was measured: all
items there share the microphone, the room, the light or the language. That is a mean direction,
which is subtracted. What is left of the scores of two different people has nearly the same shape
wherever it was looked at: above its median it is `_TAIL` times as wide as a normal distribution of
the width that it has below. The lower half holds no pair of one person, so nobody's name is needed.

How well this holds is measured in docs/reference/results.md.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.types import Floats

LEAST_ITEMS = 50
LEAST_FAR, LARGEST_FAR = 0.001, 0.1  # what was measured
_MOST_ITEMS = 2_000  # two million pairs say no less than all of a larger set
_TAIL = 1.15
_ROUNDS = 3  # in which the share of pairs of one person is estimated, and these are left out


def centre_of(unit: NDArray[np.floating]) -> Floats:
    """Return the mean direction (D,) of unit embeddings (N, D)."""
    mean: Floats = np.asarray(unit, np.float64).mean(axis=0)
    return mean


def subtract_centre(rows: NDArray[np.floating], centre: Floats) -> Floats:
    """Return embeddings (N, D) without the mean direction of a place; each keeps its norm.

    Example:
        >>> rows = np.array([[2.0, 0.0], [0.0, 1.0]])
        >>> subtract_centre(rows, np.array([0.5, 0.5])).round(3).tolist()
        [[1.414, -1.414], [-0.707, 0.707]]
    """
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    turned: Floats = rows / np.maximum(lengths, 1e-30) - centre
    turned *= lengths / np.maximum(np.linalg.norm(turned, axis=1, keepdims=True), 1e-30)
    return turned


def check_far(far: float) -> None:
    """Refuse a rate for which nothing was measured.

    Raises:
        LikenessError: It is such a rate.
    """
    if not LEAST_FAR <= far <= LARGEST_FAR:
        raise LikenessError(f"far {far}: give {LEAST_FAR:g} to {LARGEST_FAR:g}, or labelled trials")


def estimated_thresholds(unit: NDArray[np.floating], fars: Sequence[float]) -> list[float]:
    """Estimate the cosines that given shares of the pairs of different people reach.

    Args:
        unit: (N, D) unit embeddings of the place's items, before they are centred.
        fars: The shares, which are false-accept rates.

    Returns:
        A threshold on the cosine of centred embeddings for each: accept if score >= threshold.

    Raises:
        LikenessError: There are too few items, or a rate is out of the range that was measured.

    Example:
        >>> people = np.random.default_rng(0).normal(size=(200, 64))
        >>> people /= np.linalg.norm(people, axis=1, keepdims=True)
        >>> round(estimated_thresholds(people, [0.01])[0], 1)
        0.3
    """
    if len(unit) < LEAST_ITEMS:
        raise LikenessError(f"{len(unit)} unlabelled items are too few; give {LEAST_ITEMS} or more")
    for far in fars:
        check_far(far)
    chosen = np.linspace(0, len(unit) - 1, min(len(unit), _MOST_ITEMS)).astype(int)
    rows = subtract_centre(unit[chosen], centre_of(unit))
    scores = np.sort((rows @ rows.T)[np.triu_indices(len(rows), 1)])
    # The mean is one of these items. New ones lie 2 / N nearer to each other.
    return [_reached(scores, far, nearer=2 / len(unit)) for far in fars]


def _reached(scores: Floats, far: float, *, nearer: float) -> float:
    """The score that a share of the pairs of different people reaches, by all sorted scores."""
    from scipy.special import ndtri  # slow to import, needed here only

    same, value = 0.0, 1.0
    for _ in range(_ROUNDS):
        others = scores[: round(len(scores) * (1 - same))]
        median = float(np.median(others))
        below = others[others < median] - median
        width = float(np.sqrt(np.mean(below**2)))
        value = median - _TAIL * float(ndtri(far)) * width + nearer
        same = float(np.clip((scores >= value).mean() - far, 0.0, 0.5))
    return value
