"""What the recipes of this folder share: metrics by the column of which they are the mean, and the
retrieval of classes that nobody trained on.
"""

from __future__ import annotations

from functools import partial

from eval import per_item
from modalities.image import images
from modalities.image.transforms import REVISITING
from toolkit.data.pixels import IMAGENET
from toolkit.models.parts import Part
from toolkit.training.recipe import Compute, Recipe, Retrieval


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


def of_unseen(items: Part, ks: tuple[int, ...], *, backbone: Part, loss: Part) -> Recipe:
    """Half of the classes train, the others retrieve: views, test and metrics of Roth et al. 2020.

    Args:
        items: The data set, which takes `split`.
        ks: K of recall@K.
        backbone: For pixels as ImageNet's networks take them.
        loss: The loss.
    """
    recalls = (f"recall@{k}" for k in ks)
    return Recipe(
        modality="image",
        frontend=IMAGENET,
        backbone=backbone,
        loss=loss,
        items=partial(items, split="train"),
        read=partial(images.read, short_edge=256, crop=224),
        train_read=images.read,
        augment=REVISITING,
        compute=Compute(channels_last=True, workers=4),
        measure=Retrieval(
            items=partial(items, split="test"),
            ks=ks,
            clusters=True,
            metrics={**means(*recalls, "map@1000"), "nmi": per_item.mutual_information},
        ),
    )
