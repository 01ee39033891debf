"""WebFace4M, 12M and 42M and Glint360K: InsightFace's CosFace with Partial FC.

WebFace260M (Zhu et al. 2021), Glint360K (An et al. 2021), Partial FC (An et al. 2022), as
InsightFace's arcface_torch trains them.

    likeness train face/webface:webface4m_r100 --data DATA --out runs/wf4m
        one GPU
    torchrun --nproc-per-node 8 -m likeness train face/webface:webface42m_r100_pfc02
        --data DATA --out runs/wf42m

DATA is one of the sets as InsightFace packs it: train.rec and train.idx, and the .bin sets; or tar
shards with sampling.open_shards=64. The model is watched on LFW, CFP-FP and AgeDB-30 together while
it trains, from DATA/lfw.bin, cfp_fp.bin, agedb_30.bin, or from a folder of that name with its list.
measure.trials.sets=lfw watches others; measure=none schedule.watch= watches none. The best
checkpoint on them is the model: report IJB instead. The classes are spread over the processes
whatever their number, and each step draws a share of them (_pfc02: .2). Batch sizes are those of
all processes together. On GPUs without bfloat16, many processes need compute.precision=float32.

Nothing here has been trained by us: docs/reference/results.md has what was measured. Published in
arcface_torch/README.md, %: MFR-ALL, IJB-C TAR@FAR 1e-4 and 1e-5; and hours.

                               MFR     1e-4    1e-5    hours
    webface4m_r100            89.87   97.19   95.48     7
    webface12m_r100           94.69   97.59   95.97    22
    webface12m_r100_pfc02     94.75   97.60   95.90    22
    webface12m_r100_pfc03     94.71   97.64   96.01    22
    webface42m_r100_pfc02     96.27   97.70   96.31    74
    webface42m_r100_pfc02_4k  96.69   97.85   96.63    45 on 16 GPUs
    webface42m_r50_pfc02_4k   93.83   97.53   96.16    40
    webface42m_vit_b_pfc03    97.16   97.91   97.05    not published (on 64 GPUs 34)
    glint360k_r50             86.34   97.16   95.81    20
    glint360k_r100            89.52   97.55   96.38    30
    glint360k_r100_pfc01      no number in that README; ours to compare with

IJB-C is N1D1F1 (likeness.eval.protocols.ijb). Hours are computed, images x epochs / images a
second, on 8 GPUs unless stated: r100 3,200 (insightface issue 1430), r50 4,700 (its speed table,
V100), WebFace42M with 4,096 images 5,900 (r50) and 5,200 (r100), ViT-B 13,800 (README).

As released (configs/wf*.py, glint360k_*.py, base.py; train_v2.py): CosFace 64 and .4; flips; SGD .1
for 8 x 128 images (.3 for 16 x 256, .4 for 8 x 512), momentum .9, weight decay 5e-4 (Glint360K
1e-4), 20 epochs, (1 - x)^2 after a linear warm-up of 0, 1 and 2 epochs (PolyScheduler, of the
configs' time; today's PolynomialLRWarmup has power 1: schedule.decay.power=1), clipped at 5. ViT-B:
AdamW .001, weight decay .1, 40 epochs, warm-up of 4, batches of 8 x 256 x 12.

Differences:
- The clipping counts the class vectors too. Biases and norms take no weight decay. Class vectors
  start at Xavier's scale, not .01. bfloat16 is used where the release has float16.
- In ViT-B a step is one of the optimiser's, with one loss and one draw of classes over its 24,576
  images, where the release draws anew for each of the 12 parts.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from _shared import aligned

from likeness.backbones import FaceViT, IResNet
from likeness.data import validation
from likeness.frontends import FLIP_VIEW
from likeness.losses import CosFace
from likeness.recipe import Optim, Parallel, Recipe, Sampling, Schedule, polynomial

NUM_IMAGES = {
    "webface4m": 4_235_242,
    "webface12m": 12_720_066,
    "webface42m": 42_474_557,
    "glint360k": 17_091_657,
}


def schedule(
    images_of: str, batch_size: int, *, epochs: int = 20, warmup_epochs: int = 0
) -> Schedule:
    """InsightFace's: whole batches of an epoch x epochs, a linear warm-up, then (1 - x)^2 to 0."""
    steps = NUM_IMAGES[images_of] // batch_size
    decay = partial(polynomial, power=2.0, start=warmup_epochs / epochs)
    return Schedule(
        steps=epochs * steps,
        warmup_steps=warmup_epochs * steps,
        decay=decay,
        eval_every=10_000,
        save_every=2_000,
        watch="eer",
    )


def sampled(recipe: Recipe, rate: float) -> Recipe:
    """The same with Partial FC: each step draws a share of the classes."""
    return replace(recipe, parallel=replace(recipe.parallel, class_rate=rate))


BASE = aligned(
    backbone=partial(IResNet, dim=512, depth=100),
    loss=partial(CosFace, margin=0.4, scale=64.0),
    grad_clip=5.0,
    schedule=schedule("webface4m", 1024),
    trials=partial(validation.trials, sets=("lfw", "cfp_fp", "agedb_30")),
)
WEBFACE4M = replace(
    BASE,
    augment=partial(FLIP_VIEW),
    sampling=Sampling(batch_size=1024),
    parallel=Parallel(spread_classes=True),
)
WEBFACE12M = replace(WEBFACE4M, schedule=schedule("webface12m", 1024))
WEBFACE42M = sampled(replace(WEBFACE4M, schedule=schedule("webface42m", 1024)), 0.2)
GLINT360K = replace(
    WEBFACE4M,
    schedule=schedule("glint360k", 1024),
    optim=replace(WEBFACE4M.optim, weight_decay=1e-4),
)

RECIPES = {
    "webface4m_r100": WEBFACE4M,
    "webface12m_r100": WEBFACE12M,
    "webface12m_r100_pfc02": sampled(WEBFACE12M, 0.2),
    "webface12m_r100_pfc03": sampled(WEBFACE12M, 0.3),
    "webface42m_r100_pfc02": WEBFACE42M,
    "webface42m_r100_pfc02_4k": replace(
        WEBFACE42M,
        sampling=Sampling(batch_size=4096),
        optim=replace(WEBFACE42M.optim, lr=0.3),
        schedule=schedule("webface42m", 4096, warmup_epochs=1),
    ),
    "webface42m_r50_pfc02_4k": replace(
        WEBFACE42M,
        backbone=partial(IResNet, dim=512, depth=50),
        sampling=Sampling(batch_size=4096),
        optim=replace(WEBFACE42M.optim, lr=0.4),
        schedule=schedule("webface42m", 4096, warmup_epochs=2),
    ),
    "webface42m_vit_b_pfc03": replace(
        WEBFACE42M,
        backbone=partial(FaceViT, dim=512, width=512, depth=24, masked=0.05, drop_path=0.05),
        sampling=Sampling(batch_size=24_576),
        optim=Optim(name="adamw", lr=0.001, weight_decay=0.1, grad_clip=5.0),
        schedule=schedule("webface42m", 24_576, epochs=40, warmup_epochs=4),
        compute=replace(WEBFACE42M.compute, accumulate=12),
        parallel=replace(WEBFACE42M.parallel, class_rate=0.3),
    ),
    "glint360k_r50": replace(GLINT360K, backbone=partial(IResNet, dim=512, depth=50)),
    "glint360k_r100": GLINT360K,
    "glint360k_r100_pfc01": sampled(GLINT360K, 0.1),
}
