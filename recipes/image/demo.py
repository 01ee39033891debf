"""The demo: are two images of the same digit? A small network, in a minute.

    likeness demo --only image --out demo

Real and offline: scikit-learn's 1,797 handwritten digits of 8 x 8. Three quarters of the images
train, the others test: the classes are known, the images are not. A small convolutional network
trained with ArcFace is set against the cosine of the pixels. The lines printed at the end redo each
step by hand. For classes that were never trained on, see image/digits:open.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from likeness.backbones import SmallCNN
from likeness.data import Item, images, small_sets
from likeness.frontends import PixelScale, warp_view
from likeness.losses import ArcFace
from likeness.metrics import per_item
from likeness.recipe import Classification, Compute, Optim, Recipe, Sampling, Schedule
from likeness.training import demo

SIZE = 16

RECIPES = {
    "arcface": Recipe(
        modality="image",
        frontend=partial(PixelScale),
        backbone=partial(SmallCNN, dim=32, image_size=SIZE),
        loss=partial(ArcFace, margin=0.2, scale=16.0),
        items=partial(small_sets.digits_items, split="train", files=True),
        measure=Classification(
            items=partial(small_sets.digits_items, split="test", files=True),
            metrics={"accuracy": partial(per_item.mean, column="correct")},
        ),
        read=partial(images.read, size=(SIZE, SIZE), grey=True),
        augment=partial(warp_view, degrees=12.0, scale=(0.85, 1.15), shear=0.15, shift=0.08),
        sampling=Sampling(batch_size=80, items_per_class=8),
        optim=Optim(name="adamw", lr=3e-3, weight_decay=1e-2),
        schedule=Schedule(steps=300, warmup_steps=30, save_every=150, higher_is_better=True),
        compute=Compute(threads=1, cache=True),
    )
}


def baseline(items: list[Item]) -> np.ndarray:
    """The pixels that the network sees."""
    rows = [images.read(item, size=(SIZE, SIZE), grey=True).ravel() for item in items]
    return np.stack(rows) / 255


def main(out: Path) -> None:
    """Write the digits as files, train, embed, score, evaluate, report; all files stay in `out`."""
    demo.run(
        RECIPES["arcface"],
        trials=small_sets.digits_trials,
        write=small_sets.write_digits,
        contents="1,797 handwritten digits",
        baseline=("pixels", baseline),
        out=out,
        own_data="train image/folders --data DATA --out runs/mine      DATA/CLASS/*.jpg",
    )
