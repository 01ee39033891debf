"""Columns of Parquet files, read by pyarrow within bounds of their size.

pyarrow is imported when it is used, because it takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import MAX_LINE, refuse_device, size_limit
from likeness.eval.types import Floats, Ints, quoted

_ROW_BYTES = 17  # of a trial with a label and a score
_FRACTIONS = ("halffloat", "float", "double")


class Column(NamedTuple):
    """The P texts of one column.

    Attributes:
        keys: The distinct texts.
        codes: (P,) the number of each text among the keys.
    """

    keys: list[str]
    codes: Ints

    @classmethod
    def of(cls, texts: Sequence[str]) -> Column:
        """The column of these texts; keys are in the order of their first occurrence.

        Example:
            >>> Column.of(["b", "a", "b"])
            Column(keys=['b', 'a'], codes=array([0, 1, 0], dtype=int32))
        """
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        codes = np.fromiter(map(number.__getitem__, texts), np.int32, len(texts))
        return cls(list(number), codes)

    def texts(self) -> list[str]:
        """The text of each row."""
        return list(map(self.keys.__getitem__, self.codes.tolist()))


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
    joined, num = "".join(values), len(values)
    sizes = map(len, values if joined.isascii() else map(str.encode, values))
    ends = np.cumsum(np.fromiter(chain([0], sizes), np.int64, num + 1))
    buffers = [None, pyarrow.py_buffer(ends), pyarrow.py_buffer(joined.encode())]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), num, buffers)


def numbers(array: Any, missing: float = 0) -> NDArray[Any]:
    """Returns the numbers (P,) of an array of pyarrow.

    Its own `to_numpy` imports pandas, which takes longer than reading most lists.

    Args:
        array: The array.
        missing: What stands for a value that is null.

    Example:
        >>> numbers(as_arrow(np.array([3, 1])))
        array([3, 1])
    """
    if array.null_count:
        array = array.fill_null(as_arrow(np.array([missing])).cast(array.type)[0])
    return np.from_dlpack(array)


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Opens a .parquet file whose header cannot take any amount of memory.

    Args:
        path: The file.

    Yields:
        The pyarrow.parquet.ParquetFile.

    Raises:
        LikenessError: It is damaged. What pyarrow raises within the block becomes this too.
        OSError: It cannot be opened.
    """
    import pyarrow.parquet

    refuse_device(path)
    with path.open("rb") as handle:
        try:
            limits = {"thrift_string_size_limit": 1 << 25, "thrift_container_size_limit": 1 << 22}
            yield pyarrow.parquet.ParquetFile(handle, page_checksum_verification=True, **limits)
        except LikenessError:
            raise
        except Exception as error:  # pyarrow raises some ten kinds for what is wrong with a file
            problem = f"it is damaged, or no Parquet file ({first_line(error)})"
            raise LikenessError(f"{path}: {problem}; write it again") from None


def column_types(file: Any) -> dict[str, str]:
    """Returns the type of each column by its name. Of columns of one name, the last one counts."""
    return {field.name: str(field.type) for field in file.schema_arrow}


def read_columns(
    path: Path, file: Any, names: Sequence[str], numeric: Sequence[str] = ()
) -> list[Column | Floats]:
    """Reads columns of texts or numbers.

    Args:
        path: The file.
        file: What `open_parquet` gave for it.
        names: The columns.
        numeric: Those that stay numbers, if they are decimal fractions and all there.

    Returns:
        For each column its texts, which are empty where there is no value, or its numbers.

    Raises:
        LikenessError: A column holds something else, or they would take too much memory.
    """
    import pyarrow.parquet

    types, metadata, limit = column_types(file), file.metadata, size_limit(path.stat().st_size)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    needed = max(metadata.num_rows * _ROW_BYTES, sum(group.total_byte_size for group in groups))
    if needed > limit:
        raise LikenessError(f"{path}: it would take {needed} bytes, but at most {limit} are read")
    texts = [name for name in names if "string" in types[name]]
    how = {"read_dictionary": texts, "page_checksum_verification": True}  # each is kept once
    with pyarrow.parquet.ParquetFile(path, metadata=metadata, **how) as again:
        return [_read_column(path, again, name, name in numeric) for name in names]


def _read_column(path: Path, file: Any, name: str, is_numeric: bool) -> Column | Floats:
    """The texts of a column, or its numbers if it is numeric and they are all there."""
    column = file.read(columns=[name], use_threads=False).column(name)
    kind = str(column.type)
    if is_numeric and kind in _FRACTIONS and not column.null_count:
        return numbers(column.combine_chunks()).astype(np.float64, copy=False)
    if not kind.startswith("dictionary"):
        column = column.dictionary_encode()
    array = column.unify_dictionaries().combine_chunks()
    keys = array.dictionary.to_pylist()
    if not all(key is None or isinstance(key, str | int | float) for key in keys):
        raise LikenessError(f"{path}: {quoted(name)} holds {kind}; write texts or numbers")
    texts = [key if isinstance(key, str) else text_of(key) for key in keys]
    if max(map(len, texts), default=0) > MAX_LINE:
        problem = f"a text in {quoted(name)} has over {MAX_LINE} characters"
        raise LikenessError(f"{path}: {problem}; shorten it")
    codes = numbers(array.indices.cast("int32"), missing=len(texts))
    return Column([*texts, ""] if array.null_count else texts, codes)


def text_of(value: object) -> str:
    """Returns the text of a value in memory; "" for None, NaN, and what pandas has for those.

    Example:
        >>> text_of(17.0), text_of(1.25), text_of(float("nan")), text_of(" ann ")
        ('17', '1.25', '', 'ann')
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, float | np.floating):
        number = float(value)
        if number != number:
            return ""
        # pandas makes floats of whole numbers where some are missing.
        return str(int(number)) if number.is_integer() else repr(number)
    return str(value).strip(" \t\r\n")
