"""Anyone's own images, DATA/CLASS/**/*.jpg (or png, webp, ...): items and a split by class, drawn
or by a retrieval protocol, and trials.
"""

from __future__ import annotations

import warnings
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from eval.types import Trials, name_first
from modalities.image.splits import Protocol, Split, check_split, of_classes
from toolkit.data import shards
from toolkit.data.batch import Item
from toolkit.data.images import SUFFIXES
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
) -> list[Item]:
    """Items of the classes of one split, in order of class and path; id = path below `data`, label
    = class = first folder.

    The classes are divided, never one class's images. protocol "drawn": round(test_share x
    classes), at least 2, test, and round(validation_share x rest) validate, drawn with `seed`; with
    test_share 0, nobody. Otherwise the first half of the classes by name trains, see
    splits.divide_classes.
    Warns when classes of the split have a single image: nothing is like it, so it tests nothing.
    Raises ValueError for a folder without images, a single class, a split without classes;
    FileNotFoundError when the folder is missing.
    """
    check_split(split)
    every = scan(Path(data))
    names = sorted({str(one.label) for one in every})
    if len(names) < 2:
        raise ValueError(
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
            raise ValueError(
                f"{data}: test_share {test_share} and validation_share {validation_share} of "
                f"{len(names)} classes leave {len(parts[split])} for {split!r};"
                " at least 2 are needed: add classes, change the shares, or use split='all'"
            )
        chosen = [one for one in every if one.label in parts[split]]
    kept, counts = np.unique([str(one.label) for one in chosen], return_counts=True)
    single = [str(one) for one in kept[counts == 1]]
    if len(single) == len(kept):
        raise ValueError(
            f"{data}: each of the {len(kept)} classes of split {split!r} has a single image, so "
            "that nothing is alike; add images"
        )
    if single:
        warnings.warn(
            f"{data}: {len(single)} of {len(kept)} classes of split {split!r} have a single image "
            f"({name_first(single)})",
            stacklevel=2,
        )
    return chosen


def trials(
    data: str | Path,
    *,
    split: Split = "test",
    num_trials: int = 20_000,
    test_share: float = 0.2,
    seed: int = 0,
) -> tuple[list[Item], Trials]:
    """Items of a split and trials among them: all pairs if there are at most num_trials, else a
    seeded draw, half of each kind, none twice.
    """
    if num_trials < 2:
        raise ValueError(f"{data}: num_trials is {num_trials}; at least 2 are needed")
    chosen = items(data, split=split, test_share=test_share, seed=seed)
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def scan(root: Path, *, example: str = "DATA/CLASS/file.jpg") -> list[Item]:
    """Every image file below the folders of `root`, sorted; id = posix path below root, label =
    first folder. Hidden files are passed over.

    If `root` holds .tar shards (toolkit.data.shards.write makes them), their items instead, in the
    same order.

    Raises FileNotFoundError when root is missing and ValueError when there is no image in a folder,
    saying what layout is expected.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; one with {example} is needed")
    if any(root.glob("*.tar")):
        return sorted(shards.items(root), key=lambda one: PurePosixPath(one.id).parts)
    found: list[Item] = []
    for folder in sorted(
        one for one in root.iterdir() if one.is_dir() and not one.name.startswith(".")
    ):
        files = (
            one
            for one in folder.rglob("*")
            if one.suffix.lower() in SUFFIXES and not one.name.startswith(".") and one.is_file()
        )
        found += [Item(one.relative_to(root).as_posix(), one, folder.name) for one in sorted(files)]
    if not found:
        loose = sum(one.suffix.lower() in SUFFIXES for one in root.iterdir())
        beside = f"; {loose} lie directly in it, without a class's folder" if loose else ""
        raise ValueError(
            f"{root}: no images in its folders{beside}; expected {example}, with one of "
            f"{', '.join(SUFFIXES)}"
        )
    return found


def _draw(
    names: list[str], test_share: float, validation_share: float, seed: int, where: str
) -> dict[str, set[str]]:
    if not (0.0 <= test_share < 1.0 and 0.0 <= validation_share < 1.0):
        raise ValueError(
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
