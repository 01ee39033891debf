"""Confidence intervals of metrics by the bootstrap over subjects.

Trials share subjects, so they are not independent: an interval over trials is far too narrow. One
resample draws n of the n subjects with replacement; with c[s] the times that subject s was drawn, a
target trial weighs c[s] and a nontarget trial c[a] * c[b] (the subsets bootstrap of Bolle et al.
2004, with the product weights of Owen's pigeonhole bootstrap, 2007). Trials are sorted once; each
resample is two cumulative sums of integer weights, shared by all metrics. EER, minDCF and strict
TAR@FAR read them directly; any other metric gets the trials repeated by their weights.

What the middle 95 % of the resamples span is too narrow for few subjects, and more so where a few
of them have most of the trials. So an interval is one of Student's t around the metric itself, on
the logit scale, see `t_interval`. Of fewer than 5 subjects there is no interval, and of fewer than
20 it is marked, see `bounds`: so few do not stand for others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.intervals.resampling import Metric as Metric
from likeness.eval.intervals.resampling import Ranked, rank_trials, resample_metrics
from likeness.eval.types import Floats, Scores, check_counts

Ends = tuple[float, float]

MIN_DRAWN = 5  # subjects; fewer have no interval: 2 have 3 different resamples, 4 have 35, 5 126
MOST_RESAMPLES = 1_000_000  # more take days, and change no digit that is printed
FEW_DRAWN = 20  # of fewer an interval is marked
NOTHING_KNOWN = "the interval holds every possible value, so that nothing is known"


class Drawn(NamedTuple):
    """What an interval rests on.

    Attributes:
        number: How many subjects there are behind the class of trials that has fewer of them, or
            how many such trials.
        what: What was counted, in words: "subjects", "subjects with target trials", "nontarget
            trials", "classes".
        effective: How many of equal sizes would tell as much, see `effective_number`; None where
            all are of one size.
    """

    number: int
    what: str
    effective: float | None = None


class Bounds(NamedTuple):
    """An interval and what its reader has to know.

    Attributes:
        ends: (low, high), None where there is no interval.
        note: Why there is none, or why it is not to be relied on; "" where there is nothing to say.
    """

    ends: Ends | None
    note: str = ""


class PairedBounds(NamedTuple):
    """A difference's interval and the p that follows from it.

    Attributes:
        ends: (low, high), None where there is no interval.
        note: As of `Bounds`.
        p: The level at which the interval touches 0, None where there is no interval.
    """

    ends: Ends | None
    note: str
    p: float | None


def _numbered(pairs: NDArray[Any]) -> tuple[NDArray[np.integer[Any]], int]:
    """Subjects (P, 2) as numbers 0..n-1 in the order of theirs, and n."""
    if not (pairs.size and pairs.min() >= 0 and pairs.max() <= 10 * pairs.size):
        names, numbers = np.unique(pairs, return_inverse=True)
        return numbers.reshape(pairs.shape), names.size
    seen = np.zeros(int(pairs.max()) + 1, dtype=np.bool_)  # a sort of millions takes seconds
    seen[pairs.ravel()] = True
    number = np.cumsum(seen, dtype=np.int32) - 1
    return pairs if seen.all() else number[pairs], int(number[-1]) + 1


def sorted_trials(scores: Scores, subjects: ArrayLike | None) -> Ranked:
    """The trials in the order of their scores; LikenessError where labels contradict subjects."""
    if subjects is None:
        return rank_trials(scores, None)
    pairs = np.asarray(subjects)
    wrong = np.flatnonzero((pairs[:, 0] == pairs[:, 1]) != scores.target)
    if wrong.size:
        first = int(wrong[0])
        who = f"trial {first + 1} between subjects {pairs[first, 0]} and {pairs[first, 1]}"
        count = f"{wrong.size} of {len(scores)} trials contradict their label"
        raise LikenessError(f"subjects: {count}, such as {who}; correct these")
    return rank_trials(scores, _numbered(pairs))


def check_draws(level: float, num_resamples: int, seed: int) -> None:
    """Refuses settings of a bootstrap that could not be drawn; 0 resamples stand for no intervals.

    >>> check_draws(1.0, 100, 0)
    Traceback (most recent call last):
    ...
    likeness.LikenessError: level = 1.0: give a share between 0 and 1, e.g. 0.95
    """
    if not 0 < level < 1:
        raise LikenessError(f"level = {level}: give a share between 0 and 1, e.g. 0.95")
    check_counts("num_resamples", [num_resamples], least=0, most=MOST_RESAMPLES)
    check_counts("seed", [seed], least=0)


def draws_of(settings: Any) -> dict[str, Any]:
    """The settings of a bootstrap, as its keywords are called and as a record states them."""
    return {name: getattr(settings, name) for name in ("level", "num_resamples", "seed")}


def effective_number(sizes: ArrayLike) -> float:
    """How many subjects of equal sizes would tell as much as these: (sum w)^2 / sum w^2.

    Args:
        sizes: (n,) how many trials or items each subject has.

    Example:
        >>> effective_number([3, 3, 3, 3]), effective_number([9, 1, 1, 1])
        (4.0, 1.7142857142857142)
    """
    weights = np.asarray(sizes, dtype=np.float64)
    return float(weights.sum() ** 2 / np.square(weights).sum()) if weights.any() else 0.0


def drawn_groups(groups: ArrayLike, what: str) -> Drawn:
    """What an interval of items rests on whose groups, such as classes, are drawn.

    Args:
        groups: (N,) the group of each item.
        what: What the groups are, in words.
    """
    sizes = np.unique(np.asarray(groups), return_counts=True)[1]
    return Drawn(sizes.size, what, effective_number(sizes))


def times_drawn(groups: ArrayLike, seed: int) -> Iterator[NDArray[np.int64]]:
    """How often each item is drawn, in one resample of the groups after the other, without end.

    A draw takes G of the G groups with replacement, all items of a group as often as it was drawn.

    Args:
        groups: (N,) the group of each item, such as its class.
        seed: Of the draws; equal seeds and groups give equal draws.
    """
    codes = np.unique(np.asarray(groups), return_inverse=True)[1]
    num_groups, rng = int(codes.max()) + 1, np.random.default_rng(seed)
    while True:
        drawn = rng.integers(num_groups, size=num_groups)
        yield np.bincount(drawn, minlength=num_groups)[codes]


def is_share(*values: ArrayLike) -> bool:
    """Whether all values lie between 0 and 1, but for rounding; NaN does not count."""
    return not any(np.any(np.less(v, -1e-9) | np.greater(v, 1 + 1e-9)) for v in values)


def t_test(
    value: float, error: float, freedom: float, level: float, largest: float = np.inf
) -> tuple[Ends, float]:
    """An interval of Student's t around a value, and the level at which it touches 0.

    Every interval of a difference and its p come from here. So p is below 1 - level if and only if
    the interval excludes 0. Its ends are cut off where no difference can lie, which moves no end
    over 0.

    Args:
        value: The difference.
        error: Its standard error, above 0.
        freedom: The degrees of freedom.
        level: The share of such intervals that shall cover the truth.
        largest: The largest difference there can be: 1 between two shares.

    Returns:
        The interval, and p of the two-sided test.

    Example:
        >>> ends, p = t_test(0.5, 0.25, 10, 0.95)
        >>> [round(end, 3) for end in ends], round(p, 3)
        ([-0.057, 1.057], 0.073)
        >>> t_test(0.5, 0.25, 10, 0.95, largest=1.0)[0][1]
        1.0
    """
    # here, because comparing two files needs no scipy and no time to import it
    from scipy.special import stdtr, stdtrit

    half = -float(stdtrit(freedom, (1 - level) / 2)) * error
    low, high = np.clip([value - half, value + half], -largest, largest)
    return (float(low), float(high)), float(2 * stdtr(freedom, -abs(value) / error))


def t_interval(values: Floats, value: float, level: float, effective: float) -> Ends:
    """An interval of Student's t around a metric, from its values on resamples.

    A metric whose values all lie between 0 and 1 is taken to the logit scale, where errors are
    spread more evenly: log((x + m) / (1 + m - x)). The margin m, half a standard deviation of the
    resamples, keeps it finite at 0 and 1. The spread is the root mean square distance of the
    resamples from the metric, which also holds their bias, times sqrt(k / (k - 1)). There are k - 1
    degrees of freedom, for k effective subjects.

    Args:
        values: (R,) the metric on the resamples, without NaN.
        value: The metric itself.
        level: The share of such intervals that shall cover the truth, e.g. 0.95.
        effective: k, how many subjects of equal sizes were drawn from, see `effective_number`;
            fewer than 2 count as 2.

    Example:
        >>> low, high = t_interval(np.array([0.1, 0.2, 0.3]), 0.2, 0.95, 30)
        >>> round(low, 3), round(high, 3)
        (0.066, 0.423)
    """
    # here, because comparing two files needs no scipy and no time to import it
    from scipy.special import expit

    share, m, k = is_share(values, value), values.std() / 2, max(effective, 2.0)
    scaled, at = values, value
    if share:
        clipped = np.clip(values, 0, 1), np.clip(value, 0, 1)
        scaled, at = (np.log((x + m) / (1 + m - x)) for x in clipped)
    error = np.sqrt(np.mean((scaled - at) ** 2) * k / (k - 1))
    ends, _ = t_test(at, error, k - 1, level)
    if share:
        low, high = np.clip((1 + 2 * m) * expit(ends) - m, 0, 1)
        ends = float(low), float(high)
    return ends


def bounds(values: Floats, value: float, level: float, drawn: Drawn) -> Bounds:
    """The interval of a metric, or why there is none, or why it is not to be relied on.

    There is none below 5 of what was drawn, and none where the resamples do not vary: an EER that
    is 0 in each of them says nothing about other subjects, and an interval of no width would say
    that it did. Below 20 the interval is marked, and so is one that holds all that can be.

    Args:
        values: (R,) values of the metric on the resamples; NaN where one has none.
        value: The metric itself.
        level: The share of such intervals that shall cover the truth, e.g. 0.95.
        drawn: What was drawn, see `drawn_from`.

    Example:
        >>> found = bounds(np.array([0.0, 0.1, 0.2]), 0.1, 0.5, Drawn(12, "subjects"))
        >>> [round(end, 3) for end in found.ends]
        [0.024, 0.242]
        >>> found.note
        '12 subjects, fewer than 20: such an interval is often too narrow'
        >>> bounds(np.array([0.0, 0.1, 0.2]), 0.1, 0.5, Drawn(2, "subjects"))
        Bounds(ends=None, note='no interval: 2 subjects, fewer than 5')
    """
    values = values[~np.isnan(values)]
    if problem := _why_none(values, value, level, drawn):
        return Bounds(None, f"no interval: {problem}")
    ends = t_interval(values, value, level, _effective(drawn, values))
    return Bounds(ends, complete_note(_few(drawn), ends))


def paired_bounds(
    values: Floats, value: float, level: float, drawn: Drawn, largest: float
) -> PairedBounds:
    """The interval of a difference of two systems, its p, and what its reader has to know.

    It is never taken to the logit scale, and its spread is the standard deviation of the resamples:
    both systems have the same bias. Otherwise as `bounds`.

    Args:
        values: (R,) the difference on the resamples; NaN where it has no value.
        value: The difference itself.
        level: The share of such intervals that shall cover the truth, e.g. 0.95.
        drawn: What was drawn, see `drawn_from`.
        largest: The largest difference there can be: 1 between two shares.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = paired_bounds(rng.normal(0.3, 0.1, 1000), 0.3, 0.95, Drawn(30, "subjects"), 1.0)
        >>> [round(end, 2) for end in found.ends], round(found.p, 3)
        ([0.1, 0.5], 0.005)
    """
    values = values[~np.isnan(values)]
    if problem := _why_none(values, value, level, drawn):
        return PairedBounds(None, f"no interval: {problem}", None)
    k = _effective(drawn, values)
    ends, p = t_test(value, float(values.std()) * np.sqrt(k / (k - 1)), k - 1, level, largest)
    return PairedBounds(ends, complete_note(_few(drawn), ends, -largest, largest), p)


def complete_note(note: str, ends: Ends, least: float = 0.0, most: float = 1.0) -> str:
    """The note, with what an interval says that is printed as all values from least to most.

    >>> complete_note("", (0.0, 1.0)), complete_note("few", (0.0, 0.9))
    ('the interval holds every possible value, so that nothing is known', 'few')
    """
    whole = abs(ends[0] - least) < 5e-5 and abs(ends[1] - most) < 5e-5
    return "; ".join(filter(None, [note, NOTHING_KNOWN * whole]))


def few_of(number: int | None, what: str = "subjects") -> str:
    """Why rates of these subjects say little of others; "" of enough, or where nobody counted.

    >>> few_of(9), few_of(20), few_of(None)
    ('9 subjects, fewer than 20', '', '')
    """
    is_few = number is not None and number < FEW_DRAWN
    return f"{number} {what}, fewer than {FEW_DRAWN}" if is_few else ""


def _few(drawn: Drawn) -> str:
    """A remark on an interval of few subjects; "" of enough."""
    reason = few_of(drawn.number, drawn.what)
    return f"{reason}: such an interval is often too narrow" if reason else ""


def _effective(drawn: Drawn, values: Floats) -> float:
    """How many subjects count; R draws know the spread no better than R subjects would."""
    of_subjects = drawn.number if drawn.effective is None else drawn.effective
    return max(2.0, min(of_subjects, values.size))


def bounds_over_groups(
    measure: Callable[[NDArray[np.int64]], ArrayLike],
    values: Sequence[float],
    groups: ArrayLike,
    drawn: Drawn,
    settings: Any,
) -> list[Bounds]:
    """`bounds` of M metrics of items whose groups, such as classes, are drawn.

    Args:
        measure: The weights (N,) of the items, see `times_drawn` -> the metrics (M,).
        values: (M,) the metrics on all items as they are.
        groups: (N,) the group of each item.
        drawn: What was drawn, see `drawn_groups`.
        settings: The level of the intervals, the number of draws and their seed.
    """
    draws = islice(times_drawn(groups, settings.seed), settings.num_resamples)
    measured = np.array([measure(times) for times in draws]).T
    pairs = zip(measured, values, strict=True)
    return [bounds(of, value, settings.level, drawn) for of, value in pairs]


def _why_none(values: Floats, value: float, level: float, drawn: Drawn) -> str:
    """Why there is no interval, "" where there is one."""
    if drawn.number < MIN_DRAWN:
        return f"{drawn.number} {drawn.what}, fewer than {MIN_DRAWN}"
    if not values.size or np.isnan(value):
        return "the metric has no value on any resample"
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return ""
    others = drawn.what.split()[0]
    share = f"the central {100 * level:g} % of the resamples"
    return f"{share} give the same value, which says nothing about other {others}"


def drawn_from(target: NDArray[np.bool_], subjects: ArrayLike | None) -> Drawn:
    """What an interval of trials rests on: the subjects with target trials, or those in nontarget
    trials, whichever are fewer.

    Ten thousand subjects of whom three have target trials make an interval of three subjects.

    Args:
        target: (P,) bool.
        subjects: (P, 2) integers, the subjects of both sides of each trial; None: the trials
            themselves are drawn.
    """
    if subjects is None:
        each = [
            Drawn(int(np.count_nonzero(trials)), f"{kind} trials")
            for trials, kind in ((target, "target"), (~target, "nontarget"))
        ]
        return min(each, key=lambda drawn: drawn.number)
    numbers, n = _numbered(np.asarray(subjects))
    of_all, of_targets = (
        sum(np.bincount(side[rows], minlength=n) for side in numbers.T)
        for rows in (slice(None), target)
    )
    of_nontargets = of_all - of_targets
    with_targets, with_nontargets = np.count_nonzero(of_targets), np.count_nonzero(of_nontargets)
    least = int(min(with_targets, with_nontargets))
    what = "subjects"
    if least < n:
        few_targets = with_targets <= with_nontargets
        what = "subjects with target trials" if few_targets else "subjects in nontarget trials"
    return Drawn(least, what, min(effective_number(of_targets), effective_number(of_nontargets)))


def num_subjects(pairs: ArrayLike) -> int:
    """How many subjects (P, 2) integers name."""
    return _numbered(np.asarray(pairs))[1]


def bounds_of(
    metrics: Mapping[str, Metric],
    scores: Scores,
    subjects: ArrayLike | None,
    measured: Mapping[str, float] | None = None,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> tuple[dict[str, Bounds], dict[str, Floats]]:
    """Bootstrap intervals of several metrics that share draws and sums: the same numbers as one
    `interval` each, at a fraction of the cost.

    Args:
        metrics: Name -> metric(target, nontarget). eer, min_dcf and tar_at_far of
            likeness.eval.metrics.verification are fast, also as functools.partial with keywords.
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of the enrolment and the probe side of each trial.
            None resamples TRIALS instead, which is too narrow wherever trials share subjects and
            has to be marked as such.
        measured: Name -> the metric on all trials, where it is known already.
        num_resamples: R, how many draws. One that loses a whole class is drawn again.
        level: Share of such intervals that shall cover the truth.
        seed: Of the draws.

    Returns:
        Name -> its `bounds`, and name -> its (R,) values on the resamples. Equal seeds, subjects
        and labels give equal draws. Below 5 subjects nothing is drawn, and all values are NaN.

    Raises:
        LikenessError: A class is empty, subjects contradict the labels, there are too few subjects,
            or the level is not strictly between 0 and 1.
    """
    trials = sorted_trials(scores, subjects)
    check_draws(level, num_resamples, seed)
    drawn = drawn_from(scores.target, subjects)
    if drawn.number < MIN_DRAWN:
        made = {name: np.full(num_resamples, np.nan) for name in metrics}
    else:
        made = resample_metrics(metrics, trials, num_resamples, np.random.default_rng(seed))
    if measured is None:
        measured = {
            name: float(metric(trials.target, trials.nontarget)) for name, metric in metrics.items()
        }
    intervals = {
        name: bounds(values, measured[name], level, drawn) for name, values in made.items()
    }
    return intervals, made


def interval(
    metric: Metric,
    scores: Scores,
    subjects: ArrayLike | None,
    *,
    num_resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Ends | None:
    """Bootstrap interval (low, high) of one metric over subjects, None where there is none; see
    `bounds_of`.

    >>> from likeness.eval.metrics.verification import eer
    >>> own = [(i, i) for i in range(6)]
    >>> others = [(i, j) for i in range(6) for j in range(i)]
    >>> values = np.append([0.9, 0.8, 0.3, 0.7, 0.4, 0.8], np.arange(15) / 20)
    >>> scores = Scores(values, np.arange(21) < 6)
    >>> low, high = interval(eer, scores, own + others, num_resamples=100)
    >>> bool(0 <= low < eer(scores.targets, scores.nontargets) < high)
    True
    """
    made, _ = bounds_of(
        {"": metric}, scores, subjects, num_resamples=num_resamples, level=level, seed=seed
    )
    return made[""].ends
