"""Embeddings in Kaldi's .ark and .scp, as binary vectors.

They are read without kaldiio, which runs .scp lines that end in | and unpickles what asks for it.
Kaldi has no place for the meta, so it stands in NAME.meta.json, which names its archive by the
SHA-256 of the archive.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, cast

import numpy as np

from eval.errors import LikenessError
from eval.formats.files import file_digest, json_object
from eval.formats.writing import full_disk, move, remove, staged, sync
from eval.types import Embeddings, Floats32, quoted

MAX_DIM = 1 << 20
MAX_ID = 4_096  # bytes

_ARCHIVE = "archive_sha256"  # a key of the meta's JSON

_Entry = tuple[str, Floats32, Path]  # id, vector, archive


def write(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes NAME.ark, NAME.scp and NAME.meta.json, each of them whole or not at all.

    NAME.scp is absent while it could lead into another archive than its own, and a meta that stands
    beside another archive than its own is refused.

    Args:
        path: NAME.ark.
        embeddings: The embeddings; their ids contain no blanks.
        meta: A JSON object of texts, as text.

    Raises:
        OSError: The disk is full; what was there before stays.
    """
    ark, scp, side = (
        Path(os.path.realpath(name)) for name in (path, path.with_suffix(".scp"), meta_path(path))
    )
    with staged(ark) as new_ark, staged(scp) as new_scp, staged(side) as new_side, full_disk(path):
        head = b"\0BFV \4" + struct.pack("<i", embeddings.matrix.shape[1])
        place = 0
        with new_ark.open("wb") as file, new_scp.open("w", encoding="utf-8", newline="\n") as index:
            for name, row in zip(embeddings.ids, embeddings.matrix, strict=True):
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


def read(path: Path, limit: Callable[[int], int]) -> tuple[tuple[str, ...], Floats32, str]:
    """Reads a .ark or .scp file.

    Args:
        path: NAME.ark or NAME.scp.
        limit: limit(bytes of archives) gives the bytes that their embeddings may take.

    Returns:
        The N ids, the rows (N, D) and the JSON text of the meta, which is an empty object for
        archives of other tools.

    Raises:
        LikenessError: The files are damaged, foreign or empty, a .scp contains commands, sizes
            differ, or there is more than the limit. Or the meta belongs to another archive.
        FileNotFoundError: There is no such file.
    """
    ids: list[str] = []
    rows: list[Floats32] = []
    archives: set[Path] = set()
    size = size_in_memory = 0
    for name, row, ark in (
        _scp_entries(path) if path.suffix.lower() == ".scp" else _ark_entries(path)
    ):
        if ark not in archives:
            archives.add(ark)
            size += ark.stat().st_size
        size_in_memory += row.nbytes
        if size_in_memory > limit(size):  # a .scp may name one vector any number of times
            raise LikenessError(
                f"{path}: its embeddings take over {limit(size)} bytes, which is the most that is "
                f"read of archives of {size} bytes; they are damaged or hostile"
            )
        if rows and row.size != rows[0].size:
            raise LikenessError(
                f"{path}: {quoted(name)} has {row.size} dims, but {quoted(ids[0])} has "
                f"{rows[0].size}; one file contains embeddings of one model"
            )
        ids.append(name)
        rows.append(row)
    if not rows:
        raise LikenessError(
            f"{path}: the file is empty; expected an archive or an index with at least one vector"
        )
    side = meta_path(path)
    metas = {_meta_of(ark, side if side.exists() else meta_path(ark)) for ark in archives}
    if len(metas) > 1:
        raise LikenessError(
            f"{path}: its {len(archives)} archives have {len(metas)} different metas; embeddings "
            "of two models do not compare"
        )
    return tuple(ids), np.stack(rows), metas.pop()


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
        raise LikenessError(
            f"{side} belongs to another {ark.name} than is there; write the embeddings again, or "
            "remove it if they are of another tool"
        )
    return json.dumps(stated, sort_keys=True)


