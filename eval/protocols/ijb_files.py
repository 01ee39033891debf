"""The meta files of IJB-B and IJB-C as the field passes them around.

This is the layout of the VGG pack. The files are read in blocks and checked,
and errors are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.files import MAX_LINE, at_lines, text_blocks, text_lines
from eval.formats.integers import MAX_DIGITS, careful_table, numbers_at, plain_table
from eval.memory import keep_freed_memory
from eval.types import Bools, Floats, Ints, Trials, name_first, nfc

_BLOCK = 1 << 20  # bytes of a file that are read together, few enough to stay in the cache
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
        LikenessError: Lines are of another kind (counted), the file is empty, or names are
            repeated.
    """
    columns = _columns(path, 3, (0,), (1, 2))
    if columns is not None:
        _refuse_repeated(path, columns.texts[0])
        return Faces(tuple(columns.texts[0]), *columns.numbers)
    names: list[str] = []
    numbers: list[tuple[int, int]] = []
    bad: list[int] = []
    for line, text in text_lines(path):
        fields = text.split()
        if len(fields) == 3 and _is_number(fields[1]) and _is_number(fields[2]):
            names.append(fields[0])
            numbers.append((int(fields[1]), int(fields[2])))
        else:
            bad.append(line)
    _refuse(path, bad, "`name.jpg template medium`", len(names))
    _refuse_repeated(path, names)
    table = np.array(numbers, dtype=np.int64)
    return Faces(tuple(names), table[:, 0], table[:, 1])


def read_detector_scores(path: str | Path, faces: Faces) -> Floats:
    """Reads the detector scores from ijbc_name_5pts_score.txt (`name x1 y1 .. x5 y5 score`).

    Args:
        path: The file.
        faces: The F faces, which are matched by name.

    Returns:
        The score of each face, (F,) float64.

    Raises:
        LikenessError: Lines are of another kind, scores are not finite numbers >= 0, a face has two
            scores, or faces have no line. All are counted.
    """
    names: list[str] = []
    scores: list[float] = []
    bad: list[int] = []
    columns = _columns(path, 12, (0, 11))
    # A score that is not a number is met again below, line by line.
    with suppress(ValueError):
        if columns is not None:
            names, scores = columns.texts[0], list(map(float, columns.texts[1]))
    values = np.array(scores)
    if not scores or not ((values >= 0) & (values < np.inf)).all():
        names, scores = [], []
        for line, text in text_lines(path):
            fields = text.split()
            try:
                score = float(fields[-1])
            except ValueError:
                score = np.nan
            if len(fields) != 12 or not 0 <= score < np.inf:
                bad.append(line)
            else:
                names.append(fields[0])
                scores.append(score)
    _refuse(
        path, bad, "`name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score`, the score at least 0", len(names)
    )
    if tuple(names) == faces.names:  # the packs list them in the same order
        return np.array(scores)
    score_of: dict[str, float] = {}
    refuse_torn(
        path,
        [
            name
            for name, score in zip(names, scores, strict=True)
            if score_of.setdefault(nfc(name), score) != score
        ],
    )
    missing = [name for name in faces.names if nfc(name) not in score_of]
    if missing:
        raise LikenessError(
            f"{path}: {len(missing)} of {len(faces.names)} faces have no detector score "
            f"({name_first(missing)}); fetch the file again"
        )
    return np.array([score_of[nfc(name)] for name in faces.names])


