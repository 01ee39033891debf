"""Data sets in a few large files: the bytes of one item.

A span in a .gz file counts the decompressed bytes. Such a file is decompressed once in each process
and kept (at most two of them): 60,000 MNIST images take 0.3 s and 47 MB, and then each is a slice.
In a plain file only the span is read. Items of compressed files say so at the end of their
`ending`. What reads spans without this module (likeness.toolkit.data.shards.write) refuses that
suffix, instead of taking bytes that mean something else.
"""

import gzip
import io
import zlib
from functools import lru_cache
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import bounded
from likeness.eval.items.items import MAX_SPAN, Item
from likeness.toolkit.sources import Source, source_of

COMPRESSED = "@gz"
_BLOCK = 2**20


def stretch(item: Item) -> bytes:
    """Return the bytes of an item: those of its span, or of the whole file.

    A file whose name ends in .gz is decompressed.

    Raises:
        LikenessError: A compressed file is damaged, cut short or larger than 1 GiB, or a span ends
            after the file.
        OSError: The file cannot be opened.
    """
    if item.path.suffix != ".gz":
        if item.span is None:
            return bounded(item.path, MAX_SPAN)
        with item.open() as file:
            return file.read()
    content = _decompressed(item.path, source_of(item.path))
    offset, size = item.span or (0, len(content))
    if not 0 <= offset <= offset + size <= len(content):
        raise LikenessError(
            f"{item.name}: {size} bytes from byte {offset} of {len(content)}; list the data anew, "
            "the file has changed"
        )
    return content[offset : offset + size]


@lru_cache(maxsize=2)
def _decompressed(path: Path, source: Source) -> bytes:
    """Return what a .gz file holds; one that has changed is decompressed again."""
    content = io.BytesIO()
    try:
        with gzip.open(path) as file:
            # One read of MAX_SPAN bytes would take that much memory for any file; blocks do not.
            while block := file.read(_BLOCK):
                if content.write(block) and content.tell() > MAX_SPAN:
                    raise EOFError(f"over {MAX_SPAN} bytes when decompressed")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise LikenessError(f"{path}: damaged or cut short ({error}); fetch it again") from error
    return content.getvalue()


def ending_inside(ending: str, path: Path) -> str:
    """Return the ending of an item inside `path`, which says whether that file is compressed.

    Example:
        >>> ending_inside(".bits", Path("data.gz")), ending_inside(".bits", Path("data"))
        ('.bits@gz', '.bits')
    """
    return ending + COMPRESSED * (path.suffix == ".gz")


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
