"""How small a rate a test shows: a bound where no error was seen, and how large it has to be.

Without an error in n independent trials, a rate is below 1 - (1 - confidence)^(1/n), the exact
bound of Clopper and Pearson (1934). At 95 % that is nearly 3/n, the "rule of three". Trials that
share a subject are not independent. So n counts the subjects who have target trials, and the pairs
of subjects of which no two share one (see `likeness.eval.guarantee`). If there is no error among
all trials, there is none among one drawn trial of each of these.

The bound also holds for a threshold that was set on the same trials, as long as they show no error:
it is the chance that a new score lies beyond the most extreme of n, whatever their distribution.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.bootstrap import Bounds
from likeness.eval.errors import LikenessError
from likeness.eval.guarantee import check_confidence, independent_scores, pairs_needed
from likeness.eval.types import Scores
from likeness.eval.verification import check_costs, tar_threshold

NO_ERROR = "no error was seen"
_NUMBER = r"(\d*\.?\d+(?:e-?\d+)?)"
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


class Independent(NamedTuple):
    """How many independent trials there are.

    Attributes:
        targets: Subjects with target trials; or target trials, where no subjects are known.
        nontargets: Pairs of subjects of which no two share one; or nontarget trials.
        by_subjects: Whether subjects are known.
    """

    targets: int
    nontargets: int
    by_subjects: bool

    def bound(self, metric: str, settings: Any) -> Bounds:
        """The bound of a metric that saw no error.

        Args:
            metric: "eer", "min_dcf(P)" or "tar_at_far(FAR)", or of a group "global_tar(AT)" or
                "global_far(AT)".
            settings: Their level is the confidence. The bounds of an EER and a DCF are of both
                errors at once, so that each has half of what is left. Their costs are of a DCF.

        Example:
            >>> from likeness.eval.protocols.verification import VerificationSettings
            >>> ends, _ = Independent(100, 9, True).bound("global_tar(eer)", VerificationSettings())
            >>> round(ends[0], 4), ends[1]
            (0.9705, 1.0)
        """
        kind, _, number = metric.rstrip(")").partition("(")
        names = "target trials", "nontarget trials: optimistic, they share subjects"
        if self.by_subjects:
            names = "subjects with target trials", "pairs of subjects of which no two share one"
        classes = [0] if "tar" in kind else [1] if kind == "global_far" else [0, 1]
        of = 1 - (1 - settings.level) / len(classes)
        frr, far = upper_bound(0, self.targets, of), upper_bound(0, self.nontargets, of)
        fewest = min(self[place] for place in classes)
        note = (
            f"{NO_ERROR}, so that this is the exact bound by "
            + " and ".join(f"{self[place]:,} {names[place]}" for place in classes)
            + f" (rule of three: 3/{fewest:,})"
        )
        high = [frr, far][classes[0]] if len(classes) == 1 else max(frr, far)
        if kind == "min_dcf":
            of_miss, of_fa = check_costs(float(number), settings.c_miss, settings.c_fa)
            high = min(1.0, of_miss * frr + of_fa * far)
        return Bounds((1 - high, 1.0) if "tar" in kind else (0.0, high), note)


def independent(scores: Scores, subjects: ArrayLike | None) -> Independent:
    """Count the independent trials of both classes.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides; None where they are unknown.

    Example:
        >>> scores = Scores([3.0, 2.0, 1.0, 0.0], [True, True, False, False])
        >>> independent(scores, [[0, 0], [0, 0], [0, 1], [2, 3]])[:2]
        (1, 2)
    """
    if subjects is None:
        return Independent(scores.targets.size, scores.nontargets.size, False)
    pairs = np.asarray(subjects)
    drawn = independent_scores(scores.nontargets, pairs[~scores.target])
    return Independent(np.unique(pairs[scores.target]).size, drawn.size, True)


def or_exact(
    intervals: Mapping[str, Bounds],
    values: Mapping[str, float | None],
    scores: Scores,
    subjects: ArrayLike | None,
    settings: Any,
) -> dict[str, Bounds]:
    """The intervals, with exact bounds in place of those that are missing since no error was seen.

    Args:
        intervals: Metric -> its interval.
        values: Metric -> its value.
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides; None where they are unknown.
        settings: As of `Independent.bound`.
    """
    names = [
        name
        for name, interval in intervals.items()
        if interval.ends is None and values[name] == float("tar" in name)
    ]
    counts = independent(scores, subjects) if names else Independent(0, 0, False)
    return {**intervals, **{name: counts.bound(name, settings) for name in names}}


@dataclass(frozen=True)
class Plan:
    """How many people and pairs are needed to measure a false-accept rate; print it to read it.

    With n people and all their pairs, the variance of the measured rate p is
    p (1 - p) (1 + 2 (n - 2) r) / (n (n - 1) / 2), for a correlation r of the errors of two pairs
    that share a person. The normal interval of that variance may reach `width` x p to either side.

    Attributes:
        far: The rate p, between 0 and 1.
        width: How far either end of its interval may be from it, as a share of it.
        level: The confidence.
        correlation: r, see `correlation_of`; None where nobody measured it, which counts as 0.

    Example:
        >>> needed = Plan(1e-2, 0.5)
        >>> needed.pairs, needed.people, needed.without_error
        (1522, 56, 299)
        >>> Plan(1e-2, 0.5, correlation=0.01).people
        94
    """

    far: float
    width: float
    level: float = 0.95
    correlation: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.far < 1 and 0 < self.width < math.inf):
            raise LikenessError(
                "plan: give a false-accept rate between 0 and 1, and as a share of it how exactly "
                "it is to be known, as in far=1e-4,width=.5"
            )

    @property
    def _exact(self) -> float:
        from scipy.special import ndtri  # slow to import, needed here only

        z = float(ndtri((1 + self.level) / 2))
        return z**2 * (1 - self.far) / (self.far * self.width**2)

    @property
    def pairs(self) -> int:
        """Pairs of people needed, of which no two share a person."""
        return math.ceil(self._exact)

    @property
    def people(self) -> int:
        """People needed, where each is compared with every other, once."""
        # n (n - 1) / 2 = pairs (1 + 2 (n - 2) r) is a quadratic equation in n
        r, pairs = self.correlation or 0.0, self._exact
        half = 0.5 + 2 * pairs * r
        return max(2, math.ceil(half + math.sqrt(max(half**2 + 2 * pairs * (1 - 4 * r), 0))))

    @property
    def without_error(self) -> int:
        """Pairs needed, of which no two share a person, to show the rate if none is an error."""
        return pairs_needed(self.far, self.level)

    def __str__(self) -> str:
        known = "if the errors of one person are independent: SCORES of a first test say whether"
        if self.correlation is not None:
            known = (
                f"as errors of pairs that share a person correlate by {self.correlation:.2g} here"
            )
        rate, apart = f"{100 * self.far:.3g} %", "without a common person"
        return (
            f"To know a FAR of {rate} to within {100 * self.width:g} % of itself, with "
            f"{100 * self.level:g} % confidence:\n"
            f"  {self.pairs:,} pairs {apart}, of {2 * self.pairs:,} people;\n"
            f"  or all {math.comb(self.people, 2):,} pairs among {self.people:,} people, {known}.\n"
            f"To show that it is at most {rate}, if no error is seen:\n"
            f"  {self.without_error:,} pairs {apart}, of {2 * self.without_error:,} people (rule "
            f"of three: {3 / self.far:,.0f} pairs)."
        )


def parse_plan(text: str) -> Plan:
    """The plan of a text such as `far=1e-4,width=.5`.

    Raises:
        LikenessError: It is written otherwise.

    Example:
        >>> parse_plan("far=1e-4,width=.5").people
        555
    """
    stated = re.fullmatch(rf"\s*far={_NUMBER},\s*width={_NUMBER}\s*", text)
    return Plan(*map(float, stated.groups() if stated else (0, 0)))


def correlation_of(scores: Scores, subjects: ArrayLike, far: float) -> float:
    """How much the false accepts of two nontarget trials that share a subject go together.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides.
        far: The FAR whose threshold decides. Where that leaves fewer than 30 false accepts, it is
            the FAR that leaves as many.

    Returns:
        The correlation, at least 0.

    Example:
        >>> pairs = [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [0, 3]]
        >>> scores = Scores([9.0, 1, 1, 0, 0, 0, 0], [True] + 6 * [False])
        >>> correlation_of(scores, [[0, 0], *pairs], 0.34)
        0.0
    """
    nontarget, pairs = scores.nontargets, np.asarray(subjects)[~scores.target]
    far = max(far, min(1.0, LEAST_ERRORS / nontarget.size))
    errors = (nontarget >= tar_threshold(scores.targets, nontarget, far)).astype(np.float64)
    rate = errors.mean()
    if not 0 < rate < 1:
        return 0.0
    numbers = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    sums, squares, counts = (
        np.bincount(numbers.ravel(), np.repeat(of, 2))
        for of in (errors - rate, (errors - rate) ** 2, np.ones_like(errors))
    )
    two = float((counts**2 - counts).sum())  # how often two trials share a subject
    covariance = float((sums**2 - squares).sum()) / two if two else 0.0
    return max(0.0, covariance / (rate * (1 - rate)))
