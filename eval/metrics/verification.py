"""Verification metrics of two score arrays: ROC, DET, EER, minDCF, TAR@FAR, Cllr.

Tie-safe, order-invariant, one sort.

Every function takes the scores of the two classes, `eer(target, nontarget)`. Labels in place of
scores, as scikit-learn's functions take them, would give a number that means nothing: they are
refused, see `sort_scores`.

A trial is accepted iff score >= threshold. An operating point is a threshold's pair (FAR, FRR): the
share of nontarget trials accepted and of target trials rejected. Tied scores move together, so the
ROC has one point per distinct score, and one that rejects all.

Why one sort is enough: with T target and N nontarget scores in order, a threshold's error counts
are two binary searches. The EER is found by bisection on FAR - FRR, which falls from 1 to -1.
minDCF only looks at the ROC's lower left corners: between two neighbouring target scores FRR is
constant, so the best threshold there is the highest one, the upper target score itself. Counts stay
integers until the last division.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.types import Floats, check_choice

Counts = NDArray[np.int64]
AnyFloats = NDArray[np.floating[Any]]
EerMethod = Literal["interpolated", "convex_hull", "nearest"]
TarRule = Literal["strict", "nearest", "interpolated"]

_MIN_LABELS = 8  # fewer integers of two values are no sign of labels
_COARSE_BITS = 13  # min_dcf first looks at 4,096 to 8,191 thresholds,
_FINER_BITS = 4  # then at 16 in each stretch that may hold a better one


class Roc(NamedTuple):
    """Operating points by ascending threshold: thresholds, far, frr, all (M + 1,) for M distinct
    scores; the last threshold is inf (reject all).
    """

    thresholds: AnyFloats
    far: Floats
    frr: Floats


class Det(NamedTuple):
    """Turning points of the DET curve by ascending threshold: FAR and FRR as fractions and as
    normal deviates (probit).
    """

    far: Floats
    frr: Floats
    far_deviate: Floats
    frr_deviate: Floats


class Measured(NamedTuple):
    """A metric's value and its operating threshold (accept iff score >= threshold; inf: reject
    every trial).
    """

    value: float
    threshold: float


@dataclass(frozen=True, eq=False)
class Sorted:
    """Both classes in ascending order, checked, of one float type: what every metric here works on.

    Made by `sort_scores`.
    """

    target: AnyFloats
    nontarget: AnyFloats

    @cached_property
    def corners(self) -> tuple[AnyFloats, Counts, Counts]:
        """Lower left corners of the ROC: thresholds (K,), the distinct target scores; misses and
        false accepts (K + 1,), the last for rejecting all.
        """
        first = np.flatnonzero(np.append(True, self.target[1:] != self.target[:-1]))
        thresholds = self.target[first]
        below = np.searchsorted(self.nontarget, thresholds, side="left")
        false_accepts = self.nontarget.size - below
        return thresholds, np.append(first, self.target.size), np.append(false_accepts, 0)

    def above(self, threshold: Any) -> float:
        """The lowest score of either class above `threshold`; inf if there is none."""
        higher = [
            scores[i]
            for scores in (self.target, self.nontarget)
            if (i := _count(scores, threshold, "right")) < scores.size
        ]
        return float(min(higher)) if higher else float("inf")


def _count(scores: AnyFloats, threshold: Any, side: Literal["left", "right"]) -> int:
    """How many sorted scores lie below (left) or at or below (right) the threshold."""
    return int(np.searchsorted(scores, threshold, side=side))


def _as_floats(name: str, scores: ArrayLike) -> AnyFloats:
    values = np.asarray(scores)
    if values.dtype.kind in "biu" or values.dtype == np.longdouble:
        values = values.astype(np.float64)
    if values.dtype.kind != "f" or values.ndim != 1 or not values.size:
        raise LikenessError(f"{name}: {values.dtype} {values.shape}; give a number per trial")
    return values


def _refuse_non_finite(name: str, values: AnyFloats) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        first = f"first at position {int(bad[0]) + 1}"
        raise LikenessError(f"{name}: {bad.size} scores are not finite ({first}); score them again")


def _classes(target: ArrayLike, nontarget: ArrayLike) -> dict[str, AnyFloats]:
    """Both classes by their names, none of them empty. Labels in place of scores are refused: a
    boolean array, or one of eight or more integers of at most two values, such as -1 and 1, while
    the other array has as many others.
    """
    sides = {"target": np.asarray(target), "nontarget": np.asarray(nontarget)}
    wrong = [name for name, values in sides.items() if values.dtype == np.bool_]
    if sides["target"].size == sides["nontarget"].size >= _MIN_LABELS:
        # integers alone: the scores of our own files are never of that type
        binary = [
            name
            for name, values in sides.items()
            if values.dtype.kind in "iu" and len(np.unique(values)) <= 2
        ]
        wrong += binary if len(binary) == 1 else []
    if wrong:
        raise LikenessError(f"{wrong[0]}: these are labels; give the scores of each class")
    return {name: _as_floats(name, values) for name, values in sides.items()}


def sort_scores(target: ArrayLike, nontarget: ArrayLike) -> Sorted:
    """Check and sort both classes once, for all metrics; float32 stays float32.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.

    Returns:
        Both classes in ascending order.

    Raises:
        LikenessError: A class is empty, a shape is wrong, or scores are NaN or infinite; the error
            says which array, how many and where. Or an array holds labels: booleans, or eight or
            more integers of at most two values, where the other array has as many other numbers.
    """
    sides = _classes(target, nontarget)
    # mixed types compare exactly in the wider one, and are then widened once only
    common = np.result_type(*sides.values())
    ordered = {}
    for name, values in sides.items():
        ordered[name] = np.sort(values.astype(common, copy=False))
        # sorting puts -inf first, inf and NaN last
        if not (np.isfinite(ordered[name][0]) and np.isfinite(ordered[name][-1])):
            _refuse_non_finite(name, values)
    return Sorted(**ordered)


def roc(target: ArrayLike, nontarget: ArrayLike) -> Roc:
    """The full ROC.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.

    Returns:
        One operating point for each distinct score, and one that rejects all, by ascending
        threshold. The FAR falls from 1 to 0, and the FRR rises from 0 to 1.

    Raises:
        LikenessError: As for `sort_scores`.

    >>> found = roc([2.0, 1.0], [0.0, 1.0])
    >>> found.thresholds
    array([ 0.,  1.,  2., inf])
    >>> found.far, found.frr
    (array([1. , 0.5, 0. , 0. ]), array([0. , 0. , 0.5, 1. ]))
    """
    s = sort_scores(target, nontarget)
    scores = np.unique(np.concatenate([s.target, s.nontarget]))
    far = (
        s.nontarget.size
        - np.append(np.searchsorted(s.nontarget, scores, side="left"), s.nontarget.size)
    ) / s.nontarget.size
    frr = np.append(np.searchsorted(s.target, scores, side="left"), s.target.size) / s.target.size
    return Roc(np.append(scores, scores.dtype.type(np.inf)), far, frr)


def det(target: ArrayLike, nontarget: ArrayLike) -> Det:
    """The DET curve (Martin et al. 1997): the ROC's turning points with FAR and FRR strictly
    between 0 and 1, on normal deviate axes.

    Joined by straight lines the fractions draw the whole ROC inside the open square. There are at
    most two points for each distinct target score.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.

    Raises:
        LikenessError: As for `sort_scores`.
    """
    from scipy.special import ndtri  # a third of a second to import, needed here only

    s = sort_scores(target, nontarget)
    thresholds, misses, false_accepts = s.corners
    # just above each target score
    passed = s.nontarget.size - np.searchsorted(s.nontarget, thresholds, side="right")
    far = np.stack([false_accepts[:-1], passed], axis=1).ravel() / s.nontarget.size
    frr = np.stack([misses[:-1], misses[1:]], axis=1).ravel() / s.target.size
    inside = (far > 0) & (far < 1) & (frr > 0) & (frr < 1)
    far, frr = far[inside], frr[inside]
    return Det(far, frr, ndtri(far), ndtri(frr))


def _crossing(s: Sorted) -> tuple[tuple[int, int, float], tuple[int, int, float]]:
    """The two adjacent operating points (misses, false accepts, threshold) around FAR = FRR: FAR >=
    FRR at the first, FAR < FRR at the second.
    """

    def point(threshold: Any) -> tuple[int, int, float]:
        return (
            _count(s.target, threshold, "left"),
            s.nontarget.size - _count(s.nontarget, threshold, "left"),
            float(threshold),
        )

    def crossed(threshold: Any) -> bool:
        misses, false_accepts, _ = point(threshold)
        return false_accepts * s.target.size < misses * s.nontarget.size

    before = [
        scores[i - 1]
        for scores in (s.target, s.nontarget)
        if (i := bisect_left(scores, True, key=crossed)) > 0
    ]
    last = max(before)  # never empty: the lowest score of all accepts everything
    after = s.above(last)
    return point(last), (
        point(s.target.dtype.type(after)) if np.isfinite(after) else (s.target.size, 0, after)
    )


def hull(s: Sorted) -> tuple[Counts, Counts]:
    """Vertices (misses, false accepts) of the ROC's lower left convex hull by ascending threshold,
    ends included.

    By pool-adjacent-violators on the share of targets between corners (Fawcett & Niculescu-Mizil
    2007: PAV pools are the hull's edges); a nontarget score between two target scores can never
    begin a pool, so the corners are enough.
    """
    from scipy.optimize import isotonic_regression  # a second to import, needed here only

    # the same hull seen from the smaller class, which has fewer corners
    if s.nontarget.size < s.target.size:
        false_accepts, misses = hull(Sorted(-s.nontarget[::-1], -s.target[::-1]))
        return misses[::-1], false_accepts[::-1]
    _, misses, false_accepts = s.corners
    misses, false_accepts = np.append(0, misses), np.append(s.nontarget.size, false_accepts)
    trials = np.diff(misses) - np.diff(false_accepts)
    # only the first can be empty: no nontarget score below the lowest target score
    kept = trials > 0
    pools = isotonic_regression(np.diff(misses)[kept] / trials[kept], weights=trials[kept]).blocks
    vertices = np.append(np.flatnonzero(kept), misses.size - 1)[pools]
    return misses[vertices], false_accepts[vertices]


def measured_eer(s: Sorted, method: EerMethod = "interpolated") -> Measured:
    """`eer` of sorted scores, with the threshold where FAR and FRR differ least."""
    check_choice("method", method, get_args(EerMethod))
    num_targets, num_nontargets = s.target.size, s.nontarget.size
    first, second = _crossing(s)
    # (FAR - FRR) T N: >= 0, then < 0
    gaps = [a * num_targets - m * num_nontargets for m, a, _ in (first, second)]
    nearest = first if gaps[0] <= -gaps[1] else second
    if method == "nearest":
        return Measured((nearest[0] / num_targets + nearest[1] / num_nontargets) / 2, nearest[2])
    ends = first[1], second[1]
    if method == "convex_hull":
        misses, false_accepts = hull(s)
        hull_gaps = false_accepts * num_targets - misses * num_nontargets
        i = int(np.flatnonzero(hull_gaps >= 0)[-1])
        ends, gaps = (
            (int(false_accepts[i]), int(false_accepts[i + 1])),
            [int(hull_gaps[i]), int(hull_gaps[i + 1])],
        )
    share = gaps[0] / (gaps[0] - gaps[1])  # how far along the segment FAR = FRR lies
    return Measured((ends[0] + share * (ends[1] - ends[0])) / num_nontargets, nearest[2])


def eer(target: ArrayLike, nontarget: ArrayLike, *, method: EerMethod = "interpolated") -> float:
    """The equal error rate, where FAR = FRR. A lower EER is better.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.
        method: How the EER is read off the ROC. "interpolated" is linear between the two adjacent
            ROC points around FAR = FRR (the VoxSRC values). "convex_hull" is on the lower convex
            hull of the ROC (ROCCH, BOSARIS). "nearest" is the mean of FAR and FRR at the ROC point
            where they differ least, the lower threshold of two equal ones. Kaldi's compute-eer and
            that of voxceleb_trainer give no less than the interpolated value;
            docs/reference/protocols.md says by how much they differ.

    Returns:
        The EER as a fraction.

    Raises:
        LikenessError: As for `sort_scores`, or the method is unknown.

    >>> eer([0.9, 0.8, 0.3], [0.1, 0.2, 0.4]) == 1 / 3
    True
    """
    return measured_eer(sort_scores(target, nontarget), method).value


def check_costs(p_target: float, c_miss: float, c_fa: float) -> tuple[float, float]:
    """The weights of FRR and FAR in the normalised detection cost.

    Both are divided by the smaller one, which is the cost of the better system without scores.

    Raises:
        LikenessError: p_target is not strictly between 0 and 1, or a cost is not positive and
            finite.
    """
    infinity = float("inf")
    if not (0 < p_target < 1 and 0 < c_miss < infinity and 0 < c_fa < infinity):
        costs = f"c_miss {c_miss}, c_fa {c_fa}"
        raise LikenessError(f"p_target {p_target}, {costs}: give 0 < p_target < 1, costs > 0")
    miss, fa = c_miss * p_target, c_fa * (1 - p_target)
    return miss / min(miss, fa), fa / min(miss, fa)


def measured_min_dcf(
    s: Sorted, p_target: float, c_miss: float = 1.0, c_fa: float = 1.0
) -> Measured:
    """`min_dcf` of sorted scores, with the lowest target score that reaches the minimum as a
    threshold; infinity if it is cheapest to reject every trial.

    Branch and bound over the distinct target scores, each given by its first position in
    s.target, and T for rejecting all. A threshold strictly between two of them misses at least what
    lies up to the lower one and accepts at least what the upper one does: a stretch that cannot
    reach the best cost seen is dropped, the others are cut finer. The minimum is exact, in floats
    too, because rounded sums and products are monotone.
    """
    miss_weight, fa_weight = check_costs(p_target, c_miss, c_fa)
    num_targets, num_nontargets = s.target.size, s.nontarget.size
    stride = 1 << max(0, num_targets.bit_length() - _COARSE_BITS)
    positions = np.arange(0, num_targets, stride)
    while True:
        at = np.unique(np.searchsorted(s.target, s.target[positions], side="left"))
        passed = np.searchsorted(s.target, s.target[at], side="right")
        accepts = np.append(
            num_nontargets - np.searchsorted(s.nontarget, s.target[at], side="left"), 0
        ) * (fa_weight / num_nontargets)
        at = np.append(at, num_targets)
        cost = at * (miss_weight / num_targets) + accepts
        best = int(np.argmin(cost))
        if stride == 1:
            return Measured(
                float(cost[best]),
                float(s.target[at[best]]) if at[best] < num_targets else float("inf"),
            )
        # <=: of equally good thresholds the lowest is wanted
        cheap = passed * (miss_weight / num_targets) + accepts[1:] <= cost[best]
        left = np.flatnonzero((passed < at[1:]) & cheap)
        finer = max(1, stride >> _FINER_BITS)
        inside = passed[left, None] + np.arange(0, stride, finer)
        positions = np.concatenate(
            [at[best : best + 1], at[left], at[left + 1], inside[inside < at[left + 1, None]]]
        )
        positions, stride = positions[positions < num_targets], finer


def min_dcf(
    target: ArrayLike,
    nontarget: ArrayLike,
    *,
    p_target: float,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
) -> float:
    """The minimum of the normalised detection cost over all thresholds (NIST SRE).

    The cost is (c_miss p FRR + c_fa (1 - p) FAR) / min(c_miss p, c_fa (1 - p)), p = p_target.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.
        p_target: The prior of a target trial, strictly between 0 and 1.
        c_miss: The cost of a miss.
        c_fa: The cost of a false accept.

    Returns:
        The cost, never above 1. A lower cost is better.

    Raises:
        LikenessError: As for `sort_scores` and `check_costs`.

    >>> round(min_dcf([0.9, 0.8, 0.3], [0.1, 0.2, 0.4], p_target=0.01), 6)
    0.333333
    """
    return measured_min_dcf(sort_scores(target, nontarget), p_target, c_miss, c_fa).value


def balanced_accuracy(target: ArrayLike, nontarget: ArrayLike) -> float:
    """The best balanced accuracy: the mean of the shares of target and of nontarget trials that one
    threshold decides rightly, 1 - (FAR + FRR) / 2.

    It does not depend on how many trials of either kind there are. The threshold is that of the
    minDCF at p_target = 0.5, and is chosen on the same trials, so the accuracy elsewhere is lower.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.

    Returns:
        The accuracy as a fraction, from 0.5.

    Raises:
        LikenessError: As for `sort_scores`.

    >>> balanced_accuracy([0.9, 0.8, 0.3], [0.1, 0.2, 0.4, 0.85])
    0.75
    """
    return 1 - min_dcf(target, nontarget, p_target=0.5) / 2


def actual_dcf(
    target_llr: ArrayLike,
    nontarget_llr: ArrayLike,
    *,
    p_target: float,
    c_miss: float = 1.0,
    c_fa: float = 1.0,
) -> float:
    """The normalised detection cost of log-likelihood ratios at the Bayes threshold.

    The threshold is log(c_fa (1 - p) / (c_miss p)), p = p_target; `min_dcf` states the cost.

    Args:
        target_llr: (T,) log-likelihood ratios (natural logarithm) of target trials.
        nontarget_llr: (N,) those of nontarget trials.
        p_target: The prior of a target trial, strictly between 0 and 1.
        c_miss: The cost of a miss.
        c_fa: The cost of a false accept.

    Raises:
        LikenessError: As for `sort_scores` and `check_costs`.
    """
    miss_weight, fa_weight = check_costs(p_target, c_miss, c_fa)
    target, nontarget = _classes(target_llr, nontarget_llr).values()
    _refuse_non_finite("target", target)
    _refuse_non_finite("nontarget", nontarget)
    # a numpy scalar: float32 scores must not round it
    threshold = np.float64(np.log(fa_weight / miss_weight))
    miss, fa = np.mean(target < threshold), np.mean(nontarget >= threshold)
    return float(miss_weight * miss + fa_weight * fa)


def check_rate(name: str, rate: float) -> None:
    """Refuses a rate of errors outside 0 to 1."""
    if not 0 <= rate <= 1:
        raise LikenessError(f"{name} = {rate}: a rate lies between 0 and 1")


@overload
def num_allowed(far: float, num_nontargets: int) -> int: ...
@overload
def num_allowed(far: float, num_nontargets: Counts) -> Counts: ...
def num_allowed(far: float, num_nontargets: int | Counts) -> int | Counts:
    """How many of N nontarget trials may be accepted: floor(far N), for each N.

    A product within rounding of a whole number counts as that number: 0.29 * 100 is 29, not 28.

    Example:
        >>> num_allowed(0.29, 100), num_allowed(0.1, np.array([19, 20])).tolist()
        (29, [1, 2])
    """
    assert 0 <= far <= 1, "a rate that nobody checked"
    product = np.float64(far) * num_nontargets
    whole = np.rint(product)
    is_whole = np.abs(product - whole) <= 4 * np.finfo(np.float64).eps * whole
    allowed: Counts = np.where(is_whole, whole, np.floor(product)).astype(np.int64)
    return allowed if allowed.ndim else int(allowed)


def measured_tar(s: Sorted, far: float, rule: TarRule = "strict") -> Measured:
    """`tar_at_far` of sorted scores, with the lowest score that the strict rule accepts as a
    threshold; infinity if it accepts none.
    """
    check_choice("rule", rule, get_args(TarRule))
    num_targets, num_nontargets = s.target.size, s.nontarget.size
    allowed = num_allowed(far, num_nontargets)
    if allowed >= num_nontargets:
        return Measured(1.0, float(min(s.target[0], s.nontarget[0])))
    # the first nontarget score that must not be accepted
    limit = s.nontarget[num_nontargets - 1 - allowed]
    misses: float = _count(s.target, limit, "right")
    if rule != "strict":
        exact = float(far) * num_nontargets
        # the ROC point just within the FAR ...
        inside = num_nontargets - _count(s.nontarget, limit, "right")
        # ... and its neighbour beyond, at the threshold `limit`
        outside = num_nontargets - _count(s.nontarget, limit, "left")
        if rule == "interpolated":
            misses += (
                max(exact - inside, 0.0)
                / (outside - inside)
                * (_count(s.target, limit, "left") - misses)
            )
        elif outside - exact <= exact - inside:
            misses = (
                _count(s.target, s.nontarget[num_nontargets - 1 - outside], "right")
                if outside < num_nontargets
                else 0
            )
    return Measured((num_targets - misses) / num_targets, s.above(limit))


def tar_at_far(
    target: ArrayLike, nontarget: ArrayLike, far: float, *, rule: TarRule = "strict"
) -> float:
    """The true accept rate at a false accept rate of `far`. A higher TAR is better.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.
        far: The false accept rate, from 0 to 1.
        rule: Which threshold belongs to the FAR. "strict" accepts a score above the
            (floor(far N) + 1)-th largest nontarget score, which never exceeds the FAR. "nearest"
            takes the ROC point of the nearest FAR, the larger of two equally near ones, and the
            highest TAR there (insightface). "interpolated" is linear between adjacent ROC points
            (OpenSphere).

    Returns:
        The TAR as a fraction.

    Raises:
        LikenessError: As for `sort_scores`; `far` is outside 0 to 1, or the rule is unknown.

    >>> tar_at_far([0.9, 0.8, 0.3], [0.1, 0.2, 0.4, 0.8], 0.25) == 2 / 3
    True
    """
    check_rate("far", far)
    return measured_tar(sort_scores(target, nontarget), far, rule).value


def verification_metrics(
    target: ArrayLike,
    nontarget: ArrayLike,
    *,
    p_targets: Sequence[float] = (0.01, 0.05),
    fars: Sequence[float] = (1e-1, 1e-2, 1e-3),
    tar_rule: TarRule = "strict",
) -> dict[str, Measured]:
    """All metrics with their thresholds on one sort.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.
        p_targets: Priors of a target trial, one minDCF at unit costs for each.
        fars: False accept rates, one TAR for each.
        tar_rule: As `rule` of `tar_at_far`.

    Returns:
        "eer" (interpolated), "min_dcf(0.01)" and "tar_at_far(0.001)" for each number, with their
        values and thresholds.

    Raises:
        LikenessError: As for the metrics.

    >>> found = verification_metrics([3.0, 1.0], [0.0, 2.0], p_targets=[0.5], fars=[0.5])
    >>> {name: round(value, 3) for name, (value, _) in found.items()}
    {'eer': 0.5, 'min_dcf(0.5)': 0.5, 'tar_at_far(0.5)': 1.0}
    """
    for far in fars:
        check_rate("far", far)
    s = sort_scores(target, nontarget)
    measured = {"eer": measured_eer(s)}
    measured |= {f"min_dcf({p:g})": measured_min_dcf(s, p) for p in p_targets}
    return measured | {f"tar_at_far({far:g})": measured_tar(s, far, tar_rule) for far in fars}


def _mean_bits(name: str, values: AnyFloats, sign: float) -> float:
    """Mean of log2(1 + exp(sign llr)), in float64 but in blocks: a float32 array is never widened
    as a whole.
    """
    _refuse_non_finite(name, values)
    step = 1 << 20
    total = sum(
        float(np.logaddexp(0.0, sign * values[i : i + step].astype(np.float64)).sum())
        for i in range(0, values.size, step)
    )
    return total / values.size / float(np.log(2))


def cllr(target_llr: ArrayLike, nontarget_llr: ArrayLike) -> float:
    """The cost of log-likelihood ratios (Bruemmer & du Preez 2006).

    Args:
        target_llr: (T,) log-likelihood ratios (natural logarithm) of target trials.
        nontarget_llr: (N,) those of nontarget trials.

    Returns:
        The cost in bits: 0 for perfect ratios, 1 for ratios of 0 throughout, and more for ratios
        that mislead.

    Raises:
        LikenessError: As for `sort_scores`.

    >>> cllr([0.0, 0.0], [0.0])
    1.0
    """
    target, nontarget = _classes(target_llr, nontarget_llr).values()
    return (_mean_bits("target", target, -1.0) + _mean_bits("nontarget", nontarget, 1.0)) / 2


def min_cllr(target: ArrayLike, nontarget: ArrayLike) -> float:
    """Cllr after the best monotone calibration of the scores: what discrimination alone costs.

    The calibration is by pooled adjacent violators; tied scores share one value.

    Args:
        target: (T,) scores of target trials.
        nontarget: (N,) scores of nontarget trials.

    Returns:
        The cost in bits.

    Raises:
        LikenessError: As for `sort_scores`.
    """
    from scipy.special import rel_entr  # slow to import, needed here only

    s = sort_scores(target, nontarget)
    misses, false_accepts = hull(s)
    # each pool's share of either class
    targets, nontargets = (
        np.diff(misses) / s.target.size,
        np.diff(false_accepts) / -s.nontarget.size,
    )
    both = targets + nontargets
    nats = -(rel_entr(targets, both) + rel_entr(nontargets, both)).sum()
    return float(nats / (2 * np.log(2)))
