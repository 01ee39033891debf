"""Lists of trials and scores as arrays: .npz and .parquet, a fifth of the text and far quicker.

.npz
    arrays enrol_ids and probe_ids, the distinct ids as text; enrol and probe (P,) int32, the number
    of each trial's id among them; target (P,) bool and score (P,) float64, each where there is one
.parquet
    columns enrol and probe, texts in a dictionary; label, bool; score, float64. Columns of other
    names are read if a header line of text could have them. Plain texts and whole numbers are read
    as ids too; booleans, 0 and 1, and the texts of a list as labels; all numbers as scores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats import npz, parquet
from eval.formats.files import MAX_LINE, Column, Table, atomic_path, in_nfc
from eval.types import Bools, Floats, Trials, name_first, quoted

SUFFIXES = (".npz", ".parquet")

Roles = Callable[[Sequence[str]], tuple[str, list[str]] | None]

_ROWS_OF_GROUP = 1 << 22  # each row group of a .parquet repeats the ids
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
        LikenessError: It is to be compressed by gzip, which is for text.
    """
    if Path(path).name.lower().endswith(tuple(f"{suffix}.gz" for suffix in SUFFIXES)):
        raise LikenessError(
            f"{path}: arrays are not compressed by gzip; leave out .gz, or write .txt.gz"
        )


def read_table(path: str | Path, roles: Roles) -> Table:
    """Reads the columns of a list of trials or scores.

    Args:
        path: A .npz or .parquet file.
        roles: Gives the layout (one letter for each column, see `eval.formats.trials`) that names
            of columns stand for, and those of them that are read; None where they do not.

    Returns:
        The table, whose layout is known.

    Raises:
        LikenessError: The file is damaged or of another kind, or it has pickled objects; ids are
            missing; columns have no role, or several the same.
        OSError: It cannot be read.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        layout, columns = _read_npz(path)
    else:
        layout, columns = _read_parquet(path, roles)
    size = columns[0].codes.size if isinstance(columns[0], Column) else columns[0].size
    if not size:
        raise LikenessError(f"{path}: it holds no trials; expected one row for each")
    return Table(path, layout, columns)


def write(path: Path, trials: Trials, values: Floats | None) -> None:
    """Writes trials, and scores unless they are None, whole or not at all.

    Args:
        path: A .npz or .parquet file, as `check_written` allows.
        trials: P trials.
        values: (P,) scores.

    Raises:
        LikenessError: An id is empty, or the format could not give it back.
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
            f"{path}: ids are empty, longer than {MAX_LINE} bytes, end in a NUL character or are "
            "no Unicode text "
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


def _read_npz(path: Path) -> tuple[str, list[Column | Floats]]:
    """The layout and the columns of an .npz file."""
    with npz.opened(path, parquet.size_limit(path)) as archive:
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
                f"found: {quoted(present)}"
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
        raise LikenessError(
            f"{path}: numbers of {name} are outside the {len(ids)} {name}_ids; write the file again"
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


def _read_parquet(path: Path, roles: Roles) -> tuple[str, list[Column | Floats]]:
    """The layout and the columns of a .parquet file."""
    with parquet.opened(path) as file:
        types = parquet.column_types(file)
        chosen = roles(list(types))
        if chosen is None:
            listed = ", ".join(f"{name} {kind}" for name, kind in types.items())
            raise LikenessError(
                f"{path}: not a list of trials: expected columns enrol and probe, and perhaps "
                f"label and score; columns found: {quoted(listed)}"
            )
        layout, names = chosen
        for name, role in zip(names, layout, strict=True):
            if not re.fullmatch(_TYPES[role], types[name]):
                raise LikenessError(
                    f"{path}: its column {name} is of type {quoted(types[name])}; cast it to "
                    f"{_ALLOWED[role]}"
                )
        read = parquet.read_columns(path, file, names, MAX_LINE)
    columns: list[Column | Floats] = []
    for name, role in zip(names, layout, strict=True):
        values, texts, missing = read[name]
        if missing.any():
            raise LikenessError(
                f"{path}: row {int(missing.argmax()) + 1} has no {name}; fill or remove such rows"
            )
        if role in "ep" and texts is None:  # ids that are numbers
            distinct, values = np.unique(values, return_inverse=True)
            texts = list(map(str, distinct.tolist()))
        if texts is not None:
            keys = [text.encode("utf-8", "surrogatepass") for text in texts]
            columns.append(in_nfc(_occurring(keys, values.astype(np.int32, copy=False))))
        elif role == "l":
            columns.append(_labels(values))
        else:
            columns.append(values.astype(np.float64, copy=False))
    return layout, columns
