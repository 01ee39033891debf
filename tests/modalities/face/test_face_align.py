"""Alignment: parity with InsightFace and with a least-squares fit of our own; whole folders with a
tiny detector made here.
"""

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.items.items import Item
from likeness.modalities.face import align, images
from likeness.toolkit.data.images import Pixels, encode
from tests.scripts import touch
from tests.tiny_yunet import save_onnx

_X = [38.2946, 73.5318, 56.0252, 41.5493, 70.7299]
_Y = [51.6963, 51.5014, 71.7366, 92.3655, 92.2041]
REFERENCE = np.stack([_X, _Y], axis=1)
# landmarks of the tiny detector around the face, in cells of 8 pixels
OFFSETS = np.array([[-1, -1], [1, -1], [0, 0.1], [-0.8, 1], [0.8, 1]])
SIDE = 64


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SCRFD-like network that takes every bright red cell of 8 x 8 pixels for a face."""
    return tiny_detector(tmp_path_factory.mktemp("model") / "tiny_kps.onnx")


def tiny_detector(
    path: Path, only: tuple[int, int] | None = None, *, factor: float = 1.0, box: float = 2.0
) -> Path:
    """Write an SCRFD-like network of 64 x 64 that takes every bright red cell for a face, or only
    the cell (column, row): nine outputs, of which strides 16 and 32 never find any.

    Scores are multiplied by `factor`, and boxes reach `box` cells to all sides.
    """
    seen = np.ones((8, 8), np.float32)
    if only is not None:
        seen[:] = 0
        seen[only[1], only[0]] = 1
    constants = {
        "seen": factor * seen,
        "first": np.array(0),
        "column": np.array([-1, 1]),
        "never": np.full((64, 1), -1, np.float32),
    }
    lines = [
        "cells = AveragePool <kernel_shape = [8, 8], strides = [8, 8]> (input)",
        "looked_at = Mul (cells, seen)",
        "red = Gather <axis = 1> (looked_at, first)",
        "one = Reshape (red, column)",
        "both = Concat <axis = 1> (one, never)",  # two anchors in each cell
        "score8 = Reshape (both, column)",
    ]
    outputs = []
    for kind, values in (("score", [-1.0]), ("box", [box] * 4), ("points", OFFSETS.ravel())):
        for stride, count in ((8, 128), (16, 32), (32, 8)):
            name = f"{kind}{stride}"
            outputs.append(f"float[{count},{len(values)}] {name}")
            if name != "score8":
                constants[f"{name}_held"] = np.tile(np.array(values, np.float32), (count, 1))
                lines.append(f"{name} = Identity ({name}_held)")
    return save_onnx(path, f"float[1,3,{SIDE},{SIDE}] input", outputs, lines, constants)


def scene(*cells: tuple[int, int]) -> Pixels:
    """Black, with a coloured background gradient too dark to count, and bright red cells (column,
    row).
    """
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[..., 0] = np.arange(SIDE)
    for column, row in cells:
        pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = (250, 40, 30)
    return pixels


def test_a_crop_of_112_x_96_has_the_landmarks_of_sphereface() -> None:
    """wy1iu/sphereface, preprocess/code/face_align_demo.m: coord5point for imgSize = [112, 96]."""
    spheres = REFERENCE - [8, 0]
    turn, factor, shift = np.radians(20), 1.7, np.array([60.0, 15.0])
    rotation = np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    points = factor * spheres @ rotation + shift
    # White dots at the landmarks of a photograph lie at SphereFace's landmarks in the crop.
    for point, goal in zip(points, spheres, strict=True):
        pixels = np.zeros((260, 260, 3), np.uint8)
        x, y = np.rint(point).astype(int)
        pixels[y - 2 : y + 3, x - 2 : x + 3] = 255
        crop = align.crop(pixels, points, (112, 96))[..., 0].astype(float)
        assert crop.shape == (112, 96)
        rows, columns = np.mgrid[:112, :96]
        centre = np.array([(crop * columns).sum(), (crop * rows).sum()]) / crop.sum()
        assert np.abs(centre - goal).max() < 0.5  # the dot's own place is rounded


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("size", [112, 128, 224, 256])
def test_transform_is_umeyamas(size: int) -> None:
    """InsightFace's by SVD: of faces, of mirrored faces, of points anywhere and on a line."""
    from insightface.utils import face_align

    rng = np.random.default_rng(size)
    pixels = rng.integers(0, 256, (200, 220, 3), dtype=np.uint8)
    face = REFERENCE * 1.3 + rng.normal(0, 5, (5, 2)) + 20
    line = np.stack((np.linspace(10, 90, 5), np.linspace(20, 60, 5)), 1)
    for points in (face, face * (-1, 1) + (200, 0), rng.uniform(0, 200, (5, 2)), line):
        theirs = face_align.estimate_norm(points, size)
        np.testing.assert_allclose(align.transform(points, size), theirs, rtol=0, atol=1e-10)
        theirs = face_align.norm_crop(pixels, points, size)
        assert np.array_equal(align.crop(pixels, points, (size, size)), theirs)


