"""Embeddings as tables for other systems: Parquet (pyarrow) and HDF5 (h5py).

Each package is imported when it is used. eval/formats/embeddings.py says what is in the tables.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError, first_line
from eval.formats import parquet
from eval.formats.files import atomic_path
from eval.formats.kaldi import MAX_DIM, MAX_META
from eval.types import Embeddings, quoted

# The ids (N,), the matrix (N, D) of floats, and the meta as JSON text.
Read = tuple[tuple[str, ...], NDArray[Any], str]
KEY = b"likeness"  # the key of the meta in the schema's metadata

_ROWS = 1 << 14  # read at a time
_FLOATS = r"(large_list|list|fixed_size_list)<\w+: (halffloat|float|double)( not null)?>(\[\d+\])?"
# Names in small letters, without blanks, _, - and dots.
_ID_NAMES = {
    *("id", "itemid", "utt", "uttid", "utterance", "utteranceid", "name", "key", "path", "file"),
    *("filename", "indexlevel0"),  # the last is how pandas writes its index
}
_VECTOR_NAMES = {"vector", "vectors", "embedding", "embeddings", "emb", "feature", "features"}
# HDF5's filters deflate, shuffle and checksum. All others are plug-ins, which are foreign code.
_OWN_FILTERS = {1, 2, 3}
# The data sets of a .h5 file, with the kind of their type and their number of dimensions.
_H5_SETS = {"ids": ("S", 1), "matrix": ("f", 2), "meta": ("S", 0)}


def check_installed(path: Path) -> None:
    """Raises ImportError if a package that the format of this path needs is missing."""
    if path.suffix.lower() == ".h5":
        _h5py(path)


def _h5py(path: Path) -> Any:
    """The package h5py. Raises ImportError with the remedy."""
    try:
        import h5py
    except ImportError:
        raise LikenessError(
            f"{path}: .h5 files need h5py; run `pip install 'likeness[formats]'`, or choose .npz"
        ) from None
    return h5py


def _refuse_size(path: Path, size: int, limit: int) -> None:
    """Refuses embeddings of more bytes than the limit."""
    if size > limit:
        raise LikenessError(
            f"{path}: its embeddings would take {size} bytes, but at most {limit} are read of a "
            "file of its size; it is damaged or hostile"
        )


def _write_parquet(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes a .parquet file."""
    import pyarrow
    import pyarrow.parquet

    columns = {
        "id": pyarrow.array(embeddings.ids, pyarrow.string()),
        "vector": pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(embeddings.matrix.ravel(), pyarrow.float32()), embeddings.matrix.shape[1]
        ),
        "norm": pyarrow.array(embeddings.norms, pyarrow.float32()),
    }
    # Compression and dictionaries would gain next to nothing for float32 vectors.
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(
            pyarrow.table(columns).replace_schema_metadata({KEY: meta.encode()}),
            temporary,
            row_group_size=1 << 16,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )


