"""Lists and tables of files as items: text, .parquet, and tables in memory, as of pandas."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats import tables
from likeness.eval.formats.column_names import by_number, columns_of_items, is_header, role_of
from likeness.eval.formats.files import as_stored
from likeness.eval.formats.row_names import name_rows
from likeness.eval.items.items import Item, Items, check_unique
from likeness.eval.items.remote import is_url, listed_path, url_of
from likeness.eval.types import name_first
from likeness.eval.writing import write_text

SUFFIXES = (".csv", ".tsv", ".parquet")  # of tables, whose columns have names
_LAYOUTS = (("path",), ("id", "path"), ("id", "path", "label"))  # of lines without a header
_WRITTEN = ("label", "start", "end", "channel")  # columns that a list has where they are filled
_OWN = ("id", "path", "label", "start", "end")  # columns that an Item has itself
_DRIVE = re.compile(r"[A-Za-z]:/")  # of Windows


def read_items(
    source: Any, root: Path | None = None, *, columns: Mapping[str, str] | None = None
) -> Items:
    """Reads a list or a table of files.

    All lines of a list are `path`, `id path` or `id path label`. A table has a header, or is a
    .parquet file; its columns are known by their names (`likeness.eval.formats.column_names`). All
    other columns are carried along under their own names (Items.column).

    Args:
        source: The file (see `likeness.eval.formats.tables`); or a table in memory, as of pandas.
        root: The folder that relative paths start from; by default that of the file.
        columns: Role -> column, where the names of the columns do not say it.

    Returns:
        The items, in the order of the rows. A row without an id has its path as its id, and behind
        it its times, if it has any.

    Raises:
        LikenessError: Columns are not known, rows have no path, or ids are repeated.

    Example:
        >>> class Table(dict):
        ...     columns = property(list)
        >>> read_items(Table(file=["a.wav"], speaker=["ann"]), Path("voices"))[0].label
        'ann'
    """
    stated, where = columns or {}, "the table"
    if isinstance(source, str | os.PathLike):
        where = str(source)
    path, chosen = Path(where), partial(columns_of_items, stated=stated, where=where)

    def shape(sample: list[str]) -> tables.Shape:
        separator = tables.separator_of(sample[0])
        fields = tables.split(sample[0], separator)
        # A list may be called .csv too. Its first line has a path where a table has names.
        is_named = "path" in map(role_of, fields) or not re.search(r"[/\\.]", sample[0])
        if stated or (path.suffix.lower() in SUFFIXES and is_named) or is_header(fields):
            return tables.named_shape(sample, chosen, header=not by_number(stated))
        width = len(fields)
        if width > len(_LAYOUTS):
            raise LikenessError(
                f"{path}: a line has {width} fields, not `path` or `id path [label]`; name the "
                "columns in the first line, or use tabs where a name has blanks"
            )
        places = {role: place for place, role in enumerate(_LAYOUTS[width - 1])}
        return tables.Shape(separator, width, places)

    blocks = tables.read_rows(source, shape, chosen)
    return items_of_rows(blocks, where, path.parent if root is None else root)


def write_items(path: str | Path, items: Sequence[Item], root: str | Path | None = None) -> None:
    """Writes a list that `read_items` reads, whole or not at all: `id path`, separated by a tab.

    Where items have labels, the lines are `id path label`. Where they are stretches or channels of
    recordings, the columns start and end, or channel, are there too, below a header.

    Args:
        path: The list.
        items: The items, which must be files.
        root: The folder that relative paths start from: the path of a file in it is written
            relative to it, and that of another file whole. None leaves the paths as they are.

    Raises:
        LikenessError: Items lie in tar shards, which a list of paths cannot name, or their names
            would be read back as others. They are counted.
    """
    cells: dict[str, list[str]] = {role: [] for role in ("id", "path", *_WRITTEN)}
    for item in items:
        start, end = item.stretch or ("", "")
        channel = "" if item.channel is None else str(item.channel)
        times = str(start), "" if end == np.inf else str(end)
        row = (item.id, place_in_list(item.path, root), item.label or "", *times, channel)
        for column, text in zip(cells.values(), row, strict=True):
            column.append(text)
    unwritable = tables.UNWRITABLE.search
    bad = [
        item.id
        for item, place in zip(items, cells["path"], strict=True)
        if item.span is not None or any(map(unwritable, (item.id, place, item.label or "-")))
    ]
    if bad:
        count = f"{len(bad)} of {len(items)} items cannot stand in a list of files"
        raise LikenessError(f"{path}: {count} ({name_first(bad)}); unpack shards, or rename files")
    columns = {role: texts for role, texts in cells.items() if role not in _WRITTEN or any(texts)}
    rows = list(zip(*columns.values(), strict=True))
    # Where the first line could be a header, a header comes before it.
    is_table = Path(path).suffix.lower() in SUFFIXES or not columns.keys() <= {*_LAYOUTS[-1]}
    headed = [tuple(columns)] * (is_table or (bool(rows) and is_header(rows[0])))
    write_text(path, "".join("\t".join(row) + "\n" for row in [*headed, *rows]))


def place_in_list(path: Path, root: str | Path | None) -> str:
    """Returns how a path is written in a list that is read from a folder.

    Args:
        path: The path of an item.
        root: The folder, relative to which a path in it is written; others are written whole. None
            leaves paths as they are.

    Example:
        >>> place_in_list(Path("voices/ann/1.wav"), "voices")
        'ann/1.wav'
        >>> place_in_list(Path("s3://bucket/ann/1.wav"), "voices")
        's3://bucket/ann/1.wav'
    """
    if is_url(path):
        return url_of(path)
    if root is None:
        return path.as_posix()
    whole, base = Path(os.path.abspath(path)), os.path.abspath(root)
    return (whole.relative_to(base) if whole.is_relative_to(base) else whole).as_posix()


def items_of_rows(blocks: Iterable[dict[str, list[str]]], where: str, root: Path) -> Items:
    """Makes items of the rows of a table.

    Args:
        blocks: Some rows each: the texts of every column by its role.
        where: The table, with which messages begin.
        root: The folder that relative paths start from.

    Raises:
        LikenessError: As for `read_items`.
    """
    try:
        items = Items.joined(_of_block(cells, root) for cells in blocks)
    except LikenessError as error:
        raise LikenessError(f"{where}: {str(error).removeprefix(f'{where}: ')}") from None
    if not items:
        raise LikenessError(f"{where}: it has no rows; one for each item is needed")
    check_unique(items, where)
    return items


def _of_block(cells: dict[str, list[str]], root: Path) -> Items:
    """The items of some rows."""
    if "" in cells["path"]:
        lacking = [column[cells["path"].index("")] for column in cells.values()]
        raise LikenessError(f"the row {lacking} has no path; fill or remove it")
    ids, times, channels = name_rows(cells)
    further = {role: cells[role] for role in cells if role not in _OWN}
    paths, labels = listed_paths(root, cells["path"]), cells.get("label")
    return Items.rows(ids, paths, labels, times=times, channels=channels or None, further=further)


def listed_paths(root: Path, names: Sequence[str]) -> list[str]:
    """Returns the paths of files that a list names, as `Path` writes them, with slashes.

    Args:
        root: The folder that relative paths start from.
        names: How the list writes them. A backslash is a separator, as on Windows, unless a file
            has one in its name. An accent may be written as in NFC or as in NFD, of which the path
            has the form of the file. A URL has to be of a store that the user has named.

    Example:
        >>> listed_paths(Path("voices"), ["ann\\\\1.wav", "C:\\\\bob\\\\1.wav", "/bob/2.wav"])
        ['voices/ann/1.wav', 'C:/bob/1.wav', '/bob/2.wav']
    """
    before, paths = (root / "x").as_posix()[:-1], []
    joined = "\n".join(["", *names])
    # all lie below the folder of the list, which is known faster of all together
    unusual = ("\n/", "\\", ":")
    if joined.isascii() and not any(mark in joined for mark in unusual):
        return [before + name for name in names]
    for name in names:
        if ("\\" in name or not name.isascii()) and not os.path.exists(root / name):
            name = as_stored(root, name.replace("\\", "/"))
        if is_url(name):
            paths.append(listed_path(root, name))
        else:
            is_whole = os.path.isabs(name) or _DRIVE.match(name)
            paths.append(name if is_whole else before + name)
    return paths
