"""The items of a data set, in columns: flat arrays, of which a row is an Item when it is read."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.files import refuse_device
from eval.types import name_first, nfc
from toolkit.data import remote
from toolkit.data.columns import (
    Coded,
    Growing,
    GrowingTexts,
    Index,
    Names,
    Shared,
    Texts,
    blocks,
)

MAX_SPAN = 2**30  # bytes of one item in a shard: it is read into memory whole
NO_SPAN = (np.iinfo(np.int64).min, 0)  # the row of an item that is a whole file
_SECONDS = ("start", "end")  # further columns that are numbers; the others are texts
_NO_STRETCH = (np.nan, np.nan)
_FEW = 4096  # rows that are made together while items are gone through


class Item(NamedTuple):
    """One file of a data set: a unique id, where it lies, and its class.

    Attributes:
        id: Its name, which is unique in its data set.
        path: The file, or the tar shard in which it lies. A URL has one slash less here, as Path
            writes it: s3:/bucket/a.wav (see `remote`).
        label: Its class; None if it is not known.
        span: Offset and size in bytes inside a tar shard; None if `path` is the file itself.
        ending: The suffix of a span, such as ".flac".
        stretch: Start and end, in seconds, of the part of a recording that it is; an infinite end
            is that of the recording. None if it is the whole.

    Example:
        >>> Item("ann/1", Path("voices/ann/1.FLAC"), "ann").suffix
        '.flac'
    """

    id: str
    path: Path
    label: str | None = None
    span: tuple[int, int] | None = None
    ending: str = ""
    stretch: tuple[float, float] | None = None

    @property
    def suffix(self) -> str:
        """The suffix that tells its format, in lower case, such as ".flac"."""
        return (self.ending or self.path.suffix).lower()

    @property
    def name(self) -> str:
        """The name that errors give it: its path, SHARD[id], or PATH[1.5-3 s]."""
        if self.stretch is not None:
            start, end = self.stretch
            return f"{self._place}[{start:g}-{f'{end:g}' if end < np.inf else ''} s]"
        return self._place if self.span is None else f"{self.path}[{self.id}]"

    @property
    def _place(self) -> str:
        """Its path as it is written: Path has one slash less in s3://bucket/a.wav."""
        return remote.url_of(self.path) if remote.is_url(self.path) else str(self.path)

    def open(self) -> BinaryIO:
        """Opens its bytes: the file, or the span or the file of a URL in memory.

        The caller closes it.

        Raises:
            OSError: As from open().
            LikenessError: It is a pipe or a device, a span or a file of a URL over 1 GiB, or a span
                past the end of the shard.
            Unreachable: The store of a URL cannot be reached, or refuses the credentials.
        """
        if remote.is_url(self.path) and self.span is None:
            return io.BytesIO(remote.read(remote.url_of(self.path), MAX_SPAN))
        if self.span is None:
            refuse_device(self.path)
            return self.path.open("rb")
        offset, size = self.span
        if offset < 0 or not 0 <= size <= MAX_SPAN:
            raise LikenessError(
                f"{self.name}: its span is {size} bytes from byte {offset}; at most {MAX_SPAN} "
                "bytes are read; write the shard's index again"
            )
        # The shard is opened for each item, so that forked workers share no position in it.
        with self.path.open("rb") as shard:
            shard.seek(offset)
            content = shard.read(size)
        if len(content) < size:
            raise LikenessError(
                f"{self.name}: only {len(content)} of its {size} bytes are in the shard, which is "
                "cut short; fetch the shard again"
            )
        return io.BytesIO(content)


