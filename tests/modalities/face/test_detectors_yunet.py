"""YuNet: what a plain decoding finds with the same file, and how large photographs are shrunk."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likeness.modalities.face import align
from likeness.toolkit.data.images import Pixels
from tests.tiny_yunet import BOX, POINTS, tiny_yunet


def scene(*faces: tuple[int, int, int], size: tuple[int, int] = (96, 128), seed: int = 0) -> Pixels:
    """A dark image with a red cell of 8 x 8 pixels (column, row, level) for every face."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (*size, 3), dtype=np.uint8)
    for column, row, level in faces:
        pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8, 0] = level
    return pixels


def plain_decoding(pixels: Pixels, stride: int = 8) -> list[tuple[float, list[float], np.ndarray]]:
    """Score, box and landmarks of every cell of a score of at least 0.9, by loops in float64."""
    result = []
    for row in range(pixels.shape[0] // stride):
        for column in range(pixels.shape[1] // stride):
            cell = pixels[stride * row :, stride * column :][:stride, :stride]
            score, green = cell[..., 0].mean() / 255, cell[..., 1].mean() / 255
            if score >= 0.9:
                x, y = (column + BOX[0] + green) * stride, (row + BOX[1] + green) * stride
                w, h = math.exp(BOX[2]) * stride, math.exp(BOX[3]) * stride
                box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
                points = (POINTS + green + (column, row)) * stride
                result.append((score, box, points))
    return sorted(result, key=lambda face: -face[0])


def test_decodes_as_plain_loops_do(tmp_path: Path) -> None:
    """Faces that lie apart, so that none is suppressed. Files are known by their outputs."""
    model = align.load_detector(tiny_yunet(tmp_path / "unknown.onnx", strides=(8, 16)))
    pixels = scene((3, 3, 240), (12, 3, 255), (7, 9, 250))
    found, expected = align.detect(model, pixels), plain_decoding(pixels)
    assert len(found.boxes) == len(expected) == 3
    for number, (score, box, points) in enumerate(expected):
        assert found.scores[number] == pytest.approx(score, abs=1e-6)
        np.testing.assert_allclose(found.boxes[number], box, atol=1e-4)
        np.testing.assert_allclose(found.landmarks[number], points, atol=1e-4)


@pytest.mark.parametrize("size", [(96, 128), ("height", "width")])
def test_landmarks_of_a_large_photograph_are_its_own(tmp_path: Path, size: Any) -> None:
    """The same scene in ten times the size has its faces in ten times the place."""
    model = align.load_detector(tiny_yunet(tmp_path / "y.onnx", size))
    small = scene((4, 3, 255), (10, 8, 245))
    large = small.repeat(10, axis=0).repeat(10, axis=1)
    found, expected = align.detect(model, large), align.detect(model, small)
    if size == (96, 128):
        assert len(found.boxes) == len(expected.boxes) == 2
        np.testing.assert_allclose(found.landmarks, 10 * expected.landmarks, atol=1e-2)
    # At 640 pixels a red square is 5 cells wide, and each of them finds a face about itself.
    middle = found.landmarks[0].mean(axis=0) / 10
    assert np.abs(middle - expected.landmarks.mean(axis=1)).max(axis=1).min() < 8
