"""Data sets that are given by lists: any CSV of files, and trial lists whose ids are found among
the items. Other data sets use find() and matched().
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from eval.formats.files import MAX_LINE
from eval.formats.trials import read_trials
from eval.types import Trials, name_first
from modalities.speaker.audio import AV_SUFFIXES, SUFFIXES
from toolkit.data.batch import Item, check_unique


def items(
    data: str | Path,
    *,
    file: str = "items.csv",
    path: str = "path",
    label: str = "label",
    id: str = "",
    split_column: str = "",
    split: str = "",
) -> list[Item]:
    """Items of a CSV, in its order. file: its path, from `data` unless absolute; commas, semicolons
    or tabs, with quotes where needed; UTF-8.

    path, label, id, split_column: names of the header's columns, or their numbers from 1 if all
    that are given are numbers: then there is no header. Paths start from `data` unless absolute. id
    "" = the path as written; label "" = unlabelled items; with split_column, only the rows that
    hold `split` there.
    ValueError: unknown columns, rows of another width or without a path or id, missing files,
    repeated ids, nothing left; all counted, the first named.
    """
    data = Path(data)
    source = data / file
    wanted = {"path": path, "label": label, "id": id, "split_column": split_column}
    if not path or bool(split_column) != bool(split):
        raise ValueError(
            f"{source}: path is {path!r}, split_column {split_column!r} and split {split!r}; a "
            "path is needed, and the last two go together"
        )
    rows = list(_rows(source))
    column = _columns(source, rows, {role: name for role, name in wanted.items() if name})
    header = not all(name.isdigit() for name in wanted.values() if name)
    width = len(rows[0][1])
    chosen: list[Item] = []
    bad, missing = [], []
    for number, fields in rows[header:]:
        if len(fields) != width or not fields[column["path"]] or (id and not fields[column["id"]]):
            bad.append(f"line {number}")
        elif not split or fields[column["split_column"]] == split:
            where = data / fields[column["path"]]
            if not os.path.isfile(where):  # Path.is_file raises where a name is too long
                missing.append(fields[column["path"]])
            text = fields[column["id"]] if id else PurePosixPath(fields[column["path"]]).as_posix()
            chosen.append(Item(text, where, (fields[column["label"]] or None) if label else None))
    if bad:
        needed = "path, no id" if id else "path"
        raise ValueError(
            f"{source}: {len(bad)} of {len(rows) - header} rows have no {needed} or not {width} "
            f"fields ({name_first(bad)}); correct them"
        )
    if not chosen:
        raise ValueError(
            f"{source}: no rows"
            + (
                f" with {split!r} in column {split_column!r}; give one of its values"
                if split
                else "; list the files"
            )
        )
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} of {len(chosen)} files do not exist below {data} "
            f"({name_first(missing)}); correct the paths or fetch the files"
        )
    check_unique(chosen, str(source))
    return chosen


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
) -> tuple[list[Item], Trials]:
    """The items that a trial list names, and its trials; trial_list: a path as `file`, read by
    eval.formats.trials. ValueError as items() and matched().
    """
    listed = Path(data) / trial_list
    chosen = items(
        data, file=file, path=path, label=label, id=id, split_column=split_column, split=split
    )
    return matched(read_trials(listed), chosen, where=str(listed))


def matched(
    listed: Trials, candidates: Sequence[Item], *, where: str, hint: str = ""
) -> tuple[list[Item], Trials]:
    """The items that the trials name, in the candidates' order, and the trials with those items'
    ids.

    The rule: an id is found as it is; otherwise without its audio suffix (.wav, .flac, .m4a, ... on
    either side), where only one item is left by that name.
    ValueError: ids that are not found, or found more than once; all counted, the first named, with
    `hint` on what to do.
    """
    exact = {one.id: number for number, one in enumerate(candidates)}
    bare: dict[str, int] = {}
    for number, one in enumerate(candidates):
        bare[stem(one.id)] = number if stem(one.id) not in bare else -1
    missing: dict[str, None] = {}
    doubtful: dict[str, None] = {}

    def rows(ids: Sequence[str], used: NDArray[np.int32]) -> NDArray[np.int64]:
        found = np.full(len(ids), -1, dtype=np.int64)
        for i in np.unique(used).tolist():
            number = exact.get(ids[i], bare.get(stem(ids[i])))
            if number is None:
                missing[ids[i]] = None
            elif number < 0:
                doubtful[ids[i]] = None
            else:
                found[i] = number
        return found[used]

    enrol, probe = rows(listed.enrol_ids, listed.enrol), rows(listed.probe_ids, listed.probe)
    if missing or doubtful:
        total = len(np.unique(listed.enrol)) + len(np.unique(listed.probe))
        texts = (
            [f"{len(missing)} of its ids are no items ({name_first(missing)})"] if missing else []
        )
        texts += (
            [f"{len(doubtful)} fit several items without their suffix ({name_first(doubtful)})"]
            if doubtful
            else []
        )
        raise ValueError(
            f"{where}: {' and '.join(texts)}; {total} enrolment and probe ids were looked "
            f"for{'; ' + hint if hint else ''}"
        )
    used, place = np.unique(np.concatenate((enrol, probe)), return_inverse=True)
    chosen = [candidates[i] for i in used]
    ids = tuple(one.id for one in chosen)
    sides = place.astype(np.int32).reshape(2, -1)
    return chosen, Trials(ids, ids, sides[0], sides[1], listed.target)


def stem(id: str) -> str:
    """An id without its audio suffix.

    >>> stem("id10270/5r0dWxy17C8/00001.m4a"), stem("a.b/v1.0")
    ('id10270/5r0dWxy17C8/00001', 'a.b/v1.0')
    """
    head, dot, suffix = id.rpartition(".")
    return head if dot and "." + suffix.lower() in SUFFIXES + AV_SUFFIXES else id


def find(data: Path, names: Iterable[str], folders: Iterable[str]) -> Path | None:
    """The first file of these names, plain or .gz, in these folders below `data`; None if there is
    none.
    """
    places = list(folders)
    for name in names:
        for folder in places:
            for ending in ("", ".gz"):
                path = data / folder / (name + ending)
                if path.is_file():
                    return path
    return None


def _rows(source: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, stripped fields) of every row that is not blank."""
    if not source.is_file():
        raise FileNotFoundError(
            f"{source}: no such file; give the CSV's path with file=..., from the data folder"
        )

    def bounded() -> Iterator[str]:
        with source.open(encoding="utf-8-sig", newline="") as lines:
            while line := lines.readline(MAX_LINE + 1):
                if len(line) > MAX_LINE or "\0" in line:
                    raise ValueError(
                        f"{source}: a line over {MAX_LINE} characters or with a NUL; is this a CSV?"
                    )
                yield line

    try:
        text = bounded()
        first = next(text, "")
        delimiter = max(",\t;", key=first.count)
        reader = csv.reader(
            (line for part in ([first], text) for line in part), delimiter=delimiter, strict=True
        )
        for fields in reader:
            if any(one.strip() for one in fields):
                yield reader.line_num, [one.strip() for one in fields]
    except UnicodeDecodeError:
        raise ValueError(f"{source}: not UTF-8 text; convert the file to UTF-8") from None
    except csv.Error as error:
        raise ValueError(
            f"{source}: line {reader.line_num} is no CSV ({error}); correct its quotes"
        ) from None


def _columns(
    source: Path, rows: Sequence[tuple[int, Sequence[str]]], wanted: dict[str, str]
) -> dict[str, int]:
    """role -> column. ValueError counts the roles whose column does not exist."""
    if not rows:
        raise ValueError(f"{source}: the file is empty; expected a header and a row for each file")
    fields = rows[0][1]
    if all(name.isdigit() for name in wanted.values()):
        found = {role: int(name) - 1 for role, name in wanted.items()}
        unknown = [
            f"{role}={wanted[role]}"
            for role, number in found.items()
            if not 0 <= number < len(fields)
        ]
        allowed = f"1 to {len(fields)}"
    else:
        found = {
            role: fields.index(name) if name in fields else -1 for role, name in wanted.items()
        }
        unknown = [f"{role}={wanted[role]}" for role, number in found.items() if number < 0]
        allowed = ", ".join(fields)[:200]
    if unknown:
        raise ValueError(
            f"{source}: {len(unknown)} columns do not exist ({name_first(unknown)}); there are "
            f"{allowed}; name them with path=..., label=..."
        )
    return found
