"""What the recipes of this folder share: metrics by the column of which they are the mean."""

from __future__ import annotations

from functools import partial

from eval import per_item
from toolkit.models.parts import Part


def means(*columns: str) -> dict[str, Part]:
    """Metrics that are the mean over all test images of a column of the same name."""
    return {name: partial(per_item.mean, column=name) for name in columns}


# Of classification. "scaled": after the temperature that calibrate_on fits.
CALIBRATION: dict[str, Part] = {
    "accuracy": partial(per_item.mean, column="correct"),
    "ece": per_item.calibration_error,
    "ece_scaled": partial(per_item.calibration_error, confidence="scaled_confidence"),
    "auroc": per_item.norm_auroc,  # of the norm as a sign of right answers
}
