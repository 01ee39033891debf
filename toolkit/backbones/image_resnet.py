"""ResNets for images under torchvision's names, from ImageNet weights or from random ones.

The small network of the vMF paper for MNIST is here too.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from likeness.eval.errors import check_choice
from likeness.toolkit.backbones._images import (
    BatchNorm,
    check_images,
    four_stages,
    hold_still,
    in_float32,
    start_from,
)
from likeness.toolkit.backbones.resnet import DEPTHS, shortcut

Stem = Literal["7x7", "3x3", "3x3 whole"]


class ImageResNet(nn.Module):
    """ResNet for images (He et al. 2016), which gives raw embeddings (B, dim).

    Bottlenecks stride in the 3x3 convolution, as torchvision's do. Parameter names are
    torchvision's (models/resnet.py); fc is the linear layer to dim.

    Args:
        in_dim: The number of channels of the images (B, in_dim, H, W).
        dim: The size of a linear layer after the pooling; 0 leaves it out, so that dim is 2048 (512
            at depths 18 and 34).
        depth: 18, 34, 50, 101 or 152 (He et al. 2016, Table 1); 221 or 293.
        blocks: The number of blocks of each stage, where they are not to be the depth's.
        width: The channels of the first stage.
        stem: "7x7" of stride 2 and max pooling (ImageNet); "3x3" of stride 1 and max pooling (CIFAR
            in the vMF paper, D.1, as google-research/vmf_embeddings has it); "3x3 whole" of stride
            1 without max pooling (CIFAR in most other work).
        batch_norm: "trained"; "fixed" keeps the running statistics (Revisiting-DML and the vMF
            paper's release); "frozen" keeps weights and biases too (vMF paper, D.1).
        zero_init: Whether the last batch norm of a residual branch starts with weight zero
            (vmf_embeddings).
        head_scale: A factor on the linear layer's initial weights, for losses to which |z| is a
            concentration (10 to 50 in nivMF's release).
        weights: A local file of torchvision's ImageNet weights to start from. Its classifier is
            left out.

    Raises:
        LikenessError: A word is not one of these, or the file does not fit.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    left_out: tuple[str, ...] = ("fc.",)

    # So many, because releases and recipes differ in each of them.
    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 512,
        depth: int = 50,
        blocks: tuple[int, int, int, int] | None = None,
        width: int = 64,
        stem: Stem = "7x7",
        batch_norm: BatchNorm = "trained",
        zero_init: bool = False,
        head_scale: float = 1.0,
        weights: str = "",
    ):
        super().__init__()
        check_choice("ImageResNet depth", depth, DEPTHS)
        check_choice("ImageResNet stem", stem, get_args(Stem))
        self.in_dim, self.stem, self.batch_norm = in_dim, stem, batch_norm
        counts, bottleneck = DEPTHS[depth]
        size, stride = (7, 2) if stem == "7x7" else (3, 1)
        self.conv1 = nn.Conv2d(in_dim, width, size, stride, padding=size // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = (
            nn.Identity() if stem == "3x3 whole" else nn.MaxPool2d(3, stride=2, padding=1)
        )
        channels = width
        for stage, count in enumerate(blocks or counts):
            wide = width * 2**stage * (4 if bottleneck else 1)
            rows: list[nn.Module] = []
            for i in range(count):
                rows.append(_Block(channels, wide, 2 if stage > 0 and i == 0 else 1, bottleneck))
                channels = wide
            setattr(self, f"layer{stage + 1}", nn.Sequential(*rows))
        self.dim = dim or channels
        self.fc = nn.Linear(channels, dim) if dim else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, _Block) and zero_init:
                nn.init.zeros_(getattr(module, f"bn{module.num_layers}").weight)
        if isinstance(self.fc, nn.Linear):
            self.fc.weight.data.mul_(head_scale)
        start_from(self, weights)
        hold_still(self, batch_norm)

    def train(self, mode: bool = True) -> ImageResNet:
        """Set the mode as nn.Module does, but leave batch norms that are held still as they are."""
        super().train(mode)
        hold_still(self, self.batch_norm)
        return self

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of images (B, in_dim, H, W); `lengths` is ignored."""
        check_images(images, "ImageResNet", self.in_dim)
        x = self.maxpool(torch.relu(self.bn1(self.conv1(images))))
        return in_float32(self.fc, four_stages(self, x).mean(dim=(2, 3)))


class _Block(nn.Module):
    """Two 3x3 convolutions, or 1x1, 3x3 and 1x1, and a shortcut.

    In the second form, the convolution in the middle works on a quarter of the channels.
    """

    def __init__(self, channels_in: int, channels: int, stride: int, bottleneck: bool):
        super().__init__()
        if bottleneck:
            layers = [
                (channels_in, channels // 4, 1, 1),
                (channels // 4, channels // 4, 3, stride),
                (channels // 4, channels, 1, 1),
            ]
        else:
            layers = [(channels_in, channels, 3, stride), (channels, channels, 3, 1)]
        self.num_layers = len(layers)
        for number, (before, after, size, step) in enumerate(layers, start=1):
            self.add_module(
                f"conv{number}",
                nn.Conv2d(before, after, size, stride=step, padding=size // 2, bias=False),
            )
            self.add_module(f"bn{number}", nn.BatchNorm2d(after))
        self.downsample = shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for number in range(1, self.num_layers + 1):
            y = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(y))
            if number < self.num_layers:
                y = torch.relu(y)
        return torch.relu(y + self.downsample(x))


class SmallCNN(nn.Module):
    """Two convolutions and two linear layers (vMF paper, D.1), which give raw embeddings (B, dim).

    5x5 convolutions of 6 and of 16 filters are each followed by batch norm, ReLU and 2x2 max
    pooling; then come 120 hidden units with batch norm and ReLU, and a linear layer. Weights are
    Xavier uniform, biases zero. It has 97,419 parameters at dim 3. Layers have the places of
    google-research/vmf_embeddings, archs/n_digit_mnist_arch.py; its last layer, over the classes,
    belongs to the loss here.

    Args:
        in_dim: The number of channels of the images (B, in_dim, image_size, image_size).
        dim: The size of the embeddings.
        image_size: The edge of the images in pixels.

    Raises:
        LikenessError: The images have another shape.
    """

    pads_exactly = True  # images have no lengths
    takes = "images"
    left_out: tuple[str, ...] = ("encoder.13.",)

    def __init__(self, in_dim: int, *, dim: int = 3, image_size: int = 28):
        super().__init__()
        self.in_dim, self.dim, self.image_size = in_dim, dim, image_size
        first = (nn.Conv2d(in_dim, 6, 5, padding=2), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2))
        second = (nn.Conv2d(6, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2))
        linear = nn.Linear(16 * (image_size // 4) ** 2, 120)
        hidden = (nn.Flatten(), linear, nn.BatchNorm1d(120), nn.ReLU())
        self.encoder = nn.Sequential(*first, *second, *hidden, nn.Linear(120, dim))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight)
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the raw embeddings (B, dim) of square images; `lengths` is ignored."""
        check_images(images, "SmallCNN", self.in_dim, self.image_size)
        return in_float32(self.encoder[-1], torch.as_tensor(self.encoder[:-1](images)))
