"""The items of a data set, in columns: flat arrays, of which a row is an Item when it is read."""

from __future__ import annotations

import io
import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.files import refuse_device
from eval.formats.provenance import digest
from eval.types import name_first, nfc
from toolkit.data import remote
from toolkit.data.columns import Coded, Index, Names, Texts

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
    of indices give Items again. Forked workers share the arrays as they are.

    A path is a beginning, which many items have in common, and an end.

    Attributes:
        ids: The id of each item.
        beginnings: The beginning of each path: a folder with the slash, or the whole of a shard.
        names: The end of each path; empty in a shard.
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
    names: Texts
    labels: Coded
    spans: NDArray[np.int64] | None = None
    endings: Coded | None = None
    stretches: NDArray[np.float64] | None = None
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
        id, path = self.ids[index], f"{self.beginnings[index]}{self.names[index]}"
        span = None
        if self.spans is not None:
            offset, size = self.spans[index].tolist()
            span = None if offset == NO_SPAN[0] else (offset, size)
        ending = "" if self.endings is None else self.endings[index]
        stretch = None
        if self.stretches is not None:
            stretch = _stretch(*self.stretches[index].tolist())
        return Item(id, Path(path), self.labels[index], span, ending or "", stretch)

    def __iter__(self) -> Iterator[Item]:
        return map(self.__getitem__, range(len(self)))

    def __add__(self, other: Iterable[Item]) -> Items:
        return Items.of(chain(self, other))

    def __radd__(self, other: Iterable[Item]) -> Items:
        return Items.of(chain(other, self))

    def take(self, indices: Index) -> Items:
        """Returns the items of these rows (M,), each from 0 to N - 1."""
        return self._rows(indices)

    def _rows(self, index: slice | Index) -> Items:
        """The items of a slice of step 1, or of indices."""

        def rows(column: Any) -> Any:
            if isinstance(column, Texts):
                return column[index] if isinstance(index, slice) else column.take(index)
            if isinstance(column, Coded):
                return Coded(column.numbers[index], column.names)
            return None if column is None else column[index]

        columns = {column.name: rows(getattr(self, column.name)) for column in fields(self)[:-1]}
        further = {name: rows(column) for name, column in self.further.items()}
        return Items(**columns, further=further)

    def column(self, name: str) -> Coded | NDArray[np.float64]:
        """Returns a further column of the list that the items were read from.

        Args:
            name: "start" and "end" (seconds), "sex", "age", "session", "group", or the name of any
                further column.

        Returns:
            (N,) numbers of seconds, which are NaN where there is none; or N texts, None where there
            is none.

        Raises:
            LikenessError: The list has no such column.
        """
        if name in _SECONDS and self.stretches is not None:
            times: NDArray[np.float64] = self.stretches[:, _SECONDS.index(name)]
            return times
        if name not in self.further:
            known = ", ".join([*_SECONDS[: 2 * (self.stretches is not None)], *self.further])
            raise LikenessError(
                f"the items have no column {name!r}, but {known or 'none'}; add it to their table"
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
        self._ids, self._path_ends = list[Texts](), list[Texts]()
        self._beginnings: dict[str, int] = defaultdict(count().__next__)
        self._labels, self._endings = Names(), Names()
        self._further: dict[str, Names] = defaultdict(Names)
        # Of each block the values of each column that it has.
        self._blocks: list[dict[str, Any]] = []
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
        self._ids.append(Texts.of(ids))
        # The whole path of a shard is one beginning, which its many items have in common.
        cuts = [len(path) if spans is not None else path.rfind("/") + 1 for path in paths]
        begins = [path[:cut] for path, cut in zip(paths, cuts, strict=True)]
        ends = [path[cut:] for path, cut in zip(paths, cuts, strict=True)]
        self._path_ends.append(Texts.of(ends))
        block: dict[str, Any] = {"begin": _numbered(begins, self._beginnings)}
        if labels is not None:
            block["label"] = _numbered(labels, self._labels)
        if spans is not None:
            block["span"] = spans
        if endings is not None:
            block["ending"] = _numbered(endings, self._endings)
        further = further or {}
        if not further.keys().isdisjoint(_SECONDS):
            none: Sequence[str] = [""] * len(ids)
            block["stretch"] = self._times(ids, *(further.get(name, none) for name in _SECONDS))
        for name in further.keys() - set(_SECONDS):
            known = self._further[name]
            known[""] = -1
            block[f"further {name}"] = _numbered(further[name], known)
        self._blocks.append(block)

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

    def _times(
        self, ids: Sequence[str], starts: Sequence[str], ends: Sequence[str]
    ) -> NDArray[np.float64]:
        """The starts and ends (N, 2) that texts state, NaN for none; notes those that are wrong."""
        times = np.full((len(ids), 2), np.nan)
        for row, (id, start, end) in enumerate(zip(ids, starts, ends, strict=True)):
            try:
                times[row] = float(start or np.nan), float(end or np.nan)
                is_stretch = 0 <= float(start or 0) < float(end or np.inf)
            except ValueError:
                is_stretch = False
            if not is_stretch:
                self._bad_times.append(f"{id}: {start or 0} to {end or 'end'}")
        return times

    def _column(self, name: str, absent: Any, *, always: bool = False) -> Any:
        """The values of a column in all blocks; None where no block has it."""
        if not always and not any(name in block for block in self._blocks):
            return None
        absent = np.asarray(absent)
        parts = [
            block.pop(name) if name in block else np.full((len(ids), *absent.shape), absent)
            for block, ids in zip(self._blocks, self._ids, strict=True)
        ]
        return np.concatenate([np.zeros((0, *absent.shape), absent.dtype), *parts])

    def build(self) -> Items:
        """Returns all rows as Items.

        Raises:
            LikenessError: Times are no numbers, negative, or end before they start; they are
                counted, and the first is named.
        """
        if bad := self._bad_times:
            raise LikenessError(
                f"{len(bad)} of {sum(map(len, self._ids))} items have times that are no stretch of "
                f"a recording ({name_first(bad)}); a start of at least 0 and a later end are "
                "needed, both in seconds"
            )
        none = np.int32(-1)
        endings = self._column("ending", np.int32(self._endings[""]))
        return Items(
            Texts.joined(self._ids),
            Coded(self._column("begin", none, always=True), Texts.of(list(self._beginnings))),
            Texts.joined(self._path_ends),
            self._labels.coded(self._column("label", none, always=True)),
            self._column("span", NO_SPAN),
            None if endings is None else self._endings.coded(endings),
            self._column("stretch", _NO_STRETCH),
            {
                name: names.coded(self._column(f"further {name}", none))
                for name, names in self._further.items()
            },
        )


def _numbered(texts: Sequence[str | None], numbers: Mapping[Any, int]) -> NDArray[np.int32]:
    """The number of each text, of which one that is new takes the next."""
    return np.fromiter(map(numbers.__getitem__, texts), np.int32, len(texts))


def _stretch(start: float, end: float) -> tuple[float, float] | None:
    """The stretch of an item with these times, of which NaN is no time."""
    if start != start and end != end:
        return None
    return (start if start == start else 0.0, end if end == end else np.inf)


def distinct_labels(items: Sequence[Item]) -> list[str]:
    """Returns the labels of items, sorted; "None" for items without.

    Example:
        >>> from pathlib import Path
        >>> distinct_labels([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        ['ann', 'bob']
    """
    return sorted(map(str, set(Items.of(items).labels)))


def fingerprint(items: Sequence[Item]) -> str:
    """Returns the digest of the ids and labels of items, in their order.

    Example:
        >>> from pathlib import Path
        >>> fingerprint([Item("1", Path("1"), "bob")]) == digest(["1\\0bob"])
        True
    """
    items = Items.of(items)
    return digest(map("\0".join, zip(items.ids, map(str, items.labels), strict=True)))


def label_numbers(items: Sequence[Item]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Numbers the classes of items in the order of their names.

    Args:
        items: N items with labels.

    Returns:
        The sorted class names, and the class number of each item (N,).

    Raises:
        LikenessError: An item has no label.

    Example:
        >>> from pathlib import Path
        >>> label_numbers([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        (('ann', 'bob'), array([1, 0]))
    """
    items = Items.of(items)
    numbers = items.labels.numbers.astype(np.int64)
    if (numbers < 0).any():
        unlabelled = items[int(numbers.argmin())].id
        raise LikenessError(f"{unlabelled!r} has no label; training needs one for each item")
    used, rank = np.unique(numbers, return_inverse=True)
    return tuple(items.labels.names[number] for number in used.tolist()), rank


def check_unique(items: Sequence[Item], where: str) -> None:
    """Refuses repeated ids.

    Args:
        items: The items.
        where: The name of the list or folder, with which the message begins.

    Raises:
        LikenessError: An id is repeated.
    """
    items = Items.of(items)
    seen: dict[str, Item] = {}
    for item in map(items.__getitem__, items.ids.repeated().tolist()):  # the others are unique
        if seen.setdefault(item.id, item) is not item:
            raise LikenessError(
                f"{where}: the id {item.id!r} is there twice ({seen[item.id].path.name!a} and "
                f"{item.path.name!a}; ids are compared in Unicode NFC); remove one, or give each a "
                "name of its own"
            )
