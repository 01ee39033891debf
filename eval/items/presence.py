"""Whether the files of items are there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from likeness.eval.errors import LikenessError
from likeness.eval.items.remote import is_url, refuse_unreachable

if TYPE_CHECKING:
    pass


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
