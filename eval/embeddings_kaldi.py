"""Embeddings in Kaldi's .ark and .scp: binary and text vectors, read without kaldiio, which runs .scp lines that end in | and unpickles what asks for it."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from eval.files import atomic_path
from eval.types import Embeddings, Floats32

MAX_DIM = 1 << 20
MAX_ID = 4_096  # bytes
MAX_META = 1 << 24  # bytes


def write(path: Path, embeddings: Embeddings, meta: str) -> None:
    """NAME.ark, NAME.scp and NAME.meta.json, which holds `meta`, JSON text. The ids hold no blanks. ValueError: a path that cannot stand in a .scp."""
    text = str(path)
    if text != text.strip() or text.startswith("|") or text.endswith("|") or "\n" in text:
        raise ValueError(f"{text!r}: no such name can stand in a .scp file; choose one without | and blanks at its ends")
    head = b"\0BFV \4" + struct.pack("<i", embeddings.matrix.shape[1])
    with (
        atomic_path(meta_path(path)) as partial_meta,
        atomic_path(path.with_suffix(".scp")) as scp_path,
        atomic_path(path) as ark_path,
        ark_path.open("wb") as ark,
        scp_path.open("w", encoding="utf-8", newline="\n") as scp,
    ):
        partial_meta.write_text(meta, encoding="utf-8")  # also if empty, or an older one would be taken for it
        for name, row in zip(embeddings.ids, embeddings.matrix, strict=True):
            ark.write(name.encode() + b" ")
            scp.write(f"{name} {text}:{ark.tell()}\n")
            ark.write(head + row.astype("<f4").tobytes())
        for one in (ark, scp):  # what a full disk refuses it refuses here, while the old files stand
            one.flush()
            os.fsync(one.fileno())
        for side in (path.with_suffix(".scp"), meta_path(path)):  # after a kill between the three names, those of the old .ark may not stand beside the new one
            side.unlink(missing_ok=True)


def read(path: Path, limit: Callable[[int], int]) -> tuple[tuple[str, ...], Floats32, str]:
    """ids, (N, D) rows and the meta's JSON text of a .ark or .scp file. limit: bytes of archives -> bytes that their embeddings may take.

    ValueError: damaged, foreign or empty files, commands in a .scp, unequal sizes, more than the limit.
    """
    ids: list[str] = []
    rows: list[Floats32] = []
    counted: set[tuple[int, int]] = set()
    size = most = held = 0
    for name, row, ark in _scp_entries(path) if path.suffix.lower() == ".scp" else _ark_entries(path):
        if (ark.st_dev, ark.st_ino) not in counted:  # one file has many paths, and a .scp may name one vector any number of times
            counted.add((ark.st_dev, ark.st_ino))
            size += ark.st_size
            most = limit(size)
        held += row.nbytes
        if held > most:
            raise ValueError(f"{path}: its embeddings take over {most} bytes, but at most that is read of archives of {size} bytes; damaged or hostile")
        if rows and row.size != rows[0].size:
            raise ValueError(f"{path}: {name!r} has {row.size} dims, but {ids[0]!r} has {rows[0].size}; one file holds embeddings of one model")
        ids.append(name)
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: the file is empty")
    side = meta_path(path)
    if not side.exists():
        return tuple(ids), np.stack(rows), "{}"
    if side.stat().st_size > MAX_META:
        raise ValueError(f"{side}: {side.stat().st_size} bytes, but at most {MAX_META} are allowed")
    return tuple(ids), np.stack(rows), side.read_text(encoding="utf-8", errors="replace")


def meta_path(path: Path) -> Path:
    """Where the meta of a .ark or .scp lies."""
    return path.with_suffix(".meta.json")


def _ark_entries(path: Path) -> Iterator[tuple[str, Floats32, os.stat_result]]:
    with path.open("rb", buffering=1 << 20) as ark:
        stat = os.fstat(ark.fileno())
        while True:
            begin = ark.tell()
            key, blank, _ = ark.read(MAX_ID + 1).partition(b" ")
            if not blank and not key.strip():
                return
            name = _text(path, key.strip(b"\r\n"))  # a text archive ends its lines
            if not blank or not name or re.search(r"\s", name):
                raise ValueError(f"{path}: no id at byte {begin}; truncated, or not a Kaldi archive")
            ark.seek(begin + len(key) + 1)
            yield name, _vector(ark, path, name), stat


def _scp_entries(path: Path) -> Iterator[tuple[str, Floats32, os.stat_result]]:
    """The entries that a .scp lists. Paths count from the working folder, as in Kaldi, else from the folder of the .scp."""
    ark: IO[bytes] | None = None
    open_path: Path | None = None
    try:
        with path.open("rb") as scp:
            for number, line in enumerate(iter(lambda: scp.readline(4 * MAX_ID), b""), 1):
                if not line.strip():
                    continue
                name, *rest = re.split(r"[ \t]+", _text(path, line).strip(), maxsplit=1)
                target = "".join(rest)
                if target.startswith("|") or target.endswith(("|", "]")) or target == "-":
                    raise ValueError(f"{path}: line {number}: {target!r} is a command, standard input or a range, which are refused; list FILE.ark:OFFSET")
                found = re.fullmatch(r"(.+?)(?::(\d{1,18}))?", target)
                if found is None:
                    raise ValueError(f"{path}: line {number} is not `id FILE.ark:OFFSET`, but {line[:80]!r}")
                ark_path = Path(found[1])
                if not os.path.exists(ark_path) and not ark_path.is_absolute():
                    ark_path = path.parent / ark_path
                if ark is None or ark_path != open_path:
                    if not os.path.isfile(ark_path):  # Path.is_file raises where a name is too long
                        raise ValueError(
                            f"{path}: line {number}: there is no file {found[1]!r}; run from the folder in which it was written, or write it again"
                        )
                    if ark is not None:
                        ark.close()
                    ark, open_path = ark_path.open("rb", buffering=1 << 20), ark_path
                    stat = os.fstat(ark.fileno())
                ark.seek(int(found[2] or 0))
                yield name, _vector(ark, ark_path, name), stat
    finally:
        if ark is not None:
            ark.close()


def _vector(ark: IO[bytes], path: Path, name: str) -> Floats32:
    """The vector at the position of `ark`: binary float (FV, FM of one row) or double (DV, DM), or text in brackets."""
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
        raise ValueError(f"{path}: {name!r} at byte {begin} is neither a binary vector nor a text one of up to 4,096 numbers")
    kind = head[:5]
    if kind not in (b"\0BFV ", b"\0BDV ", b"\0BFM ", b"\0BDM "):
        raise ValueError(
            f"{path}: {name!r} at byte {begin} begins with {head[:5]!r}; expected a float or double vector (FV, DV); "
            "pickles, audio and compressed matrices are refused; Kaldi's copy-vector converts"
        )
    is_matrix = kind[3:4] == b"M"  # then \4 rows \4 dim, else \4 dim
    size = 15 if is_matrix else 10
    if len(head) < size:
        raise ValueError(f"{path}: {name!r} at byte {begin} is truncated; write the file again")
    rows = struct.unpack("<i", head[6:10])[0] if is_matrix else 1
    dim = struct.unpack("<i", head[size - 4 : size])[0]
    if rows != 1 or not 0 < dim <= MAX_DIM:
        raise ValueError(f"{path}: {name!r} declares {rows} rows of {dim} dims; expected 1 row of 1 to {MAX_DIM}: pool frames into one vector first")
    ark.seek(begin + size)
    dtype = np.dtype("<f4" if kind[2:3] == b"F" else "<f8")
    data = ark.read(dim * dtype.itemsize)
    if len(data) < dim * dtype.itemsize:
        raise ValueError(f"{path}: {name!r} at byte {begin} is truncated: {len(data)} of {dim * dtype.itemsize} bytes; write the file again")
    return np.frombuffer(data, dtype=dtype).astype(np.float32)


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {data[:40]!r} is not an id in UTF-8; truncated, or not a Kaldi file") from None
