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
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.bootstrap import Bounds, bounds, drawn_groups, times_drawn
from likeness.eval.errors import LikenessError
from likeness.eval.guarantee import check_confidence, independent_scores, pairs_needed
from likeness.eval.types import Floats, Scores
from likeness.eval.verification import check_costs, num_allowed, tar_threshold

NO_ERROR = "no error was seen"
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


def rule_of_three(num_trials: int) -> float:
    """3/n, which is nearly the upper bound of a rate without an error in n trials, at 95 %.

    Example:
        >>> rule_of_three(100)
        0.03
    """
    return min(1.0, 3 / num_trials) if num_trials else 1.0


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

    def missed(self, confidence: float) -> float:
        """The bound of the FRR, where no target trial was rejected."""
        return upper_bound(0, self.targets, confidence)

    def accepted(self, confidence: float) -> float:
        """The bound of the FAR, where no nontarget trial was accepted."""
        return upper_bound(0, self.nontargets, confidence)

    def note(self, *kinds: str) -> str:
        """What the bound is, in words; kinds: of "targets" and "nontargets" which it rests on."""
        names = {"targets": "target trials", "nontargets": "nontarget trials"}
        if self.by_subjects:
            names = {
                "targets": "subjects with target trials",
                "nontargets": "pairs of subjects of which no two share one",
            }
        counts = [(getattr(self, kind), names[kind]) for kind in kinds]
        what = " and ".join(f"{count:,} {name}" for count, name in counts)
        fewest = min(count for count, _ in counts)
        optimistic = "" if self.by_subjects else ", optimistic, as trials share subjects"
        return (
            f"{NO_ERROR}, so that this is the exact bound by {what}{optimistic} (rule of "
            f"three: 3/{fewest:,} = {100 * rule_of_three(fewest):.2g} %)"
        )


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
    with_targets = np.unique(pairs[scores.target])
    drawn = independent_scores(scores.nontargets, pairs[~scores.target])
    return Independent(with_targets.size, drawn.size, True)


def without_errors(metric: str, value: float, counts: Independent, settings: Any) -> Bounds | None:
    """The bound of a metric that saw no error; None for a metric that saw some.

    Args:
        metric: "eer", "min_dcf(P)" or "tar_at_far(FAR)", or of a group "global_tar(AT)" or
            "global_far(AT)".
        value: Its value.
        counts: The independent trials.
        settings: Their level is the confidence. The bounds of an EER and a DCF are of both errors
            at once, so that each has half of what is left. Their costs are those of a DCF.

    Example:
        >>> from likeness.eval.protocols.verification import VerificationSettings
        >>> counts = Independent(100, 9, True)
        >>> ends, _ = without_errors("tar_at_far(0.1)", 1.0, counts, VerificationSettings())
        >>> round(ends[0], 4), ends[1]
        (0.9705, 1.0)
    """
    kind, _, number = metric.rstrip(")").partition("(")
    level, both = settings.level, (1 + settings.level) / 2
    if value != float("tar" in kind):
        return None
    if "tar" in kind:
        return Bounds((1 - counts.missed(level), 1.0), counts.note("targets"))
    if kind == "global_far":
        return Bounds((0.0, counts.accepted(level)), counts.note("nontargets"))
    missed, accepted = counts.missed(both), counts.accepted(both)
    high = max(missed, accepted)
    if kind == "min_dcf":
        of_miss, of_fa = check_costs(float(number), settings.c_miss, settings.c_fa)
        high = min(1.0, of_miss * missed + of_fa * accepted)
    return Bounds((0.0, high), counts.note("targets", "nontargets"))


def share_over_groups(flags: ArrayLike, groups: ArrayLike, settings: Any) -> Bounds | None:
    """The interval of a share of items, over their groups such as subjects.

    Args:
        flags: (N,) which items count, 0 or 1.
        groups: (N,) the group of each item.
        settings: The draws, see `draws_of`.

    Returns:
        The interval; the exact bound by the number of groups where no item counts, or all do; None
        where no draws are asked for.
    """
    of_items = np.asarray(flags, dtype=np.float64)
    if not settings.num_resamples:
        return None
    drawn = drawn_groups(groups, "subjects")
    if of_items.min() == of_items.max():
        bound = upper_bound(0, drawn.number, settings.level)
        ends = (0.0, bound) if of_items.min() == 0 else (1 - bound, 1.0)
        note = f"all items are alike, so that this is the exact bound by {drawn.number:,} subjects"
        return Bounds(ends, note)
    draws = islice(times_drawn(groups, settings.seed), settings.num_resamples)
    values = np.array([times @ of_items / times.sum() for times in draws])
    return bounds(values, float(of_items.mean()), settings.level, drawn)


