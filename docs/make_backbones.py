"""Writes docs/reference/backbones.md, the tables of backbones, from the classes themselves.

Parameters are counted, not quoted.

python docs/make_backbones.py
"""

from __future__ import annotations

import inspect
import json
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from toolkit.backbones.bninception import BNInception
from toolkit.backbones.campplus import CAMPPlus
from toolkit.backbones.ecapa import ECAPA, WeSpeakerECAPA
from toolkit.backbones.edgeface import EdgeFace
from toolkit.backbones.eres2net import ERes2Net, ERes2NetV2
from toolkit.backbones.gradients import GradientHistograms
from toolkit.backbones.hub import HubImage, HubSpeech
from toolkit.backbones.image_resnet import ImageResNet
from toolkit.backbones.iresnet import IResNet
from toolkit.backbones.kprpe import KPRPEViT
from toolkit.backbones.mixture import MixtureStatistics
from toolkit.backbones.mobileface import MobileFaceNet
from toolkit.backbones.redimnet import ReDimNet
from toolkit.backbones.redimnet2 import ReDimNet2
from toolkit.backbones.resnet import ResNet
from toolkit.backbones.sfnet import SFNet
from toolkit.backbones.simam import SimAMResNet
from toolkit.backbones.small import SmallCNN
from toolkit.backbones.statistics import OrderStatistics
from toolkit.backbones.vit import FaceViT, ViT
from toolkit.backbones.xvector import XVector

