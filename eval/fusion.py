"""Fusion: the scores of several systems on the same trials become one log-likelihood ratio.

    llr = sum_k weight_k * score_k + sum_m quality_weight_m * quality_m + offset
        natural logarithm; fitted on one list, applied to others of the same systems

The weights are those of a logistic regression at a prior, as for the calibration of one system
(eval.calibration; Bruemmer et al. 2007, "Fusion of heterogeneous speaker recognition systems"). A
weight may be negative: a system can correct the error of another one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from eval.calibration import logistic
from eval.errors import LikenessError
from eval.formats.files import atomic_path, bounded
from eval.progress import step
from eval.types import Floats
from eval.verification import as_labels, check_costs

FORMAT = "likeness fusion 1"
MAX_SYSTEMS = 100
_MAX_BYTES = 1 << 20
_TEXTS = ("systems", "names")
_NUMBERS = ("weights", "quality_weights")


@dataclass(frozen=True)
class Fusion:
    """A fitted sum of the scores of several systems.

    Attributes:
        weights: (K,) of the systems.
        offset: What is added.
        systems: (K,) what gave the scores, in words; "" where nobody knows. Scores of other systems
            need another fusion.
        quality_weights: (M,) of the quality measures.
        names: (M,) of the quality measures.
        p_target: The prior of the fit.

    Example:
        >>> Fusion((1.0, 2.0), -1.0, ("a", "b")).apply([[0.5, 0.25], [1.0, 1.0]]).tolist()
        [0.0, 2.0]
    """

    weights: tuple[float, ...]
    offset: float
    systems: tuple[str, ...]
    quality_weights: tuple[float, ...] = ()
    names: tuple[str, ...] = ()
    p_target: float = 0.5

    def apply(self, scores: ArrayLike, quality: ArrayLike | None = None) -> Floats:
        """Returns the log-likelihood ratios (P,) of scores (P, K) and quality (P, M).

        Raises:
            LikenessError: Another number of systems or measures, or NaN.
        """
        values = _matrix("scores", scores, len(self.weights))
        measures = np.zeros((len(values), 0)) if quality is None else quality
        checked = _matrix("quality", measures, len(self.quality_weights))
        if len(checked) != len(values):
            raise LikenessError(f"fusion: {len(values)} scores, but {len(checked)} rows of quality")
        with np.errstate(over="ignore", invalid="ignore"):
            llrs: Floats = values @ np.array(self.weights) + self.offset
            llrs = llrs + checked @ np.array(self.quality_weights, dtype=np.float64)
        if bad := np.count_nonzero(~np.isfinite(llrs)):
            raise LikenessError(
                f"fusion: {bad} of {llrs.size} log-likelihood ratios overflow; fit a fusion on "
                "such scores"
            )
        return llrs

    def save(self, path: str | Path) -> None:
        """Writes the fusion as JSON, whole or not at all."""
        with atomic_path(path) as temporary:
            document = {"format": FORMAT, **asdict(self)}
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def load_fusion(path: str | Path) -> Fusion:
    """Reads what `Fusion.save` wrote.

    Raises:
        LikenessError: The file is something else.
    """
    path = Path(path)
    try:
        fields = json.loads(bounded(path, _MAX_BYTES).decode())
        if not isinstance(fields, dict) or fields.pop("format", None) != FORMAT:
            raise LikenessError(f"its format is not {FORMAT!r}")
        made = Fusion(**fields | {name: tuple(fields[name]) for name in (*_NUMBERS, *_TEXTS)})
        numbers = (*made.weights, *made.quality_weights, made.offset, made.p_target)
        if not all(type(number) in (int, float) and np.isfinite(number) for number in numbers):
            raise LikenessError("its numbers are not finite")
        if not all(isinstance(text, str) for text in (*made.systems, *made.names)):
            raise LikenessError("systems and names must be texts")
        lengths = len(made.weights), len(made.systems), len(made.quality_weights), len(made.names)
        if lengths[0] != lengths[1] or lengths[2] != lengths[3]:
            raise LikenessError("weights and the names of what they weigh differ in number")
        if not 2 <= lengths[0] <= MAX_SYSTEMS:
            raise LikenessError(f"it has {lengths[0]} systems; 2 to {MAX_SYSTEMS} are fused")
        check_costs(made.p_target, 1, 1)
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise LikenessError(
            f"{path}: not a fusion ({error}); fit one with `likeness score --fuse ... --calibrate`"
        ) from None
    return made


@step("fitting the fusion")
def fit_fusion(
    scores: ArrayLike,
    target: ArrayLike,
    *,
    systems: Sequence[str],
    quality: ArrayLike | None = None,
    names: Sequence[str] = (),
    p_target: float = 0.5,
) -> Fusion:
    """Fits a fusion on labelled trials.

    Args:
        scores: (P, K), a column for each system.
        target: (P,) which trials are target trials.
        systems: (K,) what gave the scores, in words; "" where nobody knows.
        quality: (P, M) measures of the trials.
        names: (M,) of the measures.
        p_target: The prior of a target trial at which the result is to be good.

    Raises:
        LikenessError: Shapes, NaN, a class without trials, fewer than two systems, columns that are
            constant, or scores that separate the classes.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> target = np.arange(200) % 2 == 0
        >>> scores = target[:, None] + rng.standard_normal((200, 2))
        >>> fitted = fit_fusion(scores, target, systems=("a", "b"))
        >>> [round(weight, 1) for weight in fitted.weights]
        [1.1, 0.8]
    """
    values = _matrix("scores", scores, len(systems))
    if not 2 <= len(systems) <= MAX_SYSTEMS:
        raise LikenessError(
            f"fusion: {len(systems)} systems; 2 to {MAX_SYSTEMS} score files can be fused"
        )
    labels = as_labels("fusion: target", target, len(values))
    check_costs(p_target, 1, 1)
    measures = _matrix("quality", np.zeros((len(values), 0)) if quality is None else quality, None)
    if measures.shape[1] != len(names):
        raise LikenessError(f"fusion: {len(names)} names for {measures.shape[1]} quality measures")
    columns = np.column_stack([values, measures])
    called = [f"the scores of system {number + 1}" for number in range(len(systems))]
    weights, offset = logistic(columns, labels, (*called, *names), p_target=p_target)
    fitted = tuple(weights.tolist())
    return Fusion(
        fitted[: len(systems)],
        offset,
        tuple(systems),
        fitted[len(systems) :],
        tuple(names),
        float(p_target),
    )


def _matrix(what: str, values: ArrayLike, num_columns: int | None) -> Floats:
    """(P, K) finite numbers."""
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or (num_columns is not None and matrix.shape[1] != num_columns):
        expected = "K" if num_columns is None else num_columns
        raise LikenessError(
            f"fusion: {what} must be (P, {expected}), but the shape is {matrix.shape}"
        )
    if bad := np.count_nonzero(~np.isfinite(matrix)):
        raise LikenessError(f"fusion: {bad} of {matrix.size} numbers of {what} are NaN or infinite")
    return matrix
