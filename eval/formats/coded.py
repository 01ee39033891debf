"""Lists of trials and scores as arrays: .npz and .parquet, a fifth of the text and far quicker.

.npz
    arrays enrol_ids and probe_ids, the distinct ids as text; enrol and probe (P,) int32, the number
    of each trial's id among them; target (P,) bool and score (P,) float64, each where there is one
.parquet
    columns enrol and probe, texts in a dictionary; label, bool; score, float64. Columns of other
    names are read if a header line of text could have them. Plain texts and whole numbers are read
    as ids too; booleans, 0 and 1, and the texts of a list as labels; all numbers as scores.

Parquet needs pyarrow: pip install 'likeness[formats]'. A file of others is parsed in a process of
its own, which hands back arrays and never one object for each row.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import npz, plain
from eval.formats.boundary import Answer, Limits, Process
from eval.formats.files import (
    EXPANSION,
    MAX_LINE,
    Column,
    LineNumbers,
    Table,
    atomic_path,
    in_nfc,
    refuse_device,
)
from eval.formats.tables import check_installed
from eval.types import Bools, Floats, Ints, Trials, first_line, name_first

SUFFIXES = (".npz", ".parquet")

_FREE_EXPANSION = 1 << 30  # bytes that a file of any size may take in memory
_SPARE = 1 << 28  # bytes of memory that the parser takes beside the arrays
Roles = Callable[[Sequence[str]], tuple[str, list[str]] | None]

_ROWS = 1 << 20  # read at a time
_ROWS_OF_GROUP = 1 << 22  # each row group of a .parquet repeats the ids
_ROW_BYTES = 17  # of a trial with a label and a score in memory
_MAX_COLUMNS = 1_000
_CAST = "cast it to "
_MAX_TYPE = 1_000  # characters of the names of columns and of their types
_TEXT = r"(large_)?string|dictionary<values=(large_)?string, indices=u?int\d+, ordered=[01]>"
_WHOLE = r"u?int\d+"
_FLOAT = r"halffloat|float|double"
_TYPES = {
    "e": f"{_TEXT}|{_WHOLE}",
    "p": f"{_TEXT}|{_WHOLE}",
    "l": f"{_TEXT}|{_WHOLE}|bool|{_FLOAT}",
    "s": f"{_FLOAT}|{_WHOLE}",
}
_ALLOWED = {
    "e": "string or int64",
    "p": "string or int64",
    "l": "bool, string or int64",
    "s": "double",
}
_ROWS_A_SECOND = 1e5  # of rows whose ids are all different, five times as many are read
_ARRAYS = {
    "enrol_ids": "U",
    "probe_ids": "U",
    "enrol": "iu",
    "probe": "iu",
    "target": "biu",
    "score": "fiu",
}
_NEEDED = ("enrol_ids", "probe_ids", "enrol", "probe")


def is_coded(path: str | Path) -> bool:
    """Returns whether the suffix of a path is that of one of these formats.

    Example:
        >>> is_coded("trials.npz"), is_coded("trials.txt")
        (True, False)
    """
    return Path(path).suffix.lower() in SUFFIXES


def check_written(path: str | Path) -> None:
    """Refuses a path that could not be written to, before the work is done.

    Raises:
        LikenessError: It is a .parquet file, and pyarrow is not installed. It is to be compressed
            by gzip, which is for text.
    """
    if Path(path).name.lower().endswith(tuple(f"{suffix}.gz" for suffix in SUFFIXES)):
        raise LikenessError(
            f"{path}: arrays are not compressed by gzip; leave out .gz, or write .txt.gz"
        )
    if is_coded(path):
        check_installed(Path(path), Path(path).suffix.lower())


def read_table(path: str | Path, roles: Roles) -> Table:
    """Reads the columns of a list of trials or scores.

    Args:
        path: A .npz or .parquet file.
        roles: Gives the layout (one letter for each column, see `eval.formats.trials`) that names
            of columns stand for, and those of them that are read; None where they do not.

    Returns:
        The table, whose layout is known. Its rows are counted from 1.

    Raises:
        LikenessError: The file is damaged or of another kind, or it has pickled objects; ids are
            missing; columns have no role, or several the same. The package pyarrow is missing.
        OSError: It cannot be read.
    """
    path = Path(path)
    refuse_device(path)
    limit = size_limit(path)
    if path.suffix.lower() == ".npz":
        layout, columns = _read_npz(path, limit)
    else:
        layout, columns = _read_parquet(path, limit, roles)
    size = columns[0].codes.size if isinstance(columns[0], Column) else columns[0].size
    if not size:
        raise LikenessError(f"{path}: it holds no trials; expected one row for each")
    rows = LineNumbers()
    rows.add_run(1, size)
    return Table(path, layout, columns, rows, "row")


def num_trials(path: str | Path) -> int:
    """Returns how many trials a file states, without reading them.

    Raises:
        LikenessError: As for `read_table`. The package pyarrow is missing.
        OSError: It cannot be read.
    """
    path = Path(path)
    refuse_device(path)
    if path.suffix.lower() == ".npz":
        with npz.opened(path, size_limit(path)) as archive:
            shape = archive.headers["enrol"].shape if "enrol" in archive.headers else ()
            return shape[0] if len(shape) == 1 else 0
    check_installed(path, ".parquet")
    with refused(path), Process(__name__, "pyarrow.parquet") as process:
        place = str(path.absolute())
        (_, size), _ = process.ask(parquet_columns, place, about=path, limits=limits(path))
        return int(size)


def size_limit(path: Path) -> int:
    """Returns the bytes that the rows of a file may take in memory."""
    return max(_FREE_EXPANSION, EXPANSION * path.stat().st_size)


def limits(path: Path, num_rows: int = 0) -> Limits:
    """Returns what the answers of a process that reads a file may cost.

    Ids that compress well make a small file of many rows. As many rows as memory holds count.
    """
    size, limit = path.stat().st_size, size_limit(path)
    seconds = 10.0 + size / 1e7 + min(num_rows, limit // _ROW_BYTES) / _ROWS_A_SECOND
    return Limits(seconds=seconds, memory=_SPARE + 3 * limit, answer=limit)


def write(path: Path, trials: Trials, values: Floats | None) -> None:
    """Writes trials, and scores unless they are None, whole or not at all.

    Args:
        path: A .npz or .parquet file, as `check_written` allows.
        trials: P trials.
        values: (P,) scores.

    Raises:
        LikenessError: An id is empty, or the format could not give it back. The package pyarrow is
            missing.
    """
    sides = [
        _occurring([name.encode("utf-8", "surrogatepass") for name in ids], codes)
        for ids, codes in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
    ]
    bad = [
        name
        for side in sides
        for name in side.keys
        if not name or len(name) > MAX_LINE or name.endswith(b"\0") or not _is_unicode(name)
    ]
    if bad:
        raise LikenessError(
            f"{path}: {len(bad)} ids are empty, longer than {MAX_LINE} bytes, end in a NUL "
            "character or are no Unicode text "
            f"({name_first(name.decode(errors='replace') for name in bad)}); rename them"
        )
    if path.suffix.lower() == ".npz":
        arrays = _arrays(sides, trials.target, values)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        return
    import pyarrow.parquet

    table = _arrow_table(sides, trials.target, values)
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(
            table,
            temporary,
            row_group_size=_ROWS_OF_GROUP,
            use_dictionary=["enrol", "probe"],
            dictionary_pagesize_limit=1 << 30,
            write_page_checksum=True,
        )


def _is_unicode(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _arrays(
    sides: Sequence[Column], target: Bools | None, values: Floats | None
) -> dict[str, NDArray[Any]]:
    """What an .npz file holds."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, side in zip(("enrol", "probe"), sides, strict=True):
        arrays[f"{name}_ids"] = np.array([key.decode() for key in side.keys], dtype=np.str_)
        arrays[name] = side.codes
    if target is not None:
        arrays["target"] = target
    if values is not None:
        arrays["score"] = values
    return arrays


