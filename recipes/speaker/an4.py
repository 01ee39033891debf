"""Speaker verification on CMU AN4: 54 speakers, one session each, five folds of disjoint speakers.

    likeness train recipes/speaker/an4.py:arcface items.fold=0 trials.fold=0 --data DATA --out runs/an4-0      DATA holds an4/
    make results DATA=...                                                                                     all folds, seeds and baselines

Expected numbers, with intervals and their commands: docs/results.md. One run takes minutes on one core.
One session per speaker makes the long-term spectrum a cue, so that mean normalisation costs much here (variant arcface_cmn): never quote AN4 for
robustness to the channel. With 43 speakers to train, deep networks overfit (variant ecapa_arcface); order statistics of the filterbank do not.
Losses: vMF paper Eq 1 (softmax), Deng et al. 2019 (arcface), SimPLE paper Eq 8 with alpha near the share of positive pairs of so few classes (simple).
"""

from dataclasses import replace
from functools import partial

from eval.verification import eer, min_dcf
from modalities.speaker import an4, audio
from modalities.speaker.augment import train_view
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.ecapa import ECAPA
from toolkit.backbones.statistics import OrderStatistics
from toolkit.losses.margin import ArcFace
from toolkit.losses.simple import SimPLE
from toolkit.losses.softmax import Softmax
from toolkit.memory import Memory
from toolkit.recipe import Optim, Recipe, Schedule
from toolkit.sampling import Sampling

ARCFACE = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80, cmn=False),
    backbone=partial(OrderStatistics, dim=128, dropout=0.5),
    loss=partial(ArcFace, margin=0.2, scale=30.0),
    items=partial(an4.items, split="train", fold=0, speeds=(0.9, 1.1)),  # speeds are new classes
    trials=partial(an4.trials, split="test", fold=0),
    read=audio.read,
    augment=partial(train_view, seconds=(0.8, 2.5)),
    metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    sampling=Sampling(batch_size=128, items_per_class=2),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=1e-2),
    schedule=Schedule(steps=1000, warmup_steps=100, save_every=500),
    threads=1,
    cache=True,
)

RECIPES = {
    "arcface": ARCFACE,
    "softmax": replace(ARCFACE, loss=Softmax),
    "simple": replace(
        ARCFACE,
        backbone=partial(OrderStatistics, dim=128, dropout=0.5, norm=5.5),
        loss=partial(SimPLE, r=1.0, alpha=0.1, b_theta=0.3, b=0.0),
        memory=Memory(2048, 0.99),
    ),
    "arcface_cmn": replace(ARCFACE, frontend=partial(KaldiFbank, num_mels=80, cmn=True)),
    "ecapa_arcface": replace(
        ARCFACE,
        backbone=partial(ECAPA, dim=128, channels=128),
        augment=partial(train_view, seconds=(1.5, 2.5), noise_prob=0.3),
        sampling=Sampling(batch_size=32, items_per_class=2),
        schedule=Schedule(steps=600, warmup_steps=60, save_every=200),
        precision="bfloat16",
    ),
}
