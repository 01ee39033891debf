"""Text tables (trials, scores, mappings), read in blocks of bounded size.

`atomic_path`, which writes files whole or not at all, can be imported from here too.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError, first_line
from eval.formats import plain
from eval.formats.writing import atomic_path as atomic_path
from eval.progress import report
from eval.types import Floats, Ints, nfc, quoted

MAX_LINE = 65_536  # bytes
# The widest tables have half as many fields in a line. The bound keeps a file of another kind from
# filling the memory.
MAX_FIELDS = 8
# A gzip file may expand to EXPANSION times its size, or to 256 MB if that is more, because lists of
# short lines compress well.
EXPANSION = 100
FREE_EXPANSION = 1 << 28

_BLOCK = 1 << 24  # bytes
_QUICK_FROM = 1 << 20  # bytes of a block; importing pyarrow pays for no less
_MAX_JSON = 1 << 26  # bytes
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_SAMPLE = 1_000  # the lines that decide how fields are separated; all later lines have to comply


def bounded(path: Path, limit: int) -> bytes:
    """Reads the bytes of a file, a pipe or a device.

    Pipes and devices do not state their size, and some never end.

    Args:
        path: What to read.
        limit: How many bytes are allowed.

    Raises:
        LikenessError: There are more bytes than `limit`.
        OSError: It cannot be read.
    """
    # One read of everything that is allowed would take that much memory for any file.
    content = io.BytesIO()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if content.write(block) and content.tell() > limit:
                raise LikenessError(
                    f"{path}: it has over {limit} bytes, but at most so many are read of a file of "
                    "this kind"
                )
    return content.getvalue()


def json_object(path: Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object, as Likeness writes beside a run.

    Args:
        path: The file.

    Raises:
        LikenessError: It is no JSON in UTF-8, holds something else than an object, or is too large.
        OSError: It cannot be read.
    """
    try:
        content = json.loads(bounded(path, _MAX_JSON).decode())
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise LikenessError(
            f"{path} is damaged: it is no JSON ({first_line(error)}); restore it or remove it"
        ) from None
    if not isinstance(content, dict):
        raise LikenessError(
            f"{path} is damaged: it holds a {type(content).__name__} in place of an object; "
            "restore it or remove it"
        )
    return content