def _arrow_table(sides: Sequence[Column], target: Bools | None, values: Floats | None) -> Any:
    """What a .parquet file holds."""
    import pyarrow

    columns = {
        name: pyarrow.DictionaryArray.from_arrays(
            side.codes, pyarrow.array([key.decode() for key in side.keys], pyarrow.string())
        )
        for name, side in zip(("enrol", "probe"), sides, strict=True)
    }
    if target is not None:
        columns["label"] = pyarrow.array(target)
    if values is not None:
        columns["score"] = pyarrow.array(values)
    return pyarrow.table(columns)


def _occurring(keys: list[bytes], codes: NDArray[Any]) -> Column:
    """The column with each key once, numbered by its first occurrence as the keys of text are.

    Keys that do not occur are left out.
    """
    first = np.full(len(keys), codes.size)
    # Of several places, the last that is assigned stays: the first row.
    first[codes[::-1]] = np.arange(codes.size)[::-1]
    in_order = np.argsort(first, kind="stable")[: np.count_nonzero(first < codes.size)]
    number: dict[bytes, int] = {}
    numbers = np.full(len(keys), -1, dtype=np.int32)
    for k in in_order.tolist():
        numbers[k] = number.setdefault(keys[k], len(number))
    return Column(list(number), numbers[codes])


