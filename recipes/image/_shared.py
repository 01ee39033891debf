"""What the recipes of this folder share: metrics by the column of which they are the mean, and the
retrieval of classes that nobody trained on, of photographs and of Omniglot's characters.
"""

from __future__ import annotations

from functools import partial

from likeness.backbones import SFNet
from likeness.data import images, small_sets
from likeness.frontends import IMAGENET, REVISITING, PixelScale, warp_view
from likeness.metrics import per_item
from likeness.recipe import Compute, Optim, Part, Recipe, Retrieval, Sampling, Schedule


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
            compat="rdml",
            metrics={
                **means(*recalls, "map@1000", "map@1000(rdml)"),
                "nmi": per_item.mutual_information,
            },
        ),
    )


def of_characters(loss: Part, *, gain: float = 1.0, proxy_lr_scale: float = 1.0) -> Recipe:
    """Characters of 20 alphabets of Omniglot train a small network, those of ten are retrieved.

    Args:
        loss: The loss.
        gain: By what the embeddings of the start are multiplied, for losses that see their norms.
        proxy_lr_scale: By what the learning rate of the class vectors is multiplied.
    """
    return Recipe(
        modality="image",
        frontend=partial(PixelScale),
        backbone=partial(
            SFNet, dim=128, depth=4, width=16, image_size=32, batch_norm=True, gain=gain
        ),
        loss=loss,
        items=partial(small_sets.omniglot_items, split="train"),
        measure=Retrieval(
            items=partial(small_sets.omniglot_items, split="test"),
            ks=(1, 5),
            metrics=means("recall@1", "map@r", "r_precision"),
        ),
        read=partial(small_sets.read, edge=32),
        augment=partial(warp_view, degrees=15.0, scale=(0.85, 1.15), shear=0.2, shift=0.08),
        sampling=Sampling(batch_size=128, items_per_class=4),
        optim=Optim(name="adamw", lr=5e-3, weight_decay=1e-2, proxy_lr_scale=proxy_lr_scale),
        schedule=Schedule(steps=1000, warmup_steps=100, save_every=500, higher_is_better=True),
        compute=Compute(threads=1, cache=True),
    )