def refuse_device(path: Path) -> None:
    """Raises ValueError for what is there and is neither a file nor a folder.

    A pipe may never send anything, and a link to /dev/zero in a folder of others fills the memory.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise LikenessError(
            f"{path} is a pipe, a device or a socket, but only a file can be read at any place; "
            "save it as a file first"
        )


class Column(NamedTuple):
    """The P fields of one column.

    Attributes:
        keys: The distinct fields, in the order of their first occurrence.
        codes: (P,) the number of each field among the keys.
    """

    keys: list[bytes]
    codes: Ints

    def texts(self, path: Path) -> tuple[str, ...]:
        """Returns the distinct fields as text. Raises ValueError if they are not UTF-8."""
        try:
            return tuple(key.decode() for key in self.keys)
        except UnicodeDecodeError as error:
            raise LikenessError(
                f"{path}: {quoted(error.object)} is not UTF-8 text; convert the file to UTF-8"
            ) from None


def in_nfc(column: Column) -> Column:
    """Returns the column with its fields in Unicode NFC (see eval.types.nfc).

    Fields that are equal in NFC get one number.
    """
    if all(map(bytes.isascii, column.keys)):
        return column
    number: dict[bytes, int] = {}
    codes = np.array(
        [number.setdefault(_bytes_in_nfc(key), len(number)) for key in column.keys], dtype=np.int32
    )
    return Column(list(number), codes[column.codes])


def _bytes_in_nfc(field: bytes) -> bytes:
    """One field in Unicode NFC."""
    try:
        return nfc(field.decode()).encode()
    except UnicodeDecodeError:
        return field  # `Column.texts` refuses it, if it is read


def as_stored(root: Path, name: str) -> Path:
    """Returns root/name with the names that the file system has.

    Ids are kept in Unicode NFC, but files that come from macOS have names in NFD. So where there is
    no such path, one that is equal to it in NFC is looked for.

    Args:
        root: A folder.
        name: A relative path.

    Returns:
        The path that is there; root/name if there is none.
    """
    whole = root / name
    if name.isascii() or os.path.lexists(whole):
        return whole
    place = root
    for part in Path(name).parts:
        if not os.path.lexists(place / part):
            try:
                part = next(
                    entry
                    for entry in sorted(os.listdir(place))
                    if normalize("NFC", entry) == normalize("NFC", part)
                )
            except (OSError, StopIteration):
                return whole
        place = place / part
    return place


class Table(NamedTuple):
    """A text table of P lines.

    Attributes:
        path: The file.
        layout: What the header line says, if there is one.
        columns: The columns. One of decimal fractions is an array (P,) of numbers, with NaN for a
            field that is not a number.
    """

    path: Path
    layout: str | None
    columns: list[Column | Floats]


def read_table(
    path: str | Path,
    fits: Callable[[Sequence[bytes]], bool],
    header: Callable[[Sequence[bytes]], str | None],
    *,
    fractions: bool = False,
) -> Table:
    """Reads lines of equally many fields that blanks, tabs or commas separate.

    Blank lines and lines that begin with # are skipped, and files compressed by gzip are read too.
    The separator is the one under which most of the first lines fit. It takes about 200 MB of
    memory beside the result.

    Args:
        path: The file.
        fits: Whether the fields look like a line of the kind that is read.
        header: The layout (one letter for each column) if the fields of the first line are a
            header, else None.
        fractions: Keeps columns of decimal fractions as numbers; see `_Columns`.

    Returns:
        The table.

    Raises:
        LikenessError: The file is empty or binary; lines are too long, have over MAX_FIELDS fields,
            or differ in their number of fields.
    """
    path = Path(path)
    layout: str | None = None
    columns: _Columns | None = None
    for block in text_blocks(path):
        if columns is None:
            sample = list(islice(_data_lines(block, path), _SAMPLE))
            if not sample:
                continue
            separator, layout = _separator(sample, fits, header)
            columns = _Columns(path, separator, layout, fractions)
            if layout is not None:
                block = _after_first_line(block)
        columns.add(block)
    if columns is None or not columns.width:
        raise LikenessError(
            f"{path}: the file is empty or has only comments; expected one line for each trial or "
            "item"
        )
    return Table(path, layout, columns.joined())


def _data_lines(block: bytes, path: Path) -> Iterator[bytes]:
    """The lines of a block that are neither blank nor comments.

    Raises LikenessError for lines that are too long, and for control characters.
    """
    if _CONTROL.search(block):
        raise LikenessError(
            f"{path}: not a text file, since there are control characters (UTF-16 has them too: "
            "save as UTF-8)"
        )
    for line in block.split(b"\n"):
        if len(line) > MAX_LINE:
            raise LikenessError(
                f"{path}: a line has over {MAX_LINE} bytes ({quoted(line)}); is this a text file?"
            )
        bare = line.strip()
        if bare and not bare.startswith(b"#"):
            yield line


def _after_first_line(block: bytes) -> bytes:
    """What follows the first line of a block that is neither blank nor a comment."""
    start = 0
    while True:
        end = block.index(b"\n", start) + 1
        if (bare := block[start:end].strip()) and not bare.startswith(b"#"):
            return block[end:]
        start = end


class _Columns:
    """The columns of a table while its blocks are read.

    Whether a column is kept as numbers or as text follows from the fields of the first block. With
    `fractions`, columns of decimal fractions are kept as numbers; these are scores, which are
    mostly distinct. With a header that is only its column "s". Where several columns are fractions
    and no header says which is "s", all are kept as text, because ids may be fractions too; the
    caller then has to decide.
    """

    def __init__(
        self, path: Path, separator: bytes | None, layout: str | None, fractions: bool
    ) -> None:
        self._path, self._separator = path, separator
        self._layout, self._fractions = layout, fractions
        self.width = 0  # unknown
        self._numeric: list[bool] = []
        # The number of each distinct field, where a new field takes the next number.
        self._indices: list[defaultdict[bytes, int]] = []
        # The same for fields of plain lines, which may have blanks around them.
        self._spelt: list[dict[bytes, int]] = []
        self._parts: list[list[NDArray[np.generic]]] = []

    def _begin(self, block: bytes) -> bool:
        """Finds the width and the kinds of the columns; False where a block has no data."""
        first = next(_data_lines(block, self._path), None)
        if first is None:
            return False
        self.width = len(_fields(first, self._separator))
        if self.width > MAX_FIELDS:
            raise LikenessError(
                f"{self._path}: {self.width} fields in each line, but at most {MAX_FIELDS} are "
                "read; is this the right file?"
            )
        self._numeric = [False] * self.width
        if self._fractions and self._layout:
            self._numeric = [role == "s" for role in self._layout.ljust(self.width)[: self.width]]
        elif self._fractions:
            numeric = [all_fractions(keys) for keys in self._keys(block)]
            self._numeric = numeric if sum(numeric) < 2 else self._numeric
        self._indices = [defaultdict(count().__next__) for _ in range(self.width)]
        self._spelt = [{} for _ in range(self.width)]
        self._parts = [[] for _ in range(self.width)]
        return True

    def _keys(self, block: bytes) -> list[list[bytes]]:
        """The fields of each column, without repetitions where the lines are plain."""
        plain_columns = self._plain(block)
        keys = [column.keys for column in plain_columns or () if isinstance(column, plain.Coded)]
        if not keys or any(plain.odd(column, first=not c) for c, column in enumerate(keys)):
            return self._split(block)
        return [[key.strip() for key in column] for column in keys]

    def add(self, block: bytes) -> None:
        """Adds the fields of all data lines of a block."""
        if (self.width or self._begin(block)) and not self._add_plain(block):
            for c, fields in enumerate(self._split(block)):
                self._parts[c].append(
                    as_floats(fields) if self._numeric[c] else _numbers(self._indices[c], fields)
                )

    def _plain(self, block: bytes) -> list[plain.Coded | Floats] | None:
        """The columns of a large block of plain lines, or None for other lines."""
        if len(block) < _QUICK_FROM:
            return None
        return plain.read(block, self._separator, self._numeric, MAX_LINE)

    def _add_plain(self, block: bytes) -> bool:
        """Adds the fields of a block if all of its lines are plain and hold data."""
        columns = self._plain(block)
        if columns is None:
            return False
        fresh = [
            [key for key in column.keys if key not in spelt]
            if isinstance(column, plain.Coded)
            else []
            for spelt, column in zip(self._spelt, columns, strict=True)
        ]
        if any(plain.odd(keys, first=not c) for c, keys in enumerate(fresh)):
            return False
        for c, column in enumerate(columns):
            if isinstance(column, plain.Coded):
                spelt, index = self._spelt[c], self._indices[c]
                spelt.update((key, index[key.strip()]) for key in fresh[c])
                self._parts[c].append(_numbers(spelt, column.keys)[column.codes])
            else:
                self._parts[c].append(column)
        return True

    def _split(self, block: bytes) -> list[list[bytes]]:
        """The fields of each column of any block."""
        rows = []
        for line in _data_lines(block, self._path):
            row = _fields(line, self._separator)
            if len(row) != self.width:
                raise LikenessError(
                    f"{self._path}: lines differ in their number of fields; the first has "
                    f"{self.width}, and {quoted(line.decode(errors='replace'))} has {len(row)}"
                )
            rows.append(row)
        return [list(column) for column in zip(*rows, strict=True)] or [[]] * self.width

    def joined(self) -> list[Column | Floats]:
        """The columns of all blocks. The blocks are given up, to save memory."""
        columns: list[Column | Floats] = []
        for is_numeric, index, parts in zip(self._numeric, self._indices, self._parts, strict=True):
            joined = np.concatenate(parts)
            parts.clear()
            if is_numeric:
                columns.append(cast(Floats, joined))
            else:
                columns.append(in_nfc(Column(list(index), cast(Ints, joined))))
        return columns


def _numbers(index: dict[bytes, int], fields: Sequence[bytes]) -> Ints:
    """The number of each field; a defaultdict gives a new field the next number."""
    return np.fromiter(map(index.__getitem__, fields), dtype=np.int32, count=len(fields))


def _fields(line: bytes, separator: bytes | None) -> list[bytes]:
    """The fields of a line."""
    if separator is None:
        return line.split()
    return [field.strip() for field in line.split(separator)]


def _separator(
    sample: list[bytes],
    fits: Callable[[Sequence[bytes]], bool],
    header: Callable[[Sequence[bytes]], str | None],
) -> tuple[bytes | None, str | None]:
    """The separator (None for blanks and tabs) that suits the sample best, and the header's layout.

    Of equally good separators the earlier one is taken.
    """
    best: tuple[tuple[int, ...], bytes | None, str | None] | None = None
    for separator in (b"\t", None, b","):
        # Where there are too many fields, the last one contains all of the rest.
        rows = [[field.strip() for field in line.split(separator, MAX_FIELDS)] for line in sample]
        layout = header(rows[0])
        width = None if layout is None else len(layout)
        good = [
            row
            for row in rows[layout is not None :]
            if fits(row) and len(row) == (width or len(row))
        ]
        # "a, b, 1" also splits at its blanks, into ids that end in a comma. "1 a\tb" also splits at
        # its tab, into fewer fields.
        no_stray = separator is not None or not any(
            field[:1] == b"," or field[-1:] == b"," for row in good for field in row
        )
        rank = (
            int(layout is not None),
            len(good),
            int(no_stray or layout is not None),
            sum(map(len, good)),
            sum(map(len, rows)),
        )
        if best is None or rank > best[0]:
            best = rank, separator, layout
    assert best is not None
    return best[1], best[2]


def as_floats(fields: Sequence[bytes]) -> Floats:
    """Turns fields into numbers (P,), with NaN for a field that is not a number.

    Example:
        >>> as_floats([b"0.5", b"x"])
        array([0.5, nan])
    """
    try:
        values = np.fromiter(map(float, fields), dtype=np.float64, count=len(fields))
        if b"_" not in b" ".join(fields):  # Python reads 1_0 as ten
            return values
    except ValueError:
        pass
    return np.array(
        [float(field) if is_number(field) else np.nan for field in fields], dtype=np.float64
    )


def is_number(field: bytes) -> bool:
    """Returns whether the field is a number; nan and inf count as numbers.

    Example:
        >>> is_number(b"-1.5e-3"), is_number(b"1_0"), is_number(b"id1")
        (True, False, False)
    """
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field


def is_fraction(field: bytes) -> bool:
    """Returns whether the field is a number that is not written as an integer.

    Example:
        >>> is_fraction(b"1.0"), is_fraction(b"0010")
        (True, False)
    """
    return is_number(field) and not field.lstrip(b"+-").isdigit()


def all_fractions(fields: Sequence[bytes]) -> bool:
    """Returns whether the fields are numbers, and not all of them are written as integers."""
    distinct = set(fields)
    return _all_numbers(distinct) and any(map(is_fraction, distinct))


def _all_numbers(fields: Collection[bytes]) -> bool:
    """Whether all fields are numbers; most columns are decided by the first field."""
    try:
        for field in fields:
            float(field)
    except ValueError:
        return False
    return b"_" not in b" ".join(fields)


def refuse_empty(table: Table) -> None:
    """Raises ValueError if fields are empty, which commas and tabs allow."""
    if any(isinstance(column, Column) and b"" in column.keys for column in table.columns):
        raise LikenessError(f"{table.path}: fields are empty; fill or remove these lines")


def text_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Reads a small text list whose lines may have any width.

    Blank lines and lines that begin with # are skipped, and files compressed by gzip are read too.

    Args:
        path: The file.

    Yields:
        The number of each line and the line itself, stripped.

    Raises:
        LikenessError: The file is binary, a line is too long, or it is not UTF-8.
    """
    path, number = Path(path), 0
    for block in text_blocks(path):
        for line in block[:-1].split(b"\n"):
            number += 1
            for data in _data_lines(line, path):
                try:
                    yield number, data.decode().strip()
                except UnicodeDecodeError:
                    raise LikenessError(
                        f"{path}: {quoted(data)} is not UTF-8 text; convert the file to UTF-8"
                    ) from None


