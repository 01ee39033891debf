"""ORL (AT&T) faces: 20 subjects, 10 grey images each, five folds over subjects.

    likeness train face/orl:arcface items.fold=0 measure.trials.fold=0 --data DATA --out runs/orl-0
        DATA holds orl/
    python recipes/face/orl.py --data DATA --out runs/orl
        all folds, seeds, baselines: the table
    likeness demo --only face --out runs/demo-face
        the deep networks start from its drawn faces
    python recipes/face/orl.py --data DATA --out runs/orl
        --variants deep_arcface,deep_simple --init runs/demo-face/run

Expected numbers, with intervals and their command: docs/reference/results.md. One fold takes
seconds of one core. The subjects of the folds are disjoint. Sixteen subjects to train are too few
for deep networks (deep_*), which cannot be told from raw pixels. Histograms of oriented gradients,
whitened by what varies within the trained subjects (Déniz et al. 2011, Hatch et al. 2006), make a
quarter of the errors of pixels, with a trained layer or without (estimated). Losses: Deng et al.
2019 (arcface), SimPLE paper Eq 8 with alpha near the share of positive pairs of so few classes
(simple).
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from _shared import FEW_TRIALS
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import likeness
from likeness import Embeddings, Scores
from likeness.backbones import GradientHistograms, SFNet
from likeness.data import Item, faces, orl
from likeness.frontends import INSIGHTFACE, geometric_view
from likeness.losses import ArcFace, SimPLE
from likeness.metrics import bounds, bounds_of, drawn_from, eer, query_metrics
from likeness.recipe import (
    Compute,
    Memory,
    Optim,
    Recipe,
    Sampling,
    Schedule,
    Verification,
    argument_parser,
    fit,
    one_sentence,
    override,
    say,
)

SIZE, NUM_FOLDS = 48, 5
Floats = NDArray[np.float64]
Drawn = tuple[float, Floats]  # EER, and its draws over subjects

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
DEEP = replace(
    ARCFACE,
    # the demo's, so that `init` fits
    backbone=partial(SFNet, dim=64, depth=10, width=16, image_size=SIZE, batch_norm=True),
    read=partial(faces.read, size=(SIZE, SIZE), fit="resize"),
    augment=partial(
        geometric_view,
        scale=(0.9, 1.15),
        rotate_prob=0.5,
        max_degrees=12.0,
        extra_offset=0.05,
        cutout_prob=0.3,
        blur_prob=0.1,
    ),
    optim=replace(ARCFACE.optim, lr=5e-4),
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
    "deep_arcface": DEEP,
    "deep_simple": replace(DEEP, loss=SIMPLE, memory=Memory(1024, 0.99)),
}
BASELINES = ("pixels", "pixels less their mean", "PCA", "PCA and LDA")


def pixels(items: list[Item]) -> Floats:
    """(N, SIZE * SIZE) grey levels, as the network sees them."""
    return np.stack(
        [faces.read(item, size=(SIZE, SIZE), fit="resize")[0].ravel() for item in items]
    ).astype(np.float64)


def baseline(name: str, fold: int, data: Path) -> Embeddings:
    """What needs no network: raw pixels; less the training mean; 40 principal components; LDA
    (shrinkage .1) of 60 components.
    """
    trained, tested = (orl.items(data, split=split, fold=fold) for split in ("train", "test"))
    x, rows = pixels(trained), pixels(tested)
    if name == "pixels less their mean":
        rows = rows - x.mean(axis=0)
    elif name == "PCA":
        rows = PCA(40, random_state=0).fit(x).transform(rows)
    elif name == "PCA and LDA":
        components = PCA(60, random_state=0).fit(x)
        lda = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1).fit(
            components.transform(x), [item.label for item in trained]
        )
        rows = lda.transform(components.transform(rows))
    return Embeddings(
        tuple(item.id for item in tested), rows.astype(np.float32), {"similarity": "cosine"}
    )


def network(variant: str, seed: int, fold: int, data: Path, init: str, out: Path) -> Embeddings:
    """Embeddings of a fold's test items by a network trained on the other folds (variant init: by
    `init` as it is); kept in `out`, not made twice.

    Only deep networks start from `init`: the others' constants are estimated from the trained
    subjects.
    """
    file = out / variant / f"seed{seed}" / f"fold{fold}.npz"
    if not file.exists():
        if variant == "init":
            model = likeness.load(init)
        else:
            first = override(
                RECIPES[variant], [f"items.fold={fold}", f"measure.trials.fold={fold}"]
            )
            recipe = replace(
                first,
                init=init if variant.startswith("deep_") else "",
                seed=seed,
            )
            model = likeness.load(
                fit(recipe, data=data, out=file.parent / f"run{fold}", resume=True)
            )
        file.parent.mkdir(parents=True, exist_ok=True)
        model.embed(orl.items(data, split="test", fold=fold)).save(file)
    return likeness.read_embeddings(file)


def row(name: str, folds: list[Embeddings], data: Path, against: dict[str, Drawn]) -> Drawn:
    """Print one Markdown row: EER of the folds' pooled trials, MAP@R, paired differences of the
    EER, all with intervals over subjects; returns the EER.
    """
    values, target, subjects, precisions = [], [], [], []
    for fold, embedded in enumerate(folds):
        items, trials = orl.trials(data, fold=fold)
        assert trials.target is not None
        labels = np.array([str(item.label) for item in items])
        numbers = np.array([int(label[1:]) for label in labels])
        row_of = {item.id: number for item, number in zip(items, numbers, strict=True)}
        sides = [
            np.array([row_of[item_id] for item_id in ids])[index]
            for ids, index in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
        ]
        values.append(likeness.score(trials, embedded).values)
        target.append(trials.target)
        subjects.append(np.stack(sides, axis=1))
        per_query = query_metrics(
            embedded.matrix[embedded.rows([item.id for item in items])],
            labels,
            similarity=embedded.meta["similarity"],
        )["map@r"]
        precisions += [per_query[labels == label].mean() for label in np.unique(labels)]
    scores = Scores(np.concatenate(values), np.concatenate(target))
    pairs = np.unique(np.concatenate(subjects), return_inverse=True)[1].reshape(-1, 2)
    drawn = bounds_of({"eer": eer}, scores, pairs)[1]["eer"]
    means = np.array(precisions)[
        np.random.default_rng(0).integers(len(precisions), size=(1000, len(precisions)))
    ].mean(axis=1)
    cells = [name]
    error = eer(scores.targets, scores.nontargets)
    behind = drawn_from(scores.target, pairs)
    columns = [(error, drawn, False), (float(np.mean(precisions)), means, False)]
    columns += [(error - point, drawn - draws, True) for point, draws in against.values()]
    for point, draws, difference in columns:
        ends = bounds(draws, point, 0.95, behind, difference=difference).ends
        sign = "+" if difference else ""
        interval = "no interval"
        if ends is not None:
            interval = f"[{100 * ends[0]:{sign}.1f}, {100 * ends[1]:{sign}.1f}]"
        cells.append(f"{100 * point:{sign}.1f} {interval}")
    say("| " + " | ".join(cells) + " |")
    return error, drawn


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds orl/")
    parser.add_argument(
        "--init",
        default="",
        help="run that deep networks start from; without it they start from nothing",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="folder for runs and embeddings; what is there is not made again",
    )
    parser.add_argument("--variants", default="arcface,simple")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    say(
        "| system | EER % (over subjects) | MAP@R % (over subjects) | EER vs pixels, paired | EER "
        "vs pixels less their mean, paired |\n|---|---|---|---|---|"
    )
    against: dict[str, Drawn] = {}
    for name in BASELINES:
        drawn = row(
            name,
            [baseline(name, fold, options.data) for fold in range(NUM_FOLDS)],
            options.data,
            against,
        )
        if name in BASELINES[:2]:
            against[name] = drawn
    chosen = [("init", 0)] if options.init else []
    for variant, seed in [
        *chosen,
        *((name, seed) for name in options.variants.split(",") for seed in range(options.seeds)),
    ]:
        measured = [
            network(variant, seed, fold, options.data, options.init, options.out)
            for fold in range(NUM_FOLDS)
        ]
        row(
            "the demo's network as it is" if variant == "init" else f"{variant}, seed {seed}",
            measured,
            options.data,
            against,
        )


if __name__ == "__main__":
    with one_sentence("orl.py"):
        main()
