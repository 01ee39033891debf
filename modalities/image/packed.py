"""Data sets in a few large files: one item's bytes, whether the file is plain or compressed;
checksums; archives whose members are items themselves.

A span in a .gz file counts the decompressed bytes. Such a file is decompressed once in each process
and kept (at most two of them): 60,000 MNIST images take .3 s and 47 MB, and then each is a slice.
In a plain file only the span is read. Items of compressed files say so at the end of their
`ending`: what reads spans without this module (toolkit.data.shards.write) refuses that suffix,
instead of taking bytes that mean something else.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from eval.formats.files import refuse_device
from eval.types import name_first
from toolkit.data.batch import MAX_SPAN, Item

COMPRESSED = "@gz"
_SUFFIXES = (".gz", ".tgz")
_BLOCK = 2**20


def stretch(item: Item) -> bytes:
    """The bytes of an item: of its span, or of the whole file (decompressed where its name ends in
    .gz or .tgz).

    ValueError for a compressed file that is damaged, cut short or larger than 1 GiB, and a span
    past the end; OSError if it cannot be opened.
    """
    if item.path.suffix not in _SUFFIXES:
        refuse_device(item.path)
        if item.span is None and item.path.stat().st_size > MAX_SPAN:
            raise ValueError(
                f"{item.path}: over {MAX_SPAN} bytes; this is no file of a packed data set"
            )
        with item.open() as file:
            return file.read()
    status = item.path.stat()
    held = _decompressed(item.path, status.st_mtime_ns, status.st_size)
    if item.span is None:
        return held
    offset, size = item.span
    if offset < 0 or size < 0 or offset + size > len(held):
        raise ValueError(
            f"{item.name}: {size} bytes from byte {offset} of {len(held)}; list the data anew, the "
            "file has changed"
        )
    return held[offset : offset + size]


@lru_cache(maxsize=2)
def _decompressed(path: Path, mtime_ns: int, size: int) -> bytes:
    """mtime_ns, size: a file that has changed is decompressed again."""
    held = io.BytesIO()  # by blocks: one read of MAX_SPAN would take that much memory for any file
    try:
        with gzip.open(path) as file:
            while block := file.read(_BLOCK):
                if held.write(block) and held.tell() > MAX_SPAN:
                    raise ValueError(
                        f"{path}: over {MAX_SPAN} bytes when decompressed; this is no file of a "
                        "packed data set"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: damaged or cut short ({error}); fetch it again") from error
    return held.getvalue()


def marked(ending: str, path: Path) -> str:
    """The ending of an item inside `path`: marked where that is compressed."""
    return ending + COMPRESSED * (path.suffix in _SUFFIXES)


def members(archive: Path) -> dict[str, Item]:
    """The files inside a .tar.gz by their base names, as items whose span lies in the decompressed
    archive. ValueError if it is damaged or cut short.
    """
    found: dict[str, Item] = {}
    try:
        # plain inside: tarfile would also expand a .bz2 or .xz, without bound
        with tarfile.open(
            fileobj=io.BytesIO(stretch(Item(archive.name, archive))), mode="r:"
        ) as tar:
            end = 0
            for one in tar:
                if one.size < 0 or one.offset < end:
                    raise tarfile.ReadError("members that overlap")
                end = one.offset_data + one.size if one.isreg() else one.offset_data
                if one.isfile():
                    name = one.name.rpartition("/")[2]
                    found[name] = Item(name, archive, None, (one.offset_data, one.size))
    except (tarfile.TarError, EOFError, OverflowError, RecursionError) as error:
        raise ValueError(f"{archive}: damaged or cut short ({error}); fetch it again") from error
    return found


def verify(folder: Path, expected: Mapping[str, str], *, decompressed: bool = False) -> None:
    """Compare MD5 sums with {name below folder: sum}; decompressed: of what a .gz holds.

    ValueError counts the missing or wrong ones, naming the first.
    """
    missing, wrong = [], []
    for name, wanted in expected.items():
        path = folder / name
        if not path.is_file():
            missing.append(name)
            continue
        with (gzip.open if decompressed and path.suffix == ".gz" else open)(path, "rb") as file:
            try:
                found = hashlib.file_digest(
                    file, lambda: hashlib.md5(usedforsecurity=False)
                ).hexdigest()  # type: ignore[arg-type, unused-ignore]
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                found = f"damaged: {error}"
        if found != wanted:
            wrong.append(f"{name} has {found} instead of {wanted}")
    if missing:
        raise ValueError(
            f"{folder}: {len(missing)} of {len(expected)} files are missing "
            f"({name_first(missing)}); fetch them"
        )
    if wrong:
        raise ValueError(
            f"{folder}: {len(wrong)} of {len(expected)} files have a wrong MD5 sum "
            f"({name_first(wrong)}); fetch them again"
        )


def locate(data: Path, names: tuple[str, ...], fetch: str) -> Path:
    """The first of data/NAME for these names (files or folders; "" is `data` itself) that exists.

    FileNotFoundError says what to fetch.
    """
    for name in names:
        if (data / name).exists():
            return data / name
    raise FileNotFoundError(
        f"{data}: none of {', '.join(one or '.' for one in names)} is there; {fetch}"
    )
