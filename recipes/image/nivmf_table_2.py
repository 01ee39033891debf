"""Table 2 of the nivMF paper: the losses among the other systems.

Kirchhof, Roth, Akata and Kasneci, ECCV 2022, quote their numbers from the papers of these systems.
A variant is called DATA_SET.SYSTEM; the data sets are cub200, cars196 and sop. The rows of the
paper itself are image/nivmf's r_128, r_512 and r_ibn_512.

    likeness train image/nivmf_table_2:cub200.margin backbone.weights=resnet50.pth
        --data DATA --out runs/margin
    likeness train image/nivmf_table_2:cub200.group_first
        backbone.weights=bn_inception-52deb4733.pth --data DATA --out runs/group_first
    likeness train image/nivmf_table_2:cub200.group init=runs/group_first
        --data DATA --out runs/group
        after group_first

DATA and backbone.weights are those of image/nivmf. A row is a command, and rows are no comparison:
each has the batches, rates and epochs of its own release, so that `likeness compare` refuses them
beside each other. image/nivmf's Table 1 compares.

`likeness reproduce nivmf/2` sets the printed numbers beside ours; nothing of them was measured by
us. Hours a run:

                  cub200   cars196   sop
    margin          .3       .3      1.3
    normsoft        .2       .2      1.7
    epshn           .5       .7      5.5
    circle          .8      1.1      5.5
    dcml_mdw       1.6      2.2      5.5
    group           .4       .6      4.4
    dr_ms           .8      1.1      5.5
    proxygml        .3       .4      2.8
    panc_memvir   10.7     14.7      5.5

They are estimated from 300 images a second on a 2080 Ti; group's are those of both stages. The
other rows of the table are more than a loss: examples/systems has them, one file each, but for PADS
and DRML. They train on this data with `--recipe`; the docstring of
examples/systems/shared.py has the commands.

Settings, and where they were read. Where a release has a command for one data set alone, the others
have its numbers. For sop the epochs and steps of all but normsoft, group and proxygml are ours.

- margin (apache/mxnet, example/gluon/embedding_learning, Wu et al.'s): margin .2, a boundary from
  1.2 for each class, negatives by distance; batches of 70 with 5 of a class; 20 x 200 steps of Adam
  1e-4, weight decay 1e-4, half the rate after 12, 14, 16 and 18 of the 20. Boundaries move at the
  network's rate (there by SGD at .1).
- normsoft (azgo14/classification_metric_learning, README): temperature .05, layer norm; batches of
  75 with 25 images of a class (sop 5); SGD .001 for cub200 and .01 otherwise, momentum .9, weight
  decay 1e-4; 30 epochs, a tenth of the rate after 15; before them one in which the last layer and
  the class vectors learn alone. The commands are those of 2,048-D. The layer norm is the loss's,
  behind the last layer; it is in front of it there.
- epshn (littleredxh/EasyPositiveHardNegative, run.sh, for cars196 and ResNet-18): temperature .1;
  batches of 128 with 16 of a class; 100 epochs of SGD .01 without momentum or weight decay, a tenth
  of it after 50 and 75. For sop 4 of a class are ours.
- circle has no release. Scale 80 and margin .4 are its paper's for retrieval, and so are, as far as
  we know, batches of 16 classes x 5 images. Rate, weight decay and epochs are ours: those of
  image/nivmf's Table 1. The row does not say whether it is the loss of pairs or of classes; it is
  taken for the loss of pairs.
- dcml_mdw (wzzheng/DCML, README for cub200 in 128-D): 4 sub-embeddings, 4 compositors; batches of
  100 with 2 of a class; 300 epochs of Adam 1e-5, weight decay 4e-4, a fifth of the rate after 55.
- group (dvl-tum/group_loss, train.py): temperatures 24, 79 and 54; batches of 6 x 9, 5 x 7 and 10 x
  6 images with 2, 3 and 2 random anchors a class; rates 1.56e-4, 2e-4 and 6.08e-4, weight decay
  6.06e-6, 4.86e-7 and 5.27e-12; 70 epochs, a tenth of the rate after 30. Adam, where it has RAdam;
  it goes back to its best epoch after 30 and 50. group_first (train_finetune.py): 10 epochs of the
  classifier alone, batches of 32, rate 3e-4. Its embeddings of 1,024-D are 512-D here, as printed.
- dr_ms: the row cites Dutta et al., TAI 2020. DR-MS is a loss of Mohan et al., CVPR 2020, so that
  this is probably a slip. Base .7 and direction .3 are theirs. Batches (80 with 5 of a class),
  rate, weight decay and epochs are ours, those of circle.
- proxygml (YuehuaZhu/ProxyGML, run.sh): 12 proxies a class and weight .3 (sop 1 and 0), ratio .05;
  batches of 32; 50 epochs of Adam 1e-4, weight decay 1e-4, proxies at .03 (sop .3), a tenth of the
  rates after 19 and 39. The epoch in which the last layer learns alone is left out.
- panc_memvir (navervision/MemVir, which has no ProxyAnchor; README's command for MemVir + ProxyNCA
  on cars196): 20 virtual steps, 25 between them, 40 epochs of warm-up, batches of 128, 2,000 epochs
  of Adam 1e-4, weight decay 1e-4, proxies at .01. Scale 32 and margin .1 are ProxyAnchor's paper's.
  For sop 2 virtual steps, 10 between them, and 5 epochs of warm-up, since the memory holds all
  11,318 proxies of each step, and 100 epochs.

Differences of all: views are image/nivmf's, random crops to 224 with flips, and so is the test.
Batch norm trains where the release's command trains it (margin, normsoft, epshn, proxygml on sop),
and keeps its statistics otherwise. Adam's epsilon is 1e-8; ProxyGML, MemVir and group_first have
.01 there, with which small gradients make smaller steps. Published numbers are those of the best
epoch on the test classes; here the last one counts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NamedTuple

from _shared import of_unseen

from likeness import losses
from likeness.backbones import BNInception, ImageResNet
from likeness.data import cars_items, cub_items, sop_items
from likeness.frontends import BN_INCEPTION
from likeness.recipe import Optim, Part, Recipe, Sampling, Schedule, Tuning, multistep


class Group(NamedTuple):
    """What group_loss's train.py sets for a data set."""

    batch: tuple[int, int]  # classes, and images of each
    anchors: int
    temperature: float
    lr: float
    weight_decay: float


