"""Archives, unpacked within bounds: .tar, .tar.gz and .zip, in one file or in parts.

Only `likeness prepare` uses this file.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from eval.errors import LikenessError
from eval.formats.files import EXPANSION, FREE_EXPANSION

_BLOCK = 1 << 20
_MAX_MEMBERS = 10_000_000
_MAX_NAME, _MAX_PART = 1024, 255  # bytes of a member's path, and of each of its parts


def is_archive(name: str) -> bool:
    """Say whether `unpack` takes a file of this name.

    Example:
        >>> is_archive("images.tar.gz"), is_archive("images.txt")
        (True, False)
    """
    return name.endswith((".tar.gz", ".tgz", ".tar", ".zip"))


def unpack(name: str, paths: Sequence[Path], into: Path) -> None:
    """Unpack a .tar, .tar.gz or .zip, in one file or in parts to be joined, into a new folder.

    On any error the folder is removed. Members that would lie outside the folder, devices and links
    of any kind are refused, and so is what expands to over 100 times its size (256 MB are always
    allowed).

    Args:
        name: The name of the archive, whose ending says its kind.
        paths: Its parts in their order.
        into: The folder, which must not exist yet.

    Raises:
        LikenessError: A member is refused, or the archive is damaged or cut short.
        OSError: The disk is full.
    """
    limit = max(FREE_EXPANSION, EXPANSION * sum(path.stat().st_size for path in paths))
    into.mkdir()
    try:
        with io.BufferedReader(_Joined(paths), _BLOCK) as stream:
            (_unzip if name.endswith(".zip") else _untar)(cast(BinaryIO, stream), into, limit)
    except BaseException as error:
        shutil.rmtree(into, ignore_errors=True)
        if isinstance(error, _Refused):
            raise LikenessError(
                f"{name}: {error}; nothing of it was unpacked; it is not the archive that was "
                "published"
            ) from None
        if isinstance(error, FileExistsError | IsADirectoryError | NotADirectoryError):
            raise LikenessError(
                f"{name}: two of its members belong in one place; nothing of it was unpacked; "
                "remove it and fetch it again"
            ) from None
        # An OSError without a number comes from bz2, which has no exception of its own.
        if isinstance(error, _DAMAGED) or (isinstance(error, OSError) and error.errno is None):
            raise LikenessError(
                f"{name}: damaged or cut short ({error}); nothing of it was unpacked; remove it "
                "and fetch it again"
            ) from None
        if isinstance(error, OSError):
            raise OSError(
                f"{name}: cannot be unpacked ({error.strerror}); nothing of it was kept; make room "
                "and run the command again"
            ) from None
        raise


# What the libraries raise for damaged archives. tarfile raises ValueError too, for numbers in a
# header that are none, and the system raises OverflowError for a time of change that it cannot
# store.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error),
    *(EOFError, NotImplementedError, RuntimeError, ValueError, OverflowError),
)


class _Refused(Exception):
    """The archive is not unpacked; the text says why."""


def _untar(stream: BinaryIO, into: Path, limit: int) -> None:
    """Unpack files and folders of a .tar or .tar.gz by their own names.

    A link of any kind is refused: tarfile's filters of this Python let some lead outside
    (CVE-2025-4517).
    """
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    plain = cast(BinaryIO, gzip.GzipFile(fileobj=stream) if packed else stream)
    total = 0
    # "r:" allows a plain archive only: tarfile itself would expand a .bz2 or .xz without bound.
    with tarfile.open(fileobj=cast(BinaryIO, _Short(plain)), mode="r:") as tar:
        for count, member in enumerate(tar, 1):
            if member.size < 0:
                raise _Refused(f"its member {member.name[:100]!r} has a negative size")
            total += member.size
            _check_bounds(count, total, limit)
            place = _place(member.name, into)
            if member.isdir():
                place.mkdir(parents=True, exist_ok=True)
            elif member.isreg():
                with cast(IO[bytes], tar.extractfile(member)) as content:
                    _put(content, place, into)
                place.chmod(0o755 if member.mode & 0o100 else 0o644)
                os.utime(place, (member.mtime, member.mtime))
            else:
                raise _Refused(f"its member {member.name[:100]!r} is a link or a device")
            tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all


def _unzip(stream: BinaryIO, into: Path, limit: int) -> None:
    """Unpack files and folders of a .zip, after a look at all of its members."""
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        _check_bounds(len(members), sum(member.file_size for member in members), limit)
        for member in members:
            _place(member.filename, into)
            if stat.S_ISLNK(member.external_attr >> 16):
                raise _Refused(f"its member {member.filename[:100]!r} is a link")
        for member in members:
            place = _place(member.filename, into)
            if member.filename.endswith("/"):  # is_dir() fails for a member without a name
                place.mkdir(parents=True, exist_ok=True)
            else:
                with archive.open(member) as content:
                    _put(content, place, into)


def _place(name: str, into: Path) -> Path:
    """Return where a member goes: inside the folder, in which there are no links.

    Raises:
        _Refused: The name leads elsewhere, or no system can have it.
    """
    inner = PurePosixPath(name)
    foreign = any(character in name for character in ("\\", ":", "\0"))
    if inner.is_absolute() or ".." in inner.parts or foreign:
        raise _Refused(f"its member {name[:100]!r} would lie outside the folder")
    if len(os.fsencode(name)) > _MAX_NAME or any(
        len(os.fsencode(part)) > _MAX_PART for part in inner.parts
    ):
        raise _Refused(f"its member {name[:100]!r} has a name of {len(name)} characters")
    return into / inner


def _put(content: IO[bytes], place: Path, into: Path) -> None:
    """Write one member to its place."""
    if place == into:
        raise _Refused("one of its members is a file without a name")
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        shutil.copyfileobj(content, file, _BLOCK)


class _Short(io.RawIOBase):
    """What tarfile reads through: it refuses long reads.

    So no header makes tarfile allocate what the header claims.
    """

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def read(self, size: int = -1, /) -> bytes:
        if not 0 <= size <= _BLOCK:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _check_bounds(count: int, total: int, limit: int) -> None:
    """Refuse an archive of too many members or too many bytes."""
    if count > _MAX_MEMBERS or total > limit:
        raise _Refused(f"it holds over {min(count, _MAX_MEMBERS)} members or {limit} bytes")


class _Joined(io.RawIOBase):
    """Several files read as one, with seeking."""

    def __init__(self, paths: Sequence[Path]):
        self._paths = list(paths)
        self._ends = [0]
        for path in paths:
            self._ends.append(self._ends[-1] + path.stat().st_size)
        self._place, self._number = 0, -1
        self._file: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._place = max(0, offset + (0, self._place, self._ends[-1])[whence])
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._place >= self._ends[-1]:
            return 0
        number = next(i for i, end in enumerate(self._ends[1:]) if self._place < end)
        if number != self._number or self._file is None:
            self._close()
            self._file, self._number = self._paths[number].open("rb"), number
        self._file.seek(self._place - self._ends[number])
        block = self._file.read(min(len(buffer), self._ends[number + 1] - self._place))
        buffer[: len(block)] = block
        self._place += len(block)
        return len(block)

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def close(self) -> None:
        self._close()
        super().close()
