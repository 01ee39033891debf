"""Embeddings in Kaldi's .ark and .scp, as binary vectors.

They are read without kaldiio, which runs .scp lines that end in | and unpickles what asks for it.
Kaldi has no place for the meta, so it stands in NAME.meta.json, which names its archive by the
SHA-256 of the archive.
"""

import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import file_digest, json_object, size_limit
from likeness.eval.types import Floats32, quoted
from likeness.eval.writing import full_disk, move, remove, staging_path, sync

MAX_DIM = 1 << 20
MAX_ID = 4_096  # bytes

_ARCHIVE = "archive_sha256"  # a key of the meta's JSON
_LINE = re.compile(r"(\S+)[ \t]+(.+?)(?::(\d{1,18}))?")  # of a .scp: id, archive, offset
# The head of a vector (FV, DV), or of a matrix of one row (FM, DM), and its number of dims.
_HEAD = re.compile(rb"\0B([FD])(?:V |M \x04\x01\0\0\0)\x04(.{4})", re.DOTALL)

_Entry = tuple[str, Floats32, Path]  # id, vector, archive


def write(path: Path, ids: Sequence[str], matrix: Floats32, meta: str) -> None:
    """Writes NAME.ark, NAME.scp and NAME.meta.json, each of them whole or not at all.

    NAME.scp is absent while it could lead into another archive than its own, and a meta that stands
    beside another archive than its own is refused.

    Args:
        path: NAME.ark.
        ids: (N,) without blanks.
        matrix: (N, D) embeddings.
        meta: A JSON object of texts, as text.

    Raises:
        OSError: The disk is full; what was there before stays.
    """
    ark, scp, side = (
        Path(os.path.realpath(name)) for name in (path, path.with_suffix(".scp"), meta_path(path))
    )
    with (
        staging_path(ark) as new_ark,
        staging_path(scp) as new_scp,
        staging_path(side) as new_side,
        full_disk(path),
    ):
        head = b"\0BFV \4" + struct.pack("<i", matrix.shape[1])
        place = 0
        with new_ark.open("wb") as file, new_scp.open("w", encoding="utf-8", newline="\n") as index:
            for name, row in zip(ids, matrix, strict=True):
                index.write(f"{name} {path}:{place + len(name.encode()) + 1}\n")
                place += file.write(name.encode() + b" " + head + row.astype("<f4").tobytes())
        stated = json.loads(meta) | {_ARCHIVE: file_digest(new_ark)}
        new_side.write_text(json.dumps(stated), encoding="utf-8")
        # What a full disk refuses, it refuses here, while the old files are still there.
        for new in (new_ark, new_scp, new_side):
            sync(new)
        remove(scp)
        move(new_side, side)
        move(new_ark, ark)
        move(new_scp, scp)


def read(path: Path) -> tuple[tuple[str, ...], Floats32, str]:
    """Reads a .ark or .scp file.

    Args:
        path: NAME.ark or NAME.scp.

    Returns:
        The N ids, the rows (N, D) and the JSON text of the meta, which is an empty object for
        archives of other tools. Beside a meta, files may be empty, and D is 1.

    Raises:
        LikenessError: The files are damaged or foreign, or empty without a meta, a .scp contains
            commands, sizes differ, or there is more than a file of its size may hold. Or the meta
            belongs to another archive, or archives have different metas.
        FileNotFoundError: There is no such file.
    """
    ids: list[str] = []
    rows: list[Floats32] = []
    sizes: dict[Path, int] = {}
    size_in_memory = limit = 0
    is_scp = path.suffix.lower() == ".scp"
    entries = _scp_entries(path) if is_scp else _ark_entries(path)
    for name, row, ark in entries:
        if ark not in sizes:
            sizes[ark] = ark.stat().st_size
            limit = size_limit(sum(sizes.values()))
        ids.append(name)
        rows.append(row)
        size_in_memory += row.nbytes
        # A .scp may name one vector any number of times.
        if size_in_memory > limit or row.size != rows[0].size:
            problem = f"has {row.size} dims, and the first vector has {rows[0].size}"
            if row.size == rows[0].size:
                problem = f"and the vectors before it take over {limit} bytes"
            raise LikenessError(f"{path}: {quoted(name)} {problem}; write it again")
    side = meta_path(path)
    if not rows and side.exists():
        sizes[path.with_suffix(".ark") if is_scp else path] = 0
    metas = {_meta_of(ark, side if side.exists() else meta_path(ark)) for ark in sizes}
    if len(metas) != 1:
        raise LikenessError(f"{path} has {len(metas)} different metas; give vectors of one model")
    matrix = np.stack(rows) if rows else np.zeros((0, 1), np.float32)
    return tuple(ids), matrix, metas.pop()


