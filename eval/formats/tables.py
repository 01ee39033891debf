"""Embeddings as tables for other systems: Parquet (pyarrow), HDF5 (h5py) and LanceDB.

Each package is imported when it is used. eval/formats/embeddings.py says what is in the tables.
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

from eval.errors import LikenessError
from eval.formats.boundary import Answer, Limits, Process
from eval.formats.files import EXPANSION, atomic_path
from eval.formats.kaldi import MAX_DIM, MAX_META
from eval.formats.plain import numbers
from eval.formats.writing import added, move, remove_abandoned, staged, sync
from eval.types import Embeddings, first_line

# The ids (N,), the matrix (N, D) of floats, and the meta as JSON text.
Read = tuple[tuple[str, ...], NDArray[Any], str]
KEY = b"likeness"  # the key of the meta in the schema's metadata

_PACKAGES = {
    ".parquet": ("pyarrow", "pyarrow.parquet"),
    ".h5": ("h5py",),
    ".lance": ("pyarrow", "lancedb"),
}
# These packages start no threads when they are imported, so they are imported before the process of
# a reader is forked.
_PRELOADED = {".parquet": (__name__, "pyarrow.parquet"), ".h5": (__name__, "h5py")}
_ROWS = 1 << 14  # read at a time
# Parquet's encodings that contain every text in full. RLE is used for what is null.
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}
_FLOATS = r"(large_list|list|fixed_size_list)<\w+: (halffloat|float|double)( not null)?>(\[\d+\])?"
# Names in small letters, without blanks, _, - and dots.
_ID_NAMES = {
    *("id", "itemid", "utt", "uttid", "utterance", "utteranceid", "name", "key", "path", "file"),
    *("filename", "indexlevel0"),  # the last is how pandas writes its index
}
_VECTOR_NAMES = {"vector", "vectors", "embedding", "embeddings", "emb", "feature", "features"}
_SPARE = 1 << 27  # bytes of memory that a reader takes beside the embeddings
# HDF5's filters deflate, shuffle and checksum. All others are plug-ins, which are foreign code.
_STORED_HERE = {1, 2, 3}


def check_installed(path: Path, suffix: str) -> None:
    """Raises ImportError if a package that this format needs is missing.

    Args:
        path: The file, for the message.
        suffix: The suffix of the format, in lower case.
    """
    for name in _PACKAGES.get(suffix, ()):
        _package(name, path)


def _package(name: str, path: Path) -> Any:
    """Imports a package. Raises ImportError with the remedy."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise LikenessError(
            f"{path}: {path.suffix} files need {name.partition('.')[0]}; run `pip install "
            "'likeness[formats]'`, or choose .npz"
        ) from None


@contextmanager
def _named(path: Path, kind: str) -> Iterator[None]:
    """Turns what a reader raises on a damaged file into one sentence that names the file."""
    try:
        yield
    except _Refused as error:
        raise LikenessError(f"{path}: {error}") from None
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception as error:
        # pyarrow, h5py and lancedb raise some ten kinds for what is wrong with a file.
        raise LikenessError(
            f"{path}: not a {kind} that can be read ({first_line(error)}); it is damaged, "
            "truncated or of another kind: write it again"
        ) from None


class _Refused(Exception):
    """What is wrong with a file that its package reads without complaint."""


def _refuse_size(size: int, limit: int) -> None:
    """Raises _Refused for embeddings of more bytes than the limit."""
    if size > limit:
        raise _Refused(
            f"its embeddings would take {size} bytes, but at most {limit} are read of a file of "
            "its size; it is damaged or hostile"
        )


def _to_table(path: Path, embeddings: Embeddings, meta: str) -> Any:
    """The Arrow table of embeddings."""
    arrow = _package("pyarrow", path)
    columns = {
        "id": arrow.array(embeddings.ids, arrow.string()),
        "vector": arrow.FixedSizeListArray.from_arrays(
            arrow.array(embeddings.matrix.ravel(), arrow.float32()), embeddings.matrix.shape[1]
        ),
        "norm": arrow.array(embeddings.norms, arrow.float32()),
    }
    return arrow.table(columns).replace_schema_metadata({KEY: meta.encode()})


class _Named(NamedTuple):
    """The columns of embeddings in a table."""

    id: str = "id"
    vector: str = "vector"


_OURS = _Named()


