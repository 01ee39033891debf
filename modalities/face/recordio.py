"""MXNet RecordIO as InsightFace's training sets have it (train.rec, train.idx), without mxnet.

This file lists the images and gives each one's place, from which it is read.

The format is little endian (dmlc-core/include/dmlc/recordio.h, mxnet/python/mxnet/recordio.py). A
record is one part or several. A part is a uint32 magic, a uint32 (cflag << 29 | length), the bytes,
and zeros up to a multiple of 4. A cflag of 0 marks a whole record. 1, 2 and 3 mark the first,
middle and last part of a payload that was cut where it holds the magic at a multiple of 4; the
reader puts the magic back. The payload is an IRHeader (flag u32, label f32, id u64, id2 u64),
`flag` float32 labels, then the image file. The index has a line `key<TAB>offset` for each record,
in any order.

InsightFace adds records without an image: key 0, whose two labels are the first identity's key and
the last one's + 1, and one for each identity. They are told from images by being empty. What key 0
states is a float32, exact only up to 2^24 = 16,777,216, and larger sets (Glint360K, WebFace42M) go
beyond.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.items.items import Items
from likeness.eval.types import name_first

# The ending of an item whose image lies in several parts: its span holds all of them, with their
# headers.
RECORD_SUFFIX = ".recparts"
MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
PART = struct.Struct("<II")
_BEGIN = 48  # the bytes of a record up to its image, or further, with up to three labels
HEADER = struct.Struct("<IfQQ")
MAX_PART = 2**29 - 1
_MAX_LABELS = 1024  # the most labels of one record
EXACT = 2**24  # float32 holds every integer up to here
_BLOCK = 2**18  # how many records' headers are looked at together
# The suffix of an image by its first byte, because the record does not state it.
_ENDINGS = {0xFF: ".jpg", 0x89: ".png", 0x42: ".bmp", 0x52: ".webp", 0x50: ".pgm"}


def items(rec: str | Path) -> Items:
    """List the images of a .rec file by key; each is read from its span in the file.

    The keys are those of the .idx beside the file.

    Args:
        rec: The file.

    Returns:
        Items whose id is the key, and whose label is the class number as text.

    Raises:
        LikenessError: The file or its index is missing. The index is damaged. Records begin or end
            outside the file, or are damaged. Labels are no whole number below 2^24, beyond which
            float32 merges classes. Or there are fewer or more images than key 0 announces.
    """
    rec = Path(rec)
    for path in (rec, rec.with_suffix(".idx")):
        if not path.is_file() or path.stat().st_size == 0:
            raise LikenessError(
                f"{path}: no such file, or an empty one; a .rec file and its .idx are needed"
            )
    keys, offsets = _read_index(rec.with_suffix(".idx"))
    parts: list[Items] = []
    announced: float | None = None
    num_images = 0
    with rec.open("rb", buffering=0) as file:
        content = _Content(file)
        for first in range(0, len(keys), _BLOCK):
            block = slice(first, first + _BLOCK)
            table = _Records(rec, content, keys[block], offsets[block])
            if table.announced is not None:
                announced = table.announced
            num_images += int(np.count_nonzero(table.size))
            parts.append(table.items())
    num_records = len(keys)
    del keys, offsets  # before the columns are finished, which takes memory too
    if announced is not None and np.float32(num_images + 1) != np.float32(announced):
        raise LikenessError(
            f"{rec}: {num_images} images are listed, but its record 0 announces "
            f"{announced - 1:.0f}; fetch the .rec and .idx files again"
        )
    items = Items.joined(parts)
    if not items:
        raise LikenessError(
            f"{rec}: none of its {num_records} records holds an image; give a training set"
        )
    return items


def join_parts(parts: bytes) -> bytes:
    """Join a record's image from all its parts with their headers.

    Args:
        parts: The bytes of the parts, one after the other.

    Returns:
        The image file.

    Raises:
        LikenessError: The parts do not fit together.
    """
    divided = _parts(lambda place, count: parts[place : place + count], 0, len(parts))
    payload = MAGIC_BYTES.join([parts[start : start + length] for start, length in divided])
    flag = HEADER.unpack_from(payload.ljust(HEADER.size, b"\xff"))[0]
    if flag > _MAX_LABELS or HEADER.size + 4 * flag > len(payload):
        raise LikenessError(
            "its record is shorter than its header and labels; fetch the .rec file again"
        )
    return payload[HEADER.size + 4 * flag :]


def _parts(at: Callable[[int, int], bytes], place: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where each part of the record at a place begins, and its length.

    Args:
        at: Gives so many bytes from a place on.
        place: The place of the record.
        end: The end of the bytes.

    Raises:
        LikenessError: The parts do not fit together.
    """
    kind, expected = 1, (0, 1)
    while kind not in (0, 3):
        word = magic = 0
        if place + PART.size <= end:
            magic, word = PART.unpack(at(place, PART.size))
        kind, length = word >> 29, word & MAX_PART
        place += PART.size
        if magic != MAGIC or kind not in expected or place + length > end:
            raise LikenessError(
                "the parts of its record do not fit together; fetch the .rec file again"
            )
        yield place, length
        place += length + -length % 4
        expected = (2, 3)


