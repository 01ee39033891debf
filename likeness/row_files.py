"""Rows of results as tables of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from eval.errors import LikenessError
from likeness.missing import refuse_missing_folder

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def table_text(columns: Sequence[str], rows: Iterable[Iterable[object]], delimiter: str) -> str:
    """Give rows as a table of text with a head; a value that is not known is left empty.

    Args:
        columns: The names of the columns.
        rows: The values of each row; None is not known.
        delimiter: What separates the values.

    Example:
        >>> print(table_text(["id", "same"], [["a", True], ["b", None]], ","), end="")
        id,same
        a,true
        b,
    """
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if value is None else _shown(value) for value in row])
    return file.getvalue()


def _shown(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def check_written(path: Path, endings: Collection[str] = ()) -> None:
    """Refuse a file that could not be written, before the work.

    Args:
        path: The file.
        endings: The endings of files that are written, such as ".csv"; without any, all are.

    Raises:
        LikenessError: The file has another ending. Its folder does not exist.
    """
    if endings and path.suffix.lower() not in endings:
        raise LikenessError(f"{path}: name a file that ends in {', '.join(endings)}")
    refuse_missing_folder(path)
