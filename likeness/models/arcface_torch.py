"""Face networks that InsightFace's arcface_torch trained: backbone.pth, a state dict of an IResNet.

The sizes of the network follow from its tensors. Nothing in the file is executed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt
from pathlib import Path
from typing import cast

import torch

from eval.errors import LikenessError
from eval.types import name_first
from toolkit.backbones.iresnet import IResNet
from toolkit.backbones.weights import load_published, read_weights

_WRAPPED = re.compile(r"^(module\.|backbone\.)+")


def read_network(path: Path) -> IResNet:
    """Read an IResNet from a state dict that was saved by torch.save.

    Args:
        path: The file.

    Returns:
        The network, in the sizes of its tensors.

    Raises:
        LikenessError: There is no such file, it holds another network, or its tensors contradict
            each other.
    """
    state = read_weights(path)
    shapes = {_WRAPPED.sub("", name): tuple(value.shape) for name, value in state.items()}
    try:
        # The first network takes no memory: what the sizes of a few tensors ask for may be much
        # more than the file holds.
        with torch.device("meta"):
            needed = sum(value.numel() for value in _empty(shapes).parameters())
        stored = sum(value.numel() for value in state.values())
        if needed > stored:
            raise LikenessError(
                f"{path}: weights do not fit: their sizes are of a network with {needed} weights, "
                f"and the file has {stored}; copy it again"
            )
        network = _empty(shapes)
    except (KeyError, IndexError, ZeroDivisionError):
        raise LikenessError(
            f"{path}: its {len(state)} tensors ({name_first(state)}) are no IResNet of "
            "arcface_torch (r18 to r200); give backbone.weights=FILE in a recipe with the network "
            "that they are of"
        ) from None
    try:
        load_published(network, state)
    except ValueError as error:
        raise LikenessError(f"{path}: {error}") from None
    return network


def _empty(shapes: Mapping[str, tuple[int, ...]]) -> IResNet:
    """Build the network of these shapes.

    Raises:
        KeyError: It is another network.
    """
    width, in_dim, *_ = shapes["conv1.weight"]
    blocks = [
        len({name.split(".")[1] for name in shapes if name.startswith(f"layer{stage}.")})
        for stage in (1, 2, 3, 4)
    ]
    dim, size = shapes["fc.weight"]
    if min(blocks) < 1 or in_dim != 3 or "layer1.0.prelu.weight" not in shapes:
        raise KeyError("layer1.0.prelu.weight")
    side = isqrt(size // (8 * width))
    if not side:
        raise KeyError("fc.weight")
    return IResNet(
        in_dim,
        dim=dim,
        blocks=cast(tuple[int, int, int, int], tuple(blocks)),
        width=width,
        image_size=16 * side,
    )
