"""The cells of tables that others wrote: CSV, TSV and Parquet, as texts in blocks of rows.

Text is UTF-8, or UTF-16 with a byte order mark, with commas, semicolons or tabs; blanks will do
where there are none of these. Fields may have quotation marks as spreadsheets write them; between
tabs they stand for themselves, but around a whole field. Lines end in LF, CRLF or CR.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np

from eval.errors import LikenessError
from eval.formats import parquet
from eval.formats.files import refuse_device
from eval.types import quoted

MAX_LINE = 2**20  # characters
_MAX_TABLE = 2**34  # characters of a text
_CHUNK = 2**22  # characters that are split together
_ROWS = 2**16
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_OTHERS = (".json", ".jsonl", ".pkl", ".pickle", ".feather", ".h5", ".npz", ".zip", ".gz")
_STRIPPED = " \t\r\n"
_TEXT = (
    r"(large_)?string(_view)?|dictionary<values=(large_)?string, indices=u?int\d+, ordered=[01]>"
)
_NUMBER = r"u?int\d+|halffloat|float|double|bool|null"

Chosen = dict[str, int]
Choose = Callable[[list[str]], Chosen]


class Block(NamedTuple):
    """Some rows of a table.

    Attributes:
        numbers: The number of each row: of its line in a text, from 1, of the row in Parquet.
        cells: Role -> the cell of each row, without blanks around it; "" where it is empty.
    """

    numbers: Sequence[int]
    cells: dict[str, list[str]]


class Ragged(ValueError):
    """Rows have more fields than the head."""


def refuse_other_kinds(path: Path) -> None:
    """Raises ValueError for a file that is no table of text or Parquet, by its name."""
    suffix = path.suffix.lower()
    if suffix in _SPREADSHEETS:
        raise LikenessError(
            f"{path}: this is a spreadsheet; save it as CSV (in UTF-8) and give that"
        )
    if suffix in _OTHERS:
        raise LikenessError(
            f"{path}: a {suffix} file is not read as a table of files; write it as .csv, .tsv or "
            ".parquet"
        )


def head_of(path: Path) -> list[str]:
    """Returns the fields of the first line of a text, without reading any further.

    Raises:
        LikenessError: It is no text.
    """
    with _opened(path) as file:
        lines = _lines(file, path)
        first = _first(lines, path)
        return _fields(first, _delimiter(first))


def text_blocks(path: Path, choose: Choose, *, header: bool = True) -> Iterator[Block]:
    """Yields the rows of a table of text.

    Args:
        path: The file.
        choose: Gives role -> place of the columns to read, from the fields of the first line. It
            may raise ValueError.
        header: Whether the first line has the names of the columns; otherwise it is a row.

    Yields:
        Blocks of rows. A row of several lines has the number of the last.

    Raises:
        LikenessError: It is no text, a line is too long, quotation marks are not closed, or rows
            have more fields than the first line, which are counted. The last comes after all rows.
    """
    with _opened(path) as file:
        lines = _lines(file, path)
        first = _first(lines, path)
        delimiter = _delimiter(first)
        names = _fields(first, delimiter)
        places = choose(names)
        long: list[int] = []
        number = 2 if header else 1
        rest: Iterator[str] = lines if header else chain([first], lines)
        while chunk := "".join(_taken(rest)):
            cells = _plain(chunk, delimiter, len(names), places)
            if cells is None:
                # A quoted field may go on in the next chunk.
                yield from _quoted(chunk, rest, delimiter, len(names), places, number, path, long)
                break
            num_lines = chunk.count("\n")
            yield Block(range(number, number + num_lines), cells)
            number += num_lines
    if long:
        raise Ragged(
            f"{path}: {len(long)} rows have more fields than the first line (line {long[0]}); put "
            "quotation marks around a field that holds the separator"
        )


def parquet_blocks(path: Path, choose: Choose) -> Iterator[Block]:
    """Yields the rows of a Parquet file.

    Args:
        path: The file.
        choose: As for `text_blocks`.

    Yields:
        Blocks of rows, which are counted from 1.

    Raises:
        LikenessError: The file is damaged, a column that is read holds neither texts nor numbers,
            or a text is too long.
    """
    with parquet.opened(path) as file:
        types = parquet.column_types(file)
        names = list(types)
        places = choose(names)
        read = [names[place] for place in places.values()]
        for role, name in zip(places, read, strict=True):
            if not re.fullmatch(f"{_TEXT}|{_NUMBER}", types[name]):
                raise LikenessError(
                    f"{path}: the column {quoted(name)}, which is the {role}, holds "
                    f"{quoted(types[name])}; texts or numbers are needed, and files are named by "
                    "their paths"
                )
        size = file.metadata.num_rows
        columns = parquet.read_columns(path, file, read, MAX_LINE)
    rest = [(role, *_texts_of(columns[name])) for role, name in zip(places, read, strict=True)]
    for start in range(0, size, _ROWS):
        end = min(start + _ROWS, size)
        cells = {
            role: list(map(text_of, values[start:end].tolist())) for role, text_of, values in rest
        }
        yield Block(range(start + 1, end + 1), cells)


def _texts_of(column: parquet.Values) -> tuple[Callable[[Any], str], Any]:
    """The values (P,) of a column, and what gives the text of one of them."""
    if column.texts is None:
        absent = column.missing
        return cell, np.where(absent, np.nan, column.values) if absent.any() else column.values
    known = [*(cell(text) for text in column.texts), ""]
    return known.__getitem__, np.where(column.missing, -1, column.values)


def cell(value: object) -> str:
    """Returns the text of a value in memory; "" for None, NaN, and what pandas has for those.

    Example:
        >>> cell(17.0), cell(1.25), cell(float("nan")), cell(" ann ")
        ('17', '1.25', '', 'ann')
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        if number != number:
            return ""
        # pandas makes floats of whole numbers where some are missing.
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value).strip(_STRIPPED)