def _read_npz(path: Path, limit: int) -> tuple[str, list[Column | Floats]]:
    """The layout and the columns of an .npz file."""
    with npz.opened(path, limit) as archive:
        headers = archive.headers
        wrong = [
            name
            for name, kinds in _ARRAYS.items()
            if name in headers
            and (headers[name].dtype.kind not in kinds or len(headers[name].shape) != 1)
        ]
        missing = [name for name in _NEEDED if name not in headers]
        sizes = {headers[name].shape for name in _ARRAYS if name in headers and name[-4:] != "_ids"}
        if wrong or missing or len(sizes) > 1:
            present = ", ".join(f"{name} {kind} {shape}" for name, (kind, shape) in headers.items())
            raise LikenessError(
                f"{path}: not a list of trials: expected enrol_ids and probe_ids, texts, enrol and "
                "probe (P,) integers, and perhaps target (P,) bool and score (P,) floats; arrays "
                f"found: {present[:500] or 'none'}"
            )
        columns: list[Column | Floats] = [_npz_side(path, archive, name) for name in _NEEDED[2:]]
        layout = "ep"
        if "target" in headers:
            columns.append(_labels(archive.read("target")))
            layout += "l"
        if "score" in headers:
            columns.append(np.asarray(archive.read("score"), dtype=np.float64))
            layout += "s"
    return layout, columns


def _npz_side(path: Path, archive: npz.Npz, name: str) -> Column:
    """The ids of one side of an .npz file."""
    ids, codes = archive.read(f"{name}_ids"), archive.read(name)
    if codes.size and not (codes.min() >= 0 and codes.max() < len(ids)):
        outside = np.flatnonzero((codes < 0) | (codes >= len(ids)))
        raise LikenessError(
            f"{path}: {outside.size} of {codes.size} numbers of {name} are outside the {len(ids)} "
            f"{name}_ids (first: {int(codes[outside[0]])} in row {int(outside[0]) + 1}); write the "
            "file again"
        )
    # A file of a few kilobytes can hold millions of ids, so only those that occur become texts.
    occurs = np.zeros(len(ids), dtype=np.bool_)
    occurs[codes] = True
    keys = [key.encode("utf-8", "surrogatepass") for key in ids[occurs].tolist()]
    return in_nfc(_occurring(keys, (np.cumsum(occurs) - 1)[codes]))


