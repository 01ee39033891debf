"""The meta files of IJB-B and IJB-C as the field passes them around (the VGG pack; field-face.md 1.6): read in blocks, checked, errors counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.files import at_lines, text_lines
from eval.types import Floats, Ints, Trials, name_first

_BLOCK = 1 << 23  # bytes of a file of integers held at once
_MAX_DIGITS = 18  # what int64 surely holds


class Faces(NamedTuple):
    """F faces: names (the image files), and the template and medium of each, (F,) int64. A medium's number counts within its template only."""

    names: tuple[str, ...]
    template: NDArray[np.int64]
    medium: NDArray[np.int64]


class Side(NamedTuple):
    """One side of a 1:N search: T templates and the subject of each, (T,) int64, by first occurrence."""

    template: NDArray[np.int64]
    subject: NDArray[np.int64]


def read_faces(path: str | Path) -> Faces:
    """Reads ijbc_face_tid_mid.txt: `name.jpg template medium`, one line per face.

    ValueError: lines of another kind (counted), an empty file, repeated names.
    """
    names, numbers, bad = [], [], []
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
    """Reads ijbc_name_5pts_score.txt (`name x1 y1 .. x5 y5 score`): the detector score of each face (F,), matched by name.

    ValueError: lines of another kind, scores that are no finite number >= 0, faces without a line; all counted.
    """
    score_of: dict[str, float] = {}
    bad = []
    for line, text in text_lines(path):
        fields = text.split()
        try:
            score = float(fields[-1])
        except ValueError:
            score = np.nan
        if len(fields) != 12 or not 0 <= score < np.inf:
            bad.append(line)
        else:
            score_of[fields[0]] = score
    _refuse(path, bad, "`name x1 y1 x2 y2 x3 y3 x4 y4 x5 y5 score`, the score at least 0", len(score_of))
    missing = [name for name in faces.names if name not in score_of]
    if missing:
        raise ValueError(f"{path}: {len(missing)} of {len(faces.names)} faces have no detector score ({name_first(missing)}); fetch the file again")
    return np.array([score_of[name] for name in faces.names])


def read_template_pairs(path: str | Path) -> Trials:
    """Reads ijbc_template_pair_label.txt (`template1 template2 0|1`, 15.7 million lines) as trials between templates, named by their numbers.

    ValueError: lines that are not three integers or a label other than 0 and 1 (counted within the first block that has any, the first named), an empty file.
    """
    parts = []
    for lines, table in _integer_blocks(Path(path), 3):
        bad = np.flatnonzero(table[:, 2] > 1)
        if bad.size:
            raise ValueError(f"{path}: {bad.size} labels are neither 0 nor 1 ({at_lines(lines[bad])}); the lines must be `template1 template2 label`")
        parts.append((table[:, :2].astype(np.int32) if table[:, :2].max(initial=0) < 1 << 31 else table[:, :2], table[:, 2].astype(np.bool_)))
    if not sum(label.size for _, label in parts):
        raise ValueError(f"{path}: the file is empty; expected lines `template1 template2 label`")
    names, rows = [], []
    for side in (0, 1):
        column = np.concatenate([table[:, side] for table, _ in parts])
        known = np.unique(column)
        names.append(tuple(map(str, known.tolist())))
        rows.append(_rows(known, column))
    return Trials(names[0], names[1], rows[0], rows[1], np.concatenate([label for _, label in parts]))


def read_side(path: str | Path) -> Side:
    """Reads a 1:N list, ijbc_1N_gallery_G1.csv or ijbc_1N_probe_mixed.csv: a header line, then `template,subject,...`, one row per face.

    ValueError: lines of another kind (counted), a template with two subjects, an empty file.
    """
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
        raise ValueError(f"{path}: {len(torn)} lines give a template another subject than an earlier line ({at_lines(np.array(torn, dtype=np.int32))})")
    return Side(np.array(list(subject_of), dtype=np.int64), np.array(list(subject_of.values()), dtype=np.int64))


def _is_number(field: str) -> bool:
    return field.isascii() and field.isdecimal() and len(field) <= _MAX_DIGITS


def _refuse(path: str | Path, bad: list[int], wanted: str, good: int) -> None:
    if bad:
        raise ValueError(f"{path}: {len(bad)} lines are not {wanted} ({at_lines(np.array(bad, dtype=np.int32))}); correct them or fetch the file again")
    if not good:
        raise ValueError(f"{path}: the file is empty; expected lines {wanted}")


def _refuse_repeated(path: str | Path, names: list[str]) -> None:
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = [one for one in names if one in seen or seen.add(one)]  # type: ignore[func-returns-value]
        raise ValueError(f"{path}: {len(twice)} faces are listed twice ({name_first(twice)}); a face belongs to one template and medium")


def _rows(known: NDArray[np.int64], column: NDArray[np.int64]) -> Ints:
    """The place of each value of `column` among the sorted `known`."""
    span = int(known[-1] - known[0]) + 1
    if span > 1 << 24:
        return np.searchsorted(known, column).astype(np.int32)
    table = np.zeros(span, dtype=np.int32)
    table[known - known[0]] = np.arange(known.size, dtype=np.int32)
    places: Ints = table[column - known[0]]
    return places


def _integer_blocks(path: Path, width: int) -> Iterator[tuple[Ints, NDArray[np.int64]]]:
    """Line numbers and a (lines, width) table for each block of a file of non-negative integers; blank lines are skipped."""
    line, rest = 1, b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if not end:
                rest += block
                continue
            text, rest = rest + block[:end], block[end:]
            yield _integers(path, text, width, line)
            line += text.count(b"\n")
    if rest.strip():
        yield _integers(path, rest + b"\n", width, line)


def _integers(path: Path, text: bytes, width: int, first_line: int) -> tuple[Ints, NDArray[np.int64]]:
    """All numbers of the lines, digit place by digit place. text ends with a newline."""
    data = np.frombuffer(text, dtype=np.uint8)
    digit = (data >= 48) & (data <= 57)
    ends = np.flatnonzero(digit[:-1] & ~digit[1:])  # the last byte is a newline
    lengths = ends - np.flatnonzero(digit & np.append(True, ~digit[:-1])) + 1
    newlines = np.flatnonzero(data == 10)
    each = np.diff(np.searchsorted(ends, newlines), prepend=0)
    strange = np.flatnonzero(~digit & (data != 32) & (data != 9) & (data != 10) & (data != 13))
    wrong = (each != width) & (each != 0)
    wrong[np.searchsorted(newlines, strange)] = True
    wrong[np.searchsorted(newlines, ends[lengths > _MAX_DIGITS])] = True
    if wrong.any():
        lines = (np.flatnonzero(wrong) + first_line).astype(np.int32)
        raise ValueError(f"{path}: {lines.size} lines are not {width} non-negative integers ({at_lines(lines)}); correct them or fetch the file again")
    values = np.zeros(ends.size, dtype=np.int64)
    for place in range(int(lengths.max(initial=0))):
        there = lengths > place
        if there.all():
            values += (data[ends - place] - 48) * np.int64(10**place)
        else:
            values[there] += (data[ends[there] - place] - 48) * np.int64(10**place)
    return (np.flatnonzero(each) + first_line).astype(np.int32), values.reshape(-1, width)
