"""Files and folders that are written whole or not at all.

A kill, a power cut or a full disk leaves the old or the new. What is written lies in a hidden
folder beside its place, `.NAME.HEX.part`, until it is whole. Its writer holds the lock of that
folder, which the system takes from a process that dies. So the next writer of the same file knows
which of these folders killed writers left behind, and removes them. On a file system without such
locks, they stay for a day.
"""

import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from likeness.eval.errors import LikenessError

if sys.platform != "win32":
    import fcntl

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The most bytes of a file's name that the name of the folder beside it repeats. It may have 255.
_LONGEST = 200
_DAY = 86_400  # seconds
_NEW = "new"  # in a command's hidden folder: the numbers (inodes) of the files that it made
_absent: set[Path] = set()  # files that a command must not replace, as there were none
_made_in: dict[Path, Path] = {}  # the folder _NEW of each file that a command may make
_locks: set[int] = set()  # what holds the locks of hidden folders


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yields a temporary path; what is written there replaces `path` when the block ends.

    If the block raises, what was written vanishes. A device or a pipe (/dev/stdout of a pipeline,
    say) cannot be replaced and is yielded as it is. A link keeps pointing to the same file, which
    is now new.

    Args:
        path: The file to write.

    Yields:
        The path to write to.

    Raises:
        LikenessError: `path` is a folder. Its folder does not exist.
        OSError: The disk is full; `path` is then as it was. Whoever reads a pipe has gone.

    Example:
        >>> with atomic_path("/dev/null") as temporary:
        ...     _ = temporary.write_text("scores")
    """
    target = Path(path)
    # This asks about the name itself, because what /dev/stdout of a pipeline leads to has no name
    # of its own.
    if target.exists() and not target.is_file():
        if target.is_dir():
            raise LikenessError(f"{target} is a folder; name a file in it")
        try:
            with full_disk(target):
                yield target
        except BrokenPipeError as error:  # which does not name the file by itself
            raise BrokenPipeError(error.errno, error.strerror, str(target)) from None
        return
    path = Path(os.path.realpath(target))
    with staging_path(path) as temporary:
        yield temporary
        move(temporary, path)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder, which takes the place of an empty one or a file when the block ends.

    If the block raises, what was written vanishes. The folder of `path` is made where it is absent.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with staging_path(path) as temporary:
        temporary.mkdir()
        yield temporary
        move(temporary, path)


def write_text(path: str | Path, text: str) -> None:
    """Writes a text in UTF-8 with `atomic_path`, with its line ends as they are.

    Bytes of a file's name that are not UTF-8 appear as \\udcff.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def write_json(path: str | Path, value: object, *, allow_nan: bool = True) -> None:
    """Writes a value as JSON with `atomic_path`.

    Args:
        path: The file.
        value: What `json` can write.
        allow_nan: Whether NaN and infinity are written, which JSON itself does not have.

    Raises:
        ValueError: There is NaN or infinity, and they are not allowed.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=allow_nan)
    write_text(path, text + "\n")


@contextmanager
def staging_path(path: Path) -> Iterator[Path]:
    """Yields a path of the same name on the same disk, from which the block moves a whole file.

    What the block leaves there is removed, and so is what killed writers of `path` left.

    Args:
        path: The file or folder to write.

    Yields:
        The path to write to; the block calls `move` with it when it is whole.

    Raises:
        LikenessError: The folder of `path` does not exist.
        OSError: The disk is full, or the folder cannot be written to.
    """
    check_written(path)
    remove_abandoned(path)
    with locked_folder(path) as folder, full_disk(path):
        yield folder / path.name


@contextmanager
def locked_folder(path: Path) -> Iterator[Path]:
    """Yields a new hidden folder beside `path`, whose lock is held until it is removed.

    Raises:
        OSError: The disk is full, or the folder of `path` cannot be written to.
    """
    lock = None
    while lock is None:
        folder = path.parent / f".{_label(path.name)}.{uuid4().hex[:12]}.part"
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise OSError(
                error.errno, f"{os.strerror(error.errno or 0)}; it cannot be written", str(path)
            ) from None
        # Another writer may have taken it for abandoned before it was locked.
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def _locked(folder: Path) -> int:
    """Locks a hidden folder. Returns what holds the lock, or -1 where the system has no such locks.

    Raises:
        BlockingIOError: Another process, or another part of this one, holds the lock.
        FileNotFoundError: The folder was removed.
    """
    if sys.platform != "win32":
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.stat(folder)
        except (BlockingIOError, FileNotFoundError):
            os.close(handle)
            raise
        except OSError:  # a network disk without locks of folders
            os.close(handle)
            return -1
        _locks.add(handle)
        return handle
    return -1


def _unlock(lock: int) -> None:
    """Gives a lock up, unless a fork did so."""
    if lock in _locks:
        _locks.remove(lock)
        os.close(lock)


def _unlock_all() -> None:
    """Gives up the locks of the parent in a process that was forked, which may outlive it."""
    for lock in list(_locks):
        _unlock(lock)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock_all)


@contextmanager
def only_command(out: Path, files: Collection[Path], *, replaces: bool) -> Iterator[None]:
    """Within it, one command alone writes an output, and replaces nothing that it must not.

    A command that was killed leaves its hidden folder beside the output, with the numbers of the
    files that it made. So the next one knows which files are left by it, and begins again.

    Args:
        out: The file or folder.
        files: What may be written for it.
        replaces: Whether files are replaced that were there before.

    Raises:
        LikenessError: Another process writes it, or a file is there.
    """
    with ExitStack() as stack:
        own, left = None, set[str]()
        if out.is_file() or out.is_dir() or not out.exists():  # and no device
            with suppress(OSError):  # what cannot be written says so when it is written
                own = stack.enter_context(locked_folder(out))  # before others are looked for
        for folder in hidden_folders(out.parent, out):
            if folder == own:
                continue
            with suppress(FileNotFoundError):
                try:
                    lock = _locked(folder)
                except BlockingIOError:
                    raise LikenessError(f"another process is writing {out}; wait for it") from None
                except PermissionError:
                    problem = f"{folder} cannot be opened: another user may be writing {out}"
                    remedy = "remove that folder if nobody is, or name another place"
                    raise LikenessError(f"{problem}; {remedy}") from None
                if lock >= 0 and (folder / _NEW).is_dir():
                    left.update(os.listdir(folder / _NEW))
                _unlock(lock)
        others = [p for p in files if p.is_file() and str(p.stat().st_ino) not in left]
        if others and not replaces:
            remove_abandoned(out)
            raise LikenessError(f"{others[0]} exists; --force replaces it, or name another place")
        places = {path: Path(os.path.realpath(path)) for path in files}
        new = {place for path, place in places.items() if not path.exists()}
        if own is not None:
            if not replaces:
                (own / _NEW).mkdir()
                for number in left:  # also for the command after this one
                    (own / _NEW / number).touch()
                _made_in.update(dict.fromkeys(places.values(), own / _NEW))
            remove_abandoned(out)
        _absent.update(() if replaces else new)
        try:
            yield
        finally:
            _absent.difference_update(new)
            for place in places.values():
                _made_in.pop(place, None)


@contextmanager
def full_disk(path: Path) -> Iterator[None]:
    """Turns what a block raises where the disk is full into one sentence that names `path`.

    This includes what libraries in Rust, as safetensors, make of the system's error.

    Raises:
        OSError: The disk is full.
    """
    try:
        yield
    except Exception as error:
        match = re.search(r"\(os error (\d+)\)", str(error))
        number = int(match[1]) if match else getattr(error, "errno", None)
        if number not in FULL or "cannot be written" in str(error):
            raise
        reason = os.strerror(number)
        refused = OSError(
            f"{path} cannot be written, and what was there before is unchanged ({reason}); make "
            "room and try again"
        )
        refused.errno = number  # as an argument it would stand before the sentence
        raise refused from error


def move(source: Path, path: Path) -> None:
    """Renames a file or folder that is whole to `path`, over a file or an empty folder there.

    It is on the disk when this returns. The content reaches the disk before the rename, because a
    power cut could otherwise leave an empty file under the final name. The new name reaches the
    disk before the caller removes anything older.

    Raises:
        LikenessError: Another process made a file there since the command began.
    """
    sync(source)
    if path in _absent and path.exists():
        raise LikenessError(f"{path} was made by another process; name another, or add --force")
    if path in _made_in:
        (_made_in[path] / str(source.stat().st_ino)).touch()
    if source.is_dir() and path.exists():  # Windows renames it over nothing, others over no file
        path.rmdir() if path.is_dir() else path.unlink()
    os.replace(source, path)
    _absent.discard(path)
    sync_names(path.parent)


def remove(path: Path) -> None:
    """Removes a file, if it is there; it is gone from the disk when this returns."""
    path.unlink(missing_ok=True)
    sync_names(path.parent)


def sync(path: Path) -> None:
    """Waits until a file, or a folder with everything in it, is on the disk."""
    if not path.is_dir():
        with path.open("rb+" if os.name == "nt" else "rb") as file:
            os.fsync(file.fileno())
        return
    for entry in path.iterdir():
        if not entry.is_symlink() and (entry.is_file() or entry.is_dir()):
            sync(entry)
    sync_names(path)


def sync_names(folder: Path) -> None:
    """Waits until what was renamed, made and removed in a folder is on the disk.

    Some systems cannot do so; then it returns at once.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders, and a folder may be writable but not readable
        return
    try:
        with suppress(OSError):  # some network disks cannot
            os.fsync(handle)
    finally:
        os.close(handle)


