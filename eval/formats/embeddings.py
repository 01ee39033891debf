"""Embedding files: .npz, Kaldi's .ark with .scp, .parquet, .h5, and LanceDB tables.

The raw float32 matrix comes back bit for bit; nothing is executed.

.npz
    ids (N,) text, matrix (N, D) float32, norms (N,) float32 and meta, a JSON object of texts (model
    digest, similarity, modality)
.ark
    binary vectors; NAME.scp says where each of them is, NAME.meta.json holds the meta, for which
    Kaldi has no place (embeddings_kaldi.py)
.parquet
    columns id, vector (lists of D float32) and norm; the meta as JSON under the key "likeness" of
    the schema's metadata (embeddings_tables.py)
.h5
    data sets ids, matrix, norms and meta, as in .npz
.lance
    a LanceDB table with the columns and metadata of .parquet: DIR/TABLE.lance, also written
    lancedb:DIR/TABLE, is table TABLE of the database DIR

The last three need pyarrow, h5py and lancedb: pip install 'likeness[formats]'. A LanceDB table is a
folder of one's own, like a database, and not a file to be taken from strangers: LanceDB reads what
its manifest names.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.formats import kaldi, npz, tables
from eval.formats.files import atomic_path, refuse_device
from eval.types import Embeddings, name_first

EXPANSION = 100  # a compressed file may expand to this many times its size,
FREE_EXPANSION = 1 << 30  # or to 1 GiB if that is more

_STRAIGHT_FROM = 1 << 26  # bytes of a matrix that is read past zipfile
_BLOCK = 1 << 22

_WRITTEN = (".npz", ".ark", ".parquet", ".h5", ".lance")
_READ = (*_WRITTEN[:2], ".scp", *_WRITTEN[2:])
_REFUSED_IDS = {  # what a format cannot give back
    ".npz": (r"\0\Z", "end in a NUL character, which numpy strips"),
    ".ark": (r"^$|[\s\ud800-\udfff]", "are empty or hold blanks, which Kaldi files cannot hold"),
    ".parquet": (r"[\ud800-\udfff]", "are no Unicode text, which Parquet needs"),
    ".h5": (r"[\0\ud800-\udfff]", "hold NUL characters or are no Unicode text, which HDF5 needs"),
    ".lance": (r"[\ud800-\udfff]", "are no Unicode text, which LanceDB needs"),
}


def read(path: str | Path) -> Embeddings:
    """Reads the embeddings of a file or table of the formats above. float16 and float64 matrices
    become float32.

    ValueError: other suffix; damaged, truncated or foreign file; a pipe or device; pickled objects;
    commands in a .scp; links to other files in a .h5; repeated ids, NaN; more than 1 GiB that is
    also over 100 times the file's size. FileNotFoundError. ImportError names the extra to install.
    """
    path = located(path)
    suffix, stated = _suffix(path, _READ), path
    refuse_device(path)
    if suffix == ".npz":
        ids, matrix, meta = _read_npz(path, _limit(_size(path)))
    elif suffix in (".ark", ".scp"):
        ids, matrix, meta = kaldi.read(path, _limit)
        stated = kaldi.meta_path(path)
    else:
        ids, matrix, meta = tables.READERS[suffix](path, _limit(_size(path)))
    try:
        return Embeddings(ids, matrix, _meta(stated, meta))
    except ValueError as error:
        raise ValueError(str(error) if str(stated) in str(error) else f"{path}: {error}") from None


def write(path: str | Path, embeddings: Embeddings) -> None:
    """Writes one of the formats above, by the path's suffix, whole or not at all: what was there
    before stays until all is written.

    ValueError: other suffix; ids that the format cannot hold. ImportError names the extra to
    install.
    """
    path = located(path)
    suffix = _suffix(path, _WRITTEN)
    check_ids(path, embeddings.ids)
    meta = json.dumps(dict(embeddings.meta))
    if suffix == ".npz":
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            np.savez(
                handle,
                matrix=embeddings.matrix,
                ids=np.array(embeddings.ids, dtype=np.str_),
                norms=embeddings.norms,
                meta=np.array(meta),
            )
    elif suffix == ".ark":
        kaldi.write(path, embeddings, meta)
    else:
        tables.WRITERS[suffix](path, embeddings, meta)


def check_suffix(path: str | Path) -> None:
    """ValueError if `write` could not write to `path` because of its suffix, ImportError if a
    package for it is missing: ask before long work.
    """
    tables.check_installed(path := located(path), _suffix(path, _WRITTEN))


def check_ids(path: str | Path, ids: Iterable[str]) -> None:
    """ValueError if the format of `path` could not give these ids back, counted and named: ask
    before long work.
    """
    path = located(path)
    pattern, what = _REFUSED_IDS[_suffix(path, _WRITTEN)]
    bad = [one for one in ids if re.search(pattern, one)]
    if bad:
        raise ValueError(
            f"{path}: {len(bad)} ids {what} ({name_first(bad)}); rename them, or write to another "
            "format"
        )


def located(place: str | Path) -> Path:
    """Where embeddings lie: `place` itself, but of lancedb:DIR/TABLE the table's folder.

    ValueError for lancedb: without a table.

    >>> located("lancedb:voices/test").as_posix(), located("test.npz").as_posix()
    ('voices/test.lance', 'test.npz')
    """
    text = str(place)
    if not text.startswith("lancedb:"):
        return Path(place)
    table = Path(text.removeprefix("lancedb:"))
    if not table.name:
        raise ValueError(f"{text!r} names no table; write lancedb:DIR/TABLE, or DIR/TABLE.lance")
    return table if table.suffix == ".lance" else table.with_name(f"{table.name}.lance")


def _suffix(path: Path, allowed: tuple[str, ...]) -> str:
    suffix = path.suffix.lower()
    if suffix not in allowed:
        raise ValueError(
            f"{path}: embeddings with suffix {suffix!r} are not supported; allowed: "
            f"{', '.join(allowed)}"
        )
    return suffix


def _limit(size: int) -> int:
    """Bytes that the embeddings of files of `size` bytes may take in memory."""
    return max(FREE_EXPANSION, EXPANSION * size)


def _size(path: Path) -> int:
    """Bytes of a file. A table's size is that of its files."""
    files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
    return sum(one.stat().st_size for one in files)


