"""WeSpeaker's checkpoints (avg_model.pt): a network from the sizes of its tensors.

So neither its YAML nor an argument is needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast, get_args

import torch
from torch import Tensor, nn

from eval.errors import LikenessError
from eval.types import name_first
from toolkit.backbones import redimnet
from toolkit.backbones.campplus import CAMPPlus
from toolkit.backbones.ecapa import WeSpeakerECAPA
from toolkit.backbones.resnet import ResNet
from toolkit.backbones.simam import SimAMResNet
from toolkit.backbones.weights import load_wespeaker, redimnet_names
from toolkit.backbones.xvector import XVector
from toolkit.models.parts import Part

_MAX_MELS = 1024


def network(file: Path, state: Mapping[str, Tensor]) -> tuple[nn.Module, int, Part]:
    """Build the network of a state dict and fill in its weights.

    Args:
        file: Where the state dict was read from, for the errors.
        state: The tensors by WeSpeaker's names.

    Returns:
        The network, the number of bands that it takes, and the part that makes such a network.

    Raises:
        LikenessError: The tensors are of another network, or contradict each other.
    """
    state = {name.removeprefix("module."): value for name, value in state.items()}
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    try:
        # The first network takes no memory: what the sizes of a few tensors ask for may be much
        # more than the file holds.
        with torch.device("meta"):
            part, num_mels = _empty_network(shapes)
            backbone = part(num_mels)
        needed = sum(parameter.numel() for parameter in backbone.parameters())
        stored = sum(tensor.numel() for tensor in state.values())
        if needed > stored or not 1 <= num_mels <= _MAX_MELS:
            raise LikenessError(
                f"{file}: weights do not fit: their sizes are of a network over {num_mels} bands "
                f"with {needed} weights, and the file has {stored}; copy it again"
            )
        backbone = part(num_mels)
    except (KeyError, IndexError, ZeroDivisionError):
        raise LikenessError(
            f"{file}: its {len(state)} tensors ({name_first(state)}) are none of ResNet, "
            "SimAM-ResNet, ECAPA-TDNN, CAM++, ReDimNet or x-vector as WeSpeaker names them"
        ) from None
    try:
        load_wespeaker(backbone, state)
    except ValueError as error:
        raise LikenessError(f"{file}: {error}") from None
    return backbone, num_mels, part


def _empty_network(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Part, int]:
    """Return the part that makes the network of these shapes, and its number of bands.

    Raises:
        KeyError: It is another network.
    """

    def count(pattern: str) -> int:
        return len({match[0] for name in shapes if (match := re.match(pattern, name))})

    if "layer1.conv.weight" in shapes:  # ECAPA-TDNN
        channels, num_mels, _ = shapes["layer1.conv.weight"]
        scale = channels // shapes["layer2.se_res2block.1.convs.0.weight"][0]
        if scale != 1 + count(r"layer2\.se_res2block\.1\.convs\.\d+\."):
            raise KeyError(scale)
        pooled, hidden = shapes["conv.weight"][0], shapes["pool.linear1.weight"][1]
        return partial(
            WeSpeakerECAPA,
            dim=shapes["linear.weight"][0],
            channels=channels,
            pooled=pooled,
            res2net_scale=scale,
            se_channels=shapes["layer2.se_res2block.3.linear1.weight"][0],
            global_context=hidden == 3 * pooled,
            normalise="bn2.weight" in shapes,
        ), num_mels
    if "frame_1.conv_1d.weight" in shapes:
        channels, num_mels, _ = shapes["frame_1.conv_1d.weight"]
        pooled, two_layers = shapes["frame_5.conv_1d.weight"][0], "seg_2.weight" in shapes
        return partial(
            XVector,
            dim=shapes["seg_1.weight"][0],
            channels=channels,
            pooled=pooled,
            two_layers=two_layers,
        ), num_mels
    if "xvector.dense.linear.weight" in shapes:
        # CAM++, whose head leaves an eighth of the bands.
        num_mels = 8 * shapes["xvector.tdnn.linear.weight"][1] // shapes["head.conv1.weight"][0]
        return partial(CAMPPlus, dim=shapes["xvector.dense.linear.weight"][0]), num_mels
    if "front.conv1.weight" in shapes:  # SimAM-ResNet
        width, (dim, size) = shapes["front.conv1.weight"][0], shapes["bottleneck.weight"]
        num_mels = 8 * size // (2 * width * 8)
        counts = tuple(count(rf"front\.layer{stage}\.\d+\.") for stage in (1, 2, 3, 4))
        return partial(
            SimAMResNet, dim=dim, width=width, blocks=cast(tuple[int, int, int, int], counts)
        ), num_mels
    if "backbone.stem.0.weight" in shapes:
        return _redimnet(shapes)
    width = shapes["conv1.weight"][0]
    blocks = tuple(count(rf"layer{stage}\.\d+\.") for stage in (1, 2, 3, 4))
    bottleneck = "layer1.0.conv3.weight" in shapes
    dim, size = shapes["seg_1.weight"]
    if any(name.startswith("pool.") for name in shapes):
        raise LikenessError(
            "a ResNet with attentive pooling; only TSTP, the pooling of WeSpeaker's recipes for "
            "ResNet, is read"
        )
    num_mels = 8 * size // (2 * width * 8 * (4 if bottleneck else 1))
    depth, two_layers = 50 if bottleneck else 34, "seg_2.weight" in shapes
    return partial(
        ResNet,
        dim=dim,
        width=width,
        depth=depth,
        blocks=cast(tuple[int, int, int, int], blocks),
        two_layers=two_layers,
    ), num_mels


def _redimnet(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Part, int]:
    """Return the part of the ReDimNet of these shapes, one of WeSpeaker's sizes, and its bands.

    Raises:
        KeyError: It is another network.
        LikenessError: It is a ReDimNet with another front-end than WeSpeaker's.
    """
    if "backbone.stage0.0.w" in shapes or "linear.weight" in shapes:
        raise LikenessError(
            "a ReDimNet as IDRnD or PalabraAI released it, whose front-end is not WeSpeaker's; "
            "read it in Python by toolkit.backbones.weights.load_wespeaker"
        )
    width, (dim, pooled) = shapes["backbone.stem.0.weight"][0], shapes["seg_1.weight"]
    num_mels = pooled // (2 * width)
    stored = {
        name: shape
        for name, shape in redimnet_names(shapes).items()
        if not name.startswith("projection.") and not name.endswith(".num_batches_tracked")
    }
    for size in get_args(redimnet.Size):
        part = partial(redimnet.ReDimNet, dim=dim, size=size, normalise=False)
        try:
            with torch.device("meta"):
                network = part(num_mels)
        except ValueError:  # this size takes other numbers of bands
            continue
        needed = {name: tuple(value.shape) for name, value in network.state_dict().items()}
        if stored == {
            name: shape
            for name, shape in needed.items()
            if not name.endswith(".num_batches_tracked")
        }:
            return part, num_mels
    raise KeyError("no size of ReDimNet has these shapes")
