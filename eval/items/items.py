"""The items of a data set in columns of pyarrow, of which a row is an Item when it is read."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats import parquet
from likeness.eval.formats.files import refuse_device
from likeness.eval.items import remote
from likeness.eval.option import if_option
from likeness.eval.types import counted, item_ids, name_first, nfc

MAX_SPAN = 2**30  # bytes of one item in a shard: it is read into memory whole
BLOCK = 2**16  # rows that become a part of the table together
_SECONDS = ("start", "end")  # further columns that are numbers; the others are texts
# The columns of which an Item is made.
_COLUMNS = ("id", "folder", "file", "label", "ending", "offset", "size", "start", "end", "channel")
_FURTHER = "further "  # before the names of the user's own columns in the table
_FEW = 4096  # rows that are made together while items are gone through

Index = NDArray[np.int64]


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
        channel: The channel of a recording that it is, from 1; None for the average of all. 0 is
            the only one of a recording that has no other.

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
    channel: int | None = None

    @property
    def suffix(self) -> str:
        """The suffix that tells its format, in lower case, such as ".flac"."""
        return (self.ending or self.path.suffix).lower()

    @property
    def name(self) -> str:
        """The name that errors give it: its path, SHARD[id], or PATH[1.5-3 s, channel 2]."""
        # Path has one slash less in s3://bucket/a.wav.
        place = remote.url_of(self.path) if remote.is_url(self.path) else str(self.path)
        if self.span is not None:
            return f"{self.path}[{self.id}]"
        start, end = self.stretch or (0.0, np.inf)
        parts = [f"{start:g}-{f'{end:g}' if end < np.inf else ''} s"] * (self.stretch is not None)
        parts += [f"channel {self.channel}"] * (self.channel is not None)
        return f"{place}[{', '.join(parts)}]" if parts else place

    def open(self) -> BinaryIO:
        """Opens its bytes: the file, or the span or the file of a URL in memory.

        The caller closes it.

        Raises:
            OSError: As from open().
            LikenessError: It is a pipe or a device, a file of a URL over 1 GiB, or a span that is
                not in the shard or over 1 GiB.
            Unreachable: The store of a URL cannot be reached, or refuses the credentials.
        """
        if self.span is None:
            if not os.path.exists(self.path) and remote.is_url(self.path):
                return io.BytesIO(remote.read(remote.url_of(self.path), MAX_SPAN))
            refuse_device(self.path)
            return self.path.open("rb")
        offset, size = self.span
        content = b""
        # The shard is opened for each item, so that forked workers share no position in it.
        with self.path.open("rb") as shard:
            if offset >= 0 and size <= MAX_SPAN:
                shard.seek(offset)
                content = shard.read(size)
        if len(content) != size:
            part = (
                f"only {len(content)} of its {size} bytes (at most {MAX_SPAN}) from byte {offset}"
            )
            raise LikenessError(f"{self.name}: {part} can be read; fetch the shard again")
        return io.BytesIO(content)


class Items(Sequence[Item]):
    """The items of a data set in columns of pyarrow.

    It is a sequence of Item. `items[7]` makes the Item when it is asked for; a slice and an array
    of indices give Items again. Forked workers share the columns as they are.

    Ids, labels and the user's own columns are names that are compared: here they are in Unicode
    NFC, whoever wrote them. Paths stay as the file system has them.

    Attributes:
        table: The columns id, folder, file, label, perhaps offset, size and ending, start, end and
            channel, and the further ones. A path is a folder, which many items have in common, and
            a file; a shard is the whole path of its items. A text that is missing is empty or null,
            a number is NaN or null, and the offset of a whole file is -1 or null.

    Example:
        >>> items = Items.of(Item(f"ann/{i}.wav", Path(f"data/ann/{i}.wav"), "ann") for i in (1, 2))
        >>> items[1].path.as_posix(), len(items[:1]), items[np.array([1, 0])].ids[0]
        ('data/ann/2.wav', 1, 'ann/2.wav')
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self._of_items = table.select([name for name in _COLUMNS if name in table.column_names])

    @classmethod
    def of(cls, items: Iterable[Item]) -> Items:
        """Puts items into columns; each Item may be forgotten once it was given."""
        if isinstance(items, Items):
            return items
        rows = iter(items)
        return cls.joined(_of_block(block) for block in iter(lambda: list(islice(rows, BLOCK)), []))

    @classmethod
    def rows(
        cls,
        ids: Sequence[str],
        paths: Sequence[str],
        labels: Sequence[str | None] | None = None,
        *,
        spans: NDArray[np.int64] | None = None,
        endings: Sequence[str] | None = None,
        times: NDArray[np.float64] | None = None,
        channels: Sequence[int | None] | None = None,
        further: Mapping[str, Sequence[str | None]] | None = None,
    ) -> Items:
        """Makes N items.

        Args:
            ids: The id of each.
            paths: The path of each, with slashes and as Path writes it.
            labels: The label of each; None where no item has one.
            spans: (N, 2) int64, the offset and size of each in its shard; None for files.
            endings: The suffix of each span.
            times: (N, 2) start and end in seconds of the part of a recording that each is; NaN
                where there is none.
            channels: The channel of a recording that each is; None for the average of all.
            further: The user's own columns.

        Raises:
            LikenessError: Times are negative, or end before they start; or a name is not UTF-8.

        Example:
            >>> Items.rows(["a/1.wav"], ["data/a/1.wav"], ["a"])[0].label
            'a'
        """
        import pyarrow

        # The whole path of a shard is its folder, which its many items have in common.
        folders, files = paths, [""] * len(paths)
        if spans is None:
            cuts = [path.rfind("/") + 1 for path in paths]
            folders = [path[:cut] for path, cut in zip(paths, cuts, strict=True)]
            files = [path[cut:] for path, cut in zip(paths, cuts, strict=True)]
        columns = {
            "id": _texts(item_ids(ids)),
            "folder": _names(folders, are_paths=True),
            "file": _texts(files, are_paths=True),
            "label": _names(labels or [""] * len(ids)),
        }
        if spans is not None:
            offset, size = map(parquet.as_arrow, spans.T)
            columns |= {"offset": offset, "size": size}
        if endings is not None:
            columns["ending"] = _names(endings)
        if times is not None:
            start, end = times.T
            bad = (start < 0) | np.isinf(start) | (end <= np.nan_to_num(start))
            if bad.any():
                place = int(bad.argmax())
                times_of = f"from {start[place]:g} to {end[place]:g} s"
                raise LikenessError(f"the item {ids[place]} is {times_of}; correct its times")
            columns |= {"start": parquet.as_arrow(start), "end": parquet.as_arrow(end)}
        if channels is not None and any(channel is not None for channel in channels):
            columns["channel"] = pyarrow.array(channels, pyarrow.int64())
        columns |= {_FURTHER + name: _names(texts) for name, texts in (further or {}).items()}
        return cls(pyarrow.table(columns))

    @classmethod
    def joined(cls, parts: Iterable[Items]) -> Items:
        """Returns the items of all parts, one after the other; what a part lacks is empty there."""
        import pyarrow

        tables = [part.table for part in parts] or [cls.rows([], []).table]
        joined = pyarrow.concat_tables(tables, promote_options="default")
        # The other columns stay in chunks: in one, they would be there twice meanwhile.
        label = joined["label"].combine_chunks()
        return cls(joined.set_column(joined.column_names.index("label"), "label", label))

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        first = f", the first is {self[0]}" if len(self) else ""
        return f"Items({counted(len(self), 'item')}{first})"

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
        if isinstance(index, slice | np.ndarray):
            return self.take(np.arange(len(self))[index])
        row = range(len(self))[index]
        return _item(*(None if column is None else column[row].as_py() for column in self._cells))

    def __iter__(self) -> Iterator[Item]:
        for start in range(0, len(self), _FEW):
            columns = self._of_items.slice(start, _FEW).to_pydict()
            yield from map(_item, *(columns.get(name, repeat(None)) for name in _COLUMNS))

    @cached_property
    def _cells(self) -> list[Any]:
        """Each column of `_COLUMNS`, or None."""
        return [self.table[name] if self.has(name) else None for name in _COLUMNS]

    def take(self, indices: Index) -> Items:
        """Returns the items of these rows (M,), each from 0 to N - 1."""
        return Items(self.table.take(parquet.as_arrow(np.asarray(indices))))

    @property
    def ids(self) -> list[str]:
        """The id of each item."""
        return list(self.each_id())

    def each_id(self) -> Iterator[str]:
        """Yields the id of each item; a list of all takes more memory than the items."""
        ids = self.table["id"]
        blocks = (ids.slice(start, BLOCK).to_pylist() for start in range(0, len(self), BLOCK))
        return chain.from_iterable(blocks)

    @property
    def labels(self) -> list[str | None]:
        """The label of each item; None where it is not known."""
        names = [*self.names, None]  # the last is that of -1
        return list(map(names.__getitem__, self.numbers.tolist()))

    @property
    def names(self) -> list[str]:
        """The names of labels, sorted, without any that is empty; perhaps some have no item."""
        return sorted(filter(None, self._label.dictionary.to_pylist()))

    @property
    def _label(self) -> Any:
        return self.table["label"].combine_chunks()

    @property
    def numbers(self) -> Index:
        """(N,) the number of each item's label among `names`; -1 where it is not known."""
        coded = self._label
        place = {name: number for number, name in enumerate(self.names)}
        ranks = [place.get(name, -1) for name in coded.dictionary.to_pylist()]
        numbers: Index = np.array(ranks, dtype=np.int64)[parquet.numbers(coded.indices)]
        return numbers

    @property
    def further(self) -> list[str]:
        """The names of the user's own columns, such as "sex" (see `column`)."""
        own = (name for name in self.table.column_names if name.startswith(_FURTHER))
        return [name.removeprefix(_FURTHER) for name in own]

    def has(self, column: str) -> bool:
        """Returns whether there is such a column: "offset" of shards, "start" of stretches."""
        return column in self.table.column_names

    def column(self, name: str) -> list[str | None] | NDArray[np.float64]:
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
        if name in _SECONDS and self.has(name):
            return parquet.numbers(self.table[name].combine_chunks(), np.nan)
        if name not in self.further:
            known = ", ".join([*filter(self.has, _SECONDS), *self.further]) or "none"
            raise LikenessError(f"the items have no column {name!r} (columns: {known}); add it")
        return [text or None for text in self.table[_FURTHER + name].to_pylist()]

    def relabelled(self, labels: Sequence[str], further: Mapping[str, Sequence[str]]) -> Items:
        """Returns the items with other labels, and with these further columns."""
        import pyarrow

        columns = dict(zip(self.table.column_names, self.table.columns, strict=True))
        columns |= {_FURTHER + name: _names(texts) for name, texts in further.items()}
        return Items(pyarrow.table({**columns, "label": _names(labels)}))

    def marked(self, mark: str) -> Items:
        """Returns copies with `mark` at the end of every id and of every label."""
        labels = [label + mark if label else "" for label in self.labels]
        ids = _texts(id + mark for id in self.ids)
        return Items(self.table.set_column(0, "id", ids)).relabelled(labels, {})

    def sorted_as_paths(self) -> Items:
        """Returns the items in the order of their ids, which are paths: part by part."""
        keys = (id.replace("/", "\0") for id in self.each_id())
        if all(before <= key for before, key in pairwise(keys)):
            return self
        from pyarrow import compute

        parts = compute.replace_substring(self.table["id"], "/", "\0")
        return self.take(parquet.numbers(compute.sort_indices(parts)))

    def labelled(self, labels: Collection[str]) -> NDArray[np.bool_]:
        """Returns which items have one of these labels (N,)."""
        chosen = [number for number, name in enumerate(self.names) if name in labels]
        return np.isin(self.numbers, chosen)


