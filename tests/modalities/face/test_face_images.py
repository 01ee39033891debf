"""Reading faces: their sizes, parity with OpenCV, and the way through the core."""

from __future__ import annotations

import functools
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from likeness.modalities.face import images
from likeness.toolkit.data import pixels
from likeness.toolkit.data.images import BadImage, as_channels, encode, to_pixels
from likeness.toolkit.data.items import Item
from likeness.toolkit.models.embed import embed
from likeness.toolkit.models.embedder import TorchEmbedder
from likeness.toolkit.models.parts import restore

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


def test_floats_and_pixels_are_inverse_and_saturate() -> None:
    noise = RNG.normal(128, 150, (3, 9, 7)).astype(np.float32)
    assert np.array_equal(
        to_pixels(noise), np.clip(np.rint(noise), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    )
    assert np.array_equal(to_pixels(as_channels(SMOOTH)), SMOOTH)


class Backbone(torch.nn.Module):
    """Mean colour."""

    dim = 3

    def forward(self, inputs: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        assert lengths is None
        return inputs.mean((2, 3))


def test_embedding_images_through_the_core(shared: Path) -> None:
    items = [Item(str(i), shared / "data" / "orl" / "s1" / f"{i}.pgm") for i in range(1, 4)]
    read = functools.partial(images.read, size=(112, 92))
    embedded, bad = embed(
        TorchEmbedder(pixels.INSIGHTFACE(), Backbone()),
        [*items, Item("x", Path("x.pgm"))],
        read,
        batch_size=2,
    )
    assert [item.id for item in bad] == ["x"]
    expected = [(read(item).mean((1, 2)) - 127.5) / 127.5 for item in items]
    assert np.allclose(embedded.matrix, expected, atol=1e-5)


def test_a_checkpoint_can_restore_the_reading() -> None:
    read = restore(
        {"call": "modalities.face.images.read", "args": {"size": [8, 8], "fit": "resize"}},
        "read",
        kind="read",
    )
    assert read.keywords == {"size": (8, 8), "fit": "resize"}
