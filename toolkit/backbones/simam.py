"""Residual networks over filterbanks whose blocks weigh every value by its energy (SimAM)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones.part_outputs import one_of
from likeness.toolkit.backbones.pooling import keep, pool, precise
from likeness.toolkit.backbones.resnet import add_front, run_front, shortcut

# Depth -> the number of blocks of the four stages, as WeSpeaker has them.
_DEPTHS: dict[int, tuple[int, int, int, int]] = {34: (3, 4, 6, 3), 100: (6, 16, 24, 3)}


class SimAMResNet(nn.Module):
    """SimAM-ResNet with attentive statistics pooling, which gives raw embeddings (B, dim).

    It is a ResNet over filterbanks with blocks of two 3x3 convolutions. Before a block adds its
    shortcut, it multiplies every value by a weight that `energy_weights` takes from the statistics
    of the value's channel; this has no parameters. Sources: Yang et al. 2021 (SimAM); Qin et al.
    2022, "Simple attention module based speaker verification with iterative noisy label detection";
    wespeaker/models/samresnet.py, whose parameter names these are. Depth 34 has 25.21 M parameters
    at 80 bands, depth 100 has 50.23 M.

    Padded frames are zeroed after every block and left out of all statistics, so padding never
    changes an embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim). The release needs a multiple of
            8; here any number works.
        dim: The size of the embeddings.
        width: The channels of the first stage.
        depth: 34 or 100.
        blocks: The number of blocks of each stage, where they are not to be the depth's.

    Raises:
        LikenessError: The depth is another one.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 256,
        width: int = 64,
        depth: int = 34,
        blocks: tuple[int, int, int, int] | None = None,
    ):
        super().__init__()
        one_of("SimAMResNet", "depth", depth, _DEPTHS)
        self.in_dim, self.dim = in_dim, dim
        self.front = nn.Module()
        add_front(self.front, width, blocks or _DEPTHS[depth], _Block)
        self.pooling, size = pool("ASP", 8 * width * -(-in_dim // 8))
        self.bottleneck = nn.Linear(size, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        pooled = self.pooling(*run_front(self.front, features, lengths))
        return torch.as_tensor(self.bottleneck(pooled))


def energy_weights(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the weight of every value, between 0 and 1, by SimAM's energy (Yang et al. 2021).

    A value far from the mean of its channel has a low energy and a large weight:
    sigmoid(d / (4 (v + 1e-4)) + 1/2), where d is its squared distance from the mean, and v is the
    sum of d divided by the number of values less one. Means and sums are over the bands and the
    valid frames of one utterance.

    Args:
        x: (B, C, F, T), finite in padded frames too.
        mask: (B, 1, 1, T) bool, or None if all frames are valid.

    Returns:
        (B, C, F, T), in x's dtype. Padded frames hold any weight.
    """
    exact = precise(x)
    if mask is None:
        # As a tensor, the number of frames stays free in torch.export.
        num = exact.new_ones(1, 1, *exact.shape[2:]).sum(dim=(2, 3), keepdim=True)
        distance = (exact - exact.mean(dim=(2, 3), keepdim=True)).square()
        total = distance.sum(dim=(2, 3), keepdim=True)
    else:
        num = mask.to(exact.dtype).sum(dim=(2, 3), keepdim=True) * x.shape[2]
        mean = keep(exact, mask).sum(dim=(2, 3), keepdim=True) / num
        distance = (exact - mean).square()
        total = keep(distance, mask).sum(dim=(2, 3), keepdim=True)
    variance = total / (num - 1).clamp(min=1)
    return (distance / (4 * (variance + 1e-4)) + 0.5).sigmoid().to(x.dtype)


class _Block(nn.Module):
    """Two 3x3 convolutions, SimAM's weights, and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        # Output frame t is centred on input frame t * stride.
        mask = None if mask is None else mask[..., :: self.stride]
        y = self.bn2(self.conv2(keep(torch.relu(self.bn1(self.conv1(x))), mask)))
        y = y * energy_weights(y, mask)
        return keep(torch.relu(y + self.downsample(x)), mask), mask
