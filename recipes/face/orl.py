"""ORL (AT&T) faces: 20 subjects, 10 grey images each, five folds over subjects.

    likeness train face/orl:arcface items.fold=0 measure.trials.fold=0 --data DATA --out runs/orl-0
        DATA holds orl/
    python benchmarks/people.py orl --data DATA --out runs/orl
        all folds, beside pixels, PCA and LDA: the table

Expected numbers, with intervals and their command: docs/reference/results.md. One fold takes
seconds of one core. The subjects of the folds are disjoint. Histograms of oriented gradients,
whitened by what varies within the trained subjects (Déniz et al. 2011, Hatch et al. 2006), make a
quarter of the errors of pixels, with a trained layer or without (estimated). Losses: Deng et al.
2019 (arcface), SimPLE paper Eq 8 with alpha near the share of positive pairs of so few classes
(simple).
"""

from dataclasses import replace
from functools import partial

from _shared import FEW_TRIALS

from likeness.backbones import GradientHistograms
from likeness.data import faces, orl
from likeness.frontends import INSIGHTFACE, geometric_view
from likeness.losses import ArcFace, SimPLE
from likeness.recipe import Compute, Memory, Optim, Recipe, Sampling, Schedule, Verification

ARCFACE = Recipe(
    modality="face",
    frontend=INSIGHTFACE,
    backbone=partial(GradientHistograms, dim=256, image_size=64),
    loss=partial(ArcFace, margin=0.2, scale=16.0),
    items=partial(orl.items, split="train", fold=0),
    measure=Verification(
        trials=partial(orl.trials, split="test", fold=0),
        metrics=FEW_TRIALS,
    ),
    read=partial(faces.read, size=(64, 64), fit="resize"),
    augment=partial(
        geometric_view,
        scale=(0.95, 1.15),
        rotate_prob=0.5,
        max_degrees=8.0,
        flip_prob=0.0,
        extra_offset=0.03,
        cutout_prob=0.0,
        blur_prob=0.0,
        num_photo=0,
    ),
    sampling=Sampling(batch_size=64, items_per_class=4),
    optim=Optim(name="adamw", lr=3e-4, weight_decay=5e-2),
    schedule=Schedule(steps=100, warmup_steps=15, save_every=100),
    compute=Compute(threads=1, cache=True),
)
SIMPLE = partial(SimPLE, r=1.0, alpha=0.1, b_theta=0.3, b=0.0)

RECIPES = {
    "arcface": ARCFACE,
    "simple": replace(
        ARCFACE,
        backbone=partial(ARCFACE.backbone, norm=6.0),
        loss=SIMPLE,
        memory=Memory(1024, 0.99),
    ),
    # whitened, and nothing trained
    "estimated": replace(ARCFACE, optim=replace(ARCFACE.optim, lr=0.0), schedule=Schedule(steps=1)),
}
