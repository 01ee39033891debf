"""Lists and tables that others wrote, as columns: text with any separator, .parquet, data frames.

This one reader serves trial lists, scores, values of ids, pairs and lists of files. Text is UTF-8,
or UTF-16 with a byte order mark, plain or compressed by gzip, with tabs, commas, semicolons or
blanks between the fields. Between commas and semicolons fields may have quotation marks as
spreadsheets write them. Blank lines are skipped, and so are lines that begin with #, but not below
a header of a list of files. pyarrow reads the text in blocks, and each text becomes a number.

What the columns mean is known by whoever asks: see `Shape`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eval.errors import LikenessError, first_line
from eval.formats import parquet
from eval.formats.files import text_blocks
from eval.types import Floats, Ints, nfc, quoted

MAX_CELL = 1 << 20  # characters
_SAMPLE = 1_000  # the lines that decide how fields are separated; all later lines have to comply
_ROWS_AT_ONCE = 1 << 21  # bytes of rows that become texts together
_QUOTED = 1 << 28  # bytes that quotation marks may hold together
_STRIPPED = " \t\r\n"
_SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers")
_OTHERS = (".json", ".jsonl", ".pkl", ".pickle", ".feather", ".h5", ".zip")


class Column(NamedTuple):
    """The P texts of one column.

    Attributes:
        keys: The distinct texts.
        codes: (P,) the number of each text among the keys.
    """

    keys: list[str]
    codes: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> Column:
        """The column of these texts; keys are in the order of their first occurrence.

        Example:
            >>> Column.of(["b", "a", "b"])
            Column(keys=['b', 'a'], codes=array([0, 1, 0], dtype=int32))
        """
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        codes = np.fromiter(map(number.__getitem__, texts), np.int32, len(texts))
        return cls(list(number), codes)

    def texts(self) -> list[str]:
        """The text of each row."""
        return list(map(self.keys.__getitem__, self.codes.tolist()))


class Shape(NamedTuple):
    """How the lines of a text become columns.

    Attributes:
        separator: What lies between two fields; " " stands for any number of blanks and tabs.
        width: The number of fields of a line.
        places: Role -> place of the columns that are read, where they are known; otherwise all
            columns are read.
        header: Whether the first line has the names of the columns.
    """

    separator: str
    width: int
    places: Mapping[str, int] | None = None
    header: bool = False


class Table(NamedTuple):
    """A table of P rows.

    Attributes:
        where: The file, for messages.
        roles: What each column is, where that is known; else None.
        columns: The columns. One of decimal fractions is an array (P,) of numbers, with NaN for a
            text that is not a number.
    """

    where: str
    roles: tuple[str, ...] | None
    columns: list[Column | Floats]


ShapeOf = Callable[[list[str]], Shape]
Choose = Callable[[list[str]], Mapping[str, int]]


def read_table(path: Path, shape_of: ShapeOf, *, fractions: bool = False) -> Table:
    """Reads a text whose lines all have one number of fields, and whose ids are names.

    Names are in Unicode NFC, and numbered by their first occurrence. It takes about 200 MB of
    memory beside the result.

    Args:
        path: The file.
        shape_of: Gives the shape of the text from its first lines, without comments.
        fractions: Keeps columns of decimal fractions as numbers; these are scores, which are mostly
            distinct. With a header that is only its column "score". Where several columns are
            fractions and no header says which is the score, all are kept as text, because ids may
            be fractions too; the caller then has to decide.

    Raises:
        LikenessError: The file is empty or no text, or lines differ in their number of fields.
    """
    shape: Shape | None = None
    numeric: list[bool] = []
    indices: list[_Numbers] = []
    parts: list[list[Any]] = []
    for shape, text in _texts(path, shape_of, comments=True):
        columns = _columns(path, text, shape, numeric or [False] * shape.width)
        if not parts:
            if fractions:
                numeric = _numeric(shape, columns)
            numeric = numeric or [False] * len(columns)
            columns = _with_numbers(columns, numeric)
            parts, indices = [[] for _ in columns], [_Numbers(shape) for _ in columns]
        for column, index, part in zip(columns, indices, parts, strict=True):
            if isinstance(column, Column):
                numbers = map(index.__getitem__, column.keys)
                part.append(np.fromiter(numbers, np.int32, len(column.keys))[column.codes])
            else:
                part.append(column)
    joined: list[Column | Floats] = []
    for is_number, index, part in zip(numeric, indices, parts, strict=True):
        values = np.concatenate(part)
        part.clear()  # to save memory
        joined.append(values if is_number else Column(list(index.names), values))
    return Table(str(path), _roles(shape), joined)


def read_rows(
    path: Path, shape_of: ShapeOf, choose: Choose
) -> Iterator[tuple[tuple[str, ...] | None, list[list[str]]]]:
    """Yields blocks of rows of a table of text or .parquet, as the texts of their columns.

    Fields that are missing at the end of a row are empty.

    Args:
        path: The file.
        shape_of: As for `read_table`.
        choose: Gives role -> place of the columns to read from the names of those of a .parquet.

    Yields:
        The roles of the columns, where they are known, and the texts of each.

    Raises:
        LikenessError: It is no such file, or rows have more fields than the first line.
    """
    refuse_other_kinds(path)
    if path.suffix.lower() == ".parquet":
        table = read_parquet(path, choose)
        yield (
            table.roles,
            [
                list(
                    map(text_of, column.texts() if isinstance(column, Column) else column.tolist())
                )
                for column in table.columns
            ],
        )
        return
    for shape, text in _texts(path, shape_of, comments=False, block_size=_ROWS_AT_ONCE):
        yield _roles(shape), _texts_of(path, text, shape)


def read_parquet(path: Path, choose: Choose) -> Table:
    """Reads columns of a .parquet file: texts by their number, decimal fractions as numbers.

    Args:
        path: The file.
        choose: Gives role -> place of the columns to read, from the names of all.

    Raises:
        LikenessError: The file is damaged, a column holds neither texts nor numbers, or a text is
            too long.
    """
    with parquet.opened(path) as file:
        types = parquet.column_types(file)
        places = choose(list(types))
        names = [list(types)[place] for place in places.values()]
        for name in names:
            if not parquet.is_readable(types[name]):
                raise LikenessError(
                    f"{path}: its column {quoted(name)} holds {quoted(types[name])}; texts or "
                    "numbers are needed"
                )
        read = parquet.read_columns(path, file, names, MAX_CELL)
    return Table(str(path), tuple(places), [_column_of(read[name]) for name in names])


def read_frame(table: Any, choose: Choose) -> Table:
    """Reads a table in memory: anything with `columns` that gives each by its name.

    Args:
        table: The table, as of pandas or polars.
        choose: As for `read_parquet`.

    Raises:
        LikenessError: It has several columns of one name.
    """
    names = [str(name) for name in table.columns]
    places = choose(names)
    twice = [names[place] for place in places.values() if names.count(names[place]) > 1]
    if twice:
        raise LikenessError(f"the table has several columns `{twice[0]}`; leave one of them")
    read = [list(table[list(table.columns)[place]]) for place in places.values()]
    columns: list[Column | Floats] = [Column.of(list(map(text_of, values))) for values in read]
    return Table("the table", tuple(places), columns)


def refuse_other_kinds(path: Path) -> None:
    """Raises LikenessError for a file that is no table of text or Parquet, by its name."""
    suffix = path.suffix.lower()
    if suffix in (*_SPREADSHEETS, *_OTHERS):
        raise LikenessError(
            f"{path}: a {suffix} file is not read as a table; save it as CSV (in UTF-8) or .parquet"
        )


def ranked_shape(
    sample: list[str],
    fits: Callable[[Sequence[str]], bool],
    header: Callable[[Sequence[str]], Mapping[str, int] | None],
) -> Shape:
    """Returns the shape under which most lines look like those that are expected.

    Args:
        sample: The first lines.
        fits: Whether the fields look like a line of the kind that is read.
        header: Role -> place if the fields of the first line are a header, else None.
    """
    best: tuple[tuple[int, ...], Shape] | None = None
    for separator in ("\t", " ", ",", ";"):
        rows = [split(line, separator) for line in sample]
        places = header(rows[0])
        good = [
            row
            for row in rows[places is not None :]
            if (len(row) == len(rows[0]) if places is not None else fits(row))
        ]
        # "a, b, 1" also splits at its blanks, into ids that end in a comma. "1 a\tb" also splits at
        # its tab, into fewer fields.
        no_stray = separator != " " or not any(
            field[:1] in ",;" or field[-1:] in ",;" for row in good for field in row
        )
        rank = (
            int(places is not None),
            len(good),
            int(no_stray or places is not None),
            sum(map(len, good)),
            sum(map(len, rows)),
        )
        if best is None or rank > best[0]:
            first = rows[0] if places is not None or not good else good[0]
            best = rank, Shape(separator, len(first), places, places is not None)
    assert best is not None
    return best[1]


def separator_of(first: str) -> str:
    """Returns what separates the fields of a first line: a tab, else a comma or semicolon."""
    bare = re.sub(r'"[^"]*"', "", first)
    counts = {mark: bare.count(mark) for mark in "\t;,"}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else "," if '"' in first else " "


def split(line: str, separator: str) -> list[str]:
    """Returns the fields of one line.

    Example:
        >>> split('a, "b;c" ', ","), split(" a  b", " ")
        (['a', 'b;c'], ['a', 'b'])
    """
    if separator == " ":
        return re.split(r"[ \t]+", line.strip(_STRIPPED), maxsplit=parquet.MAX_COLUMNS)
    if separator == "\t" or '"' not in line:
        fields = line.split(separator, parquet.MAX_COLUMNS)
    else:
        fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [unquoted(field) for field in fields]


def unquoted(field: str) -> str:
    """Returns a field without the quotation marks around the whole of it, and blanks."""
    field = field.strip(_STRIPPED)
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"').strip(_STRIPPED)
    return field


def text_of(value: object) -> str:
    """Returns the text of a value in memory; "" for None, NaN, and what pandas has for those.

    Example:
        >>> text_of(17.0), text_of(1.25), text_of(float("nan")), text_of(" ann ")
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


