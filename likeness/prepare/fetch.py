"""Files from the network, whole and verified or not at all; archives, unpacked within bounds.

Only `likeness prepare` uses this file.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import lzma
import os
import re
import shutil
import stat
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, cast

from eval.formats.files import EXPANSION, FREE_EXPANSION
from eval.formats.writing import move

_BLOCK = 1 << 20
_TRIES = 5  # in a row without a byte received
_TIMEOUT_SECONDS = 60.0
_MAX_MEMBERS = 10_000_000
_MAX_NAME, _MAX_PART = 1024, 255  # bytes of a member's path, and of each of its parts
_SPARE = 1 << 24  # bytes that are left free on the disk

Advance = Callable[[int, int], None]  # bytes there, bytes in all (0 = the server does not say)


class _Broken(Exception):
    """The connection ended too early, or the server is busy: another try may succeed."""


def download(
    url: str,
    path: Path,
    *,
    size: int = 0,
    verified: bool = False,
    wait_seconds: float = 1.0,
    advance: Advance | None = None,
) -> None:
    """Fetch a file to `path`, over `path`.part.

    A download that broke or was stopped leaves the .part file, and the next one goes on with it
    (HTTP Range). After a break it waits and tries again; it gives up after five tries in a row
    without a byte.

    Args:
        url: An http or https address.
        path: The file to write.
        size: The number of bytes that it must have; 0 if that is not known.
        verified: Whether the caller compares a checksum afterwards. Then going on is safe even
            where the server gives neither an ETag nor a date; otherwise such a file is fetched
            anew.
        wait_seconds: The pause after the first break, doubled after every further one.
        advance: Called with the bytes there and the bytes in all (0 if the server does not say).

    Raises:
        OSError: There is no connection, the server refuses (404), or the disk is full. The message
            says what to do.
        ValueError: The address is not http or https, or the size is not the expected one.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url}: not an http or https address")
    part = path.with_name(path.name + ".part")
    failures = 0
    while True:
        before = part.stat().st_size if part.is_file() else 0
        try:
            _attempt(url, part, size, verified, advance)
            break
        except _Broken as error:
            grown = (part.stat().st_size if part.is_file() else 0) > before
            failures = 1 if grown else failures + 1
            if failures >= _TRIES:
                raise OSError(
                    f"{url}: {error}; gave up after {failures} tries; what arrived is kept, so run "
                    "the command again to go on"
                ) from None
            time.sleep(wait_seconds * 2 ** (failures - 1))
    _tag_of(part).unlink(missing_ok=True)
    move(part, path)


def _attempt(url: str, part: Path, size: int, verified: bool, advance: Advance | None) -> None:
    """Fetch over one connection; raise _Broken if it ends before the file does."""
    have = part.stat().st_size if part.is_file() else 0
    tag = _tag_of(part).read_text(encoding="utf-8") if _tag_of(part).is_file() else ""
    if have and not (tag or verified):
        have = 0  # nothing assures that the server's file is still the same
    response = _request(url, part, have, tag, size)
    if response is None:
        return
    with response:
        length = int(response.headers.get("Content-Length") or 0)
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        goes_on = response.status == 206 and span is not None and int(span[1]) == have
        if response.status == 206 and not goes_on:
            part.unlink(missing_ok=True)
            raise _Broken("the server sent another stretch than the one asked for")
        have = have if goes_on else 0
        total = have + length if length else 0
        if size and total and total != size:
            part.unlink(missing_ok=True)
            raise ValueError(
                f"{url}: the server's file has {total} bytes, but {size} are expected; it is "
                "another file: fetch the right one by hand"
            )
        free = shutil.disk_usage(part.parent).free
        if total - have > free - _SPARE:
            raise OSError(
                f"{part.parent}: {(total - have) / 1e9:.2f} GB are to come but {free / 1e9:.2f} GB "
                "are free; make room or choose another --data"
            )
        _tag_of(part).write_text(_validator(response.headers), encoding="utf-8")
        expected = size or total
        try:
            have = _receive(response, part, have, expected, goes_on, advance)
        except OSError as error:
            raise OSError(
                f"{part}: cannot be written ({error.strerror}); make room and run the command "
                "again: it goes on from there"
            ) from None
        if expected and have < expected:
            raise _Broken(f"the connection ended after {have} of {expected} bytes")