def _labels(values: NDArray[Any]) -> Column:
    """A column of labels that are booleans or numbers."""
    if values.dtype.kind == "b":
        return Column([b"0", b"1"], values.astype(np.int32))
    distinct, codes = np.unique(values, return_inverse=True)
    whole = np.isfinite(distinct) & (distinct == np.floor(distinct))
    keys = [
        b"%d" % int(value) if is_whole else repr(float(value)).encode()
        for value, is_whole in zip(distinct.tolist(), whole, strict=True)
    ]
    return in_nfc(Column(keys, codes.astype(np.int32)))


def _read_parquet(path: Path, limit: int, roles: Roles) -> tuple[str, list[Column | Floats]]:
    """The layout and the columns of a .parquet file."""
    check_installed(path, ".parquet")
    place = str(path.absolute())
    with refused(path), Process(__name__, "pyarrow.parquet") as process:
        (types, size), _ = process.ask(parquet_columns, place, about=path, limits=limits(path))
        present = [name for name, _ in types]
        chosen = roles(present)
        needed = present if chosen is None else chosen[1]
        if twice := sorted({name for name in needed if needed.count(name) > 1}):
            raise LikenessError(
                f"{path}: {len(twice)} columns are there twice ({name_first(twice)}); remove or "
                "rename one of each"
            )
        if chosen is None:
            listed = ", ".join(f"{name} {kind}" for name, kind in types)
            raise LikenessError(
                f"{path}: not a list of trials: expected columns enrol and probe, and perhaps "
                f"label and score, one of each; columns found: {listed[:500] or 'none'}"
            )
        layout, names = chosen
        forms, arrays = process.ask(
            parquet_arrays, place, limit, names, layout, about=path, limits=limits(path, size)
        )
    columns: list[Column | Floats] = []
    rest = iter(arrays)
    for name, role, (kind, missing, first) in zip(names, layout, forms, strict=True):
        if missing:
            raise LikenessError(
                f"{path}: {missing} rows have no {name} (first: row {first + 1}); fill or remove "
                "them"
            )
        if kind == "texts":
            columns.append(in_nfc(_occurring(split_texts(next(rest), next(rest)), next(rest))))
        elif role == "l":
            columns.append(_labels(next(rest)))
        else:
            columns.append(next(rest).astype(np.float64, copy=False))
    return layout, columns


@contextmanager
def refused(path: Path) -> Iterator[None]:
    """Turns what pyarrow raises on a damaged file into one sentence that names the file."""
    try:
        yield
    except (FileNotFoundError, IsADirectoryError, PermissionError, ImportError):
        raise
    except (ValueError, OSError) as error:
        if str(path) in str(error):
            raise
        if _CAST in str(error):
            raise LikenessError(f"{path}: {error}") from None
        raise LikenessError(
            f"{path}: not a Parquet file that can be read ({first_line(error)}); it is "
            "damaged, truncated or of another kind: write it again"
        ) from None


def _open(file: BinaryIO, **options: Any) -> Any:
    """A .parquet file whose header cannot take any amount of memory."""
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(
        file,
        thrift_string_size_limit=1 << 24,
        thrift_container_size_limit=1 << 22,
        page_checksum_verification=True,
        **options,
    )


def parquet_columns(path: str) -> Answer:
    """Reads the names and the types of the columns of a .parquet file, and how many rows it has.

    Only a process of its own calls it; the result is an answer of eval.formats.boundary.

    Args:
        path: The file.

    Returns:
        A list of pairs of texts, and the number of rows; and no arrays.
    """
    with open(path, "rb") as file:
        parquet = _open(file)
        schema = parquet.schema_arrow
        if len(schema) > _MAX_COLUMNS:
            raise LikenessError(f"it has {len(schema)} columns; at most {_MAX_COLUMNS} are read")
        types = [[field.name[:_MAX_TYPE], str(field.type)[:_MAX_TYPE]] for field in schema]
        return [types, parquet.metadata.num_rows], []