def as_floats(texts: Sequence[str]) -> Floats:
    """Turns texts into numbers (P,), with NaN for a text that is not a number.

    Example:
        >>> as_floats(["0.5", "x", "1_0"])
        array([0.5, nan, nan])
    """
    try:
        values = np.fromiter(map(float, texts), dtype=np.float64, count=len(texts))
        if "_" not in " ".join(texts):  # Python reads 1_0 as ten
            return values
    except ValueError:
        pass
    return np.array([float(text) if is_number(text) else np.nan for text in texts])


def is_number(text: str) -> bool:
    """Returns whether the text is a number; nan and inf count as numbers.

    Example:
        >>> is_number("-1.5e-3"), is_number("1_0"), is_number("id1")
        (True, False, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def all_fractions(texts: Sequence[str]) -> bool:
    """Returns whether the texts are numbers, and not all of them are written as integers.

    Example:
        >>> all_fractions(["1", "1.0"]), all_fractions(["1", "0010"]), all_fractions(["1.0", "a"])
        (True, False, False)
    """
    return all(map(is_number, texts)) and not all(text.lstrip("+-").isdigit() for text in texts)


def _texts(
    path: Path, shape_of: ShapeOf, *, comments: bool, block_size: int = 0
) -> Iterator[tuple[Shape, bytes]]:
    """Yields the shape of a text, and blocks of whole rows of it below its header."""
    shape: Shape | None = None
    pending, num_rows = b"", 0
    for text in text_blocks(path, block_size):
        if shape is None:
            if not (sample := list(islice(_data_lines(text), _SAMPLE))):
                continue
            shape = shape_of(sample)
            if max(shape.width, len(split(sample[0], shape.separator))) > parquet.MAX_COLUMNS:
                raise LikenessError(
                    f"{path}: over {parquet.MAX_COLUMNS} fields in a line; is this the right file?"
                )
            text = _below(text, header=shape.header)
        pending += text
        # A quoted field may go on in the next block.
        if shape.separator in ",;" and pending.count(b'"') % 2 and len(pending) < _QUOTED:
            continue
        if tidy := _tidy(pending, shape, comments=comments or not shape.header):
            num_rows += 1
            yield shape, tidy
        pending = b""
    if pending:
        raise LikenessError(f"{path}: quotation marks are not closed; correct them")
    if not num_rows:
        raise LikenessError(
            f"{path}: the file is empty, or has no rows; expected one for each trial or item"
        )


def _data_lines(text: bytes) -> Iterator[str]:
    """The lines of a block that are neither blank nor comments, nor spreadsheets' sep=;."""
    start = 0
    while start < len(text):
        end = text.index(b"\n", start)
        line = text[start:end].decode(errors="replace").strip("\r\n")
        bare = line.strip(_STRIPPED)
        if bare and not bare.startswith("#") and not re.match(r"sep=.\s*$", line):
            yield line
        start = end + 1


