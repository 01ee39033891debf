"""The central types of evaluation: Embeddings, Trials, Scores.

Checked on construction, then frozen.

One legend for all docstrings: N items, D dims, P trials, Q probes, G gallery, C classes, B batch, T
frames, F mel bins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int32]

_SHOWN = 5  # how many offenders an error names
_LONGEST = 60  # characters of a value that a message quotes
UNKNOWN = "unknown"  # the group of items without a value


def shortened(text: str, most: int = _LONGEST) -> str:
    """A text for a message or a legend, of which some of the beginning and of the end is shown.

    >>> shortened("a" * 50 + "b", 44)
    'aaaaaaaaaaaaaaaaaaaa...aaaaaaaaaaaaaaaaaaaaaaab'
    """
    return text if len(text) <= most else f"{text[:20]}...{text[20 - most :]}"


def quoted(value: object) -> str:
    """The repr of a value for a message, `shortened`, however large the value is.

    >>> quoted("ann/1"), len(quoted("x" * 300_000_000))
    ("'ann/1'", 63)
    """
    if isinstance(value, str | bytes):
        value = value[:1000]  # the repr of all of it would take as much memory again
    return shortened(repr(value))


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


def check_choice(name: str, value: object, allowed: Iterable[str]) -> None:
    """Refuses a value that is not among the names that a setting may have.

    >>> check_choice("norm", "q", ("as", "s"))
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown norm 'q'; choose one of as, s
    """
    names = tuple(allowed)
    if value not in names:
        raise LikenessError(f"unknown {name} {value!r}; choose one of {', '.join(map(str, names))}")


def freeze_numbers(settings: object, *names: str) -> None:
    """Makes tuples of settings that are sequences of numbers; refuses a number alone, or a text.

    >>> from types import SimpleNamespace
    >>> freeze_numbers(SimpleNamespace(fars=0.01), "fars")
    Traceback (most recent call last):
    ...
    likeness.LikenessError: fars: 0.01 is no sequence of numbers; write it in brackets: (0.01,)
    """
    for name in names:
        values = getattr(settings, name)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise LikenessError(
                f"{name}: {values!r} is no sequence of numbers; write it in brackets: ({values!r},)"
            )
        object.__setattr__(settings, name, tuple(values))


def check_counts(name: str, values: Iterable[object], *, least: int = 1) -> None:
    """Refuses a value that is no whole number of at least `least`.

    >>> check_counts("ks", (1, 0))
    Traceback (most recent call last):
    ...
    likeness.LikenessError: ks: 0 is not a whole number from 1; give such numbers only
    """
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise LikenessError(
                f"{name}: {value!r} is not a whole number from {least}; give such numbers only"
            )


def nfc(text: str) -> str:
    """The text in Unicode NFC, in which names are compared: ids, subjects, labels, groups.

    macOS writes the names of files in NFD, in which an accent is a character of its own; the same
    name in a list is mostly NFC. What reads names from files, or from the names of files, calls
    this once; nothing asks again. A path keeps the form that the file system has.

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
        raise LikenessError(
            f"the name {text!a} is not UTF-8 text, as names from archives of other systems may be; "
            "rename it"
        ) from None
    return normalize("NFC", text)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """RAW embeddings of N items: the norm carries quality and is kept.

    ids: N distinct strings, kept in Unicode NFC. matrix: (N, D) float32, finite. meta: text that
    travels with the file (model digest, similarity to use, modality).
    Raises LikenessError for a wrong shape, a repeated id, or a row that is not finite.
    """

    ids: tuple[str, ...]
    matrix: Floats32
    meta: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):  # rows that overflow are refused below
            matrix = np.ascontiguousarray(self.matrix, dtype=np.float32)
        if matrix.ndim != 2 or matrix.shape[0] != len(self.ids) or matrix.shape[1] < 1:
            raise LikenessError(
                f"embeddings: expected a matrix of ({len(self.ids)}, D >= 1), one row per id, but "
                f"got shape {matrix.shape}"
            )
        object.__setattr__(self, "matrix", matrix)
        object.__setattr__(self, "ids", tuple(self.ids))
        object.__setattr__(self, "meta", MappingProxyType(dict(self.meta)))
        if len(self._row) != len(self.ids):
            repeated = Counter(self.ids).most_common(1)[0][0]
            raise LikenessError(
                f"embeddings: {repeated!r} is there twice; ids are compared in Unicode NFC, and "
                "every one must be unique"
            )
        # blocks stay in the cache, and need no memory of the matrix's size
        step = max(1, (1 << 20) // matrix.shape[1])
        for start in range(0, len(matrix), step):
            if not np.isfinite(matrix[start : start + step]).all():
                row = int(np.argmin(np.isfinite(matrix[start : start + step]).all(axis=1)))
                raise LikenessError(
                    f"embeddings: that of {self.ids[start + row]!r} holds NaN or infinity; extract "
                    "it again or remove it"
                )

    def __repr__(self) -> str:
        meta = "".join(f", {key} {value[:16]}" for key, value in self.meta.items())
        norms = f", norms {self.norms.min():.4g} to {self.norms.max():.4g}" if self.ids else ""
        return f"<Embeddings of {len(self)} items, {self.matrix.shape[1]} dimensions{norms}{meta}>"

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _row(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.ids)}

    @cached_property
    def norms(self) -> Floats32:
        """(N,) Euclidean norms."""
        return norms_of(self.matrix).astype(np.float32)

    def unit(self) -> Floats32:
        """(N, D) rows of length 1, whatever their norm; a zero row stays zero."""
        norms: Floats32 | Floats = self.norms
        # rounded to float32, such norms lose digits
        if norms.size and not (norms.min() > 1e-15 and norms.max() < 1e18):
            norms = norms_of(self.matrix)
        rows: Floats32 = unit_rows(self.matrix, norms)
        return rows

    def rows(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Row numbers (len(ids),) of `ids`.

        LikenessError names the first without an embedding.
        """
        asked = list(ids)
        rows = np.fromiter(
            (self._row.get(name, -1) for name in asked), dtype=np.int64, count=len(asked)
        )
        for i in np.flatnonzero(rows < 0).tolist():
            rows[i] = self._row.get(nfc(asked[i]), -1)
        if (rows < 0).any():
            raise LikenessError(f"{asked[int(np.argmin(rows))]!r} has no embedding")
        return rows


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
        raise LikenessError(
            f"{name}: labels must be True or False, or 1 for a target and 0 for a nontarget trial, "
            f"but {labels.dtype} of other values was given; give booleans, for example labels == "
            "'target'"
        )
    return np.ascontiguousarray(labels, dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class Trials:
    """P trials between enrolment and probe ids.

    enrol_ids, probe_ids: the distinct ids of each side. enrol, probe: (P,) int32 indices into them.
    target: (P,) bool, or None for a blind list. spoof: (P,) bool, which of the others imitate the
    enrolled subject; None where labels know no spoofs.
    """

    enrol_ids: tuple[str, ...]
    probe_ids: tuple[str, ...]
    enrol: Ints
    probe: Ints
    target: Bools | None = None
    spoof: Bools | None = None

    def __post_init__(self) -> None:
        sides = (("enrol", self.enrol_ids), ("probe", self.probe_ids))
        stated = [np.asarray(getattr(self, side)) for side, _ in sides]
        shapes = {side.shape for side in stated}
        if self.target is not None:
            object.__setattr__(self, "target", boolean_labels("trials", self.target))
            shapes.add(np.shape(self.target))
        # The bounds are those of the numbers before they become int32, which may wrap around.
        if len(shapes) > 1 or not all(
            index.ndim == 1
            and (
                not index.size
                or (index.dtype.kind in "iu" and index.min() >= 0 and index.max() < len(ids))
            )
            for index, (_, ids) in zip(stated, sides, strict=True)
        ):
            raise LikenessError(
                f"trials: enrol and probe must be (P,) indices into {len(self.enrol_ids)} and "
                f"{len(self.probe_ids)} ids, with a label for each if there are labels, but got "
                f"{stated[0].dtype} and {stated[1].dtype} of shapes {sorted(shapes)}"
            )
        for index, (side, _) in zip(stated, sides, strict=True):
            object.__setattr__(self, side, np.ascontiguousarray(index, dtype=np.int32))

    def __len__(self) -> int:
        return int(self.enrol.size)

    def rows(self, kept: NDArray[Any]) -> Trials:
        """Some of the trials, by (K,) rows or (P,) bool, and the ids that these have."""
        columns: dict[str, Any] = {}
        for side in ("enrol", "probe"):
            ids = getattr(self, f"{side}_ids")
            used, columns[side] = np.unique(getattr(self, side)[kept], return_inverse=True)
            columns[f"{side}_ids"] = tuple(ids[row] for row in used.tolist())
        for label in ("target", "spoof"):
            values = getattr(self, label)
            columns[label] = None if values is None else values[kept]
        return Trials(**columns)

    def __repr__(self) -> str:
        num = "no" if self.target is None else int(self.target.sum())
        return (
            f"<Trials: {len(self)} between {len(self.enrol_ids)} enrolment and "
            f"{len(self.probe_ids)} probe ids, {num} known target trials>"
        )


@dataclass(frozen=True, eq=False)
class Scores:
    """P scores, HIGHER = MORE SIMILAR, always. values: (P,) float64 finite. target: (P,) bool."""

    values: Floats
    target: Bools

    def __post_init__(self) -> None:
        values = np.ascontiguousarray(self.values, dtype=np.float64)
        target = boolean_labels("scores", self.target)
        if values.ndim != 1 or values.shape != target.shape:
            raise LikenessError(
                f"scores: values {values.shape} and labels {target.shape} must both be (P,)"
            )
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise LikenessError(
                f"scores: that of trial {int(bad[0]) + 1} is {values[bad[0]]}; every trial needs a "
                "finite score"
            )
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "target", target)

    def __len__(self) -> int:
        return int(self.values.size)

    def __repr__(self) -> str:
        ends = f", {self.values.min():.4g} to {self.values.max():.4g}" if len(self) else ""
        return f"<Scores of {len(self)} trials, {int(self.target.sum())} of them targets{ends}>"

    @property
    def targets(self) -> Floats:
        """Scores of the target trials."""
        return self.values[self.target]

    @property
    def nontargets(self) -> Floats:
        """Scores of the nontarget trials."""
        return self.values[~self.target]
