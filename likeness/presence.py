"""Says what is missing before anything slow is imported or loaded: files, models and packages."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from likeness.eval.errors import LikenessError
from likeness.eval.items.remote import is_url, refuse_unreachable
from likeness.models.included import resolved
from likeness.toolkit.console import one_line, say

if TYPE_CHECKING:
    from likeness.toolkit.data.reading import Bad

NUM_NAMED = 20  # so many bad items are named, and the others counted


def refuse_missing_files(paths: Sequence[Path], *, allow_some: bool = False) -> None:
    """Refuse paths that are no files. Of URLs, each bucket is asked once, and no file is.

    Args:
        paths: What is going to be read.
        allow_some: Refuse only if all are missing, as where a list is read from a wrong folder.

    Raises:
        LikenessError: A file is missing, or is a folder.
        likeness.eval.errors.Unreachable: A store cannot be reached, or refuses the credentials.

    Example:
        >>> refuse_missing_files([Path("a.wav"), Path("nobody.wav")])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        likeness.LikenessError: 'nobody.wav' does not exist; correct the paths, or the folder ...
    """
    paths = list(dict.fromkeys(paths))  # stretches share a file
    if any(map(is_url, paths)):
        refuse_unreachable(paths)
        paths = [path for path in paths if not is_url(path)]
    # a pipe will do
    missing = (
        path for path in paths if not path.is_file() and (path.is_dir() or not path.exists())
    )
    first = next(missing, None)
    if first is None or (allow_some and sum(1 for _ in missing) + 1 < len(paths)):
        return
    remedy = "say with --root where they start" if allow_some else "the folder that they start from"
    what = "is a folder" if first.is_dir() else "does not exist"
    raise LikenessError(f"{str(first)!r} {what}; correct the paths, or {remedy}")


def check_written(path: Path, endings: Collection[str] = ()) -> None:
    """Refuse a file that could not be written, before the work.

    Args:
        path: The file.
        endings: The endings of files that are written, such as ".csv"; without any, all are.

    Raises:
        LikenessError: The file has another ending. Its folder does not exist.

    Example:
        >>> check_written(Path("nowhere/a.json"))
        Traceback (most recent call last):
            ...
        likeness.LikenessError: nowhere/a.json: there is no folder nowhere; make it first
    """
    if endings and path.suffix.lower() not in endings:
        raise LikenessError(f"{path}: name a file that ends in {', '.join(endings)}")
    if not path.parent.is_dir():
        raise LikenessError(f"{path}: there is no folder {path.parent}; make it first")


def refuse_missing_model(model: str) -> None:
    """Refuse a model that is a path to nothing.

    Args:
        model: One of the forms that `likeness.load` takes.

    Raises:
        LikenessError: There is no such file or folder. No model of this name comes with Likeness.

    Example:
        >>> refuse_missing_model("runs/nothing")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        likeness.LikenessError: model 'runs/nothing' does not exist; give the folder of a run, ...
    """
    resolved(model)
    path, colon, _ = model.rpartition(":")
    path = path if colon and path.endswith(".py") else model  # own.py:NAME
    if not model or ((":" not in model or path != model) and not Path(path).exists()):
        raise LikenessError(
            f"model {model!r} does not exist; give the folder of a run, a .safetensors, .onnx or "
            ".py file, speechbrain:SOURCE, wespeaker:FILE.pt, hub:FOLDER_OR_ID, insightface:PATH "
            "or likeness:voice"
        )


def print_bad(bad: Sequence[Bad], others: str) -> None:
    """Print to stderr which items cannot be read, and why.

    Args:
        bad: The items, of which the first are named.
        others: What the rest is called after its number, such as "files".
    """
    alike: dict[str, list[Bad]] = {}
    for item in bad:
        # Reasons name the file first, and numbers of their own.
        reason = item.reason.partition(": ")[2] or item.reason
        alike.setdefault(re.sub(r"\d+", "", reason), []).append(item)
    groups = list(alike.values())
    for first, *more in groups[:NUM_NAMED]:
        ids = f"{first.id} and {len(more):,} more {others}" if more else first.id
        say(one_line(f"skipped {ids}: {first.reason}"), error=True)
    if rest := sum(map(len, groups[NUM_NAMED:])):
        say(f"skipped {rest:,} more {others}", error=True)
