"""Rows of embeddings that stay in their .npz file, and are read as they are needed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.types import Floats32, name_first

_BLOCK = 1 << 22  # bytes


def state_of(file: IO[bytes]) -> tuple[int, ...]:
    """Returns what differs between a file and one that has taken its place or was written to."""
    state = os.fstat(file.fileno())
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns


@dataclass(frozen=True)
class StoredRows:
    """The matrix (N, D) of a file, of which any rows can be read.

    It is read and not mapped: a mapped file that shrinks would end the process.

    Attributes:
        path: The file.
        offset: The byte where the first row begins.
        dtype: The type of its numbers.
        shape: (N, D).
        head_crc: The CRC-32 of the bytes of the array before its rows.
        full_crc: The CRC-32 that the file states for these and all rows.
        state: What shows that the file is still the one that was checked (see `state_of`).
    """

    path: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    head_crc: int
    full_crc: int
    state: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice | NDArray[Any]) -> Floats32:
        """The rows of these numbers as float32. Neighbours are read together.

        Raises:
            LikenessError: The file has changed since it was opened first.
        """
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return self._stored(numbers).astype(np.float32, copy=False)

    def _stored(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """The rows of these numbers as they are stored."""
        stored_rows = np.empty((numbers.size, self.shape[1]), dtype=self.dtype)
        content = stored_rows.data.cast("B") if stored_rows.size else memoryview(b"")
        row_bytes = self.shape[1] * self.dtype.itemsize
        breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
        with self.path.open("rb", buffering=0) as file:
            if state_of(file) != self.state:
                raise LikenessError(
                    f"{self.path}: the file was changed while it was read; start again"
                )
            begins, ends = np.append(0, breaks), np.append(breaks, numbers.size)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                if begin == end:
                    continue
                file.seek(self.offset + int(numbers[begin]) * row_bytes)
                part = content[begin * row_bytes : end * row_bytes]
                while part:
                    size = file.readinto(part)
                    if not size:
                        raise LikenessError(
                            f"{self.path}: the file has become shorter; write it again"
                        )
                    part = part[size:]
        return stored_rows

    def check(self, ids: Sequence[str]) -> None:
        """Refuses a damaged file, and rows with NaN or infinity. ids: of the rows, for messages.

        Raises:
            LikenessError: The bytes are not those that the file was written with, or numbers are
                not finite; such rows are counted and the first are named.
        """
        checksum, bad = self.head_crc, list[str]()
        step = max(1, _BLOCK // (self.shape[1] * self.dtype.itemsize))
        for start in range(0, len(self), step):
            rows = self._stored(np.arange(start, min(start + step, len(self))))
            checksum = zlib.crc32(rows.data.cast("B"), checksum)
            finite = np.isfinite(rows).all(axis=1)
            bad += [ids[start + row] for row in np.flatnonzero(~finite).tolist()]
        if checksum != self.full_crc:
            raise LikenessError(f"{self.path}: the .npz is damaged (bad CRC-32); write it again")
        if bad:
            raise LikenessError(
                f"embeddings: {len(bad)} of {len(self)} rows hold NaN or infinity "
                f"({name_first(bad)}); extract them again or remove them"
            )