PAGE = Path(__file__).parent / "reference" / "backbones.md"
WESPEAKER, SPEAKER3D, SPEECHBRAIN = "WeSpeaker", "3D-Speaker", "SpeechBrain"
IDRND, PALABRA, EDGEFACE, CVLFACE = "IDRnD", "PalabraAI", "otroshi/edgeface", "CVLface"
ARCFACE, OPENSPHERE, TORCHVISION, DINO, DINOV2 = (
    "arcface_torch",
    "OpenSphere",
    "torchvision",
    "DINO",
    "DINOv2",
)
HEAD = """# Backbones

Every backbone of Likeness with its size. A backbone is the network between the front-end, which
makes features of a recording or an image, and the embedding. This page is made by
`python docs/make_backbones.py`, which builds every row and counts its parameters.

## How a backbone is used
```python
import torch

from likeness.backbones import ECAPA

backbone = ECAPA(80, dim=192).eval()  # for features of 80 mel bands
with torch.no_grad():
    embeddings = backbone(torch.randn(2, 200, 80))  # 2 recordings of 200 frames
print(embeddings.shape)  # (2, 192)
```

The tables below have these columns in common:

- **call** shows the class with its settings. A recipe writes `partial(ECAPA, dim=192)`, and the
  number of mel bands or of channels comes from its front-end.
- **parameters** is the number of parameters, counted here, and **in the field** the number that
  others state for the same network.
- **weights of** names the projects whose published weights load.
- **source** is the paper, and the file of another project that has the network. An empty one is
  that of the row above.

Four more have no size of their own, and are not in the tables. `External` takes a network of
another project ([own_networks.md](../how-to/own_networks.md)). `Head` and `ScoreNorm` take the
embeddings of another network ([adapt_head.md](../how-to/adapt_head.md)). `Beside` joins the
embeddings of several networks into one.

## Speech
A backbone for speech takes features `(B, T, F)` and relative lengths, and gives raw embeddings
`(B, dim)`. The parameters are counted at 80 mel bands. Those of ReDimNet and ReDimNet2 are counted
at 72, and of ReDimNet b0 at 60, which they were published for.

**exact** says whether padding changes no embedding. Batches of such a backbone may mix recordings
of different lengths. The other backbones get batches of equal lengths. In training, batch norm
still sees the padded frames of any backbone, so train on crops of equal length.

### Pooling over time
The setting `pooling=` selects how the frames become one vector:

| name | what it takes |
| --- | --- |
| TAP | the mean |
| TSDP | the standard deviation |
| TSTP | the mean and the standard deviation |
| ASTP, ASP | both under attention |
| MHASTP, MQMHASTP | several attention heads and queries |

The padded frames of an utterance are left out of every mean, deviation and softmax.

### Published weights of speech networks
`toolkit.backbones.weights.load_wespeaker(backbone, state_dict)` loads weights of the projects in
the column **weights of**, under the names that these projects give to their tensors. Loading is
strict. Weights are tied to their front-end:

- WeSpeaker's is Kaldi's filterbank with a Hamming window, on samples at int16 scale.
- 3D-Speaker's is Kaldi's filterbank with Povey's window, on samples in [-1, 1].
- SpeechBrain has a front-end of its own.
- IDRnD and PalabraAI keep a front-end with a network, under names that begin with `spec.`. It is
  left out. It is another mel spectrogram than Kaldi's, with pre-emphasis, which is not here.

`wespeaker:FILE.pt` reads the checkpoints of WeSpeaker's SimAM-ResNets and ReDimNets too. Its names
for ReDimNet differ from those of the release:

| here and in IDRnD's release | in WeSpeaker |
| --- | --- |
| `backbone.stageI.0.w`, `backbone.fin_wght1d.w` | `backbone.inputs_weights.I` |
| `backbone.stageI.J` from J = 2 on | `backbone.stageI.(J - 2)` |
| `linear` | `seg_1` |
| `bn` | none: build `ReDimNet(normalise=False)` |

### Speech backbones
"""
PARITY = """
### Parity with the releases
Some networks were compared with the code of their releases, with the same random weights and
inputs. The table has the largest difference between embeddings, and the largest value in one. It
was measured at full size by hand (2026-11-22, torch 2.13); all names of tensors were equal.
`tests/toolkit/backbones/test_released.py` compares with small numbers that the releases gave.

| networks | release | largest difference | largest value | precision |
| --- | --- | --- | --- | --- |
| SimAM-ResNet34 | WeSpeaker `samresnet.py` | 4.1e-15 | 5.8 | float64 |
| SimAM-ResNet100 | WeSpeaker `samresnet.py` | 6.8e-10 | 500 | float64 |
| ReDimNet b0 to b6 | IDRnD `model.py` | 4.7e-15 | 4.5 | float64 |
| ReDimNet b0 to b6, `normalise=False` | WeSpeaker `redimnet.py` | 4.4e-15 | 3.7 | float64 |
| ReDimNet2 b0 to b6 | WeSpeaker `redimnet2.py`, at the release's sizes | 2.7e-15 | 3.8 | float64 |
| EdgeFace-XXS, XS, S, BASE | otroshi/edgeface, timm 1.0.31 | 0 | 4.1 | float32 |
| KP-RPE ViT-S, B | CVLface `vit_kprpe` | 5.2e-6 | 6.7 | float32 |
"""
IMAGES_HEAD = """
## Faces and images
A backbone for faces or images takes images `(B, C, H, W)` and gives raw embeddings `(B, dim)`. The
parameters are counted with three channels (SmallCNN with one), at the `dim` of the call.

**images** is the size that a backbone takes. A backbone that has a layer over the whole image takes
one size, which `image_size=` sets.

The numbers of torchvision, Cadene and Meta in **in the field** include their classifier or mask
token.

The layers over the embedding run in float32 under autocast. With `dim=0`, ImageResNet, BNInception
and ViT leave out the linear layer after the pooling.

### Published weights of face and image networks
`toolkit.backbones.weights.load_published(backbone, state_dict)` loads published state dicts.
Loading is strict: tensors that are unknown, missing or of another shape are counted and named.
Classifiers are left out, and their names are returned.

ImageResNet, BNInception and ViT start from a local file with `weights=FILE`. The file is a
.safetensors file, or one by torch.save, which is read with weights_only. It may have 4 GiB at most.
The attribute `started_from` says what was taken.

No weights come with Likeness. Those of arcface_torch are for non-commercial research only.

Weights are tied to the pixels that they were trained on:

| weights of | pixels |
| --- | --- |
| arcface_torch, OpenSphere | aligned RGB faces, as (x - 127.5) / 127.5 |
| otroshi/edgeface, CVLface | aligned RGB faces, as (x - 127.5) / 127.5 |
| torchvision, DINO, DINOv2 | RGB in 0..1, less (.485, .456, .406), divided by (.229, .224, .225) |
| BN-Inception | BGR in 0..255, less (104, 117, 128) |

### Keypoints
KPRPEViT takes the places of five keypoints beside the image, `network(images, None, keypoints)`. In
CVLface an aligner network predicts them for every crop. Where none are given, as in recipes, they
are those of the template: a crop that was aligned to the template has its eyes, nose and mouth
there. Crops that were not aligned need keypoints of their own.

### Settings that papers differ in
- `batch_norm="fixed"` keeps the statistics of batch norm where they are, whatever `.train()` says.
  `batch_norm="frozen"` keeps its weights and biases too. The vMF paper's D.1 freezes both. Its
  release (google-research/vmf_embeddings) and Revisiting-DML keep the statistics only.
- Setting A of the SimPLE paper is SFNet-20, B is SFNet-64, and C is IResNet-100 with
  `opensphere=True`.
- ResNets for CIFAR have another first layer. `stem="3x3"` is that of the vMF release, in which max
  pooling stays. `stem="3x3 whole"` is what most other work has.

### Face and image backbones
"""
COLUMNS = (
    "backbone",
    "call",
    "parameters",
    "in the field",
    "exact",
    "weights of",
    "source",
)
IMAGES_COLUMNS = tuple("images" if name == "exact" else name for name in COLUMNS)


