"""Training views of images, deterministic given their generators: (C, H, W) float32 levels 0 to 255
in and out.

Random resized crops and colour jitter are albumentations', with its random numbers drawn from ours;
the rest is indexing. Scaling to the network's range is the front-end's (toolkit/data/pixels.py).
What is resized before the random part, and at test time, is `read`'s (images.read).
"""

from __future__ import annotations

import os
import random
from functools import lru_cache, partial
from typing import Any

import numpy as np

from toolkit.data.batch import Floats
from toolkit.data.images import to_floats
from toolkit.data.pixels import CIFAR10_MEAN, CIFAR100_MEAN

Range = tuple[float, float]


def crop_view(
    image: Floats,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    size: int = 224,
    scale: Range = (0.08, 1.0),
    ratio: Range = (3 / 4, 4 / 3),
    flip_prob: float = 0.5,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
    bicubic: bool = False,
) -> Floats:
    """(C, H, W) -> (C, size, size): colour jitter of the whole image, a crop of random size and
    proportions resized to a square, a flip.

    scale: the crop's share of the area, uniform; ratio: its width / height, log-uniform
    (torchvision's RandomResizedCrop). brightness, contrast, saturation: factors from 1 - x to 1 +
    x; hue: a shift by -x to x of the circle; in random order (torchvision's ColorJitter). All are
    drawn from rng. ValueError for settings out of range.
    """
    _check_prob("flip_prob", flip_prob)
    jitter = (brightness, contrast, saturation, hue)
    if not (0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1]) or size < 1:
        raise ValueError(
            f"crop_view: size {size}, scale {scale}, ratio {ratio}; a size above 0, shares within "
            "0 to 1 and proportions above 0 are needed, in order"
        )
    if not all(0 <= one <= 1 for one in jitter[:3]) or not 0 <= hue <= 0.5:
        raise ValueError(
            f"crop_view: brightness, contrast, saturation, hue are {jitter}; 0 to 1, and 0 to 0.5 "
            "for hue, are allowed"
        )
    transform = _albumentations(size, scale, ratio, jitter, bicubic)
    transform.set_random_state(rng, random.Random(int(rng.integers(2**62))))
    levels = _levels(image)
    view = to_floats(transform(image=levels)["image"])
    return np.ascontiguousarray(view[:, :, ::-1]) if rng.random() < flip_prob else view


def shift_view(
    image: Floats,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    pad: int = 4,
    flip_prob: float = 0.5,
    occlude: int = 0,
    fill: tuple[float, ...] = (0.0,),
) -> Floats:
    """(C, H, W) -> (C, H, W): padded by reflection (without repeating the edge) and cropped at a
    random place, flipped, a random square painted over.

    occlude: the square's edge; fill: its levels divided by 255, one or one per channel: the mean
    that PixelScale subtracts, so that the network sees 0. ValueError for a pad or square that does
    not fit the image.
    """
    channels, height, width = image.shape
    _check_prob("flip_prob", flip_prob)
    if (
        not 0 <= pad < min(height, width)
        or not 0 <= occlude <= min(height, width)
        or len(fill) not in (1, channels)
    ):
        raise ValueError(
            f"shift_view: pad {pad}, occlude {occlude}, {len(fill)} fill values for an image of "
            f"shape {image.shape}; smaller ones, and a value per channel"
        )
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    top, left = (int(one) for one in rng.integers(2 * pad + 1, size=2))
    view = padded[:, top : top + height, left : left + width]
    view = (view[:, :, ::-1] if rng.random() < flip_prob else view).copy()
    if occlude:
        y, x = int(rng.integers(height - occlude + 1)), int(rng.integers(width - occlude + 1))
        view[:, y : y + occlude, x : x + occlude] = (
            np.float32(255.0) * np.array(fill, dtype=np.float32)[:, None, None]
        )
    return view


