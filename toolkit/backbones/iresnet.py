"""IResNet: the residual networks of face recognition, arcface_torch's r18 to r200.

SimPLE's setting C (depth 100) trains them too.
"""

import torch
from torch import Tensor, nn

from likeness.eval.errors import check_choice
from likeness.toolkit.backbones._images import check_images, four_stages, in_float32
from likeness.toolkit.backbones.resnet import shortcut

# Depth -> the number of blocks of the four stages (arcface_torch/backbones/iresnet.py).
_DEPTHS: dict[int, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 14, 3),
    100: (3, 13, 30, 3),
    200: (6, 26, 60, 6),
}


class IResNet(nn.Module):
    """Improved residual network for faces, which gives raw embeddings (B, dim).

    Source: Deng et al. 2019, arXiv 1801.07698. A 3x3 stem of stride 1 is followed by four stages
    that halve the image, batch norm, a linear layer over the whole image, and batch norm. Parameter
    names are the same in arcface_torch and OpenSphere.

    Args:
        in_dim: The number of channels of the aligned faces (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        depth: 18, 34, 50, 100 or 200.
        blocks: The number of blocks of each stage, where they are not to be the depth's.
        width: The channels of the stem.
        image_size: The edge of the images in pixels.
        opensphere: The weight of the last batch norm is 1 and not trained (False, arcface_torch),
            or starts at 0.1 and is trained, which losses on raw embeddings need (True,
            opensphere/module/backbone/iresnet.py).

    Raises:
        LikenessError: The depth or the shape of the images is another one.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        depth: int = 50,
        blocks: tuple[int, int, int, int] | None = None,
        width: int = 64,
        image_size: int = 112,
        opensphere: bool = False,
    ):
        super().__init__()
        check_choice("IResNet depth", depth, _DEPTHS)
        counts = _DEPTHS[depth] if blocks is None else blocks
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        self.conv1 = nn.Conv2d(in_dim, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.prelu = nn.PReLU(width)
        channels = width
        for stage, count in enumerate(counts):
            wide = width * 2**stage
            rows = [_Block(channels, wide, 2), *(_Block(wide, wide, 1) for _ in range(count - 1))]
            setattr(self, f"layer{stage + 1}", nn.Sequential(*rows))
            channels = wide
        self.bn2 = nn.BatchNorm2d(channels)
        side = -(-image_size // 16)
        self.fc = nn.Linear(channels * side**2, dim)
        self.features = nn.BatchNorm1d(dim)
        if opensphere:
            nn.init.constant_(self.features.weight, 0.1)
        else:
            self.features.weight.requires_grad_(False)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.normal_(module.weight, std=0.1)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of aligned faces; `lengths` is ignored."""
        check_images(images, "IResNet", self.in_dim, self.image_size)
        x = self.prelu(self.bn1(self.conv1(images)))
        x = self.bn2(four_stages(self, x))
        return in_float32(self.features, in_float32(self.fc, x.flatten(1)))


class _Block(nn.Module):
    """A residual block with batch norm before the first convolution and after both.

    PReLU lies between the convolutions, and a bare addition at the end.
    """

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.prelu = nn.PReLU(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.downsample = shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn3(self.conv2(self.prelu(self.bn2(self.conv1(self.bn1(x))))))
        return torch.as_tensor(y + self.downsample(x))