class DataSet(NamedTuple):
    """A data set with the settings that a release chose for it."""

    items: Part
    num_images: int  # to train on
    ks: tuple[int, ...]
    group: Group
    normsoft: tuple[float, int]  # rate, and images of a class
    epshn: int  # images of a class
    proxygml: tuple[int, float, float]  # proxies of a class, their weight, their rate
    memvir: tuple[int, int, int, int]  # virtual steps, steps between, epochs of warm-up, epochs
    margin_steps: int
    epochs: tuple[int, int]  # of circle and dr_ms, and of dcml_mdw


CUB = DataSet(
    cub_items,
    5_864,
    (1, 2),
    Group((6, 9), 2, 24.0, 1.56e-4, 6.06e-6),
    normsoft=(0.001, 25),
    epshn=16,
    proxygml=(12, 0.3, 0.03),
    memvir=(20, 25, 40, 2_000),
    margin_steps=4_000,
    epochs=(150, 300),
)
DATA_SETS = {
    "cub200": CUB,
    "cars196": CUB._replace(
        items=cars_items,
        num_images=8_054,
        group=Group((5, 7), 3, 79.0, 2e-4, 4.86e-7),
        normsoft=(0.01, 25),
    ),
    "sop": DataSet(
        sop_items,
        59_551,
        (1, 10),
        Group((10, 6), 2, 54.0, 6.08e-4, 5.27e-12),
        normsoft=(0.01, 5),
        epshn=4,
        proxygml=(1, 0.0, 0.3),
        memvir=(2, 10, 5, 100),
        margin_steps=20_000,
        epochs=(100, 100),
    ),
}
# all of a ResNet but its last layer
BELOW_LAST = ("conv1", "bn1", "layer1", "layer2", "layer3", "layer4")


def resnet(data: DataSet, loss: Part, *, dim: int, batch_norm: str = "fixed") -> Recipe:
    """A loss on ResNet-50."""
    backbone = partial(ImageResNet, dim=dim, depth=50, batch_norm=batch_norm)
    return of_unseen(data.items, data.ks, backbone=backbone, loss=loss)


def inception(data: DataSet, loss: Part, *, batch_norm: str = "fixed") -> Recipe:
    """A loss on BN-Inception in 512 dimensions."""
    backbone = partial(BNInception, dim=512, batch_norm=batch_norm)
    return replace(
        of_unseen(data.items, data.ks, backbone=backbone, loss=loss), frontend=BN_INCEPTION
    )


def steps(num: int, *, drops: tuple[float, ...] = (), factor: float = 0.1) -> Schedule:
    """A number of steps, measured at the end; the rate drops after these shares of them."""
    decay = partial(multistep, at=drops, factor=factor)
    return Schedule(steps=num, decay=decay, save_every=1_000, higher_is_better=True)


