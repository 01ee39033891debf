"""The meta files of IJB-B and IJB-C as the field passes them around.

This is the layout of the VGG pack. The files are read in blocks and checked,
and errors are counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.formats.files import MAX_LINE, at_lines, text_lines
from eval.types import Bools, Floats, Ints, Trials, name_first, nfc

_BLOCK = 1 << 20  # bytes of a file that are read together, few enough to stay in the cache
_CELLS = 1 << 18  # numbers that are looked up together
_MAX_DIGITS = 18  # of a number that surely fits into int64
_MOST_PLAIN_DIGITS = 9  # of a number that surely fits into int32
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
        FileNotFoundError: There is no pack, or none of that name.
        ValueError: There are several packs in one folder, and no name is given.
    """
    meta = Path(root) / "meta"
    there = sorted(pack.name.removesuffix(_FACES) for pack in meta.glob(f"*{_FACES}"))
    names = [pack for pack in there if pack == name] if name else there
    if not names:
        others = f" beside those of {name_first(there)}" if there else ""
        raise FileNotFoundError(
            f"{meta}: there is no {name or '..'}{_FACES}{others}; give the folder in which the "
            "pack's meta and loose_crop lie"
        )
    if len(names) > 1:
        raise ValueError(
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
        ValueError: Lines are of another kind (counted), the file is empty, or names are repeated.
    """
    names: list[str] = []
    numbers: list[tuple[int, int]] = []
    bad: list[int] = []
    columns = _columns(path, 3, (0, 1, 2))
    if columns and all(map(_is_number, columns[1])) and all(map(_is_number, columns[2])):
        names = columns[0]
        numbers = list(zip(map(int, columns[1]), map(int, columns[2]), strict=True))
    else:
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
        ValueError: Lines are of another kind, scores are not finite numbers >= 0, a face has two
            scores, or faces have no line. All are counted.
    """
    names: list[str] = []
    scores: list[float] = []
    bad: list[int] = []
    columns = _columns(path, 12, (0, 11))
    # A score that is not a number is met again below, line by line.
    with suppress(ValueError):
        names, scores = (columns[0], list(map(float, columns[1]))) if columns else ([], [])
    if not names or not all(0 <= score < np.inf for score in scores):
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
        raise ValueError(
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
        ValueError: Lines are not three integers, or labels are not 0 or 1; these are counted within
            the first block that has any, and the first is named. Or the file is empty, or pairs are
            listed with both labels; these are counted, and the first is named.
    """
    parts = []
    for first_line, text, table in _integer_blocks(Path(path), 3):
        bad = np.flatnonzero(table[:, 2] > 1)
        if bad.size:
            lines = _integers(Path(path), text, 3, first_line)[0]
            raise ValueError(
                f"{path}: {bad.size} labels are neither 0 nor 1 ({at_lines(lines[bad])}); the "
                "lines must be `template1 template2 label`"
            )
        templates: Ints | NDArray[np.int64] = table[:, :2]
        if templates.max(initial=0) < 1 << 31:
            templates = templates.astype(np.int32)
        parts.append((templates, table[:, 2].astype(np.bool_)))
    if not sum(label.size for _, label in parts):
        raise ValueError(f"{path}: the file is empty; expected lines `template1 template2 label`")
    names, rows = [], []
    for side in (0, 1):
        known, places = _distinct(np.concatenate([table[:, side] for table, _ in parts]))
        names.append(tuple(map(str, known.tolist())))
        rows.append(places)
    labels = np.concatenate([label for _, label in parts])
    del parts  # before the check, which needs as much
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
        ValueError: Lines are of another kind (counted), a template has two subjects, or the file is
            empty.
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
        raise ValueError(
            f"{path}: {len(torn)} lines give a template another subject than an earlier line "
            f"({at_lines(np.array(torn, dtype=np.int32))})"
        )
    return Side(
        np.array(list(subject_of), dtype=np.int64),
        np.array(list(subject_of.values()), dtype=np.int64),
    )


def _is_number(field: str) -> bool:
    """Whether a field is a non-negative integer that int64 surely contains."""
    return field.isascii() and field.isdecimal() and len(field) <= _MAX_DIGITS


def _refuse(path: str | Path, bad: list[int], form: str, good: int) -> None:
    """Raises ValueError for lines that do not have the right form, and for a file without lines."""
    if bad:
        raise ValueError(
            f"{path}: {len(bad)} lines are not {form} "
            f"({at_lines(np.array(bad, dtype=np.int32))}); correct them or fetch the file again"
        )
    if not good:
        raise ValueError(f"{path}: the file is empty; expected lines {form}")


def _refuse_repeated(path: str | Path, names: list[str]) -> None:
    """Raises ValueError for names of faces that are listed twice."""
    keys = list(map(nfc, names))
    if len(set(keys)) < len(keys):
        seen: set[str] = set()
        twice = []
        for key in keys:
            if key in seen:
                twice.append(key)
            seen.add(key)
        raise ValueError(
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
        raise ValueError(
            f"{path}: {len(torn)} faces are listed twice with different values "
            f"({name_first(torn)}); correct them or fetch the file again"
        )


def _refuse_contradictions(
    path: str | Path, names: list[tuple[str, ...]], rows: list[Ints], labels: Bools
) -> None:
    """Raises ValueError for pairs with both labels. names, rows: of both sides.

    Each line becomes one number, from its pair and its label, and the numbers are sorted in place.
    """
    keys = rows[0].astype(np.int64)
    keys *= len(names[1])
    keys += rows[1]
    keys *= 2
    keys += labels
    keys.sort()
    pairs = []
    # Neighbours that differ in the last bit alone are one pair with both labels.
    for start in range(0, keys.size, _CELLS):
        some = keys[start : start + _CELLS + 1]
        pairs.append(some[1:][(some[1:] == some[:-1] + 1) & (some[1:] % 2 == 1)] // 2)
    torn = np.concatenate(pairs)
    if not torn.size:
        return
    del keys
    enrol, probe = divmod(int(torn[0]), len(names[1]))
    lines = np.flatnonzero((rows[0] == enrol) & (rows[1] == probe))
    other = lines[labels[lines] != labels[lines[0]]][0]
    raise ValueError(
        f"{path}: {torn.size} pairs have both labels (first: {names[0][enrol]} {names[1][probe]}, "
        f"data lines {lines[0] + 1} and {other + 1});"
        " correct them or fetch the file again"
    )


def _distinct(column: Ints | NDArray[np.int64]) -> tuple[NDArray[np.int64], Ints]:
    """The sorted distinct values of `column`, and the place of each of its values among them."""
    lowest, highest = int(column.min()), int(column.max())
    if highest - lowest >= 1 << 24:
        known, places = np.unique(column, return_inverse=True)
        return known.astype(np.int64), places.astype(np.int32)
    table = np.zeros(highest - lowest + 1, dtype=np.int32)
    for start in range(0, column.size, _CELLS):
        table[column[start : start + _CELLS] - lowest] = 1
    offsets = np.flatnonzero(table)
    table[offsets] = np.arange(offsets.size, dtype=np.int32)
    rows = np.empty(column.size, dtype=np.int32)
    for start in range(0, column.size, _CELLS):
        rows[start : start + _CELLS] = table[column[start : start + _CELLS] - lowest]
    return offsets.astype(np.int64) + lowest, rows


def _columns(path: str | Path, width: int, places: tuple[int, ...]) -> list[list[str]] | None:
    """The columns at these places of a file of which every line has `width` fields.

    About a hundred thousand lines are read at a time. The result is None for any other file, also
    for one with comments. The callers read such a file line by line and count what is wrong with
    it.
    """
    columns: list[list[str]] = [[] for _ in places]
    with Path(path).open("rb") as file:
        rest = b""
        while block := file.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            text, rest = (rest + block[:end], block[end:]) if end else (b"", rest + block)
            if len(rest) > MAX_LINE or not _add_fields(columns, text, width, places):
                return None
    if rest.strip() and not _add_fields(columns, rest + b"\n", width, places):
        return None
    return columns


def _add_fields(columns: list[list[str]], text: bytes, width: int, places: tuple[int, ...]) -> bool:
    """Adds the fields of whole lines to the columns; False for lines of another kind."""
    text = text.replace(b"\r\n", b"\n")
    data = np.frombuffer(text, dtype=np.uint8)
    blank = (data == 32) | (data == 9) | (data == 10)
    ends = np.flatnonzero(~blank[:-1] & blank[1:]) + 1
    lines = ends.size // width
    if (
        lines * width != ends.size
        or np.count_nonzero(data == 10) != lines
        or (data[ends[width - 1 :: width]] != 10).any()
        or b"#" in text
    ):
        return False
    # Blanks of other kinds, and letters beyond ASCII, are left to the careful way.
    if ((data < 33) != blank).any() or (data > 126).any():
        return False
    starts = np.flatnonzero(np.append(True, blank[:-1]) & ~blank)
    plain = text.decode("ascii")
    for column, place in zip(columns, places, strict=True):
        bounds = zip(starts[place::width].tolist(), ends[place::width].tolist(), strict=True)
        column += [plain[start:end] for start, end in bounds]
    return True


def _integer_blocks(path: Path, width: int) -> Iterator[tuple[int, bytes, NDArray[np.int64]]]:
    """The blocks of a file of non-negative integers; blank lines are skipped.

    Yields:
        The number of the first line, the text and a table (lines, width).
    """
    line, rest = 1, b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            end = block.rfind(b"\n") + 1
            if not end:
                rest += block
                if len(rest) > MAX_LINE:
                    raise ValueError(
                        f"{path}: line {line} has over {MAX_LINE} bytes; is this a text file?"
                    )
                continue
            text, rest = rest + block[:end], block[end:]
            table = _plain_integers(text, width)
            yield line, text, _integers(path, text, width, line)[1] if table is None else table
            line += text.count(b"\n")
    if rest.strip():
        text = rest + b"\n"
        yield line, text, _integers(path, text, width, line)[1]


def _plain_integers(text: bytes, width: int) -> NDArray[np.int64] | None:
    """The numbers (lines, width) of a text in the plainest form, or None for any other text.

    In that form, every line is `width` numbers of up to 9 digits with one blank or tab between
    them.
    """
    data = np.frombuffer(text, dtype=np.uint8)
    value = data - np.uint8(48)  # the value of a digit; other bytes wrap around to 10 and more
    ends = np.flatnonzero((value[:-1] < 10) & (value[1:] >= 10))
    lines = ends.size // width
    gaps = np.count_nonzero((data == 32) | (data == 9))
    after = data[ends[width - 1 :: width] + 1] if lines * width == ends.size else data[:0]
    newlines = np.count_nonzero(data == 10)
    if (
        gaps != lines * (width - 1)
        or newlines != lines
        or after.size != lines
        or not (after == 10).all()
    ):
        return None
    if np.count_nonzero(value < 10) + gaps + newlines != data.size or not value[0] < 10:
        return None
    padded = np.concatenate([np.full(_MOST_PLAIN_DIGITS + 1, 255, dtype=np.uint8), value])
    numbers = np.zeros(ends.size, dtype=np.int32)
    there, place = np.ones(ends.size, dtype=np.uint8), 0
    ends += _MOST_PLAIN_DIGITS + 1
    while True:
        digit = padded[ends]
        there &= digit < 10
        if not there.any():
            return numbers.reshape(-1, width).astype(np.int64)
        if place == _MOST_PLAIN_DIGITS:
            return None
        numbers += (digit * there) * np.int32(10**place)
        ends -= 1
        place += 1


def _integers(
    path: Path, text: bytes, width: int, first_line: int
) -> tuple[Ints, NDArray[np.int64]]:
    """The numbers of the lines, and all integers in them: (lines,) and (lines, width).

    The text ends with a newline. The integers are computed digit place by digit place.
    """
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
        raise ValueError(
            f"{path}: {lines.size} lines are not {width} non-negative integers "
            f"({at_lines(lines)}); correct them or fetch the file again"
        )
    values = np.zeros(ends.size, dtype=np.int64)
    for place in range(int(lengths.max(initial=0))):
        there = lengths > place
        if there.all():
            values += (data[ends - place] - 48) * np.int64(10**place)
        else:
            values[there] += (data[ends[there] - place] - 48) * np.int64(10**place)
    return (np.flatnonzero(each) + first_line).astype(np.int32), values.reshape(-1, width)
