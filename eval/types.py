"""The central types of evaluation, Trials and Scores, and how items are named and compared.

Checked on construction, then frozen.

One legend for all docstrings: N items, D dims, P trials, Q probes, G gallery, C classes, B batch, T
frames, F mel bins.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import compress
from numbers import Real
from posixpath import normpath
from typing import Any, TypeVar, cast
from unicodedata import category, normalize

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, shorten
from likeness.eval.errors import check_choice as check_choice

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]
V = TypeVar("V")
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]  # rows of two sides that belong together

_SHOWN = 5  # how many offenders an error names
_LABELS = ("nontarget", "target", "spoof", "spoof")
UNKNOWN = "unknown"  # the group of items without a value


def quoted(value: object) -> str:
    """The repr of a value for a message, cut by `shorten`, however large the value is.

    >>> quoted("ann/1"), len(quoted("x" * 300_000_000))
    ("'ann/1'", 63)
    """
    if isinstance(value, str | bytes):
        value = value[:1000]  # the repr of all of it would take as much memory again
    return shorten(repr(value))


def name_first(offenders: Iterable[str]) -> str:
    """The first few offenders as text, with an ellipsis if there are more."""
    listed = list(offenders)
    return ", ".join(map(quoted, listed[:_SHOWN])) + (", ..." if len(listed) > _SHOWN else "")


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "subject"), counted(2000, "subject")
    ('1 subject', '2,000 subjects')
    """
    return f"{number:,} {what}{'s' * (number != 1)}"


def freeze_numbers(settings: object, *names: str) -> None:
    """Makes tuples of settings that are numbers or sequences of numbers, and refuses other values.

    >>> from types import SimpleNamespace
    >>> freeze_numbers(settings := SimpleNamespace(fars=0.01), "fars")
    >>> settings.fars
    (0.01,)
    """
    for name in names:
        values = getattr(settings, name)
        if isinstance(values, str) or not isinstance(values, Iterable):
            values = (values,)
        numbers = tuple(each.item() if isinstance(each, np.generic) else each for each in values)
        if bad := [number for number in numbers if not isinstance(number, Real)]:
            raise LikenessError(f"{name}: {bad[0]!r} is no number; give one or several")
        object.__setattr__(settings, name, numbers)


def check_counts(
    name: str, values: Iterable[object], *, least: int = 1, most: float = math.inf
) -> None:
    """Refuses a value that is no whole number of at least `least` and at most `most`.

    >>> check_counts("ks", (1, 0))
    Traceback (most recent call last):
    ...
    likeness.LikenessError: ks: 0 is no whole number from 1; correct it
    """
    for value in values:
        is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if not is_whole or not least <= cast(int, value) <= most:
            limits = f"from {least}" + ("" if math.isinf(most) else f" to {most:,}")
            raise LikenessError(f"{name}: {value!r} is no whole number {limits}; correct it")


def is_printable(text: str) -> bool:
    """Whether all characters of a text can be seen, or are blanks of any alphabet.

    Of blanks, Python's `isprintable` knows that of ASCII alone.

    >>> is_printable("Yamada\u3000Taro"), is_printable("ann\\n")
    (True, False)
    """
    return all(letter.isprintable() or category(letter) == "Zs" for letter in text)


