"""Every backbone, in one flat list: `from likeness.backbones import ECAPA, IResNet`.

A backbone is a torch module that gives raw embeddings (B, dim), from features (B, T, F) or from
images (B, C, H, W). docs/reference/backbones.md lists them with their sizes. `External` takes a
network of another project. `Head` and `ScoreNorm` take the embeddings of another network. `Beside`
joins the embeddings of several.
"""

from __future__ import annotations

from toolkit.backbones.beside import Beside
from toolkit.backbones.bninception import BNInception
from toolkit.backbones.campplus import CAMPPlus
from toolkit.backbones.ecapa import ECAPA, WeSpeakerECAPA
from toolkit.backbones.edgeface import EdgeFace
from toolkit.backbones.eres2net import ERes2Net, ERes2NetV2
from toolkit.backbones.external import External
from toolkit.backbones.gradients import GradientHistograms
from toolkit.backbones.head import Head
from toolkit.backbones.hub import HubImage, HubSpeech
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.backbones.iresnet import IResNet
from toolkit.backbones.kprpe import KPRPEViT
from toolkit.backbones.mixture import MixtureStatistics
from toolkit.backbones.mobileface import MobileFaceNet
from toolkit.backbones.redimnet import ReDimNet
from toolkit.backbones.redimnet2 import ReDimNet2
from toolkit.backbones.resnet import ResNet, ResNet34
from toolkit.backbones.score_norm import ScoreNorm
from toolkit.backbones.sfnet import SFNet
from toolkit.backbones.simam import SimAMResNet
from toolkit.backbones.small import SmallCNN
from toolkit.backbones.statistics import OrderStatistics
from toolkit.backbones.vit import FaceViT, ViT
from toolkit.backbones.xvector import XVector

__all__ = [
    "ECAPA",
    "BNInception",
    "Beside",
    "CAMPPlus",
    "ERes2Net",
    "ERes2NetV2",
    "EdgeFace",
    "External",
    "FaceViT",
    "GradientHistograms",
    "Head",
    "HubImage",
    "HubSpeech",
    "IResNet",
    "ImageResNet",
    "KPRPEViT",
    "MixtureStatistics",
    "MobileFaceNet",
    "OrderStatistics",
    "ReDimNet",
    "ReDimNet2",
    "ResNet",
    "ResNet34",
    "SFNet",
    "ScoreNorm",
    "SimAMResNet",
    "SmallCNN",
    "ViT",
    "WeSpeakerECAPA",
    "XVector",
]
