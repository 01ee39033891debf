"""The ORL (AT&T) database of faces: 40 subjects with 10 grey images of 92 x 112 pixels each.

A part of the subjects is enough. The faces are loosely centred, and there are no landmarks.

The layout is DATA/orl/s1/1.pgm ... Credit: Olivetti Research Laboratory, Cambridge (Samaria and
Harter 1994). Pixels alone give an EER of about 16 % and nearly every nearest neighbour right, so
report EER and MAP@R. Read the images with partial(images.read, size=(112, 92)).
"""

from pathlib import Path
from typing import Literal

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.items.pairs import all_pairs
from likeness.eval.types import Trials, check_choice
from likeness.modalities.face.align import find_images

FETCH = "fetch the ORL faces and store them as DATA/orl/s1/1.pgm, ..., s40/10.pgm"


def items(
    data: str | Path,
    *,
    split: Literal["train", "test", "all"] = "train",
    fold: int = 0,
    num_folds: int = 5,
) -> list[Item]:
    """List the images of a split, by subject and number.

    The subjects are divided into num_folds folds (seed 0), whose sizes differ by one at most.

    Args:
        data: The folder that holds orl/.
        split: "test" is fold number `fold`, "train" the rest, "all" everyone.
        fold: The number of the fold, from 0.
        num_folds: How many folds there are, from 2 to half of the subjects.

    Returns:
        Items with id and label as in "s1/1" and "s1".

    Raises:
        LikenessError: The folder is missing; the message says what to fetch. The folder is laid out
            otherwise or has too few subjects (the message says what to fetch), or the fold is out
            of range.
    """
    folder = Path(data) / "orl"
    check_choice("split", split, ("train", "test", "all"))
    if not folder.is_dir():
        raise LikenessError(f"{folder}: no such folder; {FETCH}")
    images = [
        item
        for item in find_images(folder)
        if item.label is not None and item.label[1:].isdecimal() and item.path.stem.isdecimal()
    ]
    subjects = sorted({int(str(item.label)[1:]) for item in images})
    if not 2 <= num_folds <= len(subjects) // 2 or not 0 <= fold < num_folds:
        raise LikenessError(
            f"{folder}: fold {fold} of {num_folds} is chosen of {len(subjects)} subjects; "
            f"num_folds from 2 to {len(subjects) // 2} and a fold below it are allowed ({FETCH})"
        )
    images.sort(key=lambda item: (int(str(item.label)[1:]), int(item.path.stem)))
    order = np.random.default_rng(0).permutation(len(subjects))
    held_out = {f"s{subjects[i]}" for i in order[fold::num_folds]}
    if split != "all":
        images = [item for item in images if (item.label in held_out) == (split == "test")]
    return [item._replace(id=f"{item.label}/{item.path.stem}") for item in images]


def trials(
    data: str | Path,
    *,
    split: Literal["train", "test", "all"] = "test",
    fold: int = 0,
    num_folds: int = 5,
) -> tuple[list[Item], Trials]:
    """List the images of a split and all their pairs i < j.

    Args:
        data: As in items(). So are split, fold and num_folds.

    Returns:
        The items, and the trials.

    Raises:
        LikenessError: The folder is missing. Items() refuses the data.
    """
    chosen = items(data, split=split, fold=fold, num_folds=num_folds)
    return chosen, all_pairs(chosen)
