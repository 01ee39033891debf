"""Every face and image network against a second writing of it: functions over a state dict that
they make themselves from the releases' names and sizes.

The second writing follows the sources (named at each function) line by line, without modules. Its
state dicts load strictly into ours, with equal shapes at full size, and give equal embeddings in
float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from likeness.toolkit.backbones.bninception import BNInception
from likeness.toolkit.backbones.image_resnet import ImageResNet
from likeness.toolkit.backbones.iresnet import IResNet
from likeness.toolkit.backbones.mobileface import MobileFaceNet
from likeness.toolkit.backbones.sfnet import SFNet
from likeness.toolkit.backbones.small import SmallCNN
from likeness.toolkit.backbones.vit import FaceViT, ViT
from likeness.toolkit.backbones.weights import load_published
from tests.toolkit.backbones.layers import Layers


def sfnet(
    m: Layers,
    x: Tensor,
    *,
    blocks: tuple[int, ...],
    width: int = 64,
    dim: int = 512,
    bn: bool = False,
) -> Tensor:
    """opensphere/module/backbone/sfnet.py."""

    def conv(name: str, x: Tensor, out: int, stride: int = 1) -> Tensor:
        x = m.conv(name, x, out, 3, bias=not bn, stride=stride, padding=1)
        return m.norm(name.replace("conv", "bn"), x) if bn else x

    for stage, count in enumerate(blocks):
        x = conv(f"layer{stage + 1}.0.conv1", x, width * 2**stage, 2).relu()
        for i in range(1, count + 1):
            y = conv(f"layer{stage + 1}.{i}.conv1", x, x.shape[1]).relu()
            x = (conv(f"layer{stage + 1}.{i}.conv2", y, x.shape[1]) + x).relu()
    x = m.linear("fc", x.flatten(1), dim)
    return m.norm("features", x) if bn else x


def sfnet_deprecated(
    m: Layers, x: Tensor, *, blocks: tuple[int, ...], width: int = 64, dim: int = 512
) -> Tensor:
    """OpenSphere's model/backbone/sfnet_deprecated.py."""
    for stage, count in enumerate(blocks):
        x = m.conv(
            f"layer{stage + 1}.0.conv", x, width * 2**stage, 3, bias=True, stride=2, padding=1
        ).relu()
        for i in range(1, count + 1):
            y = m.conv(f"layer{stage + 1}.{i}.conv1", x, x.shape[1], 3, bias=True, padding=1).relu()
            x = (
                m.conv(f"layer{stage + 1}.{i}.conv2", y, x.shape[1], 3, bias=True, padding=1).relu()
                + x
            )
    return m.linear("fc", x.flatten(1), dim)


def iresnet(
    m: Layers, x: Tensor, *, blocks: tuple[int, ...], width: int = 64, dim: int = 512
) -> Tensor:
    """arcface_torch/backbones/iresnet.py."""
    x = m.prelu("prelu", m.norm("bn1", m.conv("conv1", x, width, 3, padding=1)))
    for stage, count in enumerate(blocks):
        for i in range(count):
            name, out, stride = f"layer{stage + 1}.{i}", width * 2**stage, 2 if i == 0 else 1
            y = m.norm(
                f"{name}.bn2", m.conv(f"{name}.conv1", m.norm(f"{name}.bn1", x), out, 3, padding=1)
            )
            y = m.norm(
                f"{name}.bn3",
                m.conv(
                    f"{name}.conv2", m.prelu(f"{name}.prelu", y), out, 3, stride=stride, padding=1
                ),
            )
            x = y + (
                m.norm(f"{name}.downsample.1", m.conv(f"{name}.downsample.0", x, out, 1, stride=2))
                if i == 0
                else x
            )
    return m.norm("features", m.linear("fc", m.norm("bn2", x).flatten(1), dim))


