"""Temporary folders, which end with the process that made them, however it ends.

Each has the operating system's lock on it, which goes with its process. So the next process of the
same user knows which ones a killed process left, and removes them.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

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
    folder, lock = _make(tempfile.gettempdir())
    try:
        yield folder
    finally:
        _remove(folder, lock)


@cache
def folder_of_process(use: str) -> Path:
    """Return a folder that is there until the process ends, the same for each call with one `use`.

    Its path is short enough for sockets, whose paths have at most 103 bytes: where the folder for
    temporary files has a long path, it is in /tmp.
    """
    parent = tempfile.gettempdir()
    is_long = os.name == "posix" and len(os.fsencode(parent)) > _MOST_FOR_SOCKETS
    folder, lock = _make("/tmp" if is_long else parent)
    atexit.register(_remove, folder, lock)
    return folder


def remove_abandoned_folders() -> None:
    """Remove the temporary folders of processes that were killed."""
    for parent in {tempfile.gettempdir(), "/tmp"}:
        for folder in Path(parent).glob(f"{_prefix()}*"):
            lock = _locked(folder)
            if lock is not None:
                _remove(folder, lock)


def _prefix() -> str:
    """What the names of the folders of this user begin with."""
    return f"likeness-{os.getuid() if hasattr(os, 'getuid') else 0}-"


def _make(parent: str) -> tuple[Path, int | None]:
    """A new folder, and the lock on it."""
    for _ in range(8):
        folder = Path(tempfile.mkdtemp(prefix=_prefix(), dir=parent))
        lock = _locked(folder)
        if lock is not None and folder.is_dir():
            break  # nobody took it for abandoned before it was locked
    return folder, lock  # without a lock where the disk has none


def _locked(folder: Path) -> int | None:
    """A handle with the lock on a folder; None where another process has it, or without locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # it is gone, or another user's
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _remove(folder: Path, lock: int | None) -> None:
    """Remove a folder, and give its lock back."""
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)
