"""Data sets in a few large files: the bytes of one item, and archives of items.

A span in a .gz file counts the decompressed bytes. Such a file is decompressed once in each process
and kept (at most two of them): 60,000 MNIST images take 0.3 s and 47 MB, and then each is a slice.
In a plain file only the span is read. Items of compressed files say so at the end of their
`ending`. What reads spans without this module (toolkit.data.shards.write) refuses that suffix,
instead of taking bytes that mean something else.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from functools import lru_cache
from pathlib import Path

from eval.errors import LikenessError
from eval.formats.files import refuse_device
from toolkit.data.items import MAX_SPAN, Item

COMPRESSED = "@gz"
_SUFFIXES = (".gz", ".tgz")
_BLOCK = 2**20


def stretch(item: Item) -> bytes:
    """Return the bytes of an item: those of its span, or of the whole file.

    A file whose name ends in .gz or .tgz is decompressed.

    Raises:
        LikenessError: A compressed file is damaged, cut short or larger than 1 GiB, or a span ends
            after the file.
        OSError: The file cannot be opened.
    """
    if item.path.suffix not in _SUFFIXES:
        refuse_device(item.path)
        if item.span is None and item.path.stat().st_size > MAX_SPAN:
            raise LikenessError(
                f"{item.path}: over {MAX_SPAN} bytes; this is no file of a packed data set"
            )
        with item.open() as file:
            return file.read()
    status = item.path.stat()
    content = _decompressed(item.path, status.st_mtime_ns, status.st_size)
    if item.span is None:
        return content
    offset, size = item.span
    if offset < 0 or size < 0 or offset + size > len(content):
        raise LikenessError(
            f"{item.name}: {size} bytes from byte {offset} of {len(content)}; list the data anew, "
            "the file has changed"
        )
    return content[offset : offset + size]


@lru_cache(maxsize=2)
def _decompressed(path: Path, mtime_ns: int, size: int) -> bytes:
    """Return what a .gz file holds; one whose time or size has changed is decompressed again."""
    content = io.BytesIO()
    try:
        with gzip.open(path) as file:
            # One read of MAX_SPAN bytes would take that much memory for any file; blocks do not.
            while block := file.read(_BLOCK):
                if content.write(block) and content.tell() > MAX_SPAN:
                    raise LikenessError(
                        f"{path}: over {MAX_SPAN} bytes when decompressed; this is no file of a "
                        "packed data set"
                    )
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LikenessError(f"{path}: damaged or cut short ({error}); fetch it again") from error
    return content.getvalue()


def marked(ending: str, path: Path) -> str:
    """Return the ending of an item inside `path`, which says whether that file is compressed.

    Example:
        >>> marked(".bits", Path("data.gz")), marked(".bits", Path("data"))
        ('.bits@gz', '.bits')
    """
    return ending + COMPRESSED * (path.suffix in _SUFFIXES)


def members(archive: Path) -> dict[str, Item]:
    """List the files inside a .tar.gz by their base names.

    Each is an item whose span lies in the decompressed archive.

    Raises:
        LikenessError: The archive is damaged or cut short.
    """
    items: dict[str, Item] = {}
    try:
        content = io.BytesIO(stretch(Item(archive.name, archive)))
        # "r:" allows a plain archive only: tarfile would also expand a .bz2 or .xz, without bound.
        with tarfile.open(fileobj=content, mode="r:") as tar:
            end = 0
            for member in tar:
                if member.size < 0 or member.offset < end:
                    raise tarfile.ReadError("members that overlap")
                end = member.offset_data + member.size if member.isreg() else member.offset_data
                if member.isfile():
                    name = member.name.rpartition("/")[2]
                    items[name] = Item(name, archive, None, (member.offset_data, member.size))
    except (tarfile.TarError, EOFError, OverflowError, RecursionError) as error:
        raise LikenessError(f"{archive}: damaged or cut short ({error}); fetch it again") from error
    return items


def locate(data: Path, names: tuple[str, ...], fetch: str) -> Path:
    """Return the first of data/NAME that exists, a file or a folder.

    Args:
        data: The folder DATA.
        names: The names in the order in which they are tried; "" is `data` itself.
        fetch: What an error says about where the data set comes from.

    Raises:
        LikenessError: None of them exists.
    """
    for name in names:
        if (data / name).exists():
            return data / name
    raise LikenessError(
        f"{data}: none of {', '.join(name or '.' for name in names)} is there; {fetch}"
    )
