"""What a result, an embedding file or a checkpoint says of where it came from: digests and the version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def sha256(path: Path) -> str:
    """Hex digest of a file; of a folder (a LanceDB table), of the names and digests of all its files."""
    if path.is_dir():
        files = sorted(one for one in path.rglob("*") if one.is_file())
        return hashlib.sha256("".join(f"{one.relative_to(path).as_posix()}\0{sha256(one)}\n" for one in files).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(values: Sequence[str]) -> str:
    """sha256 of a list of names, in order."""
    summed = hashlib.sha256()
    for value in values:
        summed.update(value.encode() + b"\0")
    return summed.hexdigest()


def likeness_version() -> str:
    """The installed version, "unknown" where it is not installed."""
    try:
        return version("likeness")
    except PackageNotFoundError:
        return "unknown"
