"""Files where values are needed: the measurements of the front door take either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from eval.errors import LikenessError
from eval.formats import embeddings as stored
from eval.formats.provenance import sha256
from eval.formats.subjects import read_mapping, read_qualities
from eval.formats.trials import read_trials
from eval.scoring.templates import read_enrolment
from eval.types import Embeddings, Trials, name_first

File = str | PathLike[str]
ColumnNames = str | Mapping[str, str]  # "enrol=a,probe=b,label=c"
Names = File | Mapping[str, str]
Models = File | Mapping[str, Sequence[str]]


def files_in(*given: Any) -> list[Path]:
    """The files among arguments that take files or values, one or several."""
    files = []
    for value in given:
        if isinstance(value, str | PathLike):
            files += [Path(value)] if Path(value).is_file() else []
        elif isinstance(value, Mapping):
            files += files_in(*value.values())
        elif isinstance(value, Sequence):
            files += files_in(*value)
    return files


def digests_of(files: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of each file, by its path."""
    return {str(path): sha256(path) for path in files}


def embeddings_of(embeddings: File | Embeddings) -> Embeddings:
    """The embeddings, read if they are in a file."""
    if isinstance(embeddings, Embeddings):
        return embeddings
    return stored.read(_path(embeddings, "embeddings"))


def trials_of(trials: Any, columns: ColumnNames = "") -> Trials:
    """The trials, read if they are in a file or in a table in memory, by what its columns are."""
    if isinstance(trials, Trials):
        return trials
    if not hasattr(trials, "columns"):
        trials = _path(trials, "trials")
    return read_trials(trials, columns=columns)


def names_of(names: Names | None, what: str) -> Mapping[str, str] | None:
    """The subject, class or group of each id, read if they are in a file.

    Args:
        names: The mapping or its file.
        what: What errors call it, such as "subjects".
    """
    if names is None or isinstance(names, Mapping):
        return names
    return read_mapping(_path(names, what))


def quality_of(quality: File | Mapping[str, float]) -> Literal["norm"] | Mapping[str, float]:
    """The quality of each id, read if it is in a file.

    Args:
        quality: "norm", which stays as it is; a mapping; or a list `id quality`.
    """
    if isinstance(quality, Mapping):
        return quality
    if isinstance(quality, str) and quality == "norm":
        return "norm"
    return read_qualities(_path(quality, "quality"))


def models_of(models: Models | None) -> Mapping[str, Sequence[str]] | None:
    """The items that enrol each model, read if they are in a file."""
    if models is None or isinstance(models, Mapping):
        return models
    return read_enrolment(_path(models, "models"))


def names_of_files(paths: Sequence[Path], kind: str) -> list[str]:
    """Give each file a short distinct name: its own without its ending, else its whole path.

    Args:
        paths: The files.
        kind: What the files hold, for the error.

    Raises:
        LikenessError: A file is there twice.

    Example:
        >>> names_of_files([Path("runs/a.txt"), Path("runs/b.txt.gz")], "score")
        ['a', 'b']
        >>> names_of_files([Path("a/scores.txt"), Path("b/scores.txt")], "score")
        ['a/scores.txt', 'b/scores.txt']
    """
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    names = stems if len(set(stems)) == len(paths) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        twice = name_first(name for name in dict.fromkeys(names) if names.count(name) > 1)
        raise LikenessError(f"the same {kind} file is given twice ({twice}); leave one out")
    return names


def _path(value: File, what: str) -> Path:
    path = Path(value)
    if not path.exists():
        raise LikenessError(f"{what}: there is no file {str(value)!r}; correct the path")
    return path
