"""IJB-B and IJB-C in the form that is passed around, the VGG pack; crops are aligned when read.

The pack has loosely cropped images, landmarks, detector scores and templates. Its layout is
ROOT/loose_crop/NAME.jpg and ROOT/meta/ijbc_face_tid_mid.txt, ijbc_name_5pts_score.txt, ...
(field-face 1.6). This file gives what must be embedded. Pairs, galleries and probes are read by
likeness.eval.protocols.ijb.meta_files, and the protocol is `protocol` beside it.
"""

import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import text_lines
from likeness.eval.items.items import Item
from likeness.eval.protocols.ijb.meta_files import find_meta_files, read_detector_scores, read_faces
from likeness.eval.types import name_first
from likeness.modalities.face.align import Frame, Size, check, crop
from likeness.modalities.face.images import decode
from likeness.toolkit.data.images import BadImage, as_channels
from likeness.toolkit.sources import Source, source_of


def pack(root: str | Path) -> tuple[list[Item], Path]:
    """List the faces of a pack, in the order of ..._face_tid_mid.txt.

    Args:
        root: The folder of the pack.

    Returns:
        The faces, without labels; and the file of their landmarks, for `read`.

    Raises:
        LikenessError: Meta files are missing. Faces have no image or no landmarks, or lines are of
            another kind; all are counted.
        FileNotFoundError: The landmarks or the folder loose_crop are missing.
    """
    root, images = Path(root), Path(root) / "loose_crop"
    files = find_meta_files(root)
    faces = read_faces(files.faces)
    read_detector_scores(files.landmarks, faces)  # refuses a face without landmarks
    # The landmarks are read before the processes that read images begin, so that these share them.
    _kept(str(files.landmarks), source_of(files.landmarks))
    with os.scandir(images) as entries:
        present = {entry.name for entry in entries}
    absent = [name for name in faces.names if name not in present]
    if absent:
        raise LikenessError(
            f"{images}: {len(absent)} of {len(faces.names)} images are not there "
            f"({name_first(absent)}); unpack the images again"
        )
    return [Item(name, images / name) for name in faces.names], files.landmarks


def read_landmarks(path: str | Path) -> dict[str, NDArray[np.float64]]:
    """Read the landmarks of lines `name x1 y1 .. x5 y5 score`.

    Args:
        path: The file.

    Returns:
        (5, 2) landmarks in pixels by name.

    Raises:
        LikenessError: Lines are of another kind, or faces are listed twice with different
            landmarks.
    """
    points: dict[str, NDArray[np.float64]] = {}
    for number, text in text_lines(path):
        fields = text.split()
        try:
            values = np.array(fields[1:11], dtype=np.float64)
        except ValueError:
            values = np.full(10, np.nan)
        known = points.get(fields[0], values)
        is_whole = len(fields) == 12 and np.isfinite(values).all()
        if not is_whole or not np.array_equal(known.ravel(), values):
            raise LikenessError(
                f"{path}: line {number} is not `name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score`, or has "
                f"other landmarks of {fields[0]!r} than a line above; fetch the file again"
            )
        points[fields[0]] = values.reshape(5, 2)
    return points


def read(
    item: Item, *, landmarks: str, size: Size = (112, 112), frame: Frame = "arcface"
) -> NDArray[np.float32]:
    """Read a face of the pack, aligned by its landmarks.

    The alignment is that of InsightFace's IJB code (recognition/_evaluation_/ijb/ijb_11.py
    Embedding.get).

    Args:
        item: The face.
        landmarks: The path of the landmarks' file, which is read once.
        size: The height and the width of the result in pixels.
        frame: Where the landmarks lie in the result.

    Returns:
        (3, height, width) float32 RGB, 0 to 255.

    Raises:
        BadImage: The face has no landmarks, its landmarks coincide, or the image is unreadable.
        LikenessError: The size or the frame is not defined.
    """
    check(size, frame)
    points = _kept(landmarks, source_of(landmarks)).get(item.id)
    if points is None:
        raise BadImage(
            f"{item.name}: there are no landmarks of it in {landmarks}; give the file of this pack"
        )
    pixels = decode(item)
    try:
        return as_channels(crop(pixels, points, size, frame))
    except ValueError as error:
        raise BadImage(f"{item.name}: {error}") from None


@lru_cache(maxsize=4)
def _kept(path: str, source: Source) -> dict[str, NDArray[np.float64]]:
    """Read the landmarks once for each change of the file."""
    return read_landmarks(path)