def mobileface(
    m: Layers, x: Tensor, *, blocks: tuple[int, int, int, int], scale: int, dim: int = 512
) -> Tensor:
    """arcface_torch/backbones/mobilefacenet.py."""

    def conv(
        name: str, x: Tensor, out: int, size: int, *, active: bool = True, **how: Any
    ) -> Tensor:
        x = m.norm(f"{name}.layers.1", m.conv(f"{name}.layers.0", x, out, size, **how))
        return m.prelu(f"{name}.layers.2", x) if active else x

    def depthwise(name: str, x: Tensor, out: int, groups: int, stride: int) -> Tensor:
        x = conv(
            f"{name}.layers.1",
            conv(f"{name}.layers.0", x, groups, 1),
            groups,
            3,
            groups=groups,
            stride=stride,
            padding=1,
        )
        return conv(f"{name}.layers.2", x, out, 1, active=False)

    def residual(name: str, x: Tensor, groups: int, count: int) -> Tensor:
        for i in range(count):
            x = x + depthwise(f"{name}.layers.{i}", x, x.shape[1], groups, 1)
        return x

    x = conv("layers.0", x, 64 * scale, 3, stride=2, padding=1)
    x = (
        conv("layers.1", x, 64 * scale, 3, padding=1, groups=64)
        if blocks[0] == 1
        else residual("layers.1", x, 128, blocks[0])
    )
    x = residual("layers.3", depthwise("layers.2", x, 64 * scale, 128, 2), 128, blocks[1])
    x = residual("layers.5", depthwise("layers.4", x, 128 * scale, 256, 2), 256, blocks[2])
    x = residual("layers.7", depthwise("layers.6", x, 128 * scale, 512, 2), 256, blocks[3])
    x = conv(
        "features.layers.0", conv("conv_sep", x, 512, 1), 512, x.shape[2], active=False, groups=512
    )
    return m.norm("features.layers.3", m.linear("features.layers.2", x.flatten(1), dim, bias=False))


