"""Whether a quality, such as the norm of an embedding, says which answers are wrong.

An answer is a query of a retrieval or a decision of a verification. It has a quality and a risk,
which is 0 for a right and 1 for a wrong answer. The risk may lie between: of a query whose nearest
items tie it is the expected value, 1 - recall@1.

- The AUROC is the probability that a right answer has a higher quality than a wrong one. With
  recall@1 it is the R-AUROC of the URL benchmark (Kirchhof et al. 2023).
- The risk-coverage curve is the mean risk of the answers that are kept when those of low quality
  are left out (Geifman et al. 2019).

Answers of equal quality have no order, so nothing here depends on the order of rows. A point of the
curve keeps them all or none of them.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.intervals.bootstrap import Bounds, bounds_of
from likeness.eval.types import Bools, Floats, Ints, Scores, Trials, lacking, respell

AUROC_RULE = "of the right above the wrong answers, ties half"
START_FNMR = 0.05  # at the threshold of the error-versus-discard curve
MOST_DISCARDED = 0.2  # share of the target trials up to which its area is taken


class RiskCoverage(NamedTuple):
    """A risk-coverage curve, a point for each distinct quality, the highest first.

    Attributes:
        coverage: (K,) shares of the answers that are kept.
        risk: (K,) mean risks of the kept ones.
        quality: (K,) an answer is kept if its quality is at least this.
    """

    coverage: Floats
    risk: Floats
    quality: Floats


class Answers(NamedTuple):
    """Answers with what a page shows of their quality.

    Attributes:
        quality: (N,) higher for answers to be trusted more.
        risk: (N,) 0 for right, 1 for wrong.
        name: What the quality is.
    """

    quality: Floats
    risk: Floats
    name: str


def risk_coverage(quality: ArrayLike, risk: ArrayLike) -> RiskCoverage:
    """The mean risk of the answers that are kept, as those of low quality are left out.

    Args:
        quality: (N,) finite numbers, higher for answers to be trusted more.
        risk: (N,) numbers from 0 for a right to 1 for a wrong answer.

    Returns:
        The curve. Its last point keeps everything.

    Raises:
        LikenessError: The shapes differ, there are no answers, or numbers are NaN or out of range.

    Example:
        >>> curve = risk_coverage([3.0, 2.0, 2.0, 1.0], [0, 0, 1, 1])
        >>> curve.coverage.tolist(), curve.risk.tolist()
        ([0.25, 0.75, 1.0], [0.0, 0.3333333333333333, 0.5])
    """
    values, risks, starts, _ = _in_order(quality, risk)
    kept = np.append(starts[1:], values.size)
    wrong = np.cumsum(np.add.reduceat(risks, starts))
    return RiskCoverage(kept / values.size, wrong / kept, values[starts])


def discard_area(quality: ArrayLike, missed: ArrayLike, limit: float = MOST_DISCARDED) -> float:
    """The pAUC of the error-versus-discard curve of target trials (ISO/IEC 29794-1).

    The curve is the FNMR of the trials that are left when those of low quality are discarded, at
    the same threshold. It keeps its value until all trials of the next quality can go.

    Args:
        quality: (T,) of the target trials.
        missed: (T,) 1 for a trial that is rejected at the threshold, else 0.
        limit: The share of trials up to which the area is taken.

    Returns:
        The area divided by the limit, which is a mean FNMR. A lower one is better.

    Example:
        >>> discard_area([1.0, 2.0, 3.0, 4.0], [1, 0, 0, 0], limit=0.5)
        0.125
    """
    coverage, risk, _ = risk_coverage(quality, missed)
    edges = np.clip(np.append(1 - coverage[::-1], 1), 0, limit)
    return float(np.diff(edges) @ risk[::-1] / limit)


def quality_auroc(quality: ArrayLike, risk: ArrayLike) -> float:
    """The probability that a right answer has a higher quality than a wrong one, ties half.

    An answer of risk p is right with probability 1 - p and wrong with probability p, independently
    of the others. The result is the expected number of pairs in the right order over the expected
    number of pairs of a right and a wrong answer. With risks of 0 and 1 it is
    `likeness.eval.metrics.classification.auroc`.

    Args:
        quality: As of `risk_coverage`, which also has the errors.
        risk: (N,) numbers from 0 to 1; 1 - recall@1 of queries for the R-AUROC.

    Raises:
        LikenessError: There is no pair of a right and a wrong answer.

    Example:
        >>> quality_auroc([3.0, 1.0, 2.0, 1.0], [0, 0, 1, 1])
        0.625
    """
    value = drawn_auroc(quality, risk)(np.ones(np.size(quality)))
    if np.isnan(value):
        raise LikenessError("quality: all answers are right, or all are wrong; measure more")
    return value


def errors_at(scores: Scores, threshold: float) -> Floats:
    """(P,) the risks of the decisions at a threshold: 1 where a trial is decided wrongly, else 0.

    >>> errors_at(Scores([2.0, 0.0, 1.0], [True, True, False]), 1.0).tolist()
    [0.0, 1.0, 1.0]
    """
    wrong: Floats = ((scores.values >= threshold) != scores.target).astype(np.float64)
    return wrong


def drawn_auroc(quality: ArrayLike, risk: ArrayLike) -> Callable[[ArrayLike], float]:
    """`quality_auroc` of many resamples of the same answers, which are sorted once.

    Returns:
        How often each answer is drawn (N,) -> the AUROC, NaN where there is no pair.
    """
    _, risks, starts, order = _in_order(quality, risk)

    def measured(times: ArrayLike) -> float:
        drawn = np.asarray(times, dtype=np.float64)[order]
        wrong = np.add.reduceat(drawn * risks, starts)
        right = np.add.reduceat(drawn, starts) - wrong
        # An answer is no pair with itself, though its risk may make it a bit of both.
        own = float((drawn * risks * (1 - risks)).sum())
        pairs = float(right.sum() * wrong.sum()) - own
        if not pairs > 0:
            return float("nan")
        above = np.cumsum(right) - right
        return float((wrong * (above + right / 2)).sum() - own / 2) / pairs

    return measured


def bounds_over_rows(
    metrics: Mapping[str, Any], target: Bools, subjects: ArrayLike | None, **draws: Any
) -> dict[str, Bounds]:
    """Bootstrap intervals of metrics of the numbers of trials.

    Args:
        metrics: Name -> a function of the numbers of target and of nontarget trials, as floats.
        target: (P,) which trials are target trials.
        subjects: As of `likeness.eval.intervals.bootstrap.bounds_of`; so are `draws`.
    """
    # Each trial has its number as its score, by which a resample says how often it was drawn.
    numbered = Scores(np.arange(target.size, dtype=np.float64), target)
    return bounds_of(metrics, numbered, subjects, **draws)[0]


def sides_with(
    trials: Trials, ids: Collection[str], what: str = "embedding"
) -> list[tuple[str, tuple[str, ...], Ints]]:
    """The sides of the trials whose ids have an embedding, or something else.

    These are both sides, or one where no id of the other has any: it may name models of several
    items.

    Args:
        trials: The trials.
        ids: The ids that have it.
        what: What they have.

    Returns:
        The name, the ids and the (P,) indices of each side.

    Raises:
        LikenessError: Only some ids of a side, or none of both sides, have it.
    """
    sides = [
        ("enrolment", trials.enrol_ids, trials.enrol),
        ("probe", trials.probe_ids, trials.probe),
    ]
    missing = {name: lacking(of_side, ids) for name, of_side, _ in sides}
    complete = [side for side in sides if not missing[side[0]]]
    partly = [name for name, of_side, _ in sides if 0 < len(missing[name]) < len(of_side)]
    if partly or not complete:
        first = partly[0] if partly else "enrolment"
        raise LikenessError(f"{first} side: {missing[first][0]!r} has no {what}; add it")
    return complete


def numbers_of(quality: Mapping[str, object], ids: Sequence[str]) -> Floats:
    """The qualities of ids as an array.

    Raises:
        LikenessError: One is no finite number.

    Example:
        >>> numbers_of({"a": 2}, ["a", "b"])
        Traceback (most recent call last):
        ...
        likeness.LikenessError: quality of 'b': None is no finite number; correct it
    """
    of_ids = respell(quality, ids)
    for id in ids:
        value = of_ids.get(id)
        if not isinstance(value, Real) or not math.isfinite(value):
            raise LikenessError(f"quality of {id!r}: {value!r} is no finite number; correct it")
    return np.array([of_ids[id] for id in ids], dtype=np.float64)


def trial_quality(
    trials: Trials, quality: Mapping[str, float], name: str = "norm"
) -> tuple[Floats, str]:
    """The quality of each trial: the lower one of its sides that have a quality.

    Args:
        trials: The trials.
        quality: Id -> its quality.
        name: What the quality is, in a word.

    Returns:
        (P,) qualities, and in words what they are.

    Raises:
        LikenessError: As `sides_with`. As `numbers_of`.

    Example:
        >>> trials = Trials(("a", "b"), ("b",), [0, 1], [0, 0])
        >>> trial_quality(trials, {"a": 5.0, "b": 1.0})
        (array([1., 1.]), 'the lower norm of the two sides')
    """
    of_sides = [
        (side, numbers_of(quality, ids)[index])
        for side, ids, index in sides_with(trials, quality, name)
    ]
    if len(of_sides) == 2:
        lower: Floats = np.minimum(of_sides[0][1], of_sides[1][1])
        return lower, f"the lower {name} of the two sides"
    side, values = of_sides[0]
    return values, f"the {name} of the {side} side, as the ids of the other side have none"


def _in_order(
    quality: ArrayLike, risk: ArrayLike
) -> tuple[Floats, Floats, NDArray[np.int64], NDArray[np.int64]]:
    """(N,) qualities from the highest down and their risks; (K,) where each distinct quality
    begins; and (N,) the rows in this order.
    """
    values, risks = np.asarray(quality, dtype=np.float64), np.asarray(risk, dtype=np.float64)
    shapes = values.ndim == 1 and values.size and risks.shape == values.shape
    if not shapes or not np.isfinite(values).all() or not ((risks >= 0) & (risks <= 1)).all():
        needed = "(N,) finite qualities and (N,) risks from 0 to 1"
        raise LikenessError(f"quality {values.shape} and risk {risks.shape}: give {needed}")
    # Risks of equal quality are sorted, too, so that their sum does not depend on their order.
    order = np.lexsort((risks, -values))
    ranked = values[order] + 0.0  # -0.0 becomes 0.0: they are equal
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    return ranked, risks[order], starts, order
