"""Reading and writing of embedding files and tables.

The raw float32 matrix comes back bit for bit, and nothing in a file is executed. These are the
formats:

.npz
    arrays ids (N,) of text, matrix (N, D) float32, norms (N,) float32 and meta, a JSON object of
    texts (model digest, similarity, modality)
.ark
    Kaldi's binary vectors; NAME.scp says where each of them is, and NAME.meta.json holds the meta,
    for which Kaldi has no place (_kaldi.py)
.parquet
    columns id, vector (lists of D float32) and norm; the meta is JSON under the key "likeness" of
    the schema's metadata

Those of other programs have other columns and arrays, and may be .npy, .csv and .tsv files too
(_embedding_files.py).
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats import _embedding_files, _kaldi, parquet
from likeness.eval.formats.column_names import EMBEDDINGS, ColumnNames, parse_columns
from likeness.eval.formats.files import File, refuse_device
from likeness.eval.progress import step
from likeness.eval.types import (
    Floats,
    Floats32,
    counted,
    item_id,
    item_keys,
    name_first,
    norms_of,
    quoted,
    unit_rows,
)
from likeness.eval.writing import atomic_path

_WRITTEN = (".npz", ".ark", ".parquet")
TABLES = (".parquet", ".csv", ".tsv")  # which may hold something else than embeddings
_READERS: Mapping[str, Callable[[Path, Mapping[str, str]], _embedding_files.Read]] = {
    ".npz": _embedding_files.read_arrays,
    ".npy": _embedding_files.read_arrays,
    ".parquet": _embedding_files.read_parquet,
    ".csv": _embedding_files.read_text,
    ".tsv": _embedding_files.read_text,
    ".ark": lambda path, _: _kaldi.read(path),
    ".scp": lambda path, _: _kaldi.read(path),
}
SUFFIXES = tuple(_READERS)
# For each format a pattern of the ids that it cannot give back, and what is wrong with them.
_REFUSED_IDS = {
    ".npz": (r"\0\Z", "end in a NUL character, which numpy strips"),
    ".ark": (r"^$|[\s\ud800-\udfff]", "are empty or hold blanks, which Kaldi files cannot hold"),
    ".parquet": (r"^\Z|[\ud800-\udfff]", "are empty or no Unicode text, which Parquet needs"),
}


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Raw embeddings of N items: the norm carries quality and is kept.

    Attributes:
        ids: N distinct names.
        matrix: (N, D) float32, finite.
        meta: texts that travel with a file: the model's digest, its modality and similarity.

    Raises:
        LikenessError: a wrong shape, repeated ids, or rows that are not finite.

    Example:
        >>> embeddings = Embeddings(("ann", "bob"), [[3, 4], [0, 2]])
        >>> len(embeddings), embeddings.norms.tolist()
        (2, [5.0, 2.0])
    """

    ids: tuple[str, ...]
    matrix: Floats32
    meta: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):  # rows that overflow are refused below
            matrix = np.ascontiguousarray(self.matrix, dtype=np.float32)
        if matrix.ndim != 2 or matrix.shape[0] != len(self.ids) or matrix.shape[1] < 1:
            needed = f"a matrix of {len(self.ids)} rows, one per id"
            raise LikenessError(f"embeddings: shape {matrix.shape}; give {needed}")
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))
        if len(self._row) != len(self.ids):
            repeated = Counter(self.ids).most_common(1)[0][0]
            raise LikenessError(f"embeddings: {quoted(repeated)} is there twice; rename one item")
        # blocks stay in the cache, and need no memory of the matrix's size
        step = max(1, (1 << 20) // matrix.shape[1])
        for start in range(0, len(matrix), step):
            is_finite = np.isfinite(matrix[start : start + step]).all(axis=1)
            if not is_finite.all():
                name = quoted(self.ids[start + int(np.argmin(is_finite))])
                raise LikenessError(f"embeddings: {name} is not finite; embed it again")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the embeddings to a file, whole or not at all.

        Args:
            path: where to write. The ending chooses the format: .npz, .ark (with .scp) or
                .parquet.

        Raises:
            LikenessError: another ending, or ids that the format cannot hold.

        Example:
            >>> Embeddings(("ann",), [[3, 4]]).save("ann.npz")
            >>> read_embeddings("ann.npz").matrix.tolist()
            [[3.0, 4.0]]
        """
        write_embeddings(path, self)

    def __repr__(self) -> str:
        meta = "".join(f", {key} {value[:16]}" for key, value in self.meta.items())
        norms = f", norms {self.norms.min():.4g} to {self.norms.max():.4g}" if self.ids else ""
        size = f"{counted(len(self), 'item')}, {counted(self.matrix.shape[1], 'dimension')}"
        return f"<Embeddings of {size}{norms}{meta}>"

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.ids)}

    @cached_property
    def _row_of_key(self) -> dict[str, int]:
        return {key: i for i, key in enumerate(item_keys(self.ids))}

    @cached_property
    def norms(self) -> Floats32:
        """(N,) Euclidean norms."""
        return norms_of(self.matrix).astype(np.float32)

    def unit(self) -> Floats32:
        """(N, D) rows of length 1, whatever their norm; a zero row stays zero."""
        norms: Floats32 | Floats = self.norms
        # rounded to float32, such norms lose digits
        if norms.size and not (norms.min() > 1e-15 and norms.max() < 1e18):
            norms = norms_of(self.matrix)
        return unit_rows(self.matrix, norms)

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Row numbers (len(ids),) of `ids`, of which an item may be spelled in another way.

        LikenessError names the first without an embedding.
        """
        asked = list(ids)
        rows = np.array([self._row.get(name, -1) for name in asked], dtype=np.int64)
        if (other := np.flatnonzero(rows < 0)).size:
            keys = item_keys([asked[i] for i in other.tolist()])
            rows[other] = [self._row_of_key.get(key, -1) for key in keys]
        if (rows < 0).any():
            raise LikenessError(f"{asked[int(np.argmin(rows))]!r} has no embedding")
        return rows


class Labelled(NamedTuple):
    """Embeddings whose subjects or classes are known.

    Attributes:
        embeddings: Of N items or templates.
        labels: (N,) text or integers.
    """

    embeddings: Embeddings
    labels: Sequence[Any] | NDArray[Any]


@step("reading embeddings")
def read_embeddings(path: str | PathLike[str], *, columns: ColumnNames = "") -> Embeddings:
    """Reads the embeddings of a file in one of the formats above.

    Matrices of other numbers become float32.

    Args:
        path: The file.
        columns: Which column or array of embeddings from elsewhere is which, as in
            "id=utt,vector=xvec". "vector=dim" stands for columns dim_0, dim_1 and so on, and the
            id of an .npy is the file of its ids (default: NAME.txt).

    Returns:
        N ids, the matrix (N, D) float32 and the meta.

    Raises:
        LikenessError: The suffix is another one. The file is damaged, truncated or foreign, or it
            is a pipe or a device. Nothing says which columns have the ids and the vectors. It
            contains pickled objects, or a .scp contains commands. Ids are repeated, or numbers are
            NaN. The embeddings, with 64 bytes an id, take more than 1 GiB that is also over 100
            times the size of the file.
        FileNotFoundError: There is no such file.
    """
    path = Path(path)
    suffix, stated = _suffix(path, SUFFIXES), parse_columns(columns, EMBEDDINGS)
    refuse_device(path)
    try:
        ids, matrix, meta = _READERS[suffix](path, stated)
        if not all(ids):
            raise LikenessError("an id is empty; write it again with an id for each vector")
        stated = json.loads(meta)
        if not isinstance(stated, dict) or not all(isinstance(v, str) for v in stated.values()):
            raise LikenessError(f"its meta {quoted(meta)} is no JSON object of texts; correct it")
        return Embeddings(tuple(map(item_id, ids)), matrix, stated)
    except (ValueError, RecursionError) as error:
        text = str(error)
        raise LikenessError(text if str(path) in text else f"{path}: {text}") from None


def embeddings_of(embeddings: File | Embeddings, columns: ColumnNames = "") -> Embeddings:
    """The embeddings, read as `read_embeddings` does if they are in a file."""
    if isinstance(embeddings, Embeddings):
        return embeddings
    return read_embeddings(embeddings, columns=columns)


def vectors_of(vectors: File | Embeddings, columns: ColumnNames = "") -> Embeddings:
    """The embeddings, as `embeddings_of` gives them, where nobody asks for their ids.

    An .npy needs no ids then, and may be one vector (D,), as WeSpeaker's mean_vec.npy is. Of the
    columns, a file with the ids of another .npy does not count.
    """
    if isinstance(vectors, Embeddings) or Path(vectors).suffix.lower() != ".npy":
        stated = parse_columns(columns, EMBEDDINGS).items()
        own = {role: name for role, name in stated if not (role == "id" and Path(name).suffix)}
        return embeddings_of(vectors, own)
    refuse_device(Path(vectors))
    matrix = _embedding_files.read_vectors(Path(vectors))
    return Embeddings(tuple(map(str, range(len(matrix)))), matrix)


@step("writing embeddings")
def write_embeddings(path: str | PathLike[str], embeddings: Embeddings) -> None:
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
        ...     write_embeddings(f"{folder}/test.npz", embeddings)
        ...     again = read_embeddings(f"{folder}/test.npz")
        >>> again.ids, again.matrix.tolist(), dict(again.meta)
        (('a', 'b'), [[1.0, 0.0], [0.0, 1.0]], {'similarity': 'cosine'})
    """
    path = Path(path)
    suffix = _suffix(path, _WRITTEN)
    check_ids(path, embeddings.ids)
    meta = json.dumps(dict(embeddings.meta))
    if suffix == ".npz":
        with atomic_path(path) as temporary, temporary.open("wb") as handle:
            ids = np.array(embeddings.ids, dtype=np.str_)
            texts: dict[str, Any] = {"ids": ids, "meta": np.array(meta)}
            np.savez(handle, matrix=embeddings.matrix, norms=embeddings.norms, **texts)
    elif suffix == ".ark":
        _kaldi.write(path, embeddings.ids, embeddings.matrix, meta)
    else:
        _write_parquet(path, embeddings, meta)


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
        raise LikenessError(f"{path}: ids {what} ({name_first(bad)}); write to another format")


def _suffix(path: Path, allowed: tuple[str, ...]) -> str:
    """The suffix of a path in lower case. Raises ValueError unless it is allowed."""
    suffix = path.suffix.lower()
    if suffix not in allowed:
        raise LikenessError(f"{path}: suffix {suffix!r} is none of {', '.join(allowed)}; use one")
    return suffix


def _write_parquet(path: Path, embeddings: Embeddings, meta: str) -> None:
    """Writes a .parquet file."""
    import pyarrow
    import pyarrow.parquet

    values, dim = parquet.as_arrow(embeddings.matrix.ravel()), embeddings.matrix.shape[1]
    columns = {
        "id": pyarrow.array(embeddings.ids, pyarrow.string()),
        "vector": pyarrow.FixedSizeListArray.from_arrays(values, dim),
        "norm": parquet.as_arrow(embeddings.norms),
    }
    table = pyarrow.table(columns).replace_schema_metadata({_embedding_files.KEY: meta.encode()})
    # Compression and dictionaries would gain next to nothing for float32 vectors.
    plain = {"compression": "none", "use_dictionary": False, "row_group_size": 1 << 16}
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(table, temporary, write_page_checksum=True, **plain)