def _ark_entries(path: Path) -> Iterator[_Entry]:
    """The entries of an archive."""
    with path.open("rb", buffering=1 << 20) as ark:
        while True:
            begin = ark.tell()
            key, blank, _ = ark.read(MAX_ID + 1).partition(b" ")
            if not blank and not key.strip():
                return
            name = _text(path, key)
            if not blank or not name or re.search(r"\s", name):
                raise LikenessError(
                    f"{path}: there is no id at byte {begin}; the file is truncated, or not one "
                    "of Kaldi"
                )
            ark.seek(begin + len(key) + 1)
            yield name, _vector(ark, path, name), path


def _scp_entries(path: Path) -> Iterator[_Entry]:
    """The entries that a .scp lists.

    Paths count from the working folder, as in Kaldi, else from the folder of the .scp.
    """
    with ExitStack() as opened, path.open("rb") as scp:
        ark_path, ark, size = Path(), cast(IO[bytes], scp), 0
        for number, line in enumerate(iter(lambda: scp.readline(4 * MAX_ID), b""), 1):
            if not line.strip():
                continue
            where = f"{path}: line {number}"
            name, named, offset = _scp_fields(path, line, where)
            if named != ark_path:
                if not os.path.isfile(named):  # Path.is_file raises where a name is too long
                    raise LikenessError(
                        f"{where}: there is no file {quoted(str(named))} (commands are never run); "
                        "run from the folder in which it was written, or write it again"
                    )
                opened.close()
                ark_path, ark = named, opened.enter_context(named.open("rb", buffering=1 << 20))
                size = named.stat().st_size
            if offset >= size:  # some file systems cannot even go there
                raise LikenessError(
                    f"{where}: {ark_path} has {size} bytes, and its entry would begin at {offset}; "
                    "copy both files again"
                )
            ark.seek(offset)
            yield name, _vector(ark, ark_path, name), Path(os.path.realpath(ark_path))


def _scp_fields(path: Path, line: bytes, where: str) -> tuple[str, Path, int]:
    """The id of a .scp line, and the archive and the offset that it names.

    where: the file and the line, for messages.
    """
    match = re.fullmatch(r"(\S+)[ \t]+(.+?)(?::(\d{1,18}))?", _text(path, line).strip())
    if match is None:
        raise LikenessError(f"{where} is not `id FILE.ark:OFFSET`, but {line[:80]!r}")
    ark = Path(match[2])
    if not os.path.exists(ark) and not ark.is_absolute():
        ark = path.parent / ark
    return match[1], ark, int(match[3] or 0)


def _vector(ark: IO[bytes], path: Path, name: str) -> Floats32:
    """The vector at the position of `ark`.

    It is of floats (FV, or FM of one row) or doubles (DV, DM).
    """
    begin = ark.tell()
    where = f"{path}: {quoted(name)} at byte {begin}"
    head = ark.read(15)
    kind = re.match(rb"\0B([FD])([VM]) ", head)
    if kind is None:
        raise LikenessError(
            f"{where} begins with {head[:5]!r}; expected a binary float or double vector (FV, DV); "
            "texts, pickles, audio and compressed matrices are refused; Kaldi's copy-vector "
            "converts them"
        )
    # A matrix has "\4 rows \4 dim" here, and a vector has "\4 dim".
    is_matrix = kind[2] == b"M"
    size = 15 if is_matrix else 10
    rows = int.from_bytes(head[6:10], "little", signed=True) if is_matrix else 1
    dim = int.from_bytes(head[size - 4 : size], "little", signed=True)
    if len(head) >= size and (rows != 1 or not 0 < dim <= MAX_DIM):
        raise LikenessError(
            f"{where} declares {rows} rows of {dim} dims; expected 1 row of 1 to {MAX_DIM}: pool "
            "frames into one vector first"
        )
    ark.seek(begin + size)
    dtype = np.dtype("<f4" if kind[1] == b"F" else "<f8")
    data = ark.read(dim * dtype.itemsize) if len(head) >= size else b""
    if not data or len(data) < dim * dtype.itemsize:
        raise LikenessError(f"{where} is truncated; write the file again")
    return np.frombuffer(data, dtype=dtype).astype(np.float32)


def _text(path: Path, data: bytes) -> str:
    """The text of some bytes. Raises ValueError if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise LikenessError(
            f"{path}: {data[:40]!r} is not an id in UTF-8; the file is truncated, or not one of "
            "Kaldi"
        ) from None
