"""Training views of images: (C, H, W) levels from 0 to 255 in and out, float32 or uint8.

They are deterministic given their generators. Random resized crops and colour jitter are those of
albumentations, whose random numbers are drawn from ours; the rest is indexing. Scaling to the
network's range is done by the front-end (toolkit/data/pixels.py). What is resized before the random
part, and at test time, is resized by `read` (images.read).
"""

import os
import random
from functools import lru_cache, partial
from typing import Any

import cv2
import numpy as np

from likeness.eval.errors import LikenessError
from likeness.toolkit.data.images import as_channels, to_pixels
from likeness.toolkit.data.pixels import CIFAR10_MEAN, CIFAR100_MEAN
from likeness.toolkit.data.reading import Array, read_with

Range = tuple[float, float]


@read_with(dtype="uint8")
def crop_view(
    image: Array,
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
) -> Array:
    """Jitter the colours, crop at random, resize to a square, flip: (C, H, W) -> (C, size, size).

    All random numbers are drawn from `rng`.

    Args:
        image: (C, H, W), levels from 0 to 255. The view has its type, and the same levels for
            either.
        rng: The generator of this item.
        batch_rng: The generator of the batch, not used.
        size: The edge of the view.
        scale: The crop's share of the area, drawn uniformly (torchvision's RandomResizedCrop).
        ratio: The crop's width / height, drawn log-uniformly.
        flip_prob: The probability of a mirrored view.
        brightness: The whole image's brightness is multiplied by a factor from 1 - x to 1 + x. The
            four jitters come in random order (torchvision's ColorJitter).
        contrast: As brightness.
        saturation: As brightness.
        hue: The hue is shifted by -x to x of the circle.

    Raises:
        LikenessError: A setting is out of range.
    """
    jitter = (brightness, contrast, saturation, hue)
    if (
        not (0 < scale[0] <= scale[1] <= 1 and 0 < ratio[0] <= ratio[1])
        or size < 1
        or not all(0 <= strength <= 1 for strength in (*jitter, 2 * hue, flip_prob))
    ):
        raise LikenessError(
            f"crop_view: size {size}, scale {scale}, ratio {ratio}, flip_prob {flip_prob}, jitter "
            f"{jitter}; a size above 0, shares within 0 to 1 and proportions above 0, in order, "
            "and from 0 to 1 for the others, 0 to 0.5 for hue, are needed"
        )
    jitter_colours, cut = _albumentations(size, scale, ratio, jitter)
    py_random = random.Random(int(rng.integers(2**62)))
    # albumentations' Compose begins with this draw.
    py_random.random()
    changes = None
    if jitter_colours is not None:
        jitter_colours.set_random_state(rng, py_random)
        changes = jitter_colours.get_params()
    cut.set_random_state(rng, py_random)
    box = cut.get_params_dependent_on_data({"shape": image.shape[1:]}, {})["crop_coords"]
    pixels = to_pixels(image)
    if changes is not None:
        pixels = jitter_colours.apply(pixels, **changes)
    view = cut.apply(pixels, crop_coords=box)
    if rng.random() < flip_prob:
        view = cv2.flip(view, 1).reshape(view.shape)
    return as_channels(view, "uint8" if image.dtype == np.uint8 else "float32")