def remove_abandoned(path: Path) -> None:
    """Removes what killed writers left of `path`, a file; of a folder, of any file in it as well.

    What a living writer holds stays, and so does a folder of the user that happens to have such a
    name.
    """
    within = hidden_folders(path) if path.is_dir() else []
    for folder in [*hidden_folders(path.parent, path), *within]:
        with suppress(OSError):  # it is held, or another process removes it
            lock = _locked(folder)
            if lock >= 0 or time.time() - folder.stat().st_mtime > _DAY:
                shutil.rmtree(folder, ignore_errors=True)
            _unlock(lock)


def hidden_folders(folder: Path, path: Path | None = None) -> list[Path]:
    """The hidden folders of writers in a folder: those of `path` alone, or of any file."""
    label = ".+" if path is None else re.escape(_label(path.name))
    pattern = re.compile(rf"\.({label})\.[0-9a-f]{{12}}\.part", re.DOTALL)
    try:
        with os.scandir(folder) as entries:
            labels = {
                folder / entry.name: match[1]
                for entry in entries
                if (match := pattern.fullmatch(entry.name)) and entry.is_dir(follow_symlinks=False)
            }
    except OSError:
        return []
    return sorted(hidden for hidden, label in labels.items() if _is_hidden(hidden, label))


def _is_hidden(folder: Path, label: str) -> bool:
    """Whether a folder of such a name holds what writers keep there, and nothing else."""
    try:
        return {_label(name) for name in os.listdir(folder)} <= {label, _NEW}
    except PermissionError:  # of another user, who may be at work
        return True
    except OSError:  # it was removed meanwhile
        return False


def _label(file_name: str) -> str:
    """The name that the hidden folder has in common with the file: a digest if the name is long."""
    name = os.fsencode(file_name)
    return file_name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()


_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def table_text(columns: Sequence[str], rows: Iterable[Iterable[object]], delimiter: str) -> str:
    """Give rows as a table of text with a head; a value that is not known is left empty.

    Args:
        columns: The names of the columns.
        rows: The values of each row; None is not known.
        delimiter: What separates the values.

    Example:
        >>> print(table_text(["id", "same"], [["a", True], ["b", None]], ","), end="")
        id,same
        a,true
        b,
    """
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([str(value).lower() if isinstance(value, bool) else value for value in row])
    return file.getvalue()


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Write rows whole or not at all, separated as the ending of the file says.

    Args:
        path: The file, which ends in .csv or .tsv.
        columns: The names of the columns.
        rows: The values of each row; None is not known.

    Raises:
        LikenessError: The file has another ending, or its folder does not exist.
    """

    check_written(path, _DELIMITERS)
    write_text(path, table_text(columns, rows, _DELIMITERS[path.suffix.lower()]))


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
