"""The SimPLE paper on images: fifteen losses on CUB-200-2011 with BN-Inception.

Wen et al., "Pairwise Similarity Learning is SimPLE", ICCV 2023: Table 7. A variant is called
cub200.LOSS.

    likeness train image/simple:cub200.simple backbone.weights=bn_inception-52deb4733.pth
        --data DATA --out runs/cub-simple
        one fold of four
    python recipes/image/simple.py --variants simple,contrastive
        --weights bn_inception-52deb4733.pth --data DATA --out runs/table-7
        four, joined
    likeness compare image/simple:cub200
        --variants simple,simple_paper,simple_learned_angle,simple_released
        backbone.weights=bn_inception-52deb4733.pth --data DATA --out runs/readings
    likeness compare image/simple:cub200 --variants simple,arcface --allow-different sampling
        backbone.weights=bn_inception-52deb4733.pth --data DATA --out runs/compare
        classification losses see one image a class

DATA holds CUB_200_2011/ (likeness prepare cub200). backbone.weights is the public ImageNet
checkpoint of BN-Inception. A run stops when the validation classes are no longer better: half an
hour to two hours a fold on one GPU, an estimate from 32 x 100 images an epoch.

`likeness reproduce simple/7` sets the paper's numbers beside ours; nothing of them was measured by
us. The paper's have the size of the joined 512-D embeddings of [48]; single models of 128-D reach
about 21 MAP@R there, which is what `likeness train` is to be compared with. [48] is what Sec. 5.2
calls "the codebase", "nearly the same, except the loss functions":
KevinMusgrave/powerful-benchmarker (Musgrave et al., ECCV 2020;
src/powerful_benchmarker/configs, docs/papers/mlrc.md).

Settings are those of [48]: the first 100 species in four class-disjoint folds, three to train on
and one to validate (MAP@R), the other 100 to test; 128-D; statistics of batch norm fixed; 32
images, 4 of a class, or 1 for classification losses; the four models' unit embeddings joined
(512-D), or their mean result (128-D). The second command joins them, by cosine; a single model is
compared by its loss's own similarity. Protocol "mlrc" is that paper's folds; "benchmarker" its
later releases': items.protocol=benchmarker measure.validation.items.protocol=benchmarker.
Hyper-parameters are [48]'s for CUB200 (50 steps of Bayesian optimisation each).

simple has r 3, alpha .001 and b_theta .3, which Sec. 5.1 of the SimPLE paper fixes for the
experiments that follow it; b from -10 and eta .999 as its release has them for faces. The size of
the bank is printed for no experiment but faces: 4,096 keys, about the images of a fold, are ours.
It starts empty, and running statistics are averaged as the parameters are; the release's starts
full of noise, and it averages parameters alone.
simple_ours has r 1, alpha .1 (the share of positive pairs in a batch), b from 0 and no bank; the
paper has no such row. simple_paper has one expectation over all pairs, as Eq 8 is printed, where
simple has two means, as the release. simple_learned_angle learns b_theta, as the text of Sec. 3
says. simple_released has all of the release's loss, with its factor of 500 and its polar-like
features, which take one output more.

Differences: [48] has RMSprop (1e-6, momentum .9, whose steps are about those of Adam at 1e-5) and
looks every second epoch of 100 batches, 9 epochs without gain; here Adam 1e-5 and five looks. Class
vectors turn as much faster than the network as there: proxy_lr_scale is [48]'s ratio of rates times
that of their sizes at the start, ours to theirs. Betas move at the network's rate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from _shared import means

from likeness import losses
from likeness.backbones import BNInception
from likeness.data import cub_items, images
from likeness.frontends import BENCHMARKER, BN_INCEPTION
from likeness.metrics import bounds, per_item, query_metrics
from likeness.recipe import (
    Compute,
    Memory,
    Optim,
    Part,
    Recipe,
    Retrieval,
    Sampling,
    Schedule,
    argument_parser,
    constant,
    fit,
    load_model,
    measure_items,
    one_sentence,
    override,
    say,
    write_json,
)

NUM_FOLDS = 4
XAVIER = (2 / (75 + 128)) ** 0.5  # deviation of class vectors at the start: 75 classes, 128-D
COLUMNS = ("precision@1", "r_precision", "map@r")

OURS = Recipe(
    modality="image",
    frontend=BN_INCEPTION,
    backbone=partial(BNInception, dim=128, batch_norm="fixed"),
    loss=partial(losses.SimPLE, b_theta=0.3, r=1.0, alpha=0.1, b=0.0),
    items=partial(cub_items, split="train", protocol="mlrc", fold=0),
    read=partial(images.read, short_edge=256, crop=227),
    train_read=partial(images.read, short_edge=256),
    augment=BENCHMARKER,
    sampling=Sampling(batch_size=32, items_per_class=4),
    optim=Optim(name="adam", lr=1e-5, weight_decay=1e-4),
    schedule=Schedule(
        steps=100_000,
        decay=constant,
        eval_every=200,
        save_every=1_000,
        watch="map@r",
        higher_is_better=True,
        stop_after=5,
    ),
    compute=Compute(channels_last=True, workers=4),
    measure=Retrieval(
        items=partial(cub_items, split="test", protocol="mlrc"),
        metrics=means(*COLUMNS),
        validation=Retrieval(items=partial(cub_items, split="validation", protocol="mlrc", fold=0)),
    ),
)


# Sec. 5.1's, with a bank as Sec. 4 has it
SIMPLE = replace(
    OURS,
    loss=partial(losses.SimPLE, b_theta=0.3, r=3.0, alpha=0.001, b=-10.0),
    memory=Memory(2**12, 0.999),
)


# [48]'s settings. Of pairs and triplets, 4 images of a class:
PAIRS: dict[str, Part] = {
    "contrastive": partial(losses.Contrastive, positive_margin=-0.2, negative_margin=0.3841),
    "triplet": partial(losses.Triplet, margin=0.0961),
    "ntxent": partial(losses.NTXent, temperature=0.0091),
    "margin": partial(losses.MarginLoss, margin=0.0878, beta=0.7838),
    "margin_class": partial(losses.MarginLoss, margin=0.0779, beta=0.9796, per_class=True),
    "fastap": partial(losses.FastAP, num_bins=17),
    "snr": partial(
        losses.SNRContrastive,
        positive_margin=0.3264,
        negative_margin=0.8446,
        zero_mean=0.1382,
        normalise=True,
    ),
    "multisimilarity": partial(
        losses.MultiSimilarity, alpha=0.01, beta=50.6, base=0.56, epsilon=None
    ),
    "multisimilarity_miner": partial(
        losses.MultiSimilarity, alpha=17.97, beta=75.66, base=0.77, epsilon=0.39
    ),
}
# Of classes, one image of each: the loss, the rate of its class vectors beside 1e-6 of the network,
# and the deviation with which they begin, here and there. Only their directions count, and a step
# turns the shorter ones farther.
CLASSES: dict[str, tuple[Part, float, float, float]] = {
    "proxynca": (partial(losses.ProxyNCAPlusPlus, temperature=1 / 13.98), 6.04e-3, 1 / 8, 1.0),
    "normsoftmax": (partial(losses.NormFace, scale=1 / 0.1087), 4.46e-3, XAVIER, 1.0),
    "cosface": (partial(losses.CosFace, margin=0.6182, scale=100.0), 2.53e-3, XAVIER, 1.0),
    "arcface": (
        partial(losses.ArcFace, margin=float(np.deg2rad(23.22)), scale=100.0),
        5.13e-3,
        XAVIER,
        1.0,
    ),
    # [48]'s regulariser is a mean over a class's pairs of centres, twice Qian et al.'s; its 10 x 75
    # centres start uniform within 750^-1/2.
    "softtriple": (
        partial(
            losses.SoftTriple,
            num_centres=10,
            scale=78.02,
            gamma=58.95,
            tau=2 * 0.3754,
            margin=0.4307,
        ),
        5.37e-5,
        XAVIER,
        2250**-0.5,
    ),
}


def classified(loss: Part, rate: float, start: float, their_start: float) -> Recipe:
    """A row of CLASSES as a recipe."""
    optim = replace(OURS.optim, proxy_lr_scale=float(f"{rate / 1e-6 * start / their_start:.3g}"))
    return replace(
        OURS, loss=loss, sampling=Sampling(batch_size=32, items_per_class=1), optim=optim
    )


METHODS = {
    "simple": SIMPLE,
    "simple_ours": OURS,
    **{name: replace(OURS, loss=loss) for name, loss in PAIRS.items()},
    **{name: classified(*row) for name, row in CLASSES.items()},
}
# SimPLE's row by the other readings: where the paper and its release for faces differ, "simple" has
# only one of the two.
READINGS = {
    "simple_paper": replace(SIMPLE, loss=partial(SIMPLE.loss, reduction="joint")),
    "simple_learned_angle": replace(SIMPLE, loss=partial(SIMPLE.loss, learn_b_theta=True)),
    "simple_released": replace(
        SIMPLE,
        backbone=partial(SIMPLE.backbone, dim=129),
        loss=partial(SIMPLE.loss, weight=500.0, features="polarlike"),
    ),
}
EVERY = {**METHODS, **READINGS}
RECIPES = {f"cub200.{name}": recipe for name, recipe in EVERY.items()}


def of_fold(recipe: Recipe, fold: int) -> Recipe:
    """Trained and watched on another fold's classes; the test is the same."""
    return override(recipe, [f"items.fold={fold}", f"measure.validation.items.fold={fold}"])


