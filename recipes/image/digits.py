"""scikit-learn's 1,797 handwritten digits of 8 x 8: real, offline and quick.

Closed set (who of ten?) and open set (unseen digits 6 to 9).

    likeness train image/digits:vmf --out runs/digits
    likeness compare image/digits --variants standard,cosine,vmf --seeds 3 --out runs/digits-compare
    likeness train image/digits:open --out runs/digits-open

Seconds a run on one CPU core. Closed: a quarter of each class tests; accuracy, calibration and the
AUROC of the norm as in image/vmf; 15 % of the rest validate and fit the temperature. Open: 0 to 5
train, retrieval among 6 to 9. It is a table to try things on and no benchmark, hence not in
docs/reference/results.md: 450 test images tell apart accuracies two points apart.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from _shared import CALIBRATION, means

from likeness.backbones import SmallCNN
from likeness.data import small_sets
from likeness.frontends import PixelScale, warp_view
from likeness.losses import VMF, ArcFace, Cosine, Softmax
from likeness.recipe import Classification, Compute, Optim, Recipe, Retrieval, Sampling, Schedule

SIZE = 16
_VALIDATION = partial(small_sets.digits_items, split="validation", validation_share=0.15)

BASE = Recipe(
    modality="image",
    frontend=partial(PixelScale),
    backbone=partial(SmallCNN, dim=8, image_size=SIZE),
    loss=Softmax,
    items=partial(small_sets.digits_items, split="train", validation_share=0.15),
    measure=Classification(
        items=partial(small_sets.digits_items, split="test"),
        calibrate_on=_VALIDATION,
        validation=Classification(items=_VALIDATION, calibrate_on=_VALIDATION),
        metrics=CALIBRATION,
    ),
    read=partial(small_sets.read, edge=SIZE, takes_files=False),
    augment=partial(warp_view, degrees=12.0, scale=(0.85, 1.15), shear=0.15, shift=0.08),
    sampling=Sampling(batch_size=100, items_per_class=10),
    optim=Optim(name="adamw", lr=3e-3, weight_decay=1e-2),
    schedule=Schedule(steps=300, warmup_steps=30, save_every=150, higher_is_better=True),
    compute=Compute(threads=1, cache=True),
)

RECIPES = {
    "standard": BASE,
    "cosine": replace(BASE, loss=partial(Cosine, tau=2.0)),
    "arcface": replace(BASE, loss=partial(ArcFace, margin=0.2, scale=16.0)),
    "vmf": replace(
        BASE,
        loss=partial(VMF, resultant=0.7, tau=2.0),
        optim=replace(BASE.optim, proxy_lr_scale=10.0),
    ),
    "open": replace(
        BASE,
        loss=partial(ArcFace, margin=0.2, scale=16.0),
        items=partial(small_sets.digits_items, split="train", protocol="open"),
        measure=Retrieval(
            items=partial(small_sets.digits_items, split="test", protocol="open"),
            metrics=means("recall@1", "map@r"),
        ),
        sampling=Sampling(batch_size=96, items_per_class=16),
    ),
}
