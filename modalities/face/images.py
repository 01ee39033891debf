"""Face images, in files, shards and RecordIO, to float32 RGB (3, H, W) with values 0 to 255, in the
one size that a network takes. Resizing is OpenCV's.

Decoding and its bounds are toolkit/data/images.py's; scaling and the order of colours that a
network wants are its front-end's (toolkit/data/pixels.py).
"""

from __future__ import annotations

from typing import Literal, get_args

import cv2
import numpy as np

from modalities.face.recordio import RECORD_SUFFIX, join_parts
from toolkit.data.batch import Floats, Item
from toolkit.data.images import BadImage, Pixels, decode_bytes, file_bytes, to_floats

Fit = Literal["exact", "resize", "pad"]


def read(item: Item, *, size: tuple[int, int] = (112, 112), fit: Fit = "exact") -> Floats:
    """item -> (3, height, width) float32 RGB, 0 to 255. size: height and width wanted.

    fit: exact (another size is refused: a network for aligned crops loses much on others, so align
    first: align.py), resize (to the size wanted, whatever that does to the proportions), pad
    (resize within the size and centre on black). Shrinking averages areas, enlarging is bilinear.
    Raises BadImage as decode() does and for another size; ValueError for an unknown fit or a size
    below 1.
    """
    if fit not in get_args(Fit):
        raise ValueError(f"read: fit is {fit!r}; choose one of {', '.join(get_args(Fit))}")
    if len(size) != 2 or not 1 <= min(size) <= max(size) <= 4096:
        raise ValueError(f"read: size {size} must be (height, width), each from 1 to 4096")
    pixels = decode(item)
    if pixels.shape[:2] != tuple(size):
        if fit == "exact":
            height, width = pixels.shape[:2]
            raise BadImage(
                f"{item.name}: {height} x {width} pixels, but {size[0]} x {size[1]} are wanted; "
                "align it (modalities.face.align), or choose another fit"
            )
        pixels = _resize(pixels, size) if fit == "resize" else _pad(pixels, size)
    return to_floats(pixels)


def decode(item: Item) -> Pixels:
    """item -> (H, W, 3) uint8 RGB, upright as its EXIF orientation says.

    Raises BadImage for a file that is missing or over 256 MiB, and as
    toolkit.data.images.decode_bytes() does.
    """
    return decode_bytes(encoded(item), item.name)


def encoded(item: Item) -> bytes:
    """The bytes of the image file as they lie on disk, in a tar shard or in a RecordIO file.

    Raises BadImage where there are none to be had.
    """
    held = file_bytes(item)
    try:
        return join_parts(held) if item.ending == RECORD_SUFFIX else held
    except ValueError as error:
        raise BadImage(f"{item.name}: {error}") from error


def to_pixels(image: Floats) -> Pixels:
    """(3, H, W) float32 -> (H, W, 3) uint8, rounded and limited to 0..255: the inverse of
    to_floats.
    """
    return np.asarray(
        cv2.merge(
            [cv2.addWeighted(plane, 1.0, plane, 0.0, 0.0, dtype=cv2.CV_8U) for plane in image]
        ),
        dtype=np.uint8,
    )  # cv2 rounds and saturates


def _resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    shrinks = size[0] * size[1] < pixels.shape[0] * pixels.shape[1]
    return np.asarray(
        cv2.resize(
            pixels,
            (size[1], size[0]),
            interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR,
        ),
        dtype=np.uint8,
    )


def _pad(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    height, width = pixels.shape[:2]
    scale = min(size[0] / height, size[1] / width)
    inner = max(1, min(size[0], round(height * scale))), max(1, min(size[1], round(width * scale)))
    canvas = np.zeros((*size, 3), dtype=np.uint8)
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    canvas[top : top + inner[0], left : left + inner[1]] = _resize(pixels, inner)
    return canvas
