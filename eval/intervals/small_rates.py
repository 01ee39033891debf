"""How small a rate a test shows: a bound where no error was seen, and how large it has to be.

Without an error in n independent trials, a rate is below 1 - (1 - confidence)^(1/n), the exact
bound of Clopper and Pearson (1934). At 95 % that is nearly 3/n, the "rule of three". Trials that
share a subject are not independent. So n counts the subjects who have target trials, and the pairs
of subjects of which no two share one (see `likeness.eval.intervals.guarantee`). If there is no
error among all trials, there is none among one drawn trial of each of these.

The bound also holds for a threshold that was set on the same trials, as long as they show no error:
it is the chance that a new score lies beyond the most extreme of n, whatever their distribution.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.intervals.bootstrap import Bounds, Drawn, Ends, complete_note, drawn_from, few_of
from likeness.eval.intervals.guarantee import check_confidence, independent_scores, pairs_needed
from likeness.eval.metrics.verification import check_costs, check_rate, measured_tar, sort_scores
from likeness.eval.types import Scores, counted

NO_ERROR = "no error was seen"
_FORM = "a rate from 1e-9 to 1 and a share from 0.001, as in far=1e-4,width=.5"
_NUMBER = r"(\d*\.?\d+(?:e-?\d+)?)"
FEW_ERRORS = 2  # of few subjects, of which nothing follows
LEAST_PLANNED = 1e-9  # the smallest rate that a test is planned for
LEAST_ERRORS = 30  # that the correlation of errors is measured on, where there are as many trials


def upper_bound(num_errors: int, num_trials: int, confidence: float = 0.95) -> float:
    """The Clopper-Pearson upper bound of a rate, from errors among independent trials.

    Args:
        num_errors: How many errors were seen.
        num_trials: In how many independent trials.
        confidence: With which the rate is at most the bound.

    Example:
        >>> round(upper_bound(0, 100), 4), round(upper_bound(1, 100), 4), upper_bound(0, 0)
        (0.0295, 0.0466, 1.0)
    """
    from scipy.special import betaincinv  # slow to import, needed here only

    check_confidence(confidence)
    if num_errors >= num_trials:
        return 1.0
    return float(betaincinv(num_errors + 1, num_trials - num_errors, confidence))


def bound_of(
    metric: str, drawn: tuple[Drawn, Drawn], level: float, *, c_miss: float = 1.0, c_fa: float = 1.0
) -> Bounds:
    """The bound of a metric that saw no error.

    Args:
        metric: "eer", "balanced_accuracy", "min_dcf(P)" or "tar_at_far(FAR)", or of a group
            "global_tar(AT)" or "global_far(AT)".
        drawn: The independent trials of both classes, see `independent`.
        level: The confidence. The bounds of an EER, an accuracy and a DCF are of both errors at
            once, so that each has half of what is left.
        c_miss: The cost of a miss in a DCF.
        c_fa: The cost of a false accept in a DCF.

    Example:
        >>> people, pairs = Drawn(100, "subjects"), Drawn(9, "pairs")
        >>> ends, _ = bound_of("global_tar(eer)", (people, pairs), 0.95)
        >>> round(ends[0], 4), ends[1]
        (0.9705, 1.0)
    """
    kind, _, number = metric.rstrip(")").partition("(")
    of_kind = drawn[:1] if "tar" in kind else drawn[1:] if kind == "global_far" else drawn
    rates = [upper_bound(0, each.number, (1 + level) / 2) for each in drawn]
    if kind == "min_dcf":
        weights = check_costs(float(number), c_miss, c_fa)
        return _exact((0.0, min(1.0, float(np.dot(weights, rates)))), of_kind)
    if kind == "balanced_accuracy":
        return _exact((1 - sum(rates) / 2, 1.0), of_kind)
    return exact_bounds(float(is_of_right(kind)), level, *of_kind)


def is_of_right(metric: str) -> bool:
    """Whether a metric is a share of right decisions, which is 1 where no error was seen."""
    return "tar" in metric or metric == "balanced_accuracy"


def exact_bounds(value: float, level: float, *drawn: Drawn) -> Bounds:
    """The bound of a rate that is 0, or 1, in every trial.

    Args:
        value: 0 for a rate of errors, 1 for one of successes.
        level: The confidence. Two kinds of errors at once have half of what is left of it each.
        drawn: What is drawn anew for another test, such as subjects; several for a rate that is the
            larger one of several errors.

    Example:
        >>> round(exact_bounds(1.0, 0.95, Drawn(10, "subjects")).ends[0], 4)
        0.7411
    """
    fewest = min(each.number for each in drawn)
    high = upper_bound(0, fewest, 1 - (1 - level) / len(drawn))
    return _exact((1 - high, 1.0) if value else (0.0, high), drawn)


def _exact(ends: Ends, drawn: Sequence[Drawn]) -> Bounds:
    """An exact bound with the note on what it rests."""
    fewest = min(each.number for each in drawn)
    numbers = " and ".join(f"{each.number:,} {each.what}" for each in drawn)
    note = f"{NO_ERROR}, so that this is the exact bound by {numbers} (rule of three: 3/{fewest:,})"
    return Bounds(ends, complete_note(note, ends))


def independent(scores: Scores, subjects: ArrayLike | None) -> tuple[Drawn, Drawn]:
    """How many independent target and nontarget trials there are.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides; None where they are unknown.

    Example:
        >>> scores = Scores([3.0, 2.0, 1.0, 0.0], [True, True, False, False])
        >>> [drawn.number for drawn in independent(scores, [[0, 0], [0, 0], [0, 1], [2, 3]])]
        [1, 2]
    """
    if subjects is None:
        optimistic = "nontarget trials, optimistic as they share subjects"
        targets = Drawn(scores.targets.size, "target trials")
        return targets, Drawn(scores.nontargets.size, optimistic)
    pairs = np.asarray(subjects)
    apart = independent_scores(scores.nontargets, pairs[~scores.target])
    people = Drawn(np.unique(pairs[scores.target]).size, "subjects with target trials")
    return people, Drawn(apart.size, "pairs of subjects of which no two share one")


def add_exact_bounds(
    intervals: Mapping[str, Bounds],
    values: Mapping[str, float | None],
    scores: Scores,
    subjects: ArrayLike | None,
    level: float,
    *,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
) -> dict[str, Bounds]:
    """The intervals, with exact bounds in place of those that are missing since no error was seen.

    Args:
        intervals: Metric -> its interval.
        values: Metric -> its value.
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides; None where they are unknown.
        level: The confidence.
        c_miss: The cost of a miss in a DCF.
        c_fa: The cost of a false accept in a DCF.
    """
    names = [
        name
        for name, interval in intervals.items()
        if interval.ends is None and values[name] == float(is_of_right(name))
    ]
    if not names:
        return dict(intervals)
    drawn = independent(scores, subjects)
    exact = {name: bound_of(name, drawn, level, c_miss=c_miss, c_fa=c_fa) for name in names}
    return {**intervals, **exact}


def note_few_errors(
    intervals: Mapping[str, Bounds], scores: Scores, subjects: ArrayLike | None, threshold: float
) -> dict[str, Bounds]:
    """The intervals, with a note on those of few subjects that rest on one error or two.

    The bootstrap draws such an error or does not, and its interval may be narrower than the bound
    of a test without any.

    Args:
        intervals: Metric -> its interval.
        scores: P trials with labels.
        subjects: As of `add_exact_bounds`.
        threshold: That of the fewest errors.
    """
    errors = int(np.count_nonzero((scores.values >= threshold) != scores.target))
    if not 0 < errors <= FEW_ERRORS or not few_of(drawn_from(scores.target, subjects).number):
        return dict(intervals)
    text = f"with {counted(errors, 'error')} nothing can be said of others"
    return {
        name: Bounds(of.ends, f"{of.note}; {text}") if of.ends and NO_ERROR not in of.note else of
        for name, of in intervals.items()
    }


@dataclass(frozen=True)
class Plan:
    """What a test is to show: a false-accept rate, and how far either end of its interval may be
    from it, as a share of it.

    Raises:
        LikenessError: There is no such rate, or no such share.
    """

    far: float
    width: float

    def __post_init__(self) -> None:
        if not (LEAST_PLANNED <= self.far < 1 and 1e-3 <= self.width <= 1e3):
            raise LikenessError(f"plan far={self.far:g},width={self.width:g}: give {_FORM}")

    def people(self, level: float = 0.95, correlation: float = 0.0) -> tuple[int, int]:
        """How many pairs without a common person are needed, and how many people, where each is
        compared with every other.

        With n people and all their pairs, the variance of the measured rate p is
        p (1 - p) (1 + 2 (n - 2) r) / (n (n - 1) / 2), for a correlation r of the errors of two
        pairs that share a person. The normal interval of that variance may be so wide.

        Args:
            level: The confidence.
            correlation: r, see `correlation_of`.

        Example:
            >>> Plan(1e-2, 0.5).people(), Plan(1e-2, 0.5).people(correlation=0.01)
            ((1522, 56), (1522, 94))
        """
        from scipy.special import ndtri  # slow to import, needed here only

        z = float(ndtri((1 + level) / 2))
        pairs = z**2 * (1 - self.far) / (self.far * self.width**2)
        # n (n - 1) / 2 = pairs (1 + 2 (n - 2) r) is a quadratic equation in n
        half = 0.5 + 2 * pairs * correlation
        rest = max(half**2 + 2 * pairs * (1 - 4 * correlation), 0)
        return math.ceil(pairs), max(2, math.ceil(half + math.sqrt(rest)))

    def text(self, level: float = 0.95, correlation: float | None = None) -> str:
        """How many people a test needs, in words; correlation: None where nobody measured it."""
        known = "if the errors of one person are independent: SCORES of a first test say whether"
        if correlation is not None:
            known = f"as errors of pairs that share a person correlate by {correlation:.2g} here"
        pairs, people = self.people(level, correlation or 0.0)
        rate, apart = f"{100 * self.far:.3g} %", "pairs without a common person"
        least = pairs_needed(self.far, level)
        return (
            f"To know a FAR of {rate} to within {100 * self.width:g} % of itself, with "
            f"{100 * level:g} % confidence:\n  {pairs:,} {apart}, of {2 * pairs:,} people;\n"
            f"  or all {math.comb(people, 2):,} pairs among {people:,} people, {known}.\n"
            f"To show that it is at most {rate}, if no error is seen:\n  {least:,} {apart}, of "
            f"{2 * least:,} people (rule of three: {3 / self.far:,.0f} pairs)."
        )


def parse_plan(text: str) -> Plan:
    """The plan of a text such as `far=1e-4,width=.5`.

    Raises:
        LikenessError: It is written otherwise, or there is no such rate.

    Example:
        >>> parse_plan("far=1e-4,width=.5")
        Plan(far=0.0001, width=0.5)
    """
    stated = re.fullmatch(rf"\s*far={_NUMBER},\s*width={_NUMBER}\s*", text)
    if stated is None:
        raise LikenessError(f"plan {text!r}: give {_FORM}")
    return Plan(*map(float, stated.groups()))


def correlation_of(scores: Scores, subjects: ArrayLike, far: float) -> float | None:
    """How much the false accepts of two nontarget trials that share a subject go together.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides.
        far: The FAR whose threshold decides. Where that leaves fewer than 30 false accepts, it is
            the FAR that leaves as many.

    Returns:
        The correlation, at least 0; None for fewer than 60 nontarget trials, and without errors.

    Example:
        >>> pairs = [[i, j] for j in range(20) for i in range(j)]  # person 0 is taken for everybody
        >>> scores = Scores([9.0, *(float(i == 0) for i, _ in pairs)], [True] + 190 * [False])
        >>> round(correlation_of(scores, [[0, 0], *pairs], 0.1), 2)
        0.44
    """
    check_rate("far", far)
    nontarget, pairs = scores.nontargets, np.asarray(subjects)[~scores.target]
    if nontarget.size < 2 * LEAST_ERRORS:
        return None
    far = max(far, LEAST_ERRORS / nontarget.size)
    threshold = measured_tar(sort_scores(scores.targets, nontarget), far).threshold
    errors = (nontarget >= threshold).astype(np.float64)
    rate = errors.mean()
    if not 0 < rate < 1:
        return None
    numbers = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    sums, squares, counts = (
        np.bincount(numbers.ravel(), np.repeat(of, 2))
        for of in (errors - rate, (errors - rate) ** 2, np.ones_like(errors))
    )
    two = float((counts**2 - counts).sum())  # how often two trials share a subject
    covariance = float((sums**2 - squares).sum()) / two if two else 0.0
    return max(0.0, covariance / float(rate * (1 - rate)))
