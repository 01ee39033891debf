"""The meta files of IJB-B and IJB-C as the field passes them around.

This is the layout of the VGG pack. The files are read in blocks by pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError, first_line
from eval.formats import plain
from eval.formats.files import text_blocks
from eval.memory import keep_freed_memory
from eval.types import Bools, Floats, Ints, Trials, name_first, nfc

_BLOCK = 1 << 22  # bytes of a file that are read together, few enough to stay in the cache
_CELLS = 1 << 17  # numbers that are looked up together
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
    names, template, medium = _whole(path, ("name", "template", "medium"))
    _refuse_repeated(path, names)
    return Faces(tuple(map(nfc, names)), template, medium)


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
    scores: Floats
    names, scores = _whole(path, ("name", *[""] * 10, "score"))
    if not ((scores >= 0) & (scores < np.inf)).all():
        raise LikenessError(f"{path}: scores are not finite numbers of at least 0")
    if tuple(names) == faces.names:  # the packs list them in the same order
        return scores
    score_of: dict[str, float] = {}
    refuse_torn(
        path,
        [
            name
            for name, score in zip(names, scores.tolist(), strict=True)
            if score_of.setdefault(nfc(name), score) != score
        ],
    )
    missing = [name for name in faces.names if name not in score_of]
    if missing:
        raise LikenessError(
            f"{path}: faces have no detector score ({name_first(missing)}); fetch the file again"
        )
    return np.array([score_of[name] for name in faces.names])


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
    path = Path(path)
    firsts, seconds, parts = [], [], []
    for first, second, label in _blocks(path, ("template", "template", "label")):
        if label.max(initial=0) > 1:
            raise LikenessError(f"{path}: labels are neither 0 nor 1; fetch the file again")
        firsts.append(_short(first))
        seconds.append(_short(second))
        parts.append(label.astype(np.bool_))
    names, rows = [], []
    for side in (firsts, seconds):
        column: NDArray[Any] = np.concatenate(side)
        side.clear()
        known, places = _distinct(column)
        names.append(tuple(map(str, known.tolist())))
        rows.append(places)
    labels = np.concatenate(parts)
    _refuse_contradictions(path, names, rows, labels)
    return Trials(names[0], names[1], rows[0], rows[1], labels)


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
    template, subject = _whole(path, ("template", "subject"), separator=",")
    _, first_at, places = np.unique(template, return_index=True, return_inverse=True)
    torn = np.flatnonzero(subject[first_at][places] != subject)
    if torn.size:
        raise LikenessError(
            f"{path}: template {template[torn[0]]} has two subjects; fetch the file again"
        )
    order = np.sort(first_at)
    return Side(template[order], subject[order])


# How a column of each name is read; columns of other names are not read.
_KINDS = {
    "name": "string",
    "score": "float64",
    **dict.fromkeys(("template", "medium", "subject", "label"), "int64"),
}


def _whole(path: Path, columns: Sequence[str], separator: str = " ") -> list[Any]:
    """The columns of a whole file, as `_blocks` gives them."""
    parts = zip(*_blocks(path, columns, separator), strict=True)
    return [
        np.concatenate(part) if isinstance(part[0], np.ndarray) else list(chain(*part))
        for part in parts
    ]


def _blocks(path: Path, columns: Sequence[str], separator: str = " ") -> Iterator[list[Any]]:
    """The columns of the blocks of a file.

    Args:
        path: The file. Where commas separate, it has a header, and may have more columns.
        columns: The names of the columns, as in `_KINDS`.
        separator: What separates the fields: " ", which stands for any blanks, or ",".

    Yields:
        For each column that is read its values: a list of texts, or numbers (lines,), of which
        integers are at least 0.

    Raises:
        LikenessError: Lines are of another kind, or there is none.
    """
    is_first = True
    for text in text_blocks(path, _BLOCK):
        if is_first and separator == ",":
            header, _, text = text.partition(b"\n")
            columns = [*columns, *[""] * (header.count(b",") + 1 - len(columns))]
        parsed = _parsed(path, text, columns, separator)
        if parsed is not None:
            yield parsed
            is_first = False
    if is_first:
        raise LikenessError(f"{path}: the file is empty; expected lines `{_form(columns)}`")


def _form(columns: Sequence[str]) -> str:
    """What a line should hold, for messages."""
    return " ".join(name or "." for name in columns)


def _parsed(path: Path, text: bytes, columns: Sequence[str], separator: str) -> list[Any] | None:
    """The columns of a block of lines, which may have more blanks than one between fields.

    None where all lines are blank or comments.
    """
    import pyarrow

    try:
        return _columns(text, columns, separator)
    except pyarrow.ArrowInvalid:
        lines = (line.strip() for line in text.split(b"\n"))
        kept = (line for line in lines if line and not line.startswith(b"#"))
        if separator == " ":
            kept = (b" ".join(line.split()) for line in kept)
        rest = b"\n".join(kept)
        try:
            return _columns(rest, columns, separator) if rest else None
        except pyarrow.ArrowInvalid as error:
            raise LikenessError(
                f"{path}: lines are not `{_form(columns)}` ({first_line(error)}); correct them or "
                "fetch the file again"
            ) from None


def _columns(text: bytes, columns: Sequence[str], separator: str) -> list[Any]:
    """The columns of plain lines. Raises pyarrow.ArrowInvalid for others."""
    import pyarrow
    from pyarrow import csv

    names = [str(number) for number in range(len(columns))]
    read = [number for number in names if columns[int(number)]]
    kinds = [_KINDS[columns[int(number)]] for number in read]
    table = csv.read_csv(
        pyarrow.BufferReader(text),
        csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        csv.ParseOptions(delimiter=separator, quote_char='"' if separator == "," else False),
        csv.ConvertOptions(
            column_types=dict(zip(read, kinds, strict=True)), include_columns=read, null_values=[]
        ),
    )
    values = []
    for number, kind in zip(read, kinds, strict=True):
        column = table.column(number).combine_chunks()
        if kind == "string":
            values.append(column.to_pylist())
            continue
        array = plain.numbers(column)
        if kind == "int64" and array.min(initial=0) < 0:
            raise pyarrow.ArrowInvalid("numbers below 0")
        values.append(array)
    return values


def _refuse_repeated(path: str | Path, names: list[str]) -> None:
    """Raises ValueError for names of faces that are listed twice."""
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = []
        for key in names:
            if key in seen:
                twice.append(key)
            seen.add(key)
        raise LikenessError(
            f"{path}: faces are listed twice ({name_first(twice)}); a face belongs to one template "
            "and medium"
        )


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


def _short(column: NDArray[np.int64]) -> Ints | NDArray[np.int64]:
    """The column in int32 where its numbers, which are not negative, fit."""
    return column.astype(np.int32) if column.max(initial=0) < 1 << 31 else column


def _refuse_contradictions(
    path: str | Path, names: list[tuple[str, ...]], rows: list[Ints], labels: Bools
) -> None:
    """Raises ValueError for pairs with both labels. names, rows: of both sides."""
    lines = _maybe_contradictory(rows, labels, len(names[1]))
    # Each line becomes one number, from its pair and its label. Neighbours that differ in the last
    # bit alone are one pair with both labels.
    keys = (rows[0][lines].astype(np.int64) * len(names[1]) + rows[1][lines]) * 2 + labels[lines]
    keys.sort()
    torn = keys[1:][(keys[1:] == keys[:-1] + 1) & (keys[1:] % 2 == 1)] // 2
    if not torn.size:
        return
    enrol, probe = divmod(int(torn[0]), len(names[1]))
    raise LikenessError(
        f"{path}: pairs have both labels (first: {names[0][enrol]} {names[1][probe]}); correct "
        "them or fetch the file again"
    )


def _maybe_contradictory(rows: list[Ints], labels: Bools, num_columns: int) -> NDArray[np.int64]:
    """The lines whose pair has both labels, and a few others.

    The pairs of the rarer label are marked in a table of at least 16 places for each, by the last
    bits of their numbers. A pair of the other label may be one of them only if its place is marked.
    """
    rarer = bool(2 * np.count_nonzero(labels) < labels.size)
    lines = np.flatnonzero(labels == rarer)
    last_bits = (1 << (16 * lines.size + 16).bit_length()) - 1
    marked = np.zeros(last_bits + 1, dtype=np.bool_)
    marked[(rows[0][lines].astype(np.int64) * num_columns + rows[1][lines]) & last_bits] = True
    marked_rows = []
    for start in range(0, labels.size, _CELLS):
        part = slice(start, start + _CELLS)
        places = rows[0][part].astype(np.int64)
        places *= num_columns
        places += rows[1][part]
        places &= last_bits
        marked_rows.append(np.flatnonzero(marked.take(places)) + start)
    return np.concatenate(marked_rows)


def _distinct(column: NDArray[Any]) -> tuple[NDArray[np.int64], Ints]:
    """The sorted distinct values of `column`, and the place of each of its values among them."""
    lowest, highest = int(column.min()), int(column.max())
    if highest - lowest >= 1 << 24:
        known, places = np.unique(column, return_inverse=True)
        return known.astype(np.int64), places.astype(np.int32)
    occurs = np.zeros(highest - lowest + 1, dtype=np.bool_)
    for start in range(0, column.size, _CELLS):
        occurs[column[start : start + _CELLS] - np.int64(lowest)] = True
    offsets = np.flatnonzero(occurs)
    table = np.zeros(occurs.size, dtype=np.int32)
    table[offsets] = np.arange(offsets.size, dtype=np.int32)
    rows = np.empty(column.size, dtype=np.int32)
    for start in range(0, column.size, _CELLS):
        place = column[start : start + _CELLS] - np.int64(lowest)
        table.take(place, out=rows[start : start + _CELLS], mode="clip")  # none is outside
    return offsets.astype(np.int64) + lowest, rows
