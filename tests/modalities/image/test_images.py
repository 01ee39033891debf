"""Reading images: every format and mode by Pillow's own levels, resizing as torchvision's, packed
pixels, and refusals that name the file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from likeness.modalities.image.images import raw_ending, read
from likeness.toolkit.data import shards
from likeness.toolkit.data.images import BadImage
from likeness.toolkit.data.items import Item


def picture(height: int = 40, width: int = 60, seed: int = 0) -> np.ndarray:
    low = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC))


def save(path: Path, image: Image.Image, **how: object) -> Item:
    image.save(path, **how)
    return Item(path.name, path)


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (33, 33), (50, 31)])
def test_resize_and_crop_as_torchvision(tmp_path: Path, height: int, width: int) -> None:
    """torchvision's functional: the long edge is int(size * long / short), the crop's corner
    int(round((edge - crop) / 2)).
    """
    item = save(tmp_path / "a.png", Image.fromarray(picture(height, width)))
    short, long = min(height, width), max(height, width)
    size = (25, int(25 * long / short)) if height <= width else (int(25 * long / short), 25)
    expected = np.asarray(
        Image.fromarray(picture(height, width)).resize(size[::-1], Image.Resampling.BILINEAR)
    )
    top, left = round((size[0] - 22) / 2.0), round((size[1] - 22) / 2.0)
    np.testing.assert_array_equal(
        read(item, short_edge=25, crop=22),
        expected[top : top + 22, left : left + 22].transpose(2, 0, 1),
    )
    assert read(item, size=(20, 30), grey=True).shape == (1, 20, 30)
    with pytest.raises(BadImage, match="crop of 90"):
        read(item, crop=90)
    with pytest.raises(ValueError, match="both be set"):
        read(item, short_edge=4, size=(4, 4))


def test_packed_pixels_also_in_shards(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 4, 6), dtype=np.uint8)
    (tmp_path / "pixels.bin").write_bytes(b"head" + pixels.tobytes())
    items = [
        Item(f"{i}", tmp_path / "pixels.bin", "c", (4 + 72 * i, 72), raw_ending(3, 4, 6))
        for i in range(5)
    ]
    np.testing.assert_array_equal([read(item) for item in items], pixels)
    shards.write(items, tmp_path / "shards")
    packed = {item.id: read(item) for item in shards.items(tmp_path / "shards")}
    np.testing.assert_array_equal([packed[item.id] for item in items], pixels)
    for span, ending, reason in (
        ((4 + 72 * 4, 80), raw_ending(3, 4, 6), "72 of its 80 bytes"),
        ((4, 71), raw_ending(3, 4, 6), "71 bytes"),
        ((4, 72), ".u8_2x6x6", "1 or 3"),
    ):
        with pytest.raises(BadImage, match=reason):
            read(Item("a", tmp_path / "pixels.bin", None, span, ending))
