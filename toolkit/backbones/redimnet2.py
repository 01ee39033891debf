"""ReDimNet2: a ReDimNet whose later stages work on every second and every fourth frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.part_outputs import one_of
from likeness.toolkit.backbones.pooling import flat, pool
from likeness.toolkit.backbones.redimnet import Row, Size, build_stages, in_bands, repeated


class _Shape(NamedTuple):
    """What a size is made of."""

    width: int  # the channels of the first stage
    pooled: int  # the channels of the head before the pooling, of every band; 0: it has no head
    counts: tuple[int, ...]  # the blocks of each stage
    widening: tuple[float, ...]  # how much wider than their output these are
    reduction: tuple[int, ...]  # by how much the time context reduces the channels


_COUNTS, _EVEN, _FALLING = (2, 3, 4, 5, 4, 3), (2, 1, 1, 1, 1, 1), (4, 3, 2, 1, 1, 1)
# The release's recipes (applications/speaker_rec), where the kernel sizes of b2 have no effect.
_SHAPES: dict[str, _Shape] = {
    "b0": _Shape(12, 64, _COUNTS, _EVEN, (36, 36, 36, 36, 18, 18)),
    "b1": _Shape(16, 0, _COUNTS, _EVEN, (32, 32, 32, 32, 16, 16)),
    "b2": _Shape(20, 0, _COUNTS, _EVEN, (40, 30, 30, 20, 20, 10)),
    "b3": _Shape(24, 0, _COUNTS, _FALLING, (24, 24, 24, 24, 24, 24)),
    "b4": _Shape(32, 0, _COUNTS, _FALLING, (24, 24, 24, 24, 24, 24)),
    "b5": _Shape(48, 256, _COUNTS, _FALLING, (48, 48, 48, 48, 32, 32)),
    "b6": _Shape(64, 224, (3, 4, 5, 5, 4, 3), (3, 2, 2, 1, 0.75, 0.5), (64, 64, 48, 48, 32, 24)),
}
_STEPS = (1, 1, 2, 2, 4, 4)  # the stages work on every first, second and fourth frame


class ReDimNet2(nn.Module):
    """ReDimNet2, which gives raw embeddings (B, dim).

    It is a ReDimNet whose later stages work on every second and every fourth frame, and repeat what
    they give for the frames between. Sources: "ReDimNet2: Scaling speaker verification via
    time-pooled dimension reshaping", submitted to Interspeech 2026; PalabraAI/redimnet2, whose
    parameter names and sizes these are; wespeaker/models/redimnet2.py. The release states 1.1, 2.1,
    3.6, 4.1, 6.6, 8.9 and 12.3 M parameters for b0 to b6.

    The frames beyond the last multiple of 4 of an utterance are not seen, as in the release. Padded
    frames are zeroed after every block and left out of attention and means, so padding never
    changes an embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim): 72. The product of
            the strides of the stages has to divide it, which is 8, or 12 for b2.
        dim: The size of the embeddings.
        size: b0 to b6.
        width: The channels of the first stage, where they are not to be the size's.
        stages: The stages, where they are not to be the size's: for each of them its stride over
            bands, its number of blocks, how much wider than their output these are, by how much the
            time context reduces the channels, and how many frames it takes together: 1, 2 or 4.
        pooled: The channels of the head before the pooling; 0: no head, -1: what the size says.
        split_bands: Whether the head works on the bands one by one, as in the release. WeSpeaker's
            b0 to b5 have a head over all bands: its b0 is split_bands=False, and its b1, b2 and b5
            are pooled=64, 64 and 256 besides.
        group_norm: Whether group norm over frames follows the stem and every stage, as in the
            release's newest recipes and its b6 of VoxBlink2 (agg_gnorm).

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
        stages: Sequence[tuple[int, int, float, int, int]] = (),
        pooled: int = -1,
        split_bands: bool = True,
        group_norm: bool = False,
    ):
        super().__init__()
        one_of("ReDimNet2", "size", size, _SHAPES)
        shape = _SHAPES[size]
        self.in_dim, self.dim = in_dim, dim
        width, strides = width or shape.width, (1, 2, 1, 3 if size == "b2" else 2, 1, 2)
        described = zip(strides, shape.counts, shape.widening, shape.reduction, _STEPS, strict=True)
        rows = [Row(*row) for row in tuple(stages) or described]
        self.backbone = build_stages(
            "ReDimNet2",
            in_dim,
            width,
            rows,
            block="residual",
            group=1,
            second=True,
            group_norm=group_norm,
        )
        num, pooled = width * in_dim, shape.pooled if pooled < 0 else pooled
        self.split_bands = split_bands
        if pooled and split_bands:
            self.backbone.head = nn.Conv2d(self.backbone.channels, pooled, 1)
            num = pooled * self.backbone.bands
        elif pooled:
            self.backbone.head = nn.Conv1d(num, pooled, 1)
            num = pooled
        self.pool, num = pool("ASTP", num, global_context=True)
        self.bn = nn.BatchNorm1d(num)
        self.linear = nn.Linear(num, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        frames, mask = features.shape[1], None
        if lengths is not None:
            valid = (lengths * frames).round()
            quarters = torch.arange(frames // 4, device=lengths.device)[None]
            mask = repeated((quarters < valid[:, None].div(4).floor())[:, None], 4)
        x = self.backbone(features[:, : frames // 4 * 4].transpose(1, 2)[:, None], mask)
        x = in_bands(x, self.backbone.bands) if self.split_bands else x
        x = x if self.backbone.head is None else self.backbone.head(x)
        x = flat(x) if self.split_bands else x
        pooled = self.pool(x, None if mask is None else mask[:, 0])
        return torch.as_tensor(self.linear(self.bn(pooled)))