HUB_HEAD = """
## Networks of the Hugging Face hub
These are networks of `transformers` (extra `hub`) behind the same signature: `HubImage` over images
and `HubSpeech` over speech. A recipe writes `backbone=hub.backbone("facebook/dinov2-small",
pooling="GeM", dim=256)` with `hub` from `likeness.models`. `config` is the network's config.json,
of which a checkpoint keeps what sizes the network. [hub.md](../how-to/hub.md) shows how they embed,
and how they are fine-tuned.

- **usual pooling** is what `--model hub:...` takes, and what `pooling=""` takes for images. Images
  can be pooled by CLS, mean, GeM (p learned or fixed) and head (SigLIP's own attention). Speech can
  be pooled by mean, by a learned weighting of all layers with attentive statistics (`weighted`), by
  MHFA (Peng et al. 2022), and by MFA (Zhang et al. 2022).
- **parameters** are counted here from the configuration of the published network that is named,
  without the heads and masks that only pre-training uses.
- **exact** says for speech whether padding changes no embedding. Networks whose first convolution
  is followed by group norm over time are not exact, so batches of `embed` hold equal lengths.
- **difference** is the largest absolute difference from transformers' own processor, network and
  pooling, by random tiny networks whose largest values were from 1.0 to 3.6. It was measured by
  `python benchmarks/hub_parity.py` with transformers 5.23 in November 2026. The tests hold 1e-5.

Whisper's encoder takes 30 s. Longer recordings are cut into windows of 30 s, which are encoded one
by one; the pooling runs over the frames of all windows that WhisperFeatureExtractor marks in its
`attention_mask`.

"""
HUB_COLUMNS = (
    "network",
    "backbone",
    "usual pooling",
    "parameters",
    "exact",
    "difference",
    "source",
)


class Row(NamedTuple):
    """One backbone of the page."""

    name: str
    make: Any  # a class, or a partial of one
    field: str  # what the field says of its size
    weights: str  # the projects whose published weights load
    source: str  # the paper, and the file in the project that has it


