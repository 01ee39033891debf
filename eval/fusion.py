"""Fusion: the scores of several systems on the same trials become one log-likelihood ratio.

    llr = sum_k weight_k * score_k + sum_m quality_weight_m * quality_m + offset
        natural logarithm; fitted on one list, applied to others of the same systems

The weights are those of a logistic regression at a prior, as for the calibration of one system
(eval.calibration; Bruemmer et al. 2007, "Fusion of heterogeneous speaker recognition systems"). A
weight may be negative: a system can correct the error of another one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from eval.calibration import finite_columns, logistic
from eval.errors import LikenessError
from eval.formats.files import atomic_path, read_json
from eval.progress import step
from eval.types import Floats
from eval.verification import as_labels, check_costs

FORMAT = "likeness fusion 1"
_TUPLES = ("weights", "quality_weights", "systems", "names")


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

    def __post_init__(self) -> None:
        check_costs(self.p_target, 1, 1)
        numbers = (*self.weights, *self.quality_weights, self.offset)
        pairs = (self.weights, self.systems), (self.quality_weights, self.names)
        named = all(len(weights) == len(names) for weights, names in pairs)
        if len(self.weights) < 2 or not named or not all(map(math.isfinite, numbers)):
            raise LikenessError(
                f"fusion: {len(self.weights)} finite weights of {len(self.systems)} systems, and "
                f"{len(self.quality_weights)} of {len(self.names)} quality measures, cannot be; "
                "fuse at least 2 systems, with a weight for each"
            )

    def apply(self, scores: ArrayLike, quality: ArrayLike | None = None) -> Floats:
        """Returns the log-likelihood ratios (P,) of scores (P, K) and quality (P, M).

        Raises:
            LikenessError: Another number of systems or measures, or NaN.
        """
        values = finite_columns("scores", scores, len(np.asarray(scores)))
        measures = finite_columns("quality", quality, len(values))
        with np.errstate(over="ignore", invalid="ignore"):
            llrs: Floats = values @ np.array(self.weights) + self.offset
            llrs = llrs + measures @ np.array(self.quality_weights, dtype=np.float64)
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
    return read_json(
        Path(path),
        FORMAT,
        lambda fields: Fusion(**fields | {name: tuple(fields[name]) for name in _TUPLES}),
        "not a fusion ({error}); fit one with `likeness score --fuse ... --calibrate`",
    )


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
    values = finite_columns("scores", scores, len(np.asarray(scores)))
    labels = as_labels("fusion: target", target, len(values))
    check_costs(p_target, 1, 1)
    measures = finite_columns("quality", quality, len(values))
    columns = np.column_stack([values, measures])
    called = [f"the scores of system {number + 1}" for number in range(values.shape[1])]
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
