"""The meta files of IJB-B and IJB-C as the field passes them around.

This is the layout of the VGG pack.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.cores import keep_freed_memory
from likeness.eval.errors import LikenessError
from likeness.eval.formats.parquet import Column
from likeness.eval.formats.tables import Shape, Table, read_table, split
from likeness.eval.formats.trials import trials_of
from likeness.eval.types import Floats, Trials, name_first

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


def find_meta_files(root: str | Path) -> MetaFiles:
    """Finds the meta files of the pack in ROOT/meta.

    Args:
        root: The folder that contains the pack's meta and loose_crop.

    Returns:
        The paths of the files.

    Raises:
        LikenessError: There is no pack, or there are several.
    """
    meta = Path(root) / "meta"
    names = sorted(pack.name.removesuffix(_FACES) for pack in meta.glob(f"*{_FACES}"))
    if len(names) != 1:
        packs = f"{len(names)} files ..{_FACES} ({name_first(names)})"
        raise LikenessError(f"{meta}: there are {packs}; give the folder of one pack")
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
    table = _table(path, ("name", "template", "medium"))
    column = table.column("name")
    if len(column.keys) < len(column.codes):
        raise LikenessError(f"{path}: a face is listed twice; fetch the file again")
    template, medium = (_integers(path, table.column(role)) for role in ("template", "medium"))
    return Faces(tuple(column.keys), template, medium)


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
    table = _table(path, ("name", *[""] * 10, "score"))
    column, scores = table.column("name"), table.columns[1]
    assert not isinstance(scores, Column)
    score_of = np.zeros(len(column.keys) + 1)
    score_of[-1] = np.nan  # that of a face without a line
    score_of[column.codes] = scores
    score_of[column.codes[score_of[column.codes] != scores]] = np.nan  # two lines disagree
    row_of = {name: row for row, name in enumerate(column.keys)}
    values: Floats = score_of[[row_of.get(name, -1) for name in faces.names]]
    wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
    if wrong.size:
        problem = f"{faces.names[wrong[0]]!r} has no finite detector score from 0, or two"
        raise LikenessError(f"{path}: {problem}; fetch it again")
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
    for side in ("enrol", "probe"):
        _integers(path, table.column(side)._replace(codes=np.zeros(0, np.int32)))
    if not {"0", "1"}.issuperset(table.column("label").keys):
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
    table = _table(path, ("template", "subject"), separator=",")
    template, subject = (_integers(path, table.column(role)) for role in table.roles)
    _, first_at, places = np.unique(template, return_index=True, return_inverse=True)
    torn = np.flatnonzero(subject[first_at][places] != subject)
    if torn.size:
        name = template[torn[0]]
        raise LikenessError(f"{path}: template {name} has two subjects; fetch it again")
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

    return read_table(path, shape, lambda _: places, fractions=True)


def _integers(path: object, column: Column) -> NDArray[np.int64]:
    """The numbers of a column of integers of at least 0."""
    wrong = [key for key in column.keys if not (key.isdecimal() and len(key) < 19)]
    if wrong:
        raise LikenessError(f"{path}: {name_first(wrong)} are no integers from 0; fetch it again")
    numbers: NDArray[np.int64] = np.array(list(map(int, column.keys)), dtype=np.int64)
    return numbers[column.codes]
