"""The vMF paper: five losses, four data sets to classify and three to retrieve.

Scott, Gallagher and Mozer, "von Mises-Fisher Loss: An Exploration of Embedding Geometries for
Supervised Learning", ICCV 2021: Tables 1 to 4, Figure 4 and Figure 5. A variant is called
DATA_SET.LOSS.

    likeness train image/vmf:mnist.vmf --data DATA --out runs/mnist-vmf
    likeness compare image/vmf:mnist --variants standard,hyperbolic,cosine,arcface,vmf --seeds 3
        --data DATA --out runs/mnist
    likeness compare image/vmf:cub200 --allow-different measure.similarity --seeds 5
        backbone.weights=resnet50-0676ba61.pth --data DATA --out runs/cub200
    likeness compare image/vmf:mnist --variants vmf,vmf_bounds,vmf_paper --seeds 3
        --data DATA --out runs/readings

What DATA holds, and how long a run takes (an estimate but for mnist, since nothing else was run):

    mnist          mnist/: the four IDX files, plain or .gz        8 to 26 minutes of one CPU core
    fashion_mnist  fashion_mnist/: the same                        15 minutes of one CPU core
    cifar10        cifar-10-batches-bin/                           1 to 2 hours of an A100
    cifar100       cifar-100-binary/                               1 to 2 hours of an A100
    cars196        car_ims/ and cars_annos.mat                     1 to 2 hours of an A100
    cub200         CUB_200_2011/                                   1 to 2 hours of an A100
    sop            Stanford_Online_Products/                       3 to 6 hours of an A100, vmf more

Retrieval starts from torchvision's ImageNet weights of ResNet-50 (IMAGENET1K_V1), a local file that
backbone.weights names. Without them the network starts from nothing, which reproduces no number
below. The paper (App. G) has 75 seconds for an epoch of cars196 on a V100.

`likeness reproduce vmf/1` to vmf/4 set the paper's numbers beside ours.

Measured here on mnist, three seeds (docs/reference/results.md): accuracy 98.91, 98.90, 99.07, 99.14
and 99.02, each within two standard errors of the paper's. Nothing else was measured here.

How to read them:
- The paper's ECE is that of its release, the root of the mean square over bins. It is called ece_l2
  and ece_scaled_l2 here; ece and ece_scaled are the usual mean of absolute values.
- standard compares by Euclidean distance, hyperbolic by Poincare distance, vmf by the mean over 10
  draws of every embedding (the expected mAP@R).
- standard_cosine and hyperbolic_cosine ("+ cosine at test") train and are validated as standard and
  hyperbolic. They differ in the test alone, which `likeness compare` accepts with --allow-different
  measure.similarity. `likeness embed` and `likeness retrieve --similarity cosine` give the same for
  a finished run of standard.
- Figure 5 (a learned temperature does at least as well as a fixed one, except for vmf on cars196):
  cosine_fixed_16, arcface_fixed_16 and vmf_fixed_16, and the same with 32 and 64, hold exp(tau) at
  that value and are otherwise cosine, arcface and vmf, on cifar100 and cars196. The figure prints
  no numbers; these are scales that are common in the literature.
- vmf computes exactly what the paper approximates. Three more variants of every data set follow the
  paper's letter: vmf_bounds takes A and C_n from the bounds of Eq 10 and 12, vmf_independent draws
  the samples of each embedding apart (of 128-D and 512-D; in 3-D vmf does), and vmf_paper does
  both and takes alpha from Eq 16.

Settings are those of App. D (the views are VMF_* of modalities/image/transforms.py): 15 % of the
training images, or of the training classes, validate, which leaves 83, 15 and 98 classes of cars196
to train, validate and test, 85, 15 and 100 of cub200, and 9,620, 1,698 and 11,316 of sop. The rate
is halved after 15 epochs without a better validation accuracy (recall@1 for retrieval, which the
release calls validation accuracy), training stops after 35, and the best epoch is kept. The paper
does not say what an epoch is; it is as many batches as the release's README has. Training stops
after 1,000 epochs at the latest (mnist 400). For vmf on sop that README has another momentum, .9,
and another rate of tau, .01.

Differs from the release:
- A and C_n are exact (vmf_bounds: the paper's), alpha is that of Eq 15 (vmf_paper: Eq 16's), and
  the rows of a batch share the directions of their draws (vmf_independent: they do not).
- The vMF sampler is exact. The release's is exact in three dimensions. In 128 it is wrong for
  concentrations above 10: mean cosine .31 instead of .40 at the start, so that vmf may come out
  otherwise. In 512 it has .70 instead of .69.
- vmf is validated by the mean over draws in retrieval, not by their majority.
- hyperbolic has no 1e-5 in its denominators (loss.epsilon=1e-5). The gradient that reaches its
  network is scaled as in the release, since its learning rate was chosen with that.
- Retrieval freezes weights and biases of batch norm, as the paper says (backbone.batch_norm=fixed:
  only its statistics, as the release has it).
- A GPU computes in bfloat16 (compute.precision=float32: the release's).
- The rate is halved at the 15th epoch without a better one (16th there).
- The embedding layer of a ResNet has a bias (0 there).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from _shared import CALIBRATION, means

from likeness.backbones import ImageResNet, SmallCNN
from likeness.data import cars_items, cub_items, images, small_sets, sop_items
from likeness.frontends import (
    CIFAR10,
    CIFAR100,
    IMAGENET,
    VMF_CARS,
    VMF_CIFAR10,
    VMF_CIFAR100,
    VMF_CUB,
    VMF_SOP,
    PixelScale,
)
from likeness.losses import VMF, ArcFace, Cosine, Hyperbolic, Softmax
from likeness.metrics import per_item
from likeness.recipe import (
    Classification,
    Compute,
    Optim,
    Part,
    Recipe,
    Retrieval,
    Sampling,
    Schedule,
    constant,
)


class Row(NamedTuple):
    """A row of Tables 5 to 11, with the paper's abbreviations."""

    lr: float
    tlr: float | None  # rate of the temperature
    mom: float
    nmom: bool  # Nesterov's momentum
    wd: float
    m: float | None = None  # margin
    zero_m: int | None = None  # epochs at the beginning with m = 0
    c: float | None = None  # curvature
    lambda_: float | None = None
    tau: float | None = None  # at the start