def parquet_arrays(path: str, limit: int, names: Sequence[str], layout: str) -> Answer:
    """Reads columns of a .parquet file, in a process of its own as `parquet_columns`.

    Args:
        path: The file.
        limit: The bytes that the arrays may take.
        names: The columns.
        layout: Their roles, one letter for each.

    Returns:
        For each column "texts" or "numbers", in how many rows it is missing, and the first of
            these rows; and the arrays, of texts three: all distinct ones as UTF-8 bytes, the number
            of bytes of each, and the number (P,) of each row's text among them.
    """
    with open(path, "rb") as file:
        schema = _open(file).schema_arrow
        types = [str(schema.field(name).type) for name in names]
        for name, role, kind in zip(names, layout, types, strict=True):
            if not re.fullmatch(_TYPES[role], kind):
                raise LikenessError(
                    f"its column {name} is of type {kind[:_MAX_TYPE]}; {_CAST}{_ALLOWED[role]}"
                )
        texts = [name for name, kind in zip(names, types, strict=True) if "string" in kind]
        parquet = _open(file, read_dictionary=texts)
        groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
        needed = max(
            parquet.metadata.num_rows * _ROW_BYTES, sum(group.total_byte_size for group in groups)
        )
        if needed > limit:
            raise LikenessError(f"it would take {needed} bytes, but at most {limit} are allowed")
        parts = [
            _Texts() if name in texts else _Numbers(as_texts=role in "ep")
            for name, role in zip(names, layout, strict=True)
        ]
        for batch in parquet.iter_batches(_ROWS, columns=list(names), use_threads=False):
            for name, part in zip(names, parts, strict=True):
                part.add(batch.column(batch.schema.get_field_index(name)))
        answers = [part.answer() for part in parts]
    return [form for form, _ in answers], [array for _, arrays in answers for array in arrays]


def nullable_arrays(path: str, limit: int, names: Sequence[str]) -> Answer:
    """Reads columns of texts or numbers, some of which may be missing in any row.

    Only a process of its own calls it, as `parquet_arrays`.

    Args:
        path: The file.
        limit: The bytes that the arrays may take.
        names: The columns.

    Returns:
        "texts" or "numbers" for each column; and the arrays: of texts all distinct ones as UTF-8
            bytes, the number of bytes of each, and the number (P,) of each row's text, -1 where it
            is missing; of numbers one (P,), with NaN where one is missing.
    """
    with open(path, "rb") as file:
        schema = _open(file).schema_arrow
        texts = [name for name in names if "string" in str(schema.field(name).type)]
        parquet = _open(file, read_dictionary=texts)
        groups = [parquet.metadata.row_group(i) for i in range(parquet.metadata.num_row_groups)]
        needed = max(
            parquet.metadata.num_rows * _ROW_BYTES, sum(group.total_byte_size for group in groups)
        )
        if needed > limit:
            raise LikenessError(f"it would take {needed} bytes, but at most {limit} are allowed")
        number: dict[str, defaultdict[str, int]] = {
            name: defaultdict(count().__next__) for name in texts
        }
        parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
        for batch in parquet.iter_batches(_ROWS, columns=list(names), use_threads=False):
            for name in names:
                column = batch.column(batch.schema.get_field_index(name))
                if name not in number:
                    parts[name].append(_floats_or_whole(column))
                    continue
                keys = column.dictionary.to_pylist()
                known = np.array([number[name][key] for key in keys] or [-1], np.int32)
                absent = plain.missing(column)
                indices = np.where(absent, 0, plain.numbers(column.indices))
                parts[name].append(np.where(absent, -1, known[indices]).astype(np.int32))
    arrays: list[NDArray[Any]] = []
    for name in names:
        if name in number:
            arrays += _texts(list(number[name]), parts[name])
        else:
            arrays.append(np.concatenate([np.zeros(0, np.int64), *parts[name]]))
    return ["texts" if name in number else "numbers" for name in names], arrays


