"""MNIST and FashionMNIST: 60,000 + 10,000 grey images of 28 x 28 in 10 classes.

They are IDX files, plain or .gz. Items address single images, which images.read reads. Layouts:
DATA/mnist/*, DATA/MNIST/raw/* (torchvision's) or DATA/*; for FashionMNIST DATA/fashion_mnist,
DATA/FashionMNIST/raw, DATA/fashion-mnist or DATA. The format (http://yann.lecun.com/exdb/mnist) is
a header of big-endian numbers, then bare bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal

import numpy as np

from eval.errors import LikenessError
from modalities.image import packed
from modalities.image.images import raw_ending
from modalities.image.splits import Split, check_split, stratified
from toolkit.data.items import Item

Name = Literal["mnist", "fashion_mnist"]
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw"),
    "fashion_mnist": ("fashion_mnist", "FashionMNIST/raw", "fashion-mnist"),
}
FETCH = {
    "mnist": "fetch the four files of MNIST (train and t10k, images-idx3 and labels-idx1) and "
    "store them in DATA/mnist",
    "fashion_mnist": "fetch the four files of FashionMNIST from "
    "https://github.com/zalandoresearch/fashion-mnist and store them in "
    "DATA/fashion_mnist",
}
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion_mnist": (
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
}


def items(
    data: str | Path,
    *,
    split: Split = "train",
    validation_share: float = 0.0,
    seed: int = 1234,
    name: Name = "mnist",
) -> list[Item]:
    """List the images of one split in the files' order, with the class's name as label.

    Ids are "train/00000" and "test/00000"; "all" is both files.

    Args:
        data: The folder DATA.
        split: "train", "validation", "test" or "all".
        validation_share: The share of each class of the training file that is held out as
            "validation". 0.15 with seed 1234 is the vMF paper's split (splits.stratified).
        seed: Decides which images are held out.
        name: "mnist" or "fashion_mnist".

    Raises:
        LikenessError: A file is missing; the message says what to fetch. A file is damaged, cut
            short or no such IDX file, or split is "validation" with a share of 0.
    """
    check_split(split)
    if name not in _FOLDERS:
        raise LikenessError(f"name is {name!r}; allowed are {', '.join(map(repr, _FOLDERS))}")
    if split == "validation" and validation_share == 0:
        raise LikenessError(
            f"{name}: split 'validation' with validation_share 0 has no items; set it, to 0.15 as "
            "in the vMF paper"
        )
    folder = _folder(Path(data), name)
    if split == "all":
        return _file(folder, "train", name) + _file(folder, "t10k", name)
    if split == "test":
        return _file(folder, "t10k", name)
    every = _file(folder, "train", name)
    # The release splits by the classes' numbers, and Fashion-MNIST's names sort in another order.
    number = {label: i for i, label in enumerate(CLASSES[name])}
    labels = np.array([number[str(item.label)] for item in every])
    train, validation = stratified(labels, validation_share, seed=seed)
    return [every[i] for i in (train if split == "train" else validation)]


def _folder(data: Path, name: str) -> Path:
    """Return the folder with the files of a data set."""
    folder = packed.locate(data, (*_FOLDERS[name], ""), FETCH[name])
    if not any(folder.glob("train*")):
        raise LikenessError(f"{folder}: no train-images-idx3-ubyte(.gz) is there; {FETCH[name]}")
    return folder


def _file(folder: Path, part: str, name: str) -> list[Item]:
    """List all items of the training or test file."""
    images, labels = (
        _find(folder, f"{part}-{kind}-ubyte", name) for kind in ("images-idx3", "labels-idx1")
    )
    with_header = packed.stretch(Item(labels.name, labels))
    num_labels = _header(with_header, 0x801, 1, labels)[0]
    numbers = np.frombuffer(with_header, dtype=np.uint8, offset=8)
    if images.suffix == ".gz":
        total = len(packed.stretch(Item(images.name, images)))
    else:
        total = images.stat().st_size
    first = packed.stretch(Item(images.name, images, None, (0, min(16, total))))
    num_images, height, width = _header(first, 0x803, 3, images, total=total)
    if num_images != num_labels:
        raise LikenessError(
            f"{images}: {num_images} images, but {labels.name} has {num_labels} labels; fetch both "
            "again"
        )
    if num_images and int(numbers.max()) > 9:
        raise LikenessError(
            f"{labels}: labels up to {int(numbers.max())}; 0 to 9 are allowed; fetch it again"
        )
    size, classes = height * width, CLASSES[name]
    ending = packed.marked(raw_ending(1, height, width), images)
    kind = "train" if part == "train" else "test"
    return [
        Item(f"{kind}/{i:05d}", images, classes[number], (16 + i * size, size), ending)
        for i, number in enumerate(numbers.tolist())
    ]


def _find(folder: Path, stem: str, name: str) -> Path:
    """Return the file of this name, plain or .gz; raise FileNotFoundError if there is none."""
    path = _there(folder, stem)
    if path is None:
        raise LikenessError(f"{folder}: neither {stem}.gz nor {stem} is there; {FETCH[name]}")
    return path


def _there(folder: Path, stem: str) -> Path | None:
    """Return the file, plain or .gz, or None.

    Some copies have a dot in its name: train-images.idx3-ubyte.
    """
    stems = (stem, stem.replace("-idx", ".idx"))
    paths = (folder / f"{name}{end}" for name in stems for end in (".gz", ""))
    return next((path for path in paths if path.is_file()), None)


def _header(
    start: bytes, magic: int, num_sizes: int, path: Path, total: int | None = None
) -> tuple[int, ...]:
    """Return the sizes that an IDX header states.

    Raises:
        LikenessError: The file has another length than its header states, or another magic number.
    """
    length = 4 * (1 + num_sizes)
    if len(start) < length or struct.unpack_from(">I", start)[0] != magic:
        raise LikenessError(
            f"{path}: no IDX file with the number {magic:#010x} at its beginning; fetch it again"
        )
    sizes = struct.unpack_from(f">{num_sizes}I", start, 4)
    stated = length + int(np.prod(sizes, dtype=object))
    size = len(start) if total is None else total
    if stated != size:
        raise LikenessError(
            f"{path}: {size} bytes, but its header states {stated}; it is cut short or damaged: "
            "fetch it again"
        )
    return tuple(map(int, sizes))
