"""CUB-200-2011: 11,788 photographs of 200 bird species (Wah et al. 2011).

100 species train, and the 100 unseen ones test. Layout: DATA/CUB_200_2011/images.txt,
images/001.Black_footed_Albatross/...
"""

from __future__ import annotations

from pathlib import Path

from likeness.eval.errors import LikenessError
from likeness.modalities.image import packed
from likeness.modalities.image.lists import check_whole, rows
from likeness.modalities.image.splits import Protocol, Split, of_classes
from likeness.toolkit.data.items import Item, Items

FETCH = (
    "fetch CUB_200_2011.tgz (non-commercial research) from "
    "https://data.caltech.edu/records/65de6-vp158 and unpack it in DATA"
)
NUM_CLASSES, NUM_TRAIN_CLASSES, NUM_IMAGES = 200, 100, 11_788


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> Items:
    """List the images of one split in the order of images.txt, with the species' folder as label.

    Ids are "001.Black_footed_Albatross/NAME.jpg". The standard protocol has 5,864 images of classes
    1 to 100 to train and 5,924 of classes 101 to 200 to test.

    Args:
        data: The folder DATA.
        split: "train", "validation", "test" or "all".
        protocol: How the classes are divided; see splits.divide_classes.
        fold: The fold of the protocols that have several.
        whole: Whether all images must be there. False allows parts of the data set, for trying
            things out; the classes are divided all the same.

    Raises:
        LikenessError: The list is missing; the message says what to fetch. The list is not this
            data set's, or, if `whole`, images are missing; they are counted.
    """
    root = packed.locate(Path(data), ("CUB_200_2011", ""), FETCH)
    every: list[Item] = []
    classes: dict[int, str] = {}
    for number, fields in rows(root / "images.txt", 2, FETCH):
        folder = fields[1].rpartition("/")[0]
        digits = folder[:3]
        named = digits.isascii() and digits.isdigit() and folder[3:4] == "." and "/" not in folder
        label = int(digits) if named else 0
        if not 1 <= label <= NUM_CLASSES or classes.setdefault(label, folder) != folder:
            raise LikenessError(
                f"{root / 'images.txt'}: line {number} has {fields[1]!r}; NUMBER.Species/name.jpg "
                "with 001 to 200 is needed; unpack the archive again"
            )
        every.append(Item(fields[1], root / "images" / fields[1], folder))
    every = check_whole(every, root, NUM_IMAGES, whole, FETCH)
    names = [classes.get(i, f"class {i} is absent") for i in range(1, NUM_CLASSES + 1)]
    return of_classes(
        every, names, NUM_TRAIN_CLASSES, split=split, protocol=protocol, fold=fold, name="cub"
    )
