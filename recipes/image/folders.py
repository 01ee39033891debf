"""A retrieval model from your own images, DATA/CLASS/**/*.jpg.

Images may be png, webp and others as well, two or more a class. The model is for classes that it
never saw.

    likeness train image/folders --data DATA --out runs/mine
    likeness train image/folders:resnet50 backbone.weights=resnet50.pth --data DATA --out runs/mine
        from a local ImageNet file
    likeness lists DATA --out OUT
        the item list of the held-out classes for `embed` and `retrieve`

DATA may also be a .csv, .tsv or .parquet file or a list, and `--label '{label}_*.jpg'` takes the
classes from the names of files.
A fifth of the classes, at least 2, are held out and retrieved from among themselves. A batch is 4
images each of 16 of the other classes, or of all of them if there are fewer.

`small` learns from nothing, on a CPU in minutes, and is a beginning for a few thousand plain images
(signs, glyphs, parts); for photographs take resnet50 with ImageNet weights and a GPU. No number of
it is in docs/reference/results.md: it depends on the data.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from likeness.backbones import ImageResNet, SFNet
from likeness.data import folders, images
from likeness.frontends import IMAGENET, PixelScale, crop_view
from likeness.losses import ArcFace
from likeness.recipe import Optim, Range, Recipe, Retrieval, Sampling, Schedule

SMALL = Recipe(
    modality="image",
    frontend=partial(PixelScale, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    backbone=partial(SFNet, dim=128, depth=10, width=16, image_size=64, batch_norm=True),
    loss=partial(ArcFace, margin=0.2, scale=16.0),
    items=partial(folders.items, modality="image", split="train"),
    measure=Retrieval(items=partial(folders.items, modality="image", split="test")),
    read=partial(images.read, size=(64, 64)),
    augment=partial(crop_view, size=64, scale=(0.5, 1.0), brightness=0.2, contrast=0.2),
    sampling=Sampling(batch_size=64, items_per_class=4),
    optim=Optim(name="adamw", lr=2e-3, weight_decay=1e-2),
    schedule=Schedule(steps=1000, warmup_steps=100, eval_every=200, higher_is_better=True),
)

RECIPES = {
    "small": SMALL,
    "resnet50": replace(
        SMALL,
        frontend=IMAGENET,
        backbone=partial(ImageResNet, dim=512, depth=50, batch_norm="frozen"),
        read=partial(images.read, short_edge=256, crop=224),
        train_read=partial(images.read, short_edge=256),
        augment=partial(crop_view, size=224, scale=(0.16, 1.0)),
        optim=Optim(name="adamw", lr=1e-4, weight_decay=1e-4),
        schedule=Schedule(steps=5000, warmup_steps=250, eval_every=500, higher_is_better=True),
    ),
}

# What `likeness compare --tune` searches on validation classes.
_ARCFACE = {"loss.margin": Range(0.05, 0.5), "loss.scale": Range(10.0, 64.0, log=True)}
RANGES = dict.fromkeys(RECIPES, _ARCFACE)
