"""Text tables (trials, scores, mappings), read in blocks of bounded size.

`atomic_path`, which writes files whole or not at all, can be imported from here too.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import plain
from eval.formats.writing import atomic_path as atomic_path
from eval.progress import report
from eval.types import Floats, Ints, first_line, nfc

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
                f"{path}: {error.object[:80]!r} is not UTF-8 text; convert the file to UTF-8"
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


class LineNumbers:
    """The line numbers of P rows, of which only the beginning of each run is kept.

    Example:
        >>> lines = LineNumbers()
        >>> lines.add(np.array([2, 3, 7], dtype=np.int32))
        >>> len(lines), lines[np.array([1, 2])]
        (3, array([3, 7]))
    """

    def __init__(self) -> None:
        self._size = 0
        self._rows = [np.zeros(0, np.int64)]  # the rows with which runs begin
        self._above = [np.zeros(0, np.int64)]  # how many more the line numbers of a run are

    def add(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Adds the ascending line numbers of further rows."""
        above = numbers - np.arange(self._size, self._size + numbers.size)
        starts = np.flatnonzero(np.append(True, above[1:] != above[:-1])[: numbers.size])
        self._add(self._size + starts, above[starts], numbers.size)

    def add_run(self, first: int, size: int) -> None:
        """Adds `size` rows whose line numbers are `first` and those that follow."""
        self._add(np.array([self._size]), np.array([first - self._size]), size)

    def _add(self, rows: NDArray[np.int64], above: NDArray[np.int64], size: int) -> None:
        self._rows.append(rows)
        self._above.append(above)
        self._size += size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, rows: int | slice | NDArray[Any]) -> NDArray[np.int64]:
        """The line numbers of some rows, by their numbers or by a mask (P,)."""
        if isinstance(rows, slice):
            rows = np.arange(self._size)[rows]
        at = np.flatnonzero(rows) if np.asarray(rows).dtype == np.bool_ else np.asarray(rows)
        run = np.searchsorted(np.concatenate(self._rows), at, side="right") - 1
        numbers: NDArray[np.int64] = at + np.concatenate(self._above)[run]
        return numbers


