"""What goes with the labels of a data set beside what they mean: rate, format, level, duration.

A model may learn it in place of the voice or the face, and a test on the same data will not show
it. Two measures say how far an attribute goes with the labels:

- Of a name, such as a format: Goodman and Kruskal's lambda (1954). Of the items that have another
  value than most have, it is the share that the label predicts.
- Of a number, such as a level: the intraclass correlation, which is the share of the variance that
  is between labels, corrected for chance; and the standard deviation between labels. Levels have
  3 to 5 dB where nothing is wrong (AN4 3.2, speechocean762 4.7), so that 6 dB is asked for, and of
  durations a factor of 1.5.

Where an attribute has nothing to do with the labels, it is named in five of a thousand data sets at
most: of 999 shuffles of the values, at most four may go with the labels as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.checking._files import Seen
from likeness.eval.items.items import Items

LEAST = 0.8  # of either measure
SHUFFLES, MOST_AS_WELL = 999, 4
# Columns of a table that say how an item was made, and not who is in it.
COLUMNS = ("day", "date", "device", "microphone", "room", "channel", "codec")


def size_text(size: tuple[int, int]) -> str:
    """Write a size (height, width) as users do, such as "640x480"."""
    return f"{size[1]}x{size[0]}"


class Confound(NamedTuple):
    """An attribute that goes with the labels.

    Attributes:
        what: Its name, such as "rate".
        measured: How far it goes with the labels, in words.
        labels: The labels that are unlike most, each with its value.
    """

    what: str
    measured: str
    labels: dict[str, str]


def find(items: Items, files: Sequence[Seen]) -> list[Confound]:
    """Find what goes with the labels.

    Args:
        items: N items.
        files: (N,) what was seen of the file of each. Levels are known where they were decoded.

    Returns:
        The attributes. There are none of labels with one item each, which say nothing.
    """
    headers = [item.header for item in files]
    named: dict[str, Any] = {
        "format": [of and of.format for of in headers],
        "rate in Hz": [of and of.rate_hz for of in headers],
        "width x height": [of and of.size and size_text(of.size) for of in headers],
        **{name: items.column(name) for name in items.further if name.lower() in COLUMNS},
    }
    levels: list[Any] = [item.content and item.content.level_dbfs for item in files]
    logs: list[Any] = [of and of.seconds and np.log(of.seconds) for of in headers]
    labels = items.labels
    confounds = [_of_names(what, labels, values) for what, values in named.items()]
    confounds.append(_of_numbers("level", labels, levels, 6.0, "{:.0f} dBFS".format))
    by = np.log(1.5)
    confounds.append(_of_numbers("duration", labels, logs, by, lambda log: f"{np.exp(log):.1f} s"))
    return [item for item in confounds if item is not None]


def goodman_kruskal(values: ArrayLike, labels: ArrayLike) -> float:
    """How well a label predicts a value: Goodman and Kruskal's lambda.

    Args:
        values: (N,) whole numbers from 0, of which at least two differ.
        labels: (N,) whole numbers from 0.

    Returns:
        0 where the most common value is the best guess for each label; 1 where each label has one
        value.

    Example:
        >>> goodman_kruskal([0, 0, 1, 1], [0, 0, 1, 1]), goodman_kruskal([0, 1, 0, 1], [0, 0, 1, 1])
        (1.0, 0.0)
    """
    value, label = np.asarray(values), np.asarray(labels)
    most, num = int(np.bincount(value).max()), int(value.max()) + 1
    pairs, counts = np.unique(label * num + value, return_counts=True)
    first = np.flatnonzero(np.diff(pairs // num, prepend=-1))
    return float(np.maximum.reduceat(counts, first).sum() - most) / (value.size - most)


def intraclass(values: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
    """How far numbers go with labels, by a one-way analysis of variance.

    Args:
        values: (N,) numbers.
        labels: (N,) whole numbers from 0, each of which is there; fewer than N of them.

    Returns:
        The intraclass correlation, and the standard deviation between labels.

    Example:
        >>> correlation, between = intraclass([1, 1.1, 5, 5.1], [0, 0, 1, 1])
        >>> round(correlation, 4), round(between, 2)
        (0.9994, 2.83)
    """
    value, label = np.asarray(values, dtype=np.float64), np.asarray(labels)
    sizes = np.bincount(label)
    means = np.bincount(label, value) / sizes
    within = float(np.sum((value - means[label]) ** 2)) / (value.size - sizes.size)
    among = float(sizes @ (means - value.mean()) ** 2) / (sizes.size - 1)
    size = (value.size - float(sizes @ sizes) / value.size) / (sizes.size - 1)
    between = max(0.0, (among - within) / size)
    return between / (between + within) if between else 0.0, between**0.5


def _known(
    labels: Sequence[str | None], values: Sequence[Any]
) -> tuple[list[Any], list[str], NDArray[np.intp]] | None:
    """The values of the items that have both, their labels, and the number of the label of each;
    None where labels repeat nowhere.
    """
    both = [(v, label) for v, label in zip(values, labels, strict=True) if v is not None and label]
    names, numbers = np.unique([label for _, label in both], return_inverse=True)
    return ([v for v, _ in both], names.tolist(), numbers) if 1 < names.size < len(both) else None


def _by_chance(
    measure: Callable[[Any, Any], float], values: NDArray[Any], labels: NDArray[np.intp]
) -> bool:
    """Whether a measure is low, or a shuffle of the values has it as high."""
    seen, rng = measure(values, labels), np.random.default_rng(0)
    if seen < LEAST:
        return True
    shuffled = (measure(rng.permutation(values), labels) for _ in range(SHUFFLES))
    return sum(each >= seen for each in shuffled) > MOST_AS_WELL


def _of_names(what: str, labels: Sequence[str | None], values: Sequence[Any]) -> Confound | None:
    """Whether an attribute with few values goes with the labels."""
    known = _known(labels, values)
    kinds, codes = np.unique([str(v) for v in known[0]] if known else [], return_inverse=True)
    if known is None or kinds.size < 2 or _by_chance(goodman_kruskal, codes, known[2]):
        return None
    own = [kinds[np.bincount(codes[known[2] == k]).argmax()] for k in range(len(known[1]))]
    usual = kinds[np.bincount(codes).argmax()]
    odd = {name: str(kind) for name, kind in zip(known[1], own, strict=True) if kind != usual}
    share = goodman_kruskal(codes, known[2])
    return Confound(what, f"where it is not {usual}, the label predicts {share:.0%} of it", odd)


def _of_numbers(
    what: str,
    labels: Sequence[str | None],
    values: Sequence[float | None],
    least: float,
    show: Callable[[float], str],
) -> Confound | None:
    """Whether a number goes with the labels, which are `least` apart or more."""
    known = _known(labels, values)
    if known is None:
        return None
    numbers, of = np.array(known[0], dtype=np.float64), known[2]
    correlation, between = intraclass(numbers, of)
    if between < least or _by_chance(lambda v, of: intraclass(v, of)[0], numbers, of):
        return None
    means = np.bincount(of, numbers) / np.bincount(of)
    off = np.abs(means - np.median(means))
    odd = {known[1][k]: show(means[k]) for k in np.argsort(-off).tolist() if off[k] >= least}
    return Confound(what, f"{correlation:.0%} of its variance is between labels", odd)
