"""Embeddings from elsewhere: arrays of numpy, Parquet, and tables of text.

A table has the vectors in one column of lists, which may be written as text, or a column for each
dimension. Columns and arrays are known by their names, by what they hold, or by what the user says
of them: see `column_names.columns_of_embeddings`.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats import npz, parquet, tables
from likeness.eval.formats.column_names import (
    EMBEDDINGS,
    by_number,
    choose,
    columns_of_embeddings,
    dimensions,
    role_of,
)
from likeness.eval.formats.files import size_limit, text_lines
from likeness.eval.option import if_option
from likeness.eval.types import quoted

# The ids (N,), the matrix (N, D) of numbers, and the meta as JSON text.
Read = tuple[Sequence[str], NDArray[Any], str]

KEY = b"likeness"  # the key of the meta in the schema's metadata of a .parquet
_ROWS = 1 << 14  # of a .parquet, read at a time
_ID_BYTES = 64  # of a short text in memory
_NUMBER = r"(u?int\d+|halffloat|float|double)"
_LIST = rf"(large_list|list|fixed_size_list)<\w+: {_NUMBER}( not null)?>(\[\d+\])?"
_IDS_AND_VECTORS = {"id": (1, "USiu"), "vector": (2, "fiu")}  # their dims, and kinds of values


def read_arrays(path: Path, stated: Mapping[str, str]) -> Read:
    """Reads an .npz, of one array for all vectors or one for each id; or an .npy.

    The ids of an .npy, and those that an .npz lacks, are lines of a list beside it.

    Args:
        path: The file.
        stated: Role -> array, where the user names it; of an .npy the file of the ids.
    """
    headers = npz.headers(path)
    shapes = {of.shape for of in headers.values()}
    if path.suffix.lower() == ".npy":
        names = {"vector": ""}
    elif not stated and len(shapes) == 1 and all(_is(of, 1, "f") for of in headers.values()):
        vectors = npz.read(path, list(headers))
        return tuple(vectors), np.stack(list(vectors.values())), "{}"
    else:
        by_type = {
            "id": [name for name, of in headers.items() if _is(of, 1, "US")],
            "vector": [name for name, of in headers.items() if _is(of, 2, "fiu")],
        }
        has_list = "id" not in stated and path.with_suffix(".txt").is_file()
        needed = ("vector",) if has_list else ("id", "vector")
        names = columns_of_embeddings(list(headers), stated, str(path), by_type, needed)
    for role, name in names.items():
        of = headers[name]
        if not (_is(of, *_IDS_AND_VECTORS[role]) or of.dtype.hasobject):
            what = f"array {name!r}" if name else "array"
            shape = f"its {what} is {of.dtype} {of.shape}"
            raise LikenessError(f"{path}: {shape}; give ids (N,) and vectors of numbers (N, D)")
    rows = max(math.prod(headers[name].shape[:1]) for name in names.values())
    _refuse_size(path, rows, math.prod(headers[names["vector"]].shape))
    is_ours = "meta" in headers and _is(headers["meta"], 0, "U")
    arrays = npz.read(path, names.values(), optional=["meta"] if is_ours else [])
    matrix, meta = arrays[names["vector"]], str(arrays.get("meta", "{}"))
    if "id" in names:
        return _texts(arrays[names["id"]]), matrix, meta
    return _listed_ids(path, stated, len(matrix)), matrix, meta


def read_vectors(path: Path) -> NDArray[Any]:
    """Reads the vectors (N, D) of an .npy, or its one vector (D,) as (1, D), without their ids."""
    of = npz.headers(path)[""]
    if not (of.dtype.hasobject or _is(of, 1, "fiu") or _is(of, 2, "fiu")):
        shape = f"{of.dtype} {of.shape}"
        raise LikenessError(f"{path}: its array is {shape}; write vectors (N, D), or one (D,)")
    return np.atleast_2d(npz.read(path, [""])[""])


def _refuse_size(path: Path, rows: int, numbers: int) -> None:
    """Refuses ids and vectors that would take too much memory for the size of their file."""
    size, limit = _ID_BYTES * rows + 4 * numbers, size_limit(path.stat().st_size)
    if size > limit:
        problem = f"its embeddings would take {size} bytes, over the limit of {limit}"
        raise LikenessError(f"{path} is damaged: {problem}; write it again")


def _is(of: npz.Header, dims: int, kinds: str) -> bool:
    return len(of.shape) == dims and of.dtype.kind in kinds


def _texts(ids: NDArray[Any]) -> list[str]:
    """The ids of an array of texts, bytes in UTF-8 or integers."""
    values = ids.tolist()
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _listed_ids(path: Path, stated: Mapping[str, str], num: int) -> list[str]:
    """The ids of a file of vectors, which stand in another one: one a line, or in an .npy."""
    named = Path(stated.get("id", ""))  # without an ending, a column of the other side's file
    listed = named if named.suffix else path.with_suffix(".txt")
    if not listed.is_file():
        remedy = if_option(", or name another, as in --columns id=FILE")
        raise LikenessError(f"{path} has no ids; write one a line into {listed}{remedy}")
    if listed.suffix.lower() == ".npy":
        return _texts(npz.read(listed, [""])[""].ravel()[: num + 1])
    ids = [line.partition("\t")[0] for _, line in islice(text_lines(listed), num + 2)]
    is_headed = len(ids) == num + 1 and role_of(ids[0], EMBEDDINGS) == "id"
    return ids[1:] if is_headed else ids


def read_parquet(path: Path, stated: Mapping[str, str]) -> Read:
    """Reads a .parquet file.

    Args:
        path: The file.
        stated: Role -> column, where the user names it.
    """
    with parquet.open_parquet(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        types = parquet.column_types(file)
        names, kinds = list(types), list(types.values())
        of_numbers = [i for i, kind in enumerate(kinds) if re.fullmatch(_NUMBER, kind)]
        columns = dimensions(names, [] if by_number(stated) else of_numbers)
        by_type = {
            "id": [name for name in columns if "string" in types.get(name, "")],
            "vector": [
                name
                for name, places in columns.items()
                if len(places) > 1 or re.fullmatch(_LIST, types[name])
            ],
        }
        chosen = columns_of_embeddings(list(columns), stated, str(path), by_type)
        vectors = [names[place] for place in columns[chosen["vector"]]]
        kind = types[vectors[0]]
        if not re.fullmatch(rf"{_LIST}|{_NUMBER}", kind):
            name = quoted(vectors[0])
            raise LikenessError(f"{path}: {name} holds {kind}; name a column of lists of numbers")
        _refuse_size(path, rows, _num_values(file.metadata, vectors))
        (column,) = parquet.read_columns(path, file, [chosen["id"]])
        assert isinstance(column, parquet.Column)
        ids, dim = column.texts(), getattr(schema.field(vectors[0]).type, "list_size", 0)
        if not dim:
            first = next(file.iter_batches(1, columns=vectors), None)
            dim = 0 if first is None else _rows(path, ids, first.columns).shape[1]
            _refuse_size(path, rows, rows * dim)
        matrix, start = np.zeros((rows, dim), np.float32), 0
        for batch in file.iter_batches(_ROWS, columns=vectors, use_threads=False):
            end = start + len(batch)
            part = _rows(path, ids[start:end], list(map(batch.column, vectors)), dim)
            with np.errstate(over="ignore"):  # rows that overflow are refused later
                matrix[start:end] = part
            start = end
        return ids, matrix, (schema.metadata or {}).get(KEY, b"{}").decode()


def _num_values(metadata: Any, columns: Sequence[str]) -> int:
    """How many values the columns of a .parquet have; one of lists has several a row."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
    names = tuple(f"{name}." for name in columns)
    paths = ((f"{chunk.path_in_schema}.", chunk.num_values) for chunk in chunks)
    return sum(num for path, num in paths if path.startswith(names))


