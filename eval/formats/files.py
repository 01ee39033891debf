"""Text tables (trials, scores, mappings) read in bounded blocks, and the way to write files whole
or not at all.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, NamedTuple, cast
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from eval.formats.writing import atomic_path as atomic_path
from eval.types import Floats, Ints, nfc

MAX_LINE = 65_536  # bytes
# of a line of a table: twice those of the widest, so that a file of another kind does not fill the
# memory
MAX_FIELDS = 8
EXPANSION = 100  # a gzip file may expand to this many times its size,
FREE_EXPANSION = 1 << 28  # or to 256 MB if that is more: lists of short lines compress well

_BLOCK = 1 << 24
_SAMPLE = 1_000  # lines that decide how fields are separated; all later lines have to comply


def bounded(path: Path, limit: int) -> bytes:
    """The bytes of a file, a pipe or a device, of which the latter two do not state their size and
    some never end.

    Raises:
        ValueError: There are more than `limit`.
        OSError: It cannot be read.
    """
    held = (
        io.BytesIO()
    )  # by blocks: one read of all that is allowed would take that much memory for any file
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            if held.write(block) and held.tell() > limit:
                raise ValueError(
                    f"{path}: over {limit} bytes; at most so many are read of a file of this kind"
                )
    return held.getvalue()


def refuse_device(path: Path) -> None:
    """ValueError for what is there and neither a file nor a folder: a pipe never comes, and a link
    to /dev/zero in a folder of others fills the memory.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise ValueError(
            f"{path} is a pipe, a device or a socket; only a file can be read at many places: save "
            "it as one first"
        )


class Column(NamedTuple):
    """P fields of a column: its distinct fields by first occurrence, and (P,) their numbers."""

    keys: list[bytes]
    codes: Ints

    def texts(self, path: Path) -> tuple[str, ...]:
        """The distinct fields as text. ValueError if they are not UTF-8."""
        try:
            return tuple(key.decode() for key in self.keys)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: {error.object[:80]!r} is not UTF-8 text; convert the file to UTF-8"
            ) from None


def _in_nfc(column: Column) -> Column:
    """The column with its fields in Unicode NFC (see eval.types.nfc); fields that are equal in it
    get one number.
    """
    if all(map(bytes.isascii, column.keys)):
        return column
    number: dict[bytes, int] = {}
    codes = np.array(
        [number.setdefault(_bytes_in_nfc(key), len(number)) for key in column.keys], dtype=np.int32
    )
    return Column(list(number), codes[column.codes])


def _bytes_in_nfc(field: bytes) -> bytes:
    try:
        return nfc(field.decode()).encode()
    except UnicodeDecodeError:
        return field  # `Column.texts` refuses it, if it is read


def as_stored(root: Path, name: str) -> Path:
    """root/name by the names that the file system has: where there is no such path, one that is
    equal to it in Unicode NFC.

    Ids are kept in NFC, but files that come from macOS have names in NFD. If there is neither,
    root/name is returned.
    """
    whole = root / name
    if name.isascii() or os.path.lexists(whole):
        return whole
    place = root
    for part in Path(name).parts:
        if not os.path.lexists(place / part):
            try:
                part = next(
                    one
                    for one in sorted(os.listdir(place))
                    if normalize("NFC", one) == normalize("NFC", part)
                )
            except (OSError, StopIteration):
                return whole
        place = place / part
    return place


class Table(NamedTuple):
    """A text table of P lines.

    layout: what the header line says, if there is one. columns: one of decimal fractions holds the
    numbers, NaN for a field that is none.
    lines: (P,) line numbers in the file, from 1.
    """

    path: Path
    layout: str | None
    columns: list[Column | Floats]
    lines: Ints


