"""Embeddings as tables for other systems: Parquet (pyarrow), HDF5 (h5py), LanceDB, each imported
when it is used. eval/formats/embeddings.py says what is in them.
"""

from __future__ import annotations

import datetime
import importlib
import itertools
import math
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.formats.boundary import Answer, Ended, Limits, Process
from eval.formats.files import EXPANSION, atomic_path
from eval.formats.kaldi import MAX_DIM, MAX_META
from eval.formats.writing import added, move, remove_abandoned, staged, sync
from eval.types import Embeddings

Read = tuple[
    tuple[str, ...], NDArray[Any], str
]  # ids (N,), matrix (N, D) of floats, meta as JSON text
KEY = b"likeness"  # of the schema's metadata, where the meta is

_PACKAGES = {
    ".parquet": ("pyarrow", "pyarrow.parquet"),
    ".h5": ("h5py",),
    ".lance": ("pyarrow", "lancedb"),
}
# imported before a reader's process is forked: packages that start no threads then
_PRELOADED = {".parquet": (__name__, "pyarrow.parquet"), ".h5": (__name__, "h5py")}
_ROWS = 1 << 14  # read at a time
_PLAIN = {
    "PLAIN",
    "RLE",
    "BIT_PACKED",
}  # Parquet's encodings (RLE: of what is null) that hold every text in full
_SPARE = 1 << 27  # bytes of memory that a reader takes beside the embeddings
_STORED_HERE = {
    1,
    2,
    3,
}  # HDF5 filters deflate, shuffle and checksum: all others are plug-ins, code from elsewhere


def check_installed(path: Path, suffix: str) -> None:
    """ImportError if a package that this format needs is missing."""
    for name in _PACKAGES.get(suffix, ()):
        _package(name, path)


