"""MobileFaceNet: depth-wise separable convolutions for faces on small machines."""

import torch
from torch import Tensor, nn

from likeness.toolkit.backbones._images import check_images, in_float32


class MobileFaceNet(nn.Module):
    """MobileFaceNet as arcface_torch has it, which gives raw embeddings (B, dim).

    Source: Chen et al. 2018, arXiv 1804.07573. Parameter names are those of
    arcface_torch/backbones/mobilefacenet.py. The last convolution sees the whole image, channel by
    channel. The layers from conv_sep on work in float32.

    Args:
        in_dim: The number of channels of the aligned faces (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        blocks: The number of depth-wise blocks of each stage. (1, 4, 6, 2) with scale 2 is mbf
            (2.06 M parameters), (2, 8, 12, 4) with scale 4 is mbf_large (6.31 M).
        scale: Widens what blocks give, not what they work on.
        image_size: The edge of the images in pixels.

    Raises:
        LikenessError: The shape of the images is another one.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        blocks: tuple[int, int, int, int] = (1, 4, 6, 2),
        scale: int = 2,
        image_size: int = 112,
    ):
        super().__init__()
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        narrow, wide = 64 * scale, 128 * scale
        # A single first block is a plain depth-wise convolution, as in the paper.
        first = (
            _Conv(narrow, narrow, 3, padding=1, groups=64)
            if blocks[0] == 1
            else _Residual(narrow, 128, blocks[0])
        )
        self.layers = nn.ModuleList(
            [
                _Conv(in_dim, narrow, 3, stride=2, padding=1),
                first,
                _DepthWise(narrow, narrow, 128, stride=2),
                _Residual(narrow, 128, blocks[1]),
                _DepthWise(narrow, wide, 256, stride=2),
                _Residual(wide, 256, blocks[2]),
                _DepthWise(wide, wide, 512, stride=2),
                _Residual(wide, 256, blocks[3]),
            ]
        )
        self.conv_sep = _Conv(wide, 512, 1)
        self.features = _Layers(
            _Conv(512, 512, -(-image_size // 16), groups=512, active=False),
            nn.Flatten(),
            nn.Linear(512, dim, bias=False),
            nn.BatchNorm1d(dim),
        )
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of aligned faces; `lengths` is ignored."""
        check_images(images, "MobileFaceNet", self.in_dim, self.image_size)
        x = images
        for layer in self.layers:
            x = layer(x)
        return in_float32(self.features, in_float32(self.conv_sep, x))


class _Layers(nn.Module):
    """A sequence under the name that the release gives to its sequences."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(x))


class _Conv(_Layers):
    """Convolution without bias, batch norm and, if `active`, PReLU."""

    def __init__(
        self,
        channels_in: int,
        channels: int,
        size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        active: bool = True,
    ):
        sizes = (channels_in, channels, size, stride, padding)
        convolution = nn.Conv2d(*sizes, groups=groups, bias=False)
        norm = nn.BatchNorm2d(channels)
        super().__init__(convolution, norm, *([nn.PReLU(channels)] if active else []))


class _DepthWise(_Layers):
    """1x1 to `hidden` channels, 3x3 within each of them, 1x1 without activation."""

    def __init__(self, channels_in: int, channels: int, hidden: int, *, stride: int):
        super().__init__(
            _Conv(channels_in, hidden, 1),
            _Conv(hidden, hidden, 3, stride=stride, padding=1, groups=hidden),
            _Conv(hidden, channels, 1, active=False),
        )


class _Residual(nn.Module):
    """Depth-wise blocks of stride 1, each with a shortcut."""

    def __init__(self, channels: int, hidden: int, count: int):
        super().__init__()
        self.layers = nn.ModuleList(
            _DepthWise(channels, channels, hidden, stride=1) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x