def read_text(path: Path, stated: Mapping[str, str]) -> Read:
    """Reads a table of text, with a header or none.

    Args:
        path: The file.
        stated: Role -> column, where the user names it.
    """

    def shape_of(sample: list[str]) -> tables.Shape:
        mark = tables.separator_of(sample[0])
        first, second = (tables.split(line, mark) for line in (sample * 2)[:2])
        numeric = [tables.is_number(field) or field.startswith("[") for field in first]
        numbers = [field for field, is_number in zip(first, numeric, strict=True) if is_number]
        counts = [[str(start + i) for i in range(len(numbers))] for start in (0, 1)]
        header = len(numbers) < max(1, len(first) - 1) or numbers in counts
        if by_number(stated):
            places = choose(first, stated, str(path), EMBEDDINGS, ("id",))
            own, vector = places["id"], list(range(places.get("vector", 0), len(first)))
            header = not all(numeric[place] for place in vector if place != own)
        elif header:
            is_filled = len(first) == len(second) and len(sample) > 1
            of_numbers = [i for i, field in enumerate(second) if tables.is_number(field)]
            columns = dimensions(first, of_numbers if is_filled else range(len(first)))
            lists = [name for name, field in zip(first, second, strict=False) if field[:1] == "["]
            lists += [name for name, places in columns.items() if len(places) > 1]
            by_type = {"id": [name for name in columns if name not in lists], "vector": lists}
            chosen = columns_of_embeddings(list(columns), stated, str(path), by_type)
            (own,), vector = columns[chosen["id"]], columns[chosen["vector"]]
        else:
            own = numeric.index(False) if False in numeric else 0
            vector = list(range(len(first)))
        places = {"id": own} | {str(place): place for place in vector if place != own}
        if len(places) < 2:
            raise LikenessError(f"{path}: no column beside the ids holds vectors; name or write it")
        return tables.Shape(mark, len(first), places, header)

    ids: list[str] = []
    parts: list[NDArray[np.float32]] = []
    for _, (names, *arrays) in tables.text_columns(path, shape_of):
        listed = names.to_pylist()
        parts.append(_rows(path, listed, arrays, parts[0].shape[1] if parts else 0))
        ids += listed
        _refuse_size(path, len(ids), len(ids) * parts[0].shape[1])
    return ids, np.concatenate(parts), "{}"


