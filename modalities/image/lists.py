"""Lists of images: OML's CSV with its query and gallery marks, and the data sets' own lists.

Lists of `id path [label]` are read by toolkit.data.item_lists.read_items.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.column_names import choose
from eval.formats.lists import Shape, read_rows
from eval.formats.lists import split as split_line
from eval.types import name_first, quoted
from toolkit.data.item_checks import check_unique
from toolkit.data.items import Item, Items

_MAX_LINE = 8192
_NEEDED = ("label", "path", "split")
_SPLITS = ("train", "validation")
_FLAGS = ("is_query", "is_gallery")
_BOXES = ("x_1", "x_2", "y_1", "y_2")
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "", "none", "nan")


class Retrieval(NamedTuple):
    """Items, and which of them are queries and which are in the gallery; an item may be both.

    Attributes:
        items: N items.
        queries: (N,) bool.
        gallery: (N,) bool.
    """

    items: Items
    queries: NDArray[np.bool_]
    gallery: NDArray[np.bool_]


def oml_items(
    data: str | Path,
    *,
    split: Literal["train", "validation", "all"] = "train",
    root: str | Path | None = None,
) -> Items:
    """List the items of a split of an OML table.

    `oml_retrieval` describes the format and the errors.
    """
    return _table(Path(data), split, root).items


def oml_retrieval(data: str | Path, *, root: str | Path | None = None) -> Retrieval:
    """Read the validation part of an OML table.

    The table is a CSV file with the columns label, path, split (train or validation), is_query and
    is_gallery (Open Metric Learning 4.0.0, oml/utils/dataframe_format.py). The path as it is
    written is the item's id. Other columns (category, sequence) are passed over, and so are the
    marks of training rows.

    Args:
        data: The file, or a folder with df.csv.
        root: Where relative paths start; None is the file's folder.

    Raises:
        LikenessError: There is no such file. Columns are missing, a row is malformed, a path is
            repeated, an image has a box (x_1 ...: crop the images first), or the validation part
            has no queries or no gallery.
    """
    listed = _table(Path(data), "validation", root)
    if not listed.queries.any() or not listed.gallery.any():
        raise LikenessError(
            f"{data}: {int(listed.queries.sum())} queries and {int(listed.gallery.sum())} gallery "
            "images in split 'validation'; mark some as each"
        )
    return listed


def _table(data: Path, split: str, root: str | Path | None) -> Retrieval:
    """Read the rows of one split of an OML table."""
    if split not in ("train", "validation", "all"):
        raise LikenessError(f"split is {split!r}; allowed are 'train', 'validation' and 'all'")
    path = data / "df.csv" if data.is_dir() else data
    if not path.is_file():
        raise LikenessError(
            f"{path}: no such file; a CSV file with the columns {', '.join(_NEEDED)}, is_query, "
            "is_gallery is needed"
        )
    base = path.parent if root is None else Path(root)

    def chosen(names: list[str]) -> dict[str, int]:
        known = [*_NEEDED, *_FLAGS, *_BOXES]
        columns = {name: name for name in known if name in names or name in _NEEDED}
        return choose(names, columns, str(path), {}, _NEEDED)

    def shape(sample: list[str]) -> Shape:
        fields = split_line(sample[0], ",")
        return Shape(",", len(fields), chosen(fields), header=True)

    items, flags = list[Item](), list[list[bool]]()
    for roles, columns in read_rows(path, shape, chosen):
        for row in zip(*columns, strict=True):
            values = dict(zip(roles or (), row, strict=True))
            marks = [values.get(name, "").lower() for name in _FLAGS]
            is_marked = {*marks} <= {*_TRUE, *_FALSE}
            if values["split"] not in _SPLITS or not values["path"] or not is_marked:
                raise LikenessError(
                    f"{path}: the row {quoted(row)} is malformed; a path, split train or "
                    "validation, and True or False marks are needed"
                )
            if any(values.get(name, "").lower() not in ("", "none", "nan") for name in _BOXES):
                raise LikenessError(
                    f"{path}: the row {quoted(row)} has a box ({', '.join(_BOXES)}), and images "
                    "are read whole; crop them and leave the columns out"
                )
            if split in ("all", values["split"]):
                flags.append([mark in _TRUE for mark in marks])
                items.append(Item(values["path"], base / values["path"], values["label"] or None))
    listed = Items.of(items)
    if not listed:
        raise LikenessError(
            f"{path}: no rows of split {split!r}; write train or validation in that column"
        )
    check_unique(listed, str(path))
    marked = np.array(flags, dtype=np.bool_)
    return Retrieval(listed, marked[:, 0], marked[:, 1])


def rows(path: Path, num_fields: int, fetch: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of a data set's own list, split at white space.

    Args:
        path: The list.
        num_fields: The number of fields of each line; the last is a path inside the data set.
        fetch: What an error says about where the data set comes from.

    Raises:
        LikenessError: There is no such file. A line has another number of fields or a path outside
            the data set.
    """
    if not path.is_file():
        raise LikenessError(f"{path}: no such file; {fetch}")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(_bounded(file, path), 1):
            fields = line.split()
            if fields and (len(fields) != num_fields or not inside(fields[-1])):
                raise LikenessError(
                    f"{path}: line {number} is {line.strip()[:80]!r}; {num_fields} fields with a "
                    f"path inside the folder are needed; {fetch}"
                )
            if fields:
                yield number, fields


def inside(path: str) -> bool:
    """Say whether a listed path stays below its root.

    Example:
        >>> inside("birds/1.jpg"), inside("../1.jpg")
        (True, False)
    """
    return (
        not PurePosixPath(path).is_absolute()
        and ".." not in PurePosixPath(path).parts
        and "\0" not in path
    )


def check_whole(
    items: Sequence[Item], root: Path, num_images: int, whole: bool, fetch: str
) -> list[Item]:
    """Return the items whose files exist; if `whole`, all of them must.

    Args:
        items: The listed items.
        root: The folder that errors name.
        num_images: The number of images of the whole data set.
        whole: Whether the data set must be complete.
        fetch: What an error says about where the data set comes from.

    Raises:
        LikenessError: An id is repeated, none of the images is there, or, if `whole`, the list has
            another number of images than the data set, or files are missing.
    """
    check_unique(items, str(root))
    # Path.is_file raises an error where a name is too long; os.path.isfile is then false.
    there = [item for item in items if os.path.isfile(item.path)]
    if not whole:
        if not there:
            raise LikenessError(f"{root}: none of the {len(items)} listed images is there; {fetch}")
        return there
    if len(items) != num_images:
        raise LikenessError(
            f"{root}: {len(items)} images are listed, the data set has {num_images}; {fetch}"
        )
    if len(there) < len(items):
        known = set(there)
        missing = [item.id for item in items if item not in known]
        raise LikenessError(
            f"{root}: {len(missing)} of {len(items)} images are missing "
            f"({name_first(missing)}); {fetch}"
        )
    return there


def _bounded(lines: Iterator[str], path: Path) -> Iterator[str]:
    """Yield the lines; raise ValueError for one that no list of text has."""
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE or "\0" in line:
            raise LikenessError(
                f"{path}: line {number} is no text line of at most {_MAX_LINE} characters; is this "
                "a list?"
            )
        yield line