def _below(text: bytes, *, header: bool) -> bytes:
    """What follows the header and the lines above it that hold no data."""
    start = 0
    while True:
        end = text.index(b"\n", start) + 1
        if next(_data_lines(text[start:end]), None) is not None:
            return text[end:] if header else text[start:]
        start = end


def _tidy(text: bytes, shape: Shape, *, comments: bool) -> bytes:
    """The lines of a block with single separators, without comments and rows that are empty."""
    mark = re.escape(shape.separator.encode())
    if shape.separator == " ":
        blanks = np.frombuffer(b"\n" + text, np.uint8) <= ord(" ")
        if b"\t" in text or (blanks[1:] & blanks[:-1]).any():
            text = re.sub(rb"[ \t]+", b" ", text)
            text = re.sub(rb"(?m)^ | $", b"", text)
    elif text.startswith(shape.separator.encode()) or f"\n{shape.separator}".encode() in text:
        text = re.sub(rb"(?m)^[ \t%s]+\n" % mark, b"", text)
    if comments and b"#" in text:
        text = re.sub(rb"(?m)^[ \t]*#.*\n", b"", text)
    return text


def _columns(
    path: Path, text: bytes, shape: Shape, numeric: Sequence[bool]
) -> list[Column | Floats]:
    """The columns of a block of lines that are read; `numeric` says which are to be numbers."""
    import pyarrow

    coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    kinds = [pyarrow.float64() if is_number else coded for is_number in numeric]
    try:
        arrays, others = _parsed(path, text, shape, kinds)
    except LikenessError:
        if not any(numeric):
            raise
        # A number is none.
        return _with_numbers(_columns(path, text, shape, [False] * len(numeric)), numeric)
    if others:
        raise LikenessError(
            f"{path}: lines differ in their number of fields; expected {shape.width}, and "
            f"{quoted(others[0])} has {len(split(others[0], shape.separator))}"
        )
    return [
        parquet.numbers(array)
        if is_number
        else Column(array.dictionary.to_pylist(), parquet.numbers(array.indices))
        for array, is_number in zip(arrays, numeric, strict=False)
    ]