_ = None
# fmt: off
#                      LR     TLR   MOM   NMOM   WD    m   m=0   c    λ    τ
HYPER_PARAMETERS = {
    "mnist": {  # Table 5
        "standard":   Row(0.1,   _,    0.9,  False, 0.0),
        "hyperbolic": Row(0.05,  _,    0.99, True,  0.0,  _,   _,   1e-5),
        "cosine":     Row(0.5,   1e-3, 0.9,  True,  0.0,  _,   _,   _,    _,   0.0),
        "arcface":    Row(0.05,  1e-3, 0.9,  False, 0.0,  0.5, 20,  _,    _,   0.0),
        "vmf":        Row(1.0,   1e-3, 0.99, True,  0.0,  _,   _,   _,    0.4, 0.0),
    },
    "fashion_mnist": {  # Table 6
        "standard":   Row(0.01,  _,    0.99, False, 0.0),
        "hyperbolic": Row(0.1,   _,    0.9,  True,  0.0,  _,   _,   1e-5),
        "cosine":     Row(0.5,   1e-3, 0.9,  True,  0.0,  _,   _,   _,    _,   0.0),
        "arcface":    Row(0.01,  1e-3, 0.99, True,  0.0,  0.5, 20,  _,    _,   0.0),
        "vmf":        Row(0.05,  1e-3, 0.99, False, 0.0,  _,   _,   _,    0.4, 0.0),
    },
    "cifar10": {  # Table 7
        "standard":   Row(0.05,  _,    0.99, True,  1e-4),
        "hyperbolic": Row(0.01,  _,    0.99, True,  5e-4, _,   _,   1e-5),
        "cosine":     Row(0.5,   1e-3, 0.8,  False, 5e-4, _,   _,   _,    _,   0.0),
        "arcface":    Row(0.1,   1e-3, 0.9,  True,  5e-4, 0.4, 60,  _,    _,   0.0),
        "vmf":        Row(0.5,   1e-3, 0.9,  False, 1e-4, _,   _,   _,    0.4, 0.0),
    },
    "cifar100": {  # Table 8
        "standard":   Row(0.1,   _,    0.9,  True,  5e-4),
        "hyperbolic": Row(0.01,  _,    0.99, True,  5e-4, _,   _,   1e-5),
        "cosine":     Row(0.5,   1e-4, 0.8,  False, 5e-4, _,   _,   _,    _,   0.0),
        "arcface":    Row(0.01,  1e-4, 0.99, True,  5e-4, 0.3, 100, _,    _,   0.0),
        "vmf":        Row(0.1,   1e-2, 0.99, True,  1e-4, _,   _,   _,    0.4, 0.0),
    },
    "cars196": {  # Table 9
        "standard":   Row(0.005, _,    0.8,  True,  5e-5),
        "hyperbolic": Row(0.01,  _,    0.9,  True,  5e-4, _,   _,   1e-5),
        "cosine":     Row(0.005, 1e-3, 0.9,  True,  5e-4, _,   _,   _,    _,   3.466),
        "arcface":    Row(1e-4,  1e-4, 0.9,  False, 1e-4, 0.3, 0,   _,    _,   3.466),
        "vmf":        Row(1e-4,  1e-2, 0.9,  False, 1e-4, _,   _,   _,    0.7, 0.0),
    },
    "cub200": {  # Table 10
        "standard":   Row(0.001, _,    0.8,  True,  5e-4),
        "hyperbolic": Row(0.005, _,    0.9,  False, 5e-4, _,   _,   1e-5),
        "cosine":     Row(0.001, 1e-4, 0.9,  False, 5e-4, _,   _,   _,    _,   2.773),
        "arcface":    Row(0.001, 1e-4, 0.8,  True,  5e-4, 0.3, 0,   _,    _,   2.773),
        "vmf":        Row(0.001, 1e-2, 0.9,  False, 1e-4, _,   _,   _,    0.7, 2.773),
    },
    "sop": {  # Table 11
        "standard":   Row(0.005, _,    0.8,  True,  5e-4),
        "hyperbolic": Row(5e-4,  _,    0.99, False, 1e-4, _,   _,   1e-5),
        "cosine":     Row(0.001, 1e-4, 0.99, True,  1e-4, _,   _,   _,    _,   0.0),
        "arcface":    Row(0.005, 1e-4, 0.8,  True,  5e-4, 0.3, 0,   _,    _,   2.773),
        "vmf":        Row(1e-4,  1e-3, 0.8,  True,  5e-4, _,   _,   _,    0.7, 2.773),
    },
}
# fmt: on


