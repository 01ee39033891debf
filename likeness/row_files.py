"""Rows of results as files: tables of text, Parquet, JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from likeness.presence import refuse_missing_folder

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


def write_rows(
    path: Path,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    document: Mapping[str, object] | None = None,
    types: Mapping[str, str] | None = None,
) -> None:
    """Write rows whole or not at all, as the ending of the file says.

    Args:
        path: The file.
        columns: The names of the columns.
        rows: The values of each row; None is not known.
        document: What a .json file holds; without it there is none.
        types: Column -> its type in a .parquet file; without them there is none.

    Raises:
        LikenessError: The file has another ending, or its folder does not exist.
    """
    from eval.formats.writing import atomic_path

    check_written(
        path, [*DELIMITERS, *([".parquet"] if types else []), *([".json"] if document else [])]
    )
    suffix = path.suffix.lower()
    with atomic_path(path) as temporary:
        if suffix == ".parquet" and types:
            import pyarrow as pa
            import pyarrow.parquet

            fields = pa.schema([(name, types[name]) for name in columns])
            values = [dict(zip(columns, row, strict=True)) for row in rows]
            pyarrow.parquet.write_table(pa.Table.from_pylist(values, fields), temporary)
            return
        if suffix == ".json":
            text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        else:
            text = table_text(columns, rows, DELIMITERS[suffix])
        temporary.write_text(text, encoding="utf-8", newline="")


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
