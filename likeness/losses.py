"""Every loss, in one flat list: `from likeness.losses import ArcFace, SimPLE, VMF`.

A loss is a torch module: `loss(z, y)` takes raw embeddings (B, dim) and labels (B,), and gives a
scalar. docs/reference/losses.md lists them with their papers.
"""

from toolkit.losses.adaptive import AdaFace as AdaFace
from toolkit.losses.adaptive import CircleSoftmax as CircleSoftmax
from toolkit.losses.adaptive import CurricularFace as CurricularFace
from toolkit.losses.adaptive import MagFace as MagFace
from toolkit.losses.broadface import BroadFace as BroadFace
from toolkit.losses.compositional import DCML as DCML
from toolkit.losses.contrast import LiftedStructure as LiftedStructure
from toolkit.losses.contrast import NPair as NPair
from toolkit.losses.contrast import NTXent as NTXent
from toolkit.losses.contrast import SupCon as SupCon
from toolkit.losses.contrast import TupletMargin as TupletMargin
from toolkit.losses.graph import GroupLoss as GroupLoss
from toolkit.losses.graph import ProxyGML as ProxyGML
from toolkit.losses.hyperbolic import Hyperbolic as Hyperbolic
from toolkit.losses.intertopk import InterTopK as InterTopK
from toolkit.losses.margin import ArcFace as ArcFace
from toolkit.losses.margin import CosFace as CosFace
from toolkit.losses.margin import SubCenterArcFace as SubCenterArcFace
from toolkit.losses.memvir import MemVir as MemVir
from toolkit.losses.pair import AMC as AMC
from toolkit.losses.pair import Contrastive as Contrastive
from toolkit.losses.pair import LogRatio as LogRatio
from toolkit.losses.pair import PairBCE as PairBCE
from toolkit.losses.pair import SNRContrastive as SNRContrastive
from toolkit.losses.probabilistic import Joint as Joint
from toolkit.losses.probabilistic import ProbabilisticNCA as ProbabilisticNCA
from toolkit.losses.proxy import HUG as HUG
from toolkit.losses.proxy import CenterLoss as CenterLoss
from toolkit.losses.proxy import ProxyAnchor as ProxyAnchor
from toolkit.losses.proxy import ProxyNCA as ProxyNCA
from toolkit.losses.proxy import ProxyNCAPlusPlus as ProxyNCAPlusPlus
from toolkit.losses.proxy import SoftTriple as SoftTriple
from toolkit.losses.rank import FastAP as FastAP
from toolkit.losses.rank import RankedList as RankedList
from toolkit.losses.rank import SmoothAP as SmoothAP
from toolkit.losses.simple import SimPLE as SimPLE
from toolkit.losses.softmax import Cosine as Cosine
from toolkit.losses.softmax import NormFace as NormFace
from toolkit.losses.softmax import NormSoft as NormSoft
from toolkit.losses.softmax import Softmax as Softmax
from toolkit.losses.sphereface import LSoftmax as LSoftmax
from toolkit.losses.sphereface import SphereFace as SphereFace
from toolkit.losses.sphereface import SphereFace2 as SphereFace2
from toolkit.losses.sphereface import SphereFaceR as SphereFaceR
from toolkit.losses.triplet import Angular as Angular
from toolkit.losses.triplet import EasyPositive as EasyPositive
from toolkit.losses.triplet import MarginLoss as MarginLoss
from toolkit.losses.triplet import SNRTriplet as SNRTriplet
from toolkit.losses.triplet import Triplet as Triplet
from toolkit.losses.vmf import SCF as SCF
from toolkit.losses.vmf import VMF as VMF
from toolkit.losses.weighted import CirclePair as CirclePair
from toolkit.losses.weighted import MultiSimilarity as MultiSimilarity
