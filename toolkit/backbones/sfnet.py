"""SFNet: the SphereFace networks of OpenSphere.

SimPLE's settings A (depth 20) and B (depth 64) train them.
"""

import torch
from torch import Tensor, nn

from likeness.eval.errors import check_choice
from likeness.toolkit.backbones._images import check_images, four_stages, in_float32

# Depth -> the number of residual blocks of the four stages: Liu et al. 2017 (SphereFace), Table 2.
_DEPTHS: dict[int, tuple[int, int, int, int]] = {
    4: (0, 0, 0, 0),
    10: (0, 1, 2, 0),
    20: (1, 2, 4, 1),
    36: (2, 4, 8, 2),
    64: (3, 8, 16, 3),
}


class SFNet(nn.Module):
    """SFNet (Liu et al. 2017) as OpenSphere has it, which gives raw embeddings (B, dim).

    Each of the four stages is a 3x3 convolution of stride 2 and residual blocks of two 3x3
    convolutions. A linear layer over the whole image follows. It has ReLU throughout, where the
    paper has PReLU. Parameter names are those of opensphere/module/backbone/sfnet.py and of
    model/backbone/sfnet_deprecated.py.

    Args:
        in_dim: The number of channels of the aligned faces (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        depth: 4, 10, 20, 36 or 64.
        blocks: The number of blocks of each stage, where they are not to be the depth's.
        width: The channels of the first stage.
        image_size: The edge of the images in pixels.
        batch_norm: Whether batch norm follows every convolution and the embedding. Over the
            embedding its weights start at `gain`, so that norms start at about gain sqrt(dim), on
            which losses on raw embeddings (SimPLE, EL-nivMF) depend.
        deprecated: Whether it is the form of OpenSphere's first version, which the published tables
            were trained with: ReLU before the addition instead of after it, and convolutions of
            residual blocks drawn from N(0, 0.01). It has no batch norm.
        gain: The first weight of the batch norm over the embedding.

    Raises:
        LikenessError: The depth or the shape of the images is another one.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"

    # So many, because releases and recipes differ in each of them.
    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        depth: int = 20,
        blocks: tuple[int, int, int, int] | None = None,
        width: int = 64,
        image_size: int = 112,
        batch_norm: bool = False,
        deprecated: bool = False,
        gain: float = 0.1,
    ):
        super().__init__()
        check_choice("SFNet depth", depth, _DEPTHS)
        counts = _DEPTHS[depth] if blocks is None else blocks
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        channels = in_dim
        for stage, count in enumerate(counts):
            wide = width * 2**stage
            rows = [
                _Down(channels, wide, batch_norm, deprecated),
                *(_Block(wide, batch_norm, deprecated) for _ in range(count)),
            ]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*rows))
            channels = wide
        side = -(-image_size // 16)
        self.fc = nn.Linear(channels * side**2, dim)
        self.features: nn.Module = nn.Identity()
        if batch_norm:
            self.features = norm = nn.BatchNorm1d(dim)
            nn.init.constant_(norm.weight, gain)
        self._draw(deprecated)

    def _draw(self, deprecated: bool) -> None:
        """Draw the first weights as OpenSphere does."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and not deprecated:
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, _Down) and deprecated:
                nn.init.xavier_normal_(getattr(module, module.name).weight)
            elif isinstance(module, _Block) and deprecated:
                nn.init.normal_(module.conv1.weight, std=0.01)
                nn.init.normal_(module.conv2.weight, std=0.01)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of aligned faces; `lengths` is ignored."""
        check_images(images, "SFNet", self.in_dim, self.image_size)
        x = four_stages(self, images)
        return in_float32(self.features, in_float32(self.fc, x.flatten(1)))


def _norm(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()


class _Down(nn.Module):
    """The convolution of stride 2 that opens a stage.

    The deprecated form calls it conv, the other form conv1.
    """

    def __init__(self, channels_in: int, channels: int, batch_norm: bool, deprecated: bool):
        super().__init__()
        self.name = "conv" if deprecated else "conv1"
        self.add_module(
            self.name, nn.Conv2d(channels_in, channels, 3, stride=2, padding=1, bias=not batch_norm)
        )
        self.bn1 = _norm(channels, batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn1(getattr(self, self.name)(x)))


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, channels: int, batch_norm: bool, deprecated: bool):
        super().__init__()
        self.deprecated = deprecated
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=not batch_norm)
        self.bn1 = _norm(channels, batch_norm)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=not batch_norm)
        self.bn2 = _norm(channels, batch_norm)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return x + torch.relu(y) if self.deprecated else torch.relu(x + y)
