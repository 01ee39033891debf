"""Rows of embeddings that stay in their .npz file, and are read as they are needed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eval.types import Floats32

_BLOCK = 1 << 22  # bytes


@dataclass(frozen=True)
class StoredRows:
    """The matrix (N, D) of a file, of which any rows can be read.

    It is read and not mapped: a mapped file that shrinks would end the process.

    Attributes:
        path: The file.
        offset: The byte where the first row begins.
        dtype: The type of its numbers.
        shape: (N, D).
    """

    path: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """The bytes of all rows in memory."""
        return 4 * self.shape[0] * self.shape[1]

    def __getitem__(self, rows: slice | NDArray[Any]) -> Floats32:
        """The rows of these numbers as float32. Neighbours are read together.

        Raises:
            ValueError: The file has become shorter.
        """
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        found = np.empty((numbers.size, self.shape[1]), dtype=self.dtype)
        content = found.data.cast("B") if found.size else memoryview(b"")
        row_bytes = self.shape[1] * self.dtype.itemsize
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        with self.path.open("rb", buffering=0) as file:
            begins, ends = np.append(0, breaks), np.append(breaks, numbers.size)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                if begin == end:
                    continue
                file.seek(self.offset + int(numbers[begin]) * row_bytes)
                part = content[begin * row_bytes : end * row_bytes]
                while part:
                    size = file.readinto(part)  # type: ignore[arg-type]
                    if not size:
                        raise ValueError(
                            f"{self.path}: the file has become shorter; write it again"
                        )
                    part = part[size:]
        return found.astype(np.float32, copy=False)

    def crc(self, before: int) -> int:
        """The checksum of a zip member of which `before` is that of the bytes before the rows."""
        left = self.shape[0] * self.shape[1] * self.dtype.itemsize
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.offset)
            while left and (block := file.read(min(left, _BLOCK))):
                before = zlib.crc32(block, before)
                left -= len(block)
        return before
