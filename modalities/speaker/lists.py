"""Data sets that are given by lists: any CSV of files, and trial lists that name their ids.

Other data sets use find() and matched() too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.column_names import FURTHER, by_number, choose
from eval.formats.lists import Shape, read_rows, separator_of
from eval.formats.lists import split as fields_of
from eval.formats.trials import read_trials
from eval.types import Trials, name_first
from modalities.speaker.decoding import AV_SUFFIXES, SUFFIXES
from toolkit.data.items import Item, Items, ItemsBuilder, check_unique


def items(
    data: str | Path,
    *,
    file: str = "items.csv",
    path: str = "path",
    label: str = "label",
    id: str = "",
    split_column: str = "",
    split: str = "",
) -> Items:
    """List the files of a CSV, in its order.

    The CSV is UTF-8 text with commas, semicolons or tabs, and with quotes where they are needed.
    Its columns start, end, sex, age and session are carried along (Items.column).

    Args:
        data: The folder that relative paths start from.
        file: The path of the CSV, from `data` unless it is absolute.
        path: The name of the column of the paths, which start from `data` unless they are absolute.
            If all columns that are given are numbers, they count the columns from 1, and there is
            no header.
        label: The name of the column of the labels; "" leaves the items unlabelled.
        id: The name of the column of the ids; "" takes the path as it is written.
        split_column: The name of the column of the splits; "" takes all rows.
        split: The value in that column of the rows to take.

    Returns:
        One item for each row.

    Raises:
        LikenessError: The CSV is missing. A column is unknown, a row has another width or no path
            or id, a file is missing, an id is repeated, or no row is left. All are counted, and the
            first is named.
    """
    data = Path(data)
    source = data / file
    if not path or bool(split_column) != bool(split):
        raise LikenessError(
            f"{source}: path is {path!r}, split_column is {split_column!r} and split is {split!r}; "
            "a path is needed, and the last two go together"
        )
    if not source.is_file():
        raise LikenessError(
            f"{source}: no such file; give the CSV's path with file=..., from the data folder"
        )
    stated = {"path": path, "label": label, "id": id, "split": split_column}
    stated = {role: name for role, name in stated.items() if name}

    def chosen(names: list[str]) -> dict[str, int]:
        further = {name: names.index(name) for name in FURTHER if name in names}
        return choose(names, stated, str(source), {}, ()) | further

    def shape(sample: list[str]) -> Shape:
        separator = separator_of(sample[0])
        fields = fields_of(sample[0], separator)
        return Shape(separator, len(fields), chosen(fields), not by_number(stated))

    made, missing = ItemsBuilder(), list[str]()
    for roles, columns in read_rows(source, shape, chosen):
        named = (dict(zip(roles or (), row, strict=True)) for row in zip(*columns, strict=True))
        rows = [row for row in named if any(row.values()) and row.get("split", "") == split]
        carried = [name for name in FURTHER if name in (roles or ())]
        if any(not row["path"] or row.get("id") == "" for row in rows):
            raise LikenessError(f"{source}: rows have no path or no id; correct them")
        names = [row["path"] for row in rows]
        # Path.is_file raises where a name is too long.
        missing += [name for name in names if not os.path.isfile(data / name)]
        made.add(
            [row.get("id") or PurePosixPath(row["path"]).as_posix() for row in rows],
            [(data / name).as_posix() for name in names],
            [row["label"] or None for row in rows] if label else None,
            further={name: [row[name] for row in rows] for name in carried},
        )
    items = made.build()
    if not items:
        of_split = f"with {split!r} in column {split_column!r}; give one of its values"
        raise LikenessError(
            f"{source}: no rows {of_split if split else 'below the header; list the files'}"
        )
    if missing:
        raise LikenessError(
            f"{source}: {len(missing)} of {len(items)} files do not exist below {data} "
            f"({name_first(missing)}); correct the paths or fetch the files"
        )
    check_unique(items, str(source))
    return items


def trials(
    data: str | Path,
    *,
    file: str = "items.csv",
    trial_list: str = "trials.txt",
    path: str = "path",
    label: str = "label",
    id: str = "",
    split_column: str = "",
    split: str = "",
) -> tuple[Items, Trials]:
    """List the items that a trial list names, and its trials.

    Args:
        data: As in items(). So are file, path, label, id, split_column and split.
        trial_list: The path of the trial list, from `data` unless it is absolute, in any format
            that eval.formats.trials reads.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: A list is missing. What items() and matched() refuse.
    """
    listed = Path(data) / trial_list
    chosen = items(
        data, file=file, path=path, label=label, id=id, split_column=split_column, split=split
    )
    return matched(read_trials(listed), chosen, where=str(listed))


def matched(
    listed: Trials, candidates: Sequence[Item], *, where: str, hint: str = ""
) -> tuple[Items, Trials]:
    """Find the items that trials name.

    An id is found as it is. Otherwise it is found without its audio suffix (.wav, .flac, .m4a, ...
    on either side), where only one item is left by that name.

    Args:
        listed: The trials, as they were read.
        candidates: The items to look among.
        where: What the trials were read from, for the messages.
        hint: What to do when ids are not found, for the messages.

    Returns:
        The items that the trials name, in the order of the candidates, and the trials with the ids
        of these items.

    Raises:
        LikenessError: Ids are not found, or are found more than once. All are counted, and the
            first is named.
    """
    candidates = Items.of(candidates)
    exact = {id: number for number, id in enumerate(candidates.ids)}
    bare: dict[str, int] = {}  # -1 where several items are left by one name
    for number, id in enumerate(candidates.ids):
        bare[stem(id)] = number if stem(id) not in bare else -1
    missing: dict[str, None] = {}
    doubtful: dict[str, None] = {}

    def rows(ids: Sequence[str], used: NDArray[np.int32]) -> NDArray[np.int64]:
        numbers = np.full(len(ids), -1, dtype=np.int64)
        for i in np.unique(used).tolist():
            number = exact.get(ids[i], bare.get(stem(ids[i])))
            if number is None:
                missing[ids[i]] = None
            elif number < 0:
                doubtful[ids[i]] = None
            else:
                numbers[i] = number
        return numbers[used]

    enrol, probe = rows(listed.enrol_ids, listed.enrol), rows(listed.probe_ids, listed.probe)
    texts = []
    if missing:
        texts.append(f"{len(missing)} of its ids are no items ({name_first(missing)})")
    if doubtful:
        texts.append(
            f"{len(doubtful)} fit several items without their suffix ({name_first(doubtful)})"
        )
    if texts:
        total = len(np.unique(listed.enrol)) + len(np.unique(listed.probe))
        raise LikenessError(
            f"{where}: {' and '.join(texts)}; {total} enrolment and probe ids were looked "
            f"for{'; ' + hint if hint else ''}"
        )
    used, place = np.unique(np.concatenate((enrol, probe)), return_inverse=True)
    chosen = candidates.take(used)
    ids = tuple(chosen.ids)
    sides = place.astype(np.int32).reshape(2, -1)
    return chosen, Trials(ids, ids, sides[0], sides[1], listed.target)


def stem(id: str) -> str:
    """Return an id without its audio suffix.

    Example:
        >>> stem("id10270/5r0dWxy17C8/00001.m4a"), stem("a.b/v1.0")
        ('id10270/5r0dWxy17C8/00001', 'a.b/v1.0')
    """
    head, dot, suffix = id.rpartition(".")
    return head if dot and "." + suffix.lower() in SUFFIXES + AV_SUFFIXES else id


def find(data: Path, names: Iterable[str], folders: Iterable[str]) -> Path | None:
    """Return the first file of these names, plain or .gz, in these folders below `data`.

    Args:
        data: The folder above the folders.
        names: The names to look for; earlier names come first.
        folders: The folders to look in, from `data`.

    Returns:
        The path, or None if there is no such file.
    """
    places = list(folders)
    for name in names:
        for folder in places:
            for ending in ("", ".gz"):
                path = data / folder / (name + ending)
                if path.is_file():
                    return path
    return None
