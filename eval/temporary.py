"""Temporary folders, which end with the process that made them, however it ends.

Each is a hidden folder with the operating system's lock on it (eval/formats/writing.py). So the
next process of the same user knows which ones a killed process left, and removes them.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from eval.formats.writing import hidden_folder, remove_abandoned

# Bytes of the longest temporary folder in which the path of a socket still fits.
_MOST_FOR_SOCKETS = 45


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a new folder that only this user can read, and remove it when the block ends.

    Example:
        >>> with temporary_folder() as folder:
        ...     _ = (folder / "wave.npy").write_bytes(b"...")
        >>> folder.exists()
        False
    """
    with hidden_folder(_beside(tempfile.gettempdir())) as folder:
        yield folder


@cache
def folder_of_process(use: str) -> Path:
    """Return a folder that is there until the process ends, the same for each call with one `use`.

    Its path is short enough for sockets, whose paths have at most 103 bytes: where the folder for
    temporary files has a long path, it is in /tmp.
    """
    parent = tempfile.gettempdir()
    is_long = os.name == "posix" and len(os.fsencode(parent)) > _MOST_FOR_SOCKETS
    until_end = ExitStack()
    atexit.register(until_end.close)
    return until_end.enter_context(hidden_folder(_beside("/tmp" if is_long else parent)))


def remove_abandoned_folders() -> None:
    """Remove the temporary folders of processes that were killed."""
    for parent in {tempfile.gettempdir(), "/tmp"}:
        remove_abandoned(_beside(parent))


def _beside(parent: str) -> Path:
    """The path that the names of the hidden folders of this user begin with."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(parent) / f"likeness-{user}"
