"""MXNet RecordIO as InsightFace's training sets have it (train.rec, train.idx): list the images,
read each from its place, write one's own; without mxnet.

Format (dmlc-core/include/dmlc/recordio.h, mxnet/python/mxnet/recordio.py), little endian. A record
is one part or several: uint32 magic, uint32 (cflag << 29 | length), the bytes, zeros up to a
multiple of 4. cflag 0: whole; 1, 2, 3: first, middle, last part of a payload that was cut where it
holds the magic at a multiple of 4, which the reader puts back. The payload is IRHeader (flag u32,
label f32, id u64, id2 u64), `flag` float32 labels, then the image file. The index has a line
`key<TAB>offset` for each record, in any order.

InsightFace adds records without an image: key 0, whose two labels are the first identity's key and
the last one's + 1, and one for each identity. They are told from images by being empty: key 0 is a
float32, exact up to 2^24 = 16,777,216 only, and larger sets (Glint360K, WebFace42M) go beyond.
"""

from __future__ import annotations

import gc
import os
import re
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eval.types import name_first
from toolkit.data.batch import MAX_SPAN, Item

# the ending of an item whose image lies in several parts: its span holds them all, with their
# headers
RECORD_SUFFIX = ".recparts"
MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
PART = struct.Struct("<II")
_BEGIN = 40  # bytes of a record, up to its first label
HEADER = struct.Struct("<IfQQ")
MAX_PART = 2**29 - 1
_MAX_LABELS = 1024  # of one record
EXACT = 2**24  # float32 holds every integer up to here
_BLOCK = 2**18  # records whose headers are looked at together
_MAX_INDEX = 2**32
_INDEX_LINES = re.compile(rb"(?:[ \t]*[0-9]{1,18}[ \t]+[0-9]{1,18}[ \t]*\r?\n|[ \t]*\r?\n)*+")


def items(rec: str | Path, *, idx: str | Path | None = None, prefix: str = "") -> list[Item]:
    """The images of a .rec file by key; id = prefix + key, label = the class number as text; each
    is read from its span in the file.

    idx: the index (default: beside it, .idx). Where there is none the records are gone through once
    and numbered in their order.
    ValueError: a damaged index; records that begin or end outside the file, or are damaged; labels
    that are no whole number below 2^24 (beyond, float32 merges classes); fewer or more images than
    key 0 announces; counted within the first 2^18 records that have any, the first named.
    """
    rec = Path(rec)
    index = rec.with_suffix(".idx") if idx is None else Path(idx)
    if not rec.is_file() or (idx is not None and not index.is_file()):
        raise FileNotFoundError(
            f"{index if rec.is_file() else rec}: no such file; a .rec file and its .idx are needed"
        )
    if rec.stat().st_size < PART.size:
        raise ValueError(
            f"{rec}: {rec.stat().st_size} bytes are less than one record; fetch the file again"
        )
    with _Content(rec) as content:
        return _items(rec, index, content, prefix)


def _items(rec: Path, index: Path, held: _Content, prefix: str) -> list[Item]:
    keys, offsets = _read_index(index) if index.is_file() else _scan(rec, held)
    found: list[Item] = []
    announced: float | None = None
    num_images = 0
    was_collecting = gc.isenabled()
    gc.disable()  # it would go through millions of new items again and again
    try:
        for first in range(0, len(keys), _BLOCK):
            block = slice(first, first + _BLOCK)
            table = _Records(rec, held, keys[block], offsets[block])
            if table.announced is not None:
                announced = table.announced
            num_images += int(np.count_nonzero(table.size))
            found += table.items(prefix)
    finally:
        if was_collecting:
            gc.enable()
    if announced is not None and np.float32(num_images + 1) != np.float32(announced):
        raise ValueError(
            f"{rec}: {num_images} images are listed, but its record 0 announces "
            f"{announced - 1:.0f}; fetch the .rec and .idx files again"
        )
    if not found:
        raise ValueError(
            f"{rec}: none of its {len(keys)} records holds an image; is this a training set of "
            "images?"
        )
    return found


def join_parts(parts: bytes) -> bytes:
    """A record's image from all its parts with their headers.

    ValueError if they do not fit together.
    """
    payload, place, last = bytearray(), 0, False
    while not last:
        if place + PART.size > len(parts):
            raise ValueError("a part of its record is missing; fetch the .rec file again")
        magic, word = PART.unpack_from(parts, place)
        kind, length = word >> 29, word & MAX_PART
        place += PART.size
        if (
            magic != MAGIC
            or kind not in ((0, 1) if not payload and place == PART.size else (2, 3))
            or place + length > len(parts)
        ):
            raise ValueError(
                "the parts of its record do not fit together; fetch the .rec file again"
            )
        if kind > 1:
            payload += MAGIC_BYTES
        payload += parts[place : place + length]
        place += length + -length % 4
        last = kind in (0, 3)
    start = _image_start(payload)
    return bytes(payload[start:])


