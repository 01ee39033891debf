"""What a result, an embedding file or a checkpoint says of where it came from: digests and the
version.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from eval.formats.files import bounded
from eval.formats.kaldi import meta_path

_MAX_INDEX = 1 << 30  # bytes of a .scp


def sha256(path: Path) -> str:
    """Hex digest of a file; of a folder (a LanceDB table), of the names and digests of all its
    files; of a Kaldi .scp, of those of the files behind it.

    A pipe cannot be read again and gives a phrase that says so, in place of the digest of nothing.
    """
    if path.is_dir():
        return _joint(
            {
                one.relative_to(path).as_posix(): one
                for one in sorted(path.rglob("*"))
                if one.is_file()
            }
        )
    if path.exists() and not path.is_file():
        return "unknown: read from a pipe"
    if path.suffix.lower() == ".scp":
        return _joint(_behind(path))
    return _plain(path)


def _behind(path: Path) -> dict[str, Path]:
    """What embeddings in a .scp are read from: the index, the archives that it names (as it names
    them), and the meta beside it or else beside them.
    """
    side = meta_path(path)
    found = {path.name: path}
    targets = (
        line.strip().partition(" ")[2].strip()
        for line in bounded(path, _MAX_INDEX).decode(errors="replace").splitlines()
    )
    for name in dict.fromkeys(re.sub(r":\d+\Z", "", target) for target in targets):
        held = next(
            (one for one in (Path(name), path.parent / name) if name and os.path.isfile(one)), None
        )  # from the working folder first, as in Kaldi
        if held is not None:
            found[name] = held
            if not side.is_file() and meta_path(held).is_file():
                found[meta_path(Path(name)).as_posix()] = meta_path(held)
    return found | ({side.name: side} if side.is_file() else {})


def _joint(files: Mapping[str, Path]) -> str:
    return hashlib.sha256(
        "".join(f"{name}\0{_plain(one)}\n" for name, one in files.items()).encode()
    ).hexdigest()


def _plain(path: Path) -> str:
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
