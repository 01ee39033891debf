"""The demo: a verifier for drawn faces, in under a minute.

    likeness demo --only face --out demo

Everything is synthetic (modalities/synthetic_faces.py) and runs on one core. 60 drawn subjects
train, 20 others test, 10 images each; pose, expression, light and background change from image to
image. A small SFNet trained with ArcFace on 48 x 48 pixels is set against the cosine of the same
pixels. The lines printed at the end redo each step by hand.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from likeness.backbones import SFNet
from likeness.data import Item, faces, folders, synthetic_faces
from likeness.frontends import INSIGHTFACE, geometric_view
from likeness.losses import ArcFace
from likeness.metrics import eer, tar_at_far
from likeness.recipe import Compute, Optim, Recipe, Sampling, Schedule, Verification
from likeness.training import demo

NUM_SUBJECTS, NUM_SHOTS = 80, 10
SIZE = 48

RECIPES = {
    "arcface": Recipe(
        modality="face",
        frontend=INSIGHTFACE,
        backbone=partial(SFNet, dim=64, depth=10, width=16, image_size=SIZE, batch_norm=True),
        loss=partial(ArcFace, margin=0.2, scale=16.0),
        items=partial(folders.items, modality="face", split="train", test_share=0.25),
        measure=Verification(
            trials=partial(folders.trials, modality="face", split="test", test_share=0.25),
            metrics={"eer": eer, "tar_at_far(.01)": partial(tar_at_far, far=0.01)},
        ),
        read=partial(faces.read, size=(SIZE, SIZE), fit="resize"),
        augment=partial(
            geometric_view,
            scale=(0.9, 1.1),
            max_degrees=5.0,
            extra_offset=0.05,
            cutout_prob=0.1,
            blur_prob=0.1,
            num_photo=1,
        ),
        sampling=Sampling(batch_size=64, items_per_class=2),
        optim=Optim(name="adamw", lr=2e-3, weight_decay=5e-2),
        schedule=Schedule(steps=300, warmup_steps=30, save_every=150),
        compute=Compute(threads=1, cache=True),
    )
}


def baseline(items: list[Item]) -> np.ndarray:
    """The pixels that the network sees, scaled as for it."""
    rows = [faces.read(item, size=(SIZE, SIZE), fit="resize").ravel() for item in items]
    return (np.stack(rows) - 127.5) / 127.5


def main(out: Path) -> None:
    """Synthesise, train, embed, score, evaluate, report; all files stay in `out`."""
    demo.run(
        RECIPES["arcface"],
        write=partial(synthetic_faces.write_faces, num_subjects=NUM_SUBJECTS, num_shots=NUM_SHOTS),
        contents=f"{NUM_SUBJECTS} synthetic subjects x {NUM_SHOTS} images",
        baseline=("pixels", baseline),
        out=out,
        own_data="train face/folders --data DATA --out runs/mine      "
        "DATA/SUBJECT/*.jpg, aligned or with faces in their centre",
    )
