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
rejects every start, and below a tenth of 1 / N of N scores; how high the rate may be is stated.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.bootstrap import Bounds, bounds_of, draws_of
from likeness.eval.errors import LikenessError
from likeness.eval.types import Floats, Scores
from likeness.eval.verification import Measured

MOST_EXCESSES, LEAST_EXCESSES = 2000, 50
LARGEST_SHARE = 0.1  # of the scores that may count as a tail
LEAST_P = 0.1  # of the test of fit
LEAST_COUNTED = 10  # nontarget trials that stand behind a FAR that is counted
NUM_SAMPLES = 200  # of the test of fit
FURTHEST_BELOW = 0.1  # no rate below this / N is said


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

    def again(self, nontarget: Floats) -> Tail:
        """The tail above the same start, of other scores (N,)."""
        excesses = np.sort(nontarget[nontarget > self.start] - self.start)
        varies = excesses.size > 1 and excesses[0] < excesses[-1]
        fitted = _pareto(excesses) if varies else (0.0, self.scale)
        return Tail(self.start, max(excesses.size, 0.5) / nontarget.size, *fitted)

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
    best = 0.0
    for size in MOST_EXCESSES // 2 ** np.arange(6):
        if not LEAST_EXCESSES <= size <= LARGEST_SHARE * scores.size:
            continue
        tail = Tail(float(scores[-size - 1]), 1.0, 0.0, 1.0).again(scores)
        excesses = scores[scores > tail.start] - tail.start
        if np.unique(excesses).size <= size / 2:
            continue
        unit, worse = tail._replace(start=0.0, share=1.0), 0
        for _ in range(NUM_SAMPLES):
            drawn = np.sort(unit.threshold(1 - rng.random(excesses.size)))
            worse += _misfit(drawn, *_pareto(drawn)) >= _misfit(excesses, tail.shape, tail.scale)
        best = max(best, p := (worse + 1) / (NUM_SAMPLES + 1))
        if p >= LEAST_P:
            return tail, p
    raise LikenessError(
        f"{scores.size:,} nontarget scores are too few, they tie, or no part of the tail is like a "
        f"generalised Pareto distribution (p {best:.2g}); state rates that were counted"
    )


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
    rows: dict[str, tuple[Measured, dict[str, str | float | int], Bounds]] = {}
    draws = draws_of(settings) | {"num_resamples": settings.num_resamples or NUM_SAMPLES}
    for far in low:
        try:
            if far < FURTHEST_BELOW / count:
                raise LikenessError(
                    f"{count:,} scores say no less than {FURTHEST_BELOW / count:.1g}"
                )
            tail, p = fit_tail(scores.nontargets, seed=settings.seed)
        except LikenessError as error:
            warnings.warn(f"FAR {far:g} is not extrapolated: {error}", stacklevel=2)
            continue
        limit = float(tail.threshold(far))
        metrics = {
            "tar": partial(_tar, tail=tail, far=far),
            "far": partial(_far, tail=tail, at=limit),
        }
        intervals, drawn = bounds_of(metrics, scores, subjects, **draws)
        high = float(np.quantile(drawn.values["far"], (1 + settings.level) / 2))
        remark = (
            f"from the tail of the nontarget scores, whose fit a test does not reject (p {p:.2g}); "
            f"the FAR of this threshold may be up to {high:.2g}"
        )
        stated = {f"tail_{name}": value for name, value in tail._asdict().items()}
        stated |= {"far": far, "far_high": high, "p_of_fit": p, "remark": remark}
        value = _tar(scores.targets, scores.nontargets, tail, far)
        rows[f"tail_tar_at_far({far:g})"] = Measured(value, limit), stated, intervals["tar"]
    return rows


def _tar(target: Floats, nontarget: Floats, tail: Tail, far: float) -> float:
    return float(np.mean(target >= tail.again(nontarget).threshold(far)))


def _far(target: Floats, nontarget: Floats, tail: Tail, at: float) -> float:
    return float(tail.again(nontarget).far(at))
