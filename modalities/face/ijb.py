"""IJB-B and IJB-C as the field passes them around (the VGG pack): loosely cropped images,
landmarks, detector scores, templates; crops are aligned when read.

Layout: ROOT/loose_crop/NAME.jpg and ROOT/meta/ijbc_face_tid_mid.txt, ijbc_name_5pts_score.txt, ...
(field-face 1.6). Pairs, galleries and probes are read by eval.protocols.ijb_files and the protocols
are eval.protocols.ijb's; this gives what must be embedded for them.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.formats.files import at_lines, text_lines
from eval.protocols.ijb_files import (
    Faces,
    meta_files,
    read_detector_scores,
    read_faces,
    refuse_torn,
)
from eval.types import Floats, name_first
from modalities.face.align import check, crop
from modalities.face.images import decode
from toolkit.data.batch import Item
from toolkit.data.images import BadImage, to_floats


class Pack(NamedTuple):
    """F faces in the order of ..._face_tid_mid.txt: the items to embed (label None), templates and
    media, the detector's scores (F,), the landmarks' file.
    """

    items: list[Item]
    faces: Faces
    scores: Floats
    landmarks: Path


def pack(root: str | Path, name: str = "") -> Pack:
    """The faces of ROOT. name: ijbb or ijbc, the beginning of its meta files (default: the one that
    is there). Read them with partial(ijb.read, landmarks=str(pack.landmarks)).

    FileNotFoundError and ValueError: what is missing, all counted: meta files, faces without image
    or landmarks; lines of another kind.
    """
    root, images = Path(root), Path(root) / "loose_crop"
    files = meta_files(root, name)
    lacking = [str(one) for one in (files.landmarks, images) if not one.exists()]
    if lacking:
        raise FileNotFoundError(
            f"{root}: {len(lacking)} parts of the pack are missing ({name_first(lacking)}); unpack "
            "it so that loose_crop and meta lie in it"
        )
    faces = read_faces(files.faces)
    scores = read_detector_scores(files.landmarks, faces)
    _kept(
        str(files.landmarks), os.stat(files.landmarks).st_mtime_ns
    )  # before the processes that read begin: they share it
    with os.scandir(images) as listed:
        there = {one.name for one in listed}
    absent = [one for one in faces.names if one not in there]
    if absent:
        raise ValueError(
            f"{images}: {len(absent)} of {len(faces.names)} images are not there "
            f"({name_first(absent)}); unpack the images again"
        )
    return Pack([Item(one, images / one) for one in faces.names], faces, scores, files.landmarks)


def read_landmarks(path: str | Path) -> dict[str, NDArray[np.float64]]:
    """Name -> (5, 2) landmarks of `name x1 y1 .. x5 y5 score` lines.

    ValueError: lines of another kind, faces listed twice with different landmarks (counted), an
    empty file.
    """
    points: dict[str, NDArray[np.float64]] = {}
    bad, torn = [], []
    for number, text in text_lines(path):
        fields = text.split()
        try:
            values = np.array(fields[1:11], dtype=np.float64)
        except ValueError:
            values = np.full(10, np.nan)
        if len(fields) != 12 or not np.isfinite(values).all():
            bad.append(number)
        elif not np.array_equal(points.setdefault(fields[0], values.reshape(5, 2)).ravel(), values):
            torn.append(fields[0])
    if bad or not points:
        where = (
            f"{len(bad)} lines ({at_lines(np.array(bad, dtype=np.int32))}) are not"
            if bad
            else "empty; expected"
        )
        raise ValueError(
            f"{path}: {where} `name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score`; fetch the file again"
        )
    refuse_torn(path, torn)
    return points


def read(
    item: Item, *, landmarks: str, size: int = 112, width: int | None = None
) -> NDArray[np.float32]:
    """A face of the pack -> (3, size, width or size) float32 RGB, 0 to 255, aligned by its
    landmarks in the file `landmarks`, which is read once.

    As InsightFace's IJB code (recognition/_evaluation_/ijb/ijb_11.py Embedding.get).
    Raises BadImage: no landmarks, landmarks that coincide, an unreadable image; ValueError for a
    size or width that no image mends.
    """
    check(size, width)
    points = _kept(landmarks, os.stat(landmarks).st_mtime_ns).get(item.id)
    if points is None:
        raise BadImage(f"{item.name}: no landmarks in {landmarks}; give the file of this pack")
    pixels = decode(item)
    try:
        return to_floats(crop(pixels, points, size, width=width))
    except ValueError as error:
        raise BadImage(f"{item.name}: {error}") from None


@lru_cache(maxsize=4)
def _kept(path: str, changed: int) -> dict[str, NDArray[np.float64]]:
    return read_landmarks(path)
