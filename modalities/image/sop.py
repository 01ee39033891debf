"""Stanford Online Products: 120,053 photographs of 22,634 products (Song et al., CVPR 2016).

11,318 products train, the others test. There are 2 to 12 photographs of each, in 12 categories.
Layout: DATA/Stanford_Online_Products/Ebay_train.txt, Ebay_test.txt, bicycle_final/...
"""

from __future__ import annotations

from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.modalities.image import packed
from likeness.modalities.image.lists import check_whole, rows
from likeness.modalities.image.splits import Protocol, Split, of_classes
from likeness.toolkit.data.items import Item, Items

FETCH = (
    "fetch Stanford_Online_Products.zip from https://cvgl.stanford.edu/projects/lifted_struct and "
    "unpack it in DATA"
)
NUM_CLASSES, NUM_TRAIN_CLASSES, NUM_IMAGES = 22_634, 11_318, 120_053
_HEADER = ["image_id", "class_id", "super_class_id", "path"]


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> Items:
    """List the images of one split in the lists' order, with the product's number as label.

    Ids are "bicycle_final/NAME.JPG", labels "00001" to "22634". The standard protocol has 59,551
    images of 11,318 products to train and 60,502 of 11,316 to test.

    Args:
        data: The folder DATA.
        split: "train", "validation", "test" or "all".
        protocol: How the classes are divided; see splits.divide_classes.
        fold: The fold of the protocols that have several.
        whole: Whether all images must be there. False allows parts of the data set, for trying
            things out; the classes are divided all the same.

    Raises:
        LikenessError: The lists are missing; the message says what to fetch. The lists are not this
            data set's, or, if `whole`, images are missing; they are counted.
    """
    root = packed.locate(Path(data), ("Stanford_Online_Products", ""), FETCH)
    every: list[Item] = []
    for name, first, last in (
        ("Ebay_train.txt", 1, NUM_TRAIN_CLASSES),
        ("Ebay_test.txt", NUM_TRAIN_CLASSES + 1, NUM_CLASSES),
    ):
        for number, fields in rows(root / name, 4, FETCH):
            if fields == _HEADER:
                continue
            digits = fields[1]
            numeric = digits.isascii() and digits.isdigit() and len(digits) <= 5
            label = int(digits) if numeric else 0
            if not first <= label <= last:
                raise LikenessError(
                    f"{root / name}: line {number} has class {fields[1]!r}; {first} to {last} are "
                    "allowed; unpack the archive again"
                )
            every.append(Item(fields[3], root / fields[3], f"{label:05d}"))
    every = check_whole(every, root, NUM_IMAGES, whole, FETCH)
    classes = [f"{i:05d}" for i in range(1, NUM_CLASSES + 1)]
    return of_classes(
        every, classes, NUM_TRAIN_CLASSES, split=split, protocol=protocol, fold=fold, name="sop"
    )


def category(item: Item) -> str:
    """Return the super-class of an item, which is its folder; there are 12.

    Example:
        >>> category(Item("bicycle_final/111_0.JPG", Path("111_0.JPG")))
        'bicycle_final'
    """
    return item.id.partition("/")[0]
