"""Sizes and crops of images for networks of the hub; against transformers: models/test_hub.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.modalities.image.hub import patched_size, read
from likeness.toolkit.data.images import encode
from likeness.toolkit.data.items import Item


def image(folder: Path, height: int, width: int) -> Item:
    """An image whose red is the row and whose green is the column."""
    rows, columns = np.indices((height, width))
    levels = np.stack([rows, columns, 0 * rows], axis=2).astype(np.uint8)
    (folder / "a.png").write_bytes(encode(levels))
    return Item("a", folder / "a.png")


def test_a_crop_is_rounded_down_as_transformers_rounds_it(tmp_path: Path) -> None:
    """(39 - 32) / 2 is 3.5: its corner is 3, where torchvision takes 4."""
    cut = read(image(tmp_path, 39, 39), crop=32)
    assert cut.shape == (3, 32, 32)
    assert (cut[0, 0, 0], cut[1, 0, 0]) == (3, 3)


def test_sizes_by_edges_and_by_patches(tmp_path: Path) -> None:
    item = image(tmp_path, 60, 45)
    assert read(item, short_edge=20).shape == (3, 26, 20)
    assert read(item, size=(8, 9)).shape == (3, 8, 9)
    assert read(item, patch=8, max_patches=20).shape == (3, 40, 32)
    assert read(item).shape == (3, 60, 45)


@pytest.mark.parametrize("edges", [(300, 400), (1, 900), (16, 16), (2000, 3)])
def test_patches_fit_and_no_larger_scale_does(edges: tuple[int, int]) -> None:
    """Both edges are multiples of the patch, and one more row and column are too many."""
    height, width = patched_size(*edges, 16, 64)
    assert height % 16 == width % 16 == 0
    assert height * width // 256 <= 64
    assert (height // 16 + 1) * (width // 16 + 1) > 64 or min(edges) < 16
