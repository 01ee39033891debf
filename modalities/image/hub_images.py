"""Read images as the image processors of `transformers` do: their sizes, their crops.

Scale and colours are the front-end's (toolkit/data/pixels.py). Decoding and its bounds are those of
images.py.
"""

import math

import numpy as np
from PIL import Image

from likeness.eval.items.items import Item
from likeness.modalities.image import images
from likeness.toolkit.data.images import as_channels, to_pixels
from likeness.toolkit.data.reading import Array

_EXACT = 1e-5  # how near the scale of `patched_size` comes to the largest that fits


def read(
    item: Item,
    *,
    short_edge: int = 0,
    size: tuple[int, int] | None = None,
    crop: int = 0,
    patch: int = 0,
    max_patches: int = 256,
    bicubic: bool = False,
) -> Array:
    """Read an item as RGB levels (3, H, W) from 0 to 255, resized and cropped for a network.

    Args:
        item: What to read; grey images become RGB.
        short_edge: The number of pixels that the shorter edge is resized to; 0 leaves it.
        size: (height, width) that the image is resized to, whatever its proportions; None leaves
            it.
        crop: The edge of the central square that is cut out afterwards; 0 keeps the whole image.
            Its corner is rounded down, where torchvision rounds to the even number.
        patch: The side of SigLIP 2's patches: the image keeps about its proportions and becomes as
            large as `max_patches` allow. 0 does not.
        max_patches: See `patch`.
        bicubic: Whether resizing is bicubic in place of bilinear.

    Raises:
        BadImage: The image cannot be read, is smaller than `crop`, or would become too large.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from likeness.toolkit.data.images import encode
        >>> path = Path(tempfile.mkdtemp(), "grey.png")
        >>> pixels = np.zeros((30, 40, 3), np.uint8)
        >>> pixels[8:16] = 255
        >>> _ = path.write_bytes(encode(pixels))
        >>> read(Item("grey", path, None), short_edge=16, crop=16).shape
        (3, 16, 16)
    """
    assert sum(map(bool, (short_edge, size, patch))) <= 1
    levels = images.read(item, short_edge=short_edge, size=size, bicubic=bicubic, dtype="uint8")
    pixels = to_pixels(levels)
    if patch:
        height, width = patched_size(pixels.shape[0], pixels.shape[1], patch, max_patches)
        method = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
        pixels = np.asarray(Image.fromarray(pixels).resize((width, height), method))
    if crop:
        pixels = images.centre_crop(pixels, crop, item.name, round_down=True)
    return as_channels(pixels)


def patched_size(height: int, width: int, patch: int, max_patches: int) -> tuple[int, int]:
    """Return the largest size of at most `max_patches` patches that keeps about the proportions.

    Both edges are multiples of the patch, rounded up, and at least one patch. It is SigLIP 2's
    get_image_size_for_max_num_patches, a bisection of the scale.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        patch: The side of a patch, in pixels.
        max_patches: How many patches are allowed.

    Example:
        >>> patched_size(300, 400, 16, 256)
        (224, 288)
    """

    def scaled(scale: float) -> tuple[int, int]:
        edges = (math.ceil(edge * scale / patch) * patch for edge in (height, width))
        rows, columns = (max(patch, edge) for edge in edges)
        return int(rows), int(columns)

    low, high = _EXACT / 10, 100.0
    while high - low >= _EXACT:
        middle = (low + high) / 2
        rows, columns = scaled(middle)
        if rows * columns / patch**2 <= max_patches:
            low = middle
        else:
            high = middle
    return scaled(low)
