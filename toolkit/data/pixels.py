"""PixelScale, the front-end of image networks: the scale and order of colours that their weights
were made for, saved with the model as KaldiFbank is with a speaker's; and what the field feeds, as
parts that differ by little numbers and cost much where they are mixed up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn


class PixelScale(nn.Module):
    """(B, C, H, W) images of levels 0 to 255 -> ((image / scale - mean) / std, None), same shape; C
    = len(mean) = `dim`, what the backbone takes in.

    mean, std: one value per channel, in the order of the images (RGB). bgr: reverse the channels
    after that. crop: the central square of so many pixels of larger images (torchvision's
    CenterCrop), so that one `read` serves training views, which come cropped, and whole images; 0 =
    leave them. Arithmetic is float32 (float64 after .double()), also under autocast. ValueError for
    other channels, edges shorter than crop, and images of different widths in a batch (relative
    `lengths` other than None), since their padding would be seen as black.

    >>> PixelScale(mean=(0.5,), std=(0.5,))(torch.tensor([[[[0.0, 255.0]]]]))[0].flatten().tolist()
    [-1.0, 1.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        *,
        scale: float = 255.0,
        bgr: bool = False,
        crop: int = 0,
    ) -> None:
        super().__init__()
        if (
            not mean
            or len(mean) != len(std)
            or not all(map(math.isfinite, (*mean, *std, scale)))
            or min(*std, scale) <= 0
        ):
            raise ValueError(
                f"PixelScale: mean {tuple(mean)}, std {tuple(std)}, scale {scale}; as many of "
                "each, all finite, std and scale above 0, are needed"
            )
        if crop < 0 or (bgr and len(mean) != 3):
            raise ValueError(
                f"PixelScale: crop is {crop} and bgr {bgr} with {len(mean)} channels; a crop of 0 "
                "or more, and bgr for 3 channels only, are allowed"
            )
        self.dim, self.scale, self.bgr, self.crop = len(mean), float(scale), bgr, crop
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        if lengths is not None:
            raise ValueError(
                "PixelScale: images of different widths are in one batch; read them all in one "
                "size, or train on crops"
            )
        if inputs.dim() != 4 or inputs.shape[1] != self.dim:
            raise ValueError(
                f"PixelScale: images of shape {tuple(inputs.shape)}; (B, {self.dim}, H, W) is "
                "needed, give as many means as channels or read them grey"
            )
        if self.crop:
            height, width = inputs.shape[2:]
            if min(height, width) < self.crop:
                raise ValueError(
                    f"PixelScale: images of {height} x {width} pixels; a crop of {self.crop} needs "
                    "edges as long; resize them when reading"
                )
            top, left = round((height - self.crop) / 2), round((width - self.crop) / 2)
            inputs = inputs[:, :, top : top + self.crop, left : left + self.crop]
        with torch.autocast(inputs.device.type, enabled=False):
            scaled = (inputs.to(self.mean.dtype) / self.scale - self.mean) / self.std
        return scaled.flip(1) if self.bgr else scaled, None

    def extra_repr(self) -> str:
        return (
            f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}, "
            f"scale={self.scale}, bgr={self.bgr}, crop={self.crop}"
        )


# Faces (field-face 1.2). Weights made for one lose little by / 128 in place of / 127.5 and much by
# the other order of colours.
INSIGHTFACE = partial(
    PixelScale, mean=(127.5,) * 3, std=(127.5,) * 3, scale=1.0
)  # arcface_torch, OpenSphere, CVLface's models
ADAFACE = partial(PixelScale, mean=(127.5,) * 3, std=(127.5,) * 3, scale=1.0, bgr=True)
IJB_EVALS = partial(
    PixelScale, mean=(127.5,) * 3, std=(128.0,) * 3, scale=1.0
)  # insightface's ijb_evals.py, and many ONNX files
MXNET = partial(
    PixelScale, mean=(0.0,) * 3, std=(1.0,) * 3, scale=1.0
)  # insightface's old MXNet models, whose first layers scale

# Images. vMF paper, App. D.2 with vmf_embeddings, datasets/*.py: ImageNet's for CUB, Cars and SOP;
# [0, 1] for MNIST, which is PixelScale's default.
IMAGENET = partial(PixelScale, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10 = partial(PixelScale, mean=CIFAR10_MEAN, std=(0.2470, 0.2435, 0.2616))
CIFAR100_MEAN = (0.5071, 0.4865, 0.4409)
CIFAR100 = partial(PixelScale, mean=CIFAR100_MEAN, std=(0.2673, 0.2564, 0.2762))
# BN-Inception's weights are Caffe's: BGR, levels 0 to 255 less (104, 117, 128).
# powerful-benchmarker, which the SimPLE paper used (Sec. 5.2); Revisiting-DML
# (datasets/basic_dataset_scaffold.py) has the same rounded to .502, .4588, .4078 and .0039.
BN_INCEPTION = partial(
    PixelScale, mean=(128 / 255, 117 / 255, 104 / 255), std=(1 / 255, 1 / 255, 1 / 255), bgr=True
)
