"""Augmentation of face crops, (H, W, 3) uint8 in and out; deterministic given its generator.

A recipe's `augment` takes and gives (3, H, W), 0 to 255: uint8 where it gets uint8, and float32
where it gets float32. The values are the same.

ADAFACE_VIEW is what AdaFace and OpenSphere's SimPLE train with (AdaFace dataset/augmenter.py;
CVLface data_augs/basic_augmenter.py): a crop pasted in place on black, low resolution and
photometric changes, each with probability 0.2 and independently, and a flip with 0.5. FLIP_VIEW is
the flip alone (arcface_torch, OpenSphere's other losses). geometric_view() is CVLface's
gridsample_v1, without its bookkeeping of the transform.

Pixel arithmetic is albumentations' (its functions, not its classes, which keep generators of their
own), OpenCV's and, for sharpness and equalisation as torchvision has them, Pillow's.
"""

import math
import os
from functools import partial
from types import ModuleType

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageEnhance, ImageOps

from likeness.eval.errors import LikenessError
from likeness.toolkit.data.images import Pixels, as_channels, to_pixels
from likeness.toolkit.data.reading import Array, read_with

Matrix = NDArray[np.float64]

INTERPOLATIONS = (
    cv2.INTER_NEAREST,
    cv2.INTER_LINEAR,
    cv2.INTER_AREA,
    cv2.INTER_CUBIC,
    cv2.INTER_LANCZOS4,
)
_RAND_OPS = ("identity", "brightness", "saturation", "contrast", "sharpness", "equalize", "grey")
_AREA, _RATIO = (0.2, 1.0), (0.75, 4 / 3)  # of what crop_paste() keeps
_SIDE = (0.2, 1.0)  # of what low_resolution() shrinks to
_PHOTO = (0.5, 1.5)  # the factors of photometric()
_PHOTO_BINS = (5, 23)
_RARER = ("equalize", "grey")  # an operation that is drawn again, up to twice


