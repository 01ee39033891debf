"""A verifier from your own faces, DATA/SUBJECT/**/*.jpg.

Images may be png, webp and others as well. Four subjects or more with two images or more each are
needed.

    likeness train face/folders --data DATA --out runs/mine
        a small SFNet on 64 x 64 pixels: minutes on a CPU, dozens of subjects
    likeness train face/folders:sfnet20 --data ALIGNED --out runs/mine
        SFNet-20 on a GPU, thousands of subjects (iresnet50, simple likewise)
    likeness align DATA --out ALIGNED --detector DETECTOR.onnx
        crops of 112 x 112 from photographs, with an SCRFD or YuNet detector
    likeness lists DATA --out OUT
        the item list and the trial list of the held-out subjects for `embed` and `score`

small takes any image in which the face fills most of the picture and sits in its centre, and
resizes it; the proportions change with it. The others take aligned crops of 112 x 112 only (the
five landmarks of InsightFace, modalities/face/align.py) and refuse the rest. A fifth of the
subjects is held out and never trained on; trials among them are drawn with a seed (at most 20,000)
and give the EER in the log. DATA may also be tar shards, a .rec file, or a list DATA.txt of one
SUBJECT/image.jpg a line, below the list's folder (OpenSphere's), or a .csv, .tsv or .parquet file.
`--label '{label}_*.jpg'` takes the subjects from the names of files.

No numbers are expected; they depend on the data. For comparison: ORL (20 subjects) in
docs/reference/results.md. simple: SimPLE paper Eq 8 with the settings of its SFNet-20, sampling and
bank as in OpenSphere's release, 4 images of 128 subjects a step.
"""

from dataclasses import replace
from functools import partial

from _shared import FEW_TRIALS, simple

from likeness.backbones import IResNet, SFNet
from likeness.data import faces, folders
from likeness.frontends import ADAFACE_VIEW, FLIP_VIEW, INSIGHTFACE, geometric_view
from likeness.losses import ArcFace
from likeness.recipe import Optim, Range, Recipe, Sampling, Schedule, Verification, multistep

SMALL = Recipe(
    modality="face",
    frontend=INSIGHTFACE,
    backbone=partial(SFNet, dim=128, depth=10, width=16, image_size=64, batch_norm=True),
    loss=partial(ArcFace, margin=0.2, scale=16.0),
    items=partial(folders.items, modality="face", split="train", test_share=0.2),
    measure=Verification(
        trials=partial(folders.trials, modality="face", split="test", test_share=0.2),
        metrics=FEW_TRIALS,
    ),
    read=partial(faces.read, size=(64, 64), fit="resize"),
    augment=partial(
        geometric_view, scale=(0.9, 1.15), rotate_prob=0.5, max_degrees=10.0, extra_offset=0.05
    ),
    sampling=Sampling(batch_size=64),
    optim=Optim(name="adamw", lr=2e-3, weight_decay=5e-2),
    schedule=Schedule(steps=1000, warmup_steps=100),
)

SFNET20 = replace(
    SMALL,
    backbone=partial(SFNet, dim=512, depth=20, batch_norm=True),
    loss=partial(ArcFace, margin=0.5, scale=64.0),
    read=partial(faces.read, size=(112, 112)),
    augment=partial(FLIP_VIEW),
    sampling=Sampling(batch_size=512),
    optim=Optim(name="sgd", lr=0.1, momentum=0.9, weight_decay=5e-4, grad_clip=5.0),
    schedule=Schedule(
        steps=70_000,
        warmup_steps=1000,
        decay=partial(multistep, at=(4 / 7, 6 / 7)),
        eval_every=2000,
        save_every=1000,
        watch="eer",
    ),
    compute=replace(SMALL.compute, workers=8),
)

RECIPES = {
    "small": SMALL,
    "sfnet20": SFNET20,
    "iresnet50": replace(SFNET20, backbone=partial(IResNet, dim=512, depth=50)),
    "simple": replace(
        simple(SFNET20),
        augment=partial(ADAFACE_VIEW),
        optim=replace(SFNET20.optim, grad_clip=100.0),
    ),
}

_ARCFACE = {"loss.margin": Range(0.05, 0.7), "loss.scale": Range(10.0, 64.0, log=True)}

# What `likeness compare --tune` searches on validation subjects: two settings of each loss.
RANGES = {
    **dict.fromkeys(("small", "sfnet20", "iresnet50"), _ARCFACE),
    "simple": {"loss.alpha": Range(1e-3, 0.1, log=True), "loss.b_theta": Range(0.0, 0.4)},
}
