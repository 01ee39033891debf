"""Embedding files: .npz, and Kaldi's .ark with .scp. The raw float32 matrix comes back bit for bit. Nothing is unpickled and nothing is executed.

.npz holds ids (N,) text, matrix (N, D) float32 and meta, a JSON object of texts. NAME.ark holds binary vectors, NAME.scp says where each of them is,
and NAME.meta.json holds the meta, for which Kaldi has no place. Kaldi files are read here and not by kaldiio, which runs scp lines
that end in | as shell commands and unpickles ark entries that ask for it.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from eval.files import atomic_path
from eval.types import Embeddings, Floats32, name_first

MAX_DIM = 1 << 20  # of a Kaldi vector
MAX_ID = 4_096  # bytes
MAX_META = 1 << 24  # bytes
EXPANSION = 100  # a compressed .npz may expand to this many times its size,
FREE_EXPANSION = 1 << 30  # or to 1 GiB if that is more

_SUFFIXES = (".npz", ".ark", ".scp")


def read(path: str | Path) -> Embeddings:
    """Reads the embeddings of a .npz, .ark or .scp file. float16 and float64 matrices become float32.

    ValueError: other suffix; damaged, truncated or foreign file; pickled objects; commands in a .scp; repeated ids, NaN. FileNotFoundError.
    """
    path = Path(path)
    suffix = _suffix(path, _SUFFIXES)
    ids, matrix, meta = _read_npz(path) if suffix == ".npz" else _read_kaldi(path, suffix)
    try:
        return Embeddings(ids, matrix, meta)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def write(path: str | Path, embeddings: Embeddings) -> None:
    """Writes a .npz file, or a .ark file with .scp and .meta.json beside it. Whole or not at all. ValueError: other suffix; ids that the format cannot hold."""
    path = Path(path)
    if _suffix(path, (".npz", ".ark")) == ".npz":
        _write_npz(path, embeddings)
    else:
        _write_kaldi(path, embeddings)


def check_suffix(path: Path) -> None:
    """ValueError if `write` could not write to `path` because of its suffix: ask before long work."""
    _suffix(path, (".npz", ".ark"))


def _suffix(path: Path, allowed: tuple[str, ...]) -> str:
    suffix = path.suffix.lower()
    if suffix not in allowed:
        raise ValueError(f"{path}: embeddings with suffix {suffix!r} are not supported; allowed: {', '.join(allowed)}")
    return suffix


def _write_npz(path: Path, embeddings: Embeddings) -> None:
    _refuse_ids(path, embeddings.ids, re.compile(r"\0\Z"), "end in a NUL character, which numpy strips")
    ids = np.array(embeddings.ids, dtype=np.str_)
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        np.savez(handle, ids=ids, matrix=embeddings.matrix, meta=np.array(json.dumps(dict(embeddings.meta))))


def _read_npz(path: Path) -> tuple[tuple[str, ...], NDArray[Any], dict[str, str]]:
    try:
        with path.open("rb") as handle, zipfile.ZipFile(handle) as archive:
            limit = max(FREE_EXPANSION, EXPANSION * path.stat().st_size)
            headers = {info.filename.removesuffix(".npy"): _npy_header(archive, info, path) for info in archive.infolist() if info.filename.endswith(".npy")}
            if sum(info.file_size for info in archive.infolist()) > limit:
                raise ValueError(f"{path}: expands to over {limit} bytes, {EXPANSION} times its size; a damaged or hostile file")
            found = ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in headers.items()) or "none"
            wanted = {"ids": ("U", 1), "matrix": ("f", 2)} | ({"meta": ("U", 0)} if "meta" in headers else {})
            for name, (kind, ndim) in wanted.items():
                if name not in headers or headers[name][0].kind != kind or len(headers[name][1]) != ndim:
                    raise ValueError(
                        f"{path}: not an embeddings file: expected ids (N,) text, matrix (N, D) floats and meta, a JSON text; arrays found: {found}"
                    )
            arrays = {}
            for name in wanted:
                with archive.open(f"{name}.npy") as member:
                    arrays[name] = np.lib.format.read_array(member, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: damaged or truncated .npz ({error}); write it again") from None
    meta = _meta(path, str(arrays["meta"][()])) if "meta" in arrays else {}
    return tuple(arrays["ids"].tolist()), arrays["matrix"], meta


def _npy_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Type and shape that a member declares; numpy would allocate what they say, so they have to agree with the member's size."""
    with archive.open(info) as member:
        try:
            version = np.lib.format.read_magic(member)
            read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read_header(member)
        except ValueError as error:
            raise ValueError(f"{path}: {info.filename} is no numpy array ({error}); write it again") from None
        if dtype.hasobject:
            raise ValueError(f"{path}: {info.filename} holds pickled objects, which can run code and are refused; save ids as text: np.array(ids, dtype=str)")
        size = dtype.itemsize
        for length in shape:
            size *= length
        if min(shape, default=0) < 0 or size != info.file_size - member.tell():
            raise ValueError(f"{path}: {info.filename} declares {dtype} {shape}, but holds {info.file_size - member.tell()} bytes; a damaged file")
    return dtype, shape