def _texts_of(path: Path, text: bytes, shape: Shape) -> list[list[str]]:
    """The texts of the columns of a block of lines, of which some may be short."""
    import pyarrow

    arrays, others = _parsed(path, text, shape, [pyarrow.string()] * shape.width)
    if others:
        return _padded(path, text, shape)
    columns: list[list[str]] = [array.to_pylist() for array in arrays]
    if b" " in text or b'"' in text or (b"\t" in text and shape.separator != "\t"):
        columns = [[_bare(field, shape) for field in column] for column in columns]
    return columns


def _parsed(path: Path, text: bytes, shape: Shape, kinds: list[Any]) -> tuple[list[Any], list[str]]:
    """The columns of a block as arrays of these types, and rows of another number of fields."""
    import pyarrow
    from pyarrow import csv as arrow_csv

    others: list[str] = []

    def pass_over(row: Any) -> str:
        if row.text.strip(_STRIPPED):
            others.append(row.text)
        return "skip"

    quoted_fields = shape.separator in ",;"
    names = list(map(str, range(shape.width)))
    read = [names[place] for place in _places(shape)]
    try:
        table = arrow_csv.read_csv(
            pyarrow.BufferReader(text),
            arrow_csv.ReadOptions(column_names=names, block_size=len(text) + 1),
            arrow_csv.ParseOptions(
                delimiter=shape.separator,
                quote_char='"' if quoted_fields else False,
                newlines_in_values=quoted_fields and b'"' in text,
                invalid_row_handler=pass_over,
            ),
            arrow_csv.ConvertOptions(
                include_columns=read,
                column_types=dict(zip(read, kinds, strict=False)),
                null_values=[],
            ),
        )
    except pyarrow.ArrowInvalid as error:
        raise LikenessError(
            f"{path}: not UTF-8 text ({first_line(error)}); if it is Latin-1, as of older "
            f"spreadsheets, convert it: iconv -f LATIN1 -t UTF-8 {path.name} > converted.csv"
        ) from None
    return [table.column(name).combine_chunks() for name in read], others


