"""CUB-200-2011: 11,788 photographs of 200 bird species (Wah et al. 2011); 100 to train on and 100
unseen ones to test.

Layout: DATA/CUB_200_2011/images.txt, images/001.Black_footed_Albatross/...
"""

from __future__ import annotations

from pathlib import Path

from modalities.image import packed
from modalities.image.lists import check_whole, rows
from modalities.image.splits import Protocol, Split, of_classes
from toolkit.data.batch import Item
from toolkit.data.source import Count

FETCH = (
    "fetch CUB_200_2011.tgz (non-commercial research) from "
    "https://data.caltech.edu/records/65de6-vp158 and unpack it in DATA"
)
MD5 = {
    "CUB_200_2011.tgz": "97eceeb196236b17998738112f37df78"
}  # torchvision-style loaders and Caltech's record agree
NUM_CLASSES, NUM_TRAIN_CLASSES, NUM_IMAGES = 200, 100, 11_788
_COUNTS: tuple[tuple[Split, str, int], ...] = (
    ("train", "train on", 5_864),
    ("test", "test on", 5_924),
)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> list[Item]:
    """Items with id "001.Black_footed_Albatross/NAME.jpg" and the folder as label, in the order of
    images.txt; splits: splits.divide_classes.

    standard: 5,864 images of classes 1 to 100 to train, 5,924 of 101 to 200 to test. whole=False:
    parts of the data set, for trying things out; the classes are divided all the same.
    FileNotFoundError says what to fetch; ValueError for a list that is not this data set's and, if
    `whole`, for missing images, counted.
    """
    root = packed.locate(Path(data), ("CUB_200_2011", ""), FETCH)
    found: list[Item] = []
    classes: dict[int, str] = {}
    for number, fields in rows(root / "images.txt", 2, FETCH):
        folder = fields[1].rpartition("/")[0]
        label = (
            int(folder[:3])
            if folder[:3].isascii()
            and folder[:3].isdigit()
            and folder[3:4] == "."
            and "/" not in folder
            else 0
        )
        if not 1 <= label <= NUM_CLASSES or classes.setdefault(label, folder) != folder:
            raise ValueError(
                f"{root / 'images.txt'}: line {number} has {fields[1]!r}; NUMBER.Species/name.jpg "
                "with 001 to 200 is needed; unpack the archive again"
            )
        found.append(Item(fields[1], root / "images" / fields[1], folder))
    found = check_whole(found, root, NUM_IMAGES, whole, FETCH)
    names = [classes.get(i, f"class {i} is absent") for i in range(1, NUM_CLASSES + 1)]
    return of_classes(
        found, names, NUM_TRAIN_CLASSES, split=split, protocol=protocol, fold=fold, name="cub"
    )


def check(data: Path) -> list[Count]:
    """What `likeness prepare cub200` counts. Raises as items()."""
    return [
        Count(f"images of CUB-200-2011 to {use}", len(items(data, split=split)), number)
        for split, use, number in _COUNTS
    ]


def verify(data: str | Path) -> None:
    """ValueError unless DATA/CUB_200_2011.tgz is the published archive."""
    packed.verify(Path(data), MD5)