def _package(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ImportError(
            f"{path}: {path.suffix} files need {name.partition('.')[0]}; run `pip install "
            "'likeness[formats]'`, or choose .npz"
        ) from None


@contextmanager
def _named(path: Path, kind: str) -> Iterator[None]:
    """What a reader raises on a damaged file, as one sentence that names the file."""
    try:
        yield
    except _Refused as error:
        raise ValueError(f"{path}: {error}") from None
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except (
        Exception
    ) as error:  # pyarrow, h5py and lancedb have some ten kinds for what is wrong with a file
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise ValueError(
            f"{path}: no {kind} that can be read ({reason}); damaged, truncated or of another "
            "kind: write it again"
        ) from None


class _Refused(Exception):
    """What is wrong with a file that the reader itself found in order."""


def _refuse_size(size: int, limit: int) -> None:
    if size > limit:
        raise _Refused(
            f"its embeddings would take {size} bytes, but at most {limit} are read of a file of "
            "its size; damaged or hostile"
        )


def _to_table(path: Path, embeddings: Embeddings, meta: str) -> Any:
    arrow = _package("pyarrow", path)
    columns = {
        "id": arrow.array(embeddings.ids, arrow.string()),
        "vector": arrow.FixedSizeListArray.from_arrays(
            arrow.array(embeddings.matrix.ravel(), arrow.float32()), embeddings.matrix.shape[1]
        ),
        "norm": arrow.array(embeddings.norms, arrow.float32()),
    }
    return arrow.table(columns).replace_schema_metadata({KEY: meta.encode()})


def _check_schema(schema: Any, num_rows: int, limit: int) -> str:
    """The meta's text. _Refused unless the columns are there, of the right types, and within the
    limit where the schema says their size.
    """
    types = {
        name: schema.field(name).type
        for name in ("id", "vector")
        if schema.get_field_index(name) >= 0
    }
    text, lists = types.get("id"), types.get("vector")
    if (
        lists is None
        or str(text) not in ("string", "large_string")
        or not re.fullmatch(
            r"(large_list|list|fixed_size_list)<\w+: (halffloat|float|double)( not "
            r"null)?>(\[\d+\])?",
            str(lists),
        )
    ):
        found = ", ".join(f"{one.name} {one.type}" for one in schema)
        raise _Refused(
            "not an embeddings file: expected id, text, and vector, lists of floats; columns "
            f"found: {found[:300] or 'none'}"
        )
    dim, width = getattr(lists, "list_size", 1), lists.value_type.bit_width // 8
    if dim > MAX_DIM:
        raise _Refused(f"its vectors have {dim} dims; at most {MAX_DIM} are read")
    _refuse_size(num_rows * dim * width, limit)
    meta = (schema.metadata or {}).get(KEY, b"{}")
    if len(meta) > MAX_META:
        raise _Refused(f"its meta has {len(meta)} bytes, but at most {MAX_META} are allowed")
    return str(meta.decode())


def _from_batches(
    batches: Iterable[Any], schema: Any, limit: int
) -> tuple[tuple[str, ...], NDArray[Any]]:
    ids: list[str] = []
    parts: list[NDArray[Any]] = []
    held = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held += batch.nbytes
        _refuse_size(held, limit)
        names, vectors = batch.column("id"), batch.column("vector")
        # flatten() and value_lengths() would import pyarrow.compute, which takes longer than
        # reading
        if hasattr(vectors, "offsets"):
            offsets = vectors.offsets.to_numpy()
            values, own = vectors.values[int(offsets[0]) : int(offsets[-1])], np.diff(offsets)
        else:
            size = vectors.type.list_size
            values, own = (
                vectors.values[vectors.offset * size : (vectors.offset + len(vectors)) * size],
                np.array([size]),
            )
        if names.null_count or vectors.null_count or values.null_count:
            raise _Refused(
                f"{names.null_count + vectors.null_count} ids and vectors are null, and "
                f"{values.null_count} of their values; all must be there"
            )
        lengths = np.concatenate([own, [part.shape[1] for part in parts[:1]]])
        low, high = int(lengths.min()), int(lengths.max())
        if low != high or not 0 < low <= MAX_DIM:
            raise _Refused(
                f"its vectors have {low} to {high} dims; all must have one number of them, 1 to "
                f"{MAX_DIM}"
            )
        ids += names.to_pylist()
        parts.append(values.to_numpy(zero_copy_only=False).reshape(batch.num_rows, -1))
    empty = np.zeros((0, max(1, getattr(schema.field("vector").type, "list_size", 1))), np.float32)
    return tuple(ids), np.concatenate(parts) if parts else empty


def _write_parquet(path: Path, embeddings: Embeddings, meta: str) -> None:
    parquet, table = _package("pyarrow.parquet", path), _to_table(path, embeddings, meta)
    with (
        atomic_path(path) as temporary
    ):  # neither compression nor dictionaries: float32 vectors have next to nothing to gain
        parquet.write_table(
            table, temporary, row_group_size=1 << 16, compression="none", use_dictionary=False
        )


def _read_parquet(path: Path, limit: int) -> Read:
    parquet = _package("pyarrow.parquet", path)
    with path.open("rb") as handle, _named(path, "Parquet file"):
        file = parquet.ParquetFile(
            handle, thrift_string_size_limit=2 * MAX_META, thrift_container_size_limit=1 << 22
        )
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        _refuse_size(sum(group.total_byte_size for group in groups), limit)
        meta = _check_schema(file.schema_arrow, file.metadata.num_rows, limit)
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        width = file.schema_arrow.field("vector").type.value_type.bit_width // 8
        # what the file states of its bytes is of them encoded, where equal values take none
        _refuse_size(
            sum(
                one.num_values * width
                for one in columns
                if one.path_in_schema.startswith("vector.")
            ),
            limit,
        )
        longest = max(
            (
                one.total_uncompressed_size
                for one in columns
                if one.path_in_schema == "id" and not _PLAIN.issuperset(one.encodings)
            ),
            default=0,
        )
        rows = min(
            _ROWS, max(1, limit // max(1, longest))
        )  # so that a batch of the longest id that the file can hold keeps the limit
        batches = file.iter_batches(rows, columns=["id", "vector"], use_threads=False)
        return *_from_batches(batches, file.schema_arrow, limit), meta


def _write_h5(path: Path, embeddings: Embeddings, meta: str) -> None:
    h5py = _package("h5py", path)
    ids = (
        np.char.encode(np.array(embeddings.ids, dtype=np.str_), "utf-8")
        if embeddings.ids
        else np.zeros(0, "S1")
    )
    text = np.array(meta.encode())
    with atomic_path(path) as temporary, temporary.open("wb+") as raw:
        with h5py.File(disk := _Disk(raw), "w") as file:
            file.create_dataset(
                "ids", data=ids.astype(h5py.string_dtype("utf-8", max(1, ids.dtype.itemsize)))
            )
            file.create_dataset("matrix", data=embeddings.matrix)
            file.create_dataset("norms", data=embeddings.norms)
            file.create_dataset(
                "meta", data=text.astype(h5py.string_dtype("utf-8", text.dtype.itemsize))
            )
        if disk.error is not None:
            raise disk.error


class _Disk:
    """A file for HDF5 to write to, which ends the process with a segmentation fault where a write
    fails: this one keeps the error instead.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.error: OSError | None = None
        self.seek, self.tell, self.read, self.readinto = raw.seek, raw.tell, raw.read, raw.readinto  # type: ignore[attr-defined]

    def write(self, data: bytes) -> int:
        self._try(lambda: self._raw.write(data))
        return len(data)

    def truncate(self, size: int) -> None:
        self._try(lambda: self._raw.truncate(size))

    def flush(self) -> None:
        self._try(self._raw.flush)

    def _try(self, call: Callable[[], object]) -> None:
        if self.error is None:
            try:
                call()
            except OSError as error:
                self.error = error


class _Set(NamedTuple):
    """A data set as it says it is."""

    held: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _h5_sets(file: Any, h5py: Any, limit: int) -> dict[str, _Set]:
    """The data sets of the file itself: what is elsewhere, or needs plug-ins, is refused, and so is
    what would be too large.
    """
    found = {}
    for name in ("ids", "matrix", "meta"):
        link = file.get(name, getlink=True)
        if link is None:
            continue
        if not isinstance(link, h5py.HardLink) or not isinstance(file[name], h5py.Dataset):
            raise _Refused(
                f"{name} is a "
                f"{type(link).__name__ if not isinstance(link, h5py.HardLink) else 'group'}; a "
                "data set of this very file is needed"
            )
        one, creation = file[name], file[name].id.get_create_plist()
        filters = {creation.get_filter(i)[0] for i in range(creation.get_nfilters())}
        if one.external or one.is_virtual or not filters <= _STORED_HERE:
            raise _Refused(
                f"{name} is kept in other files or by plug-ins (filters {sorted(filters)}); write "
                "it into the file, plain or with gzip"
            )
        _refuse_size(math.prod(one.shape) * one.dtype.itemsize, limit)
        found[name] = _Set(one, one.dtype, one.shape)
    return found


def _read_h5(path: Path, limit: int) -> Read:
    h5py = _package("h5py", path)
    with path.open("rb"):
        pass  # FileNotFoundError and its like, which h5py words otherwise
    with _named(path, "HDF5 file"), h5py.File(path, "r") as file:
        sets = _h5_sets(file, h5py, limit)
        kinds = {name: (one.dtype.kind, len(one.shape)) for name, one in sets.items()}
        if kinds != {"ids": ("S", 1), "matrix": ("f", 2), "meta": ("S", 0)} and kinds != {
            "ids": ("S", 1),
            "matrix": ("f", 2),
        }:
            found = (
                ", ".join(f"{name} {one.dtype} {one.shape}" for name, one in sets.items()) or "none"
            )
            raise _Refused(
                "not an embeddings file: expected ids (N,) and meta (), texts of fixed length, "
                f"and matrix (N, D) floats; data sets found: {found}"
            )
        ids = tuple(one.decode() for one in sets["ids"].held[...].tolist())
        return (
            ids,
            sets["matrix"].held[...],
            sets["meta"].held[()].decode() if "meta" in sets else "{}",
        )


def _lance_database(path: Path) -> tuple[Any, str]:
    """The database that holds the table of this folder, and the table's name."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+\.lance", path.name):
        raise ValueError(
            f"{path}: LanceDB's tables are folders NAME.lance with letters, digits, _, - and . in "
            "their names; choose such a name"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.parent}; make it first")
    return _package("lancedb", path).connect(str(path.parent.absolute())), path.stem


def _write_lance(path: Path, embeddings: Embeddings, meta: str) -> None:
    """A new version of the table, which counts from the moment in which its manifest is there; then
    the older ones go, with their vectors.
    """
    if path.exists() and not path.is_dir():
        raise ValueError(
            f"{path} is a file; a LanceDB table is a folder: remove it or choose another name"
        )
    rows = _to_table(path, embeddings, meta)
    database, name = _lance_database(path)
    if not has_version(path):
        create_lance(path, rows)
        return
    remove_abandoned(path)
    with added(path):
        table = database.create_table(name, rows, mode="overwrite")
    remove_older_versions(path, table)


def remove_older_versions(path: Path, table: Any) -> None:
    """Remove from the disk all versions of a LanceDB table but the latest, with the rows that only
    they hold.

    LanceDB first writes what is left into fewer files. These are on the disk before the older ones
    go.

    Args:
        path: the table's folder.
        table: the table, opened by lancedb.
    """
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # that readers of an older version may fail: they would read what is replaced
        table.optimize()
        sync(path)
        table.optimize(cleanup_older_than=datetime.timedelta(0), delete_unverified=True)


def create_lance(path: Path, rows: Any) -> None:
    """Make a LanceDB table, the folder `path`, which appears when it is whole. rows: what lancedb's
    create_table takes.
    """
    with staged(path) as temporary:
        _package("lancedb", path).connect(str(temporary.parent)).create_table(path.stem, rows)
        if path.exists():  # begun by version 0.1 and never finished
            shutil.rmtree(path)
        move(temporary, path)


def has_version(table: Path) -> bool:
    """Whether a LanceDB table's folder holds a whole version: a kill in its first write may leave a
    folder without one.
    """
    return any((table / "_versions").glob("*.manifest"))


def _read_lance(path: Path, limit: int) -> Read:
    if not path.is_dir():
        raise FileNotFoundError(f"{path} does not exist; a LanceDB table is a folder")
    database, name = _lance_database(path)
    with _named(path, "LanceDB table"):
        table = database.open_table(name)
        meta = _check_schema(table.schema, table.count_rows(), limit)
        return *_from_batches(
            table.search().select(["id", "vector"]).to_arrow().to_batches(_ROWS),
            table.schema,
            limit,
        ), meta


_NATIVE: dict[str, Callable[[Path, int], Read]] = {
    ".parquet": _read_parquet,
    ".h5": _read_h5,
    ".lance": _read_lance,
}


def read_here(path: str, limit: int) -> Answer:
    """Read a table in this very process, by its package's native code: an answer of
    eval.formats.boundary. Only a process of its own comes here.

    Args:
        path: A .parquet or .h5 file, or the folder of a .lance table.
        limit: Bytes that the embeddings may take.

    Returns:
        None; the ids as one array of UTF-8 bytes, the number of bytes of each (N,), the matrix (N,
        D), the meta as UTF-8 bytes.
    """
    place = Path(path)
    ids, matrix, meta = _NATIVE[place.suffix.lower()](place, limit)
    matrix = (
        matrix.astype(np.float64) if matrix.dtype.itemsize > 8 else matrix
    )  # HDF5 has floats that numpy has on some processors
    encoded = [one.encode("utf-8", "surrogatepass") for one in ids]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return None, [
        np.frombuffer(b"".join(encoded), np.uint8),
        lengths,
        matrix,
        np.frombuffer(meta.encode("utf-8", "surrogatepass"), np.uint8),
    ]


def _read_apart(path: Path, limit: int) -> Read:
    """Read a table in a process of its own: a changed byte makes Arrow abort, loop, or take any
    amount of memory.

    ValueError where that happens, and as the reader of its format says.
    """
    kind = path.suffix.lower()
    size = (
        path.stat().st_size if path.is_file() else limit // EXPANSION
    )  # a folder's limit follows from the size of its files
    # Honest files take less than a tenth of this, on a slow machine too; importing LanceDB alone
    # takes three seconds.
    limits = Limits(
        seconds=(15.0 if kind == ".lance" else 6.0) + size / 2e7,
        memory=_SPARE + 2 * limit,
        answer=limit + 2 * MAX_META,
    )
    with ExitStack() as stack:
        process = (
            _lance_process()
            if kind == ".lance"
            else stack.enter_context(Process(*_PRELOADED[kind]))
        )
        try:
            found = process.ask(read_here, str(path.absolute()), limit, about=path, limits=limits)[
                1
            ]
        except Ended:  # by another thread's table
            found = stack.enter_context(Process(__name__)).ask(
                read_here, str(path.absolute()), limit, about=path, limits=limits
            )[1]
        ids, lengths, matrix, meta = found
    text, ends = ids.tobytes(), np.concatenate([[0], np.cumsum(lengths)]).tolist()
    names = tuple(
        text[start:end].decode("utf-8", "surrogatepass") for start, end in itertools.pairwise(ends)
    )
    return names, matrix, meta.tobytes().decode("utf-8", "surrogatepass")


_lance: list[Process] = []  # at most one


def _lance_process() -> Process:
    """The process of all LanceDB tables: importing lancedb takes seconds, and starts threads, so
    that it cannot be imported before a fork.
    """
    if not _lance or not _lance[0].usable:
        _lance[:] = [Process(__name__)]
    return _lance[0]


READERS: dict[str, Callable[[Path, int], Read]] = dict.fromkeys(_NATIVE, _read_apart)
WRITERS: dict[str, Callable[[Path, Embeddings, str], None]] = {
    ".parquet": _write_parquet,
    ".h5": _write_h5,
    ".lance": _write_lance,
}
