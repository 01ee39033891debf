"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32 x 32, from the python or the binary
distribution, unpacked or as .tar.gz.

Items address single images: read them with images.read. The python distribution is a pickle; it is
looked through, never unpickled (pickled.py). From a folder one image is read by position; a .tar.gz
(170 MB decompressed) stays in the memory of each process: unpack it for many. Format:
https://www.cs.toronto.edu/~kriz/cifar.html; per image one label byte (CIFAR-100: coarse, fine) and
3 x 32 x 32 bytes, red, green, blue.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eval.types import name_first
from modalities.image import packed, pickled
from modalities.image.images import raw_ending
from modalities.image.splits import Split, check_split, stratified
from toolkit.data.batch import Item
from toolkit.data.source import Count

_PIXELS, _ENDING = 3072, raw_ending(3, 32, 32)
# name -> members of the python and of the binary distribution: folder, training files, test file,
# names of the classes
_LAYOUTS = {
    10: (
        (
            "cifar-10-batches-py",
            [f"data_batch_{i}" for i in range(1, 6)],
            "test_batch",
            "batches.meta",
        ),
        (
            "cifar-10-batches-bin",
            [f"data_batch_{i}.bin" for i in range(1, 6)],
            "test_batch.bin",
            "batches.meta.txt",
        ),
    ),
    100: (
        ("cifar-100-python", ["train"], "test", "meta"),
        ("cifar-100-binary", ["train.bin"], "test.bin", "fine_label_names.txt"),
    ),
}
_ARCHIVES = {
    10: ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz"),
    100: ("cifar-100-python.tar.gz", "cifar-100-binary.tar.gz"),
}
# the distributor's page, and torchvision, datasets/cifar.py
MD5 = {
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
}
_COUNTS: tuple[tuple[Split, int], ...] = (("train", 50_000), ("test", 10_000))


def items(
    data: str | Path,
    *,
    split: Split = "train",
    validation_share: float = 0.0,
    seed: int = 1234,
    num_classes: int = 10,
    coarse: bool = False,
    whole: bool = True,
) -> list[Item]:
    """Items "train/00000" or "test/00000" of a split in the files' order, with the class's name as
    label; "all" is training and test files.

    num_classes: 10 or 100, which data set; coarse: CIFAR-100's 20 superclasses as labels.
    validation_share: of each class of the training files, held out as "validation"; .15 with seed
    1234 is the vMF paper's split (splits.stratified). whole=False: files with fewer images, for
    trying things out. FileNotFoundError says what to fetch; ValueError for files that are cut
    short, damaged or hold other pickled things than arrays and lists.
    """
    check_split(split)
    if num_classes not in _LAYOUTS or (coarse and num_classes == 10):
        raise ValueError(
            f"cifar: num_classes is {num_classes} with coarse={coarse}; allowed are 10, 100, and "
            "100 with coarse=True"
        )
    if split == "validation" and validation_share == 0:
        raise ValueError(
            "cifar: split 'validation' with validation_share 0 has no items; set it, to 0.15 as in "
            "the vMF paper"
        )
    held, (_, train_files, test_file, meta) = _open(Path(data), num_classes)
    names = _class_names(held, meta, coarse, num_classes)
    per_file = 50_000 // len(train_files)
    found: list[Item] = []
    for kind, files, number in (("train", train_files, per_file), ("test", [test_file], 10_000)):
        if split not in ("all", kind if kind == "test" else split) or (
            kind == "train" and split == "test"
        ):
            continue
        at = 0
        for file in files:
            spans, ending, labels = _images(_member(held, file), num_classes, coarse)
            if (whole and len(labels) != number) or not all(
                type(one) is int and 0 <= one < len(names) for one in labels
            ):
                raise ValueError(
                    f"{held[file].name}: {len(labels)} images with labels "
                    f"{name_first(map(str, sorted(set(labels), key=str)))};"
                    f" {number} with 0 to {len(names) - 1} are needed; it is cut short or damaged: "
                    "fetch it again"
                )
            ending = packed.marked(ending, held[file].path)
            found += [
                Item(f"{kind}/{at + i:05d}", held[file].path, names[one], span, ending)
                for i, (one, span) in enumerate(zip(labels, spans, strict=True))
            ]
            at += len(labels)
    if split in ("test", "all"):
        return found
    train, validation = stratified([str(one.label) for one in found], validation_share, seed=seed)
    return [found[i] for i in (train if split == "train" else validation)]


def check10(data: Path, *, num_classes: int = 10) -> list[Count]:
    """What `likeness prepare cifar10` counts. Raises as items()."""
    return [
        Count(
            f"CIFAR-{num_classes}: {split}ing images",
            len(items(data, split=split, num_classes=num_classes)),
            number,
        )
        for split, number in _COUNTS
    ]