def _rows(path: Path, ids: Sequence[str], arrays: Sequence[Any], dim: int = 0) -> NDArray[Any]:
    """The vectors (n, D) of n rows; what is no number is NaN.

    Args:
        path: The file, for messages.
        ids: Of the n rows.
        arrays: Arrays of pyarrow: one of lists, or of texts that write them, or one of numbers or
            their texts for each dimension.
        dim: The D of the rows before; 0 for that of the first of these.
    """
    from pyarrow import compute

    kind = str(arrays[0].type)
    if len(arrays) > 1 or not ("string" in kind or "list" in kind):
        return np.stack([_numbers(array) for array in arrays], axis=1)
    if "string" in kind:
        # np.float64(0.5), as numpy's lists write their numbers, is 0.5
        texts = [re.sub(r"[a-z_][\w.]*\(", " ", text) for text in arrays[0].to_pylist()]
        rows = [re.findall(r"[^\s,;()\[\]]+", text) for text in texts]
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        values = tables.floats(parquet.as_arrow(list(chain(*rows))))
    else:
        lengths = compute.list_value_length(arrays[0]).cast("int64")
        sizes, values = parquet.numbers(lengths, missing=-1), _numbers(arrays[0].flatten())
    dim = dim or max(int(sizes[0]), 0)
    if (wrong := np.flatnonzero(sizes != dim)).size:
        row = int(wrong[0])
        problem = f"{quoted(ids[row])} has {max(int(sizes[row]), 0)} numbers, not {dim}"
        raise LikenessError(f"{path}: {problem}; embed it again")
    return values.reshape(len(sizes), dim)


def _numbers(array: Any) -> NDArray[Any]:
    """The numbers (n,) of an array of pyarrow, or of its texts; NaN for what is none."""
    kind = str(array.type)
    if "string" in kind:
        return tables.floats(array)
    values = array if kind in ("halffloat", "float", "double") else array.cast("float64")
    return parquet.numbers(values, missing=np.nan)
