"""Stanford Online Products: 120,053 photographs of 22,634 products (Song et al., CVPR 2016), 11,318
to train on; 2 to 12 of each, in 12 categories.

Layout: DATA/Stanford_Online_Products/Ebay_train.txt, Ebay_test.txt, bicycle_final/...
"""

from __future__ import annotations

from pathlib import Path

from modalities.image import packed
from modalities.image.lists import check_whole, rows
from modalities.image.splits import Protocol, Split, of_classes
from toolkit.data.batch import Item
from toolkit.data.source import Count

FETCH = (
    "fetch Stanford_Online_Products.zip from https://cvgl.stanford.edu/projects/lifted_struct and "
    "unpack it in DATA"
)
MD5 = {
    "Stanford_Online_Products.zip": "7f73d41a2f44250d4779881525aea32e"
}  # pytorch-metric-learning, datasets/sop.py
NUM_CLASSES, NUM_TRAIN_CLASSES, NUM_IMAGES = 22_634, 11_318, 120_053
_HEADER = ["image_id", "class_id", "super_class_id", "path"]
_COUNTS: tuple[tuple[Split, str, int], ...] = (
    ("train", "train on", 59_551),
    ("test", "test on", 60_502),
)


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> list[Item]:
    """Items with id "bicycle_final/NAME.JPG" and the product as label "00001" ... "22634", in the
    lists' order; splits: splits.divide_classes.

    standard: 59,551 images of 11,318 products to train, 60,502 of 11,316 to test. whole=False:
    parts of the data set, for trying things out; the classes are divided all the same.
    FileNotFoundError says what to fetch; ValueError for lists that are not this data set's and, if
    `whole`, for missing images, counted.
    """
    root = packed.locate(Path(data), ("Stanford_Online_Products", ""), FETCH)
    found: list[Item] = []
    for name, first, last in (
        ("Ebay_train.txt", 1, NUM_TRAIN_CLASSES),
        ("Ebay_test.txt", NUM_TRAIN_CLASSES + 1, NUM_CLASSES),
    ):
        for number, fields in rows(root / name, 4, FETCH):
            if fields == _HEADER:
                continue
            label = (
                int(fields[1])
                if fields[1].isascii() and fields[1].isdigit() and len(fields[1]) <= 5
                else 0
            )
            if not first <= label <= last:
                raise ValueError(
                    f"{root / name}: line {number} has class {fields[1]!r}; {first} to {last} are "
                    "allowed; unpack the archive again"
                )
            found.append(Item(fields[3], root / fields[3], f"{label:05d}"))
    found = check_whole(found, root, NUM_IMAGES, whole, FETCH)
    classes = [f"{i:05d}" for i in range(1, NUM_CLASSES + 1)]
    return of_classes(
        found, classes, NUM_TRAIN_CLASSES, split=split, protocol=protocol, fold=fold, name="sop"
    )


def check(data: Path) -> list[Count]:
    """What `likeness prepare sop` counts. Raises as items()."""
    return [
        Count(f"images of Stanford Online Products to {use}", len(items(data, split=split)), number)
        for split, use, number in _COUNTS
    ]


def category(item: Item) -> str:
    """The super-class of an item, its folder: "bicycle_final" and so on; 12 of them."""
    return item.id.partition("/")[0]


def verify(data: str | Path) -> None:
    """ValueError unless DATA/Stanford_Online_Products.zip is the published archive."""
    packed.verify(Path(data), MD5)
