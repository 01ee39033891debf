"""Writes images as MXNet RecordIO, in the layout of InsightFace's training sets, for measurements
and tests of the reader (modalities/face/recordio.py says what the format is).
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from likeness.eval.items.items import Item, label_numbers
from likeness.modalities.face.images import encoded
from likeness.modalities.face.recordio import HEADER, MAGIC, MAGIC_BYTES, PART


def write(items: Sequence[Item], folder: Path, *, name: str = "train") -> Path:
    """Write NAME.rec, NAME.idx and `property`, with the images as they are.

    Classes are numbered by sorted label. Images take the keys 1, 2, ... class by class, then the
    identities follow, and record 0 is written last.

    Returns:
        The path of the .rec file.
    """
    names, numbers = label_numbers(items)
    order = np.argsort(numbers, kind="stable").tolist()
    # The key that follows the last image of each class.
    ends = np.cumsum(np.bincount(numbers, minlength=len(names))) + 1
    folder.mkdir(parents=True, exist_ok=True)
    rec_path = folder / f"{name}.rec"
    with (folder / f"{name}.idx").open("w") as index, rec_path.open("wb") as rec:
        for key, place in enumerate(order, 1):
            header = HEADER.pack(0, float(numbers[place]), key, 0)
            _write_record(rec, index, key, header + encoded(items[place]))
        first = len(items) + 1
        begin = 1
        for number, end in enumerate(ends.tolist()):
            _write_record(rec, index, first + number, _empty(first + number, 0, begin, end))
            begin = end
        _write_record(rec, index, 0, _empty(0, 1, first, first + len(names)))
    (folder / "property").write_text(f"{len(names)},112,112\n")
    return rec_path


def _empty(key: int, id2: int, begin: int, end: int) -> bytes:
    """Make a record without an image, whose two labels are keys."""
    return HEADER.pack(2, 0.0, key, id2) + struct.pack("<ff", float(begin), float(end))


def _write_record(rec: BinaryIO, index: TextIO, key: int, payload: bytes) -> None:
    """Write a record, cut where its payload holds the magic, and its line of the index."""
    index.write(f"{key}\t{rec.tell()}\n")
    begin = 0
    cut = payload.find(MAGIC_BYTES)
    while cut >= 0:
        if cut % 4:
            cut = payload.find(MAGIC_BYTES, cut + 1)
            continue
        rec.write(PART.pack(MAGIC, (2 if begin else 1) << 29 | cut - begin) + payload[begin:cut])
        begin = cut + 4
        cut = payload.find(MAGIC_BYTES, begin)
    rest = payload[begin:]
    head = PART.pack(MAGIC, (3 if begin else 0) << 29 | len(rest))
    rec.write(head + rest + b"\0" * (-len(rest) % 4))