class _Content:
    """The bytes of an open file at many places.

    They are read and not mapped, because a mapped file that shrinks ends the process.
    """

    def __init__(self, file: Any) -> None:
        self._file, self.size = file, os.fstat(file.fileno()).st_size

    def at(self, place: int, count: int) -> bytes:
        """Return `count` bytes from `place` on, with zeros for those behind the end."""
        if hasattr(os, "pread"):
            read: bytes = os.pread(self._file.fileno(), count, max(0, place))
        else:  # Windows
            self._file.seek(max(0, place))
            read = self._file.read(count)
        return read.ljust(count, b"\0")

    def rows(self, places: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
        """Return (N, count) bytes from N places on."""
        rows = b"".join([self.at(place, count) for place in places.tolist()])
        return np.frombuffer(rows, np.uint8).reshape(-1, count)


class _Records:
    """The headers of a block of records, by array.

    They give where each image lies, its size (0 means no image) and its label.
    """

    def __init__(
        self, rec: Path, content: _Content, keys: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> None:
        self.rec, self.keys, self.offsets = rec, keys, offsets
        self._content = content
        self._begin = content.rows(offsets, _BEGIN)
        part = self._words(offsets, 2)
        kind, length = part[:, 1] >> 29, (part[:, 1] & MAX_PART).astype(np.int64)
        start = offsets + PART.size
        flag = self._words(start, 1)[:, 0].astype(np.int64)
        self._refuse(
            (part[:, 0] != MAGIC)
            | (kind > 1)
            | (offsets % 4 != 0)
            | (offsets < 0)
            | (start + length > content.size)
            | (flag > _MAX_LABELS)
            | (HEADER.size + 4 * flag > length),
            "do not begin with the magic number of a record, reach past the end of the file, or "
            f"state more labels than they hold (at most {_MAX_LABELS})",
        )
        # The first label lies behind the header if there are several, and inside it otherwise.
        first = np.where(flag > 0, start + HEADER.size, start + 4)
        self.start = start + HEADER.size + 4 * flag
        # The size of an image in several parts is only read later, one image at a time.
        self.size = np.where(kind == 1, 1, length - HEADER.size - 4 * flag)
        self.label = self._words(first, 1)[:, 0].astype("<u4").view("<f4").astype(np.float64)
        self._parts = kind == 1
        image = self.size > 0
        with np.errstate(invalid="ignore"):
            whole = (self.label >= 0) & (self.label < EXACT) & (self.label % 1 == 0)
        self._refuse(
            image & ~whole,
            "have a label that is no whole number from 0 to 16777215, up to which float32 tells "
            "classes apart",
        )
        zero = np.flatnonzero((keys == 0) & ~image & (flag == 2))
        self.announced = float(self.label[zero[0]]) if zero.size else None

    def items(self) -> Items:
        """Return the records with an image."""
        chosen = np.flatnonzero(self.size > 0)
        ids = [f"{key}" for key in self.keys[chosen].tolist()]
        spans = np.stack((self.start[chosen], self.size[chosen]), axis=1)
        endings = [_ENDINGS.get(byte, ".jpg") for byte in self._first_bytes(chosen).tolist()]
        for place in np.flatnonzero(self._parts[chosen]).tolist():
            offset = int(self.offsets[chosen[place]])
            try:
                *_, (start, length) = _parts(self._content.at, offset, self._content.size)
            except LikenessError as error:
                raise LikenessError(f"{self.rec}: record {ids[place]}: {error}") from None
            end = min(start + length + -length % 4, self._content.size)
            spans[place] = offset, end - offset
            endings[place] = RECORD_SUFFIX
        labels = [str(label) for label in self.label[chosen].astype(np.int64).tolist()]
        paths = [self.rec.as_posix()] * len(ids)
        return Items.rows(ids, paths, labels, spans=spans, endings=endings)

    def _first_bytes(self, chosen: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the first byte of each image, which mostly was read with the header."""
        inside = (self.start - self.offsets)[chosen]
        first: NDArray[np.uint8] = self._begin[chosen, np.minimum(inside, _BEGIN - 1)]
        further = np.flatnonzero(inside >= _BEGIN)
        first[further] = self._content.rows(self.start[chosen[further]], 1)[:, 0]
        return first

    def _words(self, at: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
        """Return (N, count) little-endian words within the beginning of each record.

        The places need not be aligned.
        """
        inside = (at - self.offsets)[:, None] + np.arange(4 * count)
        rows: NDArray[np.uint32] = np.take_along_axis(self._begin, inside, axis=1).view("<u4")
        return rows

    def _refuse(self, bad: NDArray[np.bool_], what: str) -> None:
        """Raise ValueError if any record is bad, with their number and the first keys."""
        if bad.any():
            first = name_first(str(key) for key in self.keys[bad][:6].tolist())
            raise LikenessError(
                f"{self.rec}: {np.count_nonzero(bad)} records {what} (keys {first}); the .idx "
                "may belong to another file; otherwise fetch both again"
            )


def _read_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Read the keys and offsets of an index, sorted by key."""
    try:
        table = csv.read_csv(
            path,
            csv.ReadOptions(column_names=["key", "offset"]),
            csv.ParseOptions(delimiter="\t"),
            csv.ConvertOptions(
                column_types={"key": pyarrow.int64(), "offset": pyarrow.int64()}, null_values=[]
            ),
        )
    except pyarrow.ArrowInvalid as error:
        raise LikenessError(
            f"{path}: its lines are not `key offset` ({first_line(error)}); fetch the index again"
        ) from None
    table = table.sort_by("key")
    keys, offsets = table["key"].to_numpy(), table["offset"].to_numpy()
    for values in (keys, np.sort(offsets)):
        if (values[1:] == values[:-1]).any():
            raise LikenessError(f"{path}: keys or offsets are listed twice; fetch the index again")
    return keys, offsets
