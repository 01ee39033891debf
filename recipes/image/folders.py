"""Anyone's own images: from DATA/CLASS/*.jpg to a retrieval model for classes that it never saw.

    likeness train recipes/image/folders.py --data DATA --out runs/mine
    likeness train recipes/image/folders.py:resnet50 backbone.weights=resnet50.pth --data DATA --out runs/mine        from a local ImageNet file

A fifth of the classes are held out and retrieved from among themselves. `small` learns from nothing, on a CPU in minutes, and is a beginning for a few thousand
plain images (signs, glyphs, parts); for photographs take resnet50 with ImageNet weights and a GPU. No number of it is in docs/results.md: it depends on the
data.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from eval import per_item
from modalities.image import folders, images
from modalities.image.pixels import PixelScale
from modalities.image.transforms import crop_view
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.backbones.sfnet import SFNet
from toolkit.losses.margin import ArcFace
from toolkit.measure import retrieval
from toolkit.recipe import Optim, Recipe, Schedule
from toolkit.sampling import Sampling

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

SMALL = Recipe(
    modality="image",
    frontend=partial(PixelScale, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    backbone=partial(SFNet, dim=128, depth=10, width=16, image_size=64, batch_norm=True),
    loss=partial(ArcFace, margin=0.2, scale=16.0),
    items=partial(folders.items, split="train"),
    test=partial(retrieval, items=partial(folders.items, split="test")),
    read=partial(images.read, size=(64, 64)),
    augment=partial(crop_view, size=64, scale=(0.5, 1.0), brightness=0.2, contrast=0.2),
    metrics={
        "recall@1": partial(per_item.mean, column="recall@1"),
        "map@r": partial(per_item.mean, column="map@r"),
    },
    sampling=Sampling(batch_size=64, items_per_class=4),
    optim=Optim(name="adamw", lr=2e-3, weight_decay=1e-2),
    schedule=Schedule(steps=1000, warmup_steps=100, eval_every=200, higher_is_better=True),
)

RECIPES = {
    "small": SMALL,
    "resnet50": replace(
        SMALL,
        frontend=partial(PixelScale, **IMAGENET),
        backbone=partial(ImageResNet, dim=512, depth=50, batch_norm="frozen"),
        read=partial(images.read, short_edge=256, crop=224),
        train_read=partial(images.read, short_edge=256),
        augment=partial(crop_view, size=224, scale=(0.16, 1.0)),
        optim=Optim(name="adamw", lr=1e-4, weight_decay=1e-4),
        schedule=Schedule(steps=5000, warmup_steps=250, eval_every=500, higher_is_better=True),
    ),
}
