"""The files of a folder tree as items, listed straight into columns."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from eval.progress import tracked
from toolkit.data.columns import BLOCK
from toolkit.data.items import Items, ItemsBuilder

_Run = tuple[str, list[str]]  # a folder below the root with its slash, and names in it


def in_folders(root: Path, suffixes: Collection[str]) -> Items:
    """Lists the files in the folders of `root`, in the order of their paths.

    A folder of `root` may be a link to another; a link below it is not followed. Folders of `root`
    and files whose name begins with a dot are passed over.

    Args:
        root: The folder of the classes' folders.
        suffixes: The suffixes of the files to list, in small letters.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as data:
        ...     (Path(data) / "ann").mkdir()
        ...     (Path(data) / "ann" / "1.wav").touch()
        ...     in_folders(Path(data), [".wav"])[0].id
        'ann/1.wav'
    """
    with os.scandir(root) as inside:
        entries = [entry for entry in inside if entry.name[0] != "."]
    names = [
        entry.name
        for entry in entries
        if (os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir())
    ]
    runs = (
        run
        for name in names
        for run in _walk(os.path.join(root, name), f"{name}/", suffixes, hidden=True)
    )
    return _items(root, runs)


def anywhere(
    root: Path, suffixes: Collection[str], *, passed_over: list[str] | None = None
) -> Items:
    """Lists the files below `root`, at any depth, in the order of their paths.

    Links to folders are not followed. What is hidden, or lies in a hidden folder, is passed over.

    Args:
        root: The folder.
        suffixes: The suffixes of the files to list, in small letters.
        passed_over: Takes the names of files and folders that are not UTF-8, and the folders whose
            path is too long for the system. By default these are refused.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder; None for
        those that lie directly in root.
    """
    runs = _walk(os.fspath(root), "", suffixes, hidden=False, passed_over=passed_over)
    return _items(root, runs)


def _walk(
    folder: str,
    below: str,
    suffixes: Collection[str],
    *,
    hidden: bool,
    passed_over: list[str] | None = None,
) -> Iterator[_Run]:
    """Yields the files of a folder and of the folders in it.

    Nothing is asked about a file but its kind, which comes with its name on most disks.

    below: the folder's path below the root. hidden: whether hidden folders are gone into.
    """
    # A list and no recursion, because a tree may be deeper than Python's calls.
    folders = [(folder, below)]
    while folders:
        folder, below = folders.pop()
        names: list[str] = []
        for entry in _entries(folder, passed_over):
            name = entry.name
            if passed_over is not None and not name.isascii() and not _is_utf8(name):
                passed_over.append(below + name)
                continue
            fits = name[name.rfind(".") :].lower() in suffixes and name[0] != "."
            if entry.is_dir(follow_symlinks=False):
                if hidden or name[0] != ".":
                    folders.append((entry.path, f"{below}{name}/"))
            elif fits and (entry.is_file(follow_symlinks=False) or os.path.isfile(entry.path)):
                names.append(name)
        if names:
            yield below, names


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entries(folder: str, passed_over: list[str] | None) -> list[os.DirEntry[str]]:
    """The entries of a folder; none of one that may not be read."""
    try:
        with os.scandir(folder) as inside:
            return list(inside)
    except PermissionError:
        return []
    except OSError as error:
        if passed_over is None or error.errno != errno.ENAMETOOLONG:
            raise
        passed_over.append(folder)
        return []


def _items(root: Path, runs: Iterator[_Run]) -> Items:
    """The items of these files below a root."""
    made, before = ItemsBuilder(), (root / "x").as_posix()[:-1]
    ids: list[str] = []
    labels: list[str | None] = []

    def add() -> None:
        made.add(ids, [before + id for id in ids], labels)
        ids.clear()
        labels.clear()

    for below, names in tracked(runs, f"listing {root.name}", unit="folders"):
        ids += [below + name for name in names]
        labels += [below.partition("/")[0] or None] * len(names)
        if len(ids) >= BLOCK:
            add()
    add()
    return made.build().sorted_as_paths()
