"""Files in object stores and the like, which fsspec opens by their URL.

The path of an item is a `Path`, which makes one slash of two: the item s3://bucket/a.wav has the
path s3:/bucket/a.wav. The functions here take both. fsspec is imported when such a path is met, and
nothing else here uses the network.

A list of somebody else may name any bucket, and the packages under fsspec look for credentials in
many places, such as the metadata service of a cloud. So a list may name URLs only of a store that
the user has named: by the root of the list or by the environment.
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from likeness.eval.errors import LikenessError, Unreachable, first_line, install_line
from likeness.eval.option import if_option

SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hdfs", "sftp")
_BEGINNINGS = tuple(f"{scheme}:/" for scheme in SCHEMES)
# The variables of the environment that name a store, or say where its credentials are.
_NAMING = re.compile(
    r"(s3a?:AWS_(ACCESS_KEY_ID|PROFILE|ROLE_ARN|WEB_IDENTITY_TOKEN_FILE|CONTAINER_CREDENTIALS_.*"
    r"|CONFIG_FILE|SHARED_CREDENTIALS_FILE)|gc?s:GOOGLE_APPLICATION_CREDENTIALS"
    r"|(az|abfss?):AZURE_STORAGE_.*)"
)
_CREDENTIALS = {  # by the extra of a store
    "s3": ", such as AWS_PROFILE, or FSSPEC_S3_ANON=true for a public bucket",
    "gcs": ", such as GOOGLE_APPLICATION_CREDENTIALS, or FSSPEC_GS_TOKEN=anon for a public bucket",
}
_named: set[str] = set()  # schemes that are known to be named: a list may have millions of URLs


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
    if re.match("[^/@]*:[^/]*@", rest):
        raise LikenessError(f"a URL of {scheme}:// holds a password; give it by the environment")
    return f"{scheme}://{rest}"


def listed_path(root: Path, url: str) -> str:
    """Return the path of a URL in a list, as `Path` writes it.

    Args:
        root: Where relative paths of the list start from; it may be a URL.
        url: The entry of the list.

    Raises:
        LikenessError: It leads to a store that the user has not named.

    Example:
        >>> listed_path(Path("s3://bucket/ann"), "s3://bucket/bob/a.wav")
        's3:/bucket/bob/a.wav'
    """
    store, scheme = _store_of(url), url.partition(":")[0]
    if scheme not in _named and any(
        name.startswith(f"FSSPEC_{scheme.upper()}_") or _NAMING.fullmatch(f"{scheme}:{name}")
        for name in os.environ
    ):
        _named.add(scheme)
    if scheme not in _named and not (is_url(root) and _store_of(root) == store):
        remedy = f"{if_option(f'say --root {store}, or ')}name its credentials by the environment"
        raise LikenessError(
            f"{url_of(url)}: a list may not lead to a store that you did not name; {remedy}, as by "
            f"AWS_PROFILE, or FSSPEC_{scheme.upper()}_ANON=true for a public bucket"
        )
    return Path(url).as_posix()


def _store_of(path: str | Path) -> str:
    """Return the URL of the bucket that a URL leads to."""
    return "/".join(url_of(path).split("/")[:3])


def read(url: str, limit: int) -> bytes:
    """Return the bytes of a file.

    Args:
        url: Where it lies.
        limit: The most bytes that it may have.

    Raises:
        LikenessError: It has more bytes.
        FileNotFoundError: There is no such file.
        Unreachable: The store cannot be reached, or refuses the credentials.
    """
    with asked(url) as (system, path):
        if system.info(path)["size"] > limit:
            raise LikenessError(f"{url}: it has over {limit} bytes; is it the right file?")
        return bytes(system.cat_file(path))


def refuse_missing_files(paths: Iterable[Path], *, allow_some: bool = False) -> None:
    """Refuse paths that are no files. Of URLs, each bucket is asked once, and no file is.

    Args:
        paths: What is going to be read.
        allow_some: Refuse only if all are missing, as where a list is read from a wrong folder.

    Raises:
        LikenessError: A file is missing, or is a folder.
        Unreachable: A package is missing, or a store cannot be reached or refuses these
            credentials.

    Example:
        >>> refuse_missing_files([Path("a.wav"), Path("nobody.wav")])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        likeness.LikenessError: 'nobody.wav' does not exist; correct the paths, or the folder ...
    """
    paths = list(dict.fromkeys(paths))  # stretches share a file
    absent = [path for path in paths if not path.is_file()]
    urls = list(filter(is_url, absent))
    for url in {_store_of(url): url_of(url) for url in urls}.values():
        with suppress(FileNotFoundError), asked(url) as (system, path):
            system.info(path)
    # a pipe will do
    missing = [path for path in absent if path.is_dir() or not (path.exists() or is_url(path))]
    if not missing or (allow_some and len(missing) < len(paths) - len(urls)):
        return
    remedy = allow_some and if_option("say with --root where they start")
    remedy = remedy or "the folder that they start from"
    what = "is a folder" if missing[0].is_dir() else "does not exist"
    raise LikenessError(f"{str(missing[0])!r} {what}; correct the paths, or {remedy}")


@contextmanager
def asked(url: str) -> Iterator[tuple[Any, str]]:
    """Yield what opens a URL, and its path there; what fails in the block becomes one sentence.

    Lists of files are never remembered.

    Raises:
        FileNotFoundError: There is no such file or bucket.
        ModuleNotFoundError: fsspec is not installed.
        Unreachable: The package of a store is missing, or anything else that it answers.
    """
    try:
        import fsspec

        yield fsspec.url_to_fs(url, use_listings_cache=False)
    except (LikenessError, ModuleNotFoundError):
        raise
    except FileNotFoundError:
        reason = "there is no such file, or no such bucket; correct the URL"
        raise FileNotFoundError(errno.ENOENT, reason, url) from None
    except Exception as error:  # packages of stores have exceptions of any type
        reason = re.sub(r"//[^/@\s]*@", "//", first_line(error))  # without passwords of addresses
        scheme = url.partition(":")[0]
        extra = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}.get(scheme)
        install = f"install its package (`{install_line(extra)}`), or " if extra else ""
        raise Unreachable(
            f"{url}: the store cannot be reached or refuses the credentials ({reason}); {install}"
            f"give credentials by the environment{_CREDENTIALS.get(extra or '', '')}"
        ) from None
