"""Files from the network, whole and verified or not at all.

Only `likeness prepare` uses this file.
"""

from __future__ import annotations

import hashlib
import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from eval.errors import LikenessError
from eval.formats.writing import move

_BLOCK = 1 << 20
_TRIES = 5  # in a row without a byte received
_TIMEOUT_SECONDS = 60.0
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
        LikenessError: The address is not http or https, or the size is not the expected one.
    """
    if not url.startswith(("http://", "https://")):
        raise LikenessError(f"{url}: not an http or https address")
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
            raise LikenessError(
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
            raise LikenessError(
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
                raise LikenessError(
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