def _write_kaldi(path: Path, embeddings: Embeddings) -> None:
    _refuse_ids(path, embeddings.ids, re.compile(r"^$|[\s\ud800-\udfff]"), "are empty or hold blanks, which Kaldi files cannot hold")
    text = str(path)
    if text != text.strip() or text.startswith("|") or text.endswith("|") or "\n" in text:
        raise ValueError(f"{text!r}: no such name can stand in a .scp file; choose one without | and blanks at its ends")
    head = b"\0BFV \4" + struct.pack("<i", embeddings.matrix.shape[1])
    with (
        atomic_path(path.with_suffix(".meta.json")) as meta_path,
        atomic_path(path.with_suffix(".scp")) as scp_path,
        atomic_path(path) as ark_path,
        ark_path.open("wb") as ark,
        scp_path.open("w", encoding="utf-8", newline="\n") as scp,
    ):
        meta_path.write_text(json.dumps(dict(embeddings.meta)), encoding="utf-8")  # also if empty, or an older one would be taken for it
        for name, row in zip(embeddings.ids, embeddings.matrix, strict=True):
            ark.write(name.encode() + b" ")
            scp.write(f"{name} {text}:{ark.tell()}\n")
            ark.write(head + row.astype("<f4").tobytes())


def _read_kaldi(path: Path, suffix: str) -> tuple[tuple[str, ...], Floats32, dict[str, str]]:
    ids: list[str] = []
    rows: list[Floats32] = []
    for name, row in _ark_entries(path) if suffix == ".ark" else _scp_entries(path):
        if rows and row.size != rows[0].size:
            raise ValueError(f"{path}: {name!r} has {row.size} dims, but {ids[0]!r} has {rows[0].size}; one file holds embeddings of one model")
        ids.append(name)
        rows.append(row)
    if not rows:
        raise ValueError(f"{path}: the file is empty")
    side = path.with_suffix(".meta.json")
    meta: dict[str, str] = {}
    if side.exists():
        if side.stat().st_size > MAX_META:
            raise ValueError(f"{side}: {side.stat().st_size} bytes, but at most {MAX_META} are allowed")
        meta = _meta(side, side.read_text(encoding="utf-8"))
    return tuple(ids), np.stack(rows), meta


def _ark_entries(path: Path) -> Iterator[tuple[str, Floats32]]:
    with path.open("rb", buffering=1 << 20) as ark:
        while True:
            begin = ark.tell()
            key, blank, _ = ark.read(MAX_ID + 1).partition(b" ")
            if not blank and not key.strip():
                return
            name = _text(path, key.strip(b"\r\n"))  # a text archive ends its lines
            if not blank or not name or re.search(r"\s", name):
                raise ValueError(f"{path}: no id at byte {begin}; truncated, or not a Kaldi archive")
            ark.seek(begin + len(key) + 1)
            yield name, _vector(ark, path, name)


def _scp_entries(path: Path) -> Iterator[tuple[str, Floats32]]:
    """The entries that a .scp lists. Paths count from the working folder, as in Kaldi, else from the folder of the .scp."""
    ark: IO[bytes] | None = None
    open_path: Path | None = None
    try:
        with path.open("rb") as scp:
            for number, line in enumerate(iter(lambda: scp.readline(4 * MAX_ID), b""), 1):
                if not line.strip():
                    continue
                name, _, target = _text(path, line).strip().partition(" ")
                target = target.strip()
                if target.startswith("|") or target.endswith(("|", "]")) or target == "-":
                    raise ValueError(f"{path}: line {number}: {target!r} is a command, standard input or a range, which are refused; list FILE.ark:OFFSET")
                found = re.fullmatch(r"(.+?)(?::(\d{1,18}))?", target)
                if found is None:
                    raise ValueError(f"{path}: line {number} is not `id FILE.ark:OFFSET`, but {line[:80]!r}")
                ark_path = Path(found[1])
                if not ark_path.exists() and not ark_path.is_absolute():
                    ark_path = path.parent / ark_path
                if ark is None or ark_path != open_path:
                    if not ark_path.is_file():
                        raise ValueError(
                            f"{path}: line {number}: there is no file {found[1]!r}; run from the folder in which it was written, or write it again"
                        )
                    if ark is not None:
                        ark.close()
                    ark, open_path = ark_path.open("rb", buffering=1 << 20), ark_path
                ark.seek(int(found[2] or 0))
                yield name, _vector(ark, ark_path, name)
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


def _meta(path: Path, text: str) -> dict[str, str]:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: meta is not JSON ({error})") from None
    if not isinstance(meta, Mapping) or not all(isinstance(value, str) for value in meta.values()):
        raise ValueError(f'{path}: meta must be a JSON object of texts, such as {{"similarity": "cosine"}}, but is {text[:80]!r}')
    return dict(meta)


def _text(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {data[:40]!r} is not an id in UTF-8; truncated, or not a Kaldi file") from None


def _refuse_ids(path: Path, ids: tuple[str, ...], pattern: re.Pattern[str], what: str) -> None:
    bad = [one for one in ids if pattern.search(one)]
    if bad:
        raise ValueError(f"{path}: {len(bad)} ids {what} ({name_first(bad)}); rename them")
