"""PixelScale, the front-end of image networks.

It has the scale and the order of colours that a network's weights were made for, and is saved with
the model, as KaldiFbank is with a speaker's. Below it are the front-ends of the field as parts.
They differ by little in their numbers, but mixing them up costs much.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError


class PixelScale(nn.Module):
    """Scales images of levels 0 to 255 to (image / scale - mean) / std.

    Inputs are (B, C, H, W), and outputs are (B, C, H, W) and None, because nothing is padded. C =
    len(mean) = `dim` is what the backbone takes in. Arithmetic is float32 (float64 after
    .double()), also under autocast.

    Args:
        mean: One value per channel, in the order of the images (RGB).
        std: One value per channel, above 0.
        scale: The divisor of the levels, above 0.
        bgr: Reverses the channels after scaling.

    Raises:
        LikenessError: In a call: the images have another number of channels, or different widths in
            a batch (`lengths` other than None), since their padding would be seen as black.

    Example:
        >>> front_end = PixelScale(mean=(0.5,), std=(0.5,))
        >>> front_end(torch.tensor([[[[0.0, 255.0]]]]))[0].flatten().tolist()
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
    ) -> None:
        super().__init__()
        self.dim, self.scale, self.bgr = len(mean), float(scale), bgr
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, inputs: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        """Scales images (B, C, H, W); `lengths` must be None."""
        if lengths is not None or inputs.dim() != 4 or inputs.shape[1] != self.dim:
            raise LikenessError(
                f"PixelScale: images of shape {tuple(inputs.shape)} "
                f"{'in several widths' if lengths is not None else ''}; (B, {self.dim}, H, W) of "
                f"one size is needed: read images as ({self.dim}, H, W) and train on crops, or "
                "give as many means as channels"
            )
        with torch.autocast(inputs.device.type, enabled=False):
            scaled = (inputs.to(self.mean.dtype) / self.scale - self.mean) / self.std
        return scaled.flip(1) if self.bgr else scaled, None


# Faces (field-face 1.2). Weights that were made for one of these lose little by / 128 in place of
# / 127.5, but much by the other order of colours.
# arcface_torch, OpenSphere and CVLface's models:
INSIGHTFACE = partial(PixelScale, mean=(127.5,) * 3, std=(127.5,) * 3, scale=1.0)
ADAFACE = partial(PixelScale, mean=(127.5,) * 3, std=(127.5,) * 3, scale=1.0, bgr=True)

# Images. The vMF paper (App. D.2, with datasets/*.py of vmf_embeddings) has ImageNet's numbers for
# CUB, Cars and SOP, and [0, 1] for MNIST, which is PixelScale's default.
IMAGENET = partial(PixelScale, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10 = partial(PixelScale, mean=CIFAR10_MEAN, std=(0.2470, 0.2435, 0.2616))
CIFAR100_MEAN = (0.5071, 0.4865, 0.4409)
CIFAR100 = partial(PixelScale, mean=CIFAR100_MEAN, std=(0.2673, 0.2564, 0.2762))
# BN-Inception's weights are Caffe's: BGR, levels 0 to 255 less (104, 117, 128). These numbers are
# those of powerful-benchmarker, which the SimPLE paper used (Sec. 5.2). Revisiting-DML
# (datasets/basic_dataset_scaffold.py) has the same, rounded to .502, .4588, .4078 and .0039.
BN_INCEPTION = partial(
    PixelScale, mean=(128 / 255, 117 / 255, 104 / 255), std=(1 / 255, 1 / 255, 1 / 255), bgr=True
)
