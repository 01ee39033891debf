"""What the recipes of this folder share: the two stages by which WeSpeaker trains a network.

They are its conf/resnet.yaml and conf/resnet_lm.yaml (examples/voxceleb/v2 and cnceleb/v2).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from likeness.backbones import ResNet
from likeness.data import audio
from likeness.frontends import WESPEAKER_VIEW, KaldiFbank, spec_augment
from likeness.losses import ArcFace
from likeness.metrics import eer, min_dcf
from likeness.recipe import (
    Compute,
    Optim,
    Part,
    Recipe,
    Sampling,
    Schedule,
    Tuning,
    Verification,
    exponential,
)

METRICS: dict[str, Part] = {"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)}
# Off, as in WeSpeaker's recipes; mask.prob switches it on.
NO_MASK = partial(spec_augment, prob=0.0)


def resnet34(items: Part, trials: Part) -> Recipe:
    """The first stage, on a data set: 150 epochs of WeSpeaker, the last 10 of which are averaged.

    Sped-up and slowed-down speakers are classes of their own, so that a pass over the items is
    three of WeSpeaker's epochs, in which an utterance has one of the three speeds. The numbers of
    the schedule and of the margin are these epochs, as shares of 150.

    Args:
        items: Lists what is trained on; it takes `speeds`.
        trials: Lists the trials.
    """
    return Recipe(
        modality="speaker",
        frontend=partial(KaldiFbank, num_mels=80, dither=1.0, cmn=True),
        backbone=partial(ResNet, dim=256, width=32),
        loss=partial(ArcFace, margin=0.2, scale=32.0, warmup_steps=(19, 39), ramp="exponential"),
        items=partial(items, speeds=(0.9, 1.1)),
        read=audio.read,
        augment=WESPEAKER_VIEW,
        mask=NO_MASK,
        sampling=Sampling(batch_size=256),
        optim=Optim(
            name="sgd", lr=0.1, reference_batch=64, momentum=0.9, nesterov=True, weight_decay=1e-4
        ),
        tuning=Tuning(average_last=10),
        schedule=Schedule(
            steps=150,
            epochs=50,
            warmup_steps=6,
            decay=partial(exponential, end=5e-4),
            eval_every=5,
            save_every=1,
        ),
        compute=Compute(workers=8),
        measure=Verification(trials=trials, metrics=METRICS),
    )


def large_margin(stage: Recipe, init: str) -> Recipe:
    """The second stage: longer crops, a larger margin, small rates, and no average.

    Sped-up speech only keeps the classes of the first stage: one utterance a speaker and speed.

    Args:
        stage: The first stage.
        init: The folder of its run.
    """
    return replace(
        stage,
        loss=partial(ArcFace, margin=0.5, scale=32.0),
        items=partial(stage.items, speed_items="one"),
        augment=partial(WESPEAKER_VIEW, seconds=(6.015, 6.015)),
        sampling=Sampling(batch_size=128),
        optim=replace(stage.optim, lr=1e-4),
        tuning=Tuning(),
        schedule=Schedule(
            steps=5,
            epochs=5,
            warmup_steps=1,
            decay=partial(exponential, end=0.25),
            eval_every=1,
            save_every=1,
        ),
        init=init,
    )