SPEECH = (
    *(
        Row(
            f"ResNet{depth}",
            partial(ResNet, depth=depth),
            field,
            weights,
            "He et al. 2016; wespeaker/models/resnet.py",
        )
        for depth, field, weights in (
            (18, "4.11 M", WESPEAKER),
            (34, "6.63 M", WESPEAKER),
            (50, "11.13 M", WESPEAKER),
            (101, "15.89 M", WESPEAKER),
            (152, "19.82 M (19.81 by its source)", WESPEAKER),
            (221, "23.79 M", WESPEAKER),
            (293, "28.62 M (28.63 by its source)", WESPEAKER),
        )
    ),
    Row(
        "ResNet34, MQMHASTP",
        partial(ResNet, pooling="MQMHASTP"),
        "-",
        WESPEAKER,
        "Zhao et al. 2022; wespeaker/models/pooling_layers.py",
    ),
    Row(
        "ResNet34, two layers",
        partial(ResNet, dim=192, two_layers=True),
        "6.34 M",
        SPEAKER3D,
        "speakerlab/models/resnet/ResNet.py",
    ),
    Row(
        "ECAPA c512",
        ECAPA,
        "6.19 M",
        f"{SPEECHBRAIN}, {SPEAKER3D}",
        "Desplanques et al. 2020; speechbrain ECAPA_TDNN.py",
    ),
    Row(
        "ECAPA c1024",
        partial(ECAPA, channels=1024),
        "20.77 M",
        f"{SPEECHBRAIN}, {SPEAKER3D}",
        "the same",
    ),
    Row(
        "ECAPA GLOB c512",
        WeSpeakerECAPA,
        "6.19 M",
        WESPEAKER,
        "Desplanques et al. 2020; wespeaker/models/ecapa_tdnn.py",
    ),
    Row(
        "ECAPA GLOB c1024", partial(WeSpeakerECAPA, channels=1024), "14.65 M", WESPEAKER, "the same"
    ),
    Row(
        "ECAPA-TDNN c512", partial(WeSpeakerECAPA, global_context=False), "-", WESPEAKER, "the same"
    ),
    Row("x-vector", XVector, "4.61 M", WESPEAKER, "Snyder et al. 2018; wespeaker/models/tdnn.py"),
    Row(
        "x-vector, one layer",
        partial(XVector, two_layers=False),
        "4.34 M",
        SPEAKER3D,
        "speakerlab/models/xvector/TDNN.py",
    ),
    Row(
        "CAM++",
        CAMPPlus,
        "7.18 M",
        f"{SPEAKER3D}, {WESPEAKER}",
        "Wang et al. 2023; speakerlab/models/campplus",
    ),
    Row(
        "ERes2Net",
        ERes2Net,
        "6.61 M",
        f"{SPEAKER3D}, {WESPEAKER}",
        "Chen et al. 2023; speakerlab/models/eres2net/ERes2Net.py",
    ),
    Row(
        "ERes2Net, dim 256",
        partial(ERes2Net, dim=256),
        "7.27 M",
        WESPEAKER,
        "wespeaker/models/eres2net.py",
    ),
    Row(
        "ERes2Net large",
        partial(ERes2Net, width=64),
        "22.46 M",
        f"{SPEAKER3D}, {WESPEAKER}",
        "the same",
    ),
    Row(
        "ERes2Net huge",
        partial(ERes2Net, width=64, base_width=24, scale=3, expansion=4),
        "-",
        SPEAKER3D,
        "speakerlab/models/eres2net/ERes2Net_huge.py",
    ),
    Row(
        "ERes2NetV2",
        ERes2NetV2,
        "17.86 M",
        SPEAKER3D,
        "Chen et al. 2024; speakerlab/models/eres2net/ERes2NetV2.py",
    ),
    Row(
        "ERes2NetV2 w24s4ep4",
        partial(ERes2NetV2, base_width=24, scale=4, expansion=4),
        "-",
        SPEAKER3D,
        "the same",
    ),
    *(
        Row(
            f"SimAM-ResNet{depth}",
            partial(SimAMResNet, depth=depth),
            "-",
            WESPEAKER,
            "Qin et al. 2022; wespeaker/models/samresnet.py",
        )
        for depth in (34, 100)
    ),
    *(
        Row(
            f"ReDimNet {size}",
            partial(ReDimNet, size=size),
            field,
            f"{IDRND}, {WESPEAKER}",
            "Yakovlev et al. 2024; wespeaker/models/redimnet.py",
        )
        for size, field in (
            ("b0", "WeSpeaker 1.0 M, paper 1.0 M"),
            ("b1", "WeSpeaker 1.9 M, paper 2.2 M"),
            ("b2", "WeSpeaker 4.9 M, paper 4.7 M"),
            ("b3", "WeSpeaker 3.2 M, paper 3.0 M"),
            ("b4", "WeSpeaker 6.4 M, paper 6.3 M"),
            ("b5", "WeSpeaker 7.65 M, paper 9.2 M"),
            ("b6", "WeSpeaker 15.0 M, paper 15.0 M"),
        )
    ),
    *(
        Row(
            f"ReDimNet2 {size}",
            partial(ReDimNet2, size=size),
            f"release {field}",
            PALABRA,
            "PalabraAI/redimnet2, and its recipes; wespeaker/models/redimnet2.py",
        )
        for size, field in (
            ("b0", "1.1 M"),
            ("b1", "2.1 M"),
            ("b2", "3.6 M"),
            ("b3", "4.1 M"),
            ("b4", "6.6 M"),
            ("b5", "8.9 M"),
            ("b6", "12.3 M"),
        )
    ),
    Row(
        "ReDimNet2 b6, group norm",
        partial(ReDimNet2, size="b6", group_norm=True),
        "release 12.5 M",
        PALABRA,
        "the same, trained on VoxBlink2 and VoxCeleb2",
    ),
    Row("OrderStatistics", OrderStatistics, "-", "-", "this project, for a few dozen classes"),
    Row("MixtureStatistics", MixtureStatistics, "-", "-", "this project, across data sets"),
)
_V2 = partial(ViT, patch=14, image_size=518, layer_scale=True)
IMAGES = (
    *(
        Row(
            f"SFNet-{depth}",
            partial(SFNet, depth=depth),
            field,
            OPENSPHERE,
            "Liu et al. 2017; opensphere/module/backbone/sfnet.py",
        )
        for depth, field in (
            (4, "14.40 M"),
            (10, "17.05 M"),
            (20, "24.50 M"),
            (36, "34.61 M"),
            (64, "50.02 M"),
        )
    ),
    Row("SFNet-20, BN", partial(SFNet, depth=20, batch_norm=True), "-", OPENSPHERE, "the same"),
    Row(
        "SFNet-20, deprecated",
        partial(SFNet, depth=20, deprecated=True),
        "24.50 M",
        OPENSPHERE,
        "model/backbone/sfnet_deprecated.py (any depth)",
    ),
    *(
        Row(
            f"IResNet-{depth}",
            partial(IResNet, depth=depth),
            field,
            f"{ARCFACE}, {OPENSPHERE}",
            "Deng et al. 2019; arcface_torch/backbones/iresnet.py",
        )
        for depth, field in (
            (18, "24.03 M"),
            (34, "34.14 M"),
            (50, "43.59 M"),
            (100, "65.16 M"),
            (200, "118.83 M"),
        )
    ),
    Row(
        "MobileFaceNet",
        MobileFaceNet,
        "2.06 M",
        ARCFACE,
        "Chen et al. 2018; arcface_torch/backbones/mobilefacenet.py (mbf)",
    ),
    Row(
        "MobileFaceNet large",
        partial(MobileFaceNet, blocks=(2, 8, 12, 4), scale=4),
        "6.31 M",
        ARCFACE,
        "the same (mbf_large)",
    ),
    *(
        Row(
            f"ViT-{letter}, face",
            partial(FaceViT, width=width, depth=depth),
            field,
            ARCFACE,
            "arcface_torch/backbones/vit.py",
        )
        for letter, width, depth, field in (
            ("t", 256, 12, "19.14 M"),
            ("s", 512, 12, "76.02 M"),
            ("b", 512, 24, "113.83 M"),
            ("l", 768, 24, "255.68 M"),
        )
    ),
    *(
        Row(
            f"EdgeFace-{size.upper()}",
            partial(EdgeFace, size=size),
            field,
            EDGEFACE,
            "George et al. 2023; edgeface's timmfr.py, timm's edgenext.py",
        )
        for size, field in (("xxs", "-"), ("xs", "1.77 M"), ("s", "3.65 M"), ("base", "-"))
    ),
    *(
        Row(
            f"KP-RPE ViT-{letter}",
            make,
            "-",
            CVLFACE,
            "Kim et al. 2024; CVLface models/vit_kprpe",
        )
        for letter, make in (
            ("S", partial(KPRPEViT, depth=12, heads=8, mlp_ratio=5.0)),
            ("B", KPRPEViT),
        )
    ),
    *(
        Row(
            f"ResNet{depth}, images",
            partial(ImageResNet, depth=depth),
            f"with 1000 classes {field}",
            TORCHVISION,
            "He et al. 2016; torchvision/models/resnet.py",
        )
        for depth, field in (
            (18, "11.69 M"),
            (34, "21.80 M"),
            (50, "25.56 M"),
            (101, "44.55 M"),
            (152, "60.19 M"),
        )
    ),
    Row(
        "ResNet50, CIFAR",
        partial(ImageResNet, dim=128, stem="3x3", zero_init=True),
        "-",
        "-",
        "vMF paper, D.1; google-research/vmf_embeddings",
    ),
    Row(
        "BN-Inception",
        BNInception,
        "with 1000 classes 11.30 M",
        "Cadene",
        "Ioffe and Szegedy 2015; pretrainedmodels/models/bninception.py",
    ),
    Row("ViT-S/16", ViT, "21.67 M", DINO, "Caron et al. 2021; dino/vision_transformer.py"),
    Row("ViT-B/16", partial(ViT, width=768, heads=12), "85.80 M", DINO, "the same"),
    Row(
        "ViT-S/14", _V2, "22.06 M", DINOV2, "Oquab et al. 2023; dinov2/models/vision_transformer.py"
    ),
    Row("ViT-B/14", partial(_V2, width=768, heads=12), "86.58 M", DINOV2, "the same"),
    Row(
        "ViT-S/14, registers",
        partial(_V2, registers=4),
        "-",
        DINOV2,
        "Darcet et al. 2023; the same",
    ),
    Row(
        "GradientHistograms",
        GradientHistograms,
        "-",
        "-",
        "Dalal and Triggs 2005, Déniz et al. 2011; for a few dozen classes",
    ),
    Row("SmallCNN", SmallCNN, "-", "vmf_embeddings", "vMF paper, D.1, for MNIST"),
)
ROWS = (*SPEECH, *IMAGES)


