"""Pictures of every kind as 8-bit RGB: what their files say of alpha, colours and levels is obeyed.

- **Alpha** and transparent colours: the picture is laid on GROUND, a middle grey, on which black
  and white drawings show alike. What is hidden changes nothing.
- **Profiles** (ICC) and gamma (PNG): colours become those of sRGB. A profile that is damaged, or
  belongs to other channels than the picture has, says nothing.
- **Levels** of 16 bits and less are scaled to 8. Floats, 32 bits and signed levels are refused,
  because their range is not known.

Pillow is imported where it is needed.
"""

from __future__ import annotations

import io
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from likeness.eval.errors import LikenessError

if TYPE_CHECKING:
    from PIL.Image import Image

_UNKNOWN_RANGE = "32-bit, floating-point and signed pixels have no known range; use 8 bits"
GROUND = (128, 128, 128)  # RGB, what transparent pictures are laid on
ORIENTATION = 0x0112  # the tag of EXIF
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF
_WHITE_IS_ZERO = 0  # of _PHOTOMETRIC
_READ = ("transparency", "icc_profile", "chromaticity", "srgb", "gamma")  # of Pillow's info
_UNSIGNED = 1  # of _SAMPLE_FORMAT
_SRGB_GAMMA = 0.45455  # as PNG writes it
# Levels and xy of white, red, green and blue that differ by less are those of sRGB.
_SAME_LEVEL, _SAME_GAMMA, _SAME_XY = 2, 0.01, 0.01
_SRGB_XY = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06)


def to_rgb(image: Image) -> Image:
    """Returns a picture as RGB, upright as EXIF says; of several in a file, the first.

    Args:
        image: As Pillow opened it.

    Raises:
        LikenessError: Its levels have no known range, or its colours are stated in a way that is
            not read.

    Example:
        >>> from PIL import Image
        >>> to_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0))
        (128, 128, 128)
    """
    from PIL import ImageOps

    colours = _flattened(image)
    # A damaged EXIF block says nothing about the pixels. OpenCV passes over it too.
    with suppress(Exception):
        colours.getexif()[ORIENTATION] = image.getexif().get(ORIENTATION, 1)
        ImageOps.exif_transpose(colours, in_place=True)
    return colours


def _flattened(image: Image) -> Image:
    """A picture as RGB, as its pixels lie."""
    from PIL import Image as pillow

    tiles = getattr(image, "tile", None)
    rawmode = tiles[0].args if tiles else ""
    image.load()
    for key in _READ:  # a text of the file may have such a name
        if isinstance(image.info.get(key), str):
            del image.info[key]
    clear = image.info.get("transparency")
    if clear is not None and rawmode == "RGB;16B":
        raise LikenessError("one of its 16-bit colours is transparent; write it with 8 bits")
    tags = getattr(image, "tag_v2", {})
    if set(tags.get(_SAMPLE_FORMAT, ())) - {_UNSIGNED}:
        raise LikenessError(_UNKNOWN_RANGE)
    alpha = None
    if image.mode.startswith(("I", "F")):
        grey = _as_levels(image, tags)
        if clear is not None:
            alpha = pillow.fromarray(np.where(np.asarray(image) == clear, 0, 255).astype(np.uint8))
        opaque = pillow.fromarray(grey)
    elif image.has_transparency_data:
        opaque = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        alpha = opaque.getchannel("A")
        opaque = opaque.convert("RGB")
    else:
        opaque = image if image.mode in ("L", "RGB", "CMYK", "LAB") else image.convert("RGB")
    colours = _as_srgb(opaque, image.info)
    if alpha is None or alpha.getextrema() == (255, 255):
        return colours
    ground = pillow.new("RGB", image.size, GROUND)
    ground.paste(colours, mask=alpha)
    return ground


def _as_levels(image: Image, tags: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The levels of grey of over 8 bits, which Pillow's own conversion would cut off at 255."""
    bits = 16 if image.format or image.mode != "I" else 32
    if image.format == "TIFF":
        bits = max(tags.get(_BITS, (1,)))
    grey = np.asarray(image)
    # Levels from 0 to 255 in 32 bits would become nearly black.
    if image.mode == "F" or bits > 16 or grey.min() < 0 or grey.max() > 65535:
        raise LikenessError(_UNKNOWN_RANGE)
    most = 2**bits - 1 if bits > 8 else 65535
    levels = ((grey.astype(np.int64) * 255 + most // 2) // most).astype(np.uint8)
    is_inverted = tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO
    return 255 - levels if is_inverted else levels


def is_srgb(image: Image) -> bool:
    """Returns whether the colours of an RGB or grey picture without alpha stay as they are."""
    profile = image.info.get("icc_profile")
    return not isinstance(profile, bytes) or all(
        _to_srgb(profile, mode) is None for mode in {image.mode, "RGB"}
    )


def _as_srgb(image: Image, info: dict[Any, Any]) -> Image:
    """A picture without alpha as RGB in the colours of sRGB."""
    from PIL import ImageCms

    if isinstance(profile := info.get("icc_profile"), bytes):
        for mode in dict.fromkeys((image.mode, "RGB")):  # grey may have a profile of colours
            if (transform := _to_srgb(profile, mode)) is not None:
                converted = ImageCms.applyTransform(image.convert(mode), transform)
                assert converted is not None
                return converted
        return image.convert("RGB")
    primaries = info.get("chromaticity") if image.mode != "L" else None
    image = image.convert("RGB")
    if "srgb" in info:
        return image
    if primaries and not np.allclose(primaries, _SRGB_XY, atol=_SAME_XY):
        raise LikenessError("its primaries are not those of sRGB; convert its colours to sRGB")
    gamma = info.get("gamma", _SRGB_GAMMA)
    if gamma <= 0 or abs(gamma - _SRGB_GAMMA) < _SAME_GAMMA:
        return image
    levels = 255 * (np.arange(256) / 255) ** (_SRGB_GAMMA / gamma)
    return image.point(np.rint(levels).astype(int).tolist() * 3)


@lru_cache(maxsize=8)
def _to_srgb(profile: bytes, mode: str) -> Any:
    """The transform of a profile to sRGB; None where it changes nothing, or does not fit."""
    from PIL import Image, ImageCms

    try:
        own, srgb = ImageCms.ImageCmsProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB")
        transform = ImageCms.buildTransform(own, srgb, mode, "RGB")
    except (ImageCms.PyCMSError, OSError):
        return None
    if mode not in ("L", "RGB"):
        return transform
    # Most profiles are that of sRGB, by many writers: the levels tell, and are not rounded anew.
    shape = (9, 9, 9, 3) if mode == "RGB" else (256, 1)
    steps = np.linspace(0, 255, shape[0]).astype(np.uint8)
    grid = np.stack(np.meshgrid(*[steps] * shape[-1], indexing="ij"), axis=-1)
    cube = Image.fromarray(grid.reshape(1, -1, 3) if mode == "RGB" else grid.reshape(1, -1))
    there = np.asarray(ImageCms.applyTransform(cube, transform), np.int64)
    change = np.abs(there - np.asarray(cube.convert("RGB"), np.int64)).max()
    return None if change <= _SAME_LEVEL else transform
