"""Embeddings in Kaldi's .ark and .scp: binary and text vectors, read without kaldiio, which runs
.scp lines that end in | and unpickles what asks for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import numpy as np

from eval.formats.files import bounded
from eval.formats.writing import full_disk, move, remove, staged, sync
from eval.types import Embeddings, Floats32

MAX_DIM = 1 << 20
MAX_ID = 4_096  # bytes
MAX_META = 1 << 24  # bytes

_ARCHIVE, _BEFORE = "archive_sha256", "before"  # of the meta's JSON
# of an offset in our .scp: the zeros in front, which every reader skips, say that there is a meta
_DIGITS = 12
_OURS = rf":0\d{{{_DIGITS - 1}}}$"


def write(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes NAME.ark, NAME.scp and NAME.meta.json, of which a kill or a power cut leaves the old
    or the new.

    NAME.meta.json says by its SHA-256 which archive it belongs to. It is written first, with what
    was said of the archive that is there still beside what is said of the new one, so that either
    is found with its own meta. The new vectors count from the moment in which the archive is
    renamed; NAME.scp is not there while it could lead into another archive than its own.

    Args:
        path: NAME.ark.
        embeddings: their ids hold no blanks.
        meta: a JSON object of texts, as text.

    Raises:
        ValueError: a path that cannot stand in a .scp.
        OSError: the disk is full; what was there before stays.
    """
    text = str(path)
    if text != text.strip() or text.startswith("|") or text.endswith("|") or "\n" in text:
        raise ValueError(
            f"{text!r}: no such name can stand in a .scp file; choose one without | and blanks at "
            "its ends"
        )
    head = b"\0BFV \4" + struct.pack("<i", embeddings.matrix.shape[1])
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file in it")
    paths = (
        Path(os.path.realpath(path)),
        Path(os.path.realpath(path.with_suffix(".scp"))),
        Path(os.path.realpath(meta_path(path))),
    )
    with (
        staged(paths[2]) as partial_meta,
        staged(paths[1]) as partial_scp,
        staged(paths[0]) as partial_ark,
        staged(paths[2]) as both,
        full_disk(path),
    ):
        summed, place = hashlib.sha256(), 0
        with (
            partial_ark.open("wb") as ark,
            partial_scp.open("w", encoding="utf-8", newline="\n") as scp,
        ):
            for name, row in zip(embeddings.ids, embeddings.matrix, strict=True):
                entry = name.encode() + b" " + head + row.astype("<f4").tobytes()
                scp.write(f"{name} {text}:{place + len(name.encode()) + 1:0{_DIGITS}}\n")
                ark.write(entry)
                summed.update(entry)
                place += len(entry)
        stated = json.loads(meta) | {_ARCHIVE: summed.hexdigest()}
        partial_meta.write_text(json.dumps(stated), encoding="utf-8")
        before = _stated_of(paths[0], paths[2])
        both.write_text(
            json.dumps(stated if before is None else stated | {_BEFORE: before}), encoding="utf-8"
        )
        for one in (
            partial_meta,
            partial_scp,
            partial_ark,
        ):  # what a full disk refuses it refuses here, while the old files stand
            sync(one)
        move(both, paths[2])
        remove(paths[1])
        move(partial_ark, paths[0])
        move(partial_scp, paths[1])
        move(partial_meta, paths[2])


def read(path: Path, limit: Callable[[int], int]) -> tuple[tuple[str, ...], Floats32, str]:
    """Reads a .ark or .scp file.

    Args:
        path: NAME.ark or NAME.scp.
        limit: bytes of archives -> bytes that their embeddings may take.

    Returns:
        ids, (N, D) rows and the meta's JSON text, that of an empty object for archives of other
        tools.

    Raises:
        ValueError: damaged, foreign or empty files, commands in a .scp, unequal sizes, more than
            the limit; a meta that is missing or belongs to another archive.
    """
    if path.suffix.lower() == ".scp" and not path.exists() and path.with_suffix(".ark").is_file():
        raise FileNotFoundError(
            f"{path} does not exist, but {path.with_suffix('.ark').name} does: a writer was "
            "stopped; read that file, or write both again"
        )
    ids: list[str] = []
    rows: list[Floats32] = []
    archives: dict[tuple[int, int], _Archive] = {}
    size = most = held = 0
    for name, row, ark in (
        _scp_entries(path) if path.suffix.lower() == ".scp" else _ark_entries(path)
    ):
        if (
            ark.key not in archives
        ):  # one file has many paths, and a .scp may name one vector any number of times
            archives[ark.key] = ark
            size += ark.size
            most = limit(size)
        held += row.nbytes
        if held > most:
            raise ValueError(
                f"{path}: its embeddings take over {most} bytes, but at most that is read of "
                f"archives of {size} bytes; damaged or hostile"
            )
        if rows and row.size != rows[0].size:
            raise ValueError(
                f"{path}: {name!r} has {row.size} dims, but {ids[0]!r} has {rows[0].size}; one "
                "file holds embeddings of one model"
            )
        ids.append(name)
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: the file is empty")
    return tuple(ids), np.stack(rows), _meta_of(path, [*archives.values()])