@dataclass(frozen=True, eq=False)
class Items(Sequence[Item]):
    """The items of a data set in flat arrays: some 20 bytes an item, and its text.

    Ids and labels are names that are compared: here they are in Unicode NFC, whoever wrote them.
    Paths stay as the file system has them.

    It is a sequence of Item. `items[7]` makes the Item when it is asked for; a slice and an array
    of indices give Items again. Forked workers share the arrays as they are, and spawned ones
    through shared memory (columns.Shared).

    A path is a beginning, which many items have in common, and an end. Where the end is the id, as
    in a folder tree, it takes no room of its own.

    Attributes:
        ids: The id of each item.
        beginnings: The beginning of each path: a folder with the slash, or the whole of a shard.
        with_id: (N,) bool, whether the id is the end of the path.
        names: The end of each path whose end is not the id; None where there are none.
        labels: The label of each item.
        spans: (N, 2) int64, the offset and size in a shard; NO_SPAN for a whole file; None where
            all are whole files.
        endings: The suffix of each span; None where all are empty.
        stretches: (N, 2) float64, start and end of each part of a recording in seconds; NaN where
            there is none; None where no item has one.
        further: Columns that a list has beside these, by name (see `column`).

    Example:
        >>> items = Items.of(Item(f"ann/{i}.wav", Path(f"data/ann/{i}.wav"), "ann") for i in (1, 2))
        >>> items[1].path.as_posix(), len(items[:1]), items[np.array([1, 0])].ids[0]
        ('data/ann/2.wav', 1, 'ann/2.wav')
    """

    ids: Texts
    beginnings: Coded
    with_id: Shared
    names: Texts | None
    labels: Coded
    spans: Shared | None = None
    endings: Coded | None = None
    stretches: Shared | None = None
    further: Mapping[str, Coded] = field(default_factory=dict)

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        """Puts items into columns; each Item may be forgotten once it was given."""
        if isinstance(items, Items):
            return items
        made = ItemsBuilder()
        rows = iter(items)
        while block := list(islice(rows, _FEW)):
            made.add_items(block)
        return made.build()

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        first = f", the first is {self[0]}" if len(self) else ""
        return f"Items({len(self)} items{first})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice | NDArray[np.integer[Any]]) -> Items: ...
    def __getitem__(self, index: int | slice | NDArray[np.integer[Any]]) -> Item | Items:
        if isinstance(index, slice):
            if index.step in (None, 1):
                return self._rows(index)
            return self.take(np.array(range(len(self))[index], dtype=np.int64))
        if isinstance(index, np.ndarray):
            return self.take(np.arange(len(self))[index])
        id, path = self.ids[index], self.beginnings[index] or ""
        if self.with_id.view[index]:
            path += id
        elif self.names is not None:
            path += self.names[index]
        span = None
        if self.spans is not None:
            offset, size = self.spans.view[index, 0], self.spans.view[index, 1]
            span = None if offset == NO_SPAN[0] else (offset, size)
        ending = "" if self.endings is None else self.endings[index]
        stretch = None
        if self.stretches is not None:
            stretch = _stretch(self.stretches.view[index, 0], self.stretches.view[index, 1])
        return Item(id, Path(path), self.labels[index], span, ending or "", stretch)

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), _FEW):
            stop = min(start + _FEW, len(self))
            empty = [""] * (stop - start)
            spans: list[tuple[int, int] | None] = [None] * (stop - start)
            if self.spans is not None:
                rows = map(tuple, self.spans.array[start:stop].tolist())
                spans = [None if row[0] == NO_SPAN[0] else row for row in rows]
            endings = empty if self.endings is None else self.endings.strings(start, stop)
            stretches: list[tuple[float, float] | None] = [None] * (stop - start)
            if self.stretches is not None:
                stretches = [_stretch(*row) for row in self.stretches.array[start:stop].tolist()]
            names = empty if self.names is None else self.names.strings(start, stop)
            ids, text, path = self.ids.strings(start, stop), None, Path()
            for id, first, joins, name, *others in zip(
                ids,
                self.beginnings.strings(start, stop),
                self.with_id.array[start:stop].tolist(),
                names,
                self.labels.strings(start, stop),
                spans,
                endings,
                stretches,
                strict=True,
            ):
                place = f"{first}{id if joins else name}"
                if place != text:
                    text, path = place, Path(place)
                yield Item(id, path, *others)

    def __add__(self, other: Iterable[Item]) -> Items:
        return Items.of(chain(self, other))

    def __radd__(self, other: Iterable[Item]) -> Items:
        return Items.of(chain(other, self))

    def take(self, indices: Index) -> Items:
        """Returns the items of these rows (M,), each from 0 to N - 1."""
        return self._rows(indices)

    def _rows(self, index: slice | Index) -> Items:
        """The items of a slice of step 1, or of indices."""

        def of_texts(texts: Texts) -> Texts:
            return texts[index] if isinstance(index, slice) else texts.take(index)

        def rows(column: Any) -> Any:
            if isinstance(column, Shared):
                return Shared(column.array[index])
            return None if column is None else Coded(column.numbers[index], column.names)

        return Items(
            of_texts(self.ids),
            rows(self.beginnings),
            rows(self.with_id),
            None if self.names is None else of_texts(self.names),
            rows(self.labels),
            rows(self.spans),
            rows(self.endings),
            rows(self.stretches),
            {name: rows(column) for name, column in self.further.items()},
        )

    def column(self, name: str) -> Coded | NDArray[np.float64]:
        """Returns a further column of the list that the items were read from.

        Args:
            name: "start" and "end" (seconds), "sex", "age", "session" or "group".

        Returns:
            (N,) numbers of seconds, which are NaN where there is none; or N texts, None where there
            is none.

        Raises:
            LikenessError: The list has no such column.
        """
        if name in _SECONDS and self.stretches is not None:
            times: NDArray[np.float64] = self.stretches.array[:, _SECONDS.index(name)]
            return times
        if name not in self.further:
            known = ", ".join([*_SECONDS[: 2 * (self.stretches is not None)], *self.further])
            raise LikenessError(
                f"the items have no column {name!r}, but {known or 'none'}; lists carry the "
                "columns start, end, sex, age, session and group"
            )
        return self.further[name]

    def sorted_as_paths(self) -> Items:
        """Returns the items in the order of their ids, which are paths."""
        return self.take(self.ids.order(of_paths=True))

    def labelled(self, labels: Collection[str]) -> NDArray[np.bool_]:
        """Returns which items have one of these labels (N,)."""
        table = np.zeros(len(self.labels.names) + 1, dtype=bool)  # the last is that of no label
        table[:-1] = [name in labels for name in self.labels.names]
        chosen: NDArray[np.bool_] = table[self.labels.numbers]
        return chosen