class _Content:
    """The bytes of an open file at many places.

    They are read and not mapped: a mapped file that shrinks ends the process.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size

    def __enter__(self) -> _Content:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def at(self, place: int, count: int) -> bytes:
        """`count` bytes from `place` on; zeros for those behind the end."""
        self._file.seek(place)
        return self._file.read(count).ljust(count, b"\0")

    def rows(self, places: NDArray[np.int64], count: int) -> NDArray[np.uint8]:
        """(N, count) bytes from N places on."""
        return np.frombuffer(
            b"".join([self.at(place, count) for place in places.tolist()]), np.uint8
        ).reshape(-1, count)


class _Records:
    """The headers of a block of records, by array: where each image lies, its size (0: no image)
    and label.
    """

    def __init__(
        self, rec: Path, held: _Content, keys: NDArray[np.int64], offsets: NDArray[np.int64]
    ) -> None:
        self.rec, self.keys, self.offsets = rec, keys, offsets
        self._held = held
        self._refuse(offsets > held.size - PART.size, "begin past the end of the file")
        self._begin = held.rows(offsets, _BEGIN)
        part = self._words(offsets, 2)
        kind, length = part[:, 1] >> 29, (part[:, 1] & MAX_PART).astype(np.int64)
        self._refuse(
            (part[:, 0] != MAGIC) | (kind > 1) | (offsets % 4 != 0),
            "do not begin with the magic number of a record",
        )
        start = offsets + PART.size
        self._refuse(start + length > held.size, "reach past the end of the file")
        self._refuse(length < HEADER.size, "are shorter than their header of 24 bytes")
        header = self._words(start, 2)
        flag = header[:, 0].astype(np.int64)
        self._refuse(
            (flag > _MAX_LABELS) | (HEADER.size + 4 * flag > length),
            f"state more labels than they hold (at most {_MAX_LABELS})",
        )
        first = np.where(
            flag > 0, start + HEADER.size, start + 4
        )  # of the labels: behind the header if there are several, else inside
        self.start = start + HEADER.size + 4 * flag
        self.size = np.where(
            kind == 1, 1, length - HEADER.size - 4 * flag
        )  # of several parts: found out one by one
        self.label = self._words(first, 1)[:, 0].astype("<u4").view("<f4").astype(np.float64)
        self._parts = kind == 1
        image = self.size > 0
        whole = (
            np.isfinite(self.label)
            & (self.label >= 0)
            & (self.label < EXACT)
            & (self.label == np.floor(np.where(np.isfinite(self.label), self.label, 0.5)))
        )
        self._refuse(
            image & ~whole,
            "have a label that is no whole number from 0 to 16777215, up to which float32 tells "
            "classes apart",
        )
        zero = np.flatnonzero((keys == 0) & ~image & (flag == 2))
        self.announced = float(self.label[zero[0]]) if zero.size else None

    def items(self, prefix: str) -> list[Item]:
        """Those with an image."""
        chosen = np.flatnonzero(self.size > 0)
        begins = self._held.rows(self.start[chosen], 1)[:, 0]
        endings = {
            0xFF: ".jpg",
            0x89: ".png",
            0x42: ".bmp",
            0x52: ".webp",
            0x50: ".pgm",
        }  # by the first byte, as the record does not say
        texts = {number: str(int(number)) for number in np.unique(self.label[chosen]).tolist()}
        rows = zip(
            self.keys[chosen].tolist(),
            self.label[chosen].tolist(),
            self.start[chosen].tolist(),
            self.size[chosen].tolist(),
            begins.tolist(),
            strict=True,
        )
        found = [
            Item(f"{prefix}{key}", self.rec, texts[label], (start, size), endings.get(byte, ".jpg"))
            for key, label, start, size, byte in rows
        ]
        for place in np.flatnonzero(self._parts[chosen]).tolist():
            span = self._span(int(self.offsets[chosen[place]]), found[place].id)
            found[place] = found[place]._replace(span=span, ending=RECORD_SUFFIX)
        large = [one.id for one in found if one.span and one.span[1] > MAX_SPAN]
        if large:
            raise ValueError(
                f"{self.rec}: {len(large)} records are over {MAX_SPAN} bytes "
                f"({name_first(large)}); fetch the file again"
            )
        return found

    def _span(self, offset: int, id: str) -> tuple[int, int]:
        """From the first to the last part of a record."""
        place, kind = offset, 1
        while kind not in (0, 3):
            if place + PART.size > self._held.size:
                raise ValueError(
                    f"{self.rec}: record {id} reaches past the end of the file; fetch it again"
                )
            magic, word = PART.unpack(self._held.at(place, PART.size))
            kind, length = word >> 29, word & MAX_PART
            if (
                magic != MAGIC
                or kind not in ((1,) if place == offset else (2, 3))
                or place + PART.size + length > self._held.size
            ):
                raise ValueError(
                    f"{self.rec}: the parts of record {id} do not fit together, or reach past the "
                    "end of the file; fetch it again"
                )
            place += PART.size + length + -length % 4
        return offset, min(place, self._held.size) - offset

    def _words(self, at: NDArray[np.int64], count: int) -> NDArray[np.uint32]:
        """(N, count) little-endian words at these places, within the beginning of each record; they
        need not be aligned.
        """
        inside = (at - self.offsets)[:, None] + np.arange(4 * count)
        rows: NDArray[np.uint32] = np.take_along_axis(self._begin, inside, axis=1).view("<u4")
        return rows

    def _refuse(self, bad: NDArray[np.bool_], what: str) -> None:
        if bad.any():
            named = name_first(str(key) for key in self.keys[bad][:6].tolist())
            raise ValueError(
                f"{self.rec}: {np.count_nonzero(bad)} records {what} (keys {named}); the .idx "
                "belongs to another file, or fetch both again"
            )


def _read_index(path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys and offsets, by key."""
    if path.stat().st_size > _MAX_INDEX:
        raise ValueError(f"{path}: over {_MAX_INDEX} bytes; this is no index")
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        text += b"\n"
    if not _INDEX_LINES.fullmatch(text):
        bad = [
            number
            for number, line in enumerate(text.splitlines(keepends=True), 1)
            if not _INDEX_LINES.fullmatch(line if line.endswith(b"\n") else line + b"\n")
        ]
        raise ValueError(
            f"{path}: {len(bad)} lines are not `key offset`, two whole numbers (first: line "
            f"{bad[0] if bad else 1}); fetch the index again"
        )
    fields = text.split()
    if not fields:
        raise ValueError(f"{path}: the index is empty; fetch it again")
    table = np.array(fields).astype(np.int64).reshape(-1, 2)
    keys, places = np.unique(table[:, 0], return_index=True)
    if keys.size < len(table):
        raise ValueError(
            f"{path}: {len(table) - keys.size} keys are listed twice; fetch the index again"
        )
    offsets = table[places, 1]
    if np.unique(offsets).size < offsets.size:
        raise ValueError(
            f"{path}: {offsets.size - np.unique(offsets).size} offsets are listed twice; fetch the "
            "index again"
        )
    return keys, offsets


