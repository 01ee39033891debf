"""Every loss, in one flat list: `from likeness.losses import ArcFace, SimPLE, VMF`.

A loss is a torch module: `loss(z, y)` takes raw embeddings (B, dim) and labels (B,), and gives a
scalar. docs/reference/losses.md lists them with their papers.
"""

from __future__ import annotations

from toolkit.losses.adaptive import AdaFace, CircleSoftmax, CurricularFace, MagFace
from toolkit.losses.broadface import BroadFace
from toolkit.losses.compositional import DCML
from toolkit.losses.contrast import LiftedStructure, NPair, NTXent, SupCon, TupletMargin
from toolkit.losses.graph import GroupLoss, ProxyGML
from toolkit.losses.hyperbolic import Hyperbolic
from toolkit.losses.intertopk import InterTopK
from toolkit.losses.margin import ArcFace, CosFace, SubCenterArcFace
from toolkit.losses.memvir import MemVir
from toolkit.losses.pair import AMC, Contrastive, LogRatio, PairBCE, SNRContrastive
from toolkit.losses.probabilistic import Joint, ProbabilisticNCA
from toolkit.losses.proxy import (
    HUG,
    CenterLoss,
    ProxyAnchor,
    ProxyNCA,
    ProxyNCAPlusPlus,
    SoftTriple,
)
from toolkit.losses.rank import FastAP, RankedList, SmoothAP
from toolkit.losses.simple import SimPLE
from toolkit.losses.softmax import Cosine, NormFace, NormSoft, Softmax
from toolkit.losses.sphereface import LSoftmax, SphereFace, SphereFace2, SphereFaceR
from toolkit.losses.triplet import Angular, EasyPositive, MarginLoss, SNRTriplet, Triplet
from toolkit.losses.vmf import SCF, VMF
from toolkit.losses.weighted import CirclePair, MultiSimilarity

__all__ = [
    "AMC",
    "DCML",
    "HUG",
    "SCF",
    "VMF",
    "AdaFace",
    "Angular",
    "ArcFace",
    "BroadFace",
    "CenterLoss",
    "CirclePair",
    "CircleSoftmax",
    "Contrastive",
    "CosFace",
    "Cosine",
    "CurricularFace",
    "EasyPositive",
    "FastAP",
    "GroupLoss",
    "Hyperbolic",
    "InterTopK",
    "Joint",
    "LSoftmax",
    "LiftedStructure",
    "LogRatio",
    "MagFace",
    "MarginLoss",
    "MemVir",
    "MultiSimilarity",
    "NPair",
    "NTXent",
    "NormFace",
    "NormSoft",
    "PairBCE",
    "ProbabilisticNCA",
    "ProxyAnchor",
    "ProxyGML",
    "ProxyNCA",
    "ProxyNCAPlusPlus",
    "RankedList",
    "SNRContrastive",
    "SNRTriplet",
    "SimPLE",
    "SmoothAP",
    "SoftTriple",
    "Softmax",
    "SphereFace",
    "SphereFace2",
    "SphereFaceR",
    "SubCenterArcFace",
    "SupCon",
    "Triplet",
    "TupletMargin",
]