class ItemsBuilder:
    """Takes blocks of rows, and puts them together as Items.

    Example:
        >>> builder = ItemsBuilder()
        >>> builder.add(["a/1.wav"], ["data/a/1.wav"], ["a"])
        >>> builder.build()[0].label
        'a'
    """

    def __init__(self) -> None:
        self._ids, self._size = GrowingTexts(), 0
        self._beginnings = _Numbers()
        self._begins, self._labelled = Growing(np.int32), Growing(np.int32)
        self._with_id = Growing(np.bool_)
        self._names: GrowingTexts | None = None
        self._labels, self._endings = Names(), Names()
        self._spans, self._ended = Growing(np.int64), Growing(np.int32)
        self._stretches = Growing(np.float64)
        self._has_spans = self._has_endings = self._has_stretches = False
        self._further: dict[str, tuple[Growing, Names]] = {}
        self._bad_times: list[str] = []

    def add(
        self,
        ids: Sequence[str],
        paths: Sequence[str],
        labels: Sequence[str | None] | None = None,
        spans: NDArray[np.int64] | None = None,
        endings: Sequence[str] | None = None,
        further: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Adds N rows.

        Args:
            ids: The id of each.
            paths: The path of each, with slashes and as Path writes it.
            labels: The label of each; None where no item of the block has one.
            spans: (N, 2) int64, the offset and size of each in its shard; None for files.
            endings: The suffix of each span.
            further: Further columns. Of "start" and "end", seconds, the stretches are made; an
                empty text is no time. A column that a block lacks is empty there.
        """
        if not "".join(ids).isascii():
            ids = [nfc(id) for id in ids]
        self._ids.add(ids)
        self._add_paths(ids, paths, whole=spans is not None)
        numbers = [-1] * len(ids) if labels is None else map(self._labels.__getitem__, labels)
        self._labelled.add(np.fromiter(numbers, np.int32, len(ids)))
        if spans is not None and not self._has_spans:
            self._has_spans = True
            for start, stop in blocks(self._size):
                self._spans.add(np.tile(NO_SPAN, (stop - start, 1)))
        if self._has_spans:
            self._spans.add(np.tile(NO_SPAN, (len(ids), 1)) if spans is None else spans)
        if endings is not None and not self._has_endings:
            self._has_endings = True
            self._ended.add(np.full(self._size, self._endings[""]))
        if self._has_endings:
            texts = endings if endings is not None else [""] * len(ids)
            self._ended.add(np.fromiter(map(self._endings.__getitem__, texts), np.int32, len(ids)))
        further = further or {}
        if not further.keys().isdisjoint(_SECONDS):
            none: Sequence[str] = [""] * len(ids)
            stated = [further.get(name, none) for name in _SECONDS]
            self._add_stretches(np.array([_seconds(column) for column in stated]).T, ids, stated)
        elif self._has_stretches:
            self._stretches.add(np.tile(_NO_STRETCH, (len(ids), 1)))
        for name in (further.keys() - set(_SECONDS)) | self._further.keys():
            self._add_further(name, further.get(name) or [""] * len(ids))
        self._size += len(ids)

    def add_items(
        self, items: Sequence[Item], further: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Adds items, with their values in further columns."""
        ids, paths, labels, spans, endings, stretches = zip(*items, strict=True)
        places = None
        if any(spans):
            places = np.array([NO_SPAN if span is None else span for span in spans], np.int64)
        texts = list(map(str, paths) if os.sep == "/" else [path.as_posix() for path in paths])
        if any(stretches):
            times = [("", "") if stretch is None else map(repr, stretch) for stretch in stretches]
            further = {
                **(further or {}),
                **dict(zip(_SECONDS, zip(*times, strict=True), strict=True)),
            }
        self.add(ids, texts, labels, places, endings if any(endings) else None, further)

    def _add_paths(self, ids: Sequence[str], paths: Sequence[str], *, whole: bool) -> None:
        """Adds the paths of rows; a whole path is one beginning, for the many items of a shard."""
        first = paths[0].removesuffix(ids[0]) if ids else ""
        # Where all rows have the same beginning before their ids, this is seen at once.
        with_id = not whole and f"\0{first}".join(["", *ids]) == "\0".join(["", *paths])
        self._with_id.add(np.full(len(ids), with_id))
        names: Sequence[str] = [""] * len(ids)
        if with_id:
            self._begins.add(np.full(len(ids), self._beginnings[first]))
        elif whole:
            self._begins.add(list(map(self._beginnings.__getitem__, paths)))
        else:
            cuts = [path.rfind("/") + 1 for path in paths]
            begins = [path[:cut] for path, cut in zip(paths, cuts, strict=True)]
            self._begins.add(list(map(self._beginnings.__getitem__, begins)))
            names = [path[cut:] for path, cut in zip(paths, cuts, strict=True)]
        if self._names is None and any(names):
            self._names = GrowingTexts()
            for start, stop in blocks(self._size):
                self._names.add([""] * (stop - start))
        if self._names is not None:
            self._names.add(names)

    def _add_stretches(
        self, times: NDArray[np.float64], ids: Sequence[str], texts: Sequence[Sequence[str]]
    ) -> None:
        """Adds starts and ends (N, 2), and notes those that are no stretch of a recording."""
        if not self._has_stretches:
            self._has_stretches = True
            for start, stop in blocks(self._size):
                self._stretches.add(np.tile(_NO_STRETCH, (stop - start, 1)))
        starts, ends = np.nan_to_num(times[:, 0], posinf=np.inf), times[:, 1]
        good = (starts >= 0) & (starts < np.inf) & ~(ends <= starts)
        for column, values in zip(texts, times.T, strict=True):
            is_nan = np.isnan(values)
            if is_nan.any():
                good[[row for row in np.flatnonzero(is_nan).tolist() if column[row]]] = False
        for row in np.flatnonzero(~good).tolist():
            self._bad_times.append(f"{ids[row]}: {texts[0][row] or 0} to {texts[1][row] or 'end'}")
        self._stretches.add(times)

    def _add_further(self, name: str, values: Sequence[str]) -> None:
        """Adds the values of a further column; a column that is new is empty above."""
        if name not in self._further:
            self._further[name] = Growing(np.int32), Names()
            self._further[name][0].add(np.full(self._size, -1))
        growing, names = self._further[name]
        names[""] = -1
        growing.add(list(map(names.__getitem__, values)))

    def build(self) -> Items:
        """Returns all rows as Items.

        Raises:
            LikenessError: Times are no numbers, negative, or end before they start; they are
                counted, and the first is named.
        """
        if self._bad_times:
            raise LikenessError(
                f"{len(self._bad_times)} of {self._size} items have times that are no stretch of a "
                f"recording ({name_first(self._bad_times)}); a start of at least 0 and a later "
                "end are needed, both in seconds"
            )
        return Items(
            self._ids.texts(),
            Coded(self._begins.array(), Texts.of(list(self._beginnings))),
            Shared(self._with_id.array()),
            None if self._names is None else self._names.texts(),
            self._labels.coded(self._labelled.array()),
            Shared(self._spans.array().reshape(-1, 2)) if self._has_spans else None,
            self._endings.coded(self._ended.array()) if self._has_endings else None,
            Shared(self._stretches.array().reshape(-1, 2)) if self._has_stretches else None,
            {
                name: names.coded(growing.array())
                for name, (growing, names) in self._further.items()
            },
        )


class _Numbers(dict[str, int]):
    """Numbers for texts, in the order in which they are first asked for."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number


def _seconds(texts: Sequence[str]) -> NDArray[np.float64]:
    """The numbers that texts state (N,), NaN where they state none."""
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        return np.array([_number(text) for text in texts], dtype=np.float64)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _stretch(start: float, end: float) -> tuple[float, float] | None:
    """The stretch of an item with these times, of which NaN is no time."""
    if start != start and end != end:
        return None
    return (start if start == start else 0.0, end if end == end else np.inf)
