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
    the schema's metadata (tables.py)
.h5
    data sets ids, matrix, norms and meta, as in .npz (tables.py)

HDF5 needs h5py: pip install 'likeness[formats]'.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import kaldi, npz, tables
from eval.formats.files import atomic_path, refuse_device
from eval.progress import step
from eval.types import Embeddings, name_first, nfc, quoted

# A compressed file may expand to EXPANSION times its size, or to 1 GiB if that is more.
EXPANSION = 100
FREE_EXPANSION = 1 << 30

_WRITTEN = (".npz", ".ark", ".parquet", ".h5")
_READ = (*_WRITTEN[:2], ".scp", *_WRITTEN[2:])
# For each format a pattern of the ids that it cannot give back, and what is wrong with them.
_REFUSED_IDS = {
    ".npz": (r"\0\Z", "end in a NUL character, which numpy strips"),
    ".ark": (r"^$|[\s\ud800-\udfff]", "are empty or hold blanks, which Kaldi files cannot hold"),
    ".parquet": (r"[\ud800-\udfff]", "are no Unicode text, which Parquet needs"),
    ".h5": (r"[\0\ud800-\udfff]", "hold NUL characters or are no Unicode text, which HDF5 needs"),
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
            is a pipe or a device. It contains pickled objects, a .scp contains commands, or a .h5
            contains links to other files. Ids are repeated, or numbers are NaN. The embeddings take
            more than 1 GiB that is also over 100 times the size of the file. A package is missing;
            the message names the extra to install.
        FileNotFoundError: There is no such file.
    """
    path = Path(path)
    suffix, stated = _suffix(path, _READ), path
    refuse_device(path)
    if suffix == ".npz":
        ids, matrix, meta = _read_npz(path, _limit(path.stat().st_size))
    elif suffix in (".ark", ".scp"):
        ids, matrix, meta = kaldi.read(path, _limit)
        stated = kaldi.meta_path(path)
    else:
        ids, matrix, meta = tables.READERS[suffix](path, _limit(path.stat().st_size))
    try:
        return Embeddings(tuple(map(nfc, ids)), matrix, _meta(stated, meta))
    except ValueError as error:
        raise LikenessError(
            str(error) if str(stated) in str(error) else f"{path}: {error}"
        ) from None


@step("writing embeddings")
def write(path: str | Path, embeddings: Embeddings) -> None:
    """Writes embeddings in the format of the path's suffix, whole or not at all.

    What was there before stays until everything is written.

    Args:
        path: The file.
        embeddings: N ids, the matrix (N, D) and the meta.

    Raises:
        LikenessError: The suffix is another one, or the format cannot hold some of the ids. A
            package is missing; the message names the extra to install.

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
        tables.WRITERS[suffix](path, embeddings, meta)


def check_suffix(path: str | Path) -> None:
    """Refuses a path that `write` could not write to because of its suffix.

    Call it before long work, so that the work is not lost.

    Args:
        path: The file that is to be written.

    Raises:
        LikenessError: There is no format with this suffix. A package for the format is missing.
    """
    path = Path(path)
    _suffix(path, _WRITTEN)
    tables.check_installed(path)


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
            f"{path}: {len(bad)} ids {what} ({name_first(bad)}); rename them, or write to another "
            "format"
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


def _limit(size: int) -> int:
    """Bytes that the embeddings of files of `size` bytes may take in memory."""
    return max(FREE_EXPANSION, EXPANSION * size)


def _read_npz(path: Path, limit: int) -> tuple[tuple[str, ...], NDArray[Any], str]:
    """The ids, the matrix and the JSON text of the meta of an .npz file."""
    with npz.opened(path, limit) as archive:
        headers = archive.headers
        _check_headers(path, headers)
        matrix = archive.read("matrix")
        meta = str(archive.read("meta")[()]) if "meta" in headers else "{}"
        return tuple(archive.read("ids").tolist()), matrix, meta


def _check_headers(path: Path, headers: Mapping[str, npz.Header]) -> None:
    """Raises ValueError unless the arrays are those of embeddings."""
    present = ", ".join(f"{name} {dtype} {shape}" for name, (dtype, shape) in headers.items())
    required = {"ids": ("U", 1), "matrix": ("f", 2)}
    if "meta" in headers:
        required["meta"] = ("U", 0)
    for name, (kind, ndim) in required.items():
        header = headers.get(name)
        if header is None or header.dtype.kind != kind or len(header.shape) != ndim:
            raise LikenessError(
                f"{path}: not an embeddings file: expected ids (N,) text, matrix (N, D) floats "
                f"and meta, a JSON text; arrays found: {present or 'none'}"
            )


def _meta(path: Path, text: str) -> dict[str, str]:
    """The meta that a JSON text states. `path` is the file that states it."""
    try:
        meta = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LikenessError(f"{path}: meta is not JSON ({error})") from None
    if not isinstance(meta, Mapping) or not all(isinstance(value, str) for value in meta.values()):
        raise LikenessError(
            f'{path}: meta must be a JSON object of texts, such as {{"similarity": "cosine"}}, but '
            f"is {quoted(text)}"
        )
    return dict(meta)
