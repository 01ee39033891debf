"""What the header of a file says, and what its content shows, without training on it.

The readers of recordings are in modalities/speaker/inspection.py; those of images are here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from likeness.eval.reports.media import FORMATS, MAX_PIXELS
from likeness.toolkit.data.images import BadImage, decode_bytes, file_bytes
from likeness.toolkit.data.items import Item

_END_OF_JPEG = b"\xff\xd9"
_AFTER_JPEG = 4096  # bytes behind the end of a JPEG, which some cameras write
_BLOCK = 2**20


class CutImage(BadImage):
    """A file ends before its image does."""


class BlankImage(BadImage):
    """An image of one colour."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself before it is decoded.

    Attributes:
        format: Such as "WAV PCM_16" or "JPEG".
        num_bytes: Of the file.
        seconds: The duration of the item; None for an image.
        rate_hz: Samples a second; None for an image.
        channels: Of a recording; None for an image.
        size: (height, width) of an image in pixels; None for a recording.
    """

    format: str
    num_bytes: int
    seconds: float | None = None
    rate_hz: int | None = None
    channels: int | None = None
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Content:
    """What the decoded content of an item shows.

    Attributes:
        digest: SHA-256 of the samples or pixels, so that copies in other files are known.
        clipped: The share of the samples that are clipped; 0 for an image.
    """

    digest: bytes
    clipped: float = 0.0


@dataclass(frozen=True)
class Inspection:
    """How the files of a modality are looked at.

    Attributes:
        header: Reads the header of an item. It raises `Unreadable` for what cannot be used.
        content: Decodes an item, whose header is known. It raises `Unreadable`.
    """

    header: Callable[[Item], Header]
    content: Callable[[Item, Header], Content]


def size_of(item: Item) -> int:
    """Returns the bytes of an item's file, or of its span."""
    return os.path.getsize(item.path) if item.span is None else item.span[1]


def digest_of_bytes(item: Item) -> bytes:
    """Returns the SHA-256 of the bytes of an item's file.

    Raises:
        OSError: As from open().
        LikenessError: As from Item.open().
    """
    digest = hashlib.sha256()
    with item.open() as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()


def image_header(item: Item) -> Header:
    """Returns what the header of an image says.

    Raises:
        BadImage: There is no such image, or it has more pixels than are read.
        CutImage: A JPEG has no end.
    """
    try:
        with item.open() as file:
            with Image.open(file, formats=FORMATS) as image:
                kind, size = str(image.format), (image.height, image.width)
            if kind == "JPEG":
                # Closing the image leaves a file open that was handed to it.
                num_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, num_bytes - _AFTER_JPEG))
                if _END_OF_JPEG not in file.read(_AFTER_JPEG):
                    raise CutImage(
                        f"{item.name}: the file is cut short, it has no end of a JPEG; fetch it "
                        "again"
                    )
    except BadImage:
        raise
    except Exception as error:  # Pillow raises errors of many types for damaged headers
        reason = "it is empty (0 bytes)" if not size_of(item) else "it is no image that is read"
        raise BadImage(f"{item.name}: {reason} ({', '.join(FORMATS)} are)") from error
    if not 1 <= size[0] * size[1] <= MAX_PIXELS:
        raise BadImage(
            f"{item.name}: {size[0]} x {size[1]} pixels, but at most {MAX_PIXELS} in all are read; "
            "shrink the image"
        )
    return Header(kind, size_of(item), size=size)


def image_content(item: Item, header: Header) -> Content:
    """Returns what the pixels of an image show.

    Raises:
        BadImage: It cannot be decoded.
        BlankImage: All its pixels have one colour.
    """
    pixels = decode_bytes(file_bytes(item), item.name)
    if (pixels == pixels[0, 0]).all():
        raise BlankImage(f"{item.name}: all its pixels have one colour; remove it")
    return Content(hashlib.sha256(np.array(pixels.shape).tobytes() + pixels.tobytes()).digest())


IMAGES = Inspection(image_header, image_content)