def meta_path(path: Path) -> Path:
    """Returns where the meta of a .ark or .scp lies.

    Example:
        >>> meta_path(Path("voices/test.ark")).as_posix()
        'voices/test.meta.json'
    """
    return path.with_suffix(".meta.json")


def _meta_of(ark: Path, side: Path) -> str:
    """What `side` says of an archive, as JSON text in one order."""
    if not side.exists():
        return "{}"
    stated = json_object(side)
    if stated.pop(_ARCHIVE, None) not in (None, file_digest(ark)):
        raise LikenessError(f"{side} belongs to another {ark.name}; write both again, or remove it")
    return json.dumps(stated, sort_keys=True)


def _ark_entries(path: Path) -> Iterator[_Entry]:
    """The entries of an archive."""
    with path.open("rb", buffering=1 << 20) as ark:
        while (head := ark.read(MAX_ID)).strip():
            key = head.partition(b" ")[0]
            ark.seek(len(key) + 1 - len(head), os.SEEK_CUR)
            name = key.decode()
            if re.search(r"\s", name):
                raise LikenessError(f"{path}: {quoted(name)} is no id; the archive is damaged")
            yield name, _vector(ark, f"{path}: {quoted(name)}"), path


def _scp_entries(path: Path) -> Iterator[_Entry]:
    """The entries that a .scp lists."""
    with ExitStack() as opened, path.open(encoding="utf-8", newline="\n") as scp:
        place: Path | None = None
        for number, line in enumerate(scp, 1):
            if not line.strip():
                continue
            match = _LINE.fullmatch(line.strip())
            named = _archive(path, match[2]) if match else None
            if match is None or named is None:
                problem = f"line {number}, {quoted(line)}, is no `id FILE.ark:OFFSET` of a file"
                raise LikenessError(f"{path}: {problem}; correct it (commands are never run)")
            if named != place:
                opened.close()
                place, ark = named, opened.enter_context(named.open("rb", buffering=1 << 20))
                size = named.stat().st_size
            ark.seek(min(size, int(match[3] or 0)))  # some file systems refuse a place behind it
            where = f"{path}: line {number} ({quoted(line.strip())})"
            yield match[1], _vector(ark, where), Path(os.path.realpath(named))


def _archive(scp: Path, name: str) -> Path | None:
    """The archive that a .scp names; None where it is not there.

    Names count from the working folder, as in Kaldi, else from the folder of the .scp. An archive
    that was moved together with its .scp lies beside it.
    """
    places = (Path(name), scp.parent / name, scp.parent / Path(name).name)
    return next(filter(os.path.isfile, places), None)


def archives(scp: Path) -> Iterator[Path]:
    """Yields the archives of the lines of a .scp, as far as they are there."""
    with scp.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        matches = (_LINE.fullmatch(line.strip()) for line in lines)
        names = dict.fromkeys(match[2] for match in matches if match)
        yield from filter(None, (_archive(scp, name) for name in names))


def _vector(ark: IO[bytes], where: str) -> Floats32:
    """The vector at the position of `ark`, of floats or doubles."""
    begin = ark.tell()
    head = _HEAD.match(ark.read(15))
    dim = int.from_bytes(head[2], "little", signed=True) if head else 0
    dtype = np.dtype("<f4" if head and head[1] == b"F" else "<f8")
    ark.seek(begin + head.end() if head else begin)
    data = ark.read(dim * dtype.itemsize) if 0 < dim <= MAX_DIM else b""
    if not data or len(data) < dim * dtype.itemsize:
        vector = f"no binary vector (FV, DV) of 1 to {MAX_DIM} numbers is at byte {begin}"
        raise LikenessError(f"{where} is refused: {vector}; convert it by Kaldi's copy-vector")
    return np.frombuffer(data, dtype=dtype).astype(np.float32)
