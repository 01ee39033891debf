"""Small images of many classes for miniatures of data sets."""

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from likeness.modalities import synthetic_glyphs

EDGE = 32


def drawn(number: int, shot: int, size: int = 28) -> np.ndarray:
    """(size, size): a glyph of the class `number`."""
    return synthetic_glyphs.glyph(number // 7, number % 7, shot, size=size)


def coloured(number: int, shot: int) -> np.ndarray:
    """(36, 40, 3), each class in a colour of its own."""
    colour = np.random.default_rng(number).uniform(0.3, 1.0, 3)
    return cv2.resize((drawn(number, shot)[:, :, None] * colour).astype(np.uint8), (40, EDGE + 4))


def write_images(paths: Sequence[Path]) -> None:
    """Three images of each class in turn."""
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(cv2.imencode(".jpg", coloured(number // 3, number % 3))[1].tobytes())
