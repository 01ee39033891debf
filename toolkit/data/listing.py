"""Whatever a person has as items: a folder, a list, a table, a Kaldi folder or an RTTM file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Literal

from eval.errors import LikenessError
from eval.formats.column_names import parse_columns
from eval.progress import step
from eval.types import name_first
from toolkit.data import tree
from toolkit.data.item_lists import read_items
from toolkit.data.items import Items
from toolkit.data.kaldi_folder import is_kaldi_folder, read_kaldi_folder
from toolkit.data.label_pattern import LabelPattern
from toolkit.data.remote import is_url
from toolkit.data.rttm import read_rttm

Scan = Callable[[Path], Items]


@step("listing the data")
def list_items(
    data: str | Path,
    *,
    suffixes: Collection[str],
    scan: Scan | None = None,
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
    missing: Literal["refuse", "leave"] = "refuse",
    passed_over: list[str] | None = None,
) -> Items:
    """Lists the items of whatever a person has.

    Args:
        data: One of
            a folder, whose sub-folders are the labels;
            a folder of Kaldi (see `kaldi_folder`), or its wav.scp;
            a .csv, .tsv or .parquet file, or another text whose first line names columns
            (see `eval.formats.column_names`);
            an .rttm file (see `rttm`);
            a list with lines `path` or `id path [label]` (see `item_lists`).
        suffixes: The suffixes of the files that count as data, in small letters.
        scan: Lists a folder, by default all files of these suffixes at any depth.
        columns: Which column is which, where their names do not say it: "label=spk", or a mapping.
        label: A pattern of paths, from which labels are taken instead: "{label}_*.wav" (see
            `label_pattern`).
        root: The folder that relative paths start from, by default that of the list or table. For
            an RTTM file, where the recordings lie.
        missing: Whether files that do not exist are refused, or left for whoever reads them.
        passed_over: Takes what of a folder has a name that cannot be used (see `tree.anywhere`);
            by default it is refused.

    Returns:
        The items. Those of a list may have further columns: `items.column("sex")`.

    Raises:
        LikenessError: There is no such data, or files are missing; they are counted, and the first
            is named. Columns or rows cannot be understood, or there are no items.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     table = Path(folder) / "voices.csv"
        ...     _ = table.write_text("file;speaker;start;end\\na.wav;ann;0;1.5\\n")
        ...     items = list_items(table, suffixes=[".wav"], missing="leave")
        >>> items[0].id, items[0].label, items[0].stretch
        ('a.wav@0-1.5', 'ann', (0.0, 1.5))
    """
    path, stated = Path(data), parse_columns(columns)
    pattern = LabelPattern(label) if label else None
    start_from = None if root is None or root == "" else Path(root)
    if not os.path.exists(path):
        raise LikenessError(f"{str(data)!r}: there is no such file or folder; correct the path")
    if path.name == "wav.scp":
        path = path.parent
    if path.is_dir():
        _refuse_columns(stated, path, "a folder")
        if not is_kaldi_folder(path):
            return _of_folder(path, suffixes, scan, pattern, passed_over)
        items, base = read_kaldi_folder(path, root=start_from), start_from or path
    else:
        base = start_from or path.parent
        if path.suffix.lower() == ".rttm":
            _refuse_columns(stated, path, "an RTTM file")
            return _with_pattern(read_rttm(path, suffixes, root=start_from), pattern, base, path)
        items = read_items(path, base, columns=stated)
    items = _with_pattern(items, pattern, base, path)
    if missing == "refuse":
        _refuse_missing(items, path, base, start_from)
    return items


def _of_folder(
    folder: Path,
    suffixes: Collection[str],
    scan: Scan | None,
    pattern: LabelPattern | None,
    passed_over: list[str] | None,
) -> Items:
    """The items of a folder that is no list."""
    if scan is not None and pattern is None:
        return scan(folder)
    items = tree.anywhere(folder, suffixes, passed_over=passed_over)
    if not items:
        raise LikenessError(
            f"{folder}: the folder holds no files that are read here ({', '.join(suffixes)})"
        )
    return _with_pattern(items, pattern, folder, folder)


def _with_pattern(items: Items, pattern: LabelPattern | None, root: Path, where: Path) -> Items:
    return items if pattern is None else pattern.relabelled(items, root, str(where))


def _refuse_columns(stated: Mapping[str, str], path: Path, kind: str) -> None:
    if stated:
        raise LikenessError(f"{path} is {kind}, which has no columns; leave the columns out")


def _refuse_missing(items: Items, path: Path, base: Path, root: Path | None) -> None:
    """Raises LikenessError for items that are no files."""
    paths = dict.fromkeys(item.path for item in items)
    # Path.is_file raises where a name is too long.
    missing = [place for place in paths if not is_url(place) and not os.path.isfile(place)]
    if not missing:
        return
    written = missing[0].as_posix().removeprefix((base / "x").as_posix()[:-1])
    hint = "correct the paths, or say with --root where they start"
    if os.path.splitext(items[0].id)[1] and not items[0].path.suffix:
        hint = (
            "its lines were read as `id path [label]`; put the names of the columns above them, "
            "such as path,label"
        )
    elif root is None and os.path.isfile(written):
        hint = f"they were looked for in {base}, and start from the current folder: add --root ."
    elif len(missing) < len(paths):
        hint += ", or take the list that `likeness check --out` writes without them"
    raise LikenessError(
        f"{path}: {len(missing)} of {len(paths)} files do not exist "
        f"({name_first(map(str, missing))}); {hint}"
    )
