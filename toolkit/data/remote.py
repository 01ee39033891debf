"""Files in object stores and the like, which fsspec opens by their URL.

The path of an item is a `Path`, which makes one slash of two: the item s3://bucket/a.wav has the
path s3:/bucket/a.wav. The functions here take both. fsspec is imported when such a path is met, and
nothing else here uses the network.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eval.errors import LikenessError, Unreachable

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "sftp")
_BEGINNINGS = tuple(f"{scheme}:/" for scheme in SCHEMES)
# The extra that brings the package of a scheme; the other packages are named by fsspec.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_SECRETS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_SHORTEST_SECRET = 8  # characters; shorter ones would be found within other words
PATIENCE_SECONDS = 60.0  # for an answer of a store
SLOWEST = 2**16  # bytes a second that a store has to carry, beyond that
_LOOKED_AT = 8  # buckets of a list that are asked before the work begins


def is_url(path: str | Path) -> bool:
    """Return whether a path is the URL of a file that fsspec opens.

    Example:
        >>> is_url("s3://bucket/a.wav"), is_url(Path("s3://bucket/a.wav")), is_url("voices/a.wav")
        (True, True, False)
    """
    return str(path).startswith(_BEGINNINGS)


def url_of(path: str | Path) -> str:
    """Return the URL that a path states.

    Raises:
        LikenessError: It holds a password, which would be shown with it.

    Example:
        >>> url_of(Path("s3://bucket/ann/1.wav"))
        's3://bucket/ann/1.wav'
    """
    scheme, _, rest = str(path).partition(":")
    rest = rest.lstrip("/")
    user, is_named, _ = rest.partition("/")[0].rpartition("@")
    if is_named and ":" in user:
        raise LikenessError(
            f"a URL of {scheme}:// holds a password before an @; leave user and password out, and "
            "give them by the environment, as fsspec reads it"
        )
    return f"{scheme}://{rest}"


def place_below(root: Path, text: str) -> str:
    """Return the path that an entry of a list states, as `Path` writes it.

    Args:
        root: Where relative paths start from; it may be a URL.
        text: The entry.

    Example:
        >>> place_below(Path("voices"), "a.wav"), place_below(Path("voices"), "s3://bucket/a.wav")
        ('voices/a.wav', 's3:/bucket/a.wav')
    """
    return (Path(url_of(text)) if is_url(text) else root / text).as_posix()


def file_system(url: str) -> tuple[Any, str]:
    """Return what opens a URL, and the URL's path in it. Lists of files are never remembered.

    Raises:
        Unreachable: A package is missing; the message names what to install.
    """
    scheme = url.partition(":")[0]
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        remedy = f"pip install 'likeness[{extra}]'" if extra else str(error)
        raise Unreachable(f"{url} needs a package that is not installed: {remedy}") from None
    with plain_errors(url):
        return fsspec.filesystem(scheme, use_listings_cache=False), kind._strip_protocol(url)


def read(url: str, limit: int) -> bytes:
    """Return the bytes of a file.

    Args:
        url: Where it lies.
        limit: The most bytes that are read.

    Raises:
        LikenessError: It has more bytes.
        FileNotFoundError: There is no such file.
        Unreachable: The store cannot be reached, or refuses the credentials.
    """
    system, path = file_system(url)
    from fsspec.callbacks import Callback

    def refuse_more(size: int | None, value: int, **_: object) -> None:
        if max(size or 0, value) > limit:
            raise LikenessError(f"{url}: it has over {limit} bytes, but at most so many are read")

    arrived = Callback(hooks={"limit": refuse_more})
    with plain_errors(url), TemporaryDirectory(prefix="likeness-file-") as folder:
        refuse_more(ask(system, url, "info", path).get("size"), 0)
        copy = Path(folder) / "copy"
        # In parts at once, each would be read whole, however much the store sends.
        is_s3 = url.startswith(("s3:", "s3a:"))
        one_by_one: dict[str, Any] = {"max_concurrency": 1} if is_s3 else {}
        ask(
            system,
            url,
            *("get_file", path, str(copy)),
            carried=lambda: arrived.value,
            callback=arrived,
            **one_by_one,
        )
        return copy.read_bytes()


def ask(
    system: Any,
    url: str,
    method: str,
    *args: object,
    carried: Callable[[], int] = lambda: 0,
    **options: object,
) -> Any:
    """Call a method of a file system, but do not wait for ever where the store is one of a network.

    Args:
        system: As of `file_system`.
        url: What errors name.
        method: Its name.
        args: What it is given.
        carried: Says how many bytes have been carried so far. For each there is more time.
        options: What it is given, by name.

    Raises:
        Unreachable: The store is too slow. What else fails is raised as it is, see `plain_errors`.
    """
    from fsspec.asyn import AsyncFileSystem, sync

    async def in_time() -> Any:
        began = time.monotonic()
        work = asyncio.ensure_future(getattr(system, f"_{method}")(*args, **options))
        while True:
            left = began + PATIENCE_SECONDS + carried() / SLOWEST - time.monotonic()
            if left <= 0:
                work.cancel()
                raise Unreachable(
                    f"{url}: the store did not answer in {time.monotonic() - began:.0f} s, or "
                    f"carried under {SLOWEST // 1024} KiB a second; look whether it can be "
                    "reached from here"
                )
            if (await asyncio.wait({work}, timeout=left))[0]:
                return work.result()

    if isinstance(system, AsyncFileSystem):
        return sync(system.loop, in_time)
    return getattr(system, method)(*args, **options)


def refuse_unreachable(paths: Iterable[str | Path]) -> None:
    """Ask each bucket once, before the work: for its package and the credentials.

    A file that is not there is left to whoever reads it.

    Args:
        paths: What is going to be read. Those that are no URLs are passed over.

    Raises:
        Unreachable: A package is missing.
        Unreachable: A store cannot be reached, or refuses these credentials.
    """
    asked: dict[tuple[str, ...], None] = {}
    for path in paths:
        if not is_url(path):
            continue
        url = url_of(path)
        place = tuple(url.split("/", 3)[:3])
        if place in asked or len(asked) == _LOOKED_AT:
            continue
        asked[place] = None
        system, inside = file_system(url)
        try:
            with plain_errors(url):
                ask(system, url, "info", inside)
        except FileNotFoundError:
            pass


@contextmanager
def plain_errors(url: str) -> Iterator[None]:
    """Within the block, what fails about a URL becomes one sentence that shows no credentials.

    Raises:
        FileNotFoundError: There is no such file or bucket.
        FileExistsError: As it was raised.
        Unreachable: Anything else that a store answers.
    """
    try:
        yield
    except (FileExistsError, Unreachable):
        raise
    except FileNotFoundError as error:
        what = "bucket" if lacks_bucket(error) else "file, or no such bucket"
        reason = f"there is no such {what}; correct the URL"
        raise FileNotFoundError(errno.ENOENT, reason, url) from None
    except PermissionError as error:
        raise Unreachable(
            f"{url}: the store refuses these credentials ({_reason(error)}); correct those of the "
            "environment, or what they may do"
        ) from None
    except Exception as error:
        if "Credentials" in type(error).__name__:
            raise Unreachable(
                f"{url}: there are no credentials for it; give them by the environment, such as "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (FSSPEC_S3_ANON=true "
                "for a public bucket)"
            ) from None
        if not _is_of_a_store(error):
            raise
        raise Unreachable(
            f"{url}: the store does not answer as it should ({_reason(error)}); look whether it "
            "can be reached from here"
        ) from None


def lacks_bucket(error: Exception) -> bool:
    """Return whether an exception says that there is no such bucket, and not only no such file."""
    answer = getattr(error.__cause__, "response", None) or {}
    return bool(answer.get("Error", {}).get("Code") == "NoSuchBucket")


def _is_of_a_store(error: Exception) -> bool:
    """Return whether an exception is of the system or of a package that speaks to stores."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in (
        *("botocore", "aiobotocore", "s3fs", "gcsfs", "google", "aiohttp", "fsspec", "adlfs"),
    )


def _reason(error: Exception) -> str:
    """Return the first line of an exception, without credentials and addresses with passwords."""
    text = (str(error).splitlines() or [""])[0] or type(error).__name__
    for name in _SECRETS:
        if len(secret := os.environ.get(name, "")) >= _SHORTEST_SECRET:
            text = text.replace(secret, f"${name}")
    return re.sub(r"//[^/@\s]*@", "//", text)[:300]
