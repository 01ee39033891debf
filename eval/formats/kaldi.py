"""Embeddings in Kaldi's .ark and .scp, as binary and text vectors.

They are read without kaldiio, which runs .scp lines that end in | and unpickles what asks for it.
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

from eval.errors import LikenessError
from eval.formats.files import bounded
from eval.formats.writing import full_disk, move, remove, staged, sync
from eval.types import Embeddings, Floats32, quoted

MAX_DIM = 1 << 20
MAX_ID = 4_096  # bytes
MAX_META = 1 << 24  # bytes

_ARCHIVE, _BEFORE = "archive_sha256", "before"  # keys of the meta's JSON
# The digits of an offset in a .scp that is written here. The zeros in front, which every reader
# skips, say that there is a meta.
_DIGITS = 12
_OURS = rf":0\d{{{_DIGITS - 1}}}$"


class _Files(NamedTuple):
    """The three files of an archive."""

    ark: Path
    scp: Path
    meta: Path


def write(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes NAME.ark, NAME.scp and NAME.meta.json, each of them whole or not at all.

    A kill or a power cut leaves the old or the new embeddings. NAME.meta.json says by its SHA-256
    which archive it belongs to. It is written first, and for a while it contains the meta of the
    old archive beside that of the new one, so that either archive is found with its own meta. The
    new vectors count from the moment in which the archive is renamed. NAME.scp is absent while it
    could lead into another archive than its own.

    Args:
        path: NAME.ark.
        embeddings: The embeddings; their ids contain no blanks.
        meta: A JSON object of texts, as text.

    Raises:
        LikenessError: The path cannot stand in a .scp. The path is a folder.
        OSError: The disk is full; what was there before stays.
    """
    text = str(path)
    if text != text.strip() or text.startswith("|") or text.endswith("|") or "\n" in text:
        raise LikenessError(
            f"{text!r}: no such name can stand in a .scp file; choose one without | and blanks at "
            "its ends"
        )
    if path.is_dir():
        raise LikenessError(f"{path} is a folder; name a file in it")
    files = _Files(
        Path(os.path.realpath(path)),
        Path(os.path.realpath(path.with_suffix(".scp"))),
        Path(os.path.realpath(meta_path(path))),
    )
    with (
        staged(files.meta) as partial_meta,
        staged(files.scp) as partial_scp,
        staged(files.ark) as partial_ark,
        staged(files.meta) as both_metas,
        full_disk(path),
    ):
        digest = _write_vectors(partial_ark, partial_scp, text, embeddings)
        stated = json.loads(meta) | {_ARCHIVE: digest}
        partial_meta.write_text(json.dumps(stated), encoding="utf-8")
        before = _stated_of(files.ark, files.meta)
        both = stated if before is None else stated | {_BEFORE: before}
        both_metas.write_text(json.dumps(both), encoding="utf-8")
        # What a full disk refuses, it refuses here, while the old files are still there.
        for partial in (partial_meta, partial_scp, partial_ark):
            sync(partial)
        move(both_metas, files.meta)
        remove(files.scp)
        move(partial_ark, files.ark)
        move(partial_scp, files.scp)
        move(partial_meta, files.meta)