def nfc(text: str) -> str:
    """The text in Unicode NFC, in which names are compared: ids, subjects, labels, groups.

    macOS writes the names of files in NFD, in which an accent is a character of its own; the same
    name in a list is mostly NFC. What reads names from files, or from the names of files, calls
    this. A path keeps the form that the file system has. The ids of items go through `item_id`.

    Raises:
        LikenessError: the text is the name of a file that is not UTF-8, as archives of other
            systems leave them, which no list and no archive of embeddings could hold.

    >>> nfc("Zoe\u0308") == "Zo\u00eb"
    True
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LikenessError(f"the name {text!a} is not UTF-8 text; rename it") from None
    return normalize("NFC", text)


def item_id(text: str) -> str:
    """The id of an item, as ids are compared: in NFC, with slashes between the folders.

    Windows writes a path with backslashes, in lists and in the names that others made of paths.

    >>> item_id("ann\\\\1.wav")
    'ann/1.wav'
    """
    return nfc(text).replace("\\", "/")


def item_ids(names: Sequence[str]) -> Sequence[str]:
    """The ids of items, each as `item_id` gives it.

    >>> item_ids(["ann\\\\1.wav", "bob/2.wav"])
    ['ann/1.wav', 'bob/2.wav']
    """
    joined = "".join(names)
    return names if joined.isascii() and "\\" not in joined else list(map(item_id, names))


def ascending(values: NDArray[Any]) -> NDArray[np.int64]:
    """(N,) the rows in ascending order of numbers, equal ones as they stand.

    Each number's low bits are replaced by its row, so that one plain sort orders both, several
    times as fast as np.argsort. A second, nearly sorted pass restores what those bits held. It
    takes 24 bytes a row.

    Args:
        values: (N,) numbers without NaN.

    >>> ascending(np.array([0.5, -1, 0.5]))
    array([1, 0, 2])
    """
    bits: NDArray[np.int64] = (values + np.float64(0)).view(np.int64)  # a sum has no -0.0
    bits ^= (bits >> 63) & np.iinfo(np.int64).max  # in the order of the values
    row = (1 << int(values.size).bit_length()) - 1  # the bits that a row takes
    bits &= ~row
    bits |= np.arange(values.size)
    bits.sort()
    bits &= row
    # values that differ in their last digits alone may have changed places
    return bits[np.argsort(values[bits], kind="stable")]


def item_keys(ids: Sequence[str]) -> Sequence[str]:
    """The ids in a form in which two spellings of one item are equal.

    What differs in Unicode's forms, in backslashes, or in ./ and // within a path, is one item.

    >>> item_keys(["./a//b.wav", "a/b.wav"])
    ['a/b.wav', 'a/b.wav']
    """
    text = "\n".join([*ids, ""])
    if text.isascii() and not any(mark in text for mark in ("./", "//", "/.", "/\n", "\\")):
        return ids
    return [normpath(item_id(id)).replace("//", "/") for id in ids]


def number_items(*sides: Sequence[str]) -> list[NDArray[np.int64]]:
    """One numbering of the items that the ids of several sides name, however they are spelled.

    The number of an item is the row where it is first, among the ids of all sides.

    >>> number_items(["a", "b"], ["./b", "c", "c"])
    [array([0, 1]), array([1, 3, 3])]
    """
    keys = [key for ids in sides for key in item_keys(ids)]
    # Few items are there twice, and a sort of hashes finds them sooner than a dictionary.
    hashes = np.fromiter(map(hash, keys), np.int64, len(keys))
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(np.diff(hashes[order]) == 0)
    numbers, first = np.arange(len(keys)), dict[str, int]()
    for row in sorted({*order[again].tolist(), *order[again + 1].tolist()}):
        numbers[row] = first.setdefault(keys[row], row)
    return np.split(numbers, np.cumsum([len(ids) for ids in sides])[:-1])


def same_items(first: Sequence[str], second: Sequence[str]) -> Pairs:
    """The rows of two sides whose ids name one item: (K,) of each, in the order of the first.

    >>> same_items(["a", "b"], ["./b", "b", "c"])
    (array([1, 1]), array([0, 1]))
    """
    own, others = number_items(first, second)
    order = np.argsort(others, kind="stable")
    begin, end = (np.searchsorted(others[order], own, side=side) for side in ("left", "right"))
    rows = np.repeat(np.arange(own.size), end - begin)
    inside = np.arange(rows.size) - np.searchsorted(rows, rows)
    return rows, order[begin[rows] + inside]


def lacking(ids: Iterable[str], others: Iterable[str]) -> list[str]:
    """The ids whose items are not among the others, in their order.

    >>> lacking(["a", "b"], ["./b", "c"])
    ['a']
    """
    listed, keys = list(ids), {*item_keys([*others])}
    return [id for id, key in zip(listed, item_keys(listed), strict=True) if key not in keys]


def respell(values: Mapping[str, V], ids: Sequence[str]) -> dict[str, V]:
    """The values of items by the ids that are asked for, as far as these items have values.

    >>> respell({"a": 1, "b": 2}, ["./a", "c"])
    {'./a': 1}
    """
    of_key = dict(zip(item_keys([*values]), values.values(), strict=True))
    return {id: of_key[key] for id, key in zip(ids, item_keys(ids), strict=True) if key in of_key}


def pair_numbers(first: Trials, second: Trials) -> list[NDArray[np.int64]]:
    """(P,) a number for the pair of each trial of two lists, in whichever spelling."""
    enrol = number_items(first.enrol_ids, second.enrol_ids)
    probe = number_items(first.probe_ids, second.probe_ids)
    width = len(first.probe_ids) + len(second.probe_ids)
    sides = zip(enrol, probe, (first, second), strict=True)
    return [left[of.enrol] * width + right[of.probe] for left, right, of in sides]


def norms_of(rows: NDArray[Any]) -> Floats:
    """(N,) norms, summed in float64: no float32 embedding over- or underflows."""
    norms: Floats = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    return norms


def unit_rows(rows: NDArray[Any], norms: Floats | Floats32) -> NDArray[Any]:
    """Rows of length 1, whatever their norm, in their own precision; zero rows stay zero."""
    # no float64 copy of all rows
    unit: NDArray[Any] = np.empty_like(rows)
    lengths = np.where(norms > 0, norms, 1.0)[:, None]
    np.divide(rows, lengths, out=unit, casting="same_kind")
    return unit


def boolean_labels(name: str, target: Any) -> Bools:
    """Labels as booleans, of booleans or the numbers 1 and 0.

    NaN, -1 and texts would all become True.
    """
    labels = np.asarray(target)
    if labels.size and (labels.dtype.kind not in "biuf" or ((labels != 0) & (labels != 1)).any()):
        raise LikenessError(f"{name}: labels are {labels.dtype}; give booleans, or 1 and 0")
    return np.ascontiguousarray(labels, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Trials:
    """P trials between enrolment and probe ids.

    enrol_ids, probe_ids: the distinct ids of each side. enrol, probe: (P,) int32 indices into them.
    target: (P,) bool, or None for a blind list. spoof: (P,) bool, which of the others imitate the
    enrolled subject; None where labels know no spoofs.

    self_matches: how many trials of an item with itself were left out of the list, see
    likeness.eval.metrics.self_matches. itself: the rows of those that it has. repeats: how many
    labelled trials of two items repeat a pair, in the same or in the other order.

    LikenessError: arrays do not fit the ids, or a pair has two labels, in one order or in both.
    """

    enrol_ids: tuple[str, ...]
    probe_ids: tuple[str, ...]
    enrol: Ints
    probe: Ints
    target: Bools | None = None
    spoof: Bools | None = None
    self_matches: int = 0
    itself: NDArray[np.int64] = field(init=False)
    repeats: int = field(init=False, default=0)
    known_repeats: InitVar[int | None] = None  # of `rows`, which need not be looked through again

    def __post_init__(self, known_repeats: int | None) -> None:
        sides = (("enrol", self.enrol_ids), ("probe", self.probe_ids))
        stated = [np.asarray(getattr(self, side)) for side, _ in sides]
        shapes = {side.shape for side in stated}
        if self.target is not None:
            object.__setattr__(self, "target", boolean_labels("trials", self.target))
            shapes.add(np.shape(self.target))
        # The bounds are those of the numbers before they become int32, which may wrap around.
        inside = [
            index.dtype.kind in "iu" and index.min() >= 0 and index.max() < len(ids)
            for index, (_, ids) in zip(stated, sides, strict=True)
            if index.size
        ]
        if len(shapes) > 1 or stated[0].ndim != 1 or not all(inside):
            arrays = f"{stated[0].dtype} and {stated[1].dtype} of shapes {sorted(shapes)}"
            raise LikenessError(f"trials: {arrays} are no (P,) indices into the ids; correct them")
        for index, (side, _) in zip(stated, sides, strict=True):
            object.__setattr__(self, side, np.ascontiguousarray(index, dtype=np.int32))
        self._look_for_repeats(known_repeats)

    def _items(self) -> tuple[Ints, Ints]:
        """(P,) the number of the item on each side of a trial, see `number_items`."""
        sides = [self.enrol_ids]
        if self.probe_ids != self.enrol_ids:
            sides.append(self.probe_ids)
        numbers = [of_side.astype(np.int32) for of_side in number_items(*sides)]
        return numbers[0][self.enrol], numbers[-1][self.probe]

    def _pairs(self, first: Ints, second: Ints) -> NDArray[np.int64]:
        """(P,) a number for the two items of each trial, in whichever order."""
        width = len(self.enrol_ids) + len(self.probe_ids)
        numbers: NDArray[np.int64] = np.multiply(np.minimum(first, second), width, dtype=np.int64)
        numbers += np.maximum(first, second)
        return numbers

    def pairs(self) -> NDArray[np.int64]:
        """(P,) a number for the two items of each trial, in whichever order and spelling."""
        return self._pairs(*self._items())

    def _look_for_repeats(self, known: int | None) -> None:
        """Finds self-matches and repeats, and refuses pairs with two labels, by one sort."""
        first, second = self._items()
        object.__setattr__(self, "itself", np.flatnonzero(first == second))
        object.__setattr__(self, "repeats", known or 0)
        if self.target is None or known is not None:
            return
        # Equal numbers but for the last two bits, which are the label, are one pair.
        names, marked = self.enrol_ids + self.probe_ids, self._pairs(first, second)
        marked *= 4
        marked += self.target.view(np.int8)
        if self.spoof is not None:
            marked += 2 * np.asarray(self.spoof, dtype=np.bool_)
        marked.sort()
        again = np.flatnonzero((marked[1:] ^ marked[:-1]) < 4)
        low, high = np.divmod(marked[again] >> 2, max(1, len(names)))
        object.__setattr__(self, "repeats", int(np.count_nonzero(low != high)))
        clash = np.flatnonzero(marked[again] != marked[again + 1])
        if clash.size:
            at = again[clash[0]]
            pair = quoted(f"{names[low[clash[0]]]} {names[high[clash[0]]]}")
            labels = " and ".join(_LABELS[marked[row] & 3] for row in (at + 1, at))
            raise LikenessError(f"pairs are labelled both {labels} (first: {pair}); remove one")

    def __len__(self) -> int:
        return int(self.enrol.size)

    def rows(self, kept: NDArray[Any], self_matches: int | None = None) -> Trials:
        """Some of the trials, by (K,) rows or (P,) bool, and the ids that these have."""
        columns: dict[str, Any] = {}
        for side in ("enrol", "probe"):
            ids, index = getattr(self, f"{side}_ids"), getattr(self, side)[kept]
            seen = np.zeros(len(ids), dtype=np.bool_)  # a sort of millions takes seconds
            seen[index] = True
            columns[side] = (np.cumsum(seen, dtype=np.int32) - 1)[index]
            columns[f"{side}_ids"] = tuple(compress(ids, seen.tolist()))
        for label in ("target", "spoof"):
            values = getattr(self, label)
            columns[label] = None if values is None else values[kept]
        before = self.self_matches if self_matches is None else self_matches
        others = np.ones(len(self), dtype=np.bool_)
        others[self.itself] = False
        is_subset = kept.dtype == np.bool_  # rows may be named twice
        is_known = is_subset and (not self.repeats or np.array_equal(kept, others))
        known = self.repeats if is_known else None
        return Trials(**columns, self_matches=before, known_repeats=known)

    def __repr__(self) -> str:
        num = "no" if self.target is None else int(self.target.sum())
        return (
            f"<Trials: {len(self)} between {len(self.enrol_ids)} enrolment and "
            f"{len(self.probe_ids)} probe ids, {num} known target trials>"
        )


def pair_text(trials: Trials, row: int) -> str:
    """The ids `enrol probe` of the trial in one row, for messages."""
    pair = trials.enrol_ids[trials.enrol[row]], trials.probe_ids[trials.probe[row]]
    return " ".join(map(shorten, pair))


@dataclass(frozen=True, eq=False)
class Scores:
    """P scores, HIGHER = MORE SIMILAR, always. values: (P,) float64 finite. target: (P,) bool."""

    values: Floats
    target: Bools

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float64)
        target = boolean_labels("scores", self.target)
        if values.ndim != 1 or values.shape != target.shape:
            raise LikenessError(f"scores {values.shape} and labels {target.shape} must be (P,)")
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise LikenessError(f"the score of trial {bad[0] + 1} is {values[bad[0]]}, not finite")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "target", target)

    def __len__(self) -> int:
        return int(self.values.size)

    def __repr__(self) -> str:
        ends = f", {self.values.min():.4g} to {self.values.max():.4g}" if len(self) else ""
        size = counted(len(self), "trial")
        return f"<Scores of {size}, {int(self.target.sum())} of them targets{ends}>"

    @property
    def targets(self) -> Floats:
        """Scores of the target trials."""
        return self.values[self.target]

    @property
    def nontargets(self) -> Floats:
        """Scores of the nontarget trials."""
        return self.values[~self.target]
