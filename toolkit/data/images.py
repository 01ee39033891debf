"""Image files to 8-bit RGB and back, for every modality of images.

What cannot be used is refused with its reason. Pillow decodes, because it states a size before it
allocates and refuses truncated data; OpenCV fills the missing part with grey and goes on. The
modalities decide about sizes (modalities/face/images.py, modalities/image/images.py). The front-end
decides about scaling and the order of colours (toolkit/data/pixels.py).
"""

from __future__ import annotations

import contextlib
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from eval.reports.media import FORMATS, IMAGES, MAX_BYTES, MAX_PIXELS
from toolkit.data.batch import Floats
from toolkit.data.items import Item

Pixels = NDArray[np.uint8]  # (H, W, 3) RGB; where a function says so also (H, W), grey

SUFFIXES = IMAGES
_FIRST_BYTES = 2**16  # read first; most aligned crops are smaller
_MAX_SCANS = 500  # in a JPEG; encoders write about ten, and each costs a pass over all pixels
_TIFF_BITS = 258  # the tag of a TIFF with the bits of each channel
_STRIP_PIXELS = 2**20  # converted at once


class BadImage(ValueError):
    """One image that cannot be used.

    The message names the file, what is wrong, the value and what is allowed. Callers count such
    files and skip or refuse them.
    """


def file_bytes(item: Item) -> bytes:
    """Reads the bytes of an image as they lie on disk or in a tar shard.

    Args:
        item: The image.

    Raises:
        BadImage: They cannot be read, or there are more than 256 MiB.
    """
    try:
        with item.open() as file:
            # A single read of everything that is allowed would first allocate as much.
            content = file.read(_FIRST_BYTES)
            if len(content) == _FIRST_BYTES:
                content += file.read(MAX_BYTES + 1 - _FIRST_BYTES)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise BadImage(
            f"{item.name}: no such file; check the list of items and its root folder"
        ) from error
    except (OSError, ValueError) as error:
        raise BadImage(
            str(error) if item.name in str(error) else f"{item.name}: {error}"
        ) from error
    if len(content) > MAX_BYTES:
        raise BadImage(
            f"{item.name}: it has over {MAX_BYTES} bytes, but at most so many are read; "
            "shrink the image"
        )
    return content


def check_size(content: bytes, name: str, max_pixels: int) -> None:
    """Refuses an image of more than max_pixels by its header.

    A header that cannot be read is left to decode_bytes.

    Args:
        content: The bytes of the image file.
        name: What errors call the image.
        max_pixels: The number of pixels that is allowed.

    Raises:
        BadImage: It is larger.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            width, height = image.size
    except Exception:  # Pillow raises errors of many types for damaged headers
        return
    if width * height > max_pixels:
        raise BadImage(
            f"{name}: {height} x {width} pixels, but at most {max_pixels} in all are read; shrink "
            "the image"
        )


def decode_bytes(content: bytes, name: str) -> Pixels:
    """Decodes an image file to RGB, upright as its EXIF orientation says.

    Grey, palette and CMYK become RGB. Transparency is dropped, as OpenCV does. 16 bits become 8:
    grey is rounded, and of colours the upper 8 bits stay. Floats and 32 bits are refused, because
    their range is not known. It takes 4 bytes of memory for each pixel, twice that where EXIF turns
    the image, and 3 for the result.

    Args:
        content: The bytes of the image file.
        name: What errors call the image.

    Returns:
        (H, W, 3) uint8 RGB.

    Raises:
        BadImage: The format is another one, the data are damaged or truncated, or there are more
            than 67 megapixels, which is seen before decoding.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if not 1 <= image.width * image.height <= MAX_PIXELS:
                raise BadImage(
                    f"{name}: {image.height} x {image.width} pixels, but at most {MAX_PIXELS} "
                    "in all are read; shrink the image"
                )
            scans = content.count(b"\xff\xda") if image.format in ("JPEG", "MPO") else 0
            if scans > _MAX_SCANS:
                raise BadImage(
                    f"{name}: it has {scans} scans, but a JPEG may have {_MAX_SCANS}; write the "
                    "image again"
                )
            image.load()
            # A damaged EXIF block says nothing about the pixels. OpenCV passes over it too.
            with contextlib.suppress(Exception):
                ImageOps.exif_transpose(image, in_place=True)
            return _to_rgb(image, name)
    except BadImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(
            f"{name}: it has over {MAX_PIXELS} pixels, but at most so many are read; "
            "shrink the image"
        ) from error
    except Exception as error:
        # Pillow's decoders raise OSError, SyntaxError, struct.error, EOFError, IndexError and more
        # for damaged files.
        reason = str(error or type(error).__name__).rstrip(". ")
        if isinstance(error, UnidentifiedImageError):
            reason = f"in none of the formats {', '.join(FORMATS)}"
        raise BadImage(
            f"{name}: it cannot be decoded ({reason}); fetch or write the file again, or remove it"
        ) from error


def encode(pixels: Pixels, suffix: str = ".png", *, quality: int = 95) -> bytes:
    """Encodes an image as PNG, which is lossless, or as JPEG without chroma subsampling.

    Args:
        pixels: (H, W, 3) uint8 RGB.
        suffix: ".png", ".jpg" or ".jpeg".
        quality: The quality of a JPEG.

    Returns:
        The bytes of the file.

    Raises:
        ValueError: The suffix is another one.

    Example:
        >>> square = np.full((2, 2, 3), 7, np.uint8)
        >>> decode_bytes(encode(square), "square")[0, 0].tolist()
        [7, 7, 7]
    """
    buffer = io.BytesIO()
    if suffix == ".png":
        Image.fromarray(pixels).save(buffer, "PNG", compress_level=3)
    elif suffix in (".jpg", ".jpeg"):
        Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=0)
    else:
        raise ValueError(f"encode: images are written as .png or .jpg, not as {suffix!r}")
    return buffer.getvalue()


def to_floats(pixels: Pixels) -> Floats:
    """Turns (H, W, 3) or (H, W) uint8 into (3, H, W) or (1, H, W) float32 of the same values.

    Example:
        >>> to_floats(np.zeros((4, 5, 3), np.uint8)).shape
        (3, 4, 5)
    """
    return np.ascontiguousarray(
        pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), dtype=np.float32
    )


def _to_rgb(image: Image.Image, name: str) -> Pixels:
    """Converts an image in strips, so that nothing but the result is as large as the image."""
    wide = (
        image.mode == "I"
        and image.format == "TIFF"
        and max(image.tag_v2.get(_TIFF_BITS, (1,))) > 16  # type: ignore[attr-defined]
    )
    if image.mode == "F" or wide:  # levels from 0 to 255 in 32 bits would become nearly black
        raise BadImage(
            f"{name}: {'32-bit' if wide else 'floating-point'} pixels have no known range; "
            "convert it to 8 bits"
        )
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        if image.mode.startswith("I"):
            # Pillow's own conversion would cut 16-bit levels off at 255.
            grey = np.asarray(strip).astype(np.int64)
            if grey.min() < 0 or grey.max() > 65535:
                raise BadImage(
                    f"{name}: grey values {grey.min()} to {grey.max()}; at most 16 bits, 0 to "
                    "65535, are read; convert it to 8 bits"
                )
            pixels[top : top + rows] = ((grey + 128) // 257)[..., None]
            continue
        if image.mode == "P":
            # RGBA comes in between, because Pillow warns where a palette has transparent entries.
            strip = strip.convert("RGBA")
        if strip.mode != "RGB":
            strip = strip.convert("RGB")
        pixels[top : top + rows] = np.asarray(strip)
    return pixels
