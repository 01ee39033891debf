"""Tables of files as items: CSV, TSV and Parquet files, and tables in memory, as of pandas."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.formats.cells import Block, cell, head_of, parquet_blocks, text_blocks
from eval.types import name_first
from toolkit.data.column_names import FURTHER, by_number, choose, is_header
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Items, ItemsBuilder
from toolkit.data.label_pattern import LabelPattern
from toolkit.data.remote import is_url, place_below

SUFFIXES = (".csv", ".tsv", ".parquet")
_ROWS = 2**16


def has_header(path: Path) -> bool:
    """Returns whether the first line of a text names columns, of which one has the paths."""
    return is_header(head_of(path))


def read_table(
    path: Path,
    *,
    root: Path,
    columns: Mapping[str, str],
    pattern: LabelPattern | None = None,
) -> Items:
    """Reads a table of files.

    Args:
        path: A text or .parquet file (see `eval.formats.cells`).
        root: The folder that relative paths start from.
        columns: Role -> column, where the names of the columns do not say it (see `column_names`).
        pattern: What labels are taken from, in place of a column.

    Returns:
        The items, in the order of the rows. A row without an id has its path as its id, and behind
        it its times, if it has any.

    Raises:
        LikenessError: Columns are not known, or rows are wrong. They are counted, and the first is
            named.
    """

    def chosen(names: list[str]) -> dict[str, int]:
        return choose(names, columns, str(path))

    is_parquet = path.suffix.lower() == ".parquet"
    blocks = (
        parquet_blocks(path, chosen)
        if is_parquet
        else text_blocks(path, chosen, header=not by_number(columns))
    )
    return _items(blocks, str(path), "row" if is_parquet else "line", root, pattern)


def items_of_frame(
    table: Any,
    *,
    root: Path,
    columns: Mapping[str, str],
    pattern: LabelPattern | None = None,
) -> Items:
    """Makes items of a table in memory: anything with `columns` that gives each by its name.

    Args:
        table: The table, as of pandas or polars.
        root: As for `read_table`; so are `columns` and `pattern`.

    Raises:
        LikenessError: As for `read_table`.

    Example:
        >>> class Table(dict):
        ...     columns = property(list)
        >>> table = Table(file=["a.wav"], speaker=["ann"])
        >>> items_of_frame(table, root=Path("voices"), columns={})[0].label
        'ann'
    """
    names = [str(name) for name in table.columns]
    places = choose(names, columns, "the table")
    twice = [names[place] for place in places.values() if names.count(names[place]) > 1]
    if twice:
        raise LikenessError(f"the table has several columns `{twice[0]}`; leave one of them")
    read = {role: list(table[list(table.columns)[place]]) for role, place in places.items()}

    def blocks() -> Iterator[Block]:
        for start in range(0, len(read["path"]), _ROWS):
            cells = {
                role: list(map(cell, values[start : start + _ROWS]))
                for role, values in read.items()
            }
            yield Block(range(start + 1, start + 1 + len(cells["path"])), cells)

    return _items(blocks(), "the table", "row", root, pattern)


def _items(
    blocks: Iterator[Block], where: str, unit: str, root: Path, pattern: LabelPattern | None
) -> Items:
    """The items of the rows of a table."""
    made, empty, num_rows = ItemsBuilder(), list[str](), 0
    before = (root / "x").as_posix()[:-1]
    for block in blocks:
        numbers, cells = block
        num_rows += len(numbers)
        if "" in cells["path"]:
            rows = [row for row, path in enumerate(cells["path"]) if not path]
            # A row of nothing but separators is how spreadsheets write an empty one.
            bad = [row for row in rows if any(column[row] for column in cells.values())]
            empty += [f"{unit} {numbers[row]}" for row in bad or rows[: len(cells) == 1]]
            kept = [row for row, path in enumerate(cells["path"]) if path]
            cells = {role: [column[row] for row in kept] for role, column in cells.items()}
        _add(made, cells, before, root, pattern)
    if empty:
        raise LikenessError(
            f"{where}: {len(empty)} of {num_rows} rows have no path ({name_first(empty)}); fill or "
            "remove them"
        )
    try:
        items = made.build()
    except ValueError as error:  # of times
        raise LikenessError(f"{where}: {error}") from None
    if not items:
        raise LikenessError(f"{where}: the table has no rows; one for each file is needed")
    if pattern is not None:
        items = pattern.relabelled(items, root, where)
    check_unique(items, where)
    return items


def _add(
    made: ItemsBuilder,
    cells: dict[str, list[str]],
    before: str,
    root: Path,
    pattern: LabelPattern | None,
) -> None:
    """Adds rows to the items."""
    names = list(map(written_path, cells["path"], [root] * len(cells["path"])))
    further = {role: cells[role] for role in FURTHER if role in cells}
    if "start" in further and "," in "".join(further["start"] + further.get("end", [])):
        # The comma of many languages, beside semicolons.
        for role in further.keys() & {"start", "end"}:
            further[role] = [text.replace(",", ".") for text in further[role]]
    if "duration" in cells:
        further["end"] = list(map(_end, further["start"], cells["duration"]))
    own = (
        [
            with_times(name, start, end)
            for name, start, end in zip(
                names,
                further.get("start", [""] * len(names)),
                further.get("end", [""] * len(names)),
                strict=True,
            )
        ]
        if further.keys() & {"start", "end"}
        else names
    )
    ids = [id or name for id, name in zip(cells["id"], own, strict=True)] if "id" in cells else own
    paths = [
        place_below(root, name) if is_url(name) else name if os.path.isabs(name) else before + name
        for name in names
    ]
    labels = None
    if "label" in cells and pattern is None:
        labels = [None if text in ("", "nan", "NaN") else text for text in cells["label"]]
    made.add(ids, paths, labels, further=further)


def written_path(text: str, root: Path) -> str:
    r"""Returns a path of a table with slashes and without empty parts.

    A backslash is a separator, as on Windows, unless a file has one in its name. A URL stays.
    """
    if is_url(text):
        return text
    if "\\" in text and os.sep == "/" and not os.path.exists(root / text):
        text = text.replace("\\", "/")
    if "//" in text or "/." in text or text.startswith("./") or text.endswith("/"):
        return Path(text).as_posix()
    return text


def with_times(name: str, start: str, end: str) -> str:
    """Returns the id of a stretch of a file: its name and its times.

    Example:
        >>> with_times("a.wav", "1.50", "3"), with_times("a.wav", "", "")
        ('a.wav@1.5-3', 'a.wav')
    """
    if not start and not end:
        return name
    return f"{name}@{_short(start)}-{_short(end)}"


def _short(text: str) -> str:
    """A number of seconds with no more digits than it needs."""
    try:
        return f"{float(text):.10g}" if text else ""
    except ValueError:
        return text


def _end(start: str, duration: str) -> str:
    """The end of a stretch of this duration; the text of the duration where it is no number."""
    try:
        length = float(duration.replace(",", "."))
        return repr(round(float(start or 0) + length, 9)) if length > 0 else f"+{duration}"
    except ValueError:
        return duration
