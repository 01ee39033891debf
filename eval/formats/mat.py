"""Lists in MATLAB files (.mat), read by scipy in a process of its own.

The process has limits, because a few bytes of such a file may state any number of cells, which
scipy allocates and goes through.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from eval.errors import LikenessError
from eval.formats.boundary import Answer, Limits, ask_once

# Seconds of processor time, and bytes. The true lists take a tenth of each.
_SECONDS, _MEMORY = 6.0, 1 << 29


def agedb_folds(path: Path) -> list[list[list[Any]]]:
    """Reads the folds of AgeDB's protocol.

    Args:
        path: The .mat file.

    Returns:
        For each fold a list of [name, name, same].

    Raises:
        LikenessError: The file contains no such list, or takes more memory or time than one.
    """
    return list(_read(path, _agedb))


def cars_annotations(path: Path, field: str) -> list[list[Any]]:
    """Reads the annotations of Cars196.

    Args:
        path: The .mat file.
        field: The name of the field that contains the file name.

    Returns:
        [file name, class] of each annotation.

    Raises:
        LikenessError: As for `agedb_folds`.
    """
    return list(_read(path, _cars, field))


def _read(path: Path, function: Any, *arguments: str) -> Any:
    """The value that `function` gives for the file, in a process of its own."""
    limits = Limits(seconds=_SECONDS, memory=_MEMORY, answer=0)
    return ask_once(
        function, str(path.absolute()), *arguments, preload=("scipy.io",), about=path, limits=limits
    )[0]


def _agedb(path: str) -> Answer:
    """Reads AgeDB's folds; this runs in the process."""
    content = _load(path, "splits", squeeze=False)
    return [_agedb_fold(fold[0][0][0]) for fold in content], []


def _agedb_fold(record: Any) -> list[list[Any]]:
    """The pairs of one fold.

    record[0] has (2, P) cells of structs whose first field is the image's name, and record[1] has
    (1, P) labels.
    """
    names, labels = record[0], record[1][0]
    sides = [[str(cell[0][0][0][0]) for cell in names[side]] for side in (0, 1)]
    if not len(sides[0]) == len(sides[1]) == len(labels) or not set(labels.tolist()) <= {-1, 0, 1}:
        raise LikenessError("names and labels do not pair up")
    return [
        [f"{first}.jpg", f"{second}.jpg", label == 1]
        for first, second, label in zip(*sides, labels.tolist(), strict=True)
    ]


def _cars(path: str, field: str) -> Answer:
    """Reads the annotations of Cars196; this runs in the process."""
    content = _load(path, "annotations", squeeze=True)
    return [
        [str(annotation[field]), int(annotation["class"])] for annotation in content.reshape(-1)
    ], []


def _load(path: str, name: str, *, squeeze: bool) -> Any:
    """The variable `name` of a .mat file."""
    from scipy.io import loadmat

    with open(path, "rb") as file:
        try:
            return loadmat(cast(Any, file), variable_names=[name], squeeze_me=squeeze)[name]
        except MemoryError:
            raise
        except Exception as error:  # scipy raises many kinds for a damaged file, OSError too
            raise LikenessError(
                f"{path}: it cannot be read ({type(error).__name__}: {str(error)[:200]})"
            ) from None
