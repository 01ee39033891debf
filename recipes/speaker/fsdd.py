"""Free Spoken Digit Dataset: six speakers, ten digits, 8 kHz, .4 s an utterance.

A complete experiment in minutes on one core, and no more than that.

    likeness train speaker/fsdd items.fold=3 measure.trials.fold=3 --data DATA --out runs/fsdd-3
        one fold of 15; DATA holds fsdd/

Fold k holds out the k-th pair of speakers and trains on the four others
(modalities/speaker/fsdd.py). What can be learnt from four voices is which directions of the
long-term spectrum vary from word to word, not what tells people apart. So expect folds to differ by
tens of points, and compare methods elsewhere. One session and microphone per speaker make the
channel a cue (hence no mean normalisation).
"""

from dataclasses import replace
from functools import partial

from likeness.backbones import OrderStatistics
from likeness.data import audio, fsdd
from likeness.frontends import KaldiFbank, train_view
from likeness.losses import ArcFace, SimPLE
from likeness.metrics import eer, min_dcf
from likeness.recipe import Compute, Memory, Optim, Recipe, Sampling, Schedule, Verification

ARCFACE = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=40, rate_hz=fsdd.RATE_HZ, cmn=False),
    backbone=partial(OrderStatistics, dim=32, num_directions=16, dropout=0.5),
    loss=partial(ArcFace, margin=0.2, scale=30.0),
    # speeds are new classes: 12
    items=partial(fsdd.items, split="train", fold=0, speeds=(0.9, 1.1)),
    measure=Verification(
        trials=partial(fsdd.trials, split="test", fold=0),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=partial(audio.read, rate_hz=fsdd.RATE_HZ),
    augment=partial(train_view, seconds=(0.2, 0.5), rate_hz=fsdd.RATE_HZ, gain_prob=0.5),
    sampling=Sampling(batch_size=48, items_per_class=4),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=1e-2),
    schedule=Schedule(steps=300, warmup_steps=30, save_every=300),
    compute=Compute(threads=1, cache=True),
)

RECIPES = {
    "arcface": ARCFACE,
    "simple": replace(
        ARCFACE,
        backbone=partial(OrderStatistics, dim=32, num_directions=16, dropout=0.5, norm=5.5),
        loss=partial(SimPLE, r=1.0, alpha=0.1, b_theta=0.3, b=0.0),
        memory=Memory(512, 0.99),
    ),
    "arcface_cmn": replace(
        ARCFACE, frontend=partial(KaldiFbank, num_mels=40, rate_hz=fsdd.RATE_HZ, cmn=True)
    ),
}