@pytest.mark.parametrize("factor", [1, 40], ids=["small", "large"])
def test_without_a_face_a_margin_is_added(tmp_path: Path, factor: int) -> None:
    """A face at the edge, for a detector that finds none there: with a margin of half the size on
    every side, a red square of 16 x 16 pixels at (16, 0) is the cell at (24, 16) of the network.
    """
    model = align.load_detector(tiny_detector(tmp_path / "one_cell.onnx", only=(3, 2)))
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    pixels[:16, 16:32] = (250, 40, 30)
    pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    faces = align.detect(model, pixels)
    assert len(faces.scores) == 1
    assert np.allclose(faces.boxes, np.array([[-16, -32, 48, 32]]) * factor, atol=0.1 * factor)
    expected = (np.array([16, 0]) + 16 * OFFSETS) * factor
    assert np.allclose(faces.landmarks, expected, atol=0.1 * factor)
    # What the first look finds stays as it was: no second one adds to it.
    moved = np.roll(pixels, 16 * factor, axis=0)
    assert np.allclose(align.detect(model, moved).boxes, np.array([8, 0, 40, 32]) * factor)
    assert not len(align.detect(model, np.zeros_like(pixels)).boxes)


def test_which_face_is_taken() -> None:
    def faces(*boxes: tuple[float, ...]) -> align.Faces:
        return align.Faces(np.array(boxes), np.ones(len(boxes)), np.zeros((len(boxes), 5, 2)))

    corner, centre, edge = (0.0, 0, 10, 10), (80.0, 80, 120, 120), (190.0, 0, 200, 50)
    assert align.choose_face(faces(corner, centre, edge), 200, 200) == 1
    assert align.choose_face(faces(centre, corner, centre), 200, 200) == 0  # ties: the first
    off = faces((0.0, 0, 60, 60), (90.0, 90, 110, 110))
    assert align.choose_face(off, 200, 200, "largest") == 0
    assert align.choose_face(off, 200, 200, "central") == 1


def test_a_folder_with_failures(detector: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    contents = {
        "a/1.png": scene((4, 4)),
        "a/2.png": scene(),
        "b/deep/3.png": scene((2, 2), (6, 6)),
        "b/4.png": scene((0, 0)),
        "b/6.png": np.zeros((1000, 1, 3), np.uint8),
    }
    touch(root, *contents)
    (root / "b/5.png").write_bytes(b"no image")
    for name, pixels in contents.items():
        (root / name).write_bytes(encode(pixels))
    result = align.align_folder(root, out, detector=detector)
    assert [item.id for item in result.done] == ["a/1.png", "b/deep/3.png"]
    assert [item.path for item in result.done] == [out / "a/1.png", out / "b/deep/3.png"]
    assert [item.label for item in result.done] == ["a", "b"]
    assert result.several == ["b/deep/3.png"]
    reasons = {item.id: item.reason for item in result.failures}
    assert "one colour" in reasons["a/2.png"]
    assert "lie outside" in reasons["b/4.png"]
    assert "none of the formats" in reasons["b/5.png"]
    assert (out / "failures.tsv").read_text().count("\n") == 4
    with pytest.raises(ValueError, match="edges of 8"):
        align.read(Item("line", root / "b/6.png"), detector=str(detector))
    assert images.read(result.done[0]).shape == (3, 112, 112)
    before = (out / "a/1.png").stat().st_mtime_ns
    assert align.align_folder(root, out, detector=detector).done == result.done
    assert (out / "a/1.png").stat().st_mtime_ns == before
    assert not list(out.rglob("*.part"))


def test_several_faces_are_known_to_a_run_that_goes_on(detector: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "in", tmp_path / "out"
    root.mkdir()
    scenes = [((2, 2), (6, 6)), ((4, 4),), ((2, 2), (6, 2), (4, 6)), ((2, 6), (6, 2))]
    for number, cells in enumerate(scenes):
        (root / f"{number}.png").write_bytes(encode(scene(*cells)))
    for _ in range(2):
        result = align.align_folder(root, out, detector=detector)
        assert len(result.done) == 4
        assert result.several == ["0.png", "2.png", "3.png"]
        assert (out / "several.tsv").read_text() == "0.png\t2\n2.png\t3\n3.png\t2\n"
    (out / "2.png").unlink()
    (root / "2.png").write_bytes(encode(scene((4, 4))))  # another photograph in its place
    assert align.align_folder(root, out, detector=detector).several == ["0.png", "3.png"]
    assert align.align_folder(root, out, detector=detector).several == ["0.png", "3.png"]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("settings", [{"factor": np.nan}, {"box": 3e38}, {"box": np.nan}])
def test_numbers_that_are_none_find_no_face(tmp_path: Path, settings: dict[str, float]) -> None:
    model = align.load_detector(tiny_detector(tmp_path / "d.onnx", **settings))
    assert not len(align.detect(model, scene((4, 4))).scores)
