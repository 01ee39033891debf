"""Likelihood ratios as evidence: how well they are calibrated, and how far they may reach.

Pooling adjacent violators (PAV) gives each score the log-likelihood ratio that the trials bear out:
the best map of scores that never falls. The devPAV (Vergeer et al. 2021) is the mean distance of
that map from the stated ratios, in powers of ten, over the range of ratios that trials of both
kinds reach; lines join its points.

The ELUB bounds (Vergeer et al. 2016) are the ratios from which on trials this few cannot show that
they help: with one misleading trial more of each kind, who decides by a threshold between them
never does worse than who decides without the ratios.
"""

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.metrics.verification import AnyFloats, hull, sort_scores
from likeness.eval.types import Floats


def pav(target: ArrayLike, nontarget: ArrayLike) -> tuple[Floats, Floats]:
    """Calibrate scores by pooling adjacent violators.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.

    Returns:
        (K,) the distinct scores, ascending, and (K,) the natural logarithms of their likelihood
        ratios, which are infinite where a pool has trials of one kind only.

    >>> pav([1.0, 3.0], [0.0, 2.0])[1].tolist()
    [-inf, 0.0, 0.0, inf]
    """
    s = sort_scores(target, nontarget)
    misses, false_accepts = hull(s)
    with np.errstate(divide="ignore"):
        of_target, of_nontarget = np.log(np.diff(misses)), np.log(-np.diff(false_accepts))
    llrs = of_target - of_nontarget - np.log(s.target.size / s.nontarget.size)
    scores = np.unique(np.concatenate([s.target, s.nontarget]))
    below = np.searchsorted(s.target, scores) + np.searchsorted(s.nontarget, scores)
    pool = np.searchsorted(misses - false_accepts, below - s.nontarget.size, side="right") - 1
    return scores.astype(np.float64), llrs[pool]


def dev_pav(target_llr: ArrayLike, nontarget_llr: ArrayLike) -> float:
    """The devPAV of log-likelihood ratios; 0 for perfectly calibrated ones, NaN where no ratio is
    reached by trials of both kinds.

    >>> round(float(dev_pav([2.0, 2.0], [2.0, 2.0]) * np.log(10)), 9)
    2.0
    """
    x, y = pav(target_llr, nontarget_llr)
    known = np.isfinite(y)
    x, apart = x[known] / np.log(10), (y - x)[known] / np.log(10)
    if x.size < 2:
        return float(np.abs(apart).mean()) if x.size else float("nan")
    a, b = apart[:-1], apart[1:]
    total = np.maximum(np.abs(a) + np.abs(b), 1e-300)
    means = np.where(a * b < 0, (a**2 + b**2) / total, total) / 2
    return float(means @ np.diff(x) / (x[-1] - x[0]))


def elub(target_llr: ArrayLike, nontarget_llr: ArrayLike) -> tuple[float, float]:
    """The ELUB bounds of log-likelihood ratios, in powers of ten: (lower, upper).

    >>> [round(10**bound, 6) for bound in elub([9.0] * 99, [-9.0] * 199)]
    [0.01005, 198.0]
    """
    s = sort_scores(target_llr, nontarget_llr)
    return -_reach(-s.nontarget[::-1], -s.target[::-1]), _reach(s.target, s.nontarget)


def _reach(target: AnyFloats, nontarget: AnyFloats) -> float:
    """The upper bound: the lowest threshold t from 1 on, at which (misses + 1) / (T + 1) +
    t (false accepts + 1) / (N + 1) exceeds 1. A trial is accepted if its ratio exceeds t.
    """
    limits = np.unique(np.concatenate([[0.0], target[target > 0], nontarget[nontarget > 0]]))
    kept = (target.size - np.searchsorted(target, limits, side="right")) / (target.size + 1)
    passed = nontarget.size + 1 - np.searchsorted(nontarget, limits, side="right")
    with np.errstate(divide="ignore"):
        until = np.log(kept) - np.log(passed / (nontarget.size + 1))
    first = int(np.argmax(until < np.append(limits[1:], np.inf)))
    return float(max(limits[first], until[first])) / float(np.log(10))
