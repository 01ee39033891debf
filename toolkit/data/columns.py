"""Columns of numbers and of texts in flat arrays, which the processes of a run share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing.context import get_spawning_popen
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from eval.formats import parquet
from eval.types import nfc

Index = NDArray[np.int64]
BLOCK = 2**16  # rows that are looked at together, so that few Python objects are in memory at once
_ERRORS = "surrogatepass"  # file names that are not UTF-8 hold surrogates, which have to come back


def blocks(size: int) -> Iterator[tuple[int, int]]:
    """Yields the first row of each block of `size` rows, and the row after its last.

    Example:
        >>> list(blocks(70_000))
        [(0, 65536), (65536, 70000)]
    """
    for start in range(0, size, BLOCK):
        yield start, min(start + BLOCK, size)


class Shared:
    """An array that other processes read without a copy of their own.

    Forked processes see the memory of their parent. A process that is spawned gets what is pickled
    for it. So while a process is being started, the array moves into shared memory, once, and what
    is pickled is its place there. At other times, and without torch, the numbers are pickled.

    Args:
        array: The numbers; nothing may change them afterwards.

    Attributes:
        array: The numbers.
        view: The same memory; reading a single number of it takes half the time.
    """

    __slots__ = ("_tensor", "array", "view")

    def __init__(self, array: NDArray[Any], tensor: Any = None) -> None:
        self.array = array.view()
        self.array.flags.writeable = False
        self.view = memoryview(self.array.data)
        self._tensor = tensor

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        if get_spawning_popen() is None or find_spec("torch") is None:
            return Shared, (self.array,)
        if self._tensor is None:
            import torch

            tensor: Any = torch.empty(max(1, self.array.nbytes), dtype=torch.uint8)
            tensor.share_memory_()
            shared = _in_memory_of(tensor, self.array.dtype, self.array.shape)
            shared[...] = self.array
            self.__init__(shared, tensor)  # type: ignore[misc]
        return _attached, (self._tensor, self.array.dtype, self.array.shape)


def _in_memory_of(tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The array that lies in the memory of a tensor of bytes."""
    size = int(np.prod(shape)) * dtype.itemsize
    array: NDArray[Any] = tensor.numpy()[:size].view(dtype).reshape(shape)
    return array


def _attached(tensor: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Shared:
    """The array that another process has put into shared memory."""
    return Shared(_in_memory_of(tensor, dtype, shape), tensor)


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

    def __init__(self, buffer: NDArray[np.uint8] | Shared, offsets: Index | Shared) -> None:
        self._buffer = buffer if isinstance(buffer, Shared) else Shared(buffer)
        self._offsets = offsets if isinstance(offsets, Shared) else Shared(offsets)
        self._repeated: Index | None = None

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Puts texts into one buffer."""
        growing = GrowingTexts()
        growing.add(texts)
        return growing.texts()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Texts, (self._buffer, self._offsets)

    def __len__(self) -> int:
        return self._offsets.array.size - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Texts: ...
    def __getitem__(self, index: int | slice) -> str | Texts:
        if isinstance(index, slice):
            offsets, buffer = self._offsets.array, self._buffer.array
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
        ends = self._offsets.view
        return str(self._buffer.view[ends[index] : ends[index + 1]], "utf-8", _ERRORS)

    def __iter__(self) -> Iterator[str]:
        for start, stop in blocks(len(self)):
            yield from self.strings(start, stop)

    def strings(self, start: int, stop: int) -> list[str]:
        """Returns the texts of the rows start to stop - 1."""
        offsets = self._offsets.array[start : stop + 1]
        raw = self._buffer.array[offsets[0] : offsets[-1]].tobytes()
        ends = (offsets - offsets[0]).tolist()
        if raw.isascii():
            text = raw.decode("ascii")
            return [text[a:b] for a, b in pairwise(ends)]
        return [raw[a:b].decode("utf-8", _ERRORS) for a, b in pairwise(ends)]

    def _as_arrow(self) -> Any:
        """The same memory as an array of pyarrow."""
        import pyarrow

        buffers = [pyarrow.py_buffer(part.array) for part in (self._offsets, self._buffer)]
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

    __slots__ = ("_numbers", "names")

    def __init__(self, numbers: NDArray[np.integer[Any]] | Shared, names: Texts) -> None:
        self._numbers = numbers if isinstance(numbers, Shared) else Shared(numbers)
        self.names = names

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Coded, (self._numbers, self.names)

    @property
    def numbers(self) -> NDArray[np.integer[Any]]:
        """The number of each row's name (N,); -1 where it has none."""
        return self._numbers.array

    def __len__(self) -> int:
        return self.numbers.size

    def __getitem__(self, index: int) -> str | None:  # type: ignore[override]
        number = self._numbers.view[index]
        return None if number < 0 else self.names[number]

    def __iter__(self) -> Iterator[str | None]:
        names = [*self.names, None]  # the last is that of -1
        return map(names.__getitem__, self.numbers.tolist())


class GrowingTexts:
    """Texts to which more are added."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._offsets = [np.zeros(1, dtype=np.int64)]

    def add(self, texts: Sequence[str]) -> None:
        """Adds texts."""
        joined = "".join(texts)
        if joined.isascii():
            encoded, lengths = joined.encode("ascii"), map(len, texts)
        else:
            each = [text.encode("utf-8", _ERRORS) for text in texts]
            encoded, lengths = b"".join(each), map(len, each)
        ends = np.cumsum(np.fromiter(lengths, dtype=np.int64, count=len(texts)))
        self._offsets.append(ends + len(self._bytes))
        self._bytes += encoded

    def texts(self) -> Texts:
        """Returns all texts."""
        return Texts(np.frombuffer(self._bytes, dtype=np.uint8), np.concatenate(self._offsets))


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
