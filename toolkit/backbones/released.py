"""The networks of released checkpoints, known by the sizes of their tensors or by a model_config.

WeSpeaker's (avg_model.pt) and InsightFace's arcface_torch (backbone.pth) are known by the sizes,
the releases of ReDimNet and ReDimNet2 by the model_config in them.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import isqrt
from typing import Any, get_args

import torch

from likeness.toolkit.backbones import redimnet, weights
from likeness.toolkit.backbones.campplus import CAMPPlus
from likeness.toolkit.backbones.ecapa import WeSpeakerECAPA
from likeness.toolkit.backbones.iresnet import IResNet
from likeness.toolkit.backbones.resnet import ResNet, SimAMResNet
from likeness.toolkit.backbones.xvector import XVector

Shapes = Mapping[str, tuple[int, ...]]
Part = Callable[..., Any]  # makes the network of so many channels or bands
# Of a release's model_config: the blocks, and settings that have to be these, as no tensor tells
# them; _ALSO has other words for them.
_BLOCKS: dict[str, redimnet.Block] = {
    "basic_resnet": "residual",
    "basic_resnet_fwse": "weighted",
    "convnext_like": "convnext",
}
_RELEASED = {
    "block_1d_type": "conv+att",
    "pooling_func": "ASTP",
    "emb_bn": False,
    "causal": "none",
    "tf_optimized_arch": False,
    "pad_right_samples": None,
    "before_pool_offset": None,
}
_ALSO = {"causal": False}


def wespeaker_part(shapes: Shapes) -> tuple[Part, int]:
    """Return the part that makes the network of these shapes, and its number of bands.

    Raises:
        KeyError: It is another network.
    """
    if "layer1.conv.weight" in shapes:
        channels, num_mels, _ = shapes["layer1.conv.weight"]
        pooled, hidden = shapes["conv.weight"][0], shapes["pool.linear1.weight"][1]
        return partial(
            WeSpeakerECAPA,
            dim=shapes["linear.weight"][0],
            channels=channels,
            pooled=pooled,
            res2net_scale=channels // shapes["layer2.se_res2block.1.convs.0.weight"][0],
            se_channels=shapes["layer2.se_res2block.3.linear1.weight"][0],
            global_context=hidden == 3 * pooled,
            normalise="bn2.weight" in shapes,
        ), num_mels
    if "frame_1.conv_1d.weight" in shapes:
        channels, num_mels, _ = shapes["frame_1.conv_1d.weight"]
        return partial(
            XVector,
            dim=shapes["seg_1.weight"][0],
            channels=channels,
            pooled=shapes["frame_5.conv_1d.weight"][0],
            two_layers="seg_2.weight" in shapes,
        ), num_mels
    if "xvector.dense.linear.weight" in shapes:
        # CAM++, whose head leaves an eighth of the bands.
        num_mels = 8 * shapes["xvector.tdnn.linear.weight"][1] // shapes["head.conv1.weight"][0]
        return partial(CAMPPlus, dim=shapes["xvector.dense.linear.weight"][0]), num_mels
    if "backbone.stem.0.weight" in shapes:
        return _of_redimnet(shapes)
    front = "front." if "front.conv1.weight" in shapes else ""  # SimAM-ResNet
    width = shapes[f"{front}conv1.weight"][0]
    blocks = tuple(_count(shapes, rf"{front}layer{stage}\.\d+\.") for stage in (1, 2, 3, 4))
    bottleneck = f"{front}layer1.0.conv3.weight" in shapes
    dim, size = shapes["bottleneck.weight" if front else "seg_1.weight"]
    num_mels = 8 * size // (2 * width * 8 * (4 if bottleneck else 1))
    sizes: dict[str, Any] = {"dim": dim, "width": width, "blocks": blocks}
    if front:
        return partial(SimAMResNet, **sizes), num_mels
    depth, two_layers = 50 if bottleneck else 34, "seg_2.weight" in shapes
    return partial(ResNet, depth=depth, two_layers=two_layers, **sizes), num_mels


def _of_redimnet(shapes: Shapes) -> tuple[Part, int]:
    """Return the part of the ReDimNet of these shapes, one of WeSpeaker's sizes, and its bands.

    Raises:
        KeyError: It is another network. So are those that IDRnD and PalabraAI released, whose
            front-end is not WeSpeaker's (`redimnet_part`).
    """
    width, (dim, pooled) = shapes["backbone.stem.0.weight"][0], shapes["seg_1.weight"]
    num_mels, stored = pooled // (2 * width), weights.redimnet_names(shapes)
    for size in get_args(redimnet.Size):
        part = partial(redimnet.ReDimNet, dim=dim, size=size, normalise=False)
        # A ValueError: this size takes other numbers of bands.
        with suppress(ValueError), torch.device("meta"):
            own = part(num_mels).state_dict()
            if all(stored.get(name) == tuple(value.shape) for name, value in own.items()):
                return part, num_mels
    raise KeyError("no size of ReDimNet has these shapes")


def arcface_torch_part(shapes: Shapes) -> tuple[Part, int]:
    """Return the part of the IResNet of these shapes, and its number of channels.

    Raises:
        KeyError: It is another network.
    """
    shapes = {name.removeprefix("backbone."): shape for name, shape in shapes.items()}
    shapes["layer1.0.prelu.weight"]  # in other ResNets, the activation has no weights
    width, in_dim, *_ = shapes["conv1.weight"]
    dim, size = shapes["fc.weight"]
    blocks = tuple(_count(shapes, rf"layer{stage}\.\d+\.") for stage in (1, 2, 3, 4))
    side = 16 * isqrt(size // (8 * width))
    sizes: dict[str, Any] = {"dim": dim, "width": width, "blocks": blocks, "image_size": side}
    return partial(IResNet, **sizes), in_dim


def _count(shapes: Shapes, pattern: str) -> int:
    """Count what the names of tensors begin with, in different words."""
    return len({match[0] for name in shapes if (match := re.match(pattern, name))})


def redimnet_part(config: Any) -> Part:
    """Return the part of the network of a release's model_config.

    Raises:
        ValueError: A setting is not read. LookupError, TypeError: It is no such configuration.
    """
    stages = config["stages_setup"]
    second = not isinstance(stages[0][0], int)
    fixed = _RELEASED | ({"return_2d_output": True} if second else {"out_channels": None})
    for name, value in fixed.items():
        if config.get(name, value) not in (value, _ALSO.get(name, value)):
            raise ValueError(f"{name} is {config[name]!r:.40}")
    step, rows = 1, []
    for stride, blocks, widening, _, reduction in stages:
        over_bands, over_frames = stride if second else (stride, 1)
        step *= over_frames
        rows.append([over_bands, blocks, widening, reduction or 0, step])
    shape = {
        "width": config["C"],
        "rows": rows,
        "block": _BLOCKS[config["block_2d_type"]],
        "group": config["group_divisor"],
        "global_context": config["global_context_att"],
        "pooled": config.get("out_channels") or 0,
    }
    if second:
        norm = bool(config.get("agg_gnorm", False))
        return partial(redimnet.ReDimNet2, dim=config["embed_dim"], group_norm=norm, shape=shape)
    return partial(redimnet.ReDimNet, dim=config["embed_dim"], shape=shape)
