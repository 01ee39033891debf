"""Image files to 8-bit RGB and back, for every modality of images; what cannot be used is refused
with its reason.

Decoding is Pillow's, which states a size before it allocates and refuses truncated data (OpenCV
fills the missing part with grey and goes on). Sizes are the modalities' business
(modalities/face/images.py, modalities/image/images.py), scaling and the order of colours the
front-end's (toolkit/data/pixels.py).
"""

from __future__ import annotations

import contextlib
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from eval.reports.media import FORMATS, IMAGES, MAX_BYTES, MAX_PIXELS
from toolkit.data.batch import Floats, Item

Pixels = NDArray[np.uint8]  # (H, W, 3) RGB; where a function says so also (H, W), grey

SUFFIXES = IMAGES
_FIRST_BYTES = 2**16  # most aligned crops are smaller
_MAX_SCANS = 500  # of a JPEG: encoders write about ten, and each costs a pass over all pixels
_TIFF_BITS = 258  # the tag of a TIFF with the bits of each channel
_STRIP_PIXELS = 2**20  # converted at once


class BadImage(ValueError):
    """One image cannot be used.

    The message names the file, what is wrong, the value and what is allowed; callers count such
    files and skip or refuse.
    """


def file_bytes(item: Item) -> bytes:
    """The bytes of the image as they lie on disk or in a tar shard.

    Raises BadImage where there are none to be had, or over 256 MiB.
    """
    try:
        with item.open() as file:
            held = file.read(
                _FIRST_BYTES
            )  # a read of all that is allowed would first allocate as much
            if len(held) == _FIRST_BYTES:
                held += file.read(MAX_BYTES + 1 - _FIRST_BYTES)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BadImage(
            f"{item.name}: no such file; check the list of items and its root folder"
        ) from error
    except (OSError, ValueError) as error:
        raise BadImage(
            str(error) if item.name in str(error) else f"{item.name}: {error}"
        ) from error
    if len(held) > MAX_BYTES:
        raise BadImage(
            f"{item.name}: over {MAX_BYTES} bytes; at most so many are read; shrink the image"
        )
    return held


def check_size(held: bytes, name: str, max_pixels: int) -> None:
    """Refuse an image of more than max_pixels by its header.

    A header that cannot be read is left to decode_bytes.

    Raises:
        BadImage: it is larger.
    """
    try:
        with Image.open(io.BytesIO(held), formats=FORMATS) as image:
            width, height = image.size
    except Exception:  # Pillow raises errors of many types for damaged headers
        return
    if width * height > max_pixels:
        raise BadImage(
            f"{name}: {height} x {width} pixels; at most {max_pixels} in all are read here; shrink "
            "the image"
        )


def decode_bytes(held: bytes, name: str) -> Pixels:
    """The bytes of an image file -> (H, W, 3) uint8 RGB, upright as its EXIF orientation says;
    `name` is what errors call it.

    Grey, palette and CMYK become RGB; transparency is dropped, as OpenCV does; 16 bits become 8
    (grey: rounded; colour: the upper 8). Floats and 32 bits, whose range is not known, are refused.
    Raises BadImage for another format, damaged or truncated data, and more than 67 megapixels (seen
    before decoding). Memory is 4 bytes for each pixel, twice where EXIF turns the image, and 3 for
    the result.
    """
    try:
        with Image.open(io.BytesIO(held), formats=FORMATS) as image:
            if not 1 <= image.width * image.height <= MAX_PIXELS:
                raise BadImage(
                    f"{name}: {image.height} x {image.width} pixels; at most {MAX_PIXELS} in all "
                    "are read; shrink the image"
                )
            scans = held.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 0
            if scans > _MAX_SCANS:
                raise BadImage(
                    f"{name}: {scans} scans; a JPEG may have {_MAX_SCANS}; write the image again"
                )
            image.load()
            with contextlib.suppress(
                Exception
            ):  # a damaged EXIF block says nothing about the pixels; OpenCV passes over it too
                ImageOps.exif_transpose(image, in_place=True)
            return _to_rgb(image, name)
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(
            f"{name}: over {MAX_PIXELS} pixels; at most so many are read; shrink the image"
        ) from error
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, struct.error, EOFError, IndexError and more
        # for damaged files
        unknown = isinstance(error, UnidentifiedImageError)
        reason = (
            f"in none of the formats {', '.join(FORMATS)}"
            if unknown
            else f"{error or type(error).__name__}".rstrip(". ")
        )
        raise BadImage(
            f"{name}: cannot be decoded, {reason}; fetch or write the file again, or remove it"
        ) from error


def encode(pixels: Pixels, suffix: str = ".png", *, quality: int = 95) -> bytes:
    """(H, W, 3) uint8 RGB -> PNG (lossless) or JPEG of this quality without chroma subsampling."""
    held = io.BytesIO()
    if suffix == ".png":
        Image.fromarray(pixels).save(held, "PNG", compress_level=3)
    elif suffix in (".jpg", ".jpeg"):
        Image.fromarray(pixels).save(held, "JPEG", quality=quality, subsampling=0)
    else:
        raise ValueError(f"encode: images are written as .png or .jpg, not as {suffix!r}")
    return held.getvalue()


def to_floats(pixels: Pixels) -> Floats:
    """(H, W, 3) or (H, W) uint8 -> (3, H, W) or (1, H, W) float32, the same values."""
    return np.ascontiguousarray(
        pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), dtype=np.float32
    )


def _to_rgb(image: Image.Image, name: str) -> Pixels:
    """In strips, so that nothing but the result is as large as the image."""
    wide = (
        image.mode == "I"
        and image.format == "TIFF"
        and max(image.tag_v2.get(_TIFF_BITS, (1,))) > 16  # type: ignore[attr-defined]
    )
    if image.mode == "F" or wide:  # levels of 0 to 255 in 32 bits would become nearly black
        raise BadImage(
            f"{name}: {'32-bit' if wide else 'floating-point'} pixels, whose range is not known; "
            "convert it to 8 bits"
        )
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        if image.mode.startswith("I"):  # Pillow's own conversion would cut 16-bit levels off at 255
            grey = np.asarray(strip).astype(np.int64)
            if grey.min() < 0 or grey.max() > 65535:
                raise BadImage(
                    f"{name}: grey values {grey.min()} to {grey.max()}; at most 16 bits, 0 to "
                    "65535, are read; convert it to 8 bits"
                )
            pixels[top : top + rows] = ((grey + 128) // 257)[..., None]
            continue
        if (
            image.mode == "P"
        ):  # by way of RGBA: Pillow warns where a palette has transparent entries
            strip = strip.convert("RGBA")
        pixels[top : top + rows] = np.asarray(
            strip if strip.mode == "RGB" else strip.convert("RGB")
        )
    return pixels
