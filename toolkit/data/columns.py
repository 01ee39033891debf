"""Columns of texts in flat arrays, which forked processes share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from eval.formats import parquet
from eval.types import nfc

Index = NDArray[np.int64]
BLOCK = 2**16  # rows that are looked at together, so that few Python objects are in memory at once
_ERRORS = "surrogatepass"  # file names that are not UTF-8 hold surrogates, which have to come back


class Texts(Sequence[str]):
    """N texts in one buffer, 8 bytes each and their UTF-8.

    Args:
        buffer: The UTF-8 of all texts, one after the other: uint8.
        offsets: (N + 1,) int64, where each begins, and where the last ends.

    Example:
        >>> texts = Texts.of(["ann", "bob", "cid"])
        >>> texts[1], list(texts.take(np.array([2, 0])))
        ('bob', ['cid', 'ann'])
    """

    __slots__ = ("_buffer", "_offsets", "_repeated")

    def __init__(self, buffer: NDArray[np.uint8], offsets: Index) -> None:
        self._buffer, self._offsets = buffer, offsets
        self._repeated: Index | None = None

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Puts texts into one buffer."""
        joined = "".join(texts)
        if joined.isascii():
            encoded, lengths = joined.encode("ascii"), map(len, texts)
        else:
            each = [text.encode("utf-8", _ERRORS) for text in texts]
            encoded, lengths = b"".join(each), map(len, each)
        offsets = np.zeros(len(texts) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(lengths, dtype=np.int64, count=len(texts)), out=offsets[1:])
        return cls(np.frombuffer(encoded, np.uint8), offsets)

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """Returns the texts of all parts, one after the other."""
        lengths = [np.diff(part._offsets) for part in parts]
        offsets = np.cumsum(np.concatenate([np.zeros(1, np.int64), *lengths]))
        buffers = [part._buffer for part in parts]
        return cls(np.concatenate([np.zeros(0, np.uint8), *buffers]), offsets)

    def __len__(self) -> int:
        return self._offsets.size - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Texts: ...
    def __getitem__(self, index: int | slice) -> str | Texts:
        if isinstance(index, slice):
            offsets, buffer = self._offsets, self._buffer
            start, stop, step = index.indices(len(self))
            if step != 1:
                return self.take(np.array(range(start, stop, step), dtype=np.int64))
            stop = max(start, stop)
            begin = offsets[start : stop + 1]
            return Texts(buffer[begin[0] : begin[-1]], begin - begin[0])
        if index < 0:
            index += len(self)
            if index < 0:
                raise IndexError(f"there are {len(self)} texts")
        start, stop = self._offsets[index], self._offsets[index + 1]
        return self._buffer[start:stop].tobytes().decode("utf-8", _ERRORS)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), BLOCK):
            yield from self._strings(self._offsets[start : start + BLOCK + 1])

    def _strings(self, offsets: Index) -> list[str]:
        """The texts between these places of the buffer."""
        raw = self._buffer[offsets[0] : offsets[-1]].tobytes()
        ends = (offsets - offsets[0]).tolist()
        if raw.isascii():
            text = raw.decode("ascii")
            return [text[a:b] for a, b in pairwise(ends)]
        return [raw[a:b].decode("utf-8", _ERRORS) for a, b in pairwise(ends)]

    def _as_arrow(self) -> Any:
        """The same memory as an array of pyarrow."""
        import pyarrow

        buffers = [pyarrow.py_buffer(part) for part in (self._offsets, self._buffer)]
        return pyarrow.Array.from_buffers(pyarrow.large_binary(), len(self), [None, *buffers])

    def take(self, indices: Index) -> Texts:
        """Returns the texts of these rows (M,), each from 0 to N - 1."""
        taken = self._as_arrow().take(parquet.as_arrow(indices))
        _, offsets, buffer = taken.buffers()
        return Texts(
            np.frombuffer(buffer or b"", np.uint8),
            np.frombuffer(offsets, np.int64)[: len(taken) + 1],
        )

    def repeated(self) -> Index:
        """Returns the ascending rows of texts that are perhaps repeated, with all their repeats.

        A text that is not among them is unique. Texts whose hashes are equal are among them.
        """
        if self._repeated is None:  # ids are checked where they are listed, and again by a plan
            hashes = np.fromiter(map(hash, self), dtype=np.int64, count=len(self))
            ascending = np.sort(hashes)
            twice = ascending[1:][ascending[1:] == ascending[:-1]]
            self._repeated = np.flatnonzero(np.isin(hashes, twice))
        return self._repeated

    def order(self, *, of_paths: bool = False) -> Index:
        """Returns the rows in the order of the texts; equal ones stay in theirs.

        Args:
            of_paths: Sorts by the parts between slashes, as Path does.

        Example:
            >>> texts = Texts.of(["a-b", "a/c", "a"])
            >>> texts.order().tolist(), texts.order(of_paths=True).tolist()
            ([2, 0, 1], [2, 1, 0])
        """
        from pyarrow import compute

        texts = self._as_arrow()  # bytes of UTF-8 sort as characters do
        if of_paths:
            texts = compute.replace_substring(texts, b"/", b"\0")
        rows: Index = parquet.numbers(compute.sort_indices(texts)).astype(np.int64)
        return rows


class Coded(Sequence["str | None"]):
    """N texts of which many are equal: the number of each among the distinct names; -1 for None.

    Args:
        numbers: (N,) integers.
        names: The distinct names.
    """

    __slots__ = ("names", "numbers")

    def __init__(self, numbers: NDArray[np.integer[Any]], names: Texts) -> None:
        self.numbers, self.names = numbers, names

    def __len__(self) -> int:
        return self.numbers.size

    def __getitem__(self, index: int) -> str | None:  # type: ignore[override]
        number = int(self.numbers[index])
        return None if number < 0 else self.names[number]

    def __iter__(self) -> Iterator[str | None]:
        names = [*self.names, None]  # the last is that of -1
        return map(names.__getitem__, self.numbers.tolist())


class Names(dict["str | None", int]):
    """Numbers for names, in the order in which they are first asked for; -1 for None.

    Names are compared in Unicode NFC.

    Example:
        >>> names = Names()
        >>> names["bob"], names["ann"], names["bob"], names.distinct
        (0, 1, 0, ['bob', 'ann'])
    """

    def __init__(self) -> None:
        super().__init__({None: -1})
        self.distinct: list[str] = []

    def __missing__(self, name: str) -> int:
        number = len(self.distinct)
        if (normal := nfc(name)) != name:
            number = self[normal]
        else:
            self.distinct.append(name)
        self[name] = number
        return number

    def coded(self, numbers: NDArray[np.integer[Any]]) -> Coded:
        """Returns rows of these numbers, with the names sorted."""
        order = sorted(range(len(self.distinct)), key=self.distinct.__getitem__)
        rank = np.full(len(order) + 1, -1, dtype=np.int32)  # the last is that of -1
        rank[order] = np.arange(len(order))
        small = np.min_scalar_type(max(0, len(order) - 1)) if (numbers >= 0).all() else np.int32
        return Coded(
            rank[numbers].astype(small, copy=False),
            Texts.of([self.distinct[place] for place in order]),
        )