def _request(
    url: str, part: Path, have: int, tag: str, size: int
) -> http.client.HTTPResponse | None:
    """Ask the server for the bytes from `have` on; None if there are no more."""
    headers = {"User-Agent": "likeness", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag:
            headers["If-Range"] = tag
    request = urllib.request.Request(url, headers=headers)
    try:
        return cast(http.client.HTTPResponse, _opener().open(request, timeout=_TIMEOUT_SECONDS))
    except urllib.error.HTTPError as error:
        if error.code == 416:  # there is nothing after the bytes that are here
            if error.headers.get("Content-Range", "") == f"bytes */{have}" and size in (0, have):
                return None
            part.unlink(missing_ok=True)
            raise _Broken("what was fetched before does not fit the server's file") from None
        if error.code in (408, 429) or error.code >= 500:
            raise _Broken(f"the server answers {error.code} {error.reason}") from None
        raise OSError(
            f"{url}: the server answers {error.code} {error.reason}; the file may have moved: "
            "fetch it by hand"
        ) from None
    except (
        urllib.error.URLError,
        http.client.HTTPException,
        ConnectionError,
        TimeoutError,
    ) as error:
        if "unknown url type" in str(error):
            raise ValueError(
                f"{url}: leads to an address that is not http or https ({error}); fetch the file "
                "by hand"
            ) from None
        raise _Broken(f"no connection ({getattr(error, 'reason', error)})") from None


def _opener() -> urllib.request.OpenerDirector:
    """Return urllib's opener with redirections to http and https only, not to ftp, file or data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _receive(
    response: http.client.HTTPResponse,
    part: Path,
    have: int,
    expected: int,
    goes_on: bool,
    advance: Advance | None,
) -> int:
    """Write what comes, and return the number of bytes that are there afterwards.

    An OSError is the disk's; the connection's errors become _Broken.
    """
    with part.open("ab" if goes_on else "wb") as file:
        while True:
            try:
                block = response.read(_BLOCK)
            except (http.client.HTTPException, OSError) as error:
                raise _Broken(f"the connection broke after {have} bytes ({error})") from None
            if not block:
                return have
            have += len(block)
            if expected and have > expected:
                raise ValueError(
                    f"{part.name}: more than the announced {expected} bytes arrive; fetch it by "
                    "hand"
                )
            file.write(block)
            if advance is not None:
                advance(have, expected)


def _tag_of(part: Path) -> Path:
    """Return the file beside a .part file that holds what If-Range needs."""
    return part.with_name(part.name + ".tag")


def _validator(headers: http.client.HTTPMessage) -> str:
    """Return what If-Range may carry: a strong ETag, otherwise the date (RFC 9110, 13.1.5)."""
    etag = str(headers.get("ETag") or "")
    return etag if etag and not etag.startswith("W/") else str(headers.get("Last-Modified") or "")


def differs(paths: Sequence[Path], *, sha256: str = "", md5: str = "") -> str:
    """Compare the checksum of files, joined in their order, with the expected one.

    Args:
        paths: The files.
        sha256: The expected SHA-256, "" if it is not known.
        md5: The expected MD5, "" if it is not known.

    Returns:
        The sum that differs, as a part of a sentence; "" if nothing does.
    """
    for name, expected in (("sha256", sha256.lower()), ("md5", md5.lower())):
        if expected:
            summed = hashlib.new(name, usedforsecurity=False)
            for path in paths:
                with path.open("rb") as file:
                    while block := file.read(_BLOCK):
                        summed.update(block)
            if summed.hexdigest() != expected:
                return f"its {name} is {summed.hexdigest()}, but {expected} is expected"
    return ""


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
        ValueError: A member is refused, or the archive is damaged or cut short.
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
            raise ValueError(
                f"{name}: {error}; nothing of it was unpacked; it is not the archive that was "
                "published"
            ) from None
        if isinstance(error, FileExistsError | IsADirectoryError | NotADirectoryError):
            raise ValueError(
                f"{name}: two of its members belong in one place; nothing of it was unpacked; "
                "remove it and fetch it again"
            ) from None
        # An OSError without a number comes from bz2, which has no exception of its own.
        if isinstance(error, _DAMAGED) or (isinstance(error, OSError) and error.errno is None):
            raise ValueError(
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
