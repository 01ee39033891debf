"""Images written as MXNet RecordIO in the layout of InsightFace's training sets."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from eval.formats.files import atomic_path
from eval.formats.writing import remove
from modalities.face.images import encoded
from modalities.face.recordio import EXACT, HEADER, MAGIC, MAGIC_BYTES, MAX_PART, PART
from toolkit.data.batch import Item, check_unique, label_numbers


def write(
    items: Sequence[Item],
    folder: str | Path,
    *,
    name: str = "train",
    size: tuple[int, int] = (112, 112),
) -> Path:
    """Writes NAME.rec, NAME.idx and `property` in InsightFace's layout, the images as they are, and
    returns the .rec file.

    Classes are numbered by sorted label; images take the keys 1, 2, ... class by class, then the
    identities follow, and record 0 is written last. size: what `property` states. `property` is
    written as InsightFace's loaders expect it: "num_classes,height,width".
    ValueError: unlabelled items, repeated ids, an empty image; nothing is left behind.
    """
    items, folder = list(items), Path(folder)
    check_unique(items, "items")
    names, numbers = label_numbers(items)
    if not items:
        raise ValueError("there are no items to write")
    order = np.argsort(numbers, kind="stable").tolist()
    ends = (
        np.cumsum(np.bincount(numbers, minlength=len(names))) + 1
    )  # key after the last image of each class
    if len(items) + len(names) + 1 >= EXACT:
        warnings.warn(
            f"{len(items)} images: the keys in record 0 pass 2^24 and are rounded to float32; "
            "Likeness does not need them, others may",
            stacklevel=2,
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(folder / f"{name}.idx") as index_path,
        atomic_path(folder / f"{name}.rec") as rec_path,
        index_path.open("w", encoding="ascii") as index,
        rec_path.open("wb") as rec,
    ):
        for key, place in enumerate(order, 1):
            image = encoded(items[place])
            if not image:
                raise ValueError(f"{items[place].name}: empty; every record needs an image")
            _write_record(rec, index, key, HEADER.pack(0, float(numbers[place]), key, 0) + image)
        first_identity = len(items) + 1
        for number, end in enumerate(ends.tolist()):
            begin = int(ends[number - 1]) if number else 1
            _write_record(
                rec, index, first_identity + number, _empty(first_identity + number, 0, begin, end)
            )
        _write_record(rec, index, 0, _empty(0, 1, first_identity, first_identity + len(names)))
        for file in (index, rec):
            file.flush()  # what a full disk refuses it refuses here
        remove(
            folder / f"{name}.idx"
        )  # an old index may not stand beside the new images; without one they are gone through
    with atomic_path(folder / "property") as temporary:
        temporary.write_text(f"{len(names)},{size[0]},{size[1]}\n", encoding="ascii")
    return folder / f"{name}.rec"


def _empty(key: int, id2: int, begin: int, end: int) -> bytes:
    return HEADER.pack(2, 0.0, key, id2) + struct.pack("<ff", float(begin), float(end))


def _write_record(rec: BinaryIO, index: TextIO, key: int, payload: bytes) -> None:
    if len(payload) > MAX_PART:
        raise ValueError(
            f"record {key}: {len(payload)} bytes; at most {MAX_PART} fit into a record; shrink the "
            "image"
        )
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
    rec.write(
        PART.pack(MAGIC, (3 if begin else 0) << 29 | len(rest)) + rest + b"\0" * (-len(rest) % 4)
    )
