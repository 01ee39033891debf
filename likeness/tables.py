"""The columns of a table of files: of a .csv or .tsv file, or of pandas, polars and the like."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from eval.types import name_first

TABLES = (".csv", ".tsv")
_COLUMNS = ("id", "path", "label")  # of a table; the others are not read
_NAMED = 6  # other columns, whose names an error may need
_MAX_TABLE = 2**30  # characters of a CSV file
_MAX_TABLE_LINE = 2**20  # characters of one of its lines


def columns_of_file(path: Path) -> dict[str, list[Any]]:
    """Read the columns `id`, `path` and `label` of a .csv or .tsv file, those that are there.

    Args:
        path: The file, in UTF-8, with a head that names its columns.

    Returns:
        The cells of each of these columns; a cell that a short row lacks is None. The first of
        the other columns are there without cells.

    Raises:
        ValueError: It is no such table, a column is there twice, a row has more fields than the
            head, or it is too large.
    """
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            return _csv_columns(csv.reader(_lines(file, path), delimiter=delimiter), path)
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: this is not a table in UTF-8 ({error})") from None


def columns_of_table(table: Any) -> dict[str, list[Any]]:
    """Give the columns `id`, `path` and `label` of a table in memory, those that are there.

    Args:
        table: What has `columns` and gives the values of each by its name.

    Returns:
        The cells of each of these columns; a missing value is None. Other columns are there
        without cells.

    Raises:
        ValueError: A column is there twice.
    """
    names = [str(name) for name in table.columns]
    _refuse_repeated(names, "the table")
    return {
        name: [None if _is_empty(value) else value for value in table[column]]
        if name in _COLUMNS
        else []
        for name, column in zip(names, table.columns, strict=True)
    }


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a table, of which none and all together are longer than is allowed.

    A link to /dev/zero states no size and has no end of a line.
    """
    total = 0
    while line := file.readline(_MAX_TABLE_LINE + 1):
        total += len(line)
        if len(line) > _MAX_TABLE_LINE:
            raise ValueError(
                f"{path}: a line has over {_MAX_TABLE_LINE} characters, and at most so many are "
                "read; is this a table of files?"
            )
        if total > _MAX_TABLE:
            raise ValueError(f"{path}: over {_MAX_TABLE} characters; give the table in parts")
        yield line


def _csv_columns(rows: Iterator[list[str]], path: Path) -> dict[str, list[Any]]:
    """The columns of a table that are read; a cell that a short row lacks is None.

    Only these are kept: a wide head over short rows would make many more cells than the file has.
    """
    names = next(rows, [])
    _refuse_repeated(names, str(path))
    places = {name: names.index(name) for name in _COLUMNS if name in names}
    columns: dict[str, list[Any]] = {name: [] for name in (*names[:_NAMED], *places)}
    long = []
    for number, row in enumerate(filter(None, rows), 1):
        if any(row[len(names) :]):
            long.append(f"row {number}")
        for name, place in places.items():
            columns[name].append(row[place] if place < len(row) else None)
    if long:
        raise ValueError(
            f"{path}: {len(long)} rows have more fields than the head ({name_first(long)}); put "
            "quotation marks around a path that holds the separator"
        )
    return columns


def _refuse_repeated(names: Sequence[str], table: str) -> None:
    if twice := [name for name in _COLUMNS if names.count(name) > 1]:
        raise ValueError(f"{table} has several columns `{twice[0]}`; leave one of them")


def _is_empty(value: Any) -> bool:
    """Whether a cell is None, NaN, or what pandas has for a missing value: NA or NaT."""
    return (
        value is None
        or (isinstance(value, float) and value != value)
        or type(value).__name__ in ("NAType", "NaTType")
    )
