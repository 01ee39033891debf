"""Columns of Parquet files, read by pyarrow within bounds of their size.

pyarrow is imported when it is used, because it takes a tenth of a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError, first_line
from eval.formats.files import EXPANSION, refuse_device
from eval.types import Bools, quoted

_FREE_EXPANSION = 1 << 30  # bytes that a file of any size may take in memory
_ROW_BYTES = 17  # of a trial with a label and a score
MAX_COLUMNS = 1_000  # of text and data frames, too
_READABLE = (
    r"(large_)?string(_view)?|dictionary<values=(large_)?string, indices=u?int\d+, ordered=[01]>"
    r"|u?int\d+|halffloat|float|double|bool|null"
)


class Values(NamedTuple):
    """The P values of a column.

    Attributes:
        values: (P,) numbers, or the number of each text among `texts`.
        texts: The distinct texts; None for a column of numbers.
        missing: (P,) whether there is no value; the one in `values` is of no meaning.
    """

    values: NDArray[Any]
    texts: list[str] | None
    missing: Bools


def as_arrow(values: Sequence[str] | NDArray[Any]) -> Any:
    """Returns texts or numbers as an array of pyarrow, whose own `array` would import pandas.

    Example:
        >>> as_arrow(["a", "bc"]).to_pylist(), as_arrow(np.array([1, 2])).to_pylist()
        (['a', 'bc'], [1, 2])
    """
    import pyarrow

    if isinstance(values, np.ndarray):
        kind = pyarrow.from_numpy_dtype(values.dtype)
        buffers = [None, pyarrow.py_buffer(np.ascontiguousarray(values))]
        return pyarrow.Array.from_buffers(kind, len(values), buffers)
    encoded = [text.encode() for text in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded))]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(encoded), buffers)


def numbers(array: Any) -> NDArray[Any]:
    """The numbers or booleans (P,) of an array of pyarrow; what is null has any value.

    Its own `to_numpy` imports pandas, which takes longer than reading most lists.
    """
    kind, where = str(array.type), slice(array.offset, array.offset + len(array))
    if kind == "null":
        return np.full(len(array), np.nan)
    if kind == "bool":
        return _bits(array.buffers()[1], where)
    dtype = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(kind, kind)
    return np.frombuffer(array.buffers()[1] or b"", dtype)[where]


def missing_in(array: Any) -> Bools:
    """Which elements (P,) of an array of pyarrow are null."""
    if not array.null_count:
        return np.zeros(len(array), dtype=np.bool_)
    if str(array.type) == "null":
        return np.ones(len(array), dtype=np.bool_)
    return ~_bits(array.buffers()[0], slice(array.offset, array.offset + len(array)))


def _bits(buffer: Any, where: slice) -> Bools:
    bits = np.frombuffer(buffer or b"", np.uint8)[: -(-where.stop // 8)]
    return np.unpackbits(bits, count=where.stop, bitorder="little")[where].view(np.bool_)


def size_limit(path: Path) -> int:
    """Returns the bytes that the rows of a file may take in memory."""
    return max(_FREE_EXPANSION, EXPANSION * path.stat().st_size)


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Opens a .parquet file whose header cannot take any amount of memory.

    Args:
        path: The file.

    Yields:
        The pyarrow.parquet.ParquetFile.

    Raises:
        LikenessError: It is damaged or has too many columns. What pyarrow raises within the block
            becomes this too.
        OSError: It cannot be opened.
    """
    import pyarrow.parquet

    refuse_device(path)
    with path.open("rb") as handle:
        try:
            file = pyarrow.parquet.ParquetFile(
                handle,
                thrift_string_size_limit=1 << 25,
                thrift_container_size_limit=1 << 22,
                page_checksum_verification=True,
            )
            if len(file.schema_arrow) > MAX_COLUMNS:
                raise LikenessError(
                    f"{path}: it has {len(file.schema_arrow)} columns; at most {MAX_COLUMNS} are "
                    "read"
                )
            yield file
        except LikenessError:
            raise
        except Exception as error:  # pyarrow raises some ten kinds for what is wrong with a file
            raise LikenessError(
                f"{path}: not a Parquet file that can be read ({first_line(error)}); it is "
                "damaged, truncated or of another kind: write it again"
            ) from None


def column_types(file: Any) -> dict[str, str]:
    """Returns the type of each column by its name. Of columns of one name, the last one counts."""
    return {field.name: str(field.type) for field in file.schema_arrow}


def is_readable(kind: str) -> bool:
    """Returns whether a column of this type holds texts or numbers.

    Example:
        >>> is_readable("string"), is_readable("list<item: float>")
        (True, False)
    """
    return re.fullmatch(_READABLE, kind) is not None


def read_columns(path: Path, file: Any, names: Sequence[str], longest: int) -> dict[str, Values]:
    """Reads columns of texts or numbers.

    Args:
        path: The file, for messages.
        file: What `opened` gave for it.
        names: The columns.
        longest: The most bytes that a text may have.

    Returns:
        The values of each column.

    Raises:
        LikenessError: They would take too much memory, or a text is too long.
    """
    import pyarrow.parquet

    types, metadata, limit = column_types(file), file.metadata, size_limit(path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    needed = max(metadata.num_rows * _ROW_BYTES, sum(group.total_byte_size for group in groups))
    if needed > limit:
        raise LikenessError(f"{path}: it would take {needed} bytes, but at most {limit} are read")
    # A text that is repeated is kept once.
    texts = [name for name in names if "string" in types[name]]
    file = pyarrow.parquet.ParquetFile(
        path, read_dictionary=texts, metadata=metadata, page_checksum_verification=True
    )
    try:
        table = file.read(columns=list(names), use_threads=False)
    finally:
        file.close()
    columns = {}
    for name in names:
        column = table.column(name)
        is_text = name in texts
        if is_text:
            column = column.unify_dictionaries()
        array = column.combine_chunks()
        missing = missing_in(array)
        if not is_text:
            columns[name] = Values(numbers(array), None, missing)
            continue
        offset_type = np.int64 if "large" in str(array.dictionary.type) else np.int32
        offsets = np.frombuffer(array.dictionary.buffers()[1] or b"", offset_type)
        largest = int(np.diff(offsets[: len(array.dictionary) + 1]).max(initial=0))
        if largest > longest:
            raise LikenessError(
                f"{path}: a cell of the column {quoted(name)} has {largest} bytes; at most "
                f"{longest} are read: is this the right file?"
            )
        known = array.dictionary.to_pylist()
        columns[name] = Values(np.where(missing, 0, numbers(array.indices)), known, missing)
    return columns