@read_with(dtype="uint8")
def shift_view(
    image: Array,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    pad: int = 4,
    flip_prob: float = 0.5,
    occlude: int = 0,
    fill: tuple[float, ...] = (0.0,),
) -> Array:
    """Pad by reflection, crop at random, flip, paint over a square: (C, H, W) -> (C, H, W).

    Args:
        image: (C, H, W), levels from 0 to 255. The view has its type, or is float32 where a square
            is painted over, because its levels are no whole numbers.
        rng: The generator of this item.
        batch_rng: The generator of the batch, not used.
        pad: The pixels added at each side by reflection, which does not repeat the edge.
        flip_prob: The probability of a mirrored view.
        occlude: The edge of the square at a random place that is painted over; 0 for none.
        fill: The levels of the square divided by 255, one or one for each channel. With the mean
            that PixelScale subtracts, the network sees 0.

    Raises:
        LikenessError: The pad or the square does not fit the image.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> shift_view(np.zeros((3, 32, 32), np.float32), rng, rng).shape
        (3, 32, 32)
    """
    channels, height, width = image.shape
    fits = 0 <= pad < min(height, width) and 0 <= occlude <= min(height, width)
    if not (0 <= flip_prob <= 1 and fits and len(fill) in (1, channels)):
        raise LikenessError(
            f"shift_view: pad {pad}, flip_prob {flip_prob}, occlude {occlude} and {len(fill)} fill "
            f"values do not fit an image of shape {image.shape}; make them smaller"
        )
    padded: Any = np.pad(image, ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
    top, left = map(int, rng.integers(2 * pad + 1, size=2))
    shifted = padded[:, top : top + height, left : left + width]
    view: Array = (shifted[:, :, ::-1] if rng.random() < flip_prob else shifted).copy()
    if occlude:
        y, x = int(rng.integers(height - occlude + 1)), int(rng.integers(width - occlude + 1))
        levels = np.float32(255.0) * np.array(fill, dtype=np.float32)
        view = view.astype(np.float32, copy=False)
        view[:, y : y + occlude, x : x + occlude] = levels[:, None, None]
    return view


@read_with(dtype="uint8")
def warp_view(
    image: Array,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    degrees: float = 10.0,
    scale: Range = (0.9, 1.1),
    shear: float = 0.1,
    shift: float = 0.05,
    fill: float = 0.0,
) -> Array:
    """Turn, scale, shear and shift an image about its centre, bilinear: (C, H, W) -> (C, H, W).

    It is for digits and characters, which must not be flipped. All numbers are drawn uniformly.

    Args:
        image: (C, H, W), levels from 0 to 255. The view is float32.
        rng: The generator of this item.
        batch_rng: The generator of the batch, not used.
        degrees: The angle lies within +-degrees.
        scale: The range of the factor.
        shear: The shear lies within +-shear.
        shift: Each shift lies within +-shift of the edge.
        fill: The level outside the image.

    Raises:
        LikenessError: A setting is out of range.
    """
    if not (0 < scale[0] <= scale[1]) or min(degrees, shear, shift) < 0 or shear >= 1:
        raise LikenessError(
            f"warp_view: degrees {degrees}, scale {scale}, shear {shear}, shift {shift}; none may "
            "be below 0, scale must be above 0 and in order, and shear below 1"
        )
    _, height, width = image.shape
    angle, factor = np.deg2rad(rng.uniform(-degrees, degrees)), rng.uniform(*scale)
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turn = rotation @ np.array([[1.0, rng.uniform(-shear, shear)], [0.0, 1.0]]) * factor
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    moved = centre - turn @ centre + rng.uniform(-shift, shift, 2) * (width, height)
    matrix = np.column_stack((turn, moved))
    size, flags, border = (width, height), cv2.INTER_LINEAR, cv2.BORDER_CONSTANT
    warped = [
        cv2.warpAffine(x, matrix, size, flags=flags, borderMode=border, borderValue=fill)
        for x in image.astype(np.float32, copy=False)
    ]
    return np.stack(warped).astype(np.float32)


# The vMF paper, App. D.2. Where its text says nothing (the ratio of Cars, the crop after the
# jitter), the authors' vmf_embeddings, datasets/*_dataset.py, decides. Before these transforms Cars
# and SOP are resized to 256 x 256, and CUB to a shorter edge of 256; at test time a centre crop of
# 224 follows. MNIST has none.
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
# The "base" of Revisiting-DML, which the nivMF paper builds on (Sec. 4.1). It starts from the image
# as it is; at test time the shorter edge is resized to 256, and a centre crop of 224 follows.
REVISITING = partial(crop_view, size=224)
# powerful-benchmarker with BN-Inception, which the SimPLE paper builds on (Sec. 5.2). The shorter
# edge is resized to 256 first; at test time too, and a centre crop of 227 follows.
BENCHMARKER = partial(crop_view, size=227, scale=(0.16, 1.0))


@lru_cache(maxsize=16)
def _albumentations(
    size: int, scale: Range, ratio: Range, jitter: tuple[float, float, float, float]
) -> tuple[Any, Any]:
    """Return the jitter of colours, or None, and the crop; their draws are set for every image."""
    # Without this, importing albumentations would ask the network for a newer version of it.
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    import albumentations

    colours = None
    if any(jitter):
        factors = [(1 - strength, 1 + strength) for strength in jitter[:3]]
        colours = albumentations.ColorJitter(*factors, hue=(-jitter[3], jitter[3]), p=1.0)
    # area_for_downscale="image" averages pixels where the image shrinks, as Pillow's antialiased
    # resize in the papers' code does.
    return colours, albumentations.RandomResizedCrop(
        (size, size),
        scale=scale,
        ratio=ratio,
        interpolation=cv2.INTER_LINEAR,
        area_for_downscale="image",
        p=1.0,
    )
