"""Image files and packed pixels to float32 arrays (C, H, W), RGB or grey, 0 to 255; what cannot be
used is refused with its reason.

0 to 255 because every file holds 8-bit levels: arrays stay exact, and what a network sees of them
(mean, standard deviation, BGR) is its front-end's business (toolkit/data/pixels.py), which is saved
with it. Resizing is Pillow's antialiased one, as in torchvision's Resize of Pillow images, which
the papers used. Decoding
and its bounds are toolkit/data/images.py's.
"""

from __future__ import annotations

import re

import numpy as np
from PIL import Image

from eval.reports.media import MAX_PIXELS
from modalities.image import packed
from toolkit.data.batch import Floats, Item
from toolkit.data.images import BadImage, Pixels, decode_bytes, file_bytes, to_floats

_RAW = re.compile(
    r"\.u8_([1-9]\d{0,4})x([1-9]\d{0,4})x([1-9]\d{0,4})(?:" + packed.COMPRESSED + ")?"
)


def read(
    item: Item,
    *,
    short_edge: int = 0,
    size: tuple[int, int] | None = None,
    crop: int = 0,
    grey: bool = False,
    bicubic: bool = False,
) -> Floats:
    """item -> (C, H, W) float32, 0 to 255: RGB, or grey where `grey` is set or the item's packed
    pixels have one channel.

    short_edge: resize so that the shorter edge has so many pixels (torchvision's Resize(int));
    size: resize to (height, width) whatever the proportions; then
    crop: the central square of so many pixels (torchvision's CenterCrop). 0 and None leave the
    image as it is. bicubic: instead of bilinear.
    Files: EXIF rotation is applied, CMYK, palettes and 16 bits are converted, transparency is
    dropped. Packed pixels: an item's `ending` states their shape (raw_ending()). Raises BadImage
    for a file that is missing, damaged, truncated, too large or of another format, and an image
    smaller than `crop`.
    """
    if short_edge and size is not None:
        raise ValueError(
            f"read: short_edge {short_edge} and size {size} are both set; give one of them"
        )
    image = Image.fromarray(
        _unpack(item)
        if item.span is not None and _RAW.fullmatch(item.suffix)
        else decode_bytes(file_bytes(item), item.name)
    )
    if grey and image.mode != "L":
        image = image.convert("L")
    height, width = image.height, image.width
    if short_edge:
        size = (
            (short_edge, int(short_edge * width / height))
            if height <= width
            else (int(short_edge * height / width), short_edge)
        )
    if size is not None and size != (height, width):
        if min(size) < 1 or size[0] * size[1] > MAX_PIXELS:
            raise BadImage(
                f"{item.name}: {height} x {width} pixels would become {size[0]} x {size[1]}; 1 to "
                f"{MAX_PIXELS} pixels are allowed; change the size"
            )
        image = image.resize(
            (size[1], size[0]), Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
        )
    pixels = np.asarray(image)
    return to_floats(centre_crop(pixels, crop, item.name) if crop else pixels)


def centre_crop(pixels: Pixels, crop: int, name: str = "image") -> Pixels:
    """(H, W, ...) -> (crop, crop, ...), rounded as torchvision's CenterCrop.

    BadImage if an edge is shorter.
    """
    height, width = pixels.shape[:2]
    if min(height, width) < crop:
        raise BadImage(
            f"{name}: {height} x {width} pixels; a crop of {crop} needs edges as long; resize it "
            "first (short_edge, size)"
        )
    top, left = round((height - crop) / 2), round((width - crop) / 2)
    return pixels[top : top + crop, left : left + crop]


def raw_ending(channels: int, height: int, width: int) -> str:
    """The ending of an item whose span holds bare 8-bit pixels, channel by channel, row by row.

    >>> raw_ending(3, 32, 32)
    '.u8_3x32x32'
    """
    return f".u8_{channels}x{height}x{width}"


def _unpack(item: Item) -> Pixels:
    """(H, W) or (H, W, 3) of packed pixels."""
    stated = _RAW.fullmatch(item.suffix)
    assert stated is not None
    channels, height, width = (int(number) for number in stated.groups())
    try:
        content = packed.stretch(item)
    except (OSError, ValueError) as error:
        raise BadImage(str(error)) from error
    if channels not in (1, 3) or len(content) != channels * height * width:
        raise BadImage(
            f"{item.name}: {len(content)} bytes for {item.suffix}; {channels} x {height} x {width} "
            "with 1 or 3 channels are needed; list the data anew"
        )
    pixels: Pixels = np.frombuffer(content, dtype=np.uint8).reshape(channels, height, width)
    return pixels[0] if channels == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0))
