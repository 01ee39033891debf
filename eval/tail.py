"""False-accept rates below those that were counted, from the tail of the impostor scores.

Far enough up, what scores exceed a start u by has nearly a generalised Pareto distribution (Balkema
& de Haan 1974; Pickands 1975): the share of all scores above u + x is

    share (1 + shape x / scale)^(-1 / shape)          share exp(-x / scale) for a shape of 0

Shape and scale are fitted by probability-weighted moments (Hosking & Wallis 1987). A shape below 0
would mean that no score can ever exceed some end. Normal scores look so far down into their tail,
and a rate by that end is far too low. So 0 is taken, which errs to the safe side. The start is the
lowest, of those with 2,000, 1,000, 500, ... excesses, at which the Anderson-Darling test does not
reject the fit. Its p-value is that of samples drawn from the fit and fitted anew. Excesses share
subjects, which the test does not know; the interval does, since it draws subjects.

An extrapolation is an assumption about people whom nobody saw. So it is refused where the test
rejects every start, below a tenth of 1 / N of N scores, and from the rate on of which the interval
reaches ten times as far up.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.bootstrap import Bounds, bounds, drawn_from
from likeness.eval.errors import LikenessError
from likeness.eval.types import Floats, Scores
from likeness.eval.verification import Measured

MOST_EXCESSES, LEAST_EXCESSES = 2000, 50
LARGEST_SHARE = 0.1  # of the scores that may count as a tail
LEAST_P = 0.1  # of the test of fit
LEAST_DISTINCT = 3  # excesses of a resample that are fitted
LEAST_COUNTED = 10  # nontarget trials that stand behind a FAR that is counted
NUM_SAMPLES = 200  # of the test of fit
FURTHEST = 10  # how many times a rate the upper end of its interval may be


class Tail(NamedTuple):
    """The tail of impostor scores, as a generalised Pareto distribution.

    Attributes:
        start: Where it begins.
        share: The share of scores above the start.
        shape: Of the distribution, never fitted below 0.
        scale: Of the distribution.
    """

    start: float
    share: float
    shape: float
    scale: float

    def far(self, threshold: Any) -> Any:
        """The false-accept rates of thresholds above the start.

        >>> round(float(Tail(1.0, 0.01, 0.0, 2.0).far(1.0 + 2.0 * np.log(10))), 9)
        0.001
        """
        shape = self.shape or 1e-12
        x = np.maximum(shape * (threshold - self.start) / self.scale, -1 + 1e-16)
        return self.share * np.exp(-np.log1p(x) / shape)

    def threshold(self, far: Any) -> Any:
        """The thresholds of false-accept rates below the share of the tail.

        >>> round(float(Tail(1.0, 0.01, -0.2, 2.0).threshold(0.001)), 4)
        4.6904
        """
        shape = self.shape or 1e-12
        return self.start + self.scale * np.expm1(shape * np.log(self.share / far)) / shape


def _pareto(excesses: Floats) -> tuple[float, float]:
    """Shape and scale of sorted excesses, by probability-weighted moments; the mean is the scale of
    a shape of 0, which stands in for those below it.
    """
    n = excesses.size
    first = excesses.mean()
    second = float((1 - (np.arange(1, n + 1) - 0.35) / n) @ excesses) / n
    apart = first - 2 * second
    if first >= 2 * apart:
        return 0.0, float(first)
    return float(2 - first / apart), float(2 * first * second / apart)


def _misfit(excesses: Floats, shape: float, scale: float) -> float:
    """The statistic of Anderson and Darling of sorted excesses."""
    n, tail = excesses.size, Tail(0.0, 1.0, shape, scale)
    above = np.clip(tail.far(excesses), 1e-300, 1 - 1e-16)
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
        >>> abs(tail.shape) < 0.1, p >= 0.1, 0.5 < float(tail.far(-np.log(1e-5)) / 1e-5) < 2
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
                drawn = np.sort(unit.threshold(1 - rng.random(excesses.size)))
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


class _Draw(NamedTuple):
    """The tail of one resample, and the TAR at its threshold of each rate."""

    tail: Tail
    tars: Floats


def _resampled(
    scores: Scores, subjects: ArrayLike | None, tail: Tail, settings: Any
) -> list[_Draw]:
    """The tail above the same start, and the TARs, of resamples of the subjects; of the trials,
    where no subjects are known.
    """
    from scipy.sparse import coo_array

    rng = np.random.default_rng(settings.seed)
    size = len(scores)
    numbers = np.tile(np.arange(size)[:, None], 2)
    if subjects is not None:
        numbers = np.unique(np.asarray(subjects), return_inverse=True)[1].reshape(-1, 2)
        size = int(numbers.max()) + 1
    (a, b), of_target = numbers[~scores.target].T, numbers[scores.target, 0]
    nontarget, fars = scores.nontargets, np.array(settings.fars)
    trials = coo_array((np.ones(a.size), (a, b)), (size, size)).tocsr()
    high = np.flatnonzero(nontarget > tail.start)
    high = high[np.argsort(nontarget[high])]
    draws = []
    for _ in range(settings.num_resamples):
        times = rng.multinomial(size, np.full(size, 1 / size)).astype(np.float64)
        by_side = np.ones_like(times) if subjects is None else times
        excesses = np.repeat(
            nontarget[high] - tail.start, (times[a[high]] * by_side[b[high]]).astype(np.int64)
        )
        if np.unique(excesses).size < LEAST_DISTINCT or not times[of_target].any():
            continue
        share = excesses.size / float(times @ (trials @ by_side))
        drawn = Tail(tail.start, share, *_pareto(excesses))
        accepted = scores.targets[:, None] >= drawn.threshold(fars)
        draws.append(_Draw(drawn, times[of_target] @ accepted / times[of_target].sum()))
    return draws


def extrapolated(
    scores: Scores, subjects: ArrayLike | None, settings: Any
) -> dict[str, tuple[Measured, dict[str, str | float | int], Bounds]]:
    """TAR at those of the settings' FARs that fewer than ten nontarget trials stand behind.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides; None draws trials.
        settings: The FARs, and the draws. A FAR is left out, with a warning, where the fit does not
            hold, or where its interval reaches too far.

    Returns:
        By "tail_tar_at_far(FAR)" the TAR and its threshold, what it rests on, and its interval.
    """
    count = scores.nontargets.size
    low = [far for far in settings.fars if 0 < far < LEAST_COUNTED / count]
    if not low:
        return {}
    settings = replace(settings, fars=low, num_resamples=max(settings.num_resamples, NUM_SAMPLES))
    try:
        tail, p = fit_tail(scores.nontargets, seed=settings.seed)
    except LikenessError as error:
        warnings.warn(str(error), stacklevel=2)
        return {}
    draws = _resampled(scores, subjects, tail, settings)

    def reached(far: float) -> Floats:
        """Both ends of the interval of the FAR at the threshold of this one."""
        fars = [draw.tail.far(tail.threshold(far)) for draw in draws]
        return np.quantile(fars, [(1 - settings.level) / 2, (1 + settings.level) / 2])

    rates = LEAST_COUNTED / count * 10.0 ** (-np.arange(1, 21) / 10)
    too_wide = [reached(rate)[1] > FURTHEST * rate for rate in rates.tolist()]
    lowest = float(rates[too_wide.index(True) - 1] if any(too_wide) else rates[-1])
    rows = {}
    for column, far in enumerate(low):
        if far < lowest * (1 - 1e-9):
            warnings.warn(
                f"FAR {far:g} is not extrapolated: {count:,} nontarget scores of this kind say no "
                f"less than FAR {lowest:.1g}",
                stacklevel=2,
            )
            continue
        ends = reached(far)
        threshold = float(tail.threshold(far))
        value = float(np.mean(scores.targets >= threshold))
        stated = {
            "far": far,
            "rule": "the threshold follows from a generalised Pareto distribution of the highest "
            "nontarget scores; nobody counted this rate",
            **{f"tail_{name}": number for name, number in tail._asdict().items()},
            "p_of_fit": p,
            "far_low": float(ends[0]),
            "far_high": float(ends[1]),
            "lowest_far": lowest,
            "remark": "from the tail of the nontarget scores, whose fit the test does not reject "
            f"(p {p:.2g}); the FAR of this threshold may be up to {ends[1]:.2g}, and no FAR below "
            f"{lowest:.1g} may be said",
        }
        tars = np.array([draw.tars[column] for draw in draws])
        drawn = drawn_from(scores.target, subjects)
        interval = bounds(tars, value, settings.level, drawn)
        rows[f"tail_tar_at_far({far:g})"] = Measured(value, threshold), stated, interval
    return rows