class DataSet(NamedTuple):
    """What App. D says of a data set."""

    dim: int  # of the embeddings
    items: Part
    batch: tuple[int, int]  # classes, and images of each
    frontend: Part
    view: Part | None
    uncropped: Part = images.read  # what training views start from
    epoch: int = 250  # batches, of the release's README
    epochs: int = 1000  # at most
    save_every: int = 10  # epochs
    ks: tuple[int, ...] = (1, 2, 4, 8)  # recall@k of retrieval


_SHORT_EDGE, _SQUARE = (
    partial(images.read, short_edge=256),
    partial(images.read, size=(256, 256)),
)
_CIFAR100 = partial(small_sets.cifar_items, num_classes=100)
_SMALL = {"frontend": partial(PixelScale), "view": None, "save_every": 20}
# fmt: off
DATA_SETS = {
    "mnist": DataSet(3, small_sets.mnist_items, (10, 13), **_SMALL, epochs=400),
    "fashion_mnist": DataSet(
        3, partial(small_sets.mnist_items, name="fashion_mnist"), (10, 13), **_SMALL
    ),
    "cifar10": DataSet(128, small_sets.cifar_items, (10, 26), CIFAR10, VMF_CIFAR10),
    "cifar100": DataSet(128, _CIFAR100, (32, 8), CIFAR100, VMF_CIFAR100),
    "cars196": DataSet(
        512, partial(cars_items, protocol="vmf"), (32, 4), IMAGENET, VMF_CARS, _SQUARE, 100
    ),
    "cub200": DataSet(
        512, partial(cub_items, protocol="vmf"), (32, 4), IMAGENET, VMF_CUB, _SHORT_EDGE, 100
    ),
    "sop": DataSet(
        512, partial(sop_items, protocol="vmf"), (32, 2), IMAGENET, VMF_SOP, _SQUARE, 500,
        save_every=4, ks=(1, 10, 100, 1000),
    ),
}
# fmt: on
# The bound within which class vectors start: Xavier's (App. D.1), and that of nn.Linear, which the
# release leaves to them elsewhere.
STARTS = {3: math.sqrt(6 / (3 + 10)), 128: 128**-0.5, 512: 512**-0.5}
SIMILARITIES = {"standard": "euclidean", "hyperbolic": ""}  # of retrieval; otherwise the cosine
FIXED = (16, 32, 64)  # values of exp(tau) in Figure 5
FIGURE_5 = ("cifar100", "cars196")
# What the paper says of vMF where its row computes something better.
READINGS: dict[str, dict[str, str]] = {
    "vmf_bounds": {"method": "bounds"},
    "vmf_independent": {"noise": "independent"},
    "vmf_paper": {"method": "bounds", "noise": "independent", "alpha_from": "absolute"},
}


def schedule(data: DataSet, watch: str) -> Schedule:
    """Halved, stopped and kept by what the validation watches, once an epoch."""
    return Schedule(
        steps=data.epochs * data.epoch,
        decay=constant,
        eval_every=data.epoch,
        save_every=data.save_every * data.epoch,
        watch=watch,
        higher_is_better=True,
        halve_after=15,
        stop_after=35,
    )


