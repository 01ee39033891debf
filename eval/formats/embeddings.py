"""Reading and writing of embedding files and tables.

The raw float32 matrix comes back bit for bit, and nothing in a file is executed. These are the
formats:

.npz
    arrays ids (N,) of text, matrix (N, D) float32, norms (N,) float32 and meta, a JSON object of
    texts (model digest, similarity, modality)
.ark
    Kaldi's binary vectors; NAME.scp says where each of them is, and NAME.meta.json holds the meta,
    for which Kaldi has no place (kaldi.py)
.parquet
    columns id, vector (lists of D float32) and norm; the meta is JSON under the key "likeness" of
    the schema's metadata
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats import kaldi, npz, parquet
from likeness.eval.formats.files import atomic_path, refuse_device, size_limit
from likeness.eval.progress import step
from likeness.eval.types import Embeddings, name_first, nfc, quoted

# The ids (N,), the matrix (N, D) of floats, and the meta as JSON text.
Read = tuple[tuple[str, ...], NDArray[Any], str]

_WRITTEN = (".npz", ".ark", ".parquet")
_READ = (*_WRITTEN, ".scp")
_KEY = b"likeness"  # the key of the meta in the schema's metadata of a .parquet
_ROWS = 1 << 14  # of a .parquet, read at a time
_FLOATS = r"(large_list|list|fixed_size_list)<\w+: (halffloat|float|double)( not null)?>(\[\d+\])?"
# For each format a pattern of the ids that it cannot give back, and what is wrong with them.
_REFUSED_IDS = {
    ".npz": (r"\0\Z", "end in a NUL character, which numpy strips"),
    ".ark": (r"^$|[\s\ud800-\udfff]", "are empty or hold blanks, which Kaldi files cannot hold"),
    ".parquet": (r"^\Z|[\ud800-\udfff]", "are empty or no Unicode text, which Parquet needs"),
}


@step("reading embeddings")
def read(path: str | Path) -> Embeddings:
    """Reads the embeddings of a file in one of the formats above.

    Matrices of float16 and float64 become float32.

    Args:
        path: The file.

    Returns:
        N ids, the matrix (N, D) float32 and the meta.

    Raises:
        LikenessError: The suffix is another one. The file is damaged, truncated or foreign, or it
            is a pipe or a device. It contains pickled objects, or a .scp contains commands. Ids
            are repeated, or numbers are NaN. The embeddings take more than 1 GiB that is also over
            100 times the size of the file.
        FileNotFoundError: There is no such file.
    """
    path = Path(path)
    suffix = _suffix(path, _READ)
    refuse_device(path)
    try:
        if suffix in (".ark", ".scp"):
            ids, matrix, meta = kaldi.read(path)
        else:
            ids, matrix, meta = (_read_npz if suffix == ".npz" else _read_parquet)(path)
        if not all(ids):
            raise LikenessError("an id is empty; write it again with an id for each vector")
        stated = json.loads(meta)
        if not isinstance(stated, dict) or not all(isinstance(v, str) for v in stated.values()):
            raise LikenessError(
                'its meta must be a JSON object of texts, such as {"similarity": "cosine"}, but is '
                f"{quoted(meta)}"
            )
        return Embeddings(tuple(map(nfc, ids)), matrix, stated)
    except (ValueError, RecursionError) as error:
        text = str(error)
        raise LikenessError(text if str(path) in text else f"{path}: {text}") from None


@step("writing embeddings")
def write(path: str | Path, embeddings: Embeddings) -> None:
    """Writes embeddings in the format of the path's suffix, whole or not at all.

    What was there before stays until everything is written.

    Args:
        path: The file.
        embeddings: N ids, the matrix (N, D) and the meta.

    Raises:
        LikenessError: The suffix is another one, or the format cannot hold some of the ids.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> matrix = np.eye(2, dtype=np.float32)
        >>> embeddings = Embeddings(("a", "b"), matrix, {"similarity": "cosine"})
        >>> with TemporaryDirectory() as folder:
        ...     write(f"{folder}/test.npz", embeddings)
        ...     again = read(f"{folder}/test.npz")
        >>> again.ids, again.matrix.tolist(), dict(again.meta)
        (('a', 'b'), [[1.0, 0.0], [0.0, 1.0]], {'similarity': 'cosine'})
    """
    path = Path(path)
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
        _write_parquet(path, embeddings, meta)


def check_suffix(path: str | Path) -> None:
    """Refuses a path that `write` could not write to because of its suffix.

    Call it before long work, so that the work is not lost.

    Args:
        path: The file that is to be written.

    Raises:
        LikenessError: There is no format with this suffix.
    """
    _suffix(Path(path), _WRITTEN)


def check_ids(path: str | Path, ids: Iterable[str]) -> None:
    """Refuses ids that the format of a path could not give back.

    Call it before long work, so that the work is not lost.

    Args:
        path: The file that is to be written; its suffix decides.
        ids: The ids of the embeddings to come.

    Raises:
        LikenessError: Some ids cannot be kept; the message counts them and names the first.
    """
    path = Path(path)
    pattern, what = _REFUSED_IDS[_suffix(path, _WRITTEN)]
    bad = [id for id in ids if re.search(pattern, id)]
    if bad:
        raise LikenessError(
            f"{path}: ids {what} ({name_first(bad)}); rename them, or write to another format"
        )


def _suffix(path: Path, allowed: tuple[str, ...]) -> str:
    """The suffix of a path in lower case. Raises ValueError unless it is allowed."""
    suffix = path.suffix.lower()
    if suffix not in allowed:
        raise LikenessError(
            f"{path}: embeddings with suffix {suffix!r} are not supported; allowed: "
            f"{', '.join(allowed)}"
        )
    return suffix


def _read_npz(path: Path) -> Read:
    """The ids, the matrix and the JSON text of the meta of an .npz file."""
    arrays = npz.read(path, ["ids", "matrix"], optional=["meta"])
    kinds = {"ids": ("U", 1), "matrix": ("f", 2), "meta": ("U", 0)}
    if any((array.dtype.kind, array.ndim) != kinds[name] for name, array in arrays.items()):
        shapes = ", ".join(f"{name} {array.dtype} {array.shape}" for name, array in arrays.items())
        raise LikenessError(
            f"{path}: not an embeddings file: expected ids (N,) text, matrix (N, D) floats and "
            f"meta, a JSON text, but found {shapes}"
        )
    return tuple(arrays["ids"].tolist()), arrays["matrix"], str(arrays.get("meta", "{}"))


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
            pyarrow.table(columns).replace_schema_metadata({_KEY: meta.encode()}),
            temporary,
            row_group_size=1 << 16,
            compression="none",
            use_dictionary=False,
            write_page_checksum=True,
        )


def _read_parquet(path: Path) -> Read:
    """Reads a .parquet file."""
    import pyarrow

    with parquet.opened(path) as file:
        types, schema, rows = parquet.column_types(file), file.schema_arrow, file.metadata.num_rows
        texts, floats = types.get("id", ""), types.get("vector", "")
        if not (texts.endswith("string") and re.fullmatch(_FLOATS, floats)):
            raise LikenessError(
                f"{path}: not an embeddings file: expected the columns id, text, and vector, lists "
                f"of floats; columns found: {quoted(', '.join(types))}"
            )
        kind = schema.field("vector").type
        dim = getattr(kind, "list_size", 0)
        if not dim:
            first = next(file.iter_batches(1, columns=["vector"]), None)
            dim = 0 if first is None else len(first.column(0).flatten())
        size, limit = 4 * rows * dim, size_limit(path.stat().st_size)
        if size > limit:
            raise LikenessError(
                f"{path}: its embeddings would take {size} bytes, but at most {limit} are read of "
                "a file of its size; it is damaged or hostile"
            )
        (names,) = parquet.read_columns(path, file, ["id"])
        assert isinstance(names, parquet.Column)
        matrix, start = np.zeros((rows, dim), np.float32), 0
        for batch in file.iter_batches(_ROWS, columns=["vector"], use_threads=False):
            # This raises an error for vectors of another number of dims.
            values = batch.column(0).cast(pyarrow.list_(kind.value_type, dim)).flatten()
            part = matrix[start : start + len(batch)]
            with np.errstate(over="ignore"):  # Embeddings refuses what is not finite
                part[:] = parquet.numbers(values, missing=np.nan).reshape(part.shape)
            start += len(batch)
        meta = (schema.metadata or {}).get(_KEY, b"{}").decode()
        return tuple(names.texts()), matrix, meta