def crop_paste(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Keep a random rectangle in its place and set the rest to black.

    The rectangle is that of torchvision's RandomResizedCrop.get_params: ten draws that may not fit,
    then the largest centred one within the ratio. It has 0.2 to 1 of the area, and its width /
    height is 3/4 to 4/3, drawn in the logarithm.

    Args:
        pixels: (H, W, 3) uint8.
        rng: The generator of the draws.

    Returns:
        (H, W, 3) uint8.
    """
    top, left, height, width = _rectangle(pixels.shape[0], pixels.shape[1], rng)
    kept = slice(top, top + height), slice(left, left + width)
    pasted = np.zeros_like(pixels)
    pasted[kept] = pixels[kept]
    return pasted


def low_resolution(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Shrink an image to a square of 0.2 to 1 of its height, and enlarge it again.

    Both interpolations are drawn from INTERPOLATIONS.

    Args:
        pixels: (H, W, 3) uint8.
        rng: The generator of the draws.

    Returns:
        (H, W, 3) uint8.
    """
    height, width = pixels.shape[:2]
    small = max(1, int(rng.uniform(*_SIDE) * height))
    down, up = (INTERPOLATIONS[i] for i in rng.integers(len(INTERPOLATIONS), size=2))
    shrunk = cv2.resize(pixels, (small, small), interpolation=down)
    return _pixels(cv2.resize(shrunk, (width, height), interpolation=up))


def photometric(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Multiply brightness, contrast and saturation by factors of 0.5 to 1.5, in random order.

    This is torchvision's ColorJitter without hue.

    Args:
        pixels: (H, W, 3) uint8.
        rng: The generator of the factors and the order.

    Returns:
        (H, W, 3) uint8.
    """
    functional = _albumentations()
    changes = [
        (functional.adjust_brightness_torchvision, rng.uniform(*_PHOTO)),
        (functional.adjust_contrast_torchvision, rng.uniform(*_PHOTO)),
        (functional.adjust_saturation_torchvision, rng.uniform(*_PHOTO)),
    ]
    for place in rng.permutation(3):
        change, factor = changes[place]
        pixels = _pixels(change(pixels, factor))
    return pixels


def flip(pixels: Pixels) -> Pixels:
    """Mirror an image, left to right."""
    return np.ascontiguousarray(pixels[:, ::-1])


@read_with(dtype="uint8")
def train_view(
    image: Array,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    flip_prob: float = 0.5,
    crop_prob: float = 0.0,
    low_res_prob: float = 0.0,
    photo_prob: float = 0.0,
) -> Array:
    """Make one training view of an image.

    Crop, low resolution, photometric changes and flip are each done with their probability,
    independently of the others and in this order.

    Args:
        image: (3, H, W) float32 or uint8, 0 to 255.
        rng: The generator of all draws.
        batch_rng: Not used, because every image draws for itself.
        flip_prob: The probability of flip().
        crop_prob: The probability of crop_paste().
        low_res_prob: The probability of low_resolution().
        photo_prob: The probability of photometric().

    Returns:
        (3, H, W) of the same type, 0 to 255.

    Raises:
        LikenessError: A probability lies outside 0 to 1.

    Example:
        >>> image = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
        >>> rng = np.random.default_rng(0)
        >>> train_view(image, rng, rng, flip_prob=1.0).tolist()
        [[[1.0, 0.0]], [[3.0, 2.0]], [[5.0, 4.0]]]
    """
    _check_probs(
        flip_prob=flip_prob, crop_prob=crop_prob, low_res_prob=low_res_prob, photo_prob=photo_prob
    )
    crops, shrinks, colours, flips = (
        rng.random(4) < (crop_prob, low_res_prob, photo_prob, flip_prob)
    ).tolist()
    if not (crops or shrinks or colours):
        return (image[..., ::-1] if flips else image).copy()
    pixels = to_pixels(image)
    if crops:
        pixels = crop_paste(pixels, rng)
    if shrinks:
        pixels = low_resolution(pixels, rng)
    if colours:
        pixels = photometric(pixels, rng)
    return _like(image, flip(pixels) if flips else pixels)


@read_with(dtype="uint8")
def geometric_view(
    image: Array,
    rng: np.random.Generator,
    batch_rng: np.random.Generator,
    *,
    scale: tuple[float, float] = (0.8, 1.2),
    rotate_prob: float = 0.2,
    max_degrees: float = 20.0,
    flip_prob: float = 0.5,
    extra_offset: float = 0.1,
    cutout_prob: float = 0.2,
    blur_prob: float = 0.2,
    num_photo: int = 2,
) -> Array:
    """Make one training view as CVLface's GridSampleAugmenter does.

    Zoom, shift, rotation and flip happen in one warp. Cutout, blur and photometric operations
    follow.

    Args:
        image: (3, H, W) float32 or uint8, 0 to 255.
        rng: The generator of all draws.
        batch_rng: Not used, because every image draws for itself.
        scale: The smallest and the largest zoom.
        rotate_prob: The probability of a rotation.
        max_degrees: The largest rotation to either side in degrees.
        flip_prob: The probability of a flip.
        extra_offset: The largest shift beyond what the zoom leaves, as a share of half the image.
        cutout_prob: The probability of a cutout. In 5 % of its cases that is 12 to 20 holes of 16 x
            16, otherwise crop_paste().
        blur_prob: The probability of a blur. That is a mean of 1 to 9 pixels, a Gaussian of a sigma
            up to 4, or (8 of 10) low resolution.
        num_photo: How many photometric operations follow. Each is one of identity, brightness,
            saturation, contrast, sharpness (with a factor of 1 + or - 0.03 x 5 to 22), equalize and
            grey.

    Returns:
        (3, H, W) of the same type, 0 to 255.

    Raises:
        LikenessError: A probability lies outside 0 to 1.
    """
    _check_probs(
        rotate_prob=rotate_prob, flip_prob=flip_prob, cutout_prob=cutout_prob, blur_prob=blur_prob
    )
    assert 0 < scale[0] <= scale[1], scale
    rotates, flips, cuts, blurs = (
        rng.random(4) < (rotate_prob, flip_prob, cutout_prob, blur_prob)
    ).tolist()
    pixels = to_pixels(image)
    height, width = pixels.shape[:2]
    degrees = rng.uniform(-max_degrees, max_degrees) if rotates else 0.0
    matrix = warp_matrix(
        height,
        width,
        rng.uniform(*scale),
        degrees,
        flips,
        rng.uniform(0.0, 1.0, 2),
        rng.choice((-1.0, 1.0), 2),
        rng.uniform(0.0, extra_offset),
    )
    pixels = _pixels(cv2.warpPerspective(pixels, matrix, (width, height), borderValue=0))
    if cuts:
        pixels = _holes(pixels, rng) if rng.random() < 0.05 else crop_paste(pixels, rng)
    if blurs:
        pixels = _blur(pixels, rng)
    for _ in range(num_photo):
        pixels = _rand_op(pixels, rng)
    return _like(image, pixels)


def warp_matrix(
    height: int,
    width: int,
    scale: float,
    degrees: float,
    flips: bool,
    share: Matrix,
    sign: Matrix,
    extra: float,
) -> Matrix:
    """Compute CVLface's transform of an image, which is one warp.

    It rotates about the centre, moves a point near it to the centre, zooms and flips. Source:
    CVLface, aug_utils/transform_cv2.py.

    Args:
        height: The height of the image in pixels.
        width: The width of the image in pixels.
        scale: The zoom.
        degrees: The rotation in degrees.
        flips: Whether the image is mirrored.
        share: (2,) how much of the possible shift is taken in x and y.
        sign: (2,) the direction of the shift, 1 or -1.
        extra: The shift beyond what the zoom leaves, as a share of half the image.

    Returns:
        (3, 3) float64.
    """
    centre = np.array((width // 2, height // 2), dtype=np.float64)
    sine, cosine = math.sin(-math.radians(degrees)), math.cos(math.radians(degrees))
    rotation = np.array(((cosine, -sine, 0.0), (sine, cosine, 0.0), (0.0, 0.0, 1.0)))
    room = (centre / scale - centre + extra * centre) * sign
    zoom = np.diag((-scale if flips else scale, scale, 1.0))
    # The order of these products decides the last bits of the result.
    zoomed = _move((width / 2, height / 2)) @ zoom @ _move(-(centre + room * share))
    product: Matrix = zoomed @ _move(centre) @ rotation @ _move(-centre)
    return product


FLIP_VIEW = partial(train_view)
ADAFACE_VIEW = partial(train_view, crop_prob=0.2, low_res_prob=0.2, photo_prob=0.2)


def _move(by: ArrayLike) -> Matrix:
    """Compute the (3, 3) matrix of a shift by (x, y)."""
    matrix = np.eye(3)
    matrix[:2, 2] = np.asarray(by)
    return matrix


def _rectangle(height: int, width: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Draw a rectangle and return its top, left, height and width."""
    for _ in range(10):
        area = height * width * rng.uniform(*_AREA)
        aspect = math.exp(rng.uniform(math.log(_RATIO[0]), math.log(_RATIO[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1)), h, w
    aspect = min(max(width / height, _RATIO[0]), _RATIO[1])
    w, h = min(width, round(height * aspect)), min(height, round(width / aspect))
    return (height - h) // 2, (width - w) // 2, h, w


def _holes(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Cut 12 to 20 holes of 16 x 16 pixels."""
    holed = pixels.copy()
    height, width = pixels.shape[:2]
    for _ in range(int(rng.integers(12, 21))):
        top, left = int(rng.integers(max(1, height - 15))), int(rng.integers(max(1, width - 15)))
        holed[top : top + 16, left : left + 16] = 0
    return holed


def _blur(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Blur with a mean (1 of 10), a Gaussian (1 of 10) or low resolution."""
    kind = int(rng.integers(10))
    if kind == 0:
        size = int(rng.integers(1, 10))
        return _pixels(cv2.blur(pixels, (size, size)))
    if kind == 1:
        sigma = rng.uniform(0.0, 4.0)
        return _pixels(cv2.GaussianBlur(pixels, (0, 0), sigma)) if sigma > 1e-3 else pixels
    return low_resolution(pixels, rng)


def _rand_op(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Apply one drawn photometric operation."""
    functional = _albumentations()
    name = "equalize"
    for _ in range(3):
        name = _RAND_OPS[int(rng.integers(len(_RAND_OPS)))]
        if name not in _RARER:
            break
    bin_number = int(rng.integers(*_PHOTO_BINS))
    factor = 1.0 + 0.03 * bin_number * (1 if rng.random() < 0.5 else -1)
    match name:
        case "brightness":
            changed = functional.adjust_brightness_torchvision(pixels, factor)
        case "saturation":
            changed = functional.adjust_saturation_torchvision(pixels, factor)
        case "contrast":
            changed = functional.adjust_contrast_torchvision(pixels, factor)
        case "sharpness":
            changed = np.array(ImageEnhance.Sharpness(Image.fromarray(pixels)).enhance(factor))
        case "equalize":
            # albumentations' mode "pil" differs from Pillow by up to 16 levels.
            changed = np.array(ImageOps.equalize(Image.fromarray(pixels)))
        case "grey":
            changed = cv2.cvtColor(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
        case _:
            changed = pixels
    return _pixels(changed)


def _albumentations() -> ModuleType:
    """Import albumentations' functions on pixels.

    At import albumentations would ask the network for a newer version of itself, unless the
    variable forbids it.
    """
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
    from albumentations.augmentations.pixel import functional

    module: ModuleType = functional
    return module


def _like(image: Array, pixels: Pixels) -> Array:
    """Turn the pixels of a view into (3, H, W) of the type of the image."""
    return as_channels(pixels, "uint8") if image.dtype == np.uint8 else as_channels(pixels)


def _pixels(image: object) -> Pixels:
    """Convert what a library gives to uint8."""
    return np.asarray(image, dtype=np.uint8)


def _check_probs(**probs: float) -> None:
    """Refuse probabilities outside 0 to 1."""
    if not all(0.0 <= prob <= 1.0 for prob in probs.values()):
        raise LikenessError(f"face view: {probs}; probabilities from 0 to 1 are needed")
