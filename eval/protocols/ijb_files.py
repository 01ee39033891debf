"""The meta files of IJB-B and IJB-C as the field passes them around.

This is the layout of the VGG pack.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.cores import keep_freed_memory
from eval.errors import LikenessError
from eval.formats.lists import Column, Shape, Table, read_table, split
from eval.formats.trials import trials_of
from eval.types import Floats, Trials, name_first

_FACES = "_face_tid_mid.txt"


class Faces(NamedTuple):
    """The F faces of a pack.

    The number of a medium counts within its template only.

    Attributes:
        names: The image files, as listed.
        template: The template of each face, (F,) int64.
        medium: The medium of each face, (F,) int64.
    """

    names: tuple[str, ...]
    template: NDArray[np.int64]
    medium: NDArray[np.int64]


class MetaFiles(NamedTuple):
    """Where the lists of a pack lie.

    They need not all be there; each reader says so.

    Attributes:
        name: ijbb or ijbc.
        faces: The template and the medium of each face.
        landmarks: The landmarks and the detector score of each face.
        pairs: The 1:1 trials.
        galleries: G1 and G2 (IJB-B: S1 and S2).
        probes: The probes of the 1:N search.
    """

    name: str
    faces: Path
    landmarks: Path
    pairs: Path
    galleries: tuple[Path, ...]
    probes: Path


class Side(NamedTuple):
    """One side of a 1:N search.

    Attributes:
        template: T templates by first occurrence, (T,) int64.
        subject: The subject of each, (T,) int64.
    """

    template: NDArray[np.int64]
    subject: NDArray[np.int64]


def meta_files(root: str | Path, name: str = "") -> MetaFiles:
    """Finds the meta files of the pack in ROOT/meta.

    Args:
        root: The folder that contains the pack's meta and loose_crop.
        name: ijbb or ijbc, the beginning of the names of the files. If left out, it is taken from
            the file ..._face_tid_mid.txt.

    Returns:
        The paths of the files.

    Raises:
        LikenessError: There is no pack, or none of that name. There are several packs in one
            folder, and no name is given.
    """
    meta = Path(root) / "meta"
    there = sorted(pack.name.removesuffix(_FACES) for pack in meta.glob(f"*{_FACES}"))
    names = [pack for pack in there if pack == name] if name else there
    if not names:
        others = f" beside those of {name_first(there)}" if there else ""
        raise LikenessError(
            f"{meta}: there is no {name or '..'}{_FACES}{others}; give the folder in which the "
            "pack's meta and loose_crop lie"
        )
    if len(names) > 1:
        raise LikenessError(
            f"{meta}: the meta files of {len(names)} packs ({name_first(names)}); put each into a "
            "folder of its own"
        )
    start = names[0]
    galleries = tuple(sorted(meta.glob(f"{start}_1N_gallery_*.csv")))
    pairs, probes = meta / f"{start}_template_pair_label.txt", meta / f"{start}_1N_probe_mixed.csv"
    landmarks = meta / f"{start}_name_5pts_score.txt"
    return MetaFiles(start, meta / f"{start}{_FACES}", landmarks, pairs, galleries, probes)


def read_faces(path: str | Path) -> Faces:
    """Reads ijbc_face_tid_mid.txt: `name.jpg template medium`, one line per face.

    Args:
        path: The file.

    Returns:
        The faces, in the order of the file.

    Raises:
        LikenessError: Lines are of another kind, the file is empty, or names are repeated.
    """
    path = Path(path)
    column, template, medium = _table(path, ("name", "template", "medium")).columns
    assert isinstance(column, Column)
    if len(column.keys) < len(column.codes):
        seen = np.zeros(len(column.keys), np.int64)
        np.add.at(seen, column.codes, 1)
        raise LikenessError(
            f"{path}: faces are listed twice "
            f"({name_first(column.keys[i] for i in np.flatnonzero(seen > 1).tolist())}); a face "
            "belongs to one template and medium"
        )
    return Faces(tuple(column.keys), _integers(path, template), _integers(path, medium))


def read_detector_scores(path: str | Path, faces: Faces) -> Floats:
    """Reads the detector scores from ijbc_name_5pts_score.txt (`name x1 y1 .. x5 y5 score`).

    Args:
        path: The file.
        faces: The F faces, which are matched by name.

    Returns:
        The score of each face, (F,) float64.

    Raises:
        LikenessError: Lines are of another kind, scores are not finite numbers >= 0, a face has two
            scores, or faces have no line.
    """
    path = Path(path)
    column, scores = _table(path, ("name", *[""] * 10, "score")).columns
    assert isinstance(column, Column)
    if isinstance(scores, Column) or not ((scores >= 0) & (scores < np.inf)).all():
        raise LikenessError(f"{path}: scores are not finite numbers of at least 0")
    score_of = np.zeros(len(column.keys))
    score_of[column.codes] = scores
    torn = np.flatnonzero(score_of[column.codes] != scores)
    refuse_torn(path, [column.keys[code] for code in column.codes[torn].tolist()])
    row_of = {name: row for row, name in enumerate(column.keys)}
    missing = [name for name in faces.names if name not in row_of]
    if missing:
        raise LikenessError(
            f"{path}: faces have no detector score ({name_first(missing)}); fetch the file again"
        )
    values: Floats = score_of[[row_of[name] for name in faces.names]]
    return values


def read_template_pairs(path: str | Path) -> Trials:
    """Reads ijbc_template_pair_label.txt (`template1 template2 0|1`) as trials between templates.

    IJB-C has 15.7 million lines, which take 400 MB of memory.

    Args:
        path: The file.

    Returns:
        The trials, with the numbers of the templates as ids.

    Raises:
        LikenessError: Lines are not three integers, labels are not 0 or 1, the file is empty, or a
            pair is listed with both labels.
    """
    keep_freed_memory()
    table = _table(Path(path), ("enrol", "probe", "label"))
    columns = [column for column in table.columns if isinstance(column, Column)]
    for column in columns:
        _integers(path, column._replace(codes=column.codes[:0]))
    if len(columns) < 3 or not {"0", "1"}.issuperset(columns[2].keys):
        raise LikenessError(f"{path}: labels are neither 0 nor 1; fetch the file again")
    return trials_of(table)


def read_side(path: str | Path) -> Side:
    """Reads a 1:N list, ijbc_1N_gallery_G1.csv or ijbc_1N_probe_mixed.csv.

    It has a header line, then `template,subject,...`, one row per face.

    Args:
        path: The file.

    Returns:
        The templates and their subjects.

    Raises:
        LikenessError: Lines are of another kind, a template has two subjects, or the file is empty.
    """
    path = Path(path)
    columns = _table(path, ("template", "subject"), separator=",").columns
    template, subject = (_integers(path, column) for column in columns)
    _, first_at, places = np.unique(template, return_index=True, return_inverse=True)
    torn = np.flatnonzero(subject[first_at][places] != subject)
    if torn.size:
        raise LikenessError(
            f"{path}: template {template[torn[0]]} has two subjects; fetch the file again"
        )
    order = np.sort(first_at)
    return Side(template[order], subject[order])


def _table(path: Path, names: Sequence[str], separator: str = " ") -> Table:
    """The columns of a file that have a name.

    Args:
        path: The file. Where commas separate, it has a header, and may have more columns.
        names: What the columns are, in their order.
        separator: What separates the fields.
    """
    places = {name: place for place, name in enumerate(names) if name}

    def shape(sample: list[str]) -> Shape:
        width = len(split(sample[0], separator)) if separator == "," else 0
        return Shape(separator, max(width, len(names)), places, header=separator == ",")

    return read_table(path, shape, fractions=True)


def _integers(path: object, column: Column | Floats) -> NDArray[np.int64]:
    """The numbers of a column of integers of at least 0."""
    keys = column.keys if isinstance(column, Column) else []
    wrong = [key for key in keys if not (key.isdecimal() and len(key) < 19)]
    if wrong or not isinstance(column, Column):
        raise LikenessError(
            f"{path}: {name_first(wrong)} is no number of a template, medium or subject; fetch the "
            "file again"
        )
    values: NDArray[np.int64] = np.array(list(map(int, keys)), dtype=np.int64)[column.codes]
    return values


def refuse_torn(path: str | Path, torn: list[str]) -> None:
    """Raises ValueError for names of faces whose later line says something else than their first.

    Args:
        path: The file, for the message.
        torn: The names.
    """
    if torn:
        raise LikenessError(
            f"{path}: faces are listed twice with different values ({name_first(torn)}); "
            "correct them or fetch the file again"
        )