def at_lines(lines: NDArray[np.integer[Any]]) -> str:
    """Returns the first line numbers as text, for messages.

    Example:
        >>> at_lines(np.array([3, 9, 12, 40], dtype=np.int32))
        'lines 3, 9, 12, ...'
        >>> at_lines(np.array([3], dtype=np.int32))
        'line 3'
    """
    first = ", ".join(str(line) for line in lines[:3])
    return f"line{'s' if lines.size > 1 else ''} {first}{', ...' if lines.size > 3 else ''}"


def text_blocks(path: Path, block_size: int = 0) -> Iterator[bytes]:
    """Yield blocks of whole lines of a text file, each of which ends in a newline.

    Gzip is known by its first bytes, not by its name. A byte order mark is left out.

    Args:
        path: The file.
        block_size: The bytes that are read at once; 0 means 16 MB.

    Raises:
        LikenessError: The file is a damaged gzip file, expands to too much, or has too long a line.
    """
    with path.open("rb") as raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw
        size = os.fstat(raw.fileno()).st_size
        limit = max(FREE_EXPANSION, EXPANSION * size)
        total, rest = 0, b""
        while True:
            try:
                block = stream.read(block_size or _BLOCK)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise LikenessError(
                    f"{path}: this is a damaged or truncated gzip file ({error}); fetch it again"
                ) from None
            if not block:
                break
            if not total:
                block = block.removeprefix(b"\xef\xbb\xbf")
            total += len(block)
            if zipped and total > limit:
                raise LikenessError(
                    f"{path}: it expands to over {limit} bytes, {EXPANSION} times its size; "
                    "unpack it yourself if you trust it"
                )
            if size:  # a pipe has none
                report(f"reading {path.name}", raw.tell(), size, unit="bytes")
            end = block.rfind(b"\n") + 1
            if end:
                yield rest + block[:end]
                rest = block[end:]
            else:
                rest += block
            if len(rest) > MAX_LINE:
                raise LikenessError(
                    f"{path}: a line has over {MAX_LINE} bytes; is this a text file?"
                )
        if rest:
            yield rest + b"\n"