def _floats_or_whole(column: Any) -> NDArray[Any]:
    """The numbers of a column, with NaN where one is missing."""
    if str(column.type) == "null":
        return np.full(len(column), np.nan)
    values, absent = plain.numbers(column), plain.missing(column)
    return np.where(absent, np.nan, values) if absent.any() else values


class _Rows:
    """What is missing in a column while its batches are read."""

    def __init__(self) -> None:
        self.missing, self.first, self._size = 0, 0, 0

    def add(self, absent: Bools) -> None:
        """Adds the rows of a batch; `absent` says which of them lack a value."""
        if not self.missing:
            self.first = self._size + int(np.argmax(absent))
        self.missing += int(np.count_nonzero(absent))
        self._size += absent.size


class _Texts:
    """A column of texts while its batches are read."""

    def __init__(self) -> None:
        self.rows = _Rows()
        self._number: defaultdict[str, int] = defaultdict(count().__next__)
        self._codes: list[NDArray[Any]] = []
        self._known: tuple[Any, Ints] | None = None  # the last dictionary, and its numbers

    def add(self, column: Any) -> None:
        """Adds a batch."""
        self.rows.add(plain.missing(column))
        if self.rows.missing:
            return
        if self._known is None or not column.dictionary.equals(self._known[0]):
            keys = column.dictionary.to_pylist()
            numbers = np.fromiter(map(self._number.__getitem__, keys), np.int32, len(keys))
            self._known = column.dictionary, numbers
        self._codes.append(self._known[1][plain.numbers(column.indices)])

    def answer(self) -> tuple[list[Any], list[NDArray[Any]]]:
        """The form of the column and its arrays."""
        form = ["texts", self.rows.missing, self.rows.first]
        return form, _texts(list(self._number), self._codes)


class _Numbers:
    """A column of numbers while its batches are read.

    Args:
        as_texts: Whether the numbers are ids, which are texts.
    """

    def __init__(self, *, as_texts: bool) -> None:
        self.rows, self._as_texts = _Rows(), as_texts
        self._parts: list[NDArray[Any]] = []

    def add(self, column: Any) -> None:
        """Adds a batch."""
        values, absent = plain.numbers(column), plain.missing(column)
        if values.dtype.kind == "f" and absent.any():
            values = np.where(absent, np.nan, values)
            absent[:] = False
        self.rows.add(absent)
        self._parts.append(values)

    def answer(self) -> tuple[list[Any], list[NDArray[Any]]]:
        """The form of the column and its arrays; ids that are numbers become texts."""
        form = ["texts" if self._as_texts else "numbers", self.rows.missing, self.rows.first]
        values = np.concatenate(self._parts) if self._parts else np.zeros(0)
        self._parts.clear()
        if not self._as_texts:
            return form, [values]
        distinct, codes = np.unique(values, return_inverse=True)
        return form, _texts(list(map(str, distinct.tolist())), [codes])


def _texts(distinct: Sequence[str], codes: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """The arrays that stand for a column of texts."""
    encoded = [text.encode("utf-8", "surrogatepass") for text in distinct]
    return [
        np.frombuffer(b"".join(encoded), np.uint8),
        np.fromiter(map(len, encoded), np.int64, len(encoded)),
        np.concatenate([np.zeros(0, np.int32), *codes]).astype(np.int32, copy=False),
    ]


def split_texts(text: NDArray[Any], lengths: NDArray[Any]) -> list[bytes]:
    """Returns the texts that lie one after the other."""
    whole, ends = text.tobytes(), np.concatenate([[0], np.cumsum(lengths)]).tolist()
    return [whole[start:end] for start, end in pairwise(ends)]