def _write_vectors(ark_path: Path, scp_path: Path, name_in_scp: str, embeddings: Embeddings) -> str:
    """Writes an archive and its index. Returns the archive's SHA-256."""
    head = b"\0BFV \4" + struct.pack("<i", embeddings.matrix.shape[1])
    checksum, place = hashlib.sha256(), 0
    with (
        ark_path.open("wb") as ark,
        scp_path.open("w", encoding="utf-8", newline="\n") as scp,
    ):
        for name, row in zip(embeddings.ids, embeddings.matrix, strict=True):
            entry = name.encode() + b" " + head + row.astype("<f4").tobytes()
            scp.write(f"{name} {name_in_scp}:{place + len(name.encode()) + 1:0{_DIGITS}}\n")
            ark.write(entry)
            checksum.update(entry)
            place += len(entry)
    return checksum.hexdigest()


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
            differ, or there is more than the limit. Or the meta is missing or belongs to another
            archive.
        FileNotFoundError: There is no such file.
    """
    if path.suffix.lower() == ".scp" and not path.exists() and path.with_suffix(".ark").is_file():
        raise LikenessError(
            f"{path} does not exist, but {path.with_suffix('.ark').name} does: a writer was "
            "stopped; read that file, or write both again"
        )
    ids: list[str] = []
    rows: list[Floats32] = []
    archives: dict[tuple[int, int], _Archive] = {}
    size = most = size_in_memory = 0
    for name, row, ark in (
        _scp_entries(path) if path.suffix.lower() == ".scp" else _ark_entries(path)
    ):
        # One file has many paths, and a .scp may name one vector any number of times.
        if ark.key not in archives:
            archives[ark.key] = ark
            size += ark.size
            most = limit(size)
        size_in_memory += row.nbytes
        if size_in_memory > most:
            raise LikenessError(
                f"{path}: its embeddings take over {most} bytes, which is the most that is read "
                f"of archives of {size} bytes; they are damaged or hostile"
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
    return tuple(ids), np.stack(rows), _meta_of(path, [*archives.values()])


def meta_path(path: Path) -> Path:
    """Returns where the meta of a .ark or .scp lies.

    Example:
        >>> meta_path(Path("voices/test.ark")).as_posix()
        'voices/test.meta.json'
    """
    return path.with_suffix(".meta.json")


class _Archive(NamedTuple):
    """An archive that was read from.

    Attributes:
        path: The file.
        key: Its device and inode.
        size: Its bytes.
        digest: The SHA-256 of what was read; None without a meta to compare it with.
        needs_meta: Whether a .scp that was written here leads to it, so that there must be a meta.
    """

    path: Path
    key: tuple[int, int]
    size: int
    digest: str | None
    needs_meta: bool


def _archive(path: Path, file: BinaryIO, needs_meta: bool, side: Path | None = None) -> _Archive:
    """What is known of an open archive; `file` is at its beginning afterwards.

    The digest is computed if the archive's meta, or `side` beside the .scp, is there to compare
    with.
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
    metas = {
        _chosen(side if side.exists() else meta_path(archive.path), archive) for archive in archives
    }
    if len(metas) > 1:
        names = ", ".join(archive.path.name for archive in archives[:3])
        raise LikenessError(
            f"{path}: it lists {len(archives)} archives ({names}) of {len(metas)} different metas; "
            "embeddings of two models do not compare"
        )
    return metas.pop()


def _chosen(side: Path, archive: _Archive) -> str:
    """What `side` says of an archive, as JSON text in one order.

    A text that is not an object is passed on; the caller refuses it.
    """
    if not side.exists():
        if archive.needs_meta:
            raise LikenessError(
                f"{archive.path}: {side} is missing, which says of what model these vectors are "
                "and how they are compared; bring it back or write the embeddings again (if the "
                "vectors are of another tool, remove the .scp beside them, which is not theirs)"
            )
        return "{}"
    text = _side_text(side)
    try:
        stated = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(stated, dict) or _ARCHIVE not in stated:
        return text  # it was written by hand
    for statement in (stated, stated.get(_BEFORE)):
        if isinstance(statement, dict) and statement.get(_ARCHIVE) == archive.digest:
            meta = {key: statement[key] for key in statement.keys() - {_ARCHIVE, _BEFORE}}
            return json.dumps(meta, sort_keys=True)
    raise LikenessError(
        f"{side} belongs to another {archive.path.name} than is there; write the embeddings again, "
        "or remove it if they are of another tool"
    )