def check100(data: Path) -> list[Count]:
    """The same for `likeness prepare cifar100`."""
    return check10(data, num_classes=100)


def verify(data: str | Path, *, num_classes: int = 10) -> None:
    """ValueError unless the .tar.gz files of a data set that lie in `data` are the published ones;
    FileNotFoundError where there are none.
    """
    there = {name: MD5[name] for name in _ARCHIVES[num_classes] if (Path(data) / name).is_file()}
    if not there:
        raise FileNotFoundError(
            f"{data}: neither {' nor '.join(_ARCHIVES[num_classes])} is there; "
            f"{_fetch(num_classes)}"
        )
    packed.verify(Path(data), there)


def _open(data: Path, num_classes: int) -> tuple[dict[str, Item], tuple[str, list[str], str, str]]:
    """The distribution's files by name, as items, and its layout."""
    layouts = _LAYOUTS[num_classes]
    folders = {layout[0]: layout for layout in layouts}
    place = packed.locate(data, (*folders, *_ARCHIVES[num_classes]), _fetch(num_classes))
    if place.is_dir():
        return {one.name: Item(one.name, one) for one in place.iterdir() if one.is_file()}, folders[
            place.name
        ]
    return packed.members(place), layouts[_ARCHIVES[num_classes].index(place.name)]


def _member(held: dict[str, Item], name: str) -> Item:
    if name not in held:
        where = next(iter(held.values())).path.parent if held else "the folder"
        raise ValueError(
            f"{where}: {name} is missing beside {name_first(sorted(held))}; unpack the archive "
            "again"
        )
    return held[name]


def _images(
    file: Item, num_classes: int, coarse: bool
) -> tuple[list[tuple[int, int]], str, list[int]]:
    """Spans of the images within the file or archive, their ending, and their labels."""
    source = packed.stretch(file)
    base = 0 if file.span is None else file.span[0]
    if file.id.endswith(".bin"):
        head = 1 if num_classes == 10 else 2
        records = len(source) // (head + _PIXELS)
        if records * (head + _PIXELS) != len(source):
            raise ValueError(
                f"{file.name}: {len(source)} bytes are no whole number of images of "
                f"{head + _PIXELS}; it is cut short: fetch it again"
            )
        labels = (
            np.frombuffer(source, dtype=np.uint8)
            .reshape(records, -1)[:, 0 if coarse else head - 1]
            .tolist()
        )
        return (
            [(base + i * (head + _PIXELS) + head, _PIXELS) for i in range(records)],
            _ENDING,
            labels,
        )
    held = pickled.load(source, file.name)
    pixels, labels = (
        held.get("data"),
        held.get("labels" if num_classes == 10 else "coarse_labels" if coarse else "fine_labels"),
    )
    if (
        not isinstance(pixels, pickled.Array)
        or pixels.columns != _PIXELS
        or not isinstance(labels, list)
        or len(labels) != pixels.rows
    ):
        raise ValueError(
            f"{file.name}: no array of {_PIXELS} columns with a label for each row; fetch it again"
        )
    if pixels.by_columns:  # the file's transposed: one image's bytes lie `rows` apart
        rows = pixels.rows
        return (
            [(base + pixels.start + i, (_PIXELS - 1) * rows + 1) for i in range(rows)],
            raw_ending(3, 32, 32, stride=rows),
            labels,
        )
    return (
        [(base + pixels.start + i * _PIXELS, _PIXELS) for i in range(pixels.rows)],
        _ENDING,
        labels,
    )


def _class_names(held: dict[str, Item], meta: str, coarse: bool, num_classes: int) -> list[str]:
    expected = 20 if coarse else num_classes
    if meta.endswith(".txt"):
        file = _member(held, meta.replace("fine", "coarse") if coarse else meta)
        names: Any = packed.stretch(file).decode("latin-1").split()
    else:
        file = _member(held, meta)
        names = pickled.load(packed.stretch(file), file.name).get(
            "label_names"
            if num_classes == 10
            else "coarse_label_names"
            if coarse
            else "fine_label_names"
        )
    if (
        not isinstance(names, list)
        or len(set(map(str, names))) != expected
        or len(names) != expected
    ):
        raise ValueError(
            f"{file.name}: {len(names) if isinstance(names, list) else 'no'} names of classes; "
            f"{expected} different ones are needed; fetch it again"
        )
    return [str(one) for one in names]


def _fetch(num_classes: int) -> str:
    return (
        f"fetch cifar-{num_classes}-python.tar.gz or cifar-{num_classes}-binary.tar.gz from "
        "https://www.cs.toronto.edu/~kriz/cifar.html and unpack it in DATA"
    )