def epochs(
    num: int, data: DataSet, batch: int, *, drops: tuple[int, ...] = (), factor: float = 0.1
) -> Schedule:
    """Epochs of whole batches; the rate drops after some of them."""
    at = tuple(epoch / num for epoch in drops)
    return steps(num * (data.num_images // batch), drops=at, factor=factor)


def margin(data: DataSet) -> Recipe:
    loss = partial(
        losses.MarginLoss, margin=0.2, beta=1.2, per_class=True, mining="distance_weighted"
    )
    return replace(
        resnet(data, loss, dim=128, batch_norm="trained"),
        sampling=Sampling(batch_size=70, items_per_class=5),
        optim=Optim(name="adam", lr=1e-4, weight_decay=1e-4),
        schedule=steps(data.margin_steps, drops=(0.6, 0.7, 0.8, 0.9), factor=0.5),
    )


def normsoft(data: DataSet) -> Recipe:
    lr, images = data.normsoft
    freeze = tuple(f"backbone.{part}" for part in BELOW_LAST)
    return replace(
        resnet(data, partial(losses.NormSoft, temperature=0.05), dim=512, batch_norm="trained"),
        sampling=Sampling(batch_size=75, items_per_class=images),
        optim=Optim(name="sgd", lr=lr, momentum=0.9, weight_decay=1e-4),
        tuning=Tuning(freeze=freeze, freeze_until=data.num_images // 75),
        schedule=epochs(31, data, 75, drops=(16,)),
    )


def epshn(data: DataSet) -> Recipe:
    return replace(
        resnet(data, partial(losses.EasyPositive, temperature=0.1), dim=512, batch_norm="trained"),
        sampling=Sampling(batch_size=128, items_per_class=data.epshn),
        optim=Optim(name="sgd", lr=0.01, momentum=0.0, weight_decay=0.0),
        schedule=epochs(100, data, 128, drops=(50, 75)),
    )


def with_our_settings(recipe: Recipe, data: DataSet) -> Recipe:
    """The recipe with the batches, rate and epochs that are ours, since no release has any."""
    return replace(
        recipe,
        sampling=Sampling(batch_size=80, items_per_class=5),
        optim=Optim(name="adam", lr=1e-5, weight_decay=4e-4),
        schedule=epochs(data.epochs[0], data, 80),
    )


def circle(data: DataSet) -> Recipe:
    loss = partial(losses.CirclePair, margin=0.4, scale=80.0)
    return with_our_settings(resnet(data, loss, dim=512), data)


def dcml_mdw(data: DataSet) -> Recipe:
    num = data.epochs[1]
    loss = partial(losses.DCML, num_parts=4, num_composites=4, mining="distance_weighted")
    return replace(
        resnet(data, loss, dim=512),
        sampling=Sampling(batch_size=100, items_per_class=2),
        optim=Optim(name="adam", lr=1e-5, weight_decay=4e-4),
        schedule=epochs(num, data, 100, drops=(55,), factor=0.2),
    )


def group_first(data: DataSet) -> Recipe:
    """The classifier alone, from which `group` starts."""
    return replace(
        inception(data, partial(losses.Softmax, bias=True)),
        sampling=Sampling(batch_size=32),
        optim=Optim(name="adam", lr=3e-4, weight_decay=0.0),
        schedule=epochs(10, data, 32),
    )


def group(data: DataSet) -> Recipe:
    settings = data.group
    classes, images = settings.batch
    loss = partial(
        losses.GroupLoss,
        temperature=settings.temperature,
        num_anchors=settings.anchors,
        anchors="random",
    )
    return replace(
        inception(data, loss),
        sampling=Sampling(batch_size=classes * images, items_per_class=images),
        optim=Optim(name="adam", lr=settings.lr, weight_decay=settings.weight_decay),
        schedule=epochs(70, data, classes * images, drops=(30,)),
    )


def dr_ms(data: DataSet) -> Recipe:
    loss = partial(losses.MultiSimilarity, base=0.7, direction=0.3)
    return with_our_settings(inception(data, loss), data)


def proxygml(data: DataSet) -> Recipe:
    num_proxies, weight, rate = data.proxygml
    loss = partial(losses.ProxyGML, num_proxies=num_proxies, ratio=0.05, weight=weight)
    # run.sh has --freeze_BN for cub200 and cars196 alone
    recipe = inception(data, loss, batch_norm="fixed" if weight else "trained")
    optim = Optim(name="adam", lr=1e-4, weight_decay=1e-4, proxy_lr_scale=round(rate / 1e-4))
    return replace(
        recipe,
        sampling=Sampling(batch_size=32),
        optim=optim,
        schedule=epochs(50, data, 32, drops=(19, 39)),
    )


def panc_memvir(data: DataSet) -> Recipe:
    num_steps, step_gap, warmup, num = data.memvir
    loss = partial(
        losses.MemVir,
        base="proxy_anchor",
        scale=32.0,
        margin=0.1,
        num_steps=num_steps,
        step_gap=step_gap,
        warmup_steps=warmup * (data.num_images // 128),
        batch_size=128,
    )
    return replace(
        inception(data, loss),
        sampling=Sampling(batch_size=128),
        optim=Optim(name="adam", lr=1e-4, weight_decay=1e-4, proxy_lr_scale=100.0),
        schedule=epochs(num, data, 128),
    )


SYSTEMS = (
    margin,
    normsoft,
    epshn,
    circle,
    dcml_mdw,
    group_first,
    group,
    dr_ms,
    proxygml,
    panc_memvir,
)
RECIPES = {
    f"{name}.{system.__name__}": system(data)
    for name, data in DATA_SETS.items()
    for system in SYSTEMS
}
