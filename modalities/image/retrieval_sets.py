"""Photographs for retrieval: CUB-200-2011, Cars196 and Stanford Online Products.

Half of the classes train, and the unseen ones test. The layouts are those of the archives:

- CUB, 11,788 photographs of 200 bird species (Wah et al. 2011): DATA/CUB_200_2011/images.txt and
  images/001.Black_footed_Albatross/...
- Cars196, 16,185 photographs of 196 models of cars (Krause et al. 2013), of which the first 98
  train, whichever of the authors' two halves their images are in: DATA/cars_annos.mat with
  DATA/car_ims/*.jpg; or the later DATA/cars_train/ and DATA/cars_test/ with
  DATA/devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat (there or in DATA). Each may
  also lie in DATA/cars196 or DATA/stanford_cars.
- SOP, 120,053 photographs of 22,634 products in 12 categories, 2 to 12 of each (Song et al., CVPR
  2016): DATA/Stanford_Online_Products/Ebay_train.txt, Ebay_test.txt and bicycle_final/...
"""

import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from likeness.eval.errors import LikenessError, first_line
from likeness.eval.formats.files import read_mat, text_lines
from likeness.eval.items.items import Item, Items, check_unique
from likeness.eval.types import check_choice, name_first, quoted
from likeness.modalities.image import _packed
from likeness.modalities.image._splits import Protocol, Split, divide_classes

Name = Literal["cub", "cars", "sop"]
_SIZES: dict[Name, tuple[int, int, int]] = {  # classes, training classes, images
    "cub": (200, 100, 11_788),
    "cars": (196, 98, 16_185),
    "sop": (22_634, 11_318, 120_053),
}
_FETCH: dict[Name, str] = {
    "cub": "fetch CUB_200_2011.tgz (non-commercial research) from "
    "https://data.caltech.edu/records/65de6-vp158 and unpack it in DATA",
    "cars": "fetch car_ims.tgz and cars_annos.mat (non-commercial research; its site is gone, "
    "mirrors carry it) and unpack them in DATA",
    "sop": "fetch Stanford_Online_Products.zip from "
    "https://cvgl.stanford.edu/projects/lifted_struct and unpack it in DATA",
}
_SOP_HEADER = ["image_id", "class_id", "super_class_id", "path"]
# The published files have 0.4 MB. What a file inflates to is at most a thousand times as much.
_MAX_MAT = 2**20
_Listed = tuple[Path, list[Item], list[str]]  # root, all items, all classes in their order


def items(
    data: str | Path,
    *,
    name: Name,
    split: Split = "train",
    protocol: Protocol = "standard",
    fold: int = 0,
    whole: bool = True,
) -> Items:
    """List the images of one split, in the order of the data set's own lists.

    cub_items, cars_items and sop_items are this function with a name. The standard protocol has
    half of the classes to train and the others to test: of CUB 5,864 and 5,924 images, of Cars196
    8,054 and 8,131, of SOP 59,551 and 60,502.

    Args:
        data: The folder DATA.
        name: "cub", with ids "001.Black_footed_Albatross/NAME.jpg" and their folders as labels;
            "cars", with ids "car_ims/000001.jpg" (or "cars_train/00001.jpg") and labels "001" to
            "196"; or "sop", with ids "bicycle_final/NAME.JPG" and labels "00001" to "22634".
        split: "train", "validation", "test" or "all".
        protocol: How the classes are divided; see splits.divide_classes.
        fold: The fold of the protocols that have several.
        whole: Whether all images must be there. False allows parts of the data set, for trying
            things out; the classes are divided all the same.

    Raises:
        LikenessError: The list is missing; the message says what to fetch. The list is not this
            data set's, or, if `whole`, images are missing; they are counted. The protocol has no
            classes in this split.
    """
    check_choice("split", split, get_args(Split))
    num_classes, num_train, num_images = _SIZES[name]
    root, every, classes = _LISTS[name](Path(data))
    check_unique(every, str(root))
    # Path.is_file raises an error where a name is too long; os.path.isfile is then false.
    there = [item for item in every if os.path.isfile(item.path)]
    if not there or (whole and not len(there) == len(every) == num_images):
        known = set(there)
        missing = name_first(item.id for item in every if item not in known)
        raise LikenessError(
            f"{root}: {len(there)} of {len(every)} listed images are there (without {missing}); "
            f"the data set has {num_images}; {_FETCH[name]}"
        )
    listed = Items.of(there)
    if split == "all":
        return listed
    division = divide_classes(num_classes, num_train, protocol=protocol, fold=fold)
    labels = {classes[i] for i in getattr(division, split)}
    if not labels:
        raise LikenessError(
            f"{name}: protocol {protocol!r} holds out no {split} classes; choose 'vmf', "
            "'revisiting', 'benchmarker' or 'mlrc'"
        )
    return listed.take(np.flatnonzero(listed.labelled(labels)))