def _named_columns(schema: Any) -> _Named:
    """The columns of the ids and of the vectors, of tables that others wrote too.

    Where no column is called `vector`, it is the only one that holds lists of floats, or the only
    one of these that is called after embeddings. Where none is called `id`, it is the only one of
    text, or the only one of these that is called after ids or files.
    """
    types = {field.name: str(field.type) for field in schema}
    lists = [name for name, kind in types.items() if re.fullmatch(_FLOATS, kind)]
    texts = [name for name, kind in types.items() if kind in ("string", "large_string")]
    chosen: list[str] = []
    for kind, columns, usual in (("id", texts, _ID_NAMES), ("vector", lists, _VECTOR_NAMES)):
        likely = [name for name in columns if re.sub(r"[\s_.-]", "", name).lower() in usual]
        candidates = next(
            (
                names
                for names in ([kind] if kind in types else [], likely, columns)
                if len(names) == 1
            ),
            [],
        )
        if not candidates and columns:
            what = "texts" if kind == "id" else "lists of floats"
            raise _Refused(
                f"{len(columns)} columns hold {what} ({', '.join(columns)[:300]}); rename the one "
                f"of the embeddings to `{kind}`"
            )
        chosen += candidates or [kind]
    return _Named(*chosen)


def _check_schema(schema: Any, num_rows: int, limit: int, named: _Named = _OURS) -> str:
    """The text of the meta, if the schema is that of embeddings.

    Raises _Refused unless the columns are there, have the right types, and are within the limit
    where the schema says their size.
    """
    types = {name: schema.field(name).type for name in named if schema.get_field_index(name) >= 0}
    text, lists = types.get(named.id), types.get(named.vector)
    of_floats = re.fullmatch(_FLOATS, str(lists))
    if lists is None or str(text) not in ("string", "large_string") or not of_floats:
        columns = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise _Refused(
            "not an embeddings file: expected id, text, and vector, lists of floats; columns "
            f"found: {columns[:300] or 'none'}"
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
    batches: Iterable[Any], schema: Any, limit: int, named: _Named = _OURS
) -> tuple[tuple[str, ...], NDArray[Any]]:
    """The ids and the matrix in the batches of an Arrow table."""
    ids: list[str] = []
    parts: list[NDArray[Any]] = []
    size_in_memory = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        size_in_memory += batch.nbytes
        _refuse_size(size_in_memory, limit)
        names, vectors = batch.column(named.id), batch.column(named.vector)
        # flatten() and value_lengths() would import pyarrow.compute, which takes longer than
        # reading.
        if hasattr(vectors, "offsets"):
            offsets = numbers(vectors.offsets)
            start, stop, own = int(offsets[0]), int(offsets[-1]), np.diff(offsets)
        else:
            size = vectors.type.list_size
            start, stop = vectors.offset * size, (vectors.offset + len(vectors)) * size
            own = np.array([size])
        values = vectors.values[start:stop]
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
        parts.append(numbers(values).reshape(batch.num_rows, -1))
    empty = np.zeros(
        (0, max(1, getattr(schema.field(named.vector).type, "list_size", 1))), np.float32
    )
    return tuple(ids), np.concatenate(parts) if parts else empty