def _of_block(items: Sequence[Item]) -> Items:
    """These items, at least one, as columns."""
    ids, paths, labels, spans, endings, stretches, channels = zip(*items, strict=True)
    places = np.array([span or (-1, 0) for span in spans], np.int64) if any(spans) else None
    stated = [stretch or (np.nan, np.nan) for stretch in stretches]
    times = np.array(stated, np.float64) if any(stretches) else None
    texts = [str(path).replace(os.sep, "/") for path in paths]
    suffixes = endings if any(endings) else None
    return Items.rows(
        ids, texts, labels, spans=places, endings=suffixes, times=times, channels=channels
    )


def _item(*row: Any) -> Item:
    """The item of a row of `_COLUMNS`."""
    id, folder, file, label, ending, offset, size, start, end, channel = row
    begin, stop = (None if time is None or time != time else time for time in (start, end))
    stretch = None
    if begin is not None or stop is not None:
        stretch = (begin or 0.0, np.inf if stop is None else stop)
    span = None if offset is None or offset < 0 else (offset, size)
    return Item(id, Path(folder + file), label or None, span, ending or "", stretch, channel)


def _texts(texts: Iterable[str | None], *, are_paths: bool = False) -> Any:
    """A column of texts, of which many differ: None is empty, and names are in Unicode NFC."""
    listed = [text or "" for text in texts]
    if not "".join(listed).isascii():
        names = list(map(nfc, listed))  # refuses what is not UTF-8
        listed = listed if are_paths else names
    return parquet.as_arrow(listed)


