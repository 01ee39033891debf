"""What a file was when crops, an index or the like were made of it, and whether it still is."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from likeness.eval.formats.files import file_digest
from likeness.eval.formats.provenance import digest

_MOST_DIGESTED = 1 << 26  # bytes of a file, or of several together


class Source(NamedTuple):
    """What a file was when something was made of it that is kept.

    Attributes:
        size: Its bytes.
        modified_ns: When its content changed.
        changed_ns: When the file changed in any way, which no copy sets back.
        digest: The SHA-256 of its content; "" where that would cost much.
    """

    size: int
    modified_ns: int
    changed_ns: int
    digest: str = ""


def source_of(path: str | PathLike[str], *, with_digest: bool = False) -> Source:
    """Says what a file is now.

    Args:
        path: The file.
        with_digest: Whether a digest is made of a file of up to 64 MiB, which is read for it.

    Raises:
        OSError: There is no such file.
    """
    stat = os.stat(path)
    summed = with_digest and stat.st_size <= _MOST_DIGESTED and S_ISREG(stat.st_mode)
    content = file_digest(Path(path)) if summed else ""
    return Source(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, content)


def digest_of_sources(paths: Iterable[Path]) -> str:
    """Returns the digest of what files are now, in their order.

    It is of their contents where they have up to 64 MiB together, so that copies have the same one.
    Otherwise it is of their sizes and of the times when their contents changed.

    Args:
        paths: The files. Those that are not there, such as files in object stores, are left out.
    """
    sources = dict[Path, Source]()
    for path in paths:
        with suppress(OSError):
            sources[path] = source_of(path)
    if sum(source.size for source in sources.values()) <= _MOST_DIGESTED:
        sources = {path: source_of(path, with_digest=True) for path in sources}
    return digest(each.digest or f"{each.size} {each.modified_ns}" for each in sources.values())


def is_source(path: str | PathLike[str], source: Sequence[Any]) -> bool:
    """Returns whether a file is what it was when something was made of it.

    Where its times differ, as those of a copy do, the digest decides; without one it is another.

    Args:
        path: The file.
        source: What `source_of` gave then, perhaps as JSON gives it back.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "a.wav")
        ...     _ = file.write_text("sound")
        ...     before = source_of(file, with_digest=True)
        ...     _ = file.write_text("sound")
        ...     same = is_source(file, before)
        ...     _ = file.write_text("noise")
        ...     same, is_source(file, before)
        (True, False)
    """
    try:
        before, now = Source(*source), source_of(path)
        if now[:3] == before[:3]:
            return True
        is_copy = bool(before.digest) and now.size == before.size
        return is_copy and before.digest == file_digest(Path(path))
    except (OSError, TypeError):
        return False
