"""CMU AN4: 54 speakers, one session each, five folds over speakers.

    likeness train speaker/an4:arcface items.fold=0 measure.trials.fold=0
        --data DATA --out runs/an4-0
        one fold; DATA holds an4/
    likeness compare speaker/an4 --variants arcface,cosface,simple --tune 6
        --data DATA --out runs/an4-compare
        one fold, three seeds
    make results DATA=...
        all folds, seeds and baselines

Expected numbers, with intervals and their commands: docs/reference/results.md. One run takes
minutes on one core. The speakers of the folds are disjoint. One session per speaker makes the
long-term spectrum a cue, so that mean normalisation costs much here (variant arcface_cmn): never
quote AN4 for robustness to the channel. With 43 speakers to train, deep networks overfit (variant
ecapa_arcface); order statistics of the filterbank do not.

Losses: vMF paper Eq 1 and 8 (softmax, vmf), Deng et al. 2019 (arcface), Wang et al. 2018 (cosface),
Wang et al. 2019 (multi_similarity), nivMF paper (el_nivmf), SimPLE paper Eq 8 with alpha near the
share of positive pairs of so few classes (simple).
"""

from dataclasses import replace
from functools import partial

from likeness import losses
from likeness.backbones import ECAPA, OrderStatistics
from likeness.data import an4, audio
from likeness.frontends import KaldiFbank, train_view
from likeness.metrics import eer, min_dcf
from likeness.recipe import Compute, Memory, Optim, Range, Recipe, Sampling, Schedule, Verification

ARCFACE = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80, cmn=False),
    backbone=partial(OrderStatistics, dim=128, dropout=0.5),
    loss=partial(losses.ArcFace, margin=0.2, scale=30.0),
    items=partial(an4.items, split="train", fold=0, speeds=(0.9, 1.1)),  # speeds are new classes
    measure=Verification(
        trials=partial(an4.trials, split="test", fold=0),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=audio.read,
    augment=partial(train_view, seconds=(0.8, 2.5)),
    sampling=Sampling(batch_size=128, items_per_class=2),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=1e-2),
    schedule=Schedule(steps=1000, warmup_steps=100, save_every=500),
    compute=Compute(threads=1, cache=True),
)

RECIPES = {
    "arcface": ARCFACE,
    "softmax": replace(ARCFACE, loss=losses.Softmax),
    "simple": replace(
        ARCFACE,
        backbone=partial(OrderStatistics, dim=128, dropout=0.5, norm=5.5),
        loss=partial(losses.SimPLE, r=1.0, alpha=0.1, b_theta=0.3, b=0.0),
        memory=Memory(2048, 0.99),
    ),
    "cosface": replace(ARCFACE, loss=partial(losses.CosFace, margin=0.2, scale=30.0)),
    "vmf": replace(ARCFACE, loss=partial(losses.VMF, resultant=0.7)),
    "multi_similarity": replace(ARCFACE, loss=losses.MultiSimilarity),
    "el_nivmf": replace(
        ARCFACE,
        backbone=partial(OrderStatistics, dim=128, dropout=0.5, norm=10.0),
        loss=partial(losses.ProbabilisticNCA, distance="el_nivmf"),
        optim=replace(ARCFACE.optim, proxy_lr_scale=10.0),  # proxies start at norm 10
    ),
    "arcface_cmn": replace(ARCFACE, frontend=partial(KaldiFbank, num_mels=80, cmn=True)),
    "ecapa_arcface": replace(
        ARCFACE,
        backbone=partial(ECAPA, dim=128, channels=128),
        augment=partial(train_view, seconds=(1.5, 2.5), noise_prob=0.3),
        sampling=Sampling(batch_size=32, items_per_class=2),
        schedule=Schedule(steps=600, warmup_steps=60, save_every=200),
        compute=replace(ARCFACE.compute, precision="bfloat16"),
    ),
}

# What `likeness compare --tune` searches on validation speakers: two settings each.
RANGES = {
    "arcface": {"loss.margin": Range(0.05, 0.5), "loss.scale": Range(10.0, 64.0, log=True)},
    "cosface": {"loss.margin": Range(0.05, 0.5), "loss.scale": Range(10.0, 64.0, log=True)},
    "softmax": {
        "backbone.norm": Range(1.0, 16.0, log=True),
        "optim.lr": Range(3e-4, 3e-3, log=True),
    },
    "simple": {"backbone.norm": Range(3.0, 10.0), "loss.b_theta": Range(0.0, 0.4)},
    "vmf": {"loss.resultant": Range(0.3, 0.9), "optim.proxy_lr_scale": Range(1.0, 30.0, log=True)},
    "multi_similarity": {"loss.base": Range(0.2, 0.8), "loss.beta": Range(10.0, 60.0, log=True)},
    "el_nivmf": {
        "backbone.norm": Range(3.0, 30.0, log=True),
        "optim.proxy_lr_scale": Range(10.0, 1000.0, log=True),
    },
}
