"""Trial lists and scores as files: text and .parquet, whole or not at all.

.parquet
    columns enrol and probe, texts in a dictionary; label, bool; score, float64
text
    lines `enrol probe [score] [label]`; a file that could be misread gets a header

A .parquet takes a fifth of the text, and is read far quicker.
"""

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import is_label, is_trial_header
from likeness.eval.formats.parquet import Column, as_arrow
from likeness.eval.formats.tables import UNWRITABLE, all_fractions, in_order, is_number
from likeness.eval.progress import report
from likeness.eval.types import Bools, Floats, Trials
from likeness.eval.writing import atomic_path

Sides = Sequence[Column]  # the ids of the enrolment and of the probe of each trial

_ROWS = 1 << 17  # written at a time
_ROWS_OF_GROUP = 1 << 22  # each row group of a .parquet repeats the ids
_DECIMALS = 1e-4, 1e9  # between these Python and pyarrow write a fraction in the same way
_REFUSED_IN_PARQUET = re.compile(r"^\Z|[\ud800-\udfff]")


def write_trials(path: str | Path, trials: Trials) -> None:
    """Writes a trial list that `read_trials` reads back, whole or not at all.

    The columns are `enrol probe label`, with the label 1 or 0; a blind list has no label. A path
    that ends in .gz is compressed. Tabs separate the fields if an id contains blanks. A file that
    could be misread gets a header line.

    Args:
        path: The file to write.
        trials: At least one trial.

    Raises:
        LikenessError: There are no trials, or no such file can hold some of the ids.
    """
    _write(path, trials, None)


def write_scores(path: str | Path, trials: Trials, values: Floats) -> None:
    """Writes `enrol probe score label` with the shortest digits that give back the same float64.

    Everything else is as for `write_trials`.

    Args:
        path: The file to write.
        trials: P trials, at least one.
        values: Their finite scores (P,).

    Raises:
        LikenessError: As for `write_trials`, and for scores of another number or that are not
            finite.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (len(trials),) or not np.isfinite(values).all():
        problem = f"{int(np.isfinite(values).sum())} of shape {values.shape} are finite"
        raise LikenessError(f"scores: {problem}; give {len(trials)} finite scores")
    _write(path, trials, values)


def _write(path: str | Path, trials: Trials, values: Floats | None) -> None:
    """Writes trials, with scores unless `values` is None."""
    place = Path(path)
    if place.suffix.lower() == ".npz":
        raise LikenessError(f"{path}: trials and scores are text or .parquet; name it so")
    is_text = place.suffix.lower() != ".parquet"
    sides = [
        in_order(Column(list(ids), codes))
        for ids, codes in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
    ]
    refused = UNWRITABLE if is_text else _REFUSED_IN_PARQUET
    bad = [name for side in sides for name in side.keys if refused.search(name)]
    if not len(trials):
        raise LikenessError(f"{path}: there are no trials to write")
    if bad:
        raise LikenessError(f"{path}: the id {bad[0]!r} would be read back as another; rename it")
    labels: Any = trials.target
    if trials.spoof is not None and trials.target is not None:
        if not is_text:
            raise LikenessError(f"{path}: labels of spoofs are written as text; name it .txt")
        labels = (trials.target + 2 * trials.spoof).astype(np.uint8)
    write = _write_text if is_text else _write_parquet
    write(place, sides, labels, values)


def _write_parquet(path: Path, sides: Sides, target: Bools | None, values: Floats | None) -> None:
    """Writes .parquet."""
    import pyarrow
    import pyarrow.parquet

    enrol, probe = (
        pyarrow.DictionaryArray.from_arrays(side.codes, as_arrow(side.keys).cast("string"))
        for side in sides
    )
    named: dict[str, Any] = {"enrol": enrol, "probe": probe}
    named |= {} if target is None else {"label": pyarrow.array(target)}
    named |= {} if values is None else {"score": pyarrow.array(values)}
    groups = {"row_group_size": _ROWS_OF_GROUP, "dictionary_pagesize_limit": 1 << 30}
    how = {**groups, "use_dictionary": ["enrol", "probe"], "write_page_checksum": True}
    with atomic_path(path) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(named), temporary, **how)


def _write_text(path: Path, sides: Sides, target: Bools | None, values: Floats | None) -> None:
    """Writes text, compressed by gzip where the name says so."""
    names = [name for side in sides for name in side.keys]
    first = [side.keys[0] for side in sides]
    separator = "\t" if any(" " in name for name in names) else " "
    header = ["enrol", "probe", *["score"] * (values is not None)]
    header += ["label"] * (target is not None)
    misread = (
        is_trial_header(first, partly=path.suffix.lower() in (".csv", ".tsv"))
        or any(all_fractions(side.keys) or all(map(is_label, side.keys)) for side in sides)
        or any(mark in name for name in names for mark in ",; ")
        # A trial list could have the scores in its first column.
        or (len(header) == 4 and all(map(is_number, sides[0].keys)))
    )
    with atomic_path(path) as temporary, temporary.open("wb") as raw:
        is_zipped = path.suffix == ".gz"
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) if is_zipped else raw as stream:
            if misread:
                stream.write((separator.join(header) + "\n").encode())
            stream.writelines(_lines(sides, target, values, separator))


def _lines(
    sides: Sides, target: Bools | None, values: Floats | None, separator: str
) -> Iterator[bytes]:
    """Yields the lines of a list in blocks, with each number as `repr` writes it."""
    from pyarrow import compute

    # The last column ends the line.
    last = "\n" if target is None and values is None else ""
    texts = [
        as_arrow([name + end for name in side.keys])
        for side, end in zip(sides, ("", last), strict=True)
    ]
    two = target is None or target.dtype == np.bool_
    labels = as_arrow(["0\n", "1\n"] if two else ["nontarget\n", "target\n", "spoof\n"])
    size = len(sides[0].codes)
    for start in range(0, size, _ROWS):
        report("writing", start, size)
        part = slice(start, start + _ROWS)
        columns = [
            ids.take(as_arrow(side.codes[part])) for ids, side in zip(texts, sides, strict=True)
        ]
        if values is not None:
            columns.append(_decimals(values[part], "\n" if target is None else ""))
        if target is not None:
            columns.append(labels.take(as_arrow(target[part].view(np.uint8))))
        joined = compute.binary_join_element_wise(*columns, as_arrow([separator])[0])
        ends = np.frombuffer(joined.buffers()[1], np.int64)[: len(joined) + 1]
        yield joined.buffers()[2].slice(0, int(ends[-1])).to_pybytes()
    report("writing", size, size)


def _decimals(values: Floats, end: str) -> Any:
    """The shortest texts (P,) that give back the same numbers, as `repr` writes them."""
    import pyarrow
    from pyarrow import compute

    size = np.abs(values)
    alike = (size >= _DECIMALS[0]) & (size < _DECIMALS[1]) & (values != np.rint(values))
    texts = compute.cast(as_arrow(values), pyarrow.large_string())
    if not alike.all():
        place = np.where(alike, np.arange(len(values)), len(values) + np.cumsum(~alike) - 1)
        others = as_arrow(list(map(repr, values[~alike].tolist())))
        texts = pyarrow.concat_arrays([texts, others]).take(as_arrow(place))
    return compute.binary_join_element_wise(texts, as_arrow([end])[0], as_arrow([""])[0])