def _places(shape: Shape) -> list[int]:
    """The places of the columns that are read."""
    return list(range(shape.width) if shape.places is None else shape.places.values())


def _with_numbers(columns: list[Column | Floats], numeric: Sequence[bool]) -> list[Column | Floats]:
    """The columns, of which some become numbers."""
    return [
        as_floats(column.keys)[column.codes] if is_number and isinstance(column, Column) else column
        for column, is_number in zip(columns, numeric, strict=False)
    ]


def _padded(path: Path, text: bytes, shape: Shape) -> list[list[str]]:
    """The texts of the columns of rows that may be short."""
    lines = [f"{line}\n" for line in text.decode(errors="replace").split("\n")]
    if shape.separator in ",;":
        rows: Iterator[list[str]] = csv.reader(lines, delimiter=shape.separator)
    else:
        rows = (split(line, shape.separator) for line in lines)
    places = _places(shape)
    cells: list[list[str]] = [[] for _ in places]
    for row in rows:
        if not any(row):
            continue
        if len(row) > shape.width and any(field.strip() for field in row[shape.width :]):
            raise LikenessError(
                f"{path}: a row has more fields than the first line "
                f"({quoted(shape.separator.join(row))}); put quotation marks around a field that "
                "holds the separator"
            )
        for column, place in zip(cells, places, strict=True):
            column.append(row[place].strip(_STRIPPED) if place < len(row) else "")
    return cells


def _column_of(values: parquet.Values) -> Column | Floats:
    """A column of a .parquet file; whole numbers and truth values are texts."""
    if values.texts is not None:
        keys = ["" if text is None else text for text in values.texts]
        column = Column([*keys, ""], np.where(values.missing, len(keys), values.values))
    elif values.values.dtype.kind == "f" and not values.missing.any():
        return values.values.astype(np.float64, copy=False)
    else:
        distinct, codes = np.unique(values.values, return_inverse=True)
        keys = list(map(text_of, distinct.tolist()))
        column = Column([*keys, ""], np.where(values.missing, len(keys), codes))
    return Column(column.keys, column.codes.astype(np.int32, copy=False))


def in_order(column: Column) -> Column:
    """Returns the column with each key that occurs once, in NFC, by its first occurrence."""
    first = np.full(len(column.keys), column.codes.size)
    # Of several places, the last that is assigned stays: the first row.
    first[column.codes[::-1]] = np.arange(column.codes.size)[::-1]
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < column.codes.size)]
    index: dict[str, int] = {}
    numbers = np.full(len(column.keys), -1, dtype=np.int32)
    for k in order.tolist():
        numbers[k] = index.setdefault(nfc(column.keys[k]), len(index))
    return Column(list(index), numbers[column.codes])


class _Numbers(dict[str, int]):
    """The number of each text of a column of names, as it is written: names are in NFC."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.names: dict[str, int] = {}
        self._shape = shape

    def __missing__(self, text: str) -> int:
        number = self[text] = self.names.setdefault(nfc(_bare(text, self._shape)), len(self.names))
        return number


def _bare(text: str, shape: Shape) -> str:
    """A field without blanks around it, and without quotation marks that are still there."""
    return text.strip(_STRIPPED) if shape.separator in ",;" else unquoted(text)


def _numeric(shape: Shape, columns: list[Column | Floats]) -> list[bool]:
    """Which columns are scores, whose texts need not be kept."""
    if shape.places is not None:
        return [role == "score" for role in shape.places]
    numeric = [
        isinstance(column, Column) and all_fractions([_bare(key, shape) for key in column.keys])
        for column in columns
    ]
    return numeric if sum(numeric) < 2 else [False] * len(columns)


def _roles(shape: Shape | None) -> tuple[str, ...] | None:
    return None if shape is None or shape.places is None else tuple(shape.places)