def read_table(
    path: str | Path,
    fits: Callable[[Sequence[bytes]], bool],
    header: Callable[[Sequence[bytes]], str | None],
    *,
    fractions: bool = False,
) -> Table:
    """Reads lines of equally many fields separated by blanks, tabs or commas; skips blank lines and
    lines that begin with #; reads .gz.

    fits: whether the fields look like a line of the kind that is read; the separator that fits most
    of the first lines is taken.
    header: the layout (one letter for each column) if the first line is a header, else None.
    fractions: keep columns of decimal fractions (scores, mostly distinct) as numbers; with a header
    only its column "s". Where several columns are fractions and no header says which is "s", all
    are kept as text: ids may be fractions too, and the caller has to tell.
    Memory: about the result and 200 MB. ValueError: empty, binary, too long lines, over MAX_FIELDS
    fields, lines that differ in their number (all counted).
    """
    path = Path(path)
    started = False
    separator: bytes | None = None
    layout: str | None = None
    indices: list[defaultdict[bytes, int] | None] = []  # None for a column of numbers
    parts: list[list[NDArray[np.generic]]] = []
    lines: list[Ints] = []
    tally: dict[int, tuple[int, int]] = {}  # number of fields -> lines that have it, first of them
    above = 0  # lines in the blocks before
    for block in _text_blocks(path):
        found_lines = _Lines(block, above, path)
        if not started and found_lines.data.any():
            sample = found_lines.sample(block)
            separator, layout = _separator(sample, fits, header)
            started = True
            if layout is not None:
                found_lines.data[np.flatnonzero(found_lines.data)[0]] = False
        numbers, counts = found_lines.numbers(), found_lines.num_fields(separator)
        above += found_lines.data.size
        if not counts.size:
            continue
        for fields, how_many in enumerate(np.bincount(counts).tolist()):
            if how_many:
                known, first = tally.get(fields, (0, int(numbers[np.argmax(counts == fields)])))
                tally[fields] = (known + how_many, first)
        if len(tally) > 1:
            continue  # only counting from here on, for the message
        width = int(counts[0])
        if width > MAX_FIELDS:
            raise ValueError(
                f"{path}: {width} fields in each line, but at most {MAX_FIELDS} are read; is this "
                "the right file?"
            )
        tokens = found_lines.fields(block, separator)
        if not parts:
            numeric = [
                fractions
                and (layout[c : c + 1] == "s" if layout else all_fractions(tokens[c::width]))
                for c in range(width)
            ]
            if layout is None and sum(numeric) > 1:
                numeric = [False] * width
            indices = [
                None if is_numeric else defaultdict(count().__next__) for is_numeric in numeric
            ]  # a new key takes the next number
            parts = [[] for _ in range(width)]
        for c, index in enumerate(indices):
            column = tokens[c::width]
            parts[c].append(
                as_floats(column)
                if index is None
                else np.fromiter(map(index.__getitem__, column), dtype=np.int32, count=len(column))
            )
        lines.append(numbers)
    if not tally:
        raise ValueError(
            f"{path}: the file is empty or has only comments; expected one line for each trial or "
            "item"
        )
    if len(tally) > 1:
        found = "; ".join(
            f"{n} with {fields} (first: line {first})"
            for fields, (n, first) in sorted(tally.items(), key=lambda kv: -kv[1][0])[:5]
        )
        raise ValueError(
            f"{path}: lines differ in their number of fields: {found}; correct the rarer ones"
        )
    columns: list[Column | Floats] = []
    for index, pieces in zip(indices, parts, strict=True):
        joined = np.concatenate(pieces)
        pieces.clear()
        columns.append(
            cast(Floats, joined)
            if index is None
            else _in_nfc(Column(list(index), cast(Ints, joined)))
        )
    return Table(path, layout, columns, np.concatenate(lines))