class HubRow(NamedTuple):
    """One network of the Hugging Face hub."""

    name: str  # of a published network of the family
    cls: Any
    pooling: str
    in_dim: int
    difference: str  # by benchmarks/hub_parity.py
    source: str
    config: dict[str, Any]  # what config.json states beyond the defaults of transformers


_BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
_TOWER = {**_BASE, "intermediate_size": 3072}
_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_NORMED = {**_LARGE, "feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
_SMALL = {"hidden_size": 384, "num_attention_heads": 6, "patch_size": 14, "image_size": 518}
HUB = (
    HubRow(
        "google/vit-base-patch16-224",
        HubImage,
        "CLS",
        3,
        "0",
        "Dosovitskiy et al. 2021",
        {"model_type": "vit", **_TOWER},
    ),
    HubRow(
        "facebook/dinov2-small",
        HubImage,
        "CLS",
        3,
        "0",
        "Oquab et al. 2023",
        {"model_type": "dinov2", **_SMALL},
    ),
    HubRow(
        "facebook/dinov2-with-registers-small",
        HubImage,
        "CLS",
        3,
        "0",
        "Darcet et al. 2023",
        {"model_type": "dinov2_with_registers", **_SMALL},
    ),
    HubRow(
        "facebook/dinov3-vits16-pretrain-lvd1689m",
        HubImage,
        "CLS",
        3,
        "0",
        "Siméoni et al. 2025",
        {"model_type": "dinov3_vit", "num_register_tokens": 4},
    ),
    HubRow(
        "openai/clip-vit-base-patch32",
        HubImage,
        "CLS",
        3,
        "0",
        "Radford et al. 2021, the image tower",
        {"model_type": "clip_vision_model", **_TOWER, "patch_size": 32},
    ),
    HubRow(
        "google/siglip2-base-patch16-224",
        HubImage,
        "head",
        3,
        "9.5e-07",
        "Zhai et al. 2023, Tschannen et al. 2025, the image tower",
        {"model_type": "siglip_vision_model", **_TOWER},
    ),
    HubRow(
        "google/siglip2-base-patch16-naflex",
        HubImage,
        "head",
        3,
        "3.6e-07",
        "Tschannen et al. 2025, the image tower",
        {"model_type": "siglip2_vision_model", **_TOWER},
    ),
    HubRow(
        "facebook/convnext-tiny-224",
        HubImage,
        "mean",
        3,
        "0",
        "Liu et al. 2022",
        {"model_type": "convnext"},
    ),
    HubRow(
        "microsoft/resnet-50",
        HubImage,
        "mean",
        3,
        "4.8e-07",
        "He et al. 2016",
        {"model_type": "resnet"},
    ),
    HubRow(
        "facebook/wav2vec2-base",
        HubSpeech,
        "mean",
        1,
        "1.2e-07",
        "Baevski et al. 2020",
        {"model_type": "wav2vec2", **_BASE},
    ),
    HubRow(
        "facebook/wav2vec2-xls-r-300m",
        HubSpeech,
        "mean",
        1,
        "2.4e-07",
        "Babu et al. 2021",
        {"model_type": "wav2vec2", **_NORMED},
    ),
    HubRow(
        "facebook/hubert-base-ls960",
        HubSpeech,
        "mean",
        1,
        "2.4e-07",
        "Hsu et al. 2021",
        {"model_type": "hubert", **_BASE},
    ),
    HubRow(
        "facebook/hubert-large-ll60k",
        HubSpeech,
        "mean",
        1,
        "1.2e-07",
        "the same",
        {"model_type": "hubert", **_NORMED},
    ),
    HubRow(
        "microsoft/wavlm-base-plus",
        HubSpeech,
        "mean",
        1,
        "2.4e-07",
        "Chen et al. 2022",
        {"model_type": "wavlm", **_BASE},
    ),
    HubRow(
        "microsoft/wavlm-large",
        HubSpeech,
        "mean",
        1,
        "2.4e-07",
        "the same",
        {"model_type": "wavlm", **_NORMED, "conv_bias": False},
    ),
    HubRow(
        "facebook/w2v-bert-2.0",
        HubSpeech,
        "mean",
        160,
        "3.6e-06",
        "Barrault et al. 2023 (Seamless)",
        {"model_type": "wav2vec2-bert", **_LARGE},
    ),
    HubRow(
        "openai/whisper-small",
        HubSpeech,
        "mean",
        80,
        "1.8e-07",
        "Radford et al. 2023, the encoder",
        {
            "model_type": "whisper",
            "d_model": 768,
            "encoder_layers": 12,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
        },
    ),
)


def parts(make: Any) -> tuple[Any, dict[str, Any]]:
    """Split what makes a backbone into its class and the settings that differ from the defaults."""
    return (make.func, dict(make.keywords)) if isinstance(make, partial) else (make, {})


@cache
def size(make: Any) -> int:
    """Count the parameters without making them.

    The input has 3 channels (SmallCNN: 1), 80 mel bands, or what ReDimNet was published for.
    """
    cls, settings = parts(make)
    if getattr(cls, "takes", "") == "images":
        channels = 1 if cls is SmallCNN else 3
    elif cls in (ReDimNet, ReDimNet2):
        channels = 60 if cls is ReDimNet and settings.get("size") == "b0" else 72
    else:
        channels = 80
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in make(channels).parameters())