def _names(texts: Sequence[str | None], *, are_paths: bool = False) -> Any:
    """A column of texts of which many are equal: each is there once, and the rows have numbers."""
    import pyarrow

    place = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    rows = np.fromiter(map(place.__getitem__, texts), np.int64, len(texts))
    coded = _texts(place, are_paths=are_paths).dictionary_encode()  # in NFC two may be one
    codes = parquet.as_arrow(parquet.numbers(coded.indices)[rows])
    return pyarrow.DictionaryArray.from_arrays(codes, coded.dictionary)


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
    numbers, names = items.numbers, items.names
    if (numbers < 0).any():
        without = np.flatnonzero(numbers < 0).tolist()
        first = name_first(items[number].id for number in without[:6])
        by_name = if_option(", take labels from names by --label")
        raise LikenessError(
            f"{len(without):,} of {counted(len(items), 'item')} have no label ({first}); add it to "
            f"the list, utt2spk or shard{by_name}, or leave these out"
        )
    used, rank = np.unique(numbers, return_inverse=True)
    return tuple(names[number] for number in used.tolist()), rank


def check_unique(items: Sequence[Item], where: str) -> None:
    """Refuses repeated ids.

    Args:
        items: The items.
        where: The name of the list or folder, with which the message begins.

    Raises:
        LikenessError: An id is repeated.
    """
    items = Items.of(items)
    hashes = np.fromiter(map(hash, items.each_id()), np.int64, len(items))
    hashes.sort()
    # Two ids may share a hash.
    if (hashes[1:] == hashes[:-1]).any() and len(set(items.ids)) < len(items):
        id = Counter(items.ids).most_common(1)[0][0]
        first, second = islice((item.path.name for item in items if item.id == id), 2)
        both = f"{first!a} and {second!a}"
        raise LikenessError(f"{where}: the id {id!r} is there twice ({both}); rename one")
