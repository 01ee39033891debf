"""MNIST and FashionMNIST: 60,000 + 10,000 grey images of 28 x 28 in 10 classes, as IDX files, plain
or .gz.

Items address single images: read them with images.read. Layouts: DATA/mnist/*, DATA/MNIST/raw/*
(torchvision's) or DATA/*; FashionMNIST alike in DATA/fashion_mnist, DATA/FashionMNIST/raw or
DATA/fashion-mnist. Format: http://yann.lecun.com/exdb/mnist, big-endian numbers, then bare bytes.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Literal

import numpy as np

from modalities.image import packed
from modalities.image.images import raw_ending
from modalities.image.splits import Split, check_split, stratified
from toolkit.data.batch import Item
from toolkit.data.source import Count

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
# MD5 of what the files hold; of MNIST there are several compressions
MD5 = {
    "train-images-idx3-ubyte.gz": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte.gz": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte.gz": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte.gz": "27ae3e4e09519cfbb04c329615203637",
}
# MD5 of the files as published: torchvision, datasets/mnist.py
FASHION_MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}
_COUNTS: tuple[tuple[Split, int], ...] = (("train", 60_000), ("test", 10_000))


def items(
    data: str | Path,
    *,
    split: Split = "train",
    validation_share: float = 0.0,
    seed: int = 1234,
    name: Name = "mnist",
) -> list[Item]:
    """Items "train/00000" or "test/00000" of a split in the files' order, with the class's name as
    label; "all" is both files.

    validation_share: of each class of the training file, held out as "validation"; .15 with seed
    1234 is the vMF paper's split (splits.stratified). FileNotFoundError says what to fetch;
    ValueError for a file that is damaged, cut short or no such IDX file, and for a share of 0 with
    split "validation".
    """
    check_split(split)
    if name not in _FOLDERS:
        raise ValueError(f"name is {name!r}; allowed are {', '.join(map(repr, _FOLDERS))}")
    if split == "validation" and validation_share == 0:
        raise ValueError(
            f"{name}: split 'validation' with validation_share 0 has no items; set it, to 0.15 as "
            "in the vMF paper"
        )
    folder = _folder(Path(data), name)
    if split == "all":
        return _file(folder, "train", name) + _file(folder, "t10k", name)
    if split == "test":
        return _file(folder, "t10k", name)
    every = _file(folder, "train", name)
    number = {
        label: i for i, label in enumerate(CLASSES[name])
    }  # the release splits by number, and Fashion-MNIST's names sort otherwise
    train, validation = stratified(
        np.array([number[str(one.label)] for one in every]), validation_share, seed=seed
    )
    return [every[i] for i in (train if split == "train" else validation)]


def check(data: Path, *, name: Name = "mnist") -> list[Count]:
    """What `likeness prepare mnist` counts.

    Raises as items(), and as verify() where the counts are right: others say more than a sum does.
    """
    counts = [
        Count(f"{name}: {split}ing images", len(items(data, split=split, name=name)), number)
        for split, number in _COUNTS
    ]
    if all(one.found == one.expected for one in counts):
        verify(data, name=name)
    return counts


def check_fashion(data: Path) -> list[Count]:
    """The same for `likeness prepare fashion_mnist`."""
    return check(data, name="fashion_mnist")


def verify(data: str | Path, *, name: Name = "mnist") -> None:
    """ValueError unless the four files are the published ones, by their MD5 sums.

    FashionMNIST's are of its .gz files: unpacked ones are passed over.
    """
    folder = _folder(Path(data), name)
    there = {name: _there(folder, name.removesuffix(".gz")) for name in MD5}
    if name == "mnist":
        packed.verify(
            folder,
            {path.name if path else gz: MD5[gz] for gz, path in there.items()},
            decompressed=True,
        )
    else:
        packed.verify(
            folder,
            {
                path.name if path else gz: FASHION_MD5[gz]
                for gz, path in there.items()
                if path is None or path.suffix == ".gz"
            },
        )


def _folder(data: Path, name: str) -> Path:
    found = packed.locate(data, (*_FOLDERS[name], ""), FETCH[name])
    if not any(found.glob("train*")):
        raise FileNotFoundError(f"{found}: no train-images-idx3-ubyte(.gz) is there; {FETCH[name]}")
    return found


def _file(folder: Path, part: str, name: str) -> list[Item]:
    """All items of the training or test file."""
    images, labels = (
        _find(folder, f"{part}-{kind}-ubyte", name) for kind in ("images-idx3", "labels-idx1")
    )
    with_header = packed.stretch(Item(labels.name, labels))
    num_labels = _header(with_header, 0x801, 1, labels)[0]
    numbers = np.frombuffer(with_header, dtype=np.uint8, offset=8)
    head = (
        images.stat().st_size
        if images.suffix != ".gz"
        else len(packed.stretch(Item(images.name, images)))
    )
    first = packed.stretch(Item(images.name, images, None, (0, min(16, head))))
    num_images, height, width = _header(first, 0x803, 3, images, total=head)
    if num_images != num_labels:
        raise ValueError(
            f"{images}: {num_images} images, but {labels.name} has {num_labels} labels; fetch both "
            "again"
        )
    if num_images and int(numbers.max()) > 9:
        raise ValueError(
            f"{labels}: labels up to {int(numbers.max())}; 0 to 9 are allowed; fetch it again"
        )
    size, ending, classes = (
        height * width,
        packed.marked(raw_ending(1, height, width), images),
        CLASSES[name],
    )
    kind = "train" if part == "train" else "test"
    return [
        Item(f"{kind}/{i:05d}", images, classes[number], (16 + i * size, size), ending)
        for i, number in enumerate(numbers.tolist())
    ]


def _find(folder: Path, stem: str, name: str) -> Path:
    path = _there(folder, stem)
    if path is None:
        raise FileNotFoundError(f"{folder}: neither {stem}.gz nor {stem} is there; {FETCH[name]}")
    return path


def _there(folder: Path, stem: str) -> Path | None:
    """The file, plain or .gz, also with the dot that some copies have: train-images.idx3-ubyte."""
    wanted = [
        folder / f"{one}{end}"
        for one in (stem, stem.replace("-idx", ".idx"))
        for end in (".gz", "")
    ]
    return next((path for path in wanted if path.is_file()), None)


def _header(
    held: bytes, magic: int, num_sizes: int, path: Path, total: int | None = None
) -> tuple[int, ...]:
    """The sizes that an IDX header states. ValueError unless the file is exactly as long."""
    length = 4 * (1 + num_sizes)
    if len(held) < length or struct.unpack_from(">I", held)[0] != magic:
        raise ValueError(
            f"{path}: no IDX file with the number {magic:#010x} at its beginning; fetch it again"
        )
    sizes = struct.unpack_from(f">{num_sizes}I", held, 4)
    stated, found = (
        length + int(np.prod(sizes, dtype=object)),
        len(held) if total is None else total,
    )
    if stated != found:
        raise ValueError(
            f"{path}: {found} bytes, but its header states {stated}; it is cut short or damaged: "
            "fetch it again"
        )
    return tuple(int(one) for one in sizes)