def _scan(rec: Path, held: _Content) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offsets of all records in their order, numbered from 0 (from 1 if record 0 comes last, as
    InsightFace writes it).
    """
    offsets: list[int] = []
    place, size = 0, held.size
    while place < size:
        if place + PART.size > size:
            raise ValueError(
                f"{rec}: {size - place} bytes are left after record {len(offsets)}; the file is "
                "cut short, fetch it again"
            )
        magic, word = PART.unpack(held.at(place, PART.size))
        kind, length = word >> 29, word & MAX_PART
        if magic != MAGIC or place + PART.size + length > size:
            raise ValueError(
                f"{rec}: damaged or cut short at byte {place}, after {len(offsets)} records; fetch "
                "it again"
            )
        if kind < 2:
            offsets.append(place)
        elif not offsets:
            raise ValueError(f"{rec}: begins in the middle of a record; fetch it again")
        place += PART.size + length + -length % 4
    start = offsets[-1] + PART.size
    zero_is_last = (
        start + HEADER.size <= size
        and (header := HEADER.unpack(held.at(start, HEADER.size)))[0] == 2
        and header[2:] == (0, 1)
    )
    return np.arange(len(offsets), dtype=np.int64), np.roll(
        np.array(offsets, dtype=np.int64), int(zero_is_last)
    )


def _image_start(payload: bytes | bytearray) -> int:
    if len(payload) < HEADER.size:
        raise ValueError(
            "its record is shorter than the header of 24 bytes; fetch the .rec file again"
        )
    flag = HEADER.unpack_from(payload)[0]
    if flag > _MAX_LABELS or HEADER.size + 4 * flag > len(payload):
        raise ValueError("its record states more labels than it holds; fetch the .rec file again")
    return int(HEADER.size + 4 * flag)