def _write_parquet(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes a .parquet file."""
    parquet, table = _package("pyarrow.parquet", path), _to_table(path, embeddings, meta)
    # Compression and dictionaries would gain next to nothing for float32 vectors.
    with atomic_path(path) as temporary:
        parquet.write_table(
            table,
            temporary,
            row_group_size=1 << 16,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )


def _read_parquet(path: Path, limit: int) -> Read:
    """Reads a .parquet file, in the process of a reader."""
    parquet = _package("pyarrow.parquet", path)
    with path.open("rb") as handle, _named(path, "Parquet file"):
        file = parquet.ParquetFile(
            handle,
            thrift_string_size_limit=2 * MAX_META,
            thrift_container_size_limit=1 << 22,
            page_checksum_verification=True,
        )
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        _refuse_size(sum(group.total_byte_size for group in groups), limit)
        named = _named_columns(file.schema_arrow)
        meta = _check_schema(file.schema_arrow, file.metadata.num_rows, limit, named)
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        width = file.schema_arrow.field(named.vector).type.value_type.bit_width // 8
        # The bytes that the file states are those of encoded values, and encoded equal values take
        # no bytes. So the values are counted.
        vectors = [
            column for column in columns if column.path_in_schema.startswith(f"{named.vector}.")
        ]
        _refuse_size(sum(column.num_values * width for column in vectors), limit)
        encoded_ids = [
            column.total_uncompressed_size
            for column in columns
            if column.path_in_schema == named.id and not _PLAIN.issuperset(column.encodings)
        ]
        # A batch keeps within the limit even if all of its ids are the longest that the file may
        # contain.
        longest = max(encoded_ids, default=0)
        rows = min(_ROWS, max(1, limit // max(1, longest)))
        batches = file.iter_batches(rows, columns=list(named), use_threads=False)
        return *_from_batches(batches, file.schema_arrow, limit, named), meta


def _write_h5(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes a .h5 file."""
    h5py = _package("h5py", path)
    ids = np.zeros(0, "S1")
    if embeddings.ids:
        ids = np.char.encode(np.array(embeddings.ids, dtype=np.str_), "utf-8")
    text = np.array(meta.encode())
    id_type = h5py.string_dtype("utf-8", max(1, ids.dtype.itemsize))
    text_type = h5py.string_dtype("utf-8", text.dtype.itemsize)
    with atomic_path(path) as temporary, temporary.open("wb+") as raw:
        with h5py.File(disk := _Disk(raw), "w") as file:
            file.create_dataset("ids", data=ids.astype(id_type))
            file.create_dataset("matrix", data=embeddings.matrix)
            file.create_dataset("norms", data=embeddings.norms)
            file.create_dataset("meta", data=text.astype(text_type))
        if disk.error is not None:
            raise disk.error


class _Disk:
    """A file for HDF5 to write to, which keeps the error of a write that fails.

    HDF5 itself ends the process with a segmentation fault there.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self.error: OSError | None = None
        self.seek, self.tell, self.read = raw.seek, raw.tell, raw.read
        self.readinto = raw.readinto  # type: ignore[attr-defined]

    def write(self, data: bytes) -> int:
        """Writes data; HDF5 is always told that all of it was written."""
        self._try(lambda: self._raw.write(data))
        return len(data)

    def truncate(self, size: int) -> None:
        """Changes the size of the file."""
        self._try(lambda: self._raw.truncate(size))

    def flush(self) -> None:
        """Flushes the file."""
        self._try(self._raw.flush)

    def _try(self, call: Callable[[], object]) -> None:
        """Calls a function unless an earlier call failed, and keeps its error."""
        if self.error is None:
            try:
                call()
            except OSError as error:
                self.error = error


class _Set(NamedTuple):
    """A data set of a .h5 file, with the type and the shape that it states."""

    data: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def _h5_sets(file: Any, h5py: Any, limit: int) -> dict[str, _Set]:
    """The data sets of a .h5 file.

    Raises _Refused for a data set that is in another file, needs plug-ins, or would be too large.
    """
    sets = {}
    for name in ("ids", "matrix", "meta"):
        link = file.get(name, getlink=True)
        if link is None:
            continue
        is_here = isinstance(link, h5py.HardLink)
        if not is_here or not isinstance(file[name], h5py.Dataset):
            raise _Refused(
                f"{name} is a {'group' if is_here else type(link).__name__}; a data set of this "
                "very file is needed"
            )
        dataset, creation = file[name], file[name].id.get_create_plist()
        filters = {creation.get_filter(i)[0] for i in range(creation.get_nfilters())}
        if dataset.external or dataset.is_virtual or not filters <= _STORED_HERE:
            raise _Refused(
                f"{name} is kept in other files or by plug-ins (filters {sorted(filters)}); write "
                "it into the file, plain or with gzip"
            )
        _refuse_size(math.prod(dataset.shape) * dataset.dtype.itemsize, limit)
        sets[name] = _Set(dataset, dataset.dtype, dataset.shape)
    return sets


def _read_h5(path: Path, limit: int) -> Read:
    """Reads a .h5 file, in the process of a reader."""
    h5py = _package("h5py", path)
    with path.open("rb"):
        pass  # raises FileNotFoundError and the like, for which h5py has other exceptions
    with _named(path, "HDF5 file"), h5py.File(path, "r") as file:
        sets = _h5_sets(file, h5py, limit)
        kinds = {name: (entry.dtype.kind, len(entry.shape)) for name, entry in sets.items()}
        if {"meta": ("S", 0), **kinds} != {"ids": ("S", 1), "matrix": ("f", 2), "meta": ("S", 0)}:
            shapes = [f"{name} {entry.dtype} {entry.shape}" for name, entry in sets.items()]
            present = ", ".join(shapes) or "none"
            raise _Refused(
                "not an embeddings file: expected ids (N,) and meta (), texts of fixed length, "
                f"and matrix (N, D) floats; data sets found: {present}"
            )
        ids = tuple(id.decode() for id in sets["ids"].data[...].tolist())
        meta = sets["meta"].data[()].decode() if "meta" in sets else "{}"
        return ids, sets["matrix"].data[...], meta


def _lance_database(path: Path) -> tuple[Any, str]:
    """The database that contains the table of this folder, and the table's name."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+\.lance", path.name):
        raise LikenessError(
            f"{path}: LanceDB's tables are folders NAME.lance with letters, digits, _, - and . in "
            "their names; choose such a name"
        )
    if not path.parent.is_dir():
        raise LikenessError(f"{path}: there is no folder {path.parent}; make it first")
    return _package("lancedb", path).connect(str(path.parent.absolute())), path.stem


def _write_lance(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes a new version of a table.

    It counts from the moment in which its manifest is there. Then the older versions go, with their
    vectors.
    """
    if path.exists() and not path.is_dir():
        raise LikenessError(
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
    """Removes from the disk all versions of a LanceDB table but the latest.

    The rows that only they contain go too. LanceDB first writes what is left into fewer files.
    These are on the disk before the older ones go.

    Args:
        path: The table's folder.
        table: The table, opened by lancedb.
    """
    with warnings.catch_warnings():
        # LanceDB warns that readers of an older version may fail. They would read what is replaced.
        warnings.simplefilter("ignore", UserWarning)
        table.optimize()
        sync(path)
        table.optimize(cleanup_older_than=datetime.timedelta(0), delete_unverified=True)


def create_lance(path: Path, rows: Any) -> None:
    """Makes a LanceDB table; its folder appears when it is whole.

    Args:
        path: The table's folder.
        rows: What lancedb's create_table takes.
    """
    with staged(path) as temporary:
        _package("lancedb", path).connect(str(temporary.parent)).create_table(path.stem, rows)
        if path.exists():  # version 0.1 began it and never finished
            shutil.rmtree(path)
        move(temporary, path)


def has_version(table: Path) -> bool:
    """Returns whether the folder of a LanceDB table contains a whole version.

    A kill during its first write may leave a folder without one.
    """
    return any((table / "_versions").glob("*.manifest"))


def _read_lance(path: Path, limit: int) -> Read:
    """Reads a LanceDB table, in the process of a reader."""
    if not path.is_dir():
        raise LikenessError(f"{path} does not exist; a LanceDB table is a folder")
    database, name = _lance_database(path)
    with _named(path, "LanceDB table"):
        table = database.open_table(name)
        meta = _check_schema(table.schema, table.count_rows(), limit)
        batches = table.search().select(["id", "vector"]).to_arrow().to_batches(_ROWS)
        return *_from_batches(batches, table.schema, limit), meta


_NATIVE: dict[str, Callable[[Path, int], Read]] = {
    ".parquet": _read_parquet,
    ".h5": _read_h5,
    ".lance": _read_lance,
}


def read_here(path: str, limit: int) -> Answer:
    """Reads a table in this very process, by its package's native code.

    Only a process of its own calls it; the result is an answer of eval.formats.boundary.

    Args:
        path: A .parquet or .h5 file, or the folder of a .lance table.
        limit: The bytes that the embeddings may take.

    Returns:
        None; and four arrays: the ids as UTF-8 bytes, the number of bytes of each (N,), the matrix
            (N, D), and the meta as UTF-8 bytes.
    """
    place = Path(path)
    ids, matrix, meta = _NATIVE[place.suffix.lower()](place, limit)
    # HDF5 has floats of more than 64 bits, which numpy has on some processors only.
    matrix = matrix.astype(np.float64) if matrix.dtype.itemsize > 8 else matrix
    encoded = [id.encode("utf-8", "surrogatepass") for id in ids]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return None, [
        np.frombuffer(b"".join(encoded), np.uint8),
        lengths,
        matrix,
        np.frombuffer(meta.encode("utf-8", "surrogatepass"), np.uint8),
    ]


def _read_apart(path: Path, limit: int) -> Read:
    """Reads a table in a process of its own.

    A changed byte makes Arrow abort, loop, or take any amount of memory. That becomes a ValueError;
    others are those of the reader of the format.
    """
    kind = path.suffix.lower()
    # The limit of a folder follows from the size of its files.
    size = path.stat().st_size if path.is_file() else limit // EXPANSION
    # Honest files take less than a tenth of this, on a slow machine too; importing LanceDB alone
    # takes three seconds.
    limits = Limits(
        seconds=(15.0 if kind == ".lance" else 6.0) + size / 2e7,
        memory=_SPARE + 2 * limit,
        answer=limit + 2 * MAX_META,
    )
    arguments = read_here, str(path.absolute()), limit
    with ExitStack() as stack:
        if kind == ".lance":
            process = _lance_process()
        else:
            process = stack.enter_context(Process(*_PRELOADED[kind]))
        try:
            arrays = process.ask(*arguments, about=path, limits=limits)[1]
        except ValueError:
            if process.usable or kind != ".lance":
                raise
            # The process may have died of another table, so this one is read in a new process.
            process = stack.enter_context(Process(__name__))
            arrays = process.ask(*arguments, about=path, limits=limits)[1]
        ids, lengths, matrix, meta = arrays
    text, ends = ids.tobytes(), np.concatenate([[0], np.cumsum(lengths)]).tolist()
    names = tuple(
        text[start:end].decode("utf-8", "surrogatepass") for start, end in itertools.pairwise(ends)
    )
    return names, matrix, meta.tobytes().decode("utf-8", "surrogatepass")


_lance: list[Process] = []  # at most one


def _lance_process() -> Process:
    """The process of all LanceDB tables.

    Importing lancedb takes seconds. It also starts threads, so it cannot be imported before a fork.
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