def warp_view(
    image: Floats,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    degrees: float = 10.0,
    scale: Range = (0.9, 1.1),
    shear: float = 0.1,
    shift: float = 0.05,
    fill: float = 0.0,
) -> Floats:
    """(C, H, W) -> (C, H, W): turned, scaled, sheared and shifted about its centre, bilinear: for
    digits and characters, which must not be flipped.

    Drawn uniformly: the angle within +-degrees, the factor from scale, the shear within +-shear,
    each shift within +-shift of the edge. fill: level outside.
    """
    if not (0 < scale[0] <= scale[1]) or min(degrees, shear, shift) < 0 or shear >= 1:
        raise ValueError(
            f"warp_view: degrees {degrees}, scale {scale}, shear {shear}, shift {shift}; none "
            "below 0, scale above 0 and in order, shear below 1"
        )
    import cv2

    _, height, width = image.shape
    angle, factor = np.deg2rad(rng.uniform(-degrees, degrees)), rng.uniform(*scale)
    turn = (
        np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        @ np.array([[1.0, rng.uniform(-shear, shear)], [0.0, 1.0]])
        * factor
    )
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    moved = centre - turn @ centre + rng.uniform(-shift, shift, 2) * (width, height)
    matrix = np.column_stack((turn, moved))
    flags, border = cv2.INTER_LINEAR, cv2.BORDER_CONSTANT
    return np.stack(
        [
            cv2.warpAffine(
                one, matrix, (width, height), flags=flags, borderMode=border, borderValue=fill
            )
            for one in image
        ]
    ).astype(np.float32)


# vMF paper, App. D.2 (with the authors' vmf_embeddings, datasets/*_dataset.py, where the text is
# silent: the ratio of Cars, the crop after the jitter). Before them Cars and SOP are resized to 256
# x 256, CUB to a shorter edge of 256; at test time a centre crop of 224 follows. MNIST has none.
VMF_CARS = partial(
    crop_view,
    scale=(0.16, 1.0),
    ratio=(1.0, 1.0),
    brightness=0.3,
    contrast=0.3,
    saturation=0.3,
    hue=0.1,
)
VMF_CUB = partial(crop_view, scale=(0.16, 1.0), brightness=0.25, contrast=0.25, saturation=0.25)
VMF_SOP = partial(crop_view, scale=(0.16, 1.0))
VMF_CIFAR10 = partial(shift_view, occlude=8, fill=CIFAR10_MEAN)
VMF_CIFAR100 = partial(shift_view, occlude=8, fill=CIFAR100_MEAN)
# Revisiting-DML's "base", which the nivMF paper builds on (Sec. 5): from the image as it is; test:
# shorter edge 256, centre crop of 224.
REVISITING = partial(crop_view, size=224)
# powerful-benchmarker, which the SimPLE paper builds on (Sec. 5.2), BN-Inception: shorter edge 256
# first; test: the same and a centre crop of 227.
BENCHMARKER = partial(crop_view, size=227, scale=(0.16, 1.0))
# OML and Hyp-ViT: from the image as it is, bicubic; test: shorter edge 256, centre crop of 224.
HYP_VIT = partial(crop_view, scale=(0.2, 1.0), bicubic=True)


@lru_cache(maxsize=16)
def _albumentations(
    size: int, scale: Range, ratio: Range, jitter: tuple[float, float, float, float], bicubic: bool
) -> Any:
    """One transform for equal settings; its random numbers are set anew for every image."""
    os.environ.setdefault(
        "NO_ALBUMENTATIONS_UPDATE", "1"
    )  # importing it would ask the network for a newer version
    import albumentations
    import cv2

    steps = []
    if any(jitter):
        factors = [(1 - one, 1 + one) for one in jitter[:3]]
        steps.append(albumentations.ColorJitter(*factors, hue=(-jitter[3], jitter[3]), p=1.0))
    # "image": averages where it shrinks, as Pillow's antialiased resize of the papers' code does
    interpolation = cv2.INTER_CUBIC if bicubic else cv2.INTER_LINEAR
    steps.append(
        albumentations.RandomResizedCrop(
            (size, size),
            scale=scale,
            ratio=ratio,
            interpolation=interpolation,
            area_for_downscale="image",
            p=1.0,
        )
    )
    return albumentations.Compose(steps)


def _levels(image: Floats) -> Any:
    """(C, H, W) -> (H, W, C) uint8, rounded (halves to even) and cut off at 0 and 255: NumPy's
    rint, clip and transpose in a twentieth of their time.
    """
    import cv2

    add: Any = cv2.add  # its stubs know no number as the second operand
    return cv2.merge(
        [add(np.ascontiguousarray(one), 0.0, dtype=cv2.CV_8U) for one in image]
    ).reshape(*image.shape[1:], len(image))


def _check_prob(name: str, prob: float) -> None:
    if not 0.0 <= prob <= 1.0:
        raise ValueError(f"{name} is {prob}; a probability from 0 to 1 is needed")
