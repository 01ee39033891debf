"""What a result, an embedding file or a checkpoint says of its origin: digests and the version."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

from likeness.eval.formats._kaldi import archives, meta_path
from likeness.eval.formats.files import file_digest

_MOST_DIGESTED = 1 << 26  # bytes of a file


def sha256(path: Path) -> str:
    """Computes the hex digest of a file or of what belongs together.

    For a folder, it is the digest of the names and digests of all its files. For
    a Kaldi .scp, it is that of the names and digests of the files behind it.

    Args:
        path: The file or folder.

    Returns:
        64 hex digits. A pipe cannot be read again; it gives a phrase that says so, in place of the
        digest of nothing.

    Raises:
        OSError: It cannot be read.
    """
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        names = [file.relative_to(path).as_posix() for file in files]
    elif path.exists() and not path.is_file():
        return "unknown: read from a pipe"
    elif path.suffix.lower() == ".scp":
        behind = list(archives(path))
        metas = map(meta_path, [path, *behind])
        files = [path, *behind, *dict.fromkeys(meta for meta in metas if meta.is_file())]
        names = [file.name for file in files]
    else:
        return file_digest(path)
    pairs = zip(names, map(file_digest, files), strict=True)
    return hashlib.sha256("".join(f"{name}\0{own}\n" for name, own in pairs).encode()).hexdigest()


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
    digest = file_digest(Path(path)) if summed else ""
    return Source(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, digest)


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


def digest(values: Iterable[str]) -> str:
    """Computes the sha256 of a list of names, in order, as hex digits.

    Example:
        >>> digest(["ann", "bob"])[:12]
        '41157d8b4aeb'
    """
    checksum = hashlib.sha256()
    for value in values:
        checksum.update(value.encode() + b"\0")
    return checksum.hexdigest()