def _read_parquet(path: Path, limit: int) -> Read:
    """Reads a .parquet file."""
    with parquet.opened(path) as file:
        id_column, vector_column = _columns_of(path, parquet.column_types(file))
        schema = file.schema_arrow
        lists = schema.field(vector_column).type
        if getattr(lists, "list_size", 1) > MAX_DIM:
            raise LikenessError(
                f"{path}: its vectors have {lists.list_size} dims; at most {MAX_DIM} are read"
            )
        meta = (schema.metadata or {}).get(KEY, b"{}")
        if len(meta) > MAX_META:
            raise LikenessError(
                f"{path}: its meta has {len(meta)} bytes, but at most {MAX_META} are allowed"
            )
        # The bytes that the file states are those of encoded values, and encoded equal values take
        # no bytes. So the values are counted.
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        num_values = sum(
            column.num_values
            for column in columns
            if column.path_in_schema.startswith(f"{vector_column}.")
        )
        _refuse_size(path, num_values * lists.value_type.bit_width // 8, limit)
        names = parquet.read_columns(path, file, [id_column], 1 << 16)[id_column]
        if names.missing.any():
            raise LikenessError(f"{path}: ids are missing; each vector needs one")
        texts = names.texts or []
        batches = file.iter_batches(_ROWS, columns=[vector_column], use_threads=False)
        matrix = _matrix(path, (batch.column(0) for batch in batches), limit)
        if matrix is None:
            matrix = np.zeros((0, max(1, getattr(lists, "list_size", 1))), np.float32)
        return tuple(map(texts.__getitem__, names.values.tolist())), matrix, meta.decode()


def _columns_of(path: Path, types: dict[str, str]) -> tuple[str, str]:
    """The columns of the ids and of the vectors, in tables that others wrote too.

    Where no column is called `vector`, it is the only one that holds lists of floats, or the only
    one of these that is called after embeddings. Where none is called `id`, it is the only one of
    text, or the only one of these that is called after ids or files.
    """
    chosen: list[str] = []
    for name, pattern, usual in (
        ("id", "(large_)?string", _ID_NAMES),
        ("vector", _FLOATS, _VECTOR_NAMES),
    ):
        columns = [column for column, kind in types.items() if re.fullmatch(pattern, kind)]
        likely = [column for column in columns if re.sub(r"[\s_.-]", "", column).lower() in usual]
        named = [name] if name in columns else []
        fitting = next((some for some in (named, likely, columns) if len(some) == 1), None)
        if fitting is None or (name in types and not named):
            listed = quoted(", ".join(f"{column} {kind}" for column, kind in types.items()))
            raise LikenessError(
                f"{path}: not an embeddings file, or not one whose columns are clear: expected id, "
                f"text, and vector, lists of floats; columns found: {listed}"
            )
        chosen += fitting
    return chosen[0], chosen[1]


def _matrix(path: Path, columns: Iterable[Any], limit: int) -> NDArray[Any] | None:
    """The vectors (N, D) in arrays of lists; None where there are none."""
    parts: list[NDArray[Any]] = []
    size_in_memory = 0
    for vectors in columns:
        size_in_memory += vectors.nbytes
        _refuse_size(path, size_in_memory, limit)
        # flatten() and value_lengths() would import pyarrow.compute, which takes longer than
        # reading.
        if hasattr(vectors, "offsets"):
            offsets = parquet.numbers(vectors.offsets)
            start, stop, sizes = int(offsets[0]), int(offsets[-1]), np.diff(offsets)
        else:
            size = vectors.type.list_size
            start, stop = vectors.offset * size, (vectors.offset + len(vectors)) * size
            sizes = np.array([size])
        values = vectors.values[start:stop]
        if vectors.null_count or values.null_count:
            raise LikenessError(f"{path}: vectors or their values are null; all must be there")
        sizes = np.concatenate([sizes, [part.shape[1] for part in parts[:1]]])
        low, high = int(sizes.min(initial=MAX_DIM)), int(sizes.max(initial=0))
        if low != high or not 0 < low <= MAX_DIM:
            raise LikenessError(
                f"{path}: its vectors have {low} to {high} dims; all must have one number of them, "
                f"1 to {MAX_DIM}"
            )
        parts.append(parquet.numbers(values).reshape(len(vectors), -1))
    return np.concatenate(parts) if parts else None


def _write_h5(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes a .h5 file."""
    h5py = _h5py(path)
    ids = np.zeros(0, "S1")
    if embeddings.ids:
        ids = np.char.encode(np.array(embeddings.ids, dtype=np.str_), "utf-8")
    text = np.array(meta.encode())
    id_type = h5py.string_dtype("utf-8", max(1, ids.dtype.itemsize))
    text_type = h5py.string_dtype("utf-8", text.dtype.itemsize)
    # HDF5 ends the process with a segmentation fault where the disk is full: it writes to memory.
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        file.create_dataset("ids", data=ids.astype(id_type))
        file.create_dataset("matrix", data=embeddings.matrix)
        file.create_dataset("norms", data=embeddings.norms)
        file.create_dataset("meta", data=text.astype(text_type))
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.getbuffer())


def _read_h5(path: Path, limit: int) -> Read:
    """Reads a .h5 file."""
    h5py = _h5py(path)
    with path.open("rb"):
        pass  # raises FileNotFoundError and the like, for which h5py has other exceptions
    try:
        with h5py.File(path, "r") as file:
            present = [name for name in _H5_SETS if file.get(name, getlink=True) is not None]
            sets = {name: _h5_set(path, file, name, limit) for name in present}
            kinds = {name: (data.dtype.kind, len(data.shape)) for name, data in sets.items()}
            if {"meta": _H5_SETS["meta"], **kinds} != _H5_SETS:
                shapes = [f"{name} {data.dtype} {data.shape}" for name, data in sets.items()]
                raise LikenessError(
                    f"{path}: not an embeddings file: expected ids (N,) and meta (), texts of "
                    "fixed length, and matrix (N, D) floats; data sets found: "
                    f"{', '.join(shapes) or 'none'}"
                )
            ids = tuple(id.decode() for id in sets["ids"][...].tolist())
            matrix = sets["matrix"][...]
            # HDF5 has floats of more than 64 bits, which numpy has on some processors only.
            matrix = matrix.astype(np.float64) if matrix.dtype.itemsize > 8 else matrix
            return ids, matrix, sets["meta"][()].decode() if "meta" in sets else "{}"
    except LikenessError:
        raise
    except Exception as error:  # h5py raises many kinds for what is wrong with a file
        raise LikenessError(
            f"{path}: not a HDF5 file that can be read ({first_line(error)}); it is damaged, "
            "truncated or of another kind: write it again"
        ) from None


def _h5_set(path: Path, file: Any, name: str, limit: int) -> Any:
    """A data set of a .h5 file, if it lies in this very file and is not too large."""
    import h5py

    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise LikenessError(f"{path}: {name} is in another file; write it into this one")
    data = file[name]
    if not isinstance(data, h5py.Dataset):
        raise LikenessError(f"{path}: {name} is a group; a data set is needed")
    creation = data.id.get_create_plist()
    filters = {creation.get_filter(i)[0] for i in range(creation.get_nfilters())}
    if data.external or data.is_virtual or not filters <= _OWN_FILTERS:
        raise LikenessError(
            f"{path}: {name} is kept in other files or by plug-ins (filters {sorted(filters)}); "
            "write it into the file, plain or with gzip"
        )
    _refuse_size(path, math.prod(data.shape) * data.dtype.itemsize, limit)
    return data


READERS: dict[str, Callable[[Path, int], Read]] = {".parquet": _read_parquet, ".h5": _read_h5}
WRITERS: dict[str, Callable[[Path, Embeddings, str], None]] = {
    ".parquet": _write_parquet,
    ".h5": _write_h5,
}