def joined(
    recipe: Recipe, data: Path, out: Path
) -> tuple[per_item.PerItem, list[per_item.PerItem]]:
    """Each test image's values by the four folds' joined embeddings, and by each alone.

    Runs are kept in `out` and go on where they were stopped.
    """
    assert isinstance(recipe.measure, Retrieval)
    rows, alone = [], []
    for fold in range(NUM_FOLDS):
        folder = out / f"fold{fold}"
        of_this = of_fold(recipe, fold)
        fit(of_this, data=data, out=folder, resume=True)
        model = load_model(folder, of_this)
        alone.append(measure_items(model, data, recipe.measure))
        z = model.embed(recipe.measure.items(data))
        rows.append(z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-12))
    labels = alone[0].columns["label"].astype(np.int64)
    metrics = query_metrics(np.concatenate(rows, axis=1), labels, similarity="cosine")
    return replace(alone[0], columns={name: metrics[name] for name in COLUMNS}), alone


def row(name: str, recipe: Recipe, data: Path, out: Path) -> str:
    """A Markdown row: the joined embeddings' metrics with intervals over classes, and the folds'
    mean. The former are also in out/joined.json.
    """
    measured, alone = joined(recipe, data, out)
    values = {column: metric(measured.columns) for column, metric in recipe.metrics.items()}
    write_json(out / "joined.json", {"values": values})
    drawn = per_item.resample(recipe.metrics, measured)
    cells = [name]
    for column, value in values.items():
        ends = bounds(drawn[column], value, 0.95, measured.drawn).ends
        interval = "no interval"
        if ends is not None:
            interval = f"[{100 * ends[0]:.2f}, {100 * ends[1]:.2f}]"
        cells.append(f"{100 * value:.2f} {interval}")
    for metric in recipe.metrics.values():
        cells.append(f"{100 * np.mean([metric(fold.columns) for fold in alone]):.2f}")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print Table 7 by the folds' joined embeddings, and by the folds' mean."""
    parser = argument_parser(__doc__)
    parser.add_argument("--variants", default=",".join(METHODS), help="losses, separated by commas")
    parser.add_argument(
        "--weights", required=True, help="BN-Inception's public ImageNet checkpoint"
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CUB_200_2011/")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        metavar="FIELD=VALUE",
        help="overrides, as of likeness train",
    )
    options = parser.parse_args()
    columns = [f"{name}, {kind}" for kind in ("joined", "folds' mean") for name in COLUMNS]
    say(f"| loss | {' | '.join(columns)} |\n{'|---' * (1 + len(columns))}|")
    for name in options.variants.split(","):
        recipe = override(EVERY[name], [f"backbone.weights={options.weights}", *options.set])
        say(row(name, recipe, options.data, options.out / name))


if __name__ == "__main__":
    with one_sentence("simple.py"):
        main()
