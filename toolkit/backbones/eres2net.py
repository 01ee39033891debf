"""ERes2Net and ERes2NetV2: residual networks with groups of channels and fused stages.

Their blocks work on groups of channels one after another, and attention fuses the stages.
"""

from functools import partial

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.pooling import flat, keep, pool
from likeness.toolkit.backbones.resnet import add_front, run, shortcut, stem


class ERes2Net(nn.Module):
    """ERes2Net (Chen et al. 2023, arXiv 2305.12838), which gives raw embeddings (B, dim).

    A block works on `scale` groups of base_width / 64 times its channels. Stages three and four
    fuse a group with the next by attention instead of a sum, and every stage's output is fused with
    that of the stages before. It has 6.61 M parameters at 80 mel. 3D-Speaker's "huge" has width=64,
    base_width=24, scale=3, expansion=4. Parameter names are those of 3D-Speaker's models/eres2net.
    Padded frames are zeroed before every 3x3 convolution, so padding never changes an embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the embeddings.
        width: The channels of the first stage: 32, or 64 for the large network (22.46 M
            parameters).
        blocks: The number of blocks of each stage.
        base_width: The width of a group of channels, in 64ths of the block's channels.
        scale: The number of groups.
        expansion: How many times more channels leave a block than it works on.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        width: int = 32,
        blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
        base_width: int = 32,
        scale: int = 2,
        expansion: int = 2,
    ):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        block = partial(
            _Block, width=width, base_width=base_width, scale=scale, expansion=expansion
        )
        add_front(self, width, blocks, block, expansion)
        out = [width * 2**stage * expansion for stage in range(4)]
        self.layer1_downsample = _downsample(out[0])
        self.layer2_downsample = _downsample(out[1])
        self.layer3_downsample = _downsample(out[2])
        self.fuse_mode12 = _Fusion(out[1])
        self.fuse_mode123 = _Fusion(out[2])
        self.fuse_mode1234 = _Fusion(out[3])
        self.pool, size = pool("TSTP", out[3] * -(-in_dim // 8))
        self.seg_1 = nn.Linear(size, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        x, mask = stem(self, features, lengths)
        x, mask = run(self.layer1, x, mask)
        fused = x
        for layer, downsample, fuse in (
            (self.layer2, self.layer1_downsample, self.fuse_mode12),
            (self.layer3, self.layer2_downsample, self.fuse_mode123),
            (self.layer4, self.layer3_downsample, self.fuse_mode1234),
        ):
            x, mask = run(layer, x, mask)
            fused = fuse(x, keep(downsample(fused), mask))
        return torch.as_tensor(
            self.seg_1(self.pool(flat(fused), None if mask is None else mask[:, 0, 0]))
        )


class ERes2NetV2(nn.Module):
    """ERes2NetV2 (Chen et al. 2024, arXiv 2406.02167), which gives raw embeddings (B, dim).

    It is wider than ERes2Net, and only the last two stages are fused. It has 17.86 M parameters at
    80 mel. base_width=24, scale=4, expansion=4 is 3D-Speaker's "w24s4ep4"; the rest, and the
    arguments, are as in ERes2Net.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 192,
        width: int = 64,
        blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
        base_width: int = 26,
        scale: int = 2,
        expansion: int = 2,
    ):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        block = partial(
            _Block, width=width, base_width=base_width, scale=scale, expansion=expansion
        )
        add_front(self, width, blocks, block, expansion)
        self.layer3_ds = _downsample(4 * width * expansion)
        self.fuse34 = _Fusion(8 * width * expansion)
        self.pool, size = pool("TSTP", 8 * width * expansion * -(-in_dim // 8))
        self.seg_1 = nn.Linear(size, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        x, mask = stem(self, features, lengths)
        for layer in (self.layer1, self.layer2, self.layer3):
            x, mask = run(layer, x, mask)
        last, mask = run(self.layer4, x, mask)
        fused = self.fuse34(last, keep(self.layer3_ds(x), mask))
        return torch.as_tensor(
            self.seg_1(self.pool(flat(fused), None if mask is None else mask[:, 0, 0]))
        )


def _downsample(channels: int) -> nn.Conv2d:
    return nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1, bias=False)


def _clipped(x: Tensor) -> Tensor:
    """Return max(0, min(x, 20)), as in both releases' blocks (their stem is a plain ReLU)."""
    return x.clamp(0.0, 20.0)


class _Fusion(nn.Module):
    """Attentional feature fusion: x (1 + a) + y (1 - a).

    a is the tanh of two 1x1 convolutions over both. The result is zero where both are.
    """

    def __init__(self, channels: int):
        super().__init__()
        hidden = channels // 4
        self.local_att = nn.Sequential(
            nn.Conv2d(2 * channels, hidden, 1),
            nn.BatchNorm2d(hidden),
            nn.SiLU(),
            nn.Conv2d(hidden, channels, 1),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a = self.local_att(torch.cat([x, y], dim=1)).tanh()
        return torch.as_tensor(x + y + (x - y) * a)


class _Block(nn.Module):
    """1x1 convolution, 3x3 convolutions over groups of channels, 1x1 convolution, shortcut.

    The groups take turns: each convolution sees its group and the output of the one before.
    `width` is that of the first stage.
    """

    def __init__(
        self,
        channels_in: int,
        channels: int,
        stride: int,
        *,
        width: int,
        base_width: int,
        scale: int,
        expansion: int,
    ):
        super().__init__()
        self.stride, self.width = stride, channels * base_width // 64
        self.conv1 = nn.Conv2d(channels_in, self.width * scale, 1, stride=stride, bias=False)
        self.bn1 = nn.BatchNorm2d(self.width * scale)
        self.convs = nn.ModuleList(
            nn.Conv2d(self.width, self.width, 3, padding=1, bias=False) for _ in range(scale)
        )
        self.bns = nn.ModuleList(nn.BatchNorm2d(self.width) for _ in range(scale))
        self.fuse_models: nn.ModuleList | None = None
        if channels > 2 * width:  # in the third and the fourth stage
            self.fuse_models = nn.ModuleList(_Fusion(self.width) for _ in range(scale - 1))
        self.conv3 = nn.Conv2d(self.width * scale, channels * expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels * expansion)
        self.shortcut = shortcut(channels_in, channels * expansion, stride)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        mask = None if mask is None else mask[..., :: self.stride]
        groups = torch.split(keep(_clipped(self.bn1(self.conv1(x))), mask), self.width, dim=1)
        done: list[Tensor] = []
        for i, (conv, bn) in enumerate(zip(self.convs, self.bns, strict=True)):
            if i == 0:
                y = groups[0]
            elif self.fuse_models is None:
                y = done[-1] + groups[i]
            else:
                y = self.fuse_models[i - 1](done[-1], groups[i])
            done.append(keep(_clipped(bn(conv(y))), mask))
        return keep(
            _clipped(self.bn3(self.conv3(torch.cat(done, dim=1))) + self.shortcut(x)), mask
        ), mask