def _stated_of(ark: Path, side: Path) -> object:
    """What the meta says of the archive that is there, with its digest.

    It is None if there is no archive, or the meta is that of another one.
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
    """The text of a meta file."""
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
    """The entries of an archive: id, vector and the archive."""
    with path.open("rb", buffering=1 << 20) as ark:
        archive = _archive(path, ark, _index_needs_meta(path))
        while True:
            begin = ark.tell()
            key, blank, _ = ark.read(MAX_ID + 1).partition(b" ")
            if not blank and not key.strip():
                return
            name = _text(path, key.strip(b"\r\n"))  # the lines of a text archive end before an id
            if not blank or not name or re.search(r"\s", name):
                raise LikenessError(
                    f"{path}: there is no id at byte {begin}; the file is truncated, or not one "
                    "of Kaldi"
                )
            ark.seek(begin + len(key) + 1)
            yield name, _vector(ark, path, name), archive


def _scp_entries(path: Path) -> Iterator[tuple[str, Floats32, _Archive]]:
    """The entries that a .scp lists: id, vector and the archive.

    Paths count from the working folder, as in Kaldi, else from the folder of the .scp.
    """
    ark: BinaryIO | None = None
    open_path: Path | None = None
    # Each archive is read for its digest once, however often the lines change between archives.
    known: dict[tuple[int, int], _Archive] = {}
    try:
        with path.open("rb") as scp:
            for number, line in enumerate(iter(lambda: scp.readline(4 * MAX_ID), b""), 1):
                if not line.strip():
                    continue
                where = f"{path}: line {number}"
                name, target, ark_name, offset = _scp_fields(path, line, where)
                ark_path = Path(ark_name)
                if not os.path.exists(ark_path) and not ark_path.is_absolute():
                    ark_path = path.parent / ark_path
                if ark is None or ark_path != open_path:
                    if not os.path.isfile(ark_path):  # Path.is_file raises where a name is too long
                        raise LikenessError(
                            f"{where}: there is no file {quoted(ark_name)}; run from the "
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
                if offset >= stat.st_size:  # some file systems cannot even go there
                    raise LikenessError(
                        f"{where}: {ark_path} has {stat.st_size} bytes, and its "
                        f"entry would begin at {offset}; copy both files again"
                    )
                ark.seek(offset)
                yield name, _vector(ark, ark_path, name), archive
    finally:
        if ark is not None:
            ark.close()


def _scp_fields(path: Path, line: bytes, where: str) -> tuple[str, str, str, int]:
    """The id of a .scp line, what it names, and the archive and the offset in this.

    where: the file and the line, for messages.
    """
    name, *rest = re.split(r"[ \t]+", _text(path, line).strip(), maxsplit=1)
    target = "".join(rest)
    if target.startswith("|") or target.endswith(("|", "]")) or target == "-":
        raise LikenessError(
            f"{where}: {quoted(target)} is a command, standard input or a "
            "range, which are refused; list FILE.ark:OFFSET"
        )
    match = re.fullmatch(r"(.+?)(?::(\d{1,18}))?", target)
    if match is None:
        raise LikenessError(f"{where} is not `id FILE.ark:OFFSET`, but {line[:80]!r}")
    return name, target, match[1], int(match[2] or 0)


def _vector(ark: IO[bytes], path: Path, name: str) -> Floats32:
    """The vector at the position of `ark`.

    It is binary float (FV, or FM of one row) or double (DV, DM), or text in brackets.
    """
    begin = ark.tell()
    where = f"{path}: {quoted(name)} at byte {begin}"
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
        raise LikenessError(
            f"{where} is neither a binary vector nor a text one of up to 4,096 numbers"
        )
    kind = re.match(rb"\0B([FD])([VM]) ", head)
    if kind is None:
        raise LikenessError(
            f"{where} begins with {head[:5]!r}; expected a float or double vector (FV, DV); "
            "pickles, audio and compressed matrices are refused; Kaldi's copy-vector converts them"
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
