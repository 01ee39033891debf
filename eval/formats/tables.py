"""Lists and tables that others wrote, as columns: text with any separator, .parquet, data frames.

This one reader serves trial lists, scores, values of ids, pairs and lists of files. Text is UTF-8,
or UTF-16 with a byte order mark, plain or compressed by gzip, with tabs, commas, semicolons or
blanks between the fields. Between commas and semicolons fields may have quotation marks as
spreadsheets write them. Blank lines are skipped, and so are lines that begin with #, but not below
a header. pyarrow reads the text in blocks, and each text becomes a number.

What the columns mean is known by whoever asks: see `Shape`.
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import parquet
from likeness.eval.formats.files import text_blocks, text_lines
from likeness.eval.formats.parquet import Column, text_of
from likeness.eval.types import Floats, Ints, item_id, nfc, quoted

_SAMPLE = 1_000  # the lines that decide how fields are separated; all later lines have to comply
_ROWS_AT_ONCE = 1 << 21  # bytes of rows that become texts together
_QUOTED = 1 << 28  # bytes that quotation marks may hold together
_MAX_WIDTH = 1 << 15  # fields of a line
_STRIPPED = " \t\r\n"
# A whole field in quotation marks between commas or semicolons; others are part of a name.
_QUOTED_FIELD = re.compile(r'(^|[,;]) *"(?:[^"]|"")*" *(?=[,;]|$)')
# The names that a list would give back as others.
UNWRITABLE = re.compile(r'^\Z|^[# \ufeff]| \Z|^".*"\Z|[\x00-\x1f\ud800-\udfff]', re.DOTALL)
# What may stand above the first line: blank lines, comments, and the sep=; of spreadsheets.
_ABOVE = re.compile(rb"(?:[ \t]*(?:#.*)?\n|sep=.[ \t]*\n)*+")


class Shape(NamedTuple):
    """How the lines of a text become columns.

    Attributes:
        separator: What lies between two fields; " " stands for any number of blanks and tabs.
        width: The number of fields of a line.
        places: Role -> place of the columns that are read, where they are known; otherwise all
            columns are read.
        header: Whether the first line has the names of the columns.
        numeric: Which of the columns that are read are numbers, where that is asked for.
    """

    separator: str
    width: int
    places: Mapping[str, int] | None = None
    header: bool = False
    numeric: Sequence[bool] = ()


class Table(NamedTuple):
    """A table of P rows.

    Attributes:
        where: The file, for messages.
        roles: What each column is; none where that is not known.
        columns: The columns. One of decimal fractions is an array (P,) of numbers, with NaN for a
            text that is not a number.
    """

    where: str
    roles: tuple[str, ...]
    columns: list[Column | Floats]

    def column(self, role: str) -> Column:
        """The column of this role, which is one of texts."""
        column = self.columns[self.roles.index(role)]
        assert isinstance(column, Column)
        return column


ShapeOf = Callable[[list[str]], Shape]
Choose = Callable[[list[str]], Mapping[str, int]]
Blocks = Iterator[tuple[Shape, list[Any]]]  # some rows: the arrays of the columns that are read


def read_table(source: Any, shape_of: ShapeOf, choose: Choose, *, fractions: bool = False) -> Table:
    """Reads a list or a table, at least one row, whose ids are names.

    All lines of a text have one number of fields. Names are in Unicode NFC, and numbered by their
    first occurrence. It takes about 200 MB of memory beside the result.

    Args:
        source: Text, or what `read_values` takes.
        shape_of: Gives the shape of the text from its first lines, without comments.
        choose: As for `read_values`.
        fractions: Keeps columns of decimal fractions as numbers; these are scores, which are mostly
            distinct. With a header that is only its column "score". Where several columns are
            fractions and no header says which is the score, all are kept as text, because ids may
            be fractions too; the caller then has to decide.

    Raises:
        LikenessError: The file is empty or no text, or lines differ in their number of fields; and
            as `read_values`.
    """
    if not isinstance(source, str | PathLike) or Path(source).suffix.lower() == ".parquet":
        table = read_values(source, choose, numeric=["score"])
        if not table.column(table.roles[0]).codes.size:
            raise LikenessError(f"{table.where}: it has no rows; each trial or item needs one")
        ordered = [in_order(c) if isinstance(c, Column) else c for c in table.columns]
        return table._replace(columns=ordered)

    def numeric_shape(sample: list[str]) -> Shape:
        shape = shape_of(sample)
        if shape.places:
            return shape._replace(numeric=[fractions and role == "score" for role in shape.places])
        fields = [split(line, shape.separator) for line in sample]
        columns = zip(*(row for row in fields if len(row) == shape.width), strict=True)
        numeric = [fractions and all_fractions(column) for column in columns]
        return shape._replace(numeric=numeric if sum(numeric) == 1 else [False] * shape.width)

    parts: list[list[Any]] = []
    roles: tuple[str, ...] = ()
    numeric: Sequence[bool] = ()
    for shape, arrays in text_columns(Path(source), numeric_shape):
        if not parts:
            roles, numeric, parts = tuple(shape.places or ()), shape.numeric, [[] for _ in arrays]
        for part, array, is_number in zip(parts, arrays, numeric, strict=True):
            part.append(floats(array) if is_number else array.dictionary_encode())
        arrays.clear()  # to save memory, as below
    columns: list[Column | Floats] = []
    for is_number, part in zip(numeric, parts, strict=True):
        columns.append(np.concatenate(part) if is_number else _joined(part))
        part.clear()
    return Table(str(source), roles, columns)


def read_rows(source: Any, shape_of: ShapeOf, choose: Choose) -> Iterator[dict[str, list[str]]]:
    """Yields blocks of rows of a table: the texts of each column by its role.

    Args:
        source: As for `read_table`.
        shape_of: As for `read_table`; it knows the places of the columns.
        choose: As for `read_values`.

    Raises:
        LikenessError: It is no such file, or lines differ in their number of fields.
    """
    if not isinstance(source, str | PathLike) or Path(source).suffix.lower() == ".parquet":
        table = read_values(source, choose)
        yield {role: list(map(text_of, table.column(role).texts())) for role in table.roles}
        return
    for shape, arrays in text_columns(Path(source), shape_of, _ROWS_AT_ONCE):
        assert shape.places is not None
        yield dict(zip(shape.places, [array.to_pylist() for array in arrays], strict=True))


def read_values(source: Any, choose: Choose, *, numeric: Sequence[str] = ()) -> Table:
    """Reads columns of a .parquet file or of a table in memory.

    Args:
        source: The file; or anything with `columns` that gives each by its name, as of pandas.
        choose: Gives role -> place of the columns to read, from the names of all.
        numeric: The roles of which a file's decimal fractions stay numbers.

    Raises:
        LikenessError: The file is damaged, a column holds neither texts nor numbers, or a text is
            too long.
    """
    if not isinstance(source, str | PathLike):
        names = list(source.columns)
        places = choose(list(map(str, names)))
        values = [list(map(text_of, source[names[place]])) for place in places.values()]
        return Table("the table", tuple(places), list(map(Column.of, values)))
    path = Path(source)
    with parquet.open_parquet(path) as file:
        names = list(parquet.column_types(file))
        places = choose(names)
        kept = [names[place] for role, place in places.items() if role in numeric]
        read = [names[place] for place in places.values()]
        return Table(str(path), tuple(places), parquet.read_columns(path, file, read, kept))


def headless_shape(sample: list[str], fits: Callable[[Sequence[str]], bool]) -> Shape:
    """Returns the shape of a text without a header: one under which all lines look as expected.

    Of several separators it is that of the most fields; in "a, b, 1" the commas count more than the
    blanks.

    Args:
        sample: The first lines.
        fits: Whether the fields look like a line of the kind that is read.
    """
    fitting = [mark for mark in "\t,; " if all(fits(split(line, mark)) for line in sample)]
    first = sample[0]
    separator = max(fitting, key=lambda mark: len(split(first, mark)), default=separator_of(first))
    return Shape(separator, len(split(first, separator)))


def named_shape(sample: list[str], choose: Choose, *, header: bool) -> Shape:
    """Returns the shape of a text of which `choose` knows the columns by the fields of its head.

    Args:
        sample: The first lines.
        choose: Gives role -> place of the columns to read.
        header: Whether the first line has the names of the columns.
    """
    separator = separator_of(sample[0])
    fields = split(sample[0], separator)
    return Shape(separator, len(fields), choose(fields), header)


def separator_of(first: str) -> str:
    """Returns what separates the fields of a first line: a tab, else a comma or semicolon."""
    bare = _QUOTED_FIELD.sub(r"\1", first) or first
    if "\t" in bare:
        return "\t"
    best = max(";,", key=bare.count)
    return best if best in bare else "," if first.lstrip().startswith('"') else " "


def split(line: str, separator: str) -> list[str]:
    """Returns the fields of one line.

    Example:
        >>> split('a, "b;c" ', ","), split(" a  b", " ")
        (['a', 'b;c'], ['a', 'b'])
    """
    if separator == " ":
        return re.split(r"[ \t]+", line.strip(_STRIPPED), maxsplit=_MAX_WIDTH - 1)
    fields = line.split(separator)
    if separator != "\t" and '"' in line:
        fields = next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])
    return [unquote(field) for field in fields[:_MAX_WIDTH]]


def unquote(field: str) -> str:
    """Returns a field without the quotation marks around the whole of it, and blanks."""
    field = field.strip(_STRIPPED)
    if len(field) > 1 and field[0] == field[-1] == '"':
        return field[1:-1].replace('""', '"').strip(_STRIPPED)
    return field


def as_floats(texts: Sequence[str]) -> Floats:
    """Turns texts into numbers (P,), with NaN for a text that is not a number.

    Example:
        >>> as_floats(["0.5", "x", "1_0"])
        array([0.5, nan, nan])
    """
    return np.array([float(text) if is_number(text) else np.nan for text in texts], np.float64)


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


def text_columns(path: Path, shape_of: ShapeOf, block_size: int = 0) -> Blocks:
    """Yields the shape of a text, and the texts of the columns that are read, in blocks of rows."""
    import pyarrow

    shape: Shape | None = None
    pending, is_empty = b"", True
    for text in text_blocks(path, block_size):
        if shape is None:
            above = _ABOVE.match(text)
            text = text[above.end() if above else 0 :]
            lines = text.decode().split("\n", _SAMPLE)[:_SAMPLE]
            sample = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
            if not sample:
                continue
            shape = shape_of(sample)
            if shape.header:
                text = text[text.index(b"\n") + 1 :]
        pending += text
        # A quoted field may go on in the next block.
        if shape.separator in ",;" and pending.count(b'"') % 2 and len(pending) < _QUOTED:
            continue
        if tidy := _tidy(pending, shape):
            is_empty = False
            try:
                arrays = _parsed(tidy, shape)
            except pyarrow.ArrowInvalid:
                problem = _first_uneven(path, shape)
                raise LikenessError(f"{path}: {problem}; give all the same fields") from None
            yield shape, arrays
        pending = b""
    if pending or is_empty:
        problem = "quotation marks are not closed" if pending else "the file is empty: no rows"
        raise LikenessError(f"{path}: {problem}; expected one row for each trial or item")


def _first_uneven(path: Path, shape: Shape) -> str:
    """What is wrong with the first line that has another number of fields than the first one."""
    for number, line in text_lines(path):
        num = len(split(line, shape.separator))
        if num != shape.width and not line.startswith("sep=") and line.count('"') % 2 == 0:
            return f"line {number} has {num} fields, not {shape.width} as the first: {quoted(line)}"
    return "its lines differ in their number of fields"


def _tidy(text: bytes, shape: Shape) -> bytes:
    """The lines of a block with single separators, without comments and rows that are empty."""
    if shape.separator == " ":
        blanks = np.frombuffer(b"\n" + text, np.uint8) <= ord(" ")
        if b"\t" in text or (blanks[1:] & blanks[:-1]).any():
            text = re.sub(rb"[ \t]+", b" ", text)
            text = re.sub(rb"(?m)^ | $", b"", text)
    else:
        mark = shape.separator.encode()
        marks = np.frombuffer(b"\n" + text, np.uint8)
        if np.isin(marks[1:][marks[:-1] == ord("\n")], list(b" \t" + mark)).any():
            text = re.sub(rb"(?m)^[ \t%s]+\n" % mark, b"", text)
    if not shape.header and b"#" in text:
        text = re.sub(rb"(?m)^[ \t]*#.*\n", b"", text)
    return text.lstrip(b"\n")


def _parsed(text: bytes, shape: Shape) -> list[Any]:
    """The columns to read of a block of lines, as arrays of texts of pyarrow. Where `shape.numeric`
    is set and nothing has to be stripped, they hold numbers and numbered texts instead.
    """
    import pyarrow

    may_be_quoted = shape.separator in ",;"
    has_blanks = shape.separator != " " and (b" " in text or b"\t" in text)
    has_marks = not may_be_quoted and b'"' in text
    if shape.numeric and not has_blanks and not has_marks:
        # Methods of arrays that give the same import pyarrow.compute, a tenth of a second.
        numbered = pyarrow.dictionary(pyarrow.int32(), pyarrow.large_string())
        kinds = [pyarrow.float64() if is_number else numbered for is_number in shape.numeric]
        with suppress(pyarrow.ArrowInvalid):  # a text that is no number, or lines that are uneven
            arrays = _parsed_as(kinds, text, shape)
            if not any(array.null_count for array in arrays):
                return arrays
    num = len(shape.places or range(shape.width))
    arrays = _parsed_as([pyarrow.large_string()] * num, text, shape)
    if has_blanks:
        from pyarrow import compute  # a tenth of a second to import, needed here only

        arrays = [compute.utf8_trim(array, _STRIPPED) for array in arrays]
    if has_marks:
        arrays = [parquet.as_arrow(list(map(unquote, array.to_pylist()))) for array in arrays]
    return arrays


def _parsed_as(types: Sequence[Any], text: bytes, shape: Shape) -> list[Any]:
    """The columns to read of a block of lines, as arrays of these types of pyarrow."""
    import pyarrow
    from pyarrow import csv as arrow_csv

    may_be_quoted = shape.separator in ",;"
    names = list(map(str, range(shape.width)))
    read = names if shape.places is None else [names[place] for place in shape.places.values()]
    # With threads, a process that ends soon after this aborts now and then.
    rows = arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(text) + 1)
    fields = arrow_csv.ParseOptions(
        delimiter=shape.separator,
        quote_char='"' if may_be_quoted else False,
        newlines_in_values=may_be_quoted and b'"' in text,
    )
    kinds = arrow_csv.ConvertOptions(
        include_columns=read, column_types=dict(zip(read, types, strict=True))
    )
    table = arrow_csv.read_csv(pyarrow.BufferReader(text), rows, fields, kinds)
    return [table.column(name).combine_chunks() for name in read]


def _joined(parts: list[Any]) -> Column:
    """The column of names whose blocks were parsed, numbered by their first occurrence."""
    import pyarrow

    chunks = pyarrow.chunked_array(parts).unify_dictionaries().chunks
    keys = list(map(nfc, chunks[0].dictionary.to_pylist()))
    return _renumbered(keys, np.concatenate([parquet.numbers(chunk.indices) for chunk in chunks]))


def in_order(column: Column) -> Column:
    """Returns the column with each key that occurs once, in NFC, by its first occurrence."""
    first = np.full(len(column.keys), column.codes.size)
    # Of several places, the last that is assigned stays: the first row.
    first[column.codes[::-1]] = np.arange(column.codes.size)[::-1]
    order = np.argsort(first, kind="stable")[: np.count_nonzero(first < column.codes.size)]
    place = np.zeros(len(column.keys), dtype=np.int32)
    place[order] = np.arange(order.size)
    return _renumbered([nfc(column.keys[k]) for k in order.tolist()], place[column.codes])


def as_ids(column: Column) -> Column:
    """Returns the column with its keys as ids are compared."""
    return _renumbered(list(map(item_id, column.keys)), column.codes)


def _renumbered(keys: list[str], codes: Ints) -> Column:
    """The column of these keys, of which some may be equal."""
    index: dict[str, int] = {}
    numbers = np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int32)
    # Distinct keys, as almost all are, have their numbers already.
    return Column(list(index), codes if len(index) == len(keys) else numbers[codes])


def floats(texts: Any) -> Floats:
    """The numbers of an array of pyarrow, with NaN for a text that is not a number."""
    import pyarrow

    try:
        is_parsed = texts.type == pyarrow.float64()
        return parquet.numbers(texts if is_parsed else texts.cast("float64"))
    except pyarrow.ArrowInvalid:
        return as_floats(texts.to_pylist())
