"""CIFAR-10 and CIFAR-100: 50,000 + 10,000 colour images of 32 x 32, from the binary version,
unpacked or as .tar.gz.

Items address single images: read them with images.read. From a folder one image is read by its
position. A .tar.gz stays in the memory of each process (170 MB decompressed), so unpack it where
many processes read. The Python version of the data set is a pickle and is not read.

Format: https://www.cs.toronto.edu/~kriz/cifar.html. Each image is a record of one label byte
(CIFAR-100: two, coarse and fine) and 3 x 32 x 32 bytes: red, green, blue, each row by row.

The files have no names for the images. An item's id is therefore its split and its number in the
files' order, "train/00000". That order is the same in the Python version, so that ids and the
splits that are drawn from the order (splits.stratified) are those of earlier runs on either.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from eval.errors import LikenessError
from eval.types import name_first
from modalities.image import packed
from modalities.image.images import raw_ending
from modalities.image.splits import Split, check_split, stratified
from toolkit.data.items import Item

_PIXELS, _ENDING = 3072, raw_ending(3, 32, 32)
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


class _Layout(NamedTuple):
    """A data set's archive and what it holds. python: names of the version that is not read."""

    archive: str
    folder: str
    train_files: tuple[str, ...]
    test_file: str
    label_bytes: int
    names: str
    python: tuple[str, str]


_LAYOUTS = {
    10: _Layout(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        "test_batch.bin",
        1,
        "batches.meta.txt",
        ("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    ),
    100: _Layout(
        "cifar-100-binary.tar.gz",
        "cifar-100-binary",
        ("train.bin",),
        "test.bin",
        2,
        "fine_label_names.txt",
        ("cifar-100-python", "cifar-100-python.tar.gz"),
    ),
}


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
    """The items of a split in the files' order, with the name of the class as label.

    Args:
        data: the folder that holds cifar-10-batches-bin or cifar-10-binary.tar.gz; for CIFAR-100,
            cifar-100-binary or cifar-100-binary.tar.gz.
        split: "all" is the training and the test files.
        validation_share: of each class of the training files, held out as "validation". .15 with
            seed 1234 is the vMF paper's split (splits.stratified).
        seed: of that draw.
        num_classes: 10 or 100, which data set.
        coarse: the labels are CIFAR-100's 20 superclasses.
        whole: every file must have all of its images; False is for trying things out.

    Returns:
        Items with the ids "train/00000" and "test/00000".

    Raises:
        LikenessError: the data set is not there, or only its Python version; the message says what
            to fetch. A file is missing, cut short or damaged, or the settings do not fit together.
    """
    check_split(split)
    if num_classes not in _LAYOUTS or (coarse and num_classes == 10):
        raise LikenessError(
            f"cifar: num_classes is {num_classes} with coarse={coarse}; allowed are 10, 100, and "
            "100 with coarse=True"
        )
    if split == "validation" and validation_share == 0:
        raise LikenessError(
            "cifar: split 'validation' with validation_share 0 has no items; set it, to 0.15 as in "
            "the vMF paper"
        )
    layout = _LAYOUTS[num_classes]
    files = _files(Path(data), layout)
    names = _class_names(files, layout, coarse, 20 if coarse else num_classes)
    listed: list[Item] = []
    if split in ("train", "validation", "all"):
        number = 50_000 // len(layout.train_files) if whole else None
        for name in layout.train_files:
            file = _member(files, name)
            listed += _images(file, layout, names, coarse, ("train", len(listed), number))
    if split in ("test", "all"):
        number = 10_000 if whole else None
        file = _member(files, layout.test_file)
        listed += _images(file, layout, names, coarse, ("test", 0, number))
    if split in ("test", "all"):
        return listed
    labels = [str(item.label) for item in listed]
    train, validation = stratified(labels, validation_share, seed=seed)
    return [listed[i] for i in (train if split == "train" else validation)]


def _files(data: Path, layout: _Layout) -> dict[str, Item]:
    """The files of a data set by their names, as items."""
    fetch = f"fetch {layout.archive} from {_PAGE} and unpack it in DATA"
    places = (layout.folder, layout.archive)
    unread = [name for name in layout.python if (data / name).exists()]
    if unread and not any((data / place).exists() for place in places):
        raise LikenessError(
            f"{data}: {unread[0]} is the Python version of CIFAR, a pickle, which is not read; "
            f"{fetch}"
        )
    place = packed.locate(data, places, fetch)
    if place.is_dir():
        return {path.name: Item(path.name, path) for path in place.iterdir() if path.is_file()}
    return packed.members(place)


def _member(files: dict[str, Item], name: str) -> Item:
    if name not in files:
        where = next(iter(files.values())).path.parent if files else "the folder"
        raise LikenessError(
            f"{where}: {name} is missing beside {name_first(sorted(files))}; unpack the archive "
            "again"
        )
    return files[name]


def _images(
    file: Item, layout: _Layout, names: list[str], coarse: bool, part: tuple[str, int, int | None]
) -> list[Item]:
    """The images of a file as items.

    Args:
        file: within a folder or an archive.
        layout: of the data set.
        names: of the classes.
        coarse: which of two label bytes counts.
        part: the split, the number of the file's first image in it, and how many images the file
            must have (None: any number).
    """
    source = packed.stretch(file)
    start = 0 if file.span is None else file.span[0]
    size = layout.label_bytes + _PIXELS
    count = len(source) // size
    if count * size != len(source):
        raise LikenessError(
            f"{file.name}: {len(source)} bytes are no whole number of images of {size}; it is cut "
            "short: fetch it again"
        )
    records = np.frombuffer(source, dtype=np.uint8).reshape(count, size)
    labels = records[:, 0 if coarse else layout.label_bytes - 1].tolist()
    split, first, number = part
    if (number is not None and count != number) or any(label >= len(names) for label in labels):
        raise LikenessError(
            f"{file.name}: {count} images with labels "
            f"{name_first(map(str, sorted(set(labels))))}; "
            f"{'all' if number is None else number} with 0 to {len(names) - 1} are needed; it is "
            "cut short or damaged: fetch it again"
        )
    ending = packed.marked(_ENDING, file.path)
    return [
        Item(
            f"{split}/{first + i:05d}",
            file.path,
            names[label],
            (start + i * size + layout.label_bytes, _PIXELS),
            ending,
        )
        for i, label in enumerate(labels)
    ]


def _class_names(
    files: dict[str, Item], layout: _Layout, coarse: bool, num_names: int
) -> list[str]:
    file = _member(files, layout.names.replace("fine", "coarse") if coarse else layout.names)
    names = packed.stretch(file).decode("latin-1").split()
    if len(names) != num_names or len(set(names)) != num_names:
        raise LikenessError(
            f"{file.name}: {len(names)} names of classes; {num_names} different ones are needed; "
            "fetch it again"
        )
    return names