def meta_path(path: Path) -> Path:
    """Where the meta of a .ark or .scp lies."""
    return path.with_suffix(".meta.json")


class _Archive(NamedTuple):
    """An archive that was read from. key: device and inode. digest: SHA-256 of what was read, None
    without a meta to compare it with.
    """

    path: Path
    key: tuple[int, int]
    size: int
    digest: str | None
    needs_meta: bool  # a .scp written here leads to it


def _archive(path: Path, file: BinaryIO, needs_meta: bool, side: Path | None = None) -> _Archive:
    """What is known of an open archive, at whose beginning `file` is then.

    It is summed if its meta, or `side` beside the .scp, is there to compare with.
    """
    stat = os.fstat(file.fileno())
    digest = None
    if meta_path(path).exists() or (side is not None and side.exists()):
        digest = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
        file.seek(0)
    return _Archive(path, (stat.st_dev, stat.st_ino), stat.st_size, digest, needs_meta)


def _meta_of(path: Path, archives: Sequence[_Archive]) -> str:
    """The meta of what was read: that beside it, else that of the archives behind a .scp."""
    side = meta_path(path)
    found = {_chosen(side if side.exists() else meta_path(one.path), one) for one in archives}
    if len(found) > 1:
        names = ", ".join(one.path.name for one in archives[:3])
        raise ValueError(
            f"{path}: it lists {len(archives)} archives ({names}) of {len(found)} different metas; "
            "embeddings of two models do not compare"
        )
    return found.pop()


def _chosen(side: Path, archive: _Archive) -> str:
    """What `side` says of an archive, as JSON text in one order; what is no object is passed on for
    the caller to refuse.
    """
    if not side.exists():
        if archive.needs_meta:
            raise ValueError(
                f"{archive.path}: {side} is missing, which says of what model these vectors are "
                "and how they are compared; "
                "bring it back or write the embeddings again (vectors of another tool: remove the "
                ".scp beside them, which is not theirs)"
            )
        return "{}"
    text = _side_text(side)
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(stated, dict) or _ARCHIVE not in stated:  # by version 0.1, or by hand
        return text
    for one in (stated, stated.get(_BEFORE)):
        if isinstance(one, dict) and one.get(_ARCHIVE) == archive.digest:
            return json.dumps(
                {key: value for key, value in one.items() if key not in (_ARCHIVE, _BEFORE)},
                sort_keys=True,
            )
    raise ValueError(
        f"{side} belongs to another {archive.path.name} than is there; write the embeddings again, "
        "or remove it if they are of another tool"
    )


def _stated_of(ark: Path, side: Path) -> object:
    """What the meta says of the archive that is there, with its digest; None if there is none, or
    another one's.
    """
    if not ark.is_file():
        return None
    with ark.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        stated = json.loads(_chosen(side, _Archive(ark, (0, 0), 0, digest, needs_meta=False)))
    except (ValueError, RecursionError):
        return None
    return stated | {_ARCHIVE: digest} if isinstance(stated, dict) else None


def _side_text(side: Path) -> str:
    return bounded(side, MAX_META).decode(errors="replace")


def _index_needs_meta(ark: Path) -> bool:
    """Whether the .scp beside an archive was written here, by its first line."""
    try:
        with ark.with_suffix(".scp").open("rb") as file:
            line = file.readline(4 * MAX_ID)
    except OSError:
        return False
    return re.search(_OURS, line.decode(errors="replace").strip()) is not None


def _ark_entries(path: Path) -> Iterator[tuple[str, Floats32, _Archive]]:
    with path.open("rb", buffering=1 << 20) as ark:
        archive = _archive(path, ark, _index_needs_meta(path))
        while True:
            begin = ark.tell()
            key, blank, _ = ark.read(MAX_ID + 1).partition(b" ")
            if not blank and not key.strip():
                return
            name = _text(path, key.strip(b"\r\n"))  # a text archive ends its lines
            if not blank or not name or re.search(r"\s", name):
                raise ValueError(
                    f"{path}: no id at byte {begin}; truncated, or not a Kaldi archive"
                )
            ark.seek(begin + len(key) + 1)
            yield name, _vector(ark, path, name), archive