cub_items = partial(items, name="cub")
cars_items = partial(items, name="cars")
sop_items = partial(items, name="sop")


def _cub(data: Path) -> _Listed:
    root = _packed.locate(data, ("CUB_200_2011", ""), _FETCH["cub"])
    num_classes = _SIZES["cub"][0]
    every: list[Item] = []
    classes: dict[int, str] = {}
    for _, path in _rows(root / "images.txt", 2, _FETCH["cub"]):
        folder = path.rpartition("/")[0]
        label = int(folder[:3]) if re.fullmatch(r"[0-9]{3}\.[^/]*", folder) else 0
        if not 1 <= label <= num_classes or classes.setdefault(label, folder) != folder:
            raise LikenessError(
                f"{root / 'images.txt'}: {path!r} is no NUMBER.Species/name.jpg with 001 to 200; "
                "unpack the archive again"
            )
        every.append(Item(path, root / "images" / path, folder))
    return root, every, [classes.get(i + 1, f"class {i + 1} is absent") for i in range(num_classes)]


def _cars(data: Path) -> _Listed:
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
            mat = _packed.locate(root, tuple(names), _FETCH["cars"])
            listed += _annotations(mat, "fname", f"{part}/")
    every = [Item(id, root / id, f"{number:03d}") for id, number in listed]
    return root, every, [f"{i + 1:03d}" for i in range(_SIZES["cars"][0])]


def _sop(data: Path) -> _Listed:
    root = _packed.locate(data, ("Stanford_Online_Products", ""), _FETCH["sop"])
    num_classes, num_train, _ = _SIZES["sop"]
    every: list[Item] = []
    for name, first, last in (
        ("Ebay_train.txt", 1, num_train),
        ("Ebay_test.txt", num_train + 1, num_classes),
    ):
        for fields in _rows(root / name, 4, _FETCH["sop"]):
            if fields == _SOP_HEADER:
                continue
            label = int(fields[1]) if re.fullmatch("[0-9]{1,5}", fields[1]) else 0
            if not first <= label <= last:
                raise LikenessError(
                    f"{root / name}: {fields[3]!r} is of class {fields[1]!r}; {first} to {last} "
                    "are allowed; unpack the archive again"
                )
            every.append(Item(fields[3], root / fields[3], f"{label:05d}"))
    return root, every, [f"{i + 1:05d}" for i in range(num_classes)]


_LISTS: dict[Name, Callable[[Path], _Listed]] = {"cub": _cub, "cars": _cars, "sop": _sop}


def _annotations(path: Path, field: str, prefix: str) -> list[tuple[str, int]]:
    """Return (path below the root, class 1 to 196) of every image in a .mat file."""
    try:
        content = read_mat(path, "annotations", max_bytes=_MAX_MAT, squeeze=True)
        listed = [
            (f"{prefix}{annotation[field]}", int(annotation["class"]))
            for annotation in content.reshape(-1)
        ]
        if not all(1 <= number <= _SIZES["cars"][0] for _, number in listed):
            raise LikenessError(f"classes outside 1 to {_SIZES['cars'][0]}")
    except Exception as error:  # scipy's arrays of records raise many kinds
        raise LikenessError(
            f"{path}: no annotations with the fields {field!r} and 'class' ({first_line(error)}); "
            f"{_FETCH['cars']}"
        ) from None
    return listed


def _rows(path: Path, num_fields: int, fetch: str) -> Iterator[list[str]]:
    """Yield the fields of each line of a data set's own list, split at white space."""
    if not path.is_file():
        raise LikenessError(f"{path}: no such file; {fetch}")
    for number, line in text_lines(path):
        fields = line.split()
        if len(fields) != num_fields:
            raise LikenessError(
                f"{path}: line {number} is {quoted(line)}; {num_fields} fields are needed; {fetch}"
            )
        yield fields
