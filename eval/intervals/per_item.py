"""What was measured on each test item: kept in a file, so that every metric of a run and its
interval can be worked out again.

A verification system is measured on trials (likeness.eval.types.Scores); a classifier or a
retrieval system on items. Metrics are functions of the columns, such as partial(mean,
column="recall@1"); an interval draws groups (classes of unseen things, or the items themselves)
with replacement and works the metric out anew.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats import npz
from likeness.eval.intervals.bootstrap import Drawn, drawn_groups, times_drawn
from likeness.eval.metrics import classification, retrieval
from likeness.eval.types import Floats, Ints
from likeness.eval.writing import atomic_path

Columns = Mapping[str, Floats]
Metric = Callable[[Columns], float]


@dataclass(frozen=True, eq=False)
class PerItem:
    """ids of N test items; columns: name -> (N,) float64; groups: (N,) integers of what is drawn
    together, None if every item stands for itself.

    over: what the groups are, in a word, for tables: "classes", "images". ValueError where the
    lengths differ.
    For reports, and not kept in the file: embeddings (N, D), classes: names of the numbers in
    "label" and "predicted", show: id -> its file or pixels.
    """

    ids: tuple[str, ...]
    columns: Columns
    groups: Ints | None
    over: str
    embeddings: Floats | None = None
    classes: tuple[str, ...] = ()
    show: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        sizes = {name: len(column) for name, column in self.columns.items()}
        if self.groups is not None:
            sizes["groups"] = len(self.groups)
        if not self.ids or set(sizes.values()) - {len(self.ids)}:
            num = f"{len(self.ids)} ids, but columns of {sizes}"
            raise LikenessError(f"per-item results: {num}; give as many of each, at least one")

    @property
    def num_groups(self) -> int:
        return len(self.ids) if self.groups is None else int(np.unique(self.groups).size)

    @property
    def drawn(self) -> Drawn:
        """What an interval rests on: the groups, or the items themselves if they have none."""
        if self.groups is None:
            return Drawn(len(self.ids), "items")
        return drawn_groups(self.groups, self.over)

    @property
    def digest(self) -> str:
        """Of the items and their groups: runs of equal digests were measured on the same things."""
        checksum = hashlib.sha256("\0".join([self.over, *self.ids]).encode())
        if self.groups is not None:
            checksum.update(np.ascontiguousarray(self.groups, dtype=np.int64).tobytes())
        return checksum.hexdigest()


def resample(
    metrics: Mapping[str, Metric], measured: PerItem, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, Floats]:
    """name -> (num_resamples,) values of the metric on groups drawn with replacement; equal draws
    for equal seeds and groups. NaN where a draw has no value.
    """
    groups = range(len(measured.ids)) if measured.groups is None else measured.groups
    values = {name: np.empty(num_resamples) for name in metrics}
    for number, times in zip(range(num_resamples), times_drawn(groups, seed), strict=False):
        rows = np.repeat(np.arange(times.size), times)
        columns = {name: column[rows] for name, column in measured.columns.items()}
        for name, metric in metrics.items():
            values[name][number] = metric(columns)
    return values


def mean(columns: Columns, *, column: str) -> float:
    """Mean of a column over the items that have a value (lone retrieval queries have none: NaN).

    NaN if no item has one.

    >>> mean({"recall@1": np.array([1.0, 0.0, np.nan])}, column="recall@1")
    0.5
    """
    values = columns[column]
    there = ~np.isnan(values)
    return float(values[there].mean()) if there.any() else float("nan")


def calibration_error(
    columns: Columns,
    *,
    confidence: str = "confidence",
    num_bins: int = 15,
    power: Literal[1, 2] = 1,
) -> float:
    """likeness.eval.metrics.classification.ece of a column of confidences, with equal-mass bins."""
    return classification.ece(
        columns[confidence], columns["correct"], num_bins=num_bins, power=power
    )


def norm_auroc(columns: Columns, *, correct: str = "correct") -> float:
    """likeness.eval.metrics.classification.auroc of the norm: do right predictions have longer
    embeddings than wrong ones? NaN where all are right or all are wrong.

    correct: the column that says what is right; "recall@1" for retrieval, whose queries without a
    value (NaN) are left out; ties count as right from .5.
    """
    there = ~np.isnan(columns[correct])
    right = (columns[correct][there] >= 0.5).astype(np.float64)
    if not 0 < right.sum() < right.size:
        return float("nan")
    return classification.auroc(columns["norm"][there], right)


def mutual_information(columns: Columns) -> float:
    """likeness.eval.metrics.retrieval.nmi of the columns "label" and "cluster"."""
    return retrieval.nmi_of(columns["label"].astype(np.int64), columns["cluster"].astype(np.int64))


def write(path: Path, measured: PerItem) -> None:
    """As .npz: the columns by name, "ids", "groups" where there are some; replaced in one step."""
    arrays = {f"column.{name}": column for name, column in measured.columns.items()}
    if measured.groups is not None:
        arrays["groups"] = np.asarray(measured.groups, dtype=np.int64)
    arrays |= {"ids": np.array(measured.ids), "over": np.array(json.dumps(measured.over))}
    with atomic_path(path) as temporary, temporary.open("wb") as handle:
        np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]


def read(path: Path) -> PerItem:
    """What write() wrote; no pickle.

    ValueError for a file that is damaged or another one, FileNotFoundError.
    """
    try:
        arrays = npz.read(path, ["ids", "over"], optional=None)
        over = json.loads(str(arrays.pop("over")))
        ids, groups = arrays.pop("ids"), arrays.pop("groups", None)
        columns = {
            name.removeprefix("column."): array
            for name, array in arrays.items()
            if name.startswith("column.")
        }
        return PerItem(tuple(ids.tolist()), columns, groups, over)
    except FileNotFoundError:
        raise
    except Exception as error:  # what a damaged file's arrays lead to is of many kinds
        problem = f"it holds no per-item results ({first_line(error)})"
        raise LikenessError(f"{path}: {problem}; delete it to measure again") from error
