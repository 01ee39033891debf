"""One writer at a time in a folder: the operating system's lock, which goes with the process,
however it ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from eval.errors import LikenessError
from toolkit.console import say

Writer = TypeVar("Writer", bound=Callable[..., Any])

NAME = ".lock"
# what a file system without locks answers
_NO_LOCKS = {"ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP"}
_TRIES = 100  # each of them lost to a process that has just removed the file which this one opened
_open: set[int] = set()  # descriptors of the locks that this process holds


class Busy(LikenessError):
    """Another process works in the folder."""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it does not exist.

    The lock is that of the file `.lock` in the folder (flock; on Windows msvcrt's). A process that
    dies in any way gives it up at once, and processes that it started do not keep it. Over NFS,
    Linux asks the server for the lock, so that it holds between machines as well. A file system
    without locks is named in a warning, and nothing is locked there. Reading needs no lock.

    Raises:
        Busy: Another process, or another thread of this one, holds the lock. Nothing in the folder
            was touched.
    """
    made = not folder.is_dir()
    handle = _acquire(folder)
    try:
        yield
    finally:
        if handle is not None:
            # Not one that another process has made since, where the block removed the whole folder.
            with suppress(OSError):  # Windows removes no open file
                if _is_file(handle, folder / NAME):
                    (folder / NAME).unlink()
            _open.discard(handle)
            os.close(handle)
        if made:  # and nothing was written into it
            with suppress(OSError):
                folder.rmdir()


def under_lock(function: Writer) -> Writer:
    """Run a function that writes into a folder, its keyword argument `out`, as the only writer
    there.
    """

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with only_writer(kwargs["out"]):
            return function(*args, **kwargs)

    return cast(Writer, run)


def is_held(folder: Path) -> bool:
    """Say whether this process holds the lock of a folder."""
    return any(_is_file(handle, folder / NAME) for handle in _open)


def empty(folder: Path) -> None:
    """Remove all that is in a folder but its lock, which its only writer holds."""
    for path in folder.iterdir():
        if path.name == NAME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _acquire(folder: Path) -> int | None:
    """The descriptor of the lock; None where the file system has no locks."""
    path = folder / NAME
    for _ in range(_TRIES):
        folder.mkdir(parents=True, exist_ok=True)  # its holder may have removed it altogether
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _try_lock(handle):
                raise Busy(
                    f"{folder} is being written by {_holder(path)}; wait until it ends, or choose "
                    "another folder"
                )
            # its holder ended, and removed it, after it was opened here
            if not _is_file(handle, path):
                os.close(handle)
                continue
        except OSError as error:
            os.close(handle)
            if _name(error) not in _NO_LOCKS:
                raise
            say(
                f"{folder}: this file system has no locks ({error.strerror}); see to it yourself "
                "that nothing else writes there",
                error=True,
            )
            return None
        except Busy:
            os.close(handle)
            raise
        _open.add(handle)
        with suppress(OSError):  # a full disk: the text only tells others who writes here
            os.truncate(handle, 0)
            os.write(
                handle,
                f"process {os.getpid()} on {socket.gethostname()}, since "
                f"{datetime.now():%Y-%m-%d %H:%M:%S}".encode(),
            )
        return handle
    raise Busy(
        f"{folder} is being written by other processes, one after the other; wait until they end, "
        "or choose another folder"
    )


def _try_lock(handle: int) -> bool:
    """Whether the lock could be had. OSError where the file system has none."""
    if sys.platform == "win32":
        import msvcrt

        try:
            os.lseek(handle, 1 << 20, os.SEEK_SET)  # behind the text, which others may then read
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            os.lseek(handle, 0, os.SEEK_SET)
        except PermissionError:
            return False
    else:
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _is_file(handle: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _holder(path: Path) -> str:
    """What the holder wrote of itself."""
    with suppress(OSError, UnicodeDecodeError):
        text = path.read_text(encoding="utf-8")
        if text.startswith("process "):
            return "another process" + f" ({text[:200].splitlines()[0]})"
    return "another process"


def _name(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "")


def _let_go() -> None:
    """In a child of a fork: its copies of the descriptors would keep the locks when the parent is
    gone.
    """
    for handle in _open:
        with suppress(OSError):
            os.close(handle)
    _open.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
