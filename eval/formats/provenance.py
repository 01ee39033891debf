"""What a result, an embedding file or a checkpoint says of its origin: digests and the version."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from eval.formats.files import bounded, file_digest
from eval.formats.kaldi import meta_path

_MAX_INDEX = 1 << 30  # bytes of a .scp


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
        return _joint({file.relative_to(path).as_posix(): file for file in files})
    if path.exists() and not path.is_file():
        return "unknown: read from a pipe"
    if path.suffix.lower() == ".scp":
        return _joint(_behind(path))
    return file_digest(path)


def _behind(path: Path) -> dict[str, Path]:
    """The files that the embeddings in a .scp are read from.

    They are the index, the archives that it names (under these names), and the meta beside the
    index or else beside the archives.
    """
    side = meta_path(path)
    files = {path.name: path}
    targets = (
        line.strip().partition(" ")[2].strip()
        for line in bounded(path, _MAX_INDEX).decode(errors="replace").splitlines()
    )
    for name in dict.fromkeys(re.sub(r":\d+\Z", "", target) for target in targets):
        # As in Kaldi, names count from the working folder first.
        candidates = (Path(name), path.parent / name) if name else ()
        archive = next(filter(os.path.isfile, candidates), None)
        if archive is not None:
            files[name] = archive
            if not side.is_file() and meta_path(archive).is_file():
                files[meta_path(Path(name)).as_posix()] = meta_path(archive)
    return files | ({side.name: side} if side.is_file() else {})


def _joint(files: Mapping[str, Path]) -> str:
    """The digest of the names and digests of several files."""
    return hashlib.sha256(
        "".join(f"{name}\0{file_digest(file)}\n" for name, file in files.items()).encode()
    ).hexdigest()


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


def likeness_version() -> str:
    """Returns the installed version, or "unknown" where it is not installed."""
    try:
        return version("likeness")
    except PackageNotFoundError:
        return "unknown"
