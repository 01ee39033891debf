"""False-accept rates below those that were counted, from the tail of the impostor scores.

Far enough up, what scores exceed a start u by has nearly a generalised Pareto distribution (Balkema
& de Haan 1974; Pickands 1975): the share of all scores above u + x is

    share (1 + shape x / scale)^(-1 / shape)          share exp(-x / scale) for a shape of 0

Shape and scale are fitted by probability-weighted moments (Hosking & Wallis 1987). The start is the
lowest, of those with 2,000, 1,000, 500, ... excesses, at which the Anderson-Darling test does not
reject the fit. Its p-value is that of samples drawn from the fit and fitted anew. Excesses share
subjects, which the test does not know; the interval does, since it draws subjects.

An extrapolation is an assumption about people whom nobody saw. So it is refused where the test
rejects every start, and below the rate from which the interval reaches ten times as far up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.types import Floats

MOST_EXCESSES, LEAST_EXCESSES = 2000, 50
LARGEST_SHARE = 0.1  # of the scores that may count as a tail
LEAST_P = 0.1  # of the test of fit
NUM_SAMPLES = 200  # of the test of fit
FURTHEST = 10  # how many times a rate the upper end of its interval may be


class Tail(NamedTuple):
    """The tail of impostor scores, as a generalised Pareto distribution.

    Attributes:
        start: Where it begins.
        share: The share of scores above the start.
        shape: Of the distribution; below 0 scores have an upper end.
        scale: Of the distribution.
    """

    start: float
    share: float
    shape: float
    scale: float

    def far(self, threshold: float) -> float:
        """The false-accept rate of a threshold above the start.

        >>> Tail(1.0, 0.01, 0.0, 2.0).far(1.0 + 2.0 * np.log(10))
        0.001
        """
        x = (threshold - self.start) / self.scale
        if abs(self.shape) < 1e-9:
            return float(self.share * np.exp(-x))
        return float(self.share * max(1 + self.shape * x, 0.0) ** (-1 / self.shape))

    def threshold(self, far: float) -> float:
        """The threshold of a false-accept rate below the share of the tail.

        >>> round(Tail(1.0, 0.01, -0.2, 2.0).threshold(0.001), 4)
        4.6904
        """
        drop = np.log(self.share / far)
        if abs(self.shape) < 1e-9:
            return float(self.start + self.scale * drop)
        return float(self.start + self.scale * np.expm1(self.shape * drop) / self.shape)


def _pareto(excesses: Floats) -> tuple[float, float]:
    """Shape and scale of sorted excesses, by probability-weighted moments."""
    n = excesses.size
    first = excesses.mean()
    second = float((1 - (np.arange(1, n + 1) - 0.35) / n) @ excesses) / n
    apart = first - 2 * second
    return float(2 - first / apart), float(2 * first * second / apart)


def _misfit(excesses: Floats, shape: float, scale: float) -> float:
    """The statistic of Anderson and Darling of sorted excesses."""
    n, tail = excesses.size, Tail(0.0, 1.0, shape, scale)
    above = np.clip([tail.far(x) for x in excesses.tolist()], 1e-300, 1 - 1e-16)
    weights = 2 * np.arange(1, n + 1) - 1
    return float(-n - weights @ (np.log1p(-above) + np.log(above[::-1])) / n)


def fit_tail(nontarget: ArrayLike, *, seed: int = 0) -> tuple[Tail, float]:
    """Fit the tail of impostor scores.

    Args:
        nontarget: (N,) scores of nontarget trials.
        seed: Of the samples of the test of fit.

    Returns:
        The tail, and the p-value of its fit.

    Raises:
        LikenessError: There are too few scores, or the fit does not hold anywhere.

    Example:
        >>> tail, p = fit_tail(np.random.default_rng(0).exponential(size=20_000))
        >>> abs(tail.shape) < 0.1, p >= 0.1, 0.5 < tail.far(-np.log(1e-5)) / 1e-5 < 2
        (True, True, True)
    """
    scores, rng = np.sort(np.asarray(nontarget, dtype=np.float64)), np.random.default_rng(seed)
    size, best = MOST_EXCESSES, 0.0
    while size > LARGEST_SHARE * scores.size:
        size //= 2
    while size >= LEAST_EXCESSES:
        start = float(scores[-size - 1])
        excesses = scores[scores > start] - start
        if excesses.size >= LEAST_EXCESSES and np.unique(excesses).size > excesses.size / 2:
            shape, scale = _pareto(excesses)
            tail = Tail(start, excesses.size / scores.size, shape, scale)
            misfit, unit = _misfit(excesses, shape, scale), tail._replace(start=0.0, share=1.0)
            worse = 0
            for _ in range(NUM_SAMPLES):
                drawn = np.sort([unit.threshold(u) for u in 1 - rng.random(excesses.size)])
                worse += _misfit(drawn, *_pareto(drawn)) >= misfit
            p = (worse + 1) / (NUM_SAMPLES + 1)
            if p >= LEAST_P:
                return tail, p
            best = max(best, p)
        size //= 2
    raise LikenessError(
        f"no false-accept rate is extrapolated from {scores.size:,} nontarget scores: "
        + (
            f"no part of their tail is like a generalised Pareto distribution (p {best:.2g})"
            if best
            else f"fewer than {LEAST_EXCESSES} of them, without ties, are in the tail"
        )
        + "; state rates that were counted"
    )


def resampled_tails(
    nontarget: ArrayLike, subjects: ArrayLike | None, tail: Tail, num_resamples: int, seed: int
) -> list[Tail]:
    """The tail above the same start, of resamples of the subjects.

    Args:
        nontarget: (N,) scores.
        subjects: (N, 2) integers, the subjects of both sides; None draws trials.
        tail: Of the scores.
        num_resamples: How many.
        seed: Of the draws.
    """
    from scipy.sparse import coo_array

    scores, rng = np.asarray(nontarget, dtype=np.float64), np.random.default_rng(seed)
    high = np.flatnonzero(scores > tail.start)
    high = high[np.argsort(scores[high])]
    if subjects is None:
        size, draw = scores.size, _trials_drawn(scores.size, high)
    else:
        numbers = np.unique(np.asarray(subjects), return_inverse=True)[1].reshape(-1, 2)
        size = int(numbers.max()) + 1
        pairs = coo_array((np.ones(scores.size), (numbers[:, 0], numbers[:, 1])), (size, size))
        table = pairs.tocsr()

        def draw(times: Floats) -> tuple[Floats, float]:
            weights = times[numbers[high, 0]] * times[numbers[high, 1]]
            return weights, float(times @ (table @ times))

    tails = []
    for _ in range(num_resamples):
        weights, total = draw(rng.multinomial(size, np.full(size, 1 / size)).astype(np.float64))
        excesses = np.repeat(scores[high] - tail.start, weights.astype(np.int64))
        if np.unique(excesses).size >= 3:
            tails.append(Tail(tail.start, excesses.size / total, *_pareto(excesses)))
    return tails


def _trials_drawn(size: int, high: ArrayLike) -> Callable[[Floats], tuple[Floats, float]]:
    """The weights of trials that are drawn each by itself."""
    return lambda times: (times[np.asarray(high)], float(size))
