"""Calibration and fusion: scores of one or several systems to log-likelihood ratios by logistic
regression, with quality measures; and what rejecting poor inputs would gain.

    llr = sum_k weight_k * score_k + sum_m quality_weight_m * quality_m + offset
        natural logarithm; fitted on one list, applied to others of the same systems; a calibration
        is the fusion of one system

The fit minimises the prior-weighted cross-entropy (Bruemmer & du Preez 2006; at p_target = .5 it is
Cllr times log 2)

    p/T sum_targets log(1 + exp(-llr - logit p))
        +  (1-p)/N sum_nontargets log(1 + exp(llr + logit p))

so the share of targets in the list does not matter. The problem is convex; columns are standardised
inside, which makes the result equivariant: a shift or a scale of the scores changes weights and
offset and no LLR. Decide by llr >= log(c_fa (1-p) / (c_miss p)), see verification.actual_dcf.

In a fusion (Bruemmer et al. 2007, "Fusion of heterogeneous speaker recognition systems") a weight
may be negative: a system can correct the error of another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import read_json
from likeness.eval.metrics.verification import check_costs, eer
from likeness.eval.progress import step
from likeness.eval.types import Bools, Floats, boolean_labels
from likeness.eval.writing import write_json

FORMAT = "likeness fusion 1"
_MOST = 1e30  # of a weight, so that sums stay finite, in float32 too
_HELD_BACK = 1e-3  # see _logistic
FRACTIONS = tuple(k / 20 for k in range(10))


@dataclass(frozen=True)
class Fusion:
    """A fitted sum of the scores of several systems, or the calibration of one.

    Attributes:
        weights: (K,) of the systems.
        offset: What is added.
        systems: (K,) what gave the scores, in words; "" where nobody knows. Scores of other systems
            need another fusion.
        quality_weights: (M,) of the quality measures.
        names: (M,) of the quality measures.
        p_target: The prior of the fit.
        knots: (K, N) scores at which the log-likelihood ratio of each system by itself is known;
            none for a sum of scores alone. There are then 2 K weights, of the scores and of these
            ratios, between which lines run.
        ratios: (K, N) these log-likelihood ratios, which never fall.
        neutral: (K,) scores that say nothing. A score that is NaN is missing, and counts as these.
        against_spoofs: What tells targets from spoofs, while the rest tells them from nontargets;
            None where no spoofs were fitted. The result is then the ratio of a target to a
            nontarget or spoof, each as likely as the other.

    Example:
        >>> Fusion((1.0, 2.0), -1.0, ("a", "b")).apply([[0.5, 0.25], [1.0, 1.0]]).tolist()
        [0.0, 2.0]
        >>> Fusion((2.0,), -1.0).apply([0.5, 1.0]).tolist()
        [0.0, 1.0]
    """

    weights: tuple[float, ...]
    offset: float
    systems: tuple[str, ...] = ("",)
    quality_weights: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    p_target: float = 0.5
    knots: tuple[Sequence[float], ...] = ()
    ratios: tuple[Sequence[float], ...] = ()
    neutral: tuple[float, ...] = ()
    against_spoofs: Fusion | None = None

    def __post_init__(self) -> None:
        check_costs(self.p_target, 1, 1)
        if isinstance(self.against_spoofs, dict):  # of a file
            object.__setattr__(self, "against_spoofs", Fusion(**self.against_spoofs))
        numbers = (*self.weights, *self.quality_weights, self.offset)
        systems = (*self.systems, *self.systems[: len(self.knots)])
        pairs = (self.weights, systems), (self.quality_weights, self.names)
        named = all(len(weights) == len(names) for weights, names in pairs)
        if not self.weights or not named or not all(abs(each) < _MOST for each in numbers):
            num = len(self.systems)
            raise LikenessError(f"fusion: its weights do not fit {num} systems; fit it anew")

    def apply(self, scores: ArrayLike, quality: ArrayLike | None = None) -> Floats:
        """Returns the log-likelihood ratios (P,) of scores (P, K) and quality (P, M); (P,) for one.

        Raises:
            LikenessError: Another number of systems or measures, or NaN.
        """
        values = self.features(scores)
        values = finite_columns("scores", values, len(values))
        measures = finite_columns("quality", quality, len(values))
        if (values.shape[1], measures.shape[1]) != (len(self.weights), len(self.names)):
            needed = f"{len(self.weights)} scores and {len(self.names)} measures of each trial"
            raise LikenessError(f"fusion: shapes {values.shape}, {measures.shape}; give {needed}")
        llrs: Floats = values @ self.weights + measures @ self.quality_weights + self.offset
        if self.against_spoofs is None:
            return llrs
        either: Floats = np.logaddexp(-llrs, -self.against_spoofs.apply(scores, quality))
        return float(np.log(2)) - either

    def is_of(self, systems: Sequence[str]) -> bool:
        """Whether these systems, in this order, may have given the scores of the fit."""
        pairs = zip(self.systems, systems, strict=False)
        return len(self.systems) == len(systems) and all(of in ("", own) for of, own in pairs)

    def mismatch(self, systems: Sequence[str]) -> str:
        """That scores of these systems are others than those of the fit, in words."""
        fitted, others = (
            " and ".join(of or "an unknown model" for of in each)
            for each in ((*self.systems, *self.names), systems)
        )
        return f"is for other scores: it was fitted for scores of {fitted}; these are of {others}"

    def features(self, scores: ArrayLike) -> Floats:
        """(P, K) the scores, or (P, 2 K) with the log-likelihood ratio of each by itself."""
        values = np.asarray(scores, dtype=np.float64)
        if not self.knots:
            return values
        filled = np.where(np.isnan(values), self.neutral, values)
        alone = [np.interp(*of) for of in zip(filled.T, self.knots, self.ratios, strict=True)]
        return np.column_stack([filled, *alone])

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        write_json(path, {"format": FORMAT, **asdict(self)})


def load_fusion(path: str | Path) -> Fusion:
    """Read what `Fusion.save` wrote: a fusion, or the calibration of one system.

    Raises:
        LikenessError: It is no such file, or damaged.
    """

    def made(fields: dict[str, Any]) -> Fusion:
        for name in [name for name, value in fields.items() if isinstance(value, list)]:
            fields[name] = tuple(fields[name])
        fusion = Fusion(**fields)
        # one trial, so that fields of other shapes are refused here
        fusion.apply(np.zeros((1, len(fusion.systems))), np.zeros((1, len(fusion.names))))
        return fusion

    otherwise = "no calibration and no fusion ({error}); make one with `likeness fit`"
    return read_json(Path(path), FORMAT, made, otherwise)


@step("fitting the fusion")
def fit_fusion(
    scores: ArrayLike,
    target: ArrayLike,
    *,
    systems: Sequence[str] = ("",),
    quality: ArrayLike | None = None,
    names: Sequence[str] = (),
    p_target: float = 0.5,
) -> Fusion:
    """Fits a fusion of several systems, or the calibration of one, on labelled trials.

    Args:
        scores: (P, K), a column for each system; (P,) for one.
        target: (P,) which trials are target trials.
        systems: (K,) what gave the scores, in words; "" where nobody knows.
        quality: (P, M) measures of the trials.
        names: (M,) of the measures.
        p_target: The prior of a target trial at which the result is to be good.

    Raises:
        LikenessError: Shapes, NaN, a class without trials, columns that are constant, scores that
            separate the classes, or those of one system that point the wrong way.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> target = np.arange(200) % 2 == 0
        >>> scores = target[:, None] + rng.standard_normal((200, 2))
        >>> fitted = fit_fusion(scores, target, systems=("a", "b"))
        >>> [round(weight, 1) for weight in fitted.weights]
        [1.1, 0.8]
    """
    values = finite_columns("scores", scores, len(np.asarray(scores)))
    labels = _labels(target, len(values))
    check_costs(p_target, 1, 1)
    called = [f"the scores of system {number + 1}" for number in range(values.shape[1])]
    columns = np.column_stack([values, finite_columns("quality", quality, len(values))])
    constant = columns.std(axis=0) <= 1e-12 * np.abs(columns).max(axis=0)
    flat = [name for name, same in zip([*called, *names], constant, strict=False) if same]
    if flat:
        raise LikenessError(f"calibration: {', '.join(flat)} never vary; leave them out")
    weights, offset = _logistic(columns, labels, p_target)
    along = columns @ weights
    if along[labels].min() >= along[~labels].max():  # then steeper is always better
        problem = f"{len(columns)} trials are separated without an error"
        raise LikenessError(f"calibration: {problem}; take a larger list")
    if values.shape[1] == 1 and not weights[0] > 0:
        raise LikenessError(f"calibration: the weight is {weights[0]:g}; are scores inverted?")
    own, of_quality = np.split(weights, [len(systems)])
    fitted = tuple(own.tolist()), offset, tuple(systems), tuple(of_quality.tolist())
    return Fusion(*fitted, tuple(names), float(p_target))


@step("fitting the fusion")
def fit_ratio_fusion(
    scores: ArrayLike,
    target: ArrayLike,
    *,
    systems: Sequence[str],
    spoof: ArrayLike | None = None,
    p_target: float = 0.01,
) -> Fusion:
    """Fits a fusion by likelihood ratios, which need not be a sum of scores.

    The ratio of each system by itself follows from kernel densities of its scores of both classes,
    made monotone. Scores and ratios are weighed by a logistic regression whose weights are held
    back a little, so that trials may also be separated. With spoofs it is the ratio of a target to
    either of the two others, each told apart by a fusion of its own.

    Args:
        scores: (P, K), a column for each system; NaN where a system has no score.
        target: (P,) which trials are target trials.
        systems: (K,) what gave the scores, in words; "" where nobody knows.
        spoof: (P,) which of the others imitate the target; None for none.
        p_target: The prior at which it is to be good. A low one is for low false-accept rates. With
            spoofs it is .5.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> target = np.arange(400) % 2 == 0
        >>> scores = target[:, None] + rng.standard_normal((400, 2))
        >>> fitted = fit_ratio_fusion(scores, target, systems=("a", "b"))
        >>> low, both, one = fitted.apply([[-1, -1], [2, 2], [2, np.nan]]).tolist()
        >>> low < 0 < one < both
        True
    """
    values, labels = np.asarray(scores, dtype=np.float64), _labels(target, np.size(target))
    if spoof is not None:
        attacks = np.asarray(spoof)
        first, second = (
            fit_ratio_fusion(values[kept], labels[kept], systems=systems, p_target=0.5)
            for kept in (~attacks, labels | attacks)
        )
        return replace(first, against_spoofs=second)
    maps = [_ratios(of[labels & ~np.isnan(of)], of[~labels & ~np.isnan(of)]) for of in values.T]
    zeros, (knots, ratios, neutral) = (0.0,) * 2 * len(maps), zip(*maps, strict=True)
    made = Fusion(zeros, 0.0, tuple(systems), (), (), p_target, knots, ratios, neutral)
    columns = made.features(values)
    weights, offset = _logistic(columns, labels, p_target, _HELD_BACK)
    return replace(made, weights=tuple(weights.tolist()), offset=offset)


def _ratios(target: Floats, nontarget: Floats) -> tuple[list[float], list[float], float]:
    """Scores, the log-likelihood ratios there by kernel densities, made monotone, and the score
    between the medians of both classes whose ratio is nearest to 0.
    """
    from scipy.ndimage import gaussian_filter1d  # slow to import, needed here only
    from scipy.optimize import isotonic_regression

    pooled = np.concatenate([target, nontarget])
    low, high = pooled.min(), pooled.max()
    if low == high:
        raise LikenessError(f"all scores of a system are {low:g}; leave it out of the fusion")
    edges = np.linspace(low - 0.1 * (high - low), high + 0.1 * (high - low), 513)
    densities = []
    for of in (target, nontarget):
        quarter = np.subtract(*np.quantile(of, [0.75, 0.25])) / 1.34
        width = 0.9 * min(of.std(), quarter or of.std()) * of.size**-0.2  # Silverman's rule
        bins = max(width / (edges[1] - edges[0]), 0.5)
        share = np.histogram(of, edges)[0] / of.size
        # as if one score more lay in reach of each bin: few scores show no large ratio
        densities.append(gaussian_filter1d(share, bins, truncate=8.0) + 0.4 / (of.size * bins))
    llrs = np.log(densities[0] / densities[1])
    rising = isotonic_regression(llrs, weights=densities[0] + densities[1]).x
    knots = (edges[1:] + edges[:-1]) / 2
    between = (knots - np.median(nontarget)) * (knots - np.median(target)) <= 0
    neutral = float(knots[np.argmin(np.where(between, np.abs(rising), np.inf))])
    return knots.tolist(), rising.tolist(), neutral


def _logistic(
    columns: Floats, labels: Bools, p_target: float, held_back: float = 0.0
) -> tuple[Floats, float]:
    """Fits the prior-weighted logistic regression of this module.

    Args:
        columns: (P, K) scores and measures.
        labels: (P,) which trials are target trials.
        p_target: The prior of a target trial.
        held_back: What the half square of a weight of the standardised columns costs, as a share of
            the cost without scores.

    Returns:
        The weights (K,) and the offset of the log-likelihood ratio.
    """
    from scipy.optimize import minimize  # slow to import, needed here only
    from scipy.special import expit

    centre, spread = columns.mean(axis=0), np.maximum(columns.std(axis=0), 1e-12)
    standard = (columns - centre) / spread
    sign = np.where(labels, 1.0, -1.0)
    share = np.where(labels, p_target / labels.sum(), (1 - p_target) / (~labels).sum())
    logit = np.log(p_target / (1 - p_target))

    def cost(weights: Floats) -> tuple[float, Floats]:
        wrong = -sign * (standard @ weights[:-1] + (weights[-1] + logit))
        slope = -share * sign * expit(wrong)
        penalty = held_back * min(p_target, 1 - p_target) * np.append(weights[:-1], 0)
        cost = float(share @ np.logaddexp(0, wrong) + penalty @ weights / 2)
        return cost, np.append(slope @ standard, slope.sum()) + penalty

    solution = minimize(
        cost,
        np.zeros(standard.shape[1] + 1),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 1000},
    )
    weights: Floats = solution.x[:-1] / spread
    return weights, float(solution.x[-1] - weights @ centre)


class Curve(NamedTuple):
    """(F,) shares of trials really rejected; the quality a trial needs to be kept; the metric of
    the kept trials, NaN where a class has none left.
    """

    rejected: Floats
    thresholds: Floats
    values: Floats


def error_versus_reject(
    scores: ArrayLike,
    target: ArrayLike,
    quality: ArrayLike,
    *,
    metric: Callable[[Any, Any], float] = eer,
    fractions: ArrayLike = FRACTIONS,
) -> Curve:
    """The metric after rejecting the trials of lowest quality (Grother & Tabassi 2007): it falls if
    the quality is worth its name.

    scores, target, quality: (P,); as quality of a trial take the lower norm of its two sides,
    `by_side(...)[:, 0]`. metric(target, nontarget) -> number.
    fractions: (F,) in [0, 1); of trials with equal quality at the limit all are kept, so row order
    does not matter. LikenessError: shapes, NaN, an empty class.

    >>> scores, labels = [3.0, 0.0, 1.0, 2.0], [True, True, False, False]
    >>> curve = error_versus_reject(scores, labels, [9.0, 1.0, 9.0, 1.0], fractions=[0, 0.5])
    >>> curve.values.tolist()
    [0.5, 0.0]
    """
    values = finite_columns("scores", scores, np.size(scores))[:, 0]
    labels = _labels(target, values.size)
    measure = finite_columns("quality", quality, values.size)
    shares = np.asarray(fractions, dtype=np.float64).reshape(-1)
    measure = measure[:, 0]
    places = np.minimum((shares * values.size + 1e-9).astype(np.int64), values.size - 1)
    thresholds = np.sort(measure)[places]
    rejected, measured = [], []
    for threshold in thresholds:
        kept = measure >= threshold
        sides = values[kept & labels], values[kept & ~labels]
        measured.append(metric(*sides) if all(side.size for side in sides) else np.nan)
        rejected.append(1 - kept.mean())
    return Curve(np.array(rejected), thresholds, np.array(measured, dtype=np.float64))


def by_side(enrol: ArrayLike, probe: ArrayLike, i: ArrayLike, j: ArrayLike) -> Floats:
    """(P, 2): the lower and the higher of each trial's two sides, so that swapping the sides
    changes nothing. enrol: (N,), probe: (M,); i, j: (P,) into them.

    >>> by_side([1.0, 5.0], [3.0], [0, 1], [0, 0]).tolist()
    [[1.0, 3.0], [3.0, 5.0]]
    """
    first = np.asarray(enrol, dtype=np.float64)[np.asarray(i)]
    second = np.asarray(probe, dtype=np.float64)[np.asarray(j)]
    sides = first, second
    return np.stack([np.minimum(*sides), np.maximum(*sides)], axis=1)


def log_measure(name: str, values: ArrayLike) -> Floats:
    """(N,) logarithms of a positive measure (norm, seconds of speech).

    ValueError if some are zero, negative or NaN: all counted.
    """
    numbers = np.asarray(values, dtype=np.float64)
    bad = np.count_nonzero(~(np.isfinite(numbers) & (numbers > 0)))
    if bad:
        count = f"{bad} of {numbers.size} values of {name}"
        raise LikenessError(f"calibration: {count} are not above 0; correct them")
    return np.log(numbers)


def _labels(target: ArrayLike, size: int) -> Bools:
    """(P,) True for a target trial, of booleans or 1 and 0; both kinds have to be there."""
    labels = boolean_labels("calibration: target", target)
    if labels.shape != (size,):
        raise LikenessError(f"calibration: labels {labels.shape} for {size} trials; give ({size},)")
    if labels.all() or not labels.any():
        num = int(labels.sum())
        raise LikenessError(f"calibration: {num} of {size} trials are targets; give both kinds")
    return labels


def finite_columns(what: str, values: ArrayLike | None, size: int) -> Floats:
    """(P, K) measures of P trials, of (P, K) or (P,) numbers; (P, 0) for None."""
    columns = np.zeros((size, 0)) if values is None else np.asarray(values, dtype=np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    if columns.ndim != 2 or len(columns) != size or not np.isfinite(columns).all():
        raise LikenessError(f"{what}: shape {columns.shape}; give ({size}, K) finite numbers")
    return columns