def call(make: Any) -> str:
    """Write the call as a recipe does, with the dim that the class has by default."""
    cls, settings = parts(make)
    settings = {"dim": inspect.signature(cls).parameters["dim"].default, **settings}
    return f"`{cls.__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})`"


def inputs(cls: Any, settings: dict[str, Any]) -> str:
    """Say which batches a backbone takes.

    For speech that is whether lengths may be mixed; for images one size, multiples of a patch, or
    any size.
    """
    if getattr(cls, "takes", "") != "images":
        return "yes" if cls.pads_exactly else "no"
    values = {
        name: settings.get(name, parameter.default)
        for name, parameter in inspect.signature(cls).parameters.items()
    }
    if cls is ViT:
        return f"multiples of {values['patch']}"
    if cls is BNInception:
        return "multiples of 32"
    if cls is EdgeFace:
        return "32 x 32 or more"
    return f"{values['image_size']} x {values['image_size']}" if "image_size" in values else "any"


def cells(row: Row) -> tuple[str, ...]:
    """List the cells of a backbone's row."""
    cls, settings = parts(row.make)
    count, takes = f"{size(row.make):,}", inputs(cls, settings)
    name = f"**{row.name}**"
    return name, call(row.make), count, row.field, takes, row.weights, row.source


def table(columns: tuple[str, ...], rows: tuple[Row, ...]) -> str:
    """Make a Markdown table of backbones."""
    lines = [columns, ("---",) * len(columns)]
    for row, before in zip(rows, (None, *rows), strict=False):
        *first, source = cells(row)
        repeated = before is not None and source in (before.source, "the same")
        lines.append((*first, "" if repeated else source))
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"


def hub_cells(row: HubRow) -> tuple[str, ...]:
    """List the cells of a network of the hub."""
    with torch.device("meta"):
        backbone = row.cls(row.in_dim, config=json.dumps(row.config))
    count = sum(parameter.numel() for parameter in backbone.parameters())
    exact = "-" if row.cls is HubImage else "yes" if backbone.pads_exactly else "no"
    name = f"**{row.name}**"
    cls = f"`{row.cls.__name__}`"
    return name, cls, row.pooling, f"{count:,}", exact, row.difference, row.source


def hub_table() -> str:
    """Make the Markdown table of the networks of the hub."""
    lines = [HUB_COLUMNS, ("---",) * len(HUB_COLUMNS), *map(hub_cells, HUB)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def page() -> str:
    """Make the text of docs/reference/backbones.md."""
    speech = HEAD + "\n" + table(COLUMNS, SPEECH) + PARITY
    images = IMAGES_HEAD + "\n" + table(IMAGES_COLUMNS, IMAGES)
    return speech + images + HUB_HEAD + hub_table()


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
