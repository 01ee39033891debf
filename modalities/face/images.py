"""Image files to float32 RGB (3, H, W) with values 0 to 255; what cannot be used is refused with its reason.

Decoding is Pillow's, which states a size before it allocates and refuses truncated data (OpenCV fills the missing part with grey and goes on). Resizing is
OpenCV's. Scaling and the order of colours that a network wants are its front-end's: modalities/face/pixels.py.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from modalities.face.recordio import RECORD_SUFFIX, join_parts
from toolkit.batch import Item

Pixels = NDArray[np.uint8]  # (H, W, 3) RGB
Floats = NDArray[np.float32]  # (3, H, W) RGB, 0 to 255
Fit = Literal["exact", "resize", "pad"]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".pgm", ".ppm")
MAX_PIXELS = 2**26  # 67 megapixels, 192 MiB decoded: larger ones are scans or attacks
MAX_BYTES = 2**28  # of one file
_FIRST_BYTES = 2**16  # most aligned crops are smaller
_FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "PPM")  # nothing else is tried, whatever the file says it is
_16_BIT = ("I", "I;16", "I;16L", "I;16B")
_ORIENTATION = 0x0112  # the EXIF tag
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class BadImage(ValueError):
    """One image cannot be used. The message names the file, what is wrong, the value and what is allowed; callers count such files and skip or refuse."""


def read(item: Item, *, size: tuple[int, int] = (112, 112), fit: Fit = "exact") -> Floats:
    """item -> (3, height, width) float32 RGB, 0 to 255. size: height and width wanted.

    fit: exact (another size is refused: a network for aligned crops loses much on others, so align first: align.py), resize (to the size wanted, whatever that
    does to the proportions), pad (resize within the size and centre on black). Shrinking averages areas, enlarging is bilinear.
    Raises BadImage as decode() does and for another size; ValueError for an unknown fit or a size below 1.
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
                f"{item.name}: {height} x {width} pixels, but {size[0]} x {size[1]} are wanted; align it (modalities.face.align), or choose another fit"
            )
        pixels = _resize(pixels, size) if fit == "resize" else _pad(pixels, size)
    return to_floats(pixels)


def read_file(path: str | Path, *, size: tuple[int, int] = (112, 112), fit: Fit = "exact") -> Floats:
    """read() of a path."""
    return read(Item(str(path), Path(path)), size=size, fit=fit)


def decode(item: Item) -> Pixels:
    """item -> (H, W, 3) uint8 RGB, upright as its EXIF orientation says.

    Grey, palette and CMYK become RGB; transparency is dropped, as OpenCV does; 16 bits become 8 (grey: rounded; colour: the upper 8).
    Raises BadImage for a file that is missing, over 256 MiB, of another format, truncated or damaged, or of more than 67 megapixels (seen before decoding).
    """
    return decode_bytes(encoded(item), item.name)


def encoded(item: Item) -> bytes:
    """The bytes of the image file as they lie on disk, in a tar shard or in a RecordIO file. Raises BadImage where there are none to be had."""
    try:
        with item.open() as file:
            held = file.read(_FIRST_BYTES)  # a read of all that is allowed would first allocate as much
            if len(held) == _FIRST_BYTES:
                held += file.read(MAX_BYTES + 1 - _FIRST_BYTES)
        if len(held) > MAX_BYTES:
            raise BadImage(f"{item.name}: over {MAX_BYTES} bytes; at most so many are read; shrink the image")
        return join_parts(held) if item.ending == RECORD_SUFFIX else held
    except BadImage:
        raise
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BadImage(f"{item.name}: no such file; check the list of items and its root folder") from error
    except (OSError, ValueError) as error:
        raise BadImage(str(error) if item.name in str(error) else f"{item.name}: {error}") from error


def decode_bytes(held: bytes, name: str) -> Pixels:
    """As decode(), for an encoded image in memory; `name` is what errors call it."""
    try:
        with Image.open(io.BytesIO(held), formats=_FORMATS) as image:
            width, height = image.size
            if not 1 <= width * height <= MAX_PIXELS:
                raise BadImage(f"{name}: {width} x {height} pixels; 1 to {MAX_PIXELS} in all are read; shrink the image")
            image.load()
            turned = _UPRIGHT.get(_orientation(image))
            return _to_rgb(image if turned is None else image.transpose(turned), name)
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(f"{name}: over {MAX_PIXELS} pixels; at most so many are read; shrink the image") from error
    except Exception as error:  # Pillow's decoders raise OSError, SyntaxError, struct.error, EOFError, IndexError and more for damaged files
        reason = "in no known format" if isinstance(error, UnidentifiedImageError) else f"{error or type(error).__name__}".rstrip(". ")
        raise BadImage(f"{name}: unreadable, {reason}; {', '.join(SUFFIXES)} are read; fetch it again or remove it") from error


def encode(pixels: Pixels, suffix: str = ".png", *, quality: int = 95) -> bytes:
    """(H, W, 3) uint8 RGB -> a PNG (lossless) or a JPEG of this quality without chroma subsampling."""
    held = io.BytesIO()
    if suffix == ".png":
        Image.fromarray(pixels).save(held, "PNG", compress_level=3)
    elif suffix in (".jpg", ".jpeg"):
        Image.fromarray(pixels).save(held, "JPEG", quality=quality, subsampling=0)
    else:
        raise ValueError(f"encode: images are written as .png or .jpg, not as {suffix!r}")
    return held.getvalue()


def to_floats(pixels: Pixels) -> Floats:
    """(H, W, 3) uint8 -> (3, H, W) float32, the same values."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1), dtype=np.float32)


def to_pixels(image: Floats) -> Pixels:
    """(3, H, W) float32 -> (H, W, 3) uint8, rounded and limited to 0..255: the inverse of to_floats."""
    return np.asarray(cv2.merge([cv2.addWeighted(plane, 1.0, plane, 0.0, 0.0, dtype=cv2.CV_8U) for plane in image]), dtype=np.uint8)  # cv2 rounds and saturates


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # a damaged EXIF block says nothing about the pixels; OpenCV passes over it too
        return 1


def _to_rgb(image: Image.Image, name: str) -> Pixels:
    if image.mode in _16_BIT:
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise BadImage(f"{name}: grey values {grey.min()} to {grey.max()}; at most 16 bits, 0 to 65535, are read; convert it to 8 bits")
        return np.repeat(((grey + 128) // 257).astype(np.uint8)[..., None], 3, axis=2)
    if image.mode == "F":
        raise BadImage(f"{name}: floating-point pixels, whose range is not known; convert it to 8 bits")
    if image.mode == "P":  # by way of RGBA: Pillow warns where a palette has transparent entries
        image = image.convert("RGBA")
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _resize(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    shrinks = size[0] * size[1] < pixels.shape[0] * pixels.shape[1]
    return np.asarray(cv2.resize(pixels, (size[1], size[0]), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR), dtype=np.uint8)


def _pad(pixels: Pixels, size: tuple[int, int]) -> Pixels:
    height, width = pixels.shape[:2]
    scale = min(size[0] / height, size[1] / width)
    inner = max(1, min(size[0], round(height * scale))), max(1, min(size[1], round(width * scale)))
    canvas = np.zeros((*size, 3), dtype=np.uint8)
    top, left = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    canvas[top : top + inner[0], left : left + inner[1]] = _resize(pixels, inner)
    return canvas
