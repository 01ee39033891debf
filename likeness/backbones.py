"""Every backbone, in one flat list: `from likeness.backbones import ECAPA, IResNet`.

A backbone is a torch module that gives raw embeddings (B, dim), from features (B, T, F) or from
images (B, C, H, W). docs/reference/backbones.md lists them with their sizes. `External` takes a
network of another project. `Head` and `ScoreNorm` take the embeddings of another network. `Beside`
joins the embeddings of several.
"""

from likeness.toolkit.backbones.bninception import BNInception as BNInception
from likeness.toolkit.backbones.campplus import CAMPPlus as CAMPPlus
from likeness.toolkit.backbones.ecapa import ECAPA as ECAPA
from likeness.toolkit.backbones.ecapa import WeSpeakerECAPA as WeSpeakerECAPA
from likeness.toolkit.backbones.edgeface import EdgeFace as EdgeFace
from likeness.toolkit.backbones.eres2net import ERes2Net as ERes2Net
from likeness.toolkit.backbones.eres2net import ERes2NetV2 as ERes2NetV2
from likeness.toolkit.backbones.external import External as External
from likeness.toolkit.backbones.gradients import GradientHistograms as GradientHistograms
from likeness.toolkit.backbones.head import Beside as Beside
from likeness.toolkit.backbones.head import Head as Head
from likeness.toolkit.backbones.head import ScoreNorm as ScoreNorm
from likeness.toolkit.backbones.hub_networks import HubImage as HubImage
from likeness.toolkit.backbones.hub_networks import HubSpeech as HubSpeech
from likeness.toolkit.backbones.image_resnet import ImageResNet as ImageResNet
from likeness.toolkit.backbones.image_resnet import SmallCNN as SmallCNN
from likeness.toolkit.backbones.iresnet import IResNet as IResNet
from likeness.toolkit.backbones.kprpe import KPRPEViT as KPRPEViT
from likeness.toolkit.backbones.mixture import MixtureStatistics as MixtureStatistics
from likeness.toolkit.backbones.mobileface import MobileFaceNet as MobileFaceNet
from likeness.toolkit.backbones.redimnet import ReDimNet as ReDimNet
from likeness.toolkit.backbones.redimnet import ReDimNet2 as ReDimNet2
from likeness.toolkit.backbones.resnet import ResNet as ResNet
from likeness.toolkit.backbones.resnet import SimAMResNet as SimAMResNet
from likeness.toolkit.backbones.sfnet import SFNet as SFNet
from likeness.toolkit.backbones.statistics import OrderStatistics as OrderStatistics
from likeness.toolkit.backbones.vit import FaceViT as FaceViT
from likeness.toolkit.backbones.vit import ViT as ViT
from likeness.toolkit.backbones.xvector import XVector as XVector
