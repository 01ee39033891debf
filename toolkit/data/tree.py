"""The files of a folder tree as items."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path

from likeness.eval.progress import tracked
from likeness.toolkit.data.items import BLOCK, Items

_NOT_UTF8 = re.compile("[\ud800-\udfff]")  # how Python shows bytes of names that are not UTF-8


def files(root: Path, suffixes: Collection[str], *, passed_over: list[str] | None = None) -> Items:
    """Lists the files below `root`, at any depth, in the order of their paths.

    A folder of `root` may be a link to another; a link below it is not followed. What is hidden, or
    lies in a hidden folder, is passed over.

    Args:
        root: The folder.
        suffixes: The suffixes of the files to list, in small letters.
        passed_over: Takes the names of files and folders that are not UTF-8, and the folders that
            cannot be listed. By default these are refused.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder; None for
        those that lie directly in root.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as data:
        ...     (Path(data) / "ann").mkdir()
        ...     (Path(data) / "ann" / "1.wav").touch()
        ...     files(Path(data), [".wav"])[0].id
        'ann/1.wav'
    """
    runs = tracked(_walk(root, suffixes, passed_over), f"listing {root.name}", unit="folders")
    ids = (below + name for below, names in runs for name in names)
    before = (root / "x").as_posix()[:-1]

    def rows(block: list[str]) -> Items:
        labels = [id.partition("/")[0] if "/" in id else None for id in block]
        return Items.rows(block, [before + id for id in block], labels)

    blocks = iter(lambda: list(islice(ids, BLOCK)), [])
    return Items.joined(map(rows, blocks)).sorted_as_paths()


def _walk(
    root: Path, suffixes: Collection[str], passed_over: list[str] | None
) -> Iterator[tuple[str, list[str]]]:
    """Yields each folder, as its path below the root with a slash, and the names of its files."""

    def note(error: OSError) -> None:
        """Notes a folder that cannot be listed; one that may not be read is left out silently."""
        if passed_over is not None:
            passed_over.append(str(error.filename))
        elif not isinstance(error, PermissionError):
            raise error

    top = os.fspath(root)
    with os.scandir(top) as entries:
        linked = [entry.path for entry in entries if entry.is_symlink()]
    starts = [top, *(link for link in linked if os.path.isdir(link))]
    for start in starts:
        for folder, folders, names in os.walk(start, onerror=note):
            below = os.path.relpath(folder, top).replace(os.sep, "/") + "/"
            below = "" if below == "./" else below
            fitting = [name for name in names if name[name.rfind(".") :].lower() in suffixes]
            yield below, _usable(fitting, below, passed_over)
            folders[:] = _usable(folders, below, passed_over)


def _usable(names: list[str], below: str, passed_over: list[str] | None) -> list[str]:
    """The names that are neither hidden nor passed over."""
    shown = [name for name in names if name[0] != "."]
    if passed_over is None:
        return shown
    passed_over += [below + name for name in shown if _NOT_UTF8.search(name)]
    return [name for name in shown if not _NOT_UTF8.search(name)]