class Table(NamedTuple):
    """A text table of P lines.

    Attributes:
        path: The file.
        layout: What the header line says, if there is one.
        columns: The columns. One of decimal fractions is an array (P,) of numbers, with NaN for a
            field that is not a number.
        lines: The line number of each row in the file, from 1.
        unit: What `lines` counts.
    """

    path: Path
    layout: str | None
    columns: list[Column | Floats]
    lines: LineNumbers
    unit: str = "line"

    def at(self, rows: NDArray[Any]) -> str:
        """Returns where some rows (M,) are, or those of a mask (P,), as text for messages."""
        return at_lines(self.lines[rows]).replace("line", self.unit, 1)


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
            or differ in their number of fields, which is counted for all of them.
    """
    path = Path(path)
    started = False
    separator: bytes | None = None
    layout: str | None = None
    columns: _Columns | None = None
    lines = LineNumbers()
    tally: dict[int, tuple[int, int]] = {}
    above = 0  # the number of lines in the blocks before
    for block in text_blocks(path):
        num_plain = columns.add_plain(block) if columns is not None and len(tally) == 1 else 0
        if num_plain:
            ((width, (num_lines, first)),) = tally.items()
            tally[width] = num_lines + num_plain, first
            lines.add_run(above + 1, num_plain)
            above += num_plain
            continue
        part = _Lines(block, above, path)
        above += part.data.size
        if not started and part.data.any():
            separator, layout = _separator(part.sample(block), fits, header)
            started = True
            if layout is not None:
                part.data[np.flatnonzero(part.data)[0]] = False
        numbers, counts = part.numbers(), part.num_fields(separator)
        if not counts.size:
            continue
        _add_counts(tally, numbers, counts)
        if len(tally) > 1:
            continue  # the table is refused; the other lines are only counted for the message
        if counts[0] > MAX_FIELDS:
            raise LikenessError(
                f"{path}: {counts[0]} fields in each line, but at most {MAX_FIELDS} are read; is "
                "this the right file?"
            )
        if columns is None:
            columns = _Columns(part, block, separator, int(counts[0]), layout, fractions)
        columns.add(part, block)
        lines.add(numbers)
    if columns is None or len(tally) > 1:
        raise _no_table(path, tally)
    return Table(path, layout, columns.joined(), lines)


def _no_table(path: Path, tally: dict[int, tuple[int, int]]) -> LikenessError:
    """The error for a file without lines, or whose lines differ in their number of fields."""
    if not tally:
        return LikenessError(
            f"{path}: the file is empty or has only comments; expected one line for each trial or "
            "item"
        )
    commonest = sorted(tally.items(), key=lambda entry: -entry[1][0])[:5]
    counted = "; ".join(
        f"{num_lines} with {num_fields} (first: line {first})"
        for num_fields, (num_lines, first) in commonest
    )
    return LikenessError(
        f"{path}: lines differ in their number of fields: {counted}; correct the rarer ones"
    )


def _add_counts(
    tally: dict[int, tuple[int, int]], numbers: Ints, counts: NDArray[np.int64]
) -> None:
    """Counts the lines of a block by their number of fields.

    tally: number of fields -> how many lines have it, and the first of them.
    """
    for num_fields, num_lines in enumerate(np.bincount(counts).tolist()):
        if num_lines:
            first_here = int(numbers[np.argmax(counts == num_fields)])
            known, first = tally.get(num_fields, (0, first_here))
            tally[num_fields] = (known + num_lines, first)


class _Columns:
    """The columns of a table while its blocks are read.

    Whether a column is kept as numbers or as text follows from the fields of the first block. With
    `fractions`, columns of decimal fractions are kept as numbers; these are scores, which are
    mostly distinct. With a header that is only its column "s". Where several columns are fractions
    and no header says which is "s", all are kept as text, because ids may be fractions too; the
    caller then has to decide.
    """

    def __init__(
        self,
        part: _Lines,
        block: bytes,
        separator: bytes | None,
        width: int,
        layout: str | None,
        fractions: bool,
    ) -> None:
        self._separator = separator
        self._numeric = [False] * width
        if fractions and layout:
            self._numeric = [layout[c : c + 1] == "s" for c in range(width)]
        elif fractions:
            numeric = [all_fractions(keys) for keys in self._fields(part, block)]
            self._numeric = numeric if layout or sum(numeric) < 2 else [False] * width
        # The number of each distinct field, where a new field takes the next number. None stands
        # for a column of numbers.
        self._indices: list[defaultdict[bytes, int] | None] = [
            None if is_numeric else defaultdict(count().__next__) for is_numeric in self._numeric
        ]
        # The same for fields of plain lines, which may have blanks around them.
        self._spelt: list[dict[bytes, int]] = [{} for _ in range(width)]
        self._parts: list[list[NDArray[np.generic]]] = [[] for _ in range(width)]

    def _fields(self, part: _Lines, block: bytes) -> list[list[bytes]]:
        """The fields of each column of a block, without repetitions where its lines are plain."""
        columns = self._plain(part.data_lines(block))
        if columns is not None:
            keys = [column.keys for column in columns if isinstance(column, plain.Coded)]
            if not any(plain.odd(fields, first=not c) for c, fields in enumerate(keys)):
                return [[field.strip() for field in fields] for fields in keys]
        fields = part.fields(block, self._separator)
        return [fields[c :: len(self._numeric)] for c in range(len(self._numeric))]

    def _plain(self, block: bytes) -> list[plain.Coded | Floats] | None:
        """The columns of a large block of plain lines, or None for other lines."""
        if len(block) < _QUICK_FROM:
            return None
        return plain.read(block, self._separator, self._numeric, MAX_LINE)

    def add_plain(self, block: bytes) -> int:
        """Adds the fields of a block if all of its lines are plain and hold data.

        Returns:
            The number of its lines; 0 if nothing was added.
        """
        columns = self._plain(block)
        if columns is None:
            return 0
        fresh = [
            [key for key in column.keys if key not in spelt]
            if isinstance(column, plain.Coded)
            else []
            for spelt, column in zip(self._spelt, columns, strict=True)
        ]
        if any(plain.odd(keys, first=not c) for c, keys in enumerate(fresh)):
            return 0
        for c, (index, column) in enumerate(zip(self._indices, columns, strict=True)):
            if isinstance(column, plain.Coded):
                assert index is not None
                spelt = self._spelt[c]
                spelt.update((key, index[key.strip()]) for key in fresh[c])
                self._parts[c].append(_numbers(spelt, column.keys)[column.codes])
            else:
                self._parts[c].append(column)
        return self._parts[0][-1].size

    def add(self, part: _Lines, block: bytes) -> None:
        """Adds the fields of all data lines of a block."""
        if self.add_plain(part.data_lines(block)):
            return
        width, fields = len(self._parts), part.fields(block, self._separator)
        for c, index in enumerate(self._indices):
            column = fields[c::width]
            self._parts[c].append(as_floats(column) if index is None else _numbers(index, column))

    def joined(self) -> list[Column | Floats]:
        """The columns of all blocks. The blocks are given up, to save memory."""
        columns: list[Column | Floats] = []
        for index, parts in zip(self._indices, self._parts, strict=True):
            joined = np.concatenate(parts)
            parts.clear()
            if index is None:
                columns.append(cast(Floats, joined))
            else:
                columns.append(in_nfc(Column(list(index), cast(Ints, joined))))
        return columns


def _numbers(index: dict[bytes, int], fields: Sequence[bytes]) -> Ints:
    """The number of each field; a defaultdict gives a new field the next number."""
    return np.fromiter(map(index.__getitem__, fields), dtype=np.int32, count=len(fields))


class _Lines:
    """Where the lines of a block begin and which of them contain data.

    This takes one pass of numpy over the bytes.
    """

    def __init__(self, block: bytes, above: int, path: Path) -> None:
        self._bytes = np.frombuffer(block, dtype=np.uint8)
        self._ends = np.flatnonzero(self._bytes == ord("\n"))
        lengths = np.diff(self._ends, prepend=-1)
        if lengths.max() > MAX_LINE:
            raise LikenessError(
                f"{path}: line {above + int(lengths.argmax()) + 1} has {int(lengths.max())} bytes, "
                f"but at most {MAX_LINE} are allowed; is this a text file?"
            )
        if np.count_nonzero(self._bytes < 32) != self._ends.size + block.count(b"\t") + block.count(
            b"\r"
        ):
            raise LikenessError(
                f"{path}: not a text file, since there are control characters before line "
                f"{above + self._ends.size + 1} (UTF-16 has them too: save as UTF-8)"
            )
        space = self._bytes <= 32
        words = np.flatnonzero(~space & np.append(True, space[:-1]))
        self._num_words = np.diff(np.searchsorted(words, self._ends), prepend=0)
        self.data = self._num_words > 0
        first = words[(np.cumsum(self._num_words) - self._num_words)[self.data]]
        self.data[self.data] = self._bytes[first] != ord("#")
        self._above, self._path = above, path

    def numbers(self) -> Ints:
        """The line numbers of the data lines."""
        return (np.flatnonzero(self.data) + (self._above + 1)).astype(np.int32)

    def num_fields(self, separator: bytes | None) -> NDArray[np.int64]:
        """The number of fields of each data line."""
        if separator is None:
            return self._num_words[self.data]
        separators = np.flatnonzero(self._bytes == ord(separator))
        return (np.diff(np.searchsorted(separators, self._ends), prepend=0) + 1)[self.data]

    def sample(self, block: bytes) -> list[bytes]:
        """The first data lines."""
        return [self._line(block, row) for row in np.flatnonzero(self.data)[:_SAMPLE]]

    def text(self, block: bytes, row: int) -> str:
        """One line as text. Raises ValueError if it is not UTF-8."""
        line = Column([self._line(block, row)], np.zeros(1, dtype=np.int32))
        return line.texts(self._path)[0].strip()

    def _line(self, block: bytes, row: int) -> bytes:
        """The bytes of one line."""
        return block[self._ends[row - 1] + 1 if row else 0 : self._ends[row]]

    def data_lines(self, block: bytes) -> bytes:
        """The block without blank lines and comments."""
        if self.data.all():
            return block
        lines = zip(block.split(b"\n"), self.data, strict=False)
        return b"\n".join(line for line, is_data in lines if is_data) + b"\n"

    def fields(self, block: bytes, separator: bytes | None) -> list[bytes]:
        """The fields of all data lines, one after the other."""
        block = self.data_lines(block)
        if separator is None:
            return block.split()
        return [field.strip() for field in block[:-1].replace(b"\n", separator).split(separator)]


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
    for column in table.columns:
        if isinstance(column, Column) and b"" in column.keys:
            bad = column.codes == column.keys.index(b"")
            raise LikenessError(
                f"{table.path}: {np.count_nonzero(bad)} {table.unit}s have an empty field "
                f"({table.at(bad)}); fill or remove them"
            )


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
    for block, part in _line_blocks(Path(path)):
        for number, row in zip(part.numbers().tolist(), np.flatnonzero(part.data), strict=True):
            yield number, part.text(block, int(row))


def _line_blocks(path: Path) -> Iterator[tuple[bytes, _Lines]]:
    """The blocks of a file, and where the lines of each begin."""
    above = 0  # the number of lines in the blocks before
    for block in text_blocks(path):
        part = _Lines(block, above, path)
        yield block, part
        above += part.data.size


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
