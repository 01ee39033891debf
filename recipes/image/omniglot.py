"""Omniglot: retrieval of characters from ten unseen alphabets.

Characters of 20 alphabets train (633 classes x 20 drawers), those of ten unseen ones are retrieved
(331 classes).

    likeness train image/omniglot:arcface --data DATA --out runs/omniglot
    likeness compare image/omniglot --seeds 3 --data DATA --out runs/omniglot-compare

DATA holds omniglot/ (images_background of Lake et al., Science 2015, as its folders or packed). 40
seconds a run on one CPU core. Every image of the ten last alphabets is a query against all others
of them; R@1, R-precision and MAP@R, intervals over characters: by cosine (softmax: the vMF paper's
"+ cosine at test", softmax_euclidean: its geometry; vmf: of mean directions, not the expected
metrics), simple and el_nivmf by their own similarity.

Losses: softmax, cosine and vmf (vMF paper Eq 1, 3, 8), arcface (Deng et al. 2019), simple (SimPLE
paper Eq 8) and simple_cosine (the same with the cosine as product), proxy_anchor (Kim et al. 2020),
multi_similarity (Wang et al. 2019), el_nivmf (nivMF paper Eq 5). For docs/reference/claims.md:
simple_margin and simple_cosine_margin, which have a margin, l2, b_vmf, kl_vmf, hyperbolic,
hyperbolic_cosine, and joint, which is el_nivmf_moving + proxy_anchor. Learning rate and steps were
chosen with arcface on the last four of the training alphabets; there too, in one to four trials
each: the starting norm of el_nivmf (backbone.gain), proxy_lr_scale of vmf. simple and simple_cosine
have what won six trials on a quarter of the training characters. Measured:
docs/reference/results.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from _shared import of_characters

from likeness import losses
from likeness.recipe import Recipe

SOFTMAX = of_characters(losses.Softmax)
# one expectation over all pairs, on the pairs of the batch alone
PAIRS = partial(losses.SimPLE, r=1.0, alpha=0.5, b=0.0, reduction="joint")

KAPPA_RATE = 40.0  # at which concentrations move as in image/nivmf


def probabilistic(distance: str = "el_nivmf", **settings: Any) -> Recipe:
    """A loss of the nivMF paper, whose class vectors start at norm 10."""
    loss = partial(losses.ProbabilisticNCA, distance=distance, **settings)
    return of_characters(loss, gain=3.0, proxy_lr_scale=10.0)


MOVING = probabilistic(kappa_lr_scale=KAPPA_RATE)
HYPERBOLIC = of_characters(partial(losses.Hyperbolic, c=1e-5))

RECIPES = {
    "arcface": of_characters(partial(losses.ArcFace, margin=0.2, scale=30.0)),
    "softmax": SOFTMAX,
    "softmax_euclidean": replace(SOFTMAX, similarity="euclidean"),
    "cosine": of_characters(partial(losses.Cosine, tau=2.773)),
    "vmf": of_characters(partial(losses.VMF, resultant=0.7), proxy_lr_scale=10.0),
    "simple": of_characters(partial(PAIRS, b_theta=0.3), gain=3.913),
    "simple_margin": of_characters(partial(PAIRS, b_theta=0.3, margin=2.0), gain=3.913),
    # its bias starts at the log odds of 3 positives among the 127 other rows
    "simple_cosine": of_characters(partial(PAIRS, product="cosine", scale=12.84, b=-3.7)),
    "simple_cosine_margin": of_characters(
        partial(PAIRS, product="cosine", scale=12.84, b=-3.7, margin=2.0)
    ),
    "proxy_anchor": of_characters(
        partial(losses.ProxyAnchor, margin=0.1, scale=32.0), proxy_lr_scale=10.0
    ),
    "multi_similarity": of_characters(losses.MultiSimilarity),
    "el_nivmf": probabilistic(),
    "el_nivmf_moving": MOVING,
    "el_nivmf_jacobian": probabilistic(kappa_lr_scale=KAPPA_RATE, normalizer="jacobian"),
    "el_nivmf_eq6": probabilistic(kappa_lr_scale=KAPPA_RATE, temperature_inside=False),
    **{
        distance: probabilistic(distance, kappa_lr_scale=KAPPA_RATE)
        for distance in ("el_vmf", "b_vmf", "kl_vmf", "l2")
    },
    "joint": replace(MOVING, loss=partial(losses.Joint, first=MOVING.loss, weight=1.0)),
    "hyperbolic": HYPERBOLIC,
    "hyperbolic_cosine": replace(HYPERBOLIC, similarity="cosine"),
}
