"""Images as they are read, scaled for networks of the hub, and drawn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from likeness.data import folders, shards, synthetic_faces, synthetic_glyphs
from likeness.eval.items.items import Item
from likeness.eval.metrics.verification import eer
from likeness.modalities.image.hub_images import patched_size
from likeness.modalities.image.hub_images import read as read_for_network
from likeness.modalities.image.images import raw_ending, read
from likeness.toolkit.data.images import BadImage, encode
from tests.modalities.face.test_face_align import REFERENCE


def picture(height: int = 40, width: int = 60, seed: int = 0) -> np.ndarray:
    low = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(low).resize((width, height), Image.Resampling.BICUBIC))


@pytest.mark.parametrize(("height", "width"), [(40, 60), (60, 40), (33, 33), (50, 31)])
def test_resize_and_crop_as_torchvision(tmp_path: Path, height: int, width: int) -> None:
    """torchvision's functional: the long edge is int(size * long / short), the crop's corner
    int(round((edge - crop) / 2)).
    """
    Image.fromarray(picture(height, width)).save(tmp_path / "a.png")
    item = Item("a", tmp_path / "a.png")
    long = int(25 * max(height, width) / min(height, width))
    size = (25, long) if height <= width else (long, 25)
    resized = Image.fromarray(picture(height, width)).resize(size[::-1], Image.Resampling.BILINEAR)
    top, left = round((size[0] - 22) / 2.0), round((size[1] - 22) / 2.0)
    expected = np.asarray(resized)[top : top + 22, left : left + 22].transpose(2, 0, 1)
    np.testing.assert_array_equal(read(item, short_edge=25, crop=22), expected)
    assert read(item, size=(20, 30), grey=True).shape == (1, 20, 30)
    with pytest.raises(BadImage, match="crop of 90"):
        read(item, crop=90)
    with pytest.raises(ValueError, match="both be set"):
        read(item, short_edge=4, size=(4, 4))


def test_packed_pixels_also_in_shards(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 9), dtype=np.uint8)
    (tmp_path / "pixels.bin").write_bytes(b"head" + pixels.tobytes())
    file, ending = tmp_path / "pixels.bin", raw_ending(3, 8, 9)
    items = [Item(f"{i}", file, "c", (4 + 216 * i, 216), ending) for i in range(5)]
    np.testing.assert_array_equal([read(item) for item in items], pixels)
    shards.write(items, tmp_path / "shards")
    packed = {item.id: read(item) for item in shards.items(tmp_path / "shards")}
    np.testing.assert_array_equal([packed[item.id] for item in items], pixels)
    for start, size, other, reason in (
        (4 + 216 * 4, 224, ending, "216 of its 224 bytes"),
        (4, 215, ending, "215 bytes"),
        (4, 216, ".u8_2x6x6", "1 or 3"),
    ):
        with pytest.raises(BadImage, match=reason):
            read(Item("a", file, None, (start, size), other))


def image(folder: Path, height: int, width: int) -> Item:
    """An image whose red is the row, whose green the column, and whose blue is tiled."""
    rows, columns = np.indices((height, width))
    levels = np.stack([rows, columns, 200 * ((rows // 9 + columns // 7) % 2)], axis=2)
    (folder / "a.png").write_bytes(encode(levels.astype(np.uint8)))
    return Item("a", folder / "a.png")


def test_a_crop_is_rounded_down_as_transformers_rounds_it(tmp_path: Path) -> None:
    """(39 - 32) / 2 is 3.5: its corner is 3, where torchvision takes 4."""
    cut = read_for_network(image(tmp_path, 39, 39), crop=32)
    assert cut.shape == (3, 32, 32)
    assert (cut[0, 0, 0], cut[1, 0, 0]) == (3, 3)


def test_sizes_by_edges_and_by_patches(tmp_path: Path) -> None:
    item = image(tmp_path, 60, 45)
    assert read_for_network(item, short_edge=20).shape == (3, 26, 20)
    assert read_for_network(item, size=(8, 9)).shape == (3, 8, 9)
    assert read_for_network(item, patch=8, max_patches=20).shape == (3, 40, 32)
    assert read_for_network(item).shape == (3, 60, 45)


@pytest.mark.parametrize("edges", [(300, 400), (1, 900), (16, 16), (2000, 3)])
def test_patches_fit_and_no_larger_scale_does(edges: tuple[int, int]) -> None:
    """Both edges are multiples of the patch, and one more row and column are too many."""
    height, width = patched_size(*edges, 16, 64)
    assert height % 16 == width % 16 == 0
    assert height * width // 256 <= 64
    assert (height // 16 + 1) * (width // 16 + 1) > 64 or min(edges) < 16


@pytest.mark.parametrize("kind", ["faces", "glyphs"])
def test_what_is_drawn_is_learnable_and_not_easy(kind: str) -> None:
    """By the equal error rate of the cosine of centred pixels."""
    draw: Any = {
        "faces": lambda label, shot: synthetic_faces.face(label, shot, size=48).image,
        "glyphs": lambda label, shot: synthetic_glyphs.glyph(label // 6, label % 6, shot, size=28),
    }[kind]
    labels = np.repeat(np.arange(18), 6)
    drawn = [draw(label, shot) for label in range(18) for shot in range(6)]
    flat = np.stack(drawn).reshape(len(drawn), -1).astype(np.float64)
    flat -= flat.mean(axis=1, keepdims=True)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    first, second = np.triu_indices(len(flat), k=1)
    scores, target = (flat @ flat.T)[first, second], labels[first] == labels[second]
    assert 0.10 < eer(scores[target], scores[~target]) < 0.45


def test_landmarks_lie_where_the_template_has_them() -> None:
    """insightface's arcface_dst, on average; and at another size they scale with the image."""
    faces = [synthetic_faces.face(subject, shot) for subject in range(15) for shot in range(4)]
    result = np.stack([face.landmarks for face in faces])
    np.testing.assert_allclose(result.mean(axis=0), REFERENCE, atol=4.0)
    assert 1.0 < result.std(axis=0).mean() < 8.0
    half = synthetic_faces.face(0, 0, size=56).landmarks
    np.testing.assert_allclose((half + 0.5) * 2, result[0] + 0.5, atol=1e-9)


def test_written_sets_are_read(tmp_path: Path) -> None:
    synthetic_faces.write_faces(tmp_path / "faces", num_subjects=2, num_shots=2, size=32)
    items = folders.items(tmp_path / "faces", split="all", modality="image")
    assert [item.id for item in items[:2]] == ["subject000/shot00.png", "subject000/shot01.png"]
    drawn = synthetic_faces.face(0, 1, size=32).image
    np.testing.assert_array_equal(read(items[1]), drawn.transpose(2, 0, 1))
