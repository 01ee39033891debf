"""speechocean762: 250 speakers, half of them children, five folds over speakers.

    likeness train speaker/speechocean:arcface items.fold=0 measure.trials.fold=0
        --data DATA --out runs/speechocean-0
        one fold; DATA holds speechocean/ or speechocean762/ (`likeness prepare speechocean`)
    python benchmarks/people.py speechocean --data DATA --out runs/speechocean
        all folds, seeds and peers, with error rates by age and sex

Expected numbers, with intervals and their commands: docs/reference/results.md. The speakers of the
folds are disjoint, and sexes and bands of age have even shares. There is most likely one session
per speaker, so the long-term spectrum is a cue: speaker/an4 says what follows.

The statistics of the features are those of speaker/an4, how they move between frames, and how
groups of bands move together. Those of mixture and mixture_arcface are means within 32 kinds of
sounds (toolkit/backbones/mixture.py), which depend less on what is said.

Losses: Deng et al. 2019 (arcface), vMF paper Eq 1 (softmax), SimPLE paper Eq 8 with alpha near the
share of positive pairs of so few classes (simple).
"""

from dataclasses import replace
from functools import partial

from likeness.backbones import ECAPA, MixtureStatistics, OrderStatistics, ResNet
from likeness.data import audio, speechocean
from likeness.frontends import KaldiFbank, train_view
from likeness.losses import ArcFace, SimPLE, Softmax
from likeness.metrics import eer, min_dcf
from likeness.recipe import Compute, Memory, Optim, Recipe, Sampling, Schedule, Tuning, Verification

STATISTICS = partial(OrderStatistics, dim=128, dropout=0.5, differences=(2, 8), num_correlated=20)

ARCFACE = Recipe(
    modality="speaker",
    frontend=partial(KaldiFbank, num_mels=80, cmn=False),
    backbone=STATISTICS,
    loss=partial(ArcFace, margin=0.2, scale=30.0),
    # Speeds are new classes.
    items=partial(speechocean.items, split="train", fold=0, speeds=(0.9, 1.1)),
    measure=Verification(
        trials=partial(speechocean.trials, split="test", fold=0),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=audio.read,
    augment=partial(train_view, seconds=(0.8, 2.5)),
    sampling=Sampling(batch_size=128, items_per_class=2),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=1e-2),
    schedule=Schedule(steps=1000, warmup_steps=100, save_every=500),
    compute=Compute(threads=1, cache=True),
)

DEEP = replace(
    ARCFACE,
    augment=partial(train_view, seconds=(1.5, 2.5), noise_prob=0.3),
    sampling=Sampling(batch_size=32, items_per_class=2),
    schedule=Schedule(steps=1000, warmup_steps=100, save_every=500),
    compute=replace(ARCFACE.compute, precision="bfloat16"),
)

RECIPES = {
    "arcface": ARCFACE,
    "arcface_averaged": replace(  # the mean of the last ten checkpoints, as WeSpeaker has it
        ARCFACE,
        tuning=Tuning(average_last=10),
        schedule=replace(ARCFACE.schedule, save_every=50),
    ),
    "softmax": replace(ARCFACE, loss=Softmax),
    "simple": replace(
        ARCFACE,
        backbone=partial(STATISTICS, norm=5.5),
        loss=partial(SimPLE, r=1.0, alpha=0.1, b_theta=0.3, b=0.0),
        memory=Memory(2048, 0.99),
    ),
    # Whitened, and nothing trained. It takes seconds; score it with AS-norm.
    "estimated": replace(
        ARCFACE,
        backbone=partial(STATISTICS, start="rotation"),
        optim=replace(ARCFACE.optim, lr=0.0),
        schedule=Schedule(steps=1),
    ),
    # Without training, as "estimated", from means within kinds of sounds. It carries over to other
    # corpora better.
    "mixture": replace(
        ARCFACE,
        backbone=partial(MixtureStatistics, start="rotation"),
        optim=replace(ARCFACE.optim, lr=0.0),
        schedule=Schedule(steps=1),
    ),
    "mixture_arcface": replace(ARCFACE, backbone=MixtureStatistics),
    "arcface_cmn": replace(ARCFACE, frontend=partial(KaldiFbank, num_mels=80, cmn=True)),
    "ecapa": replace(DEEP, backbone=partial(ECAPA, dim=128, channels=128)),
    "resnet": replace(  # a step takes three times as long as one of ecapa
        DEEP,
        backbone=partial(ResNet, dim=128, depth=18, width=16),
        schedule=replace(DEEP.schedule, steps=350, warmup_steps=50),
    ),
}