def read_template_pairs(path: str | Path) -> Trials:
    """Reads ijbc_template_pair_label.txt (`template1 template2 0|1`) as trials between templates.

    IJB-C has 15.7 million lines, which take 400 MB of memory.

    Args:
        path: The file.

    Returns:
        The trials, with the numbers of the templates as ids.

    Raises:
        LikenessError: Lines are not three integers, or labels are not 0 or 1; these are counted
            within the first block that has any, and the first is named. Or the file is empty, or
            pairs are listed with both labels; these are counted, and the first is named.
    """
    keep_freed_memory()
    firsts, seconds, parts = [], [], []
    for first_line, text, (first, second, label) in _integer_blocks(Path(path), 3):
        bad = np.flatnonzero(label > 1)
        if bad.size:
            lines = careful_table(Path(path), text, 3, first_line)[0]
            raise LikenessError(
                f"{path}: {bad.size} labels are neither 0 nor 1 ({at_lines(lines[bad])}); the "
                "lines must be `template1 template2 label`"
            )
        firsts.append(_short(first))
        seconds.append(_short(second))
        parts.append(label.astype(np.bool_))
    if not sum(label.size for label in parts):
        raise LikenessError(
            f"{path}: the file is empty; expected lines `template1 template2 label`"
        )
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
        LikenessError: Lines are of another kind (counted), a template has two subjects, or the file
            is empty.
    """
    side = _plain_side(Path(path))
    return _careful_side(path) if side is None else side


def _plain_side(path: Path) -> Side | None:
    """The side of a file in the plainest form, without faults; None for any other file.

    In that form there is a header line, and then every line begins with two numbers of up to 8
    digits, each with a comma or the line's end behind it. Everything is printable ASCII.
    """
    templates, subjects = [], []
    for number, text in enumerate(text_blocks(path, _BLOCK)):
        lines = text
        if not number:
            header, _, lines = text.partition(b"\n")
            if not re.fullmatch(rb"[A-Za-z][ -~]*,[ -~]*", header) or len(header) > MAX_LINE:
                return None
        columns = _first_two(lines) if lines else [np.empty(0, dtype=np.int64)] * 2
        if columns is None:
            return None
        templates.append(columns[0])
        subjects.append(columns[1])
    if not sum(column.size for column in templates):
        return None
    template, subject = np.concatenate(templates), np.concatenate(subjects)
    _, first_at, places = np.unique(template, return_index=True, return_inverse=True)
    if not (subject[first_at][places] == subject).all():
        return None
    order = np.sort(first_at)
    return Side(template[order], subject[order])


def _first_two(text: bytes) -> list[NDArray[np.int64]] | None:
    """The first two numbers of every line of `_plain_side`, or None."""
    data = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((data == 44) | (data == 10))
    at_newline = data[ends] == 10
    newlines = ends[at_newline]
    if np.count_nonzero((data < 32) | (data > 126)) != newlines.size or data[-1] != 10:
        return None
    first = np.append(0, np.flatnonzero(at_newline)[:-1] + 1)  # of `ends`, in each line
    starts = np.append(0, newlines[:-1] + 1)
    if at_newline[first].any() or (newlines - starts).max() > MAX_LINE:
        return None
    columns = []
    for place in (first, first + 1):
        lengths = ends[place] - starts
        column = numbers_at(text, ends[place], lengths) if lengths.all() else None
        if column is None:
            return None
        columns.append(column)
        starts = ends[place] + 1
    return columns


def _careful_side(path: str | Path) -> Side:
    """The side of any file, read line by line; see `read_side`."""
    subject_of: dict[int, int] = {}
    bad, torn = [], []
    for line, text in text_lines(path):
        fields = text.split(",", 2)
        if len(fields) >= 2 and _is_number(fields[0].strip()) and _is_number(fields[1].strip()):
            template, subject = int(fields[0]), int(fields[1])
            if subject_of.setdefault(template, subject) != subject:
                torn.append(line)
        elif line > 1 or len(fields) < 2:
            bad.append(line)
    _refuse(path, bad, "`template,subject,...`", len(subject_of))
    if torn:
        raise LikenessError(
            f"{path}: {len(torn)} lines give a template another subject than an earlier line "
            f"({at_lines(np.array(torn, dtype=np.int32))})"
        )
    return Side(
        np.array(list(subject_of), dtype=np.int64),
        np.array(list(subject_of.values()), dtype=np.int64),
    )


def _is_number(field: str) -> bool:
    """Whether a field is a non-negative integer that int64 surely contains."""
    return field.isascii() and field.isdecimal() and len(field) <= MAX_DIGITS


def _refuse(path: str | Path, bad: list[int], form: str, good: int) -> None:
    """Raises ValueError for lines that do not have the right form, and for a file without lines."""
    if bad:
        raise LikenessError(
            f"{path}: {len(bad)} lines are not {form} "
            f"({at_lines(np.array(bad, dtype=np.int32))}); correct them or fetch the file again"
        )
    if not good:
        raise LikenessError(f"{path}: the file is empty; expected lines {form}")


def _refuse_repeated(path: str | Path, names: list[str]) -> None:
    """Raises ValueError for names of faces that are listed twice."""
    keys = names if all(map(str.isascii, names)) else list(map(nfc, names))
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = []
        for key in keys:
            if key in seen:
                twice.append(key)
            seen.add(key)
        raise LikenessError(
            f"{path}: {len(twice)} faces are listed twice ({name_first(twice)}); a face belongs to "
            "one template and medium"
        )


def refuse_torn(path: str | Path, torn: list[str]) -> None:
    """Raises ValueError for names of faces whose later line says something else than their first.

    Args:
        path: The file, for the message.
        torn: The names.
    """
    if torn:
        raise LikenessError(
            f"{path}: {len(torn)} faces are listed twice with different values "
            f"({name_first(torn)}); correct them or fetch the file again"
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
    lines = np.flatnonzero((rows[0] == enrol) & (rows[1] == probe))
    other = lines[labels[lines] != labels[lines[0]]][0]
    raise LikenessError(
        f"{path}: {torn.size} pairs have both labels (first: {names[0][enrol]} {names[1][probe]}, "
        f"data lines {lines[0] + 1} and {other + 1});"
        " correct them or fetch the file again"
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


class _Fields(NamedTuple):
    """Columns of a file: those that are kept as text, and those that are numbers."""

    texts: list[list[str]]
    numbers: list[NDArray[np.int64]]


def _columns(
    path: str | Path, width: int, texts: tuple[int, ...], numbers: tuple[int, ...] = ()
) -> _Fields | None:
    """The columns at these places of a file of which every line has `width` fields.

    About a hundred thousand lines are read at a time. The result is None for any other file, also
    for an empty one, one with comments, and one with numbers of more than 8 digits. The callers
    read such a file line by line and count what is wrong with it.
    """
    blocks = []
    for text in text_blocks(Path(path), _BLOCK):
        fields = _fields(text.replace(b"\r\n", b"\n"), width, texts, numbers)
        if fields is None:
            return None
        blocks.append(fields)
    if not blocks:
        return None
    return _Fields(
        [list(chain(*parts)) for parts in zip(*(block.texts for block in blocks), strict=True)],
        [np.concatenate(parts) for parts in zip(*(block.numbers for block in blocks), strict=True)],
    )


def _fields(
    text: bytes, width: int, texts: tuple[int, ...], numbers: tuple[int, ...]
) -> _Fields | None:
    """The columns of whole lines of ASCII with blanks or tabs between; None for other lines."""
    data = np.frombuffer(text, dtype=np.uint8)
    gaps = np.flatnonzero(data <= 32)
    lengths = gaps - np.append(-1, gaps[:-1]) - 1
    ends, lengths = gaps[lengths > 0], lengths[lengths > 0]  # of fields
    lines = ends.size // width
    between = data.take(gaps)
    newlines = between == 10
    if (
        lines * width != ends.size
        or np.count_nonzero(newlines) != lines
        or (data[ends[width - 1 :: width]] != 10).any()
        or b"#" in text
    ):
        return None
    # Blanks of other kinds, and letters beyond ASCII, are left to the careful way.
    if not (newlines | (between == 32) | (between == 9)).all() or data.max() > 126:
        return None
    parsed = [numbers_at(text, ends[place::width], lengths[place::width]) for place in numbers]
    known = [column for column in parsed if column is not None]
    if len(known) < len(parsed):
        return None
    plain = text.decode("ascii")
    columns = []
    for place in texts:
        behind = ends[place::width]
        bounds = zip((behind - lengths[place::width]).tolist(), behind.tolist(), strict=True)
        columns.append([plain[start:end] for start, end in bounds])
    return _Fields(columns, known)


def _integer_blocks(
    path: Path, width: int
) -> Iterator[tuple[int, bytes, Sequence[NDArray[np.int64]]]]:
    """The blocks of a file of non-negative integers; blank lines are skipped.

    Yields:
        The number of the first line, the text and its columns, `width` times (lines,).
    """
    line = 1
    for text in text_blocks(path, _BLOCK):
        columns = plain_table(text, width)
        if columns is None:
            yield line, text, list(careful_table(path, text, width, line)[1].T)
            line += text.count(b"\n")
        else:
            yield line, text, columns
            line += columns[0].size
