"""The groups of ids or subjects: of lists, mappings, and columns of a list of items."""

import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import COLUMN_OF_LIST, role_of
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.items.listing import list_items
from likeness.eval.items.suffixes import AV_SOUNDS, IMAGES, SOUNDS
from likeness.eval.types import UNKNOWN


def groupings_of(groups: Names | Sequence[Names] | None) -> dict[str, Mapping[str, str]]:
    """What the groups are -> the group of each id or subject, of one grouping or several.

    Args:
        groups: Of each a mapping, a list `id group`, or the column of a list of items, as in
            "items.csv:sex" or "items.csv:age<18".

    Raises:
        LikenessError: There is no such file or column, or two are called the same.
    """
    listed = [groups] if isinstance(groups, str | PathLike | Mapping) else list(groups or ())
    by_name: dict[str, Mapping[str, str]] = {}
    for grouping in listed:
        column = None if isinstance(grouping, Mapping) else COLUMN_OF_LIST.fullmatch(str(grouping))
        if isinstance(grouping, Mapping) or column is None or Path(grouping).exists():
            by, group_of = "", names_of(grouping) or {}
        else:
            by = "".join(part.strip() for part in column.groups("")[1:])
            group_of = _groups_in(Path(column["file"]), column)
        if by in by_name:
            raise LikenessError(f"several groupings are called {by!r}; evaluate them one by one")
        by_name[by] = group_of
    return by_name


def _groups_in(path: Path, column: re.Match[str]) -> dict[str, str]:
    """The groups of items by a column of their list."""
    items = list_items(path, suffixes=(*SOUNDS, *AV_SOUNDS, *IMAGES), missing="leave")
    name = column["column"].strip()
    name = name if items.has(name) else role_of(name) or name  # Gender is read as sex
    column_of = items.labels if name == "label" else items.column(name)
    values = [UNKNOWN if value is None else str(value) for value in column_of]
    if column["limit"]:
        values = [_side(value, column) for value in values]
    return dict(zip(items.ids, values, strict=True))


def _side(value: str, column: re.Match[str]) -> str:
    """On which side of a limit a number is."""
    if value == UNKNOWN:
        return value
    limit = column["limit"][1:].strip()
    try:
        sign = "<" if float(value) < float(limit) else ">="
    except ValueError:
        problem = f"{value!r} and {limit!r} are not both numbers"
        raise LikenessError(f"groups {column[0]}: {problem}; correct them") from None
    return f"{column['column'].strip()}{sign}{limit}"