class _Lines:
    """Where the lines of a block begin and which of them hold data.

    One pass of numpy over the bytes.
    """

    def __init__(self, block: bytes, above: int, path: Path) -> None:
        self._bytes = np.frombuffer(block, dtype=np.uint8)
        self._ends = np.flatnonzero(self._bytes == ord("\n"))
        lengths = np.diff(self._ends, prepend=-1)
        if lengths.max() > MAX_LINE:
            raise ValueError(
                f"{path}: line {above + int(lengths.argmax()) + 1} has {int(lengths.max())} bytes, "
                f"but at most {MAX_LINE} are allowed; is this a text file?"
            )
        if np.count_nonzero(self._bytes < 32) != self._ends.size + block.count(b"\t") + block.count(
            b"\r"
        ):
            raise ValueError(
                f"{path}: not a text file: control characters before line "
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
        """Line numbers of the data lines."""
        return (np.flatnonzero(self.data) + (self._above + 1)).astype(np.int32)

    def num_fields(self, separator: bytes | None) -> NDArray[np.int64]:
        """Fields of each data line."""
        if separator is None:
            return self._num_words[self.data]
        found = np.flatnonzero(self._bytes == ord(separator))
        return (np.diff(np.searchsorted(found, self._ends), prepend=0) + 1)[self.data]

    def sample(self, block: bytes) -> list[bytes]:
        """The first data lines."""
        return [self._line(block, row) for row in np.flatnonzero(self.data)[:_SAMPLE]]

    def text(self, block: bytes, row: int) -> str:
        """One line as text. ValueError if it is not UTF-8."""
        return (
            Column([self._line(block, row)], np.zeros(1, dtype=np.int32))
            .texts(self._path)[0]
            .strip()
        )

    def _line(self, block: bytes, row: int) -> bytes:
        return block[self._ends[row - 1] + 1 if row else 0 : self._ends[row]]

    def fields(self, block: bytes, separator: bytes | None) -> list[bytes]:
        """The fields of all data lines, one after the other."""
        if not self.data.all():
            block = (
                b"\n".join(
                    line
                    for line, holds in zip(block.split(b"\n"), self.data, strict=False)
                    if holds
                )
                + b"\n"
            )
        if separator is None:
            return block.split()
        return [field.strip() for field in block[:-1].replace(b"\n", separator).split(separator)]


def _separator(
    sample: list[bytes],
    fits: Callable[[Sequence[bytes]], bool],
    header: Callable[[Sequence[bytes]], str | None],
) -> tuple[bytes | None, str | None]:
    """The separator (None: blanks and tabs) under which the sample makes most sense, and the
    header's layout. Ties: the earlier one.
    """
    best: tuple[tuple[int, ...], bytes | None, str | None] | None = None
    for separator in (b"\t", None, b","):
        rows = [
            [field.strip() for field in line.split(separator, MAX_FIELDS)] for line in sample
        ]  # the last field holds all that are too many
        layout = header(rows[0])
        wanted = None if layout is None else len(layout)
        good = [
            row
            for row in rows[layout is not None :]
            if fits(row) and len(row) == (wanted or len(row))
        ]
        # "a, b, 1" also splits at its blanks, into ids that end in a comma; "1 a\tb" at its tab,
        # into fewer fields
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
    """(P,) numbers; NaN for a field that is none."""
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
    """Whether the field is a number (nan and inf are).

    >>> is_number(b"-1.5e-3"), is_number(b"1_0"), is_number(b"id1")
    (True, False, False)
    """
    try:
        float(field)
    except ValueError:
        return False
    return b"_" not in field


def is_fraction(field: bytes) -> bool:
    """Whether the field is a number, but not written as an integer.

    >>> is_fraction(b"1.0"), is_fraction(b"0010")
    (True, False)
    """
    return is_number(field) and not field.lstrip(b"+-").isdigit()


def all_fractions(fields: Sequence[bytes]) -> bool:
    """Whether the fields are numbers, and not all of them written as integers."""
    return all(map(is_number, fields)) and any(map(is_fraction, fields))


def refuse_empty(table: Table) -> None:
    """ValueError if fields are empty, which commas and tabs allow."""
    for column in table.columns:
        if isinstance(column, Column) and b"" in column.keys:
            bad = table.lines[column.codes == column.keys.index(b"")]
            raise ValueError(
                f"{table.path}: {bad.size} lines have an empty field ({at_lines(bad)}); fill or "
                "remove them"
            )


def at_lines(lines: NDArray[np.int32]) -> str:
    """The first line numbers.

    >>> at_lines(np.array([3, 9, 12, 40], dtype=np.int32)), at_lines(np.array([3], dtype=np.int32))
    ('lines 3, 9, 12, ...', 'line 3')
    """
    first = ", ".join(str(line) for line in lines[:3])
    return f"line{'s' if lines.size > 1 else ''} {first}{', ...' if lines.size > 3 else ''}"


def text_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Line numbers and lines, stripped, of a small text list of any width; skips blank lines and
    lines that begin with #; reads .gz. Errors as `read_table`.
    """
    path = Path(path)
    number = 0
    for block in _text_blocks(path):
        lines = _Lines(block, number, path)
        for row in np.flatnonzero(lines.data).tolist():
            yield number + row + 1, lines.text(block, row)
        number += lines.data.size


def _text_blocks(path: Path) -> Iterator[bytes]:
    """Blocks of whole lines, about 16 MB, each ending in a newline.

    Gzip is known by its first bytes, not by its name.
    """
    with path.open("rb") as raw:
        zipped = raw.peek(2)[:2] == b"\x1f\x8b"
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if zipped else raw
        limit = max(FREE_EXPANSION, EXPANSION * os.fstat(raw.fileno()).st_size)
        total, rest = 0, b""
        while True:
            try:
                block = stream.read(_BLOCK)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(
                    f"{path}: damaged or truncated gzip file ({error}); fetch it again"
                ) from None
            if not block:
                break
            if not total:
                block = block.removeprefix(b"\xef\xbb\xbf")
            total += len(block)
            if zipped and total > limit:
                raise ValueError(
                    f"{path}: expands to over {limit} bytes, {EXPANSION} times its size; unpack it "
                    "yourself if you trust it"
                )
            end = block.rfind(b"\n") + 1
            if end:
                yield rest + block[:end]
                rest = block[end:]
            else:
                rest += block
            if len(rest) > MAX_LINE:
                raise ValueError(f"{path}: a line has over {MAX_LINE} bytes; is this a text file?")
        if rest:
            yield rest + b"\n"
