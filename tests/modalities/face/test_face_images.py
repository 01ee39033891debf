"""Reading faces: their sizes, parity with OpenCV, and the way through the core."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from likeness.modalities.face import images
from likeness.toolkit.data.images import BadImage, encode, to_pixels
from likeness.toolkit.data.items import Item

RNG = np.random.default_rng(0)
SMOOTH = cv2.GaussianBlur(RNG.integers(0, 256, (40, 56, 3), dtype=np.uint8), (0, 0), 4)


def test_orl_images_agree_with_opencv(shared: Path) -> None:
    path = shared / "data" / "orl" / "s1" / "1.pgm"
    ours = images.read(Item("a", path), size=(112, 92))
    assert ours.dtype == np.float32
    assert np.array_equal(ours[0], cv2.imread(str(path), cv2.IMREAD_GRAYSCALE))
    assert np.array_equal(ours[0], ours[2])
    with pytest.raises(BadImage, match="112 x 92 pixels, but 112 x 112"):
        images.read(Item("a", path))


def test_fit_resizes(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encode(SMOOTH))
    item = Item("a", tmp_path / "a.png")
    resized = images.read(item, size=(20, 28), fit="resize")
    assert np.array_equal(
        to_pixels(resized), cv2.resize(SMOOTH, (28, 20), interpolation=cv2.INTER_AREA)
    )
    with pytest.raises(ValueError, match="fit is 'crop'"):
        images.read(item, fit="crop")  # type: ignore[arg-type]
