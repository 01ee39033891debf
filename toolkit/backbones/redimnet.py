"""ReDimNet: a network that trades bands for channels, and looks along time in between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from toolkit.backbones import redimension
from toolkit.backbones.part_outputs import one_of
from toolkit.backbones.pooling import frame_mask, pool

Size = Literal["b0", "b1", "b2", "b3", "b4", "b5", "b6"]


class _Shape(NamedTuple):
    """What a size is made of."""

    width: int  # the channels of the first stage
    block: redimension.Block
    group: int  # the channels that a 3x3 convolution of a block joins
    global_context: bool  # of the pooling
    stages: tuple[tuple[int, int, int, int], ...]  # see redimension.Row


_B0 = ((1, 2, 1, 30), (2, 3, 2, 30), (1, 3, 3, 30), (2, 4, 2, 10), (1, 3, 1, 10))
_B1 = ((1, 2, 1, 0), (2, 3, 1, 0), (3, 4, 1, 12), (2, 5, 1, 12), (2, 3, 1, 8))
_B2 = ((1, 2, 1, 12), (2, 2, 1, 12), (1, 3, 1, 12), (2, 4, 1, 8), (1, 4, 1, 8), (2, 4, 1, 4))
_B3 = ((1, 6, 4, 32), (2, 6, 2, 32), (1, 8, 2, 32), (2, 10, 2, 16), (1, 10, 1, 16), (2, 8, 1, 16))
_B4 = ((1, 4, 2, 48), (2, 4, 2, 48), (1, 6, 2, 48), (2, 6, 1, 32), (1, 8, 1, 24), (2, 4, 1, 16))
_B6 = ((1, 4, 4, 32), (2, 6, 2, 32), (1, 6, 2, 24), (3, 8, 1, 24), (1, 8, 1, 16), (2, 8, 1, 16))
# wespeaker/models/redimnet.py
_SHAPES: dict[str, _Shape] = {
    "b0": _Shape(10, "residual", 1, True, _B0),
    "b1": _Shape(12, "convnext", 8, False, _B1),
    "b2": _Shape(16, "convnext", 4, True, _B2),
    "b3": _Shape(16, "weighted", 1, True, _B3),
    "b4": _Shape(32, "weighted", 1, True, _B4),
    "b5": _Shape(32, "weighted", 16, True, _B4),
    "b6": _Shape(32, "residual", 32, True, _B6),
}


class ReDimNet(nn.Module):
    """ReDimNet, which gives raw embeddings (B, dim).

    An utterance goes through the network as (bands * channels, frames). Every stage takes a learned
    mean of what all stages before it gave, reshapes it to (channels, bands, frames), trades bands
    for channels by a strided convolution, works on it with 2-D blocks, and reshapes it back. A time
    context of four convolutions and self-attention follows. No stage drops frames.

    Sources: Yakovlev et al. 2024, arXiv 2407.18223; wespeaker/models/redimnet.py, whose sizes these
    are; IDRnD/redimnet, whose parameter names these are. `load_wespeaker` takes the names of both.
    In WeSpeaker b0 to b6 have 1.0, 1.9, 4.9, 3.2, 6.4, 7.65 and 15.0 M parameters.

    Padded frames are zeroed after every block and left out of attention and means, so padding never
    changes an embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim): 72, or 60 for b0. The product of
            the strides of the stages has to divide it.
        dim: The size of the embeddings.
        size: b0 to b6.
        width: The channels of the first stage, where they are not to be the size's.
        stages: The stages, where they are not to be the size's: for each of them its stride over
            bands, its number of blocks, how much wider than their output these are, and by how much
            the time context reduces the channels (0: it has none).
        normalise: Whether batch norm follows the pooling, as in IDRnD's release. WeSpeaker has none
            there.

    Raises:
        LikenessError: The size is another one, or the stages do not divide the bands or channels.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        size: Size = "b2",
        width: int = 0,
        stages: Sequence[tuple[int, int, int, int]] = (),
        normalise: bool = True,
    ):
        super().__init__()
        one_of("ReDimNet", "size", size, _SHAPES)
        shape = _SHAPES[size]
        self.in_dim, self.dim = in_dim, dim
        width = width or shape.width
        self.backbone = redimension.stages(
            "ReDimNet",
            in_dim,
            width,
            [redimension.Row(*row) for row in tuple(stages) or shape.stages],
            block=shape.block,
            group=shape.group,
        )
        self.pool, num = pool("ASTP", width * in_dim, global_context=shape.global_context)
        self.bn = nn.BatchNorm1d(num) if normalise else nn.Identity()
        self.linear = nn.Linear(num, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        mask = None if lengths is None else frame_mask(lengths, features.shape[1])[:, None]
        x = self.backbone(features.transpose(1, 2)[:, None], mask)
        pooled = self.pool(x, None if mask is None else mask[:, 0])
        return torch.as_tensor(self.linear(self.bn(pooled)))
