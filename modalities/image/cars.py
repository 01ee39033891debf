"""Cars196: 16,185 photographs of 196 models of cars (Krause et al. 2013).

The first 98 classes train, and the 98 unseen ones test, whichever of the authors' two halves their
images are in.

Layouts: DATA/cars_annos.mat with DATA/car_ims/*.jpg; or the later DATA/cars_train/ and
DATA/cars_test/ with DATA/devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat (there or
in DATA). Each may also lie in DATA/cars196 or DATA/stanford_cars.
"""

from __future__ import annotations

from pathlib import Path

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import read_mat
from likeness.modalities.image import packed
from likeness.modalities.image.lists import check_whole
from likeness.modalities.image.splits import Protocol, Split, of_classes
from likeness.toolkit.data.items import Item, Items

FETCH = (
    "fetch car_ims.tgz and cars_annos.mat (non-commercial research; its site is gone, mirrors "
    "carry it) and unpack them in DATA"
)
NUM_CLASSES, NUM_TRAIN_CLASSES, NUM_IMAGES = 196, 98, 16_185
# The published files have 0.4 MB. What a file inflates to is at most a thousand times as much.
_MAX_MAT = 2**20


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> Items:
    """List the images of one split, with the number of the car's model as label.

    Ids are "car_ims/000001.jpg" (or "cars_train/00001.jpg"), labels "001" to "196". The standard
    protocol has 8,054 images of classes 1 to 98 to train and 8,131 of classes 99 to 196 to test.

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
    data = Path(data)
    folders = (data / "cars196", data / "stanford_cars")
    root = next((folder for folder in folders if folder.is_dir()), data)
    if (root / "cars_annos.mat").is_file():
        listed = _annotations(root / "cars_annos.mat", "relative_im_path", "")
    else:
        listed = []
        for part, name in (
            ("cars_train", "cars_train_annos.mat"),
            ("cars_test", "cars_test_annos_withlabels.mat"),
        ):
            names = [
                f"{folder}{file}" for folder in ("devkit/", "") for file in ("cars_annos.mat", name)
            ]
            mat = packed.locate(root, tuple(names), FETCH)
            listed += _annotations(mat, "fname", f"{part}/")
    every = [Item(id, root / id, f"{number:03d}") for id, number in listed]
    every = check_whole(every, root, NUM_IMAGES, whole, FETCH)
    classes = [f"{i:03d}" for i in range(1, NUM_CLASSES + 1)]
    return of_classes(
        every, classes, NUM_TRAIN_CLASSES, split=split, protocol=protocol, fold=fold, name="cars"
    )


def _annotations(path: Path, field: str, prefix: str) -> list[tuple[str, int]]:
    """Return (path below the root, class 1 to 196) of every image in a .mat file."""
    try:
        content = read_mat(path, "annotations", max_bytes=_MAX_MAT, squeeze=True)
        listed = [
            (f"{prefix}{annotation[field]}", int(annotation["class"]))
            for annotation in content.reshape(-1)
        ]
        if not all(1 <= number <= NUM_CLASSES for _, number in listed):
            raise LikenessError(f"classes outside 1 to {NUM_CLASSES}")
    except Exception as error:  # scipy's arrays of records raise many kinds
        raise LikenessError(
            f"{path}: no annotations with the fields {field!r} and 'class' ({first_line(error)}); "
            f"{FETCH}"
        ) from None
    return listed
