"""Twenty losses for a head on embeddings, with equal settings.

    likeness compare head_losses --seeds 3 --tune 5 --reference softmax
        --data embeddings.npz --out runs/head-losses
        the same linear layer, batches and steps for all; two settings of each loss are tuned in
        five trials on a quarter of the training subjects

The data are those of the recipe head: the embeddings of any model, with their subjects. A fifth of
the subjects is tested. Every loss ranks by its own geometry. Measured: docs/reference/results.md,
on voices. Those from softmax_euclidean on are for docs/reference/claims.md, and --variants leaves
them out.

Losses: docs/reference/losses.md has the paper of each.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from likeness import losses
from likeness.backbones import Head
from likeness.data import rows
from likeness.metrics import eer, min_dcf
from likeness.recipe import Compute, Memory, Optim, Range, Recipe, Sampling, Schedule, Verification

SOFTMAX = Recipe(
    modality="embedding",
    frontend=rows.Vectors,
    backbone=Head,
    loss=losses.Softmax,
    items=partial(rows.items, split="train", test_share=0.2),
    measure=Verification(
        trials=partial(rows.trials, split="test", test_share=0.2),
        metrics={"eer": eer, "min_dcf(.01)": partial(min_dcf, p_target=0.01)},
    ),
    read=rows.read,
    sampling=Sampling(batch_size=128, items_per_class=4),
    optim=Optim(name="adamw", lr=1e-3, weight_decay=1e-2),
    schedule=Schedule(steps=300, warmup_steps=30, save_every=300),
    compute=Compute(threads=1),
)


def with_loss(loss: Any, *, gain: float = 1.0, proxy_lr_scale: float = 10.0) -> Recipe:
    """The common recipe with another loss.

    Args:
        loss: The loss with its settings.
        gain: By what the embeddings of the start are multiplied, for losses that see their norms.
        proxy_lr_scale: By what the learning rate of the class vectors is multiplied.
    """
    return replace(
        SOFTMAX,
        loss=loss,
        backbone=partial(Head, gain=gain),
        optim=replace(SOFTMAX.optim, proxy_lr_scale=proxy_lr_scale),
    )


SIMPLE = replace(
    with_loss(partial(losses.SimPLE, r=1.0, alpha=0.5, b_theta=0.3, b=0.0)),
    memory=Memory(512, 0.9),
)

RECIPES = {
    "softmax": with_loss(losses.Softmax),
    "cosine": with_loss(partial(losses.Cosine, tau=2.773)),
    "arcface": with_loss(partial(losses.ArcFace, margin=0.2, scale=30.0)),
    "cosface": with_loss(partial(losses.CosFace, margin=0.2, scale=30.0)),
    "spherefacer": with_loss(partial(losses.SphereFaceR, scale=30.0)),
    "sphereface2": with_loss(partial(losses.SphereFace2, scale=30.0, margin=0.2)),
    "adaface": with_loss(partial(losses.AdaFace, margin=0.2, scale=30.0)),
    "magface": with_loss(
        partial(losses.MagFace, margin_low=0.1, margin_high=0.4, scale=30.0), gain=20.0
    ),
    "vmf": with_loss(partial(losses.VMF, resultant=0.7)),
    "el_nivmf": with_loss(partial(losses.ProbabilisticNCA, distance="el_nivmf"), gain=10.0),
    "hyperbolic": with_loss(partial(losses.Hyperbolic, c=1e-5)),
    "simple": SIMPLE,
    "simple_cosine": replace(SIMPLE, similarity="cosine"),
    "simple_margin": replace(SIMPLE, loss=partial(SIMPLE.loss, margin=1.0)),
    "simple_no_bank": replace(SIMPLE, memory=None),
    "proxy_anchor": with_loss(partial(losses.ProxyAnchor, margin=0.1, scale=32.0)),
    "proxy_nca_pp": with_loss(losses.ProxyNCAPlusPlus),
    "soft_triple": with_loss(partial(losses.SoftTriple, num_centres=2)),
    "multi_similarity": with_loss(losses.MultiSimilarity),
    "supcon": with_loss(losses.SupCon),
    "triplet": with_loss(losses.Triplet),
    "contrastive": with_loss(losses.Contrastive),
    "smooth_ap": with_loss(losses.SmoothAP),
}
CLAIMS = {  # of docs/reference/claims.md
    "softmax_euclidean": replace(RECIPES["softmax"], similarity="euclidean"),
    "hyperbolic_cosine": replace(RECIPES["hyperbolic"], similarity="cosine"),
    "cosine_fixed_16": with_loss(partial(losses.Cosine, tau=math.log(16), tau_lr=0.0)),
    "cosine_fixed_64": with_loss(partial(losses.Cosine, tau=math.log(64), tau_lr=0.0)),
    "simple_r3": replace(SIMPLE, loss=partial(SIMPLE.loss, r=3.0)),
    "simple_theta0.2": replace(SIMPLE, loss=partial(SIMPLE.loss, b_theta=0.2)),
    "joint": with_loss(partial(losses.Joint, weight=1.0), gain=10.0),  # el_nivmf, proxy_anchor
    **{
        distance: with_loss(partial(losses.ProbabilisticNCA, distance=distance), gain=10.0)
        for distance in ("el_vmf", "b_vmf", "kl_vmf", "l2")
    },
}
RECIPES |= CLAIMS

_RATE = {"optim.lr": Range(1e-4, 1e-2, log=True)}
_SCALE = {"loss.scale": Range(10.0, 64.0, log=True)}
_GAIN = {"backbone.gain": Range(0.3, 30.0, log=True)}
_SCALED = "arcface cosface spherefacer sphereface2 adaface magface proxy_anchor soft_triple"
_SEE_NORMS = "softmax el_nivmf hyperbolic simple simple_cosine simple_no_bank"

# What `likeness compare --tune` searches on validation subjects: the learning rate of each loss,
# and the setting that matters most beside it.
RANGES = {
    **dict.fromkeys(_SCALED.split(), _RATE | _SCALE),
    **dict.fromkeys((*_SEE_NORMS.split(), *CLAIMS), _RATE | _GAIN),
    **dict.fromkeys(("cosine_fixed_16", "cosine_fixed_64"), _RATE),
    "simple_margin": _GAIN | {"loss.margin": Range(0.1, 5.0, log=True)},
    "cosine": _RATE | {"loss.tau": Range(1.5, 4.0)},
    "vmf": _RATE | {"loss.resultant": Range(0.3, 0.9)},
    "proxy_nca_pp": _RATE | {"loss.temperature": Range(0.03, 0.3, log=True)},
    "multi_similarity": _RATE | {"loss.beta": Range(10.0, 60.0, log=True)},
    "supcon": _RATE | {"loss.temperature": Range(0.03, 0.3, log=True)},
    "triplet": _RATE | {"loss.margin": Range(0.05, 0.5)},
    "contrastive": _RATE | {"loss.negative_margin": Range(0.4, 1.4)},
    "smooth_ap": _RATE | {"loss.temperature": Range(0.005, 0.1, log=True)},
}
