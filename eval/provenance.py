"""What a result, an embedding file or a checkpoint says of where it came from: digests and the version."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def likeness_version() -> str:
    """The installed version, "unknown" where it is not installed."""
    try:
        return version("likeness")
    except PackageNotFoundError:
        return "unknown"
