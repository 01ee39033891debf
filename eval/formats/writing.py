"""Files and folders that are written whole or not at all.

A kill, a power cut or a full disk leaves the old or the new. What is written lies in a hidden
folder beside its place, `.NAME.HEX.part`, until it is whole. The next writer of the same file
removes those of these folders that are older than a day: killed writers left them behind.
"""

import csv
import errno
import hashlib
import io
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from likeness.eval.errors import LikenessError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# The most bytes of a file's name that the name of the folder beside it repeats. It may have 255.
_LONGEST = 200
_DAY = 86_400  # seconds


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


def write_text(path: str | Path, text: str) -> None:
    """Writes a text in UTF-8 with `atomic_path`, with its line ends as they are."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


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

    What the block leaves there is removed, and so is what writers of `path` left that were killed
    over a day ago.

    Args:
        path: The file or folder to write.

    Yields:
        The path to write to; the block calls `move` with it when it is whole.

    Raises:
        LikenessError: The folder of `path` does not exist.
        OSError: The disk is full, or the folder cannot be written to.
    """
    check_written(path)
    remove_abandoned(path, seconds=_DAY)
    folder = path.parent / f".{_label(path)}.{uuid4().hex[:12]}.part"
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise OSError(
            error.errno, f"{os.strerror(error.errno or 0)}; it cannot be written", str(path)
        ) from None
    try:
        with full_disk(path):
            yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    """Renames a file or folder that is whole to `path`, over a file that is there.

    It is on the disk when this returns. The content reaches the disk before the rename, because a
    power cut could otherwise leave an empty file under the final name. The new name reaches the
    disk before the caller removes anything older.
    """
    sync(source)
    os.replace(source, path)
    sync_names(path.parent)


def remove(path: Path) -> None:
    """Removes a file, if it is there; it is gone from the disk when this returns."""
    path.unlink(missing_ok=True)
    sync_names(path.parent)


def sync(path: Path) -> None:
    """Waits until a file, or a folder with everything in it, is on the disk."""
    if not path.is_dir():
        handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
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


def remove_abandoned(path: Path, *, seconds: float = 0) -> None:
    """Removes what killed writers of `path` left beside it.

    Args:
        path: The file or folder.
        seconds: What was begun since then stays, because another process may still write it. The
            default is for the one writer that a run or a gallery has.
    """
    pattern = re.compile(rf"\.{re.escape(_label(path))}\.[0-9a-f]{{12}}\.part")
    with suppress(OSError):
        for entry in list(os.scandir(path.parent)):
            is_young = seconds > 0 and time.time() - entry.stat().st_mtime < seconds
            if pattern.fullmatch(entry.name) and not is_young:
                shutil.rmtree(entry, ignore_errors=True)


def _label(path: Path) -> str:
    """The name that the hidden folder has in common with the file: a digest if the name is long."""
    name = os.fsencode(path.name)
    return path.name if len(name) <= _LONGEST else hashlib.sha256(name).hexdigest()


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
        writer.writerow(["" if value is None else _shown(value) for value in row])
    return file.getvalue()


def _shown(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


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
