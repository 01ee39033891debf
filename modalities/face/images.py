"""Face images, in files, shards and RecordIO, as RGB (3, H, W) in the size of a network.

Values run from 0 to 255, in float32 or uint8. Resizing is OpenCV's. Decoding and its bounds are in
toolkit/data/images.py. The scaling and the order of colours that a network wants are in its
front-end (toolkit/data/pixels.py).
"""

from typing import Literal, get_args

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.modalities.face.recordio import RECORD_SUFFIX, join_parts
from likeness.toolkit.data.images import (
    BadImage,
    Pixels,
    as_channels,
    decode_bytes,
    file_bytes,
    lack_of_subject,
)
from likeness.toolkit.data.reading import Array, DType, refuse_empty

Fit = Literal["exact", "resize"]


def read(
    item: Item, *, size: tuple[int, int] = (112, 112), fit: Fit = "exact", dtype: DType = "float32"
) -> Array:
    """Read an image in the size that a network takes.

    Shrinking averages areas, and enlarging is bilinear.

    Args:
        item: The image.
        size: The height and the width of the result in pixels, each from 1 to 4096.
        fit: What happens to an image of another size. "exact" refuses it: a network for aligned
            crops loses much on other images, so align them first (align.py). "resize" resizes it,
            whatever that does to the proportions.
        dtype: "uint8" gives the same values in a quarter of the memory. A network gets float32 in
            either case: batches are converted on its device.

    Returns:
        (3, height, width) RGB, 0 to 255.

    Raises:
        BadImage: The image cannot be decoded, or has another size and fit is "exact".
        LikenessError: fit or dtype is another word, or the size is out of range.
    """
    if fit not in get_args(Fit) or not 1 <= min(size) <= max(size) <= 4096:
        raise LikenessError(
            f"read: fit is {fit!r} and size {size}; give one of {', '.join(get_args(Fit))}, and "
            "(height, width) from 1 to 4096"
        )
    pixels = decode(item)
    if pixels.shape[:2] != tuple(size):
        if fit == "exact":
            height, width = pixels.shape[:2]
            raise BadImage(
                f"{item.name}: the image has {height} x {width} pixels, but {size[0]} x {size[1]} "
                "are wanted; align it, or read it with fit='resize' (docs/how-to/own_networks.md)"
            )
        pixels = _resize(pixels, size)
    return as_channels(pixels, dtype)


def decode(item: Item) -> Pixels:
    """Decode an image as (H, W, 3) uint8 RGB, upright as its EXIF orientation says.

    Args:
        item: The image.

    Returns:
        The pixels.

    Raises:
        BadImage: The file is missing or over 256 MiB, or
            likeness.toolkit.data.images.decode_bytes() refuses it.
        Empty: It certainly shows no face. Where it may show none, there is a warning.
    """
    pixels = decode_bytes(encoded(item), item.name)
    refuse_empty(item.name, lack_of_subject(pixels))
    return pixels


def encoded(item: Item) -> bytes:
    """Return the bytes of an image file as they lie on disk, in a tar shard or in a RecordIO file.

    Args:
        item: The image.

    Returns:
        The encoded image.

    Raises:
        BadImage: The bytes cannot be read.
    """
    raw = file_bytes(item)
    try:
        return join_parts(raw) if item.ending == RECORD_SUFFIX else raw
    except ValueError as error:
        raise BadImage(f"{item.name}: {error}") from error


def _resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    """Resize to (height, width) by averages of areas, or bilinearly to enlarge."""
    import cv2

    shrinks = size[0] * size[1] < pixels.shape[0] * pixels.shape[1]
    interpolation = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized = cv2.resize(pixels, (size[1], size[0]), interpolation=interpolation)
    return np.asarray(resized, dtype=np.uint8)
