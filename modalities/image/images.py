"""Read image files and packed pixels as arrays (C, H, W), RGB or grey, 0 to 255.

What cannot be used is refused with its reason. The range is 0 to 255 because every file has 8-bit
levels, so that arrays stay exact, in float32 as in uint8. What a network sees of them (mean,
standard deviation, BGR) is decided by its front-end (toolkit/data/pixels.py), which is saved with
it. Resizing is Pillow's antialiased one, as in torchvision's Resize of Pillow images, which the
papers used. torch's resize of uint8 takes a quarter of the time, but it changes up to a quarter of
the values by one level (333 pixels to 256). Decoding and its bounds are those of
toolkit/data/images.py.
"""

import math
import re

import numpy as np
from PIL import Image

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.reports.media import MAX_PIXELS
from likeness.modalities.image import _packed
from likeness.toolkit.data.images import (
    BadImage,
    Pixels,
    as_channels,
    decode_bytes,
    file_bytes,
    lack_of_subject,
)
from likeness.toolkit.data.reading import Array, DType, refuse_empty

_RAW = re.compile(
    r"\.u8_([1-9]\d{0,4})x([1-9]\d{0,4})x([1-9]\d{0,4})(?:" + _packed.COMPRESSED + ")?"
)


def read(
    item: Item,
    *,
    short_edge: int = 0,
    size: tuple[int, int] | None = None,
    crop: int = 0,
    grey: bool = False,
    bicubic: bool = False,
    dtype: DType = "float32",
) -> Array:
    """Read an item as (C, H, W) levels from 0 to 255: RGB, or grey.

    It is grey where `grey` is set or the item's packed pixels have one channel. Files are read as
    toolkit/data/images.py says: upright, in sRGB, on middle grey where they are transparent. Of
    packed pixels, the item's `ending` states their shape (`raw_ending`).

    Args:
        item: What to read.
        short_edge: The number of pixels that the shorter edge is resized to (torchvision's
            Resize(int)); 0 leaves it as it is.
        size: (height, width) that the image is resized to, whatever its proportions; None leaves
            it.
        crop: The edge of the central square that is cut out afterwards (torchvision's CenterCrop);
            0 keeps the whole image.
        grey: Whether colours are converted to grey.
        bicubic: Whether resizing is bicubic in place of bilinear.
        dtype: "uint8" gives the same levels in a quarter of the memory. A network gets float32 in
            either case: batches are converted on its device.

    Raises:
        BadImage: The file is missing, damaged, cut short, too large or of another format, or the
            image is smaller than `crop`.
        Empty: It certainly shows nothing. Where that may be, there is a warning.
        LikenessError: `short_edge` and `size` are both set, or dtype is another word.
    """
    if short_edge and size is not None:
        raise LikenessError(f"short_edge {short_edge} and size {size} cannot both be set")
    packed = _RAW.fullmatch(item.suffix) if item.span is not None else None
    pixels = _unpack(item, packed) if packed else decode_bytes(file_bytes(item), item.name)
    refuse_empty(item.name, lack_of_subject(pixels))
    if grey and pixels.ndim == 3:
        pixels = np.asarray(Image.fromarray(pixels).convert("L"))
    height, width = pixels.shape[:2]
    resized = _resized(item, (height, width), short_edge, size)
    if resized != (height, width):
        method = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
        pixels = np.asarray(Image.fromarray(pixels).resize(resized[::-1], method))
    return as_channels(centre_crop(pixels, crop, item.name) if crop else pixels, dtype)


def _resized(
    item: Item, edges: tuple[int, int], short_edge: int, size: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the (height, width) that the settings of `read` give an image of these edges."""
    height, width = edges
    if short_edge and height <= width:
        size = short_edge, int(short_edge * width / height)
    elif short_edge:
        size = int(short_edge * height / width), short_edge
    if size is None:
        return edges
    if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
        raise BadImage(
            f"{item.name}: {height} x {width} pixels would become {size[0]} x {size[1]}; 1 to "
            f"{MAX_PIXELS} pixels are allowed; change the size"
        )
    return size[0], size[1]


def centre_crop(
    pixels: Pixels, crop: int, name: str = "image", *, round_down: bool = False
) -> Pixels:
    """Cut the central square out of pixels.

    Args:
        pixels: (H, W, ...).
        crop: The edge of the square.
        name: What an error calls the image.
        round_down: Whether the corner is rounded down, and not to the even number as in
            torchvision's CenterCrop.

    Returns:
        (crop, crop, ...).

    Raises:
        BadImage: An edge is shorter than `crop`.

    Example:
        >>> centre_crop(np.arange(16, dtype=np.uint8).reshape(4, 4), 2).tolist()
        [[5, 6], [9, 10]]
    """
    height, width = pixels.shape[:2]
    if min(height, width) < crop:
        raise BadImage(
            f"{name}: {height} x {width} pixels; a crop of {crop} needs edges as long; resize it "
            "first (short_edge, size)"
        )
    halve = math.floor if round_down else round
    top, left = halve((height - crop) / 2), halve((width - crop) / 2)
    return pixels[top : top + crop, left : left + crop]


def raw_ending(channels: int, height: int, width: int) -> str:
    """Return the ending of an item whose span holds bare 8-bit pixels.

    They lie channel by channel and row by row.

    Args:
        channels: 1 or 3.
        height: Of the image, in pixels.
        width: Of the image, in pixels.

    Example:
        >>> raw_ending(3, 32, 32)
        '.u8_3x32x32'
    """
    return f".u8_{channels}x{height}x{width}"


def _unpack(item: Item, stated: re.Match[str]) -> Pixels:
    """Return the pixels (H, W) or (H, W, 3) of packed pixels, whose shape the ending states."""
    channels, height, width = (int(number) for number in stated.groups())
    try:
        content = _packed.stretch(item)
    except (OSError, ValueError) as error:
        raise BadImage(str(error)) from error
    if channels not in (1, 3) or len(content) != channels * height * width:
        raise BadImage(
            f"{item.name}: {len(content)} bytes for {item.suffix}; {channels} x {height} x {width} "
            "with 1 or 3 channels are needed; list the data anew"
        )
    pixels: Pixels = np.frombuffer(content, dtype=np.uint8).reshape(channels, height, width)
    return pixels[0] if channels == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
