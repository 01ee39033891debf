"""One writer at a time in a folder: the operating system's lock, which goes with the process,
however it ends.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from likeness.eval.errors import LikenessError
from likeness.toolkit.console import say

Writer = TypeVar("Writer", bound=Callable[..., Any])

NAME = ".lock"
_open: set[int] = set()  # descriptors of the locks that this process holds


class Busy(LikenessError):
    """Another process works in the folder."""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it does not exist.

    The lock is that of the file `.lock` in the folder (flock). A process that dies in any way gives
    it up at once, and processes that it started do not keep it. Over NFS, Linux asks the server for
    the lock, so that it holds between machines as well. On a system without such locks nothing is
    locked; a file system without them is named. Reading needs no lock.

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
    """The descriptor of the lock; None where there are no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        folder.mkdir(parents=True, exist_ok=True)
        return None
    while True:
        folder.mkdir(parents=True, exist_ok=True)  # its holder may have removed it altogether
        handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Busy(
                f"{folder} is being written by another process; wait until it ends, or choose "
                "another folder"
            ) from None
        except OSError as error:
            os.close(handle)
            say(
                f"{folder}: this file system has no locks ({error.strerror}); see to it yourself "
                "that nothing else writes there",
                error=True,
            )
            return None
        if _is_file(handle, folder / NAME):
            _open.add(handle)
            return handle
        os.close(handle)  # its holder ended, and removed it, after it was opened here


def _is_file(handle: int, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


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
