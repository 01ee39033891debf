"""Calibration: scores to log-likelihood ratios by logistic regression, with quality measures; and
what rejecting poor inputs would gain.

    llr = slope * score + sum_k weight_k * quality_k + offset
        natural logarithm; fitted on one list, applied to others of the same system

The fit minimises the prior-weighted cross-entropy (Bruemmer & du Preez 2006; at p_target = .5 it is
Cllr times log 2)

    p/T sum_targets log(1 + exp(-llr - logit p))
        +  (1-p)/N sum_nontargets log(1 + exp(llr + logit p))

so the share of targets in the list does not matter. The problem is convex; columns are standardised
inside, which makes the result equivariant: a shift or a scale of the scores changes slope and
offset and no LLR. Decide by llr >= log(c_fa (1-p) / (c_miss p)), see verification.actual_dcf.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from eval.errors import LikenessError
from eval.formats.files import atomic_path
from eval.json_files import read_json
from eval.progress import step
from eval.types import Bools, Floats
from eval.verification import as_labels, check_costs, eer

FORMAT = "likeness calibration 1"
_MAX_BYTES = 1 << 20
FRACTIONS = tuple(k / 20 for k in range(10))


@dataclass(frozen=True)
class Calibration:
    """A fitted map from score (and quality) to LLR.

    slope > 0, offset, weights (K,): see above. names (K,): of the quality measures. p_target: the
    prior of the fit. system: what gave the scores, in words; scores of another system need another
    calibration.
    """

    slope: float
    offset: float
    weights: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    p_target: float = 0.5
    system: str = ""

    def __post_init__(self) -> None:
        check_costs(self.p_target, 1, 1)
        finite = all(map(math.isfinite, (self.slope, self.offset, *self.weights)))
        if not finite or self.slope <= 0 or len(self.weights) != len(self.names):
            raise LikenessError(
                "calibration: numbers are not finite, the slope is not positive, or weights and "
                "names differ in number; fit it anew"
            )

    def apply(self, scores: ArrayLike, quality: ArrayLike | None = None) -> Floats:
        """(P,) LLRs of scores (P,) and quality (P, K), or (P,) if K = 1.

        LikenessError: shapes, NaN, quality given or missing against the fit.

        >>> Calibration(slope=2.0, offset=-1.0).apply([0.5, 1.0]).tolist()
        [0.0, 1.0]
        """
        values = finite_columns("scores", scores, np.size(scores))[:, 0]
        measures = finite_columns("quality", quality, values.size)
        if measures.shape[1] != len(self.weights):
            names = ", ".join(self.names) or "none"
            raise LikenessError(
                f"calibration: it was fitted with {len(self.weights)} quality measures ({names}), "
                f"but {measures.shape[1]} are given"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            llrs: Floats = (
                self.slope * values
                + measures @ np.array(self.weights, dtype=np.float64)
                + self.offset
            )
        if bad := np.count_nonzero(~np.isfinite(llrs)):
            raise LikenessError(
                f"calibration: {bad} of {llrs.size} log-likelihood ratios overflow with slope "
                f"{self.slope:g} and offset {self.offset:g}; fit a calibration on such scores"
            )
        return llrs

    def save(self, path: str | Path) -> None:
        """Write as JSON, whole or not at all."""
        with atomic_path(path) as temporary:
            temporary.write_text(
                json.dumps({"format": FORMAT, **asdict(self)}, indent=1), encoding="utf-8"
            )


def load_calibration(path: str | Path) -> Calibration:
    """Read what `Calibration.save` wrote. ValueError for anything else."""
    return read_json(
        Path(path),
        FORMAT,
        lambda fields: Calibration(
            **fields | {"weights": tuple(fields["weights"]), "names": tuple(fields["names"])}
        ),
        most=_MAX_BYTES,
        otherwise="not a calibration file ({error}); fit one with fit_calibration and "
        "Calibration.save",
    )


@step("fitting the calibration")
def fit_calibration(
    scores: ArrayLike,
    target: ArrayLike,
    *,
    quality: ArrayLike | None = None,
    names: Sequence[str] = (),
    p_target: float = 0.5,
    system: str = "",
) -> Calibration:
    """Fit on labelled trials. scores: (P,). target: (P,) bool. quality: (P, K) measures of the
    trials, or (P,); names: theirs. p_target: prior to be good at.

    Raises:
        LikenessError: A class is empty, there is NaN, shapes differ, scores or measures are
            constant, the scores separate the classes (no finite optimum), or they point the wrong
            way.
    """
    values = finite_columns("scores", scores, np.size(scores))[:, 0]
    measures = finite_columns("quality", quality, values.size)
    labels = as_labels("calibration: target", target, values.size)
    names = tuple(names) if names else tuple(f"quality{k}" for k in range(measures.shape[1]))
    check_costs(p_target, 1, 1)
    columns = np.column_stack([values, measures])
    weights, offset = logistic(columns, labels, ("scores", *names), p_target=p_target)
    if not weights[0] > 0:
        raise LikenessError(
            f"calibration: the fitted slope is {weights[0]:g}, but higher scores must mean more "
            "similar; are labels or scores inverted?"
        )
    return Calibration(
        float(weights[0]),
        offset,
        tuple(weights[1:].tolist()),
        names,
        float(p_target),
        system,
    )


def logistic(
    columns: Floats, labels: Bools, names: Sequence[str], *, p_target: float
) -> tuple[Floats, float]:
    """Fits the prior-weighted logistic regression of this module to columns.

    Args:
        columns: (P, K) what is summed, in float64.
        labels: (P,) which trials are target trials.
        names: (K,) of the columns, for messages.
        p_target: The prior of a target trial.

    Returns:
        The weights (K,) and the offset of the log-likelihood ratio.

    Raises:
        LikenessError: A column is constant, or the columns separate the classes, so that no finite
            optimum exists.
    """
    centre, spread = columns.mean(axis=0), columns.std(axis=0)
    constant = spread <= 1e-12 * np.abs(columns).max(axis=0)
    flat = [name for name, is_flat in zip(names, constant, strict=True) if is_flat]
    if flat:
        raise LikenessError(
            f"calibration: {', '.join(flat)} are the same for every trial and say nothing; leave "
            "such measures out"
        )
    standard = (columns - centre) / spread
    optimum = _minimise(standard, labels, p_target)
    along = standard @ optimum[:-1]
    if along[labels].min() >= along[~labels].max():  # then steeper is always better
        raise LikenessError(
            f"calibration: the {len(columns)} trials are separated without an error, so the slope "
            "has no finite optimum; fit on a larger list"
        )
    weights: Floats = optimum[:-1] / spread
    return weights, float(optimum[-1] - weights @ centre)


def _minimise(columns: Floats, labels: Bools, p_target: float) -> Floats:
    """Weights (K + 1,) of the standardised columns (P, K) and the offset last."""
    from scipy.optimize import minimize  # slow to import, needed here only
    from scipy.special import expit

    sign = np.where(labels, 1.0, -1.0)
    share = np.where(labels, p_target / labels.sum(), (1 - p_target) / (~labels).sum())
    logit = np.log(p_target / (1 - p_target))

    def cost(weights: Floats) -> tuple[float, Floats]:
        wrong = -sign * (columns @ weights[:-1] + (weights[-1] + logit))
        slope = -share * sign * expit(wrong)
        return float(share @ np.logaddexp(0, wrong)), np.append(slope @ columns, slope.sum())

    weights: Floats = minimize(
        cost,
        np.zeros(columns.shape[1] + 1),
        jac=True,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 1000},
    ).x
    return weights


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
    labels = as_labels("calibration: target", target, values.size)
    measure = finite_columns("quality", quality, values.size)
    shares = np.asarray(fractions, dtype=np.float64).reshape(-1)
    order = np.sort(measure[:, 0])
    thresholds = order[np.minimum((shares * values.size + 1e-9).astype(np.int64), values.size - 1)]
    kept = [measure[:, 0] >= threshold for threshold in thresholds]
    measured = [
        metric(values[chosen & labels], values[chosen & ~labels])
        if (chosen & labels).any() and (chosen & ~labels).any()
        else np.nan
        for chosen in kept
    ]
    return Curve(
        np.array([1 - chosen.mean() for chosen in kept]),
        thresholds,
        np.array(measured, dtype=np.float64),
    )


def by_side(enrol: ArrayLike, probe: ArrayLike, i: ArrayLike, j: ArrayLike) -> Floats:
    """(P, 2): the lower and the higher of each trial's two sides, so that swapping the sides
    changes nothing. enrol: (N,), probe: (M,); i, j: (P,) into them.

    >>> by_side([1.0, 5.0], [3.0], [0, 1], [0, 0]).tolist()
    [[1.0, 3.0], [3.0, 5.0]]
    """
    sides = (
        np.asarray(enrol, dtype=np.float64)[np.asarray(i)],
        np.asarray(probe, dtype=np.float64)[np.asarray(j)],
    )
    return np.stack([np.minimum(*sides), np.maximum(*sides)], axis=1)


def log_measure(name: str, values: ArrayLike) -> Floats:
    """(N,) logarithms of a positive measure (norm, seconds of speech).

    ValueError if some are zero, negative or NaN: all counted.
    """
    numbers = np.asarray(values, dtype=np.float64)
    bad = np.count_nonzero(~(np.isfinite(numbers) & (numbers > 0)))
    if bad:
        raise LikenessError(
            f"calibration: {bad} of {numbers.size} values of {name} are zero, negative or no "
            "numbers and have no logarithm; remove these items"
        )
    logs: Floats = np.log(numbers)
    return logs


def finite_columns(what: str, values: ArrayLike | None, size: int) -> Floats:
    """(P, K) measures of P trials, of (P, K) or (P,) numbers; (P, 0) for None."""
    columns = np.zeros((size, 0)) if values is None else np.asarray(values, dtype=np.float64)
    columns = columns[:, None] if columns.ndim == 1 else columns
    if columns.ndim != 2 or len(columns) != size or not np.isfinite(columns).all():
        raise LikenessError(
            f"{what}: shape {columns.shape}, or NaN or infinite; give ({size}, K) finite numbers"
        )
    return columns
