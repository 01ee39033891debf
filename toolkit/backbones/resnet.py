"""2-D residual networks over filterbanks with pooling over time.

The blocks of SimAM-ResNet weigh every value by its energy.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from likeness.eval.errors import check_choice
from likeness.toolkit.backbones.pooling import Pooling, flat, frame_mask, keep, pool, precise

# Depth -> the number of blocks of the four stages, and whether these are bottlenecks. Up to 152
# they are those of He et al. 2016, Table 1; 221 and 293 are WeSpeaker's (models/resnet.py).
DEPTHS: dict[int, tuple[tuple[int, int, int, int], bool]] = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    221: ((6, 16, 48, 3), True),
    293: ((10, 20, 64, 3), True),
}
# The same of SimAM-ResNet, as WeSpeaker has them.
_SIMAM_DEPTHS: dict[int, tuple[int, int, int, int]] = {34: (3, 4, 6, 3), 100: (6, 16, 24, 3)}


class ResNet(nn.Module):
    """Residual network over filterbanks, which gives raw embeddings (B, dim).

    A stem, four stages of blocks, pooling over time and a linear layer follow each other. Unlike He
    et al. 2016 it has no max pooling and a 3x3 stem. Parameter names are those of WeSpeaker's
    models/resnet.py. Padded frames are zeroed after every block, so padding never changes an
    embedding.

    Args:
        in_dim: The number of bands of the features (B, T, in_dim).
        dim: The size of the embeddings.
        width: The channels of the first stage, mostly 32 in the literature.
        depth: 18 and 34 have two 3x3 convolutions in a block; 50, 101, 152, 221 and 293 have
            bottlenecks with four times as many channels.
        blocks: The number of blocks of each stage, where they are not to be the depth's.
        pooling: The pooling over time, see likeness.toolkit.backbones.pooling.pool.
        two_layers: Whether the embedding is taken after a second layer over the utterance, as
            3D-Speaker's ResNet34 does (two_emb_layer of both projects).

    Raises:
        LikenessError: The depth is another one.
    """

    pads_exactly = True

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 256,
        width: int = 32,
        depth: int = 34,
        blocks: tuple[int, int, int, int] | None = None,
        pooling: Pooling = "TSTP",
        two_layers: bool = False,
    ):
        super().__init__()
        check_choice("ResNet depth", depth, DEPTHS)
        self.in_dim, self.dim, self.two_layers = in_dim, dim, two_layers
        counts, bottleneck = DEPTHS[depth]
        expansion = 4 if bottleneck else 1
        block = _Bottleneck if bottleneck else BasicBlock
        add_front(self, width, blocks or counts, block, expansion)
        self.pool, size = pool(pooling, 8 * width * expansion * -(-in_dim // 8))
        self.seg_1 = nn.Linear(size, dim)
        if two_layers:
            self.seg_bn_1 = nn.BatchNorm1d(dim, affine=False)
            self.seg_2 = nn.Linear(dim, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        z = self.seg_1(self.pool(*run_front(self, features, lengths)))
        return torch.as_tensor(self.seg_2(self.seg_bn_1(torch.relu(z))) if self.two_layers else z)


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
        check_choice("SimAMResNet depth", depth, _SIMAM_DEPTHS)
        self.in_dim, self.dim = in_dim, dim
        self.front = nn.Module()
        add_front(
            self.front, width, blocks or _SIMAM_DEPTHS[depth], partial(BasicBlock, weighs=True)
        )
        self.pooling, size = pool("ASP", 8 * width * -(-in_dim // 8))
        self.bottleneck = nn.Linear(size, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        pooled = self.pooling(*run_front(self.front, features, lengths))
        return torch.as_tensor(self.bottleneck(pooled))


def add_front(
    network: nn.Module,
    width: int,
    counts: tuple[int, ...],
    block: Callable[[int, int, int], nn.Module],
    expansion: int = 1,
) -> None:
    """Give a network a stem and four stages, of which the last three halve bands and frames.

    Args:
        network: It gets the layers as conv1, bn1 and layer1 to layer4.
        width: The channels of the first stage; each further one has twice as many.
        counts: The number of blocks of each stage.
        block: Makes a block from the channels before it, its channels and its stride.
        expansion: How many times as many channels leave a block.
    """
    network.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
    network.bn1 = nn.BatchNorm2d(width)
    channels = width
    for stage, count in enumerate(counts):
        rows = nn.ModuleList()
        for i in range(count):
            rows.append(block(channels, width * 2**stage, 2 if stage and i == 0 else 1))
            channels = width * 2**stage * expansion
        setattr(network, f"layer{stage + 1}", rows)


def run_front(
    network: Any, features: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return what the layers of `add_front` give, (B, C * F, T), and which frames are valid."""
    x, mask = stem(network, features, lengths)
    for layer in (network.layer1, network.layer2, network.layer3, network.layer4):
        x, mask = run(layer, x, mask)
    return flat(x), None if mask is None else mask[:, 0, 0]


def stem(network: Any, features: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return what the stem of `add_front` gives, (B, C, F, T), and its mask, (B, 1, 1, T)."""
    mask = None if lengths is None else frame_mask(lengths, features.shape[1])[:, None, None, :]
    x = keep(features.transpose(1, 2)[:, None], mask)
    return keep(torch.relu(network.bn1(network.conv1(x))), mask), mask


def run(layer: Any, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Apply the blocks of a stage, and the strides of the blocks to the mask."""
    for block in layer:
        x, mask = block(x, mask)
    return x, mask


def shortcut(channels_in: int, channels: int, stride: int | tuple[int, int]) -> nn.Sequential:
    """Return what a residual block applies to its input before adding it to its output.

    It is a 1x1 convolution where the shape changes, otherwise nothing.
    """
    if stride in (1, (1, 1)) and channels_in == channels:
        return nn.Sequential()
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels)
    )


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: (x, mask) -> both.

    Two strides are those over bands and over frames. With `weighs`, what is added to the shortcut
    is multiplied by SimAM's weights, and the shortcut has the name that it has in that release.
    """

    def __init__(
        self,
        channels_in: int,
        channels: int,
        stride: int | tuple[int, int],
        *,
        weighs: bool = False,
    ):
        super().__init__()
        self.weighs, self.name = weighs, "downsample" if weighs else "shortcut"
        self.stride = stride if isinstance(stride, int) else stride[1]  # over frames
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.add_module(self.name, shortcut(channels_in, channels, stride))

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        # Output frame t is centred on input frame t * stride.
        mask = None if mask is None else mask[..., :: self.stride]
        y = self.bn2(self.conv2(keep(torch.relu(self.bn1(self.conv1(x))), mask)))
        y = y * energy_weights(y, mask) if self.weighs else y
        return keep(torch.relu(y + getattr(self, self.name)(x)), mask), mask


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut.

    Four times as many channels leave as are worked on.
    """

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, 4 * channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.shortcut = shortcut(channels_in, 4 * channels, stride)

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        y = keep(torch.relu(self.bn1(self.conv1(x))), mask)
        mask = None if mask is None else mask[..., :: self.stride]
        # No mask is needed here: the 1x1 convolution that follows sees no neighbours, so padded
        # frames may hold anything.
        y = torch.relu(self.bn2(self.conv2(y)))
        return keep(torch.relu(self.bn3(self.conv3(y)) + self.shortcut(x)), mask), mask


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
