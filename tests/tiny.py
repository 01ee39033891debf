"""A recipe that trains in a second or two, for tests of the loop and of the command line, and a
model that nobody trained.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from likeness.data import audio, folders
from likeness.eval.metrics.verification import eer
from likeness.frontends import KaldiFbank, train_view
from likeness.losses import ArcFace, SimPLE
from likeness.recipe import Compute, Memory, Optim, Recipe, Sampling, Schedule, Verification
from likeness.toolkit.backbones.resnet import ResNet
from likeness.toolkit.models.checkpoint import save_model
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training.recipe import override

BASE = Recipe(
    modality="speaker",
    # dither draws from torch's generator: resume has to restore it
    frontend=partial(KaldiFbank, num_mels=16, dither=1.0),
    backbone=partial(ResNet, dim=8, width=2, blocks=(1, 1, 1, 1)),
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
_SIMPLE = replace(BASE, memory=Memory(20, 0.9), schedule=Schedule(steps=12, save_every=5))
RECIPES = {
    "arcface": BASE,
    "simple": replace(_SIMPLE, loss=partial(SimPLE, r=1.0, alpha=0.1, b=-1.0)),
}

# settings by which a recipe trains in seconds
QUICK = ("schedule.steps=2", "schedule.epochs=0", "schedule.warmup_steps=0")
QUICK += ("schedule.eval_every=0", "sampling.batch_size=8")
QUICK += ("compute.workers=0", "compute.threads=1")

# a small network of each class
NETWORKS = {
    "BNInception": ["dim=8"],
    "ECAPA": ["channels=16", "dim=16"],
    "ERes2Net": ["width=8", "dim=16"],
    "ERes2NetV2": ["width=8", "dim=16"],
    "FaceViT": ["width=16", "depth=1", "heads=2", "dim=8"],
    "IResNet": ["depth=18", "blocks=1,1,1,1", "width=8", "dim=8"],
    "ImageResNet": ["blocks=1,1,1,1", "width=8", "dim=8"],
    "ResNet": ["blocks=1,1,1,1", "width=8", "dim=16"],
    "SimAMResNet": ["width=4", "dim=16"],
    "SFNet": ["depth=10", "width=8", "dim=8"],
    "WeSpeakerECAPA": ["channels=16", "pooled=24", "dim=16", "se_channels=8"],
}


def small_settings(recipe: Recipe, *settings: str) -> list[str]:
    """FIELD=VALUE of a network, a memory and steps small enough for a test, and these settings."""
    kind = describe(recipe)["backbone"]["call"].rpartition(".")[2]
    small = [f"backbone.{setting}" for setting in NETWORKS.get(kind, ())]
    small += ["memory.size=16"] if recipe.memory else []
    return [*QUICK, *small, *settings]


def shrunk(recipe: Recipe, *settings: str) -> Recipe:
    """A recipe that is small enough for a test, with these settings."""
    return override(recipe, small_settings(recipe, *settings))


def untrained(folder: Path, recipe: Recipe = BASE) -> Path:
    """Write the model of a recipe with random weights into a folder, as `likeness train` does."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    frontend = recipe.frontend()
    embedder = TorchEmbedder(frontend, recipe.backbone(frontend.dim)).eval()
    path = folder / "last.safetensors"
    save_model(path, embedder, recipe, similarity="cosine", step=1, metrics={})
    return folder
