"""The ORL (AT&T) database of faces: 40 subjects (a part of it will do), 10 images each of 92 x 112
pixels, grey, loosely centred, no landmarks.

Layout: DATA/orl/s1/1.pgm ... Credit: Olivetti Research Laboratory, Cambridge (Samaria and Harter
1994). Pixels alone give an EER of about 16 % and nearly every nearest neighbour right, so report
EER and MAP@R. Read with partial(images.read, size=(112, 92)), or size=(112, 112), fit="pad" for
networks of that size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from eval.types import Trials
from modalities.face.align import find_images
from toolkit.data.batch import Item
from toolkit.data.pairs import all_pairs

FETCH = "fetch the ORL faces and store them as DATA/orl/s1/1.pgm, ..., s40/10.pgm"


def items(
    data: str | Path,
    *,
    split: Literal["train", "test", "all"] = "train",
    fold: int = 0,
    num_folds: int = 5,
) -> list[Item]:
    """Items with id and label as in "s1/1" and "s1", by subject and number. data: the folder that
    holds orl/.

    The subjects are divided into num_folds folds (seed 0), sizes differing by one at most; "test"
    is fold number `fold`, "train" the rest, "all" everyone. FileNotFoundError or ValueError, saying
    what to fetch, for a missing folder, another layout or too few subjects; ValueError for a fold
    out of range.
    """
    folder = Path(data) / "orl"
    if split not in ("train", "test", "all"):
        raise ValueError(f"split is {split!r}; allowed are 'train', 'test' and 'all'")
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder; {FETCH}")
    found = [
        one
        for one in find_images(folder)
        if one.label is not None and one.label[1:].isdecimal() and one.path.stem.isdecimal()
    ]
    subjects = sorted({int(str(one.label)[1:]) for one in found})
    if not 2 <= num_folds <= len(subjects) // 2 or not 0 <= fold < num_folds:
        raise ValueError(
            f"{folder}: fold {fold} of {num_folds} with {len(subjects)} subjects; num_folds from 2 "
            f"to {len(subjects) // 2}, fold below it are allowed ({FETCH})"
        )
    found.sort(key=lambda one: (int(str(one.label)[1:]), int(one.path.stem)))
    held_out = {
        f"s{subjects[i]}"
        for i in np.random.default_rng(0).permutation(len(subjects))[fold::num_folds]
    }
    chosen = (
        found
        if split == "all"
        else [one for one in found if (one.label in held_out) == (split == "test")]
    )
    return [one._replace(id=f"{one.label}/{one.path.stem}") for one in chosen]


def trials(
    data: str | Path,
    *,
    split: Literal["train", "test", "all"] = "test",
    fold: int = 0,
    num_folds: int = 5,
) -> tuple[list[Item], Trials]:
    """Items of a split and all their pairs i < j."""
    chosen = items(data, split=split, fold=fold, num_folds=num_folds)
    return chosen, all_pairs(chosen)
