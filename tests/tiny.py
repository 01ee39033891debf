"""A recipe that trains in a second or two, for tests of the loop and of the command line."""

from dataclasses import replace
from functools import partial

from eval.verification import eer
from modalities import folders
from modalities.speaker import audio
from modalities.speaker.augment import train_view
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.resnet import ResNet34
from toolkit.data.sampling import Sampling
from toolkit.losses.margin import ArcFace
from toolkit.losses.simple import SimPLE
from toolkit.training.memory import Memory
from toolkit.training.recipe import Compute, Optim, Recipe, Schedule, Verification

BASE = Recipe(
    modality="speaker",
    # dither draws from torch's generator: resume has to restore it
    frontend=partial(KaldiFbank, num_mels=16, dither=1.0),
    backbone=partial(ResNet34, dim=8, width=2, blocks=(1, 1, 1, 1)),
    loss=partial(ArcFace, scale=8.0),
    items=partial(folders.items, split="train", test_share=0.25),
    read=audio.read,
    augment=partial(train_view, seconds=(0.4, 0.5), noise_prob=0.5),
    measure=Verification(
        trials=partial(folders.trials, split="test", test_share=0.25), metrics={"eer": eer}
    ),
    sampling=Sampling(batch_size=8, items_per_class=2),
    optim=Optim(lr=0.05),
    schedule=Schedule(steps=12, save_every=3),
    compute=Compute(threads=1),
)
RECIPES = {
    "arcface": BASE,
    "simple": replace(
        BASE,
        loss=partial(SimPLE, r=1.0, alpha=0.1, b=-1.0),
        memory=Memory(20, 0.9),
        schedule=Schedule(steps=12, save_every=5),
    ),
}
