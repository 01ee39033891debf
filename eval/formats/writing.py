"""Files and folders written whole or not at all: a kill, a power cut or a full disk leaves the old
or the new.

What is written lies in a hidden folder beside its place, `.NAME.HEX.part`, until it is whole. The
writer holds the operating system's lock on that folder, which goes with the process however it
ends. So the next writer of the same file knows which of these folders a killed writer left behind,
and removes only those.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_LONGEST = 200  # bytes of a name in the name of the folder beside it, which may have 255


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A temporary path; what is written there replaces `path` when the block ends, and vanishes if
    the block raises.

    A device or pipe (/dev/stdout of a pipeline, say) cannot be replaced and is yielded as it is. A
    link keeps pointing to the same, now new, file.

    Args:
        path: the file to write.

    Raises:
        IsADirectoryError: `path` is a folder.
        FileNotFoundError: its folder does not exist.
        ValueError: it is /dev/stdout sent to a file, which cannot be replaced.
        OSError: the disk is full; `path` is then as it was.

    >>> with atomic_path("/dev/null") as temporary:
    ...     _ = temporary.write_text("scores")
    """
    given = Path(path)
    if (
        given.exists() and not given.is_file()
    ):  # asked of the name as given: what /dev/stdout of a pipeline leads to has no name of its own
        if given.is_dir():
            raise IsADirectoryError(f"{given} is a folder; name a file in it")
        yield given
        return
    path = Path(os.path.realpath(given))
    if _is_descriptor(
        given
    ):  # whoever holds it open would go on writing to the file that was replaced
        raise ValueError(
            f"{given} leads to {path}, which is already open and cannot be replaced; name the file "
            "itself"
        )
    with staged(path) as temporary:
        yield temporary
        move(temporary, path)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A path of the same name on the same disk, for a file or folder that the block moves to `path`
    when it is whole.

    What the block leaves there is removed, and so is what killed writers of `path` left.

    Raises:
        FileNotFoundError: the folder of `path` does not exist.
        OSError: the disk is full, or the folder cannot be written to.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    remove_abandoned(path)
    folder, lock = _reserve(path)
    try:
        with full_disk(path):
            yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


@contextmanager
def added(folder: Path) -> Iterator[None]:
    """For a folder whose files are added and never changed, as those of a LanceDB table: what the
    block adds is on the disk when it ends.

    If the block raises, what it added is removed.

    Raises:
        OSError: the disk is full, also where the block says so by another exception.
    """
    before = {one for one in folder.rglob("*") if one.is_file()}
    try:
        with full_disk(folder):
            yield
            fresh = [one for one in folder.rglob("*") if one.is_file() and one not in before]
            for one in fresh:
                sync(one)
            for one in {folder, *(file.parent for file in fresh)}:
                sync_names(one)
    except BaseException:
        for one in folder.rglob("*"):
            if one.is_file() and one not in before:
                one.unlink(missing_ok=True)
        raise


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """What a block raises where the disk is full, as one sentence that names `path`; also what
    libraries in Rust make of the system's error.

    Raises:
        OSError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        number = int(found[1]) if found else getattr(error, "errno", None)
        if number not in FULL or "cannot be written" in str(error):
            raise
        reason = os.strerror(number)
        refused = OSError(
            f"{path} cannot be written, and what was there before is unchanged ({reason}); make "
            "room and try again"
        )
        refused.errno = number  # not as an argument, which would come before the sentence
        raise refused from error


def move(source: Path, path: Path) -> None:
    """Rename a file or folder that is whole to `path`, over a file that is there; it is on the disk
    when this returns.

    The content reaches the disk before the rename, or a power cut could leave an empty file under
    the final name, and the new name reaches it before the caller removes anything older.
    """
    sync(source)
    os.replace(source, path)
    sync_names(path.parent)


def remove(path: Path) -> None:
    """Remove a file, if it is there; it is gone from the disk when this returns."""
    path.unlink(missing_ok=True)
    sync_names(path.parent)


def sync(path: Path) -> None:
    """Wait until a file, or a folder with all that is in it, is on the disk."""
    if not path.is_dir():
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return
    for one in path.iterdir():
        if not one.is_symlink() and (one.is_file() or one.is_dir()):
            sync(one)
    sync_names(path)


def sync_names(folder: Path) -> None:
    """Wait until what was renamed, made and removed in a folder is on the disk, where the system
    can do so.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders; a folder may be writable but not readable
        return
    try:
        with suppress(OSError):  # some network disks cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def remove_abandoned(path: Path) -> None:
    """Remove what killed writers of `path` left beside it.

    What a process that is alive writes now stays.
    """
    pattern = re.compile(rf"\.{re.escape(_label(path))}\.[0-9a-f]{{12}}\.part")
    try:
        names = [name for name in os.listdir(path.parent) if pattern.fullmatch(name)]
    except OSError:
        return
    for name in names:
        folder = path.parent / name
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _label(path: Path) -> str:
    """The file's name, or of a long one its digest: what the folder beside it is known by."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()


def _reserve(path: Path) -> tuple[Path, int | None]:
    """A new hidden folder beside `path`, and the lock on it, None where the disk has no locks."""
    while True:
        folder = path.parent / f".{_label(path)}.{uuid4().hex[:12]}.part"
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise OSError(
                error.errno, f"{os.strerror(error.errno or 0)}; it cannot be written", str(path)
            ) from None
        lock = _locked(folder)
        if lock is not None:
            return folder, lock
        if not _has_locks(folder):
            return folder, None
        shutil.rmtree(
            folder, ignore_errors=True
        )  # another writer of the same file took it for abandoned before it was locked


def _locked(folder: Path) -> int | None:
    """A handle with the lock on a folder; None if another process holds it, it is gone, or there
    are no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(
            os.fstat(handle), os.stat(folder)
        ):  # and not removed between the two calls
            return handle
    except OSError:
        pass
    os.close(handle)
    return None


def _has_locks(folder: Path) -> bool:
    """Whether the disk of a folder that this process made knows locks.

    It need not be there any more.
    """
    try:
        import fcntl
    except ImportError:
        return False
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return True  # gone: whoever removed it had locked it
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _is_descriptor(path: Path) -> bool:
    """Whether the way to the file leads through one that a process holds open, as that of
    /dev/stdout or /dev/fd/3 does.
    """
    for _ in range(40):  # links, at most as many as the kernel follows
        folder = os.path.realpath(path.parent)
        if re.fullmatch(r"/dev/fd|/proc/\d+(/task/\d+)?/fd", folder):
            return True
        if not path.is_symlink():
            break
        path = Path(folder) / os.readlink(path)
    return False