@dataclass(frozen=True)
class Plan:
    """How many people and pairs a test needs. `plan` makes it; print it to read it.

    Attributes:
        far: The false-accept rate that is to be measured.
        width: How far either end of its interval may be from it, as a share of it.
        level: The confidence.
        pairs: Pairs of people needed, of which no two share a person.
        people: People needed, where each is compared with every other, once, and errors of pairs
            that share a person are correlated by `correlation`.
        correlation: See `correlation_of`; 0 where nobody measured it.
        measured_at: The FAR at which it was measured; None for no measurement.
        without_error: Pairs needed, of which no two share a person, to show that the FAR is at most
            `far` if none of them is an error.
    """

    far: float
    width: float
    level: float
    pairs: int
    people: int
    correlation: float
    measured_at: float | None
    without_error: int

    def __str__(self) -> str:
        every = self.people * (self.people - 1) // 2
        known = (
            "at best, if the errors of one person are independent of each other; give SCORES of a "
            "first test, and their correlation is measured"
        )
        if self.measured_at is not None:
            known = (
                f"as the errors of pairs that share a person correlate by {self.correlation:.2g} "
                f"in these scores, at a FAR of {100 * self.measured_at:.3g} %"
            )
        return (
            f"To know a FAR of {100 * self.far:.3g} % to within {100 * self.width:g} % of itself, "
            f"with {100 * self.level:g} % confidence:\n"
            f"  {self.pairs:,} pairs of people of which no two share one, of {2 * self.pairs:,} "
            f"people;\n"
            f"  or all {every:,} pairs among {self.people:,} people, {known}.\n"
            f"To show that it is at most {100 * self.far:.3g} %, if no error is seen:\n"
            f"  {self.without_error:,} pairs of people of which no two share one, of "
            f"{2 * self.without_error:,} people (rule of three: {3 / self.far:,.0f} pairs)."
        )


def parse_plan(text: str) -> tuple[float, float]:
    """The FAR and the width of `far=1e-4,width=.5`.

    Raises:
        LikenessError: It is written otherwise.

    Example:
        >>> parse_plan("far=1e-4,width=.5")
        (0.0001, 0.5)
    """
    parts = dict(part.strip().partition("=")[::2] for part in text.split(","))
    try:
        if parts.keys() != {"far", "width"}:
            raise ValueError
        return float(parts["far"]), float(parts["width"])
    except ValueError:
        raise LikenessError(
            f"plan {text!r}: give a false-accept rate and how exactly it is to be known, as in "
            "far=1e-4,width=.5"
        ) from None


def plan(
    far: float,
    width: float,
    *,
    level: float = 0.95,
    correlation: float = 0.0,
    measured_at: float | None = None,
) -> Plan:
    """How many people and pairs are needed to measure a false-accept rate.

    With n people and all their pairs, the variance of the measured rate p is
    p (1 - p) (1 + 2 (n - 2) r) / (n (n - 1) / 2), for a correlation r of the errors of two pairs
    that share a person. The normal interval of that variance may reach `width` x p to either side.

    Args:
        far: The rate p, between 0 and 1.
        width: The share of it.
        level: The confidence.
        correlation: r, see `correlation_of`.
        measured_at: The FAR at which r was measured.

    Example:
        >>> needed = plan(1e-2, 0.5)
        >>> needed.pairs, needed.people, needed.without_error
        (1522, 56, 299)
        >>> plan(1e-2, 0.5, correlation=0.01).people
        94
    """
    from scipy.special import ndtri  # slow to import, needed here only

    check_confidence(level)
    if not (0 < far < 1 and 0 < width < math.inf and 0 <= correlation <= 1):
        raise LikenessError(
            f"plan far={far:g},width={width:g}: the rate lies between 0 and 1, and the width is a "
            "share of it, such as .5"
        )
    z = float(ndtri((1 + level) / 2))
    pairs = z**2 * (1 - far) / (far * width**2)
    # n (n - 1) / 2 = pairs (1 + 2 (n - 2) r) is a quadratic equation in n
    half = 0.5 + 2 * pairs * correlation
    people = math.ceil(half + math.sqrt(max(half**2 + 2 * pairs * (1 - 4 * correlation), 0)))
    return Plan(
        *(far, width, level, math.ceil(pairs), max(people, 2), correlation, measured_at),
        pairs_needed(far, level),
    )


def correlation_of(scores: Scores, subjects: ArrayLike, far: float) -> tuple[float, float]:
    """How much the false accepts of two nontarget trials that share a subject go together.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides.
        far: The FAR whose threshold decides. Where that leaves fewer than 30 false accepts, it is
            the FAR that leaves as many.

    Returns:
        The correlation, at least 0, and the FAR at which it was measured.

    Example:
        >>> pairs = [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [0, 3]]
        >>> scores = Scores([9.0, 1, 1, 0, 0, 0, 0], [True] + 6 * [False])
        >>> value, measured_at = correlation_of(scores, [[0, 0], *pairs], 0.34)
        >>> round(value, 3), measured_at
        (0.0, 1.0)
    """
    nontarget, pairs = scores.nontargets, np.asarray(subjects)[~scores.target]
    far = max(far, min(1.0, LEAST_ERRORS / nontarget.size))
    assert num_allowed(far, nontarget.size) >= 0
    errors = (nontarget >= tar_threshold(scores.targets, nontarget, far)).astype(np.float64)
    rate = errors.mean()
    if not 0 < rate < 1:
        return 0.0, far
    apart = errors - rate
    numbers = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    sums, squares, counts = (
        sum(np.bincount(side, of, numbers.max() + 1) for side in numbers.T)
        for of in (apart, apart**2, np.ones_like(apart))
    )
    shared: Floats = np.asarray(sums) ** 2 - squares  # over two trials of one subject
    two = float((np.asarray(counts) ** 2 - counts).sum())
    covariance = float(shared.sum()) / two if two else 0.0
    return max(0.0, covariance / (rate * (1 - rate))), far
