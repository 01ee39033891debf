"""One writer at a time in a folder: the operating system's lock, which goes with the process,
however it ends.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from likeness.eval.errors import LikenessError
from likeness.eval.writing import remove_abandoned
from likeness.toolkit.console import say

NAME = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Busy(LikenessError):
    """Another process works in the folder."""


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made if it does not exist.

    The lock is that of the file `.lock` in the folder (filelock). A process that dies in any way
    gives it up at once, and processes that it started do not keep it. Over NFS, Linux asks the
    server for the lock, so that it holds between machines as well. A file system without locks is
    named. Reading needs no lock. What killed writers left half-written in the folder is removed.

    Raises:
        Busy: Another process, or another thread of this one, holds the lock. Nothing in the folder
            was touched.
    """
    made = not folder.is_dir()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    lock = FileLock(path, timeout=0, fallback_to_soft=False)  # a soft lock outlives its process
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):  # not found: its holder removes the folder
        raise Busy(
            f"{folder} is being written by another process; wait until it ends, or choose another "
            "folder"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        say(
            f"{folder}: this file system has no locks ({error.strerror}); see to it yourself that "
            "nothing else writes there",
            error=True,
        )
    own = path.stat()
    remove_abandoned(folder)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes the file after its release
            # Not one that another process has made since, where the block removed the folder.
            if os.path.samestat(path.stat(), own):
                path.unlink()
        lock.release()
        if made:  # and nothing was written into it
            with suppress(OSError):
                folder.rmdir()


def empty(folder: Path) -> None:
    """Remove all that is in a folder but its lock, which its only writer holds."""
    for path in folder.iterdir():
        if path.name == NAME:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
