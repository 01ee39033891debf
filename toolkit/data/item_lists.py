"""Lists and tables of files as items: text, .parquet, and tables in memory, as of pandas."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from eval.errors import LikenessError
from eval.formats import lists
from eval.formats.column_names import by_number, choose, is_header, with_further
from eval.formats.files import atomic_path
from eval.types import name_first
from toolkit.data.items import Item, Items, ItemsBuilder, check_unique
from toolkit.data.remote import is_url, place_below, url_of

SUFFIXES = (".csv", ".tsv", ".parquet")  # of tables, whose columns have names
_LAYOUTS = (("path",), ("id", "path"), ("id", "path", "label"))  # of lines without a header
_OWN = ("id", "path", "label", "duration")  # columns that an Item has itself, or that give its end
_UNWRITABLE = re.compile(r'^\Z|^[\s#\ufeff]|\s\Z|^".*"\Z|[\x00-\x1f\ud800-\udfff]', re.DOTALL)


def read_items(
    path: Path,
    root: Path | None = None,
    *,
    columns: Mapping[str, str] | None = None,
) -> Items:
    """Reads a list or a table of files.

    All lines of a list are `path`, `id path` or `id path label`. A table has a header, or is a
    .parquet file; its columns are known by their names (`eval.formats.column_names`). All other
    columns are carried along under their own names (Items.column).

    Args:
        path: The file (see `eval.formats.lists`).
        root: The folder that relative paths start from; by default that of the file.
        columns: Role -> column, where the names of the columns do not say it.

    Returns:
        The items, in the order of the rows. A row without an id has its path as its id, and behind
        it its times, if it has any.

    Raises:
        LikenessError: Columns are not known, rows have no path, or ids are repeated.
    """
    stated = columns or {}

    def chosen(names: list[str]) -> dict[str, int]:
        return with_further(names, choose(names, stated, str(path)), stated)

    def shape(sample: list[str]) -> lists.Shape:
        separator = lists.separator_of(sample[0])
        fields = lists.split(sample[0], separator)
        # A list may be called .csv too. Its first line has a path where a table has names.
        is_table = path.suffix.lower() in SUFFIXES and not re.search(r"[/\\.]", sample[0])
        if stated or is_table or is_header(fields):
            return lists.named_shape(sample, chosen, header=not by_number(stated))
        separator = "\t" if "\t" in sample[0] else separator
        width = len(lists.split(sample[0], separator))
        if width > len(_LAYOUTS):
            raise LikenessError(
                f"{path}: a line has {width} fields; each must be `path` or `id path [label]`, or "
                "the first one names the columns, such as path,label; where a field contains "
                "blanks, all need tabs or commas between them"
            )
        places = {role: place for place, role in enumerate(_LAYOUTS[width - 1])}
        return lists.Shape(separator, width, places)

    blocks = lists.read_rows(path, shape, chosen)
    is_text = path.suffix.lower() != ".parquet"
    return _items(blocks, str(path), path.parent if root is None else root, is_text)


def items_of_frame(table: Any, *, root: Path, columns: Mapping[str, str]) -> Items:
    """Makes items of a table in memory: anything with `columns` that gives each by its name.

    Args:
        table: The table, as of pandas or polars.
        root: As for `read_items`; so is `columns`.

    Raises:
        LikenessError: As for `read_items`.

    Example:
        >>> class Table(dict):
        ...     columns = property(list)
        >>> table = Table(file=["a.wav"], speaker=["ann"])
        >>> items_of_frame(table, root=Path("voices"), columns={})[0].label
        'ann'
    """

    def chosen(names: list[str]) -> dict[str, int]:
        return with_further(names, choose(names, columns, "the table"), columns)

    read = lists.read_frame(table, chosen)
    cells = {role: read.column(role).texts() for role in read.roles}
    return _items([cells], "the table", root, is_text=False)


def write_items(path: Path, items: Sequence[Item], root: Path | None = None) -> None:
    """Writes a list that `read_items` reads, `id path` separated by a tab, whole or not at all.

    Where items are stretches of recordings, the columns start and end are there too, below a
    header.

    Args:
        path: The list.
        items: The items, which must be files.
        root: The folder that relative paths start from: the path of a file in it is written
            relative to it, and that of another file whole. None leaves the paths as they are.

    Raises:
        LikenessError: Items lie in tar shards, which a list of paths cannot name, or their names
            would be read back as others. They are counted.
    """
    if inside := [item.id for item in items if item.span is not None]:
        raise LikenessError(
            f"{path}: {len(inside)} of {len(items)} items lie inside tar shards "
            f"({name_first(inside)}), and a list names files only; unpack the shards, and"
            " make the list of the folder of their files"
        )
    timed = any(item.stretch is not None for item in items)
    rows = [
        [item.id, _place(item.path, root), *(_times(item.stretch) if timed else ())]
        for item in items
    ]
    bad = [row[0] for row in rows if any(map(_UNWRITABLE.search, row[:2]))]
    if bad:
        raise LikenessError(
            f"{path}: {len(bad)} of {len(items)} items have names that a list cannot contain "
            f"({name_first(bad)}): they begin with #, stand in quotation marks,"
            " begin or end with a blank, or contain tabs, line ends or bytes that are not UTF-8;"
            " rename their files"
        )
    header = ["id", "path", *["start", "end"] * timed]
    # Where the first line could be a header, a header comes before it.
    needed = timed or path.suffix.lower() in SUFFIXES or (rows and is_header(rows[0]))
    with atomic_path(path) as temporary:
        lines = "".join("\t".join(row) + "\n" for row in [*[header] * bool(needed), *rows])
        temporary.write_text(lines, encoding="utf-8")


def _place(path: Path, root: Path | None) -> str:
    """How a path is written that is read from a folder."""
    if is_url(path):
        return url_of(path)
    if root is None:
        return path.as_posix()
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return Path(os.path.abspath(path)).as_posix()


def _times(stretch: tuple[float, float] | None) -> list[str]:
    """Start and end as text, which is empty where there is none."""
    if stretch is None:
        return ["", ""]
    return [repr(stretch[0]), "" if stretch[1] == np.inf else repr(stretch[1])]


def _items(
    blocks: Iterable[dict[str, list[str]]],
    where: str,
    root: Path,
    is_text: bool,
) -> Items:
    """The items of the rows of a table."""
    made = ItemsBuilder()
    before = (root / "x").as_posix()[:-1]
    for cells in blocks:
        if "" in cells["path"]:
            rows = zip(*cells.values(), strict=True)
            lacking = [row for row, path in zip(rows, cells["path"], strict=True) if not path]
            # A row of nothing but separators is how spreadsheets write an empty one.
            lacking = [row for row in lacking if any(row) or not is_text]
            if lacking:
                raise LikenessError(
                    f"{where}: {len(lacking)} rows have no path (first: {lacking[0]}); fill or "
                    "remove them"
                )
            kept = [row for row, path in enumerate(cells["path"]) if path]
            cells = {role: [column[row] for row in kept] for role, column in cells.items()}
        _add(made, cells, before, root)
    try:
        items = made.build()
    except ValueError as error:  # of times
        raise LikenessError(f"{where}: {error}") from None
    if not items:
        raise LikenessError(f"{where}: the table has no rows; one for each file is needed")
    check_unique(items, where)
    return items


def _add(
    made: ItemsBuilder,
    cells: dict[str, list[str]],
    before: str,
    root: Path,
) -> None:
    """Adds rows to the items."""
    names = list(map(written_path, cells["path"], [root] * len(cells["path"])))
    further = {role: cells[role] for role in cells if role not in _OWN}
    if "start" in further and "," in "".join(further["start"] + further.get("end", [])):
        # The comma of many languages, beside semicolons.
        for role in further.keys() & {"start", "end"}:
            further[role] = [text.replace(",", ".") for text in further[role]]
    # A duration without a start is that of the whole file.
    if "duration" in cells and "start" in cells and "end" not in cells:
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
    if "label" in cells:
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