def classified(data: DataSet) -> Recipe:
    """Fixed classes: the small network in 3 dimensions, or a ResNet-50 in 128."""
    validation = partial(data.items, split="validation", validation_share=0.15)
    small = data.dim == 3
    resnet = partial(ImageResNet, dim=data.dim, depth=50, stem="3x3", zero_init=True)
    return Recipe(
        modality="image",
        frontend=data.frontend,
        backbone=partial(SmallCNN, dim=data.dim) if small else resnet,
        loss=Softmax,
        items=partial(data.items, split="train", validation_share=0.15),
        read=data.uncropped,
        augment=data.view,
        sampling=Sampling(data.batch[0] * data.batch[1], items_per_class=data.batch[1]),
        schedule=schedule(data, "accuracy"),
        estimate_views=1,
        compute=Compute(channels_last=True, threads=1, cache=True)
        if small
        else Compute(channels_last=True, workers=4),
        measure=Classification(
            items=partial(data.items, split="test"),
            calibrate_on=validation,
            metrics={
                **CALIBRATION,
                "ece_l2": partial(per_item.calibration_error, power=2),
                "ece_scaled_l2": partial(
                    per_item.calibration_error, confidence="scaled_confidence", power=2
                ),
            },
            validation=Classification(items=validation),
        ),
    )


def retrieved(data: DataSet) -> Recipe:
    """Unseen classes: a ResNet-50 in 512 dimensions, tested on the central 224 x 224."""
    ks = data.ks
    return Recipe(
        modality="image",
        frontend=data.frontend,
        backbone=partial(ImageResNet, dim=data.dim, depth=50, batch_norm="frozen"),
        loss=Softmax,
        items=partial(data.items, split="train"),
        read=partial(data.uncropped, crop=224),
        train_read=data.uncropped,
        augment=data.view,
        sampling=Sampling(data.batch[0] * data.batch[1], items_per_class=data.batch[1]),
        schedule=schedule(data, "recall@1"),
        estimate_views=1,
        compute=Compute(channels_last=True, workers=8),
        measure=Retrieval(
            items=partial(data.items, split="test"),
            ks=ks,
            num_samples=10,
            metrics=means("map@r", *(f"recall@{k}" for k in ks), "r_precision"),
            validation=Retrieval(
                items=partial(data.items, split="validation"), ks=ks, num_samples=10
            ),
        ),
    )


def loss(name: str, row: Row, start: float, epoch: int) -> Part:
    """A loss with the settings of its row."""
    if name == "standard":
        return partial(Softmax, start=start)
    if name == "hyperbolic":
        return partial(Hyperbolic, c=row.c, riemannian=True)
    if name == "cosine":
        return partial(Cosine, tau=row.tau, tau_lr=row.tlr, start=start)
    if name == "vmf":
        return partial(VMF, resultant=row.lambda_, tau=row.tau, tau_lr=row.tlr)
    assert name == "arcface"
    assert row.tau is not None
    arcface = partial(
        ArcFace,
        margin=row.m,
        scale=math.exp(row.tau),
        learn_scale=True,
        tau_lr=row.tlr,
        wrap="none",
        start=start,
    )
    return partial(arcface, warmup_steps=row.zero_m * epoch) if row.zero_m else arcface


def variants(name: str) -> Iterator[tuple[str, Recipe]]:
    """(loss, recipe) of a data set."""
    data = DATA_SETS[name]
    open_set = data.dim == 512
    base = retrieved(data) if open_set else classified(data)
    made = {
        key: replace(
            base,
            loss=loss(key, row, STARTS[data.dim], data.epoch),
            similarity=SIMILARITIES.get(key, "cosine") if open_set else "",
            optim=Optim(lr=row.lr, momentum=row.mom, nesterov=row.nmom, weight_decay=row.wd),
        )
        for key, row in HYPER_PARAMETERS[name].items()
    }
    for key, recipe in made.items():
        yield key, recipe
        if open_set and key in SIMILARITIES:
            assert recipe.measure is not None
            yield (
                f"{key}_cosine",
                replace(recipe, measure=replace(recipe.measure, similarity="cosine")),
            )
    for key, settings in READINGS.items():
        if data.dim > 3 or key != "vmf_independent":  # where draws are independent anyway
            vmf = made["vmf"]
            assert isinstance(vmf.loss, partial)
            yield key, replace(vmf, loss=partial(vmf.loss, **settings))
    if name in FIGURE_5:
        for key in ("cosine", "arcface", "vmf"):
            for value in FIXED:
                yield f"{key}_fixed_{value}", fixed(made[key], value)


def fixed(recipe: Recipe, value: int) -> Recipe:
    """The same with exp(tau) held at a value."""
    assert isinstance(recipe.loss, partial)
    if recipe.loss.func is ArcFace:
        return replace(recipe, loss=partial(recipe.loss, scale=float(value), learn_scale=False))
    return replace(recipe, loss=partial(recipe.loss, tau=math.log(value), tau_lr=0.0))


RECIPES = {f"{name}.{key}": recipe for name in HYPER_PARAMETERS for key, recipe in variants(name)}