def _read_npz(path: Path, limit: int) -> tuple[tuple[str, ...], NDArray[Any], str]:
    with npz.opened(path, limit) as held:
        headers = held.headers
        found = (
            ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in headers.items())
            or "none"
        )
        wanted = {"ids": ("U", 1), "matrix": ("f", 2)} | (
            {"meta": ("U", 0)} if "meta" in headers else {}
        )
        for name, (kind, ndim) in wanted.items():
            if (
                name not in headers
                or headers[name].dtype.kind != kind
                or len(headers[name].shape) != ndim
            ):
                raise ValueError(
                    f"{path}: not an embeddings file: expected ids (N,) text, matrix (N, D) floats "
                    f"and meta, a JSON text; arrays found: {found}"
                )
        straight = _straight(path, held.archive.getinfo("matrix.npy"), *headers["matrix"])
        matrix = held.read("matrix") if straight is None else straight
        return (
            tuple(held.read("ids").tolist()),
            matrix,
            str(held.read("meta")[()]) if "meta" in headers else "{}",
        )


def _straight(
    path: Path, info: zipfile.ZipInfo, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any] | None:
    """A large matrix straight from the file into its own memory, past zipfile, which takes most of
    the time; its CRC is checked.

    It is read and not mapped: a mapped file that shrinks ends the process, and one that changes
    later gives other numbers.

    Returns:
        The matrix; None where zipfile has to read it: compressed, small, in Fortran's order.
    """
    if info.compress_type != zipfile.ZIP_STORED or info.file_size < _STRAIGHT_FROM:
        return None
    with path.open("rb", buffering=0) as file:
        file.seek(info.header_offset)
        local = file.read(30)
        file.seek(
            info.header_offset
            + 30
            + int.from_bytes(local[26:28], "little")
            + int.from_bytes(local[28:30], "little")
        )
        found = np.empty(shape, dtype)
        head = file.read(info.file_size - found.nbytes)
        if b"'fortran_order': False" not in head:
            return None
        summed, place, content = zlib.crc32(head), 0, found.data.cast("B")
        while place < len(content):
            block = content[place : place + _BLOCK]
            size = file.readinto(block) or 0
            if not size:
                raise zipfile.BadZipFile(
                    f"{info.filename!r} ends after {place} of {len(content)} bytes"
                )
            summed = zlib.crc32(block[:size], summed)
            place += size
    if summed != info.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 for {info.filename!r}")
    return found


def _meta(path: Path, text: str) -> dict[str, str]:
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: meta is not JSON ({error})") from None
    if not isinstance(meta, Mapping) or not all(isinstance(value, str) for value in meta.values()):
        raise ValueError(
            f'{path}: meta must be a JSON object of texts, such as {{"similarity": "cosine"}}, but '
            f"is {text[:80]!r}"
        )
    return dict(meta)
