"""What evaluations take: runs, groups and qualities, in files or as values."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import role_of
from likeness.eval.formats.files import File
from likeness.eval.formats.provenance import sha256
from likeness.eval.formats.runs import HeldOutFiles, find_model
from likeness.eval.formats.subjects import Names, names_of, read_numbers
from likeness.eval.items.listing import list_items
from likeness.eval.items.suffixes import AV_SOUNDS, IMAGES, SOUNDS
from likeness.eval.scoring.origin import read_origin
from likeness.eval.types import UNKNOWN

COLUMN_OF_LIST = re.compile(r"(?P<file>.+):(?P<column>[^:<]+)(?P<limit><[^<]+)?")
"""Such as "items.csv:sex" and "items.csv:age<18"."""


def groupings_of(groups: Names | Sequence[Names] | None) -> dict[str, Mapping[str, str]]:
    """What the groups are -> the group of each id or subject, of one grouping or several.

    Args:
        groups: Of each a mapping, a list `id group`, or the column of a list of items, as in
            "items.csv:sex" or "items.csv:age<18". A value that is missing there is UNKNOWN here.

    Raises:
        LikenessError: There is no such file or column, or two are called the same.
    """
    listed = [groups] if isinstance(groups, str | PathLike | Mapping) else list(groups or ())
    by_name: dict[str, Mapping[str, str]] = {}
    for grouping in listed:
        column = None if isinstance(grouping, Mapping) else COLUMN_OF_LIST.fullmatch(str(grouping))
        if isinstance(grouping, Mapping) or column is None or Path(grouping).exists():
            by, named = "", names_of(grouping) or {}
            group_of = {id: group or UNKNOWN for id, group in named.items()}
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


def quality_by_id(quality: File | Mapping[str, float]) -> Literal["norm"] | Mapping[str, float]:
    """The quality of each id, read if it is in a file.

    Args:
        quality: "norm", which stays as it is; a mapping; or a list `id quality`.
    """
    if isinstance(quality, Mapping):
        return {str(id): value for id, value in quality.items()}
    if isinstance(quality, str) and quality == "norm":
        return "norm"
    return read_numbers(Path(quality), "quality")


def run_of_scores(scores: object) -> HeldOutFiles | None:
    """The files of the run whose folder stands in place of scores, if one does.

    Raises:
        LikenessError: The folder stands beside other scores, or holds no scores, or those of an
            earlier model: a run that was trained further has a new model before its held-out items
            are scored again.
    """
    listed = scores if isinstance(scores, Sequence) and not isinstance(scores, str) else [scores]
    folders = [of for of in listed if isinstance(of, str | PathLike) and Path(of).is_dir()]
    if not folders:
        return None
    files = HeldOutFiles(Path(folders[0]))
    if len(listed) > 1 or not files.scores.is_file():
        lacks = "and not named alone" if files.scores.is_file() else f"without {files.scores}"
        raise LikenessError(f"{files.run} is a folder {lacks}; name a trained run, or score files")
    origin = read_origin(files.scores)
    model = find_model(files.run)
    if origin is not None and origin.model not in ("", sha256(model)):
        problem = f"{files.scores} is of an earlier model than {model}"
        raise LikenessError(f"{problem}; finish the training, or name the score file itself")
    return files


def files_in(*given: Any) -> list[Path]:
    """The files among arguments that take files or values, one or several."""
    files = []
    for value in given:
        if isinstance(value, str | PathLike):
            column = COLUMN_OF_LIST.fullmatch(str(value))  # of a list, as in "items.csv:sex"
            paths = [Path(value), *([Path(column["file"])] if column else [])]
            files += [path for path in paths if path.is_file()][:1]
        elif isinstance(value, Mapping):
            files += files_in(*value.values())
        elif isinstance(value, Sequence):
            files += files_in(*value)
    return files


State = tuple[int, int, int]
"""What tells two states of a file apart: its number, its size and the time of its last change."""


def files_read(*given: Any) -> dict[Path, State]:
    """The files of `files_in`, each with its state; call it before they are read."""
    return {path: _state(path) for path in files_in(*given)}


def digests_of(files: Mapping[Path, State]) -> dict[str, str]:
    """The SHA-256 of each file, by its path; in its place a phrase for one that has changed.

    So files are summed only for those who ask, and no sum is that of another content than was read.
    """
    digests = {str(path): "unknown: changed since it was read" for path in files}
    for path, state in files.items():
        with suppress(OSError):
            digest = sha256(path)
            if _state(path) == state:
                digests[str(path)] = digest
    return digests


def _state(path: Path) -> State:
    stat = path.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