def transform(
    m: Layers,
    x: Tensor,
    name: str,
    heads: int,
    *,
    bias: bool,
    eps: float,
    act: Callable[[Tensor], Tensor],
    scaled: bool = False,
) -> Tensor:
    """One block with attention written out."""

    def gamma(part: str, y: Tensor) -> Tensor:
        return y * m.new(f"{name}.{part}.gamma", y, y.shape[-1]) if scaled else y

    batch, tokens, width = x.shape
    qkv = m.linear(f"{name}.attn.qkv", m.layer_norm(f"{name}.norm1", x, eps), 3 * width, bias=bias)
    q, k, v = (part.view(batch, tokens, heads, -1).transpose(1, 2) for part in qkv.chunk(3, dim=2))
    weight = (q @ k.transpose(2, 3) / math.sqrt(width // heads)).exp()
    y = (
        ((weight / weight.sum(dim=3, keepdim=True)) @ v)
        .transpose(1, 2)
        .reshape(batch, tokens, width)
    )
    x = x + gamma("ls1", m.linear(f"{name}.attn.proj", y, width))
    return x + gamma(
        "ls2",
        m.linear(
            f"{name}.mlp.fc2",
            act(m.linear(f"{name}.mlp.fc1", m.layer_norm(f"{name}.norm2", x, eps), 4 * width)),
            width,
        ),
    )


def face_vit(
    m: Layers, x: Tensor, *, width: int, depth: int, heads: int = 8, patch: int = 9, dim: int = 512
) -> Tensor:
    """arcface_torch/backbones/vit.py in eval mode."""
    x = (
        m.conv("patch_embed.proj", x, width, patch, bias=True, stride=patch)
        .flatten(2)
        .transpose(1, 2)
    )
    m.new("mask_token", x, 1, 1, width)
    x = x + m.new("pos_embed", x, 1, x.shape[1], width)
    for i in range(depth):
        x = transform(m, x, f"blocks.{i}", heads, bias=False, eps=1e-5, act=F.relu6)
    x = m.norm(
        "feature.1",
        m.linear("feature.0", m.layer_norm("norm", x, 1e-5).flatten(1), width, bias=False),
        2e-5,
    )
    return m.norm("feature.3", m.linear("feature.2", x, dim, bias=False), 2e-5)


def vit(
    m: Layers,
    x: Tensor,
    *,
    width: int,
    heads: int,
    depth: int = 12,
    patch: int = 16,
    scaled: bool = False,
    registers: int = 0,
) -> Tensor:
    """facebookresearch/dino vision_transformer.py; with scaled and registers
    dinov2/models/vision_transformer.py.
    """
    x = (
        m.conv("patch_embed.proj", x, width, patch, bias=True, stride=patch)
        .flatten(2)
        .transpose(1, 2)
    )
    x = torch.cat([m.new("cls_token", x, 1, 1, width).expand(x.shape[0], -1, -1), x], dim=1)
    x = x + m.new("pos_embed", x, 1, x.shape[1], width)
    if registers:
        x = torch.cat(
            [
                x[:, :1],
                m.new("register_tokens", x, 1, registers, width).expand(x.shape[0], -1, -1),
                x[:, 1:],
            ],
            dim=1,
        )
    for i in range(depth):
        x = transform(m, x, f"blocks.{i}", heads, bias=True, eps=1e-6, act=F.gelu, scaled=scaled)
    return m.layer_norm("norm", x, 1e-6)[:, 0]


def resnet(
    m: Layers,
    x: Tensor,
    *,
    blocks: tuple[int, ...],
    bottleneck: bool,
    width: int = 64,
    dim: int = 1000,
    stem: str = "7x7",
) -> Tensor:
    """torchvision/models/resnet.py; the other stems: vmf_embeddings (3x3) and its variant without
    max pooling. The linear layer is made here too.
    """
    x = (
        m.conv("conv1", x, width, 7, stride=2, padding=3)
        if stem == "7x7"
        else m.conv("conv1", x, width, 3, padding=1)
    )
    x = m.norm("bn1", x).relu()
    x = x if stem == "3x3 whole" else F.max_pool2d(x, 3, 2, 1)
    x = m.residual(x, width, blocks, bottleneck, "downsample")
    return m.linear("fc", x.mean(dim=(2, 3)), dim)


def bninception(m: Layers, x: Tensor, *, dim: int = 1000) -> Tensor:
    """Cadene's pretrainedmodels/models/bninception.py.

    Its ReLUs work in place, so that the batch norms' outputs that it passes on are rectified.
    """

    def conv(name: str, x: Tensor, out: int, size: int = 1, stride: int = 1) -> Tensor:
        return m.norm(
            f"{name}_bn", m.conv(name, x, out, size, bias=True, stride=stride, padding=size // 2)
        ).relu()

    def down(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    def inception(
        name: str, x: Tensor, one: int, *sizes: int, proj: int = 0, largest: bool = False
    ) -> Tensor:
        r3, c3, rd, cd = sizes
        stride = 1 if one else 2
        y = [conv(f"{name}_1x1", x, one)] if one else []
        y += [conv(f"{name}_3x3", conv(f"{name}_3x3_reduce", x, r3), c3, 3, stride)]
        y += [
            conv(
                f"{name}_double_3x3_2",
                conv(f"{name}_double_3x3_1", conv(f"{name}_double_3x3_reduce", x, rd), cd, 3),
                cd,
                3,
                stride,
            )
        ]
        around = (
            F.max_pool2d(x, 3, 1, 1, ceil_mode=True)
            if largest
            else F.avg_pool2d(x, 3, 1, 1, ceil_mode=True, count_include_pad=True)
        )
        return torch.cat([*y, conv(f"{name}_pool_proj", around, proj) if one else down(x)], dim=1)

    x = down(conv("conv1_7x7_s2", x, 64, 7, 2))
    x = down(conv("conv2_3x3", conv("conv2_3x3_reduce", x, 64), 192, 3))
    x = inception("inception_3a", x, 64, 64, 64, 64, 96, proj=32)
    x = inception("inception_3b", x, 64, 64, 96, 64, 96, proj=64)
    x = inception("inception_3c", x, 0, 128, 160, 64, 96)
    x = inception("inception_4a", x, 224, 64, 96, 96, 128, proj=128)
    x = inception("inception_4b", x, 192, 96, 128, 96, 128, proj=128)
    x = inception("inception_4c", x, 160, 128, 160, 128, 160, proj=128)
    x = inception("inception_4d", x, 96, 128, 192, 160, 192, proj=128)
    x = inception("inception_4e", x, 0, 128, 192, 192, 256)
    x = inception("inception_5a", x, 352, 192, 320, 160, 224, proj=128)
    x = inception("inception_5b", x, 352, 192, 320, 192, 224, proj=128, largest=True)
    return m.linear("last_linear", x.mean(dim=(2, 3)), dim)


def small(m: Layers, x: Tensor, *, dim: int = 3) -> Tensor:
    """vMF paper, D.1, and vmf_embeddings/archs/n_digit_mnist_arch.py."""
    x = F.max_pool2d(
        m.norm("encoder.1", m.conv("encoder.0", x, 6, 5, bias=True, padding=2)).relu(), 2
    )
    x = F.max_pool2d(
        m.norm("encoder.5", m.conv("encoder.4", x, 16, 5, bias=True, padding=2)).relu(), 2
    )
    return m.linear(
        "encoder.12", m.norm("encoder.10", m.linear("encoder.9", x.flatten(1), 120)).relu(), dim
    )


Settings = dict[str, Any]
Case = tuple[Any, Settings, Any, Settings, int | tuple[int, int]]
ONES, UNEVEN = {"blocks": (1, 2, 0, 1)}, {"blocks": (1, 2, 1, 1)}
NARROW: Settings = {"dim": 8, "width": 4}
SF: Settings = {**NARROW, **ONES}
MBF, MBF_LARGE = {"scale": 1, "blocks": (1, 1, 2, 1)}, {"scale": 2, "blocks": (2, 1, 1, 1)}
DINO: Settings = {"width": 12, "depth": 2, "heads": 3}
# name -> our network and its settings, the second writing and its settings, the size of the images
SMALL: dict[str, Case] = {
    "SFNet": (SFNet, {**SF, "image_size": 30}, sfnet, SF, 30),
    "SFNet BN": (
        *(SFNet, {**SF, "image_size": 32, "batch_norm": True}),
        *(sfnet, {**SF, "bn": True}, 32),
    ),
    "SFNet deprecated": (
        *(SFNet, {**SF, "image_size": 32, "deprecated": True}),
        *(sfnet_deprecated, SF, 32),
    ),
    "IResNet": (
        *(IResNet, {**NARROW, **UNEVEN, "image_size": 33}),
        *(iresnet, {**NARROW, **UNEVEN}, 33),
    ),
    "mbf": (MobileFaceNet, {**MBF, "dim": 8, "image_size": 32}, mobileface, {**MBF, "dim": 8}, 32),
    "mbf large": (
        *(MobileFaceNet, {**MBF_LARGE, "dim": 8, "image_size": 32}),
        *(mobileface, {**MBF_LARGE, "dim": 8}, 32),
    ),
    "FaceViT": (
        *(FaceViT, {"dim": 8, "width": 16, "depth": 2, "heads": 4, "patch": 9, "image_size": 32}),
        *(face_vit, {"dim": 8, "width": 16, "depth": 2, "heads": 4}, 32),
    ),
    "DINO": (ViT, {**DINO, "patch": 8, "image_size": 32}, vit, {**DINO, "patch": 8}, 32),
    "DINOv2 reg": (
        *(ViT, {**DINO, "patch": 7, "image_size": 28, "layer_scale": True, "registers": 2}),
        *(vit, {**DINO, "patch": 7, "scaled": True, "registers": 2}, 28),
    ),
    "ResNet50": (
        *(ImageResNet, {**NARROW, "blocks": (2, 1, 1, 1)}),
        *(resnet, {**NARROW, "blocks": (2, 1, 1, 1), "bottleneck": True}, (50, 42)),
    ),
    "ResNet18 CIFAR": (
        *(ImageResNet, {**NARROW, **UNEVEN, "depth": 18, "stem": "3x3"}),
        *(resnet, {**NARROW, **UNEVEN, "bottleneck": False, "stem": "3x3"}, 32),
    ),
    "ResNet18 CIFAR whole": (
        *(ImageResNet, {**NARROW, **UNEVEN, "depth": 18, "stem": "3x3 whole"}),
        *(resnet, {**NARROW, **UNEVEN, "bottleneck": False, "stem": "3x3 whole"}, 16),
    ),
    "BNInception": (BNInception, {"dim": 8}, bninception, {"dim": 8}, (64, 96)),
    "SmallCNN": (SmallCNN, {}, small, {}, 28),
}


def shape_of(case: Case) -> tuple[int, int, int]:
    """The shape of an image of a case."""
    size = case[4]
    height, width = (size, size) if isinstance(size, int) else size
    return 1 if case[0] is SmallCNN else 3, height, width


@pytest.mark.parametrize("name", SMALL)
def test_embeddings_are_the_second_writing_s(name: str) -> None:
    make, settings, written, their_settings, _ = SMALL[name]
    shape = shape_of(SMALL[name])
    torch.manual_seed(1)
    theirs, x = Layers(), torch.randn(2, *shape, dtype=torch.float64)
    z = written(theirs, x, **their_settings)
    ours = make(shape[0], **settings).double().eval()
    load_published(ours, theirs.state)
    # where a classifier was dropped, the linear layer takes its place by hand
    for name in ("fc", "last_linear"):
        if getattr(ours, "left_out", ()) and f"{name}.weight" in theirs.state:
            getattr(ours, name).load_state_dict(
                {part: theirs.state[f"{name}.{part}"] for part in ("weight", "bias")}
            )
    with torch.no_grad():
        torch.testing.assert_close(ours(x), z, rtol=1e-9, atol=1e-10)
    assert z.std() > 1e-3, "the comparison would say nothing"


DEPTHS = {  # of SFNet, IResNet and ResNet: millions of parameters and blocks
    "SFNet": {
        4: (14.40, (0, 0, 0, 0)),
        10: (17.05, (0, 1, 2, 0)),
        20: (24.50, (1, 2, 4, 1)),
        36: (34.61, (2, 4, 8, 2)),
        64: (50.02, (3, 8, 16, 3)),
    },
    "IResNet": {
        18: (24.03, (2, 2, 2, 2)),
        34: (34.14, (3, 4, 6, 3)),
        50: (43.59, (3, 4, 14, 3)),
        100: (65.16, (3, 13, 30, 3)),
        200: (118.83, (6, 26, 60, 6)),
    },
    "ResNet": {
        18: (11.689512, (2, 2, 2, 2)),
        34: (21.797672, (3, 4, 6, 3)),
        50: (25.557032, (3, 4, 6, 3)),
        101: (44.549160, (3, 4, 23, 3)),
        152: (60.192808, (3, 8, 36, 3)),
    },
}
FACE_VITS = {"t": (19.14, 256, 12), "s": (76.02, 512, 12), "b": (113.83, 512, 24)}
FACE_VITS |= {"l": (255.68, 768, 24)}
MBFS = {"mbf": (2.06, (1, 4, 6, 2), 2), "mbf_large": (6.31, (2, 8, 12, 4), 4)}
VIT_S, VIT_B = {"width": 384, "heads": 6}, {"width": 768, "heads": 12}
V2: Settings = {"patch": 14, "image_size": 518, "layer_scale": True}
# name -> millions of parameters and the case. The numbers are those of field-face.md 1.10 (measured
# there on the releases' code), and torchvision's, DINO's and Cadene's public counts; DINOv2's are
# without its mask_token.
FULL: dict[str, tuple[float, Case]] = {
    **{
        f"{family}-{depth}": (
            millions,
            (make, {"depth": depth}, written, {"blocks": blocks}, 112),
        )
        for family, make, written in (("SFNet", SFNet, sfnet), ("IResNet", IResNet, iresnet))
        for depth, (millions, blocks) in DEPTHS[family].items()
    },
    **{
        name: (
            millions,
            (MobileFaceNet, settings, mobileface, settings, 112),
        )
        for name, (millions, blocks, scale) in MBFS.items()
        for settings in [{"blocks": blocks, "scale": scale}]
    },
    **{
        f"ViT-{letter}": (millions, (FaceViT, settings, face_vit, settings, 112))
        for letter, (millions, width, depth) in FACE_VITS.items()
        for settings in [{"width": width, "depth": depth}]
    },
    **{
        f"ResNet{depth}": (
            millions,
            (
                *(ImageResNet, {"depth": depth, "dim": 1000}),
                *(resnet, {"blocks": blocks, "bottleneck": depth > 34}, 224),
            ),
        )
        for depth, (millions, blocks) in DEPTHS["ResNet"].items()
    },
    "BN-Inception": (11.295240, (BNInception, {"dim": 1000}, bninception, {}, 224)),
    **{
        name: (
            millions,
            (
                *(ViT, {**size, **(V2 if second else {})}),
                *(vit, {**size, **({"patch": 14, "scaled": True} if second else {})}),
                518 if second else 224,
            ),
        )
        for name, millions, size, second in (
            ("DINO ViT-S/16", 21.665664, VIT_S, False),
            ("DINO ViT-B/16", 85.798656, VIT_B, False),
            ("DINOv2 ViT-S/14", 22.056576 - 384e-6, VIT_S, True),
            ("DINOv2 ViT-B/14", 86.580480 - 768e-6, VIT_B, True),
        )
    },
}
DEEPEST = ("IResNet-100", "IResNet-200", "ResNet101", "ResNet152")  # more of the same blocks


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name in DEEPEST else []) for name in FULL],
)
def test_full_size_has_the_field_s_names_shapes_and_count(name: str) -> None:
    public, case = FULL[name]
    make, settings, written, their_settings, _ = case
    with torch.device("meta"):
        theirs, ours = Layers(), make(3, **settings)
        written(theirs, torch.empty(2, *shape_of(case)), **their_settings)
    assert {name: tuple(value.shape) for name, value in ours.state_dict().items()} == {
        name: tuple(value.shape) for name, value in theirs.state.items()
    }
    count = sum(parameter.numel() for parameter in ours.parameters()) / 1e6
    assert round(count, 2 if round(public, 2) == public else 6) == pytest.approx(public, abs=1e-9)
