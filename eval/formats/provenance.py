"""What a result, an embedding file or a checkpoint says of its origin: digests and the version."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.eval.formats._kaldi import archives, meta_path
from likeness.eval.formats.files import file_digest
from likeness.eval.types import name_first


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


def names_of_files(paths: Sequence[Path], kind: str) -> list[str]:
    """Give each file a short distinct name: its own without its ending, else its whole path.

    Args:
        paths: The files.
        kind: What the files hold, for the error.

    Raises:
        LikenessError: A file is there twice.

    Example:
        >>> names_of_files([Path("runs/a.txt"), Path("runs/b.txt.gz")], "score")
        ['a', 'b']
        >>> names_of_files([Path("a/scores.txt"), Path("b/scores.txt")], "score")
        ['a/scores.txt', 'b/scores.txt']
    """
    stems = [Path(path.name.removesuffix(".gz")).stem for path in paths]
    names = stems if len(set(stems)) == len(paths) else [str(path) for path in paths]
    if len(set(names)) < len(names):
        twice = name_first(name for name in dict.fromkeys(names) if names.count(name) > 1)
        raise LikenessError(f"the same {kind} file is given twice ({twice}); leave one out")
    return names
