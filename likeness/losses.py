"""Every loss, in one flat list: `from likeness.losses import ArcFace, SimPLE, VMF`.

A loss is a torch module: `loss(z, y)` takes raw embeddings (B, dim) and labels (B,), and gives a
scalar. docs/reference/losses.md lists them with their papers.
"""

from likeness.toolkit.losses.adaptive import AdaFace as AdaFace
from likeness.toolkit.losses.adaptive import CircleSoftmax as CircleSoftmax
from likeness.toolkit.losses.adaptive import CurricularFace as CurricularFace
from likeness.toolkit.losses.adaptive import MagFace as MagFace
from likeness.toolkit.losses.broadface import BroadFace as BroadFace
from likeness.toolkit.losses.compositional import DCML as DCML
from likeness.toolkit.losses.contrast import LiftedStructure as LiftedStructure
from likeness.toolkit.losses.contrast import NPair as NPair
from likeness.toolkit.losses.contrast import NTXent as NTXent
from likeness.toolkit.losses.contrast import SupCon as SupCon
from likeness.toolkit.losses.contrast import TupletMargin as TupletMargin
from likeness.toolkit.losses.graph import GroupLoss as GroupLoss
from likeness.toolkit.losses.graph import ProxyGML as ProxyGML
from likeness.toolkit.losses.hyperbolic import Hyperbolic as Hyperbolic
from likeness.toolkit.losses.intertopk import InterTopK as InterTopK
from likeness.toolkit.losses.margin import ArcFace as ArcFace
from likeness.toolkit.losses.margin import CosFace as CosFace
from likeness.toolkit.losses.margin import SubCenterArcFace as SubCenterArcFace
from likeness.toolkit.losses.memvir import MemVir as MemVir
from likeness.toolkit.losses.pair import AMC as AMC
from likeness.toolkit.losses.pair import Contrastive as Contrastive
from likeness.toolkit.losses.pair import LogRatio as LogRatio
from likeness.toolkit.losses.pair import PairBCE as PairBCE
from likeness.toolkit.losses.pair import SNRContrastive as SNRContrastive
from likeness.toolkit.losses.probabilistic import Joint as Joint
from likeness.toolkit.losses.probabilistic import ProbabilisticNCA as ProbabilisticNCA
from likeness.toolkit.losses.proxy import HUG as HUG
from likeness.toolkit.losses.proxy import CenterLoss as CenterLoss
from likeness.toolkit.losses.proxy import ProxyAnchor as ProxyAnchor
from likeness.toolkit.losses.proxy import ProxyNCA as ProxyNCA
from likeness.toolkit.losses.proxy import ProxyNCAPlusPlus as ProxyNCAPlusPlus
from likeness.toolkit.losses.proxy import SoftTriple as SoftTriple
from likeness.toolkit.losses.rank import FastAP as FastAP
from likeness.toolkit.losses.rank import RankedList as RankedList
from likeness.toolkit.losses.rank import SmoothAP as SmoothAP
from likeness.toolkit.losses.simple import SimPLE as SimPLE
from likeness.toolkit.losses.softmax import Cosine as Cosine
from likeness.toolkit.losses.softmax import NormFace as NormFace
from likeness.toolkit.losses.softmax import NormSoft as NormSoft
from likeness.toolkit.losses.softmax import Softmax as Softmax
from likeness.toolkit.losses.sphereface import LSoftmax as LSoftmax
from likeness.toolkit.losses.sphereface import SphereFace as SphereFace
from likeness.toolkit.losses.sphereface import SphereFace2 as SphereFace2
from likeness.toolkit.losses.sphereface import SphereFaceR as SphereFaceR
from likeness.toolkit.losses.triplet import Angular as Angular
from likeness.toolkit.losses.triplet import EasyPositive as EasyPositive
from likeness.toolkit.losses.triplet import MarginLoss as MarginLoss
from likeness.toolkit.losses.triplet import SNRTriplet as SNRTriplet
from likeness.toolkit.losses.triplet import Triplet as Triplet
from likeness.toolkit.losses.vmf import SCF as SCF
from likeness.toolkit.losses.vmf import VMF as VMF
from likeness.toolkit.losses.weighted import CirclePair as CirclePair
from likeness.toolkit.losses.weighted import MultiSimilarity as MultiSimilarity
