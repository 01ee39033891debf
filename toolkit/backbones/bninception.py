"""BN-Inception under the names of its public ImageNet checkpoint.

It is the backbone of most deep metric learning results before 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from likeness.toolkit.backbones._images import (
    BatchNorm,
    check_images,
    hold_still,
    in_float32,
    start_from,
)


class _Sizes(NamedTuple):
    """Channels of the four branches of a block.

    A block whose `single` is 0 has stride 2; its first branch is missing and its pooled branch is
    the bare maximum.
    """

    single: int
    reduce: int
    triple: int
    double_reduce: int
    double: int
    pooled: int


_BLOCKS = {  # Ioffe and Szegedy 2015, Fig 5, as the public checkpoint has it
    "3a": _Sizes(64, 64, 64, 64, 96, 32),
    "3b": _Sizes(64, 64, 96, 64, 96, 64),
    "3c": _Sizes(0, 128, 160, 64, 96, 0),
    "4a": _Sizes(224, 64, 96, 96, 128, 128),
    "4b": _Sizes(192, 96, 128, 96, 128, 128),
    "4c": _Sizes(160, 128, 160, 128, 160, 128),
    "4d": _Sizes(96, 128, 192, 160, 192, 128),
    "4e": _Sizes(0, 128, 192, 192, 256, 0),
    "5a": _Sizes(352, 192, 320, 160, 224, 128),
    "5b": _Sizes(352, 192, 320, 192, 224, 128),
}


class BNInception(nn.Module):
    """Inception with batch norm (Ioffe and Szegedy 2015), which gives raw embeddings (B, dim).

    It has 10.27 M parameters below the linear layer. Parameter names are those of
    Cadene/pretrained-models.pytorch, models/bninception.py. The momentum of its batch norms is 0.9
    by Caffe's definition and 0.1 by torch's; here it is 0.1. The published weights take BGR in
    0..255 less (104, 117, 128), which no file states.

    Args:
        in_dim: The number of channels of the images (B, in_dim, H, W). H and W must be such that
            both halvings within the network meet even sizes: multiples of 32, or 227.
        dim: The size of a linear layer after the pooling; 0 leaves it out, so that dim is 1024.
        batch_norm: "trained"; "fixed" keeps the running statistics (Revisiting-DML and the vMF
            paper's release); "frozen" keeps weights and biases too (vMF paper, D.1).
        head_scale: A factor on the linear layer's initial weights, see ImageResNet.
        weights: A local file of the public ImageNet checkpoint (bn_inception-52deb4733.pth; the
            vectors of shape (1, C) of its older form are taken too). Its classifier is left out.

    Raises:
        LikenessError: The file does not fit.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    left_out: tuple[str, ...] = ("last_linear.", "fc.")

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        batch_norm: BatchNorm = "trained",
        head_scale: float = 1.0,
        weights: str = "",
    ):
        super().__init__()
        self.in_dim, self.batch_norm = in_dim, batch_norm
        self._add("conv1_7x7_s2", in_dim, 64, 7, 2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for block, sizes in _BLOCKS.items():
            name, stride = f"inception_{block}", 1 if sizes.single else 2
            if sizes.single:
                self._add(f"{name}_1x1", channels, sizes.single, 1)
                self._add(f"{name}_pool_proj", channels, sizes.pooled, 1)
            self._add(f"{name}_3x3_reduce", channels, sizes.reduce, 1)
            self._add(f"{name}_3x3", sizes.reduce, sizes.triple, 3, stride)
            self._add(f"{name}_double_3x3_reduce", channels, sizes.double_reduce, 1)
            self._add(f"{name}_double_3x3_1", sizes.double_reduce, sizes.double, 3)
            self._add(f"{name}_double_3x3_2", sizes.double, sizes.double, 3, stride)
            channels = sizes.single + sizes.triple + sizes.double + (sizes.pooled or channels)
        self.dim = dim or channels
        self.last_linear = nn.Linear(channels, dim) if dim else nn.Identity()
        if isinstance(self.last_linear, nn.Linear):
            self.last_linear.weight.data.mul_(head_scale)
        start_from(self, weights)
        hold_still(self, batch_norm)

    def _add(self, name: str, channels_in: int, channels: int, size: int, stride: int = 1) -> None:
        self.add_module(
            name, nn.Conv2d(channels_in, channels, size, stride=stride, padding=size // 2)
        )
        self.add_module(f"{name}_bn", nn.BatchNorm2d(channels))

    def train(self, mode: bool = True) -> BNInception:
        """Set the mode as nn.Module does, but leave batch norms that are held still as they are."""
        super().train(mode)
        hold_still(self, self.batch_norm)
        return self

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of images (B, in_dim, H, W); `lengths` is ignored."""
        check_images(images, "BNInception", self.in_dim)
        x = F.max_pool2d(self._layer("conv1_7x7_s2", images), 3, stride=2, ceil_mode=True)
        x = self._layer("conv2_3x3", self._layer("conv2_3x3_reduce", x))
        x = F.max_pool2d(x, 3, stride=2, ceil_mode=True)
        for block, sizes in _BLOCKS.items():
            x = self._block(
                f"inception_{block}", x, sizes, largest=not sizes.single or block == "5b"
            )
        return in_float32(self.last_linear, x.mean(dim=(2, 3)))

    def _layer(self, name: str, x: Tensor) -> Tensor:
        return torch.relu(getattr(self, f"{name}_bn")(getattr(self, name)(x)))

    def _block(self, name: str, x: Tensor, sizes: _Sizes, *, largest: bool) -> Tensor:
        branches = [self._layer(f"{name}_1x1", x)] if sizes.single else []
        branches.append(self._layer(f"{name}_3x3", self._layer(f"{name}_3x3_reduce", x)))
        double = self._layer(f"{name}_double_3x3_1", self._layer(f"{name}_double_3x3_reduce", x))
        branches.append(self._layer(f"{name}_double_3x3_2", double))
        if not sizes.single:
            branches.append(F.max_pool2d(x, 3, stride=2, ceil_mode=True))
        else:
            # Block 5b alone has a maximum. Means count the zeros around the image, as Caffe's do.
            pooled = (F.max_pool2d if largest else F.avg_pool2d)(x, 3, stride=1, padding=1)
            branches.append(self._layer(f"{name}_pool_proj", pooled))
        return torch.cat(branches, dim=1)
