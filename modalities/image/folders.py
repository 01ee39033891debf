"""Anyone's own images, DATA/CLASS/**/*.jpg (or png, webp, ...).

This file lists them as items, splits them by class, at random or by a retrieval protocol, and draws
trials.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal

import numpy as np

from eval.errors import LikenessError
from eval.types import Trials, name_first
from modalities.image.splits import Protocol, Split, check_split, of_classes
from toolkit.data import shards, tree
from toolkit.data.images import SUFFIXES
from toolkit.data.item_checks import distinct_labels, label_numbers
from toolkit.data.items import Items
from toolkit.data.listing import list_items
from toolkit.data.pairs import draw_pairs


def items(
    data: str | Path,
    *,
    split: Split = "train",
    protocol: Literal["drawn"] | Protocol = "drawn",
    fold: int = 0,
    test_share: float = 0.2,
    validation_share: float = 0.0,
    seed: int = 0,
    columns: str = "",
    label: str = "",
    root: str = "",
) -> Items:
    """List the images of the classes of one split.

    Those of a folder are in order of class and path; an item's id is its path below `data`, and its
    label its class, the first folder. Those of a list are in its order. The classes are divided,
    never the images of one class. A warning is given where classes of the split have a
    single image: nothing is like it, so it tests nothing.

    Args:
        data: The folder DATA; or a list or a table, of which every item has a label.
        split: "train", "validation", "test" or "all".
        protocol: "drawn": classes are drawn with `seed`. Round(test_share x classes), at least 2,
            test, and round(validation_share x rest) validate. Otherwise the first half of the
            classes by name trains; see splits.divide_classes.
        fold: The fold of the protocols that have several.
        test_share: The share of the classes that tests; with 0, none does.
        validation_share: The share of the other classes that validates.
        seed: Decides which classes are drawn.
        columns: Which column of a table is which, as in "label=product", where its name does not
            say.
        label: A pattern of paths, from which the classes are taken: "{label}_*.jpg".
        root: The folder that relative paths start from, by default that of the list.

    Raises:
        LikenessError: The folder has no images or a single class, or the split has no classes. The
            folder is missing.
    """
    check_split(split)
    every = list_all(data, columns=columns, label=label, root=root)
    names = distinct_labels(every)
    if len(names) < 2:
        raise LikenessError(
            f"{data}: only one class ({names[0]!r}) was found; at least 2 are needed, each in a "
            "folder of its own: DATA/CLASS/file.jpg"
        )
    if protocol != "drawn":
        chosen = of_classes(
            every, names, len(names) // 2, split=split, protocol=protocol, fold=fold, name=str(data)
        )
    elif split == "all":
        chosen = every
    else:
        parts = _draw(names, test_share, validation_share, seed, str(data))
        if len(parts[split]) < 2:
            raise LikenessError(
                f"{data}: test_share {test_share} and validation_share {validation_share} of "
                f"{len(names)} classes leave {len(parts[split])} for {split!r}; at least 2 are "
                "needed: add classes, change the shares, or use split='all'"
            )
        chosen = every.take(np.flatnonzero(every.labelled(parts[split])))
    _warn_of_singles(chosen, data, split)
    return chosen


def _warn_of_singles(chosen: Items, data: str | Path, split: Split) -> None:
    """Warn of classes with a single image; raise ValueError if all classes have a single one."""
    kept, numbers = label_numbers(chosen)
    single = [kept[number] for number in np.flatnonzero(np.bincount(numbers) == 1)]
    if len(single) == len(kept):
        raise LikenessError(
            f"{data}: each of the {len(kept)} classes of split {split!r} has a single image, so "
            "that nothing is alike; add images"
        )
    if single:
        warnings.warn(
            f"{data}: {len(single)} of {len(kept)} classes of split {split!r} have a single image "
            f"({name_first(single)})",
            stacklevel=3,
        )


def trials(
    data: str | Path,
    *,
    split: Split = "test",
    num_trials: int = 20_000,
    test_share: float = 0.2,
    seed: int = 0,
    columns: str = "",
    label: str = "",
    root: str = "",
) -> tuple[Items, Trials]:
    """List the items of a split, and trials among them.

    All pairs are taken if there are at most `num_trials`; otherwise so many are drawn with `seed`,
    half of each kind, and none twice.
    """
    if num_trials < 2:
        raise LikenessError(f"{data}: num_trials is {num_trials}; at least 2 are needed")
    chosen = items(
        data,
        split=split,
        test_share=test_share,
        seed=seed,
        columns=columns,
        label=label,
        root=root,
    )
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def list_all(data: str | Path, *, columns: str = "", label: str = "", root: str = "") -> Items:
    """List all images of whatever a person has; the arguments are those of items().

    Raises:
        LikenessError: The data or some of the files are missing. Some items have no label, or the
            data cannot be understood.
    """
    listed = list_items(data, suffixes=SUFFIXES, scan=scan, columns=columns, label=label, root=root)
    label_numbers(listed)
    return listed


def scan(root: Path, *, example: str = "DATA/CLASS/file.jpg") -> Items:
    """List every image file below the folders of `root`, sorted by path.

    An item's id is its posix path below `root`, its label the first folder. Hidden files are passed
    over. If `root` has .tar shards (which toolkit.data.shards.write makes), their items are listed
    instead, in the same order.

    Args:
        root: The folder.
        example: The layout that errors ask for.

    Raises:
        LikenessError: `root` is missing. There is no image in any folder.
    """
    if not root.is_dir():
        raise LikenessError(f"{root}: no such folder; one with {example} is needed")
    if any(root.glob("*.tar")):
        return shards.items(root).sorted_as_paths()
    listed = tree.in_folders(root, SUFFIXES)
    if not listed:
        loose = sum(path.suffix.lower() in SUFFIXES for path in root.iterdir())
        beside = (
            f"; {loose} lie directly in it, without a class's folder: name where the class is in "
            "their names, as in --label '{label}_*.jpg'"
            if loose
            else ""
        )
        raise LikenessError(
            f"{root}: no images in its folders{beside}; expected {example}, with one of "
            f"{', '.join(SUFFIXES)}"
        )
    return listed


def _draw(
    names: list[str], test_share: float, validation_share: float, seed: int, where: str
) -> dict[str, set[str]]:
    """Divide the classes at random into those that test, validate and train."""
    if not (0.0 <= test_share < 1.0 and 0.0 <= validation_share < 1.0):
        raise LikenessError(
            f"{where}: test_share is {test_share} and validation_share {validation_share}; shares "
            "from 0 to below 1 are needed"
        )
    shuffled = [names[i] for i in np.random.default_rng(seed).permutation(len(names))]
    num_test = max(2, round(test_share * len(names))) if test_share > 0 else 0
    rest = shuffled[num_test:]
    num_validation = max(2, round(validation_share * len(rest))) if validation_share > 0 else 0
    return {
        "test": set(shuffled[:num_test]),
        "validation": set(rest[:num_validation]),
        "train": set(rest[num_validation:]),
    }
