"""Writing images as MXNet RecordIO, in the layout of InsightFace's training sets."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

import numpy as np

from eval.errors import LikenessError
from eval.formats.files import atomic_path
from eval.formats.writing import remove
from modalities.face.images import encoded
from modalities.face.recordio import EXACT, HEADER, MAGIC, MAGIC_BYTES, MAX_PART, PART
from toolkit.data.item_checks import check_unique, label_numbers
from toolkit.data.items import Item


def write(
    items: Sequence[Item],
    folder: str | Path,
    *,
    name: str = "train",
    size: tuple[int, int] = (112, 112),
) -> Path:
    """Write NAME.rec, NAME.idx and `property` in InsightFace's layout, with the images as they are.

    Classes are numbered by sorted label. Images take the keys 1, 2, ... class by class, then the
    identities follow, and record 0 is written last. `property` is written as InsightFace's loaders
    expect it: "num_classes,height,width". Where the writing fails, nothing is left behind.

    Args:
        items: The labelled images.
        folder: The folder to write to.
        name: The name of the files.
        size: The height and width that `property` states.

    Returns:
        The path of the .rec file.

    Raises:
        LikenessError: Items are unlabelled, ids are repeated, an image is empty, or there are no
            items.
    """
    items, folder = list(items), Path(folder)
    check_unique(items, "items")
    names, numbers = label_numbers(items)
    if not items:
        raise LikenessError("there are no items to write")
    order = np.argsort(numbers, kind="stable").tolist()
    # The key that follows the last image of each class.
    ends = np.cumsum(np.bincount(numbers, minlength=len(names))) + 1
    _warn_of_rounding(len(items), len(names))
    folder.mkdir(parents=True, exist_ok=True)
    with (
        atomic_path(folder / f"{name}.idx") as index_path,
        atomic_path(folder / f"{name}.rec") as rec_path,
        index_path.open("w", encoding="ascii") as index,
        rec_path.open("wb") as rec,
    ):
        for key, place in enumerate(order, 1):
            header = HEADER.pack(0, float(numbers[place]), key, 0)
            _write_record(rec, index, key, header + _image_of(items[place]))
        first_identity = len(items) + 1
        for number, end in enumerate(ends.tolist()):
            begin = int(ends[number - 1]) if number else 1
            _write_record(
                rec, index, first_identity + number, _empty(first_identity + number, 0, begin, end)
            )
        _write_record(rec, index, 0, _empty(0, 1, first_identity, first_identity + len(names)))
        for file in (index, rec):
            file.flush()  # a full disk refuses here, while nothing is replaced yet
        # An old index must not stand beside the new images. Without one they are gone through.
        remove(folder / f"{name}.idx")
    with atomic_path(folder / "property") as temporary:
        temporary.write_text(f"{len(names)},{size[0]},{size[1]}\n", encoding="ascii")
    return folder / f"{name}.rec"


def _warn_of_rounding(num_images: int, num_classes: int) -> None:
    """Warn where record 0 cannot hold its keys exactly."""
    if num_images + num_classes + 1 >= EXACT:
        warnings.warn(
            f"with {num_images} images the keys in record 0 pass 2^24 and are rounded to float32; "
            "Likeness does not need these keys, but other readers may",
            stacklevel=3,
        )


def _image_of(item: Item) -> bytes:
    """An item's image as it is stored; ValueError for an empty one."""
    image = encoded(item)
    if not image:
        raise LikenessError(f"{item.name}: the file is empty; every record needs an image")
    return image


def _empty(key: int, id2: int, begin: int, end: int) -> bytes:
    """Make a record without an image, whose two labels are keys."""
    return HEADER.pack(2, 0.0, key, id2) + struct.pack("<ff", float(begin), float(end))


def _write_record(rec: BinaryIO, index: TextIO, key: int, payload: bytes) -> None:
    """Write a record, cut where its payload holds the magic, and its line of the index."""
    if len(payload) > MAX_PART:
        raise LikenessError(
            f"record {key}: the image and its header have {len(payload)} bytes; at most "
            f"{MAX_PART} fit into a record; shrink the image"
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