def _opened(path: Path) -> TextIO:
    """The file as text in its encoding. Raises ValueError where it is none that can be known."""
    refuse_device(path)
    refuse_other_kinds(path)
    with path.open("rb") as file:
        start = file.read(4096)
    encoding = "utf-8-sig"
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in start:
        raise LikenessError(
            f"{path}: this is no text in UTF-8: it holds NUL characters, as binary files and "
            "UTF-16 without a byte order mark do; save the table as CSV in UTF-8"
        )
    return path.open(encoding=encoding, newline="")


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a text with "\n" at their ends, of which none and all together are too long."""
    total = above = 0
    try:
        while line := file.readline(MAX_LINE + 1):
            above += 1
            total += len(line)
            if len(line) > MAX_LINE or "\0" in line:
                raise LikenessError(
                    f"{path}: line {above} is no text of at most {MAX_LINE} characters; is this a "
                    "table of files?"
                )
            if total > _MAX_TABLE:
                raise LikenessError(
                    f"{path}: over {_MAX_TABLE} characters; give the table in parts"
                )
            yield line.rstrip("\r\n") + "\n"
    except UnicodeError as error:
        byte, number = 0, above + 1
        if isinstance(error, UnicodeDecodeError):
            # The text is decoded in blocks, of which none of this one's lines was seen.
            byte = error.object[error.start]
            number += error.object[: error.start].count(b"\n")
        raise LikenessError(
            f"{path}: this is not UTF-8 text (byte 0x{byte:02x} in line {number}); if it is "
            f"Latin-1, as of older spreadsheets, convert it: iconv -f LATIN1 -t UTF-8 {path.name} "
            "> converted.csv"
        ) from None


def _first(lines: Iterator[str], path: Path) -> str:
    """The first line that is not blank, nor the sep=; that spreadsheets write."""
    for line in lines:
        if line.strip() and not re.fullmatch(r"sep=.\s*", line):
            return line
    raise LikenessError(
        f"{path}: the file is empty; a first line with the names of columns is needed"
    )


def _delimiter(first: str) -> str | None:
    """What separates the fields; None for blanks."""
    bare = re.sub(r'"[^"]*"', "", first)
    counts = {mark: bare.count(mark) for mark in "\t;,"}
    best = max(counts, key=counts.__getitem__)
    if counts[best]:
        return best
    return None if '"' not in first and len(first.split()) > 1 else ","


def _fields(line: str, delimiter: str | None) -> list[str]:
    """The fields of one line."""
    if delimiter is None:
        return line.split()
    if delimiter == "\t":
        return [_unquoted(field) for field in line.split("\t")]
    try:
        row = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        row = line.split(delimiter)
    return [field.strip(_STRIPPED) for field in row]


def _unquoted(field: str) -> str:
    """A field between tabs, without quotation marks around the whole of it."""
    field = field.strip(_STRIPPED)
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"').strip(_STRIPPED)
    return field


def _taken(lines: Iterator[str]) -> Iterator[str]:
    """The next lines, as many as are split together."""
    size = 0
    for line in lines:
        yield line
        size += len(line)
        if size >= _CHUNK:
            return


def _plain(chunk: str, delimiter: str | None, width: int, places: Chosen) -> Any:
    """The cells of lines that have all their fields and no quotation marks; None for others."""
    if delimiter is None or '"' in chunk or "\n\n" in chunk or chunk.startswith("\n"):
        return None
    values = np.frombuffer(chunk.encode("utf-32-le"), dtype=np.uint32)
    is_end = values == ord("\n")
    marks = np.flatnonzero(is_end | (values == ord(delimiter)))
    ends = np.flatnonzero(is_end)
    if marks.size != width * ends.size or (marks[width - 1 :: width] != ends).any():
        return None
    fields = chunk[:-1].replace("\n", delimiter).split(delimiter)
    cells = {role: fields[place::width] for role, place in places.items()}
    if any(blank in chunk for blank in " \t\r"):
        cells = {role: [text.strip(_STRIPPED) for text in column] for role, column in cells.items()}
    return cells


def _quoted(
    chunk: str,
    rest: Iterator[str],
    delimiter: str | None,
    width: int,
    places: Chosen,
    number: int,
    path: Path,
    long: list[int],
) -> Iterator[Block]:
    """The rows of any lines; the numbers of those that are too long are added to `long`."""
    lines = chain((f"{line}\n" for line in chunk.split("\n")[:-1]), rest)
    numbers: list[int] = []
    cells: dict[str, list[str]] = {role: [] for role in places}
    for line, row in _rows(lines, delimiter, path, number):
        if len(row) > width and any(field.strip(_STRIPPED) for field in row[width:]):
            long.append(line)
        numbers.append(line)
        for role, place in places.items():
            cells[role].append(row[place].strip(_STRIPPED) if place < len(row) else "")
        if len(numbers) == _ROWS:
            yield Block(numbers, cells)
            numbers, cells = [], {role: [] for role in places}
    yield Block(numbers, cells)


def _rows(
    lines: Iterator[str], delimiter: str | None, path: Path, above: int
) -> Iterator[tuple[int, list[str]]]:
    """The fields of each row that is not blank, with the number of its last line."""
    if delimiter in (None, "\t"):
        for number, line in enumerate(lines, above):
            fields = _fields(line.rstrip("\n"), delimiter)
            if any(fields):
                yield number, fields
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for fields in reader:
            if any(fields):
                yield above + reader.line_num - 1, fields
    except csv.Error as error:
        raise LikenessError(
            f"{path}: line {above + reader.line_num - 1} is no CSV ({error}); correct its "
            "quotation marks"
        ) from None
