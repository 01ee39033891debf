"""Lists of images: OML's CSV with its query and gallery marks, and the lines of the data sets' own
lists. `id path [label]`: toolkit.data.batch.read_items.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.types import name_first
from toolkit.data.batch import Item, check_unique

_MAX_LINE = 8192
_NEEDED = ("label", "path", "split")
_BOXES = ("x_1", "x_2", "y_1", "y_2")
_TRUE, _FALSE = ("true", "1", "1.0"), ("false", "0", "0.0", "", "none", "nan")


class Retrieval(NamedTuple):
    """items and (N,) bool each: which are queries and which the gallery; an item may be both."""

    items: list[Item]
    queries: NDArray[np.bool_]
    gallery: NDArray[np.bool_]


def oml_items(
    data: str | Path,
    *,
    split: Literal["train", "validation", "all"] = "train",
    root: str | Path | None = None,
) -> list[Item]:
    """Items of a split of an OML table; see oml_retrieval for the format and the errors."""
    return _table(Path(data), split, root).items


def oml_retrieval(data: str | Path, *, root: str | Path | None = None) -> Retrieval:
    """The validation part of an OML table: a CSV file with the columns label, path, split (train or
    validation), is_query, is_gallery.

    Open Metric Learning 4.0.0, oml/utils/dataframe_format.py. data: the file, or a folder with
    df.csv. Relative paths start from `root` (default: the file's folder); the path as written is
    the id. Other columns (category, sequence) are passed over; the marks of training rows too.
    Raises ValueError for missing columns, malformed rows (counted, the first named), repeated
    paths, boxes (x_1 ...: crop the images first), and a validation part without queries or gallery;
    FileNotFoundError.
    """
    found = _table(Path(data), "validation", root)
    if not found.queries.any() or not found.gallery.any():
        raise ValueError(
            f"{data}: {int(found.queries.sum())} queries and {int(found.gallery.sum())} gallery "
            "images in split 'validation'; mark some as each"
        )
    return found


def _table(data: Path, split: str, root: str | Path | None) -> Retrieval:
    if split not in ("train", "validation", "all"):
        raise ValueError(f"split is {split!r}; allowed are 'train', 'validation' and 'all'")
    path = data / "df.csv" if data.is_dir() else data
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such file; a CSV file with the columns {', '.join(_NEEDED)}, is_query, "
            "is_gallery is needed"
        )
    base = path.parent if root is None else Path(root)
    found: list[Item] = []
    marks: list[tuple[bool, bool]] = []
    malformed: list[str] = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        table = csv.reader(_bounded(file, path))
        try:
            header = next(table, [])
            missing = [one for one in _NEEDED if one not in header]
            if missing or len(set(header)) < len(header):
                raise ValueError(
                    f"{path}: "
                    f"{f'no column {name_first(missing)}' if missing else 'a column occurs twice'} "
                    f"in its first line; {', '.join(_NEEDED)} are needed"
                )
            for row in table:
                if not row:
                    continue
                one = dict(zip(header, row, strict=False))
                flags = [one.get(key, "").strip().lower() for key in ("is_query", "is_gallery")]
                if (
                    len(row) != len(header)
                    or one["split"] not in ("train", "validation")
                    or not one["path"]
                    or not {*flags} <= {*_TRUE, *_FALSE}
                ):
                    malformed.append(f"line {table.line_num}")
                    continue
                if any(
                    one.get(key, "").strip().lower() not in ("", "none", "nan") for key in _BOXES
                ):
                    raise ValueError(
                        f"{path}: line {table.line_num} has a box ({', '.join(_BOXES)}), and "
                        "images are read whole; crop them and leave the columns out"
                    )
                if split in ("all", one["split"]):
                    found.append(Item(one["path"], base / one["path"], one["label"] or None))
                    marks.append((flags[0] in _TRUE, flags[1] in _TRUE))
        except csv.Error as error:
            raise ValueError(
                f"{path}: line {table.line_num} is no CSV ({error}); write the table again"
            ) from error
    if malformed:
        raise ValueError(
            f"{path}: {len(malformed)} malformed rows ({name_first(malformed)}); a path, split "
            "train or validation, and True or False marks are needed"
        )
    if not found:
        raise ValueError(
            f"{path}: no rows of split {split!r}; write train or validation in that column"
        )
    check_unique(found, str(path))
    queries, gallery = np.array(marks, dtype=bool).reshape(-1, 2).T
    return Retrieval(found, queries, gallery)


def rows(path: Path, num_fields: int, fetch: str) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of a data set's own list, split at white space; its last field is a
    path inside the data set.

    FileNotFoundError and ValueError say what to fetch.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; {fetch}")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(_bounded(file, path), 1):
            fields = line.split()
            if fields and (len(fields) != num_fields or not inside(fields[-1])):
                raise ValueError(
                    f"{path}: line {number} is {line.strip()[:80]!r}; {num_fields} fields with a "
                    f"path inside the folder are needed; {fetch}"
                )
            if fields:
                yield number, fields


def inside(path: str) -> bool:
    """Whether a listed path stays below its root."""
    return (
        not PurePosixPath(path).is_absolute()
        and ".." not in PurePosixPath(path).parts
        and "\0" not in path
    )


def check_whole(
    found: Sequence[Item], root: Path, num_images: int, whole: bool, fetch: str
) -> list[Item]:
    """The items, all of them if `whole`; else those whose files exist.

    ValueError for repeated ids, another number than the data set has, and missing files.
    """
    check_unique(found, str(root))
    there = [
        one for one in found if os.path.isfile(one.path)
    ]  # Path.is_file raises where a name is too long
    if not whole:
        if not there:
            raise ValueError(f"{root}: none of the {len(found)} listed images is there; {fetch}")
        return there
    if len(found) != num_images:
        raise ValueError(
            f"{root}: {len(found)} images are listed, the data set has {num_images}; {fetch}"
        )
    if len(there) < len(found):
        held = set(there)
        raise ValueError(
            f"{root}: {len(found) - len(there)} of {len(found)} images are missing "
            f"({name_first(one.id for one in found if one not in held)}); {fetch}"
        )
    return there


def _bounded(lines: Iterator[str], path: Path) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if len(line) > _MAX_LINE or "\0" in line:
            raise ValueError(
                f"{path}: line {number} is no text line of at most {_MAX_LINE} characters; is this "
                "a list?"
            )
        yield line