def _scp_entries(path: Path) -> Iterator[tuple[str, Floats32, _Archive]]:
    """The entries that a .scp lists.

    Paths count from the working folder, as in Kaldi, else from the folder of the .scp.
    """
    ark: BinaryIO | None = None
    open_path: Path | None = None
    known: dict[
        tuple[int, int], _Archive
    ] = {}  # summed once, however often the lines change between archives
    try:
        with path.open("rb") as scp:
            for number, line in enumerate(iter(lambda: scp.readline(4 * MAX_ID), b""), 1):
                if not line.strip():
                    continue
                name, *rest = re.split(r"[ \t]+", _text(path, line).strip(), maxsplit=1)
                target = "".join(rest)
                if target.startswith("|") or target.endswith(("|", "]")) or target == "-":
                    raise ValueError(
                        f"{path}: line {number}: {target!r} is a command, standard input or a "
                        "range, which are refused; list FILE.ark:OFFSET"
                    )
                found = re.fullmatch(r"(.+?)(?::(\d{1,18}))?", target)
                if found is None:
                    raise ValueError(
                        f"{path}: line {number} is not `id FILE.ark:OFFSET`, but {line[:80]!r}"
                    )
                ark_path = Path(found[1])
                if not os.path.exists(ark_path) and not ark_path.is_absolute():
                    ark_path = path.parent / ark_path
                if ark is None or ark_path != open_path:
                    if not os.path.isfile(ark_path):  # Path.is_file raises where a name is too long
                        raise ValueError(
                            f"{path}: line {number}: there is no file {found[1]!r}; run from the "
                            "folder in which it was written, or write it again"
                        )
                    if ark is not None:
                        ark.close()
                    ark, open_path = ark_path.open("rb", buffering=1 << 20), ark_path
                    stat = os.fstat(ark.fileno())
                    key = stat.st_dev, stat.st_ino
                    known[key] = archive = known.get(key) or _archive(
                        ark_path, ark, re.search(_OURS, target) is not None, meta_path(path)
                    )
                offset = int(found[2] or 0)
                if offset >= stat.st_size:  # some file systems cannot even go there
                    raise ValueError(
                        f"{path}: line {number}: {ark_path} has {stat.st_size} bytes, and its "
                        f"entry would begin at {offset}; copy both files again"
                    )
                ark.seek(offset)
                yield name, _vector(ark, ark_path, name), archive
    finally:
        if ark is not None:
            ark.close()


def _vector(ark: IO[bytes], path: Path, name: str) -> Floats32:
    """The vector at the position of `ark`: binary float (FV, FM of one row) or double (DV, DM), or
    text in brackets.
    """
    begin = ark.tell()
    head = ark.read(15)
    if head[:1] in (b"[", b" ", b"\t"):
        ark.seek(begin)
        text, closed, _ = ark.read(32 * 4096).partition(b"]")
        ark.seek(begin + len(text) + 1)
        try:
            if closed:
                return np.array(text.split(b"[", 1)[1].split(), dtype=np.float64).astype(np.float32)
        except (ValueError, IndexError):
            pass
        raise ValueError(
            f"{path}: {name!r} at byte {begin} is neither a binary vector nor a text one of up to "
            "4,096 numbers"
        )
    kind = head[:5]
    if kind not in (b"\0BFV ", b"\0BDV ", b"\0BFM ", b"\0BDM "):
        raise ValueError(
            f"{path}: {name!r} at byte {begin} begins with {head[:5]!r}; expected a float or "
            "double vector (FV, DV); "
            "pickles, audio and compressed matrices are refused; Kaldi's copy-vector converts"
        )
    is_matrix = kind[3:4] == b"M"  # then \4 rows \4 dim, else \4 dim
    size = 15 if is_matrix else 10
    if len(head) < size:
        raise ValueError(f"{path}: {name!r} at byte {begin} is truncated; write the file again")
    rows = struct.unpack("<i", head[6:10])[0] if is_matrix else 1
    dim = struct.unpack("<i", head[size - 4 : size])[0]
    if rows != 1 or not 0 < dim <= MAX_DIM:
        raise ValueError(
            f"{path}: {name!r} declares {rows} rows of {dim} dims; expected 1 row of 1 to "
            f"{MAX_DIM}: pool frames into one vector first"
        )
    ark.seek(begin + size)
    dtype = np.dtype("<f4" if kind[2:3] == b"F" else "<f8")
    data = ark.read(dim * dtype.itemsize)
    if len(data) < dim * dtype.itemsize:
        raise ValueError(
            f"{path}: {name!r} at byte {begin} is truncated: {len(data)} of {dim * dtype.itemsize} "
            "bytes; write the file again"
        )
    return np.frombuffer(data, dtype=dtype).astype(np.float32)


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(
            f"{path}: {data[:40]!r} is not an id in UTF-8; truncated, or not a Kaldi file"
        ) from None
