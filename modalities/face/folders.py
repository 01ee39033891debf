"""Anyone's own faces, DATA/SUBJECT/**/*.jpg (or png, ...), tar shards, RecordIO files and
OpenSphere's lists: items, a split by subject, trials.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from eval.formats.files import text_lines
from eval.types import Trials, name_first
from modalities.face import recordio
from modalities.face.align import find_images
from toolkit.data import shards
from toolkit.data.batch import Item, check_unique
from toolkit.data.images import SUFFIXES
from toolkit.data.pairs import draw_pairs, hold_out

Split = Literal["train", "test", "all"]


def items(
    data: str | Path, *, split: Split = "train", test_share: float = 0.2, seed: int = 0
) -> list[Item]:
    """Items of the subjects of one split, in order of subject and path; label = subject.

    The subjects are divided, never one subject's images: round(test_share x subjects), at least 2,
    are held out, drawn with `seed`; with test_share 0, nobody. Raises ValueError for data without
    images, a single subject, and too few subjects to hold some out; FileNotFoundError when it is
    missing.
    """
    return hold_out(
        scan(Path(data)),
        split=split,
        test_share=test_share,
        seed=seed,
        where=data,
        example="DATA/SUBJECT/image.jpg",
        of="subject",
    )


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


def scan(root: Path) -> list[Item]:
    """Every image below the folders of `root`, sorted; id = posix path below root, label = first
    folder. Hidden files are passed over.

    If `root` is or holds a .rec file (recordio.items) or holds .tar shards
    (toolkit.data.shards.items), their items instead; if it is a .txt file, those that this
    list names in its own folder (read_list).
    FileNotFoundError when root is missing; ValueError when there is no image in a folder, or
    several .rec files, and what the readers refuse.
    """
    if root.is_file() and root.suffix == ".txt":
        return sorted(read_list(root, root.parent), key=lambda one: PurePosixPath(one.id).parts)
    if root.is_file() and root.suffix == ".rec":
        return recordio.items(root)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root}: no such folder; one with DATA/SUBJECT/image.jpg is needed"
        )
    if any(root.glob("*.tar")):
        return sorted(
            shards.items(root, suffixes=SUFFIXES), key=lambda one: PurePosixPath(one.id).parts
        )
    records = sorted(root.glob("*.rec"))
    if len(records) > 1:
        raise ValueError(
            f"{root}: {len(records)} .rec files ({name_first(one.name for one in records)}); name "
            "one of them"
        )
    if records:
        return recordio.items(records[0])
    found = [one for one in find_images(root) if one.label is not None]
    if not found:
        raise ValueError(
            f"{root}: its images lie directly in it, without a subject's folder; expected "
            "DATA/SUBJECT/image.jpg"
        )
    return found


def read_list(path: str | Path, root: str | Path) -> list[Item]:
    """OpenSphere's training list: one `subject/image.jpg` a line (the last field, if there are
    several), below root; id = the path, label = its folder.

    ValueError: lines without a folder, paths outside root, files that are not there, repeated
    lines; all counted, the first named.
    """
    root = Path(root)
    found: list[Item] = []
    bad, missing = [], []
    for number, text in text_lines(path):
        name = text.split()[-1]
        place = PurePosixPath(name)
        if len(place.parts) < 2 or place.is_absolute() or ".." in place.parts:
            bad.append(str(number))
            continue
        found.append(Item(name, root / name, place.parent.as_posix()))
        if not os.path.isfile(found[-1].path):  # Path.is_file raises where a name is too long
            missing.append(name)
    if bad or not found:
        raise ValueError(
            f"{path}: {len(bad)} lines are not `subject/image.jpg` below the images' folder "
            f"(first: line {bad[0] if bad else 1})"
        )
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(found)} images are not in {root} "
            f"({name_first(missing)}); fetch them or correct the list"
        )
    check_unique(found, str(path))
    return found
