"""Every backbone, in one flat list: `from likeness.backbones import ECAPA, IResNet`.

A backbone is a torch module that gives raw embeddings (B, dim), from features (B, T, F) or from
images (B, C, H, W). docs/reference/backbones.md lists them with their sizes. `External` takes a
network of another project. `Head` and `ScoreNorm` take the embeddings of another network. `Beside`
joins the embeddings of several.
"""

from toolkit.backbones.beside import Beside as Beside
from toolkit.backbones.bninception import BNInception as BNInception
from toolkit.backbones.campplus import CAMPPlus as CAMPPlus
from toolkit.backbones.ecapa import ECAPA as ECAPA
from toolkit.backbones.ecapa import WeSpeakerECAPA as WeSpeakerECAPA
from toolkit.backbones.edgeface import EdgeFace as EdgeFace
from toolkit.backbones.eres2net import ERes2Net as ERes2Net
from toolkit.backbones.eres2net import ERes2NetV2 as ERes2NetV2
from toolkit.backbones.external import External as External
from toolkit.backbones.gradients import GradientHistograms as GradientHistograms
from toolkit.backbones.head import Head as Head
from toolkit.backbones.hub import HubImage as HubImage
from toolkit.backbones.hub import HubSpeech as HubSpeech
from toolkit.backbones.image_resnet import ImageResNet as ImageResNet
from toolkit.backbones.iresnet import IResNet as IResNet
from toolkit.backbones.kprpe import KPRPEViT as KPRPEViT
from toolkit.backbones.mixture import MixtureStatistics as MixtureStatistics
from toolkit.backbones.mobileface import MobileFaceNet as MobileFaceNet
from toolkit.backbones.redimnet import ReDimNet as ReDimNet
from toolkit.backbones.redimnet2 import ReDimNet2 as ReDimNet2
from toolkit.backbones.resnet import ResNet as ResNet
from toolkit.backbones.resnet import ResNet34 as ResNet34
from toolkit.backbones.score_norm import ScoreNorm as ScoreNorm
from toolkit.backbones.sfnet import SFNet as SFNet
from toolkit.backbones.simam import SimAMResNet as SimAMResNet
from toolkit.backbones.small import SmallCNN as SmallCNN
from toolkit.backbones.statistics import OrderStatistics as OrderStatistics
from toolkit.backbones.vit import FaceViT as FaceViT
from toolkit.backbones.vit import ViT as ViT
from toolkit.backbones.xvector import XVector as XVector
