"""Losses for retrieval, compared on Omniglot with equal settings.

    likeness compare image/omniglot_losses --seeds 3 --tune 5 --reference softmax
        --data DATA --out runs/omniglot-losses
        the same network, views, batches and steps for all; two settings of each loss are tuned in
        five trials on a quarter of the training characters

The network, the views and the optimiser are those of image/omniglot, where the learning rate and
the number of steps were chosen with arcface. Every loss ranks by its own geometry. simple_cosine is
the training of simple with its embeddings compared by cosine, and simple_no_bank is simple on
the pairs of the batch alone. memvir takes virtual classes from 111 steps on. Measured, but for rbm
and those from norm_soft on: docs/reference/results.md.

Losses: docs/reference/losses.md has the paper of each.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from _shared import of_characters

from likeness import losses
from likeness.recipe import Memory, Part, Range, Recipe


def with_loss(loss: Part, *, gain: float = 1.0, proxy_lr_scale: float = 1.0) -> Recipe:
    """As in image/omniglot, saved at the end alone."""
    recipe = of_characters(loss, gain=gain, proxy_lr_scale=proxy_lr_scale)
    return replace(recipe, schedule=replace(recipe.schedule, save_every=1000))


SIMPLE = replace(
    with_loss(partial(losses.SimPLE, r=1.0, alpha=0.5, b_theta=0.3, b=0.0), gain=0.5),
    memory=Memory(2048, 0.9),
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
        partial(losses.MagFace, margin_low=0.1, margin_high=0.4, scale=30.0), gain=3.0
    ),
    "vmf": with_loss(partial(losses.VMF, resultant=0.7), proxy_lr_scale=10.0),
    "el_nivmf": with_loss(  # its class vectors start at norm 10
        partial(losses.ProbabilisticNCA, distance="el_nivmf"), gain=3.0, proxy_lr_scale=10.0
    ),
    "hyperbolic": with_loss(partial(losses.Hyperbolic, c=1e-5)),
    "simple": SIMPLE,
    "simple_cosine": replace(SIMPLE, similarity="cosine"),
    "simple_no_bank": replace(SIMPLE, memory=None),
    "proxy_anchor": with_loss(
        partial(losses.ProxyAnchor, margin=0.1, scale=32.0), proxy_lr_scale=10.0
    ),
    "proxy_nca_pp": with_loss(losses.ProxyNCAPlusPlus, proxy_lr_scale=10.0),
    "soft_triple": with_loss(partial(losses.SoftTriple, num_centres=2), proxy_lr_scale=10.0),
    "multi_similarity": with_loss(losses.MultiSimilarity),
    "supcon": with_loss(losses.SupCon),
    "triplet": with_loss(losses.Triplet),
    "contrastive": with_loss(losses.Contrastive),
    "rbm": with_loss(  # the bias starts at the log odds of 3 positives among the 127 other rows
        partial(losses.PairBCE, product="cosine", scale=10.0, bias=-3.7, learn_scale=True)
    ),
    "smooth_ap": with_loss(losses.SmoothAP),
    "norm_soft": with_loss(losses.NormSoft),
    "memvir": with_loss(partial(losses.MemVir, warmup_steps=100, batch_size=128)),
    "proxy_gml": with_loss(
        partial(losses.ProxyGML, num_proxies=2, scale=10.0), proxy_lr_scale=10.0
    ),
    "group_loss": with_loss(partial(losses.GroupLoss, temperature=10.0, num_anchors=1)),
    "easy_positive": with_loss(losses.EasyPositive),
    "snr_triplet": with_loss(partial(losses.SNRTriplet, zero_mean=0.001)),
    "dcml": with_loss(partial(losses.DCML, mining="distance_weighted")),
    "dr_ms": with_loss(partial(losses.MultiSimilarity, base=0.7, direction=0.3)),
}

_RATE = {"optim.lr": Range(1e-3, 1e-2, log=True)}
_SCALE = {"loss.scale": Range(10.0, 64.0, log=True)}
_MARGIN = {"loss.margin": Range(0.05, 0.5)}
_PROXIES = {"optim.proxy_lr_scale": Range(1.0, 100.0, log=True)}
_GAIN = {"backbone.gain": Range(0.3, 10.0, log=True)}
_SIMPLE = {"backbone.gain": Range(0.1, 1.0, log=True), "loss.alpha": Range(0.1, 0.9)}

# What `likeness compare --tune` searches on validation characters: two settings of each loss.
RANGES = {
    **dict.fromkeys(("arcface", "cosface", "sphereface2", "adaface"), _MARGIN | _SCALE),
    **dict.fromkeys(("spherefacer", "rbm", "memvir"), _RATE | _SCALE),
    **dict.fromkeys(("softmax", "hyperbolic"), _RATE | _GAIN),
    **dict.fromkeys(("simple", "simple_cosine", "simple_no_bank"), _SIMPLE),
    **dict.fromkeys(("triplet", "snr_triplet"), _RATE | _MARGIN),
    "cosine": _RATE | {"loss.tau": Range(1.5, 4.0)},
    "magface": _SCALE | {"loss.margin_high": Range(0.2, 0.8)},
    "vmf": _PROXIES | {"loss.resultant": Range(0.3, 0.9)},
    "el_nivmf": _PROXIES | _GAIN,
    "proxy_anchor": _MARGIN | _PROXIES,
    "proxy_nca_pp": _PROXIES | {"loss.temperature": Range(0.03, 0.3, log=True)},
    "soft_triple": _PROXIES | _SCALE,
    "multi_similarity": {
        "loss.base": Range(0.2, 0.8),
        "loss.beta": Range(10.0, 60.0, log=True),
    },
    "supcon": _RATE | {"loss.temperature": Range(0.03, 0.3, log=True)},
    "contrastive": _RATE | {"loss.negative_margin": Range(0.4, 1.4)},
    "smooth_ap": _RATE | {"loss.temperature": Range(0.005, 0.1, log=True)},
    "norm_soft": _RATE | {"loss.temperature": Range(0.02, 0.2, log=True)},
    "proxy_gml": _PROXIES | {"loss.scale": Range(1.0, 30.0, log=True)},
    "group_loss": _RATE | {"loss.temperature": Range(1.0, 80.0, log=True)},
    "easy_positive": _RATE | {"loss.temperature": Range(0.03, 0.3, log=True)},
    "dcml": _RATE | {"loss.beta": Range(0.4, 1.4)},
    "dr_ms": {"loss.base": Range(0.2, 0.8), "loss.direction": Range(0.1, 0.5)},
}
