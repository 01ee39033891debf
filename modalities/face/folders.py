"""A user's own faces: items, a split by subject, and trials.

The faces may be folders DATA/SUBJECT/**/*.jpg (or png, ...), tar shards, RecordIO files,
OpenSphere's lists, or other lists and tables (toolkit.data.listing).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np

from eval.errors import LikenessError
from eval.formats.files import text_lines
from eval.types import Trials, name_first
from modalities.face import recordio
from modalities.face.align import find_images
from toolkit.data import shards
from toolkit.data.column_names import is_header
from toolkit.data.images import SUFFIXES
from toolkit.data.item_checks import check_unique, label_numbers
from toolkit.data.items import Item, Items
from toolkit.data.listing import list_items
from toolkit.data.pairs import draw_pairs, hold_out

Split = Literal["train", "test", "all"]


def items(
    data: str | Path,
    *,
    split: Split = "train",
    test_share: float = 0.2,
    seed: int = 0,
    columns: str = "",
    label: str = "",
    root: str = "",
) -> Items:
    """List the images of the subjects of one split.

    Those of a folder are in order of subject and path, those of a list in its order.

    The subjects are divided, never the images of one subject.

    Args:
        data: The folder of the subjects' folders or of .tar shards, a .rec file, a .txt list, or a
            table, of which every item has a label.
        split: "train", "test", or "all" for everyone.
        test_share: The share of the subjects that are held out for "test". round(test_share x
            subjects), at least 2, are held out; with 0, nobody is.
        seed: The seed of the draw of these subjects.
        columns: Which column of a table is which, as in "label=person", where its name does not
            say.
        label: A pattern of paths, from which the subjects are taken: "{label}_*.jpg".
        root: The folder that relative paths start from, by default that of the list.

    Returns:
        Items whose label is the subject.

    Raises:
        LikenessError: The data are missing. There are no images, only one subject, or too few
            subjects to hold some out.
    """
    return hold_out(
        list_all(data, columns=columns, label=label, root=root),
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
    columns: str = "",
    label: str = "",
    root: str = "",
) -> tuple[Items, Trials]:
    """List the images of a split and trials among them.

    All pairs are trials if there are at most num_trials. Otherwise the trials are a seeded draw,
    half target and half nontarget, none of them twice.

    Args:
        data: As in items(). So are split, test_share, seed, columns, label and root.
        num_trials: The most trials that are made, at least 2.

    Returns:
        The items, and the labelled trials.

    Raises:
        LikenessError: The data are missing. Num_trials is below 2, or items() refuses the data.
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
    path = Path(data)
    if path.is_file() and (path.suffix == ".rec" or _is_opensphere(path, columns, label, root)):
        return scan(path)
    listed = list_items(path, suffixes=SUFFIXES, scan=scan, columns=columns, label=label, root=root)
    label_numbers(listed)
    return listed


def _is_opensphere(path: Path, columns: str, label: str, root: str) -> bool:
    """Whether a file is a list of one `subject/image.jpg` a line."""
    if path.suffix != ".txt" or columns or label or root:
        return False
    first = next(text_lines(path), (0, ""))[1].split()
    return not is_header(first) and len(first) < 3 and "," not in first[-1:]


def scan(root: Path) -> Items:
    """List every image of a folder or file, in the order of their paths.

    Images lie in the folders of `root`; hidden files are passed over. If `root` is or holds a .rec
    file (recordio.items), or holds .tar shards (toolkit.data.shards.items), their items are listed
    instead. If it is a .txt file, the items are those that this list names in its own folder
    (read_list).

    Args:
        root: The folder or file.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder.

    Raises:
        LikenessError: root is missing. There is no image in any folder, there are several .rec
            files, or a reader refuses its file.
    """
    if root.is_file() and root.suffix == ".txt":
        return read_list(root, root.parent).sorted_as_paths()
    if root.is_file() and root.suffix == ".rec":
        return recordio.items(root)
    if not root.is_dir():
        raise LikenessError(f"{root}: no such folder; one with DATA/SUBJECT/image.jpg is needed")
    if any(root.glob("*.tar")):
        return shards.items(root, suffixes=SUFFIXES).sorted_as_paths()
    records = sorted(root.glob("*.rec"))
    if len(records) > 1:
        raise LikenessError(
            f"{root}: there are {len(records)} .rec files "
            f"({name_first(path.name for path in records)}); name one of them"
        )
    if records:
        return recordio.items(records[0])
    images = find_images(root)
    images = images.take(np.flatnonzero(images.labels.numbers >= 0))
    if not images:
        raise LikenessError(
            f"{root}: its images lie directly in it, without a subject's folder; "
            "DATA/SUBJECT/image.jpg is expected"
        )
    return images


def read_list(path: str | Path, root: str | Path) -> Items:
    """Read OpenSphere's training list, which has one `subject/image.jpg` a line.

    Where a line has several fields, the last one is the path.

    Args:
        path: The list.
        root: The folder that the paths start from.

    Returns:
        Items in the order of the list; the id is the path, and the label is its folder.

    Raises:
        LikenessError: Lines have no folder, paths lie outside root, files are not there, or lines
            are repeated. All are counted, and the first is named.
    """
    root = Path(root)
    bad: list[str] = []
    missing: list[str] = []

    def listed() -> Iterator[Item]:
        for number, text in text_lines(path):
            name = text.split()[-1]
            place = PurePosixPath(name)
            if len(place.parts) < 2 or place.is_absolute() or ".." in place.parts:
                bad.append(str(number))
                continue
            # Path.is_file raises where a name is too long.
            if not os.path.isfile(root / name):
                missing.append(name)
            yield Item(name, root / name, place.parent.as_posix())

    items = Items.of(listed())
    if bad or not items:
        raise LikenessError(
            f"{path}: {len(bad)} lines are not `subject/image.jpg` below the images' folder "
            f"(first: line {bad[0] if bad else 1}); correct the list"
        )
    if missing:
        raise LikenessError(
            f"{path}: {len(missing)} of {len(items)} images are not in {root} "
            f"({name_first(missing)}); fetch them or correct the list"
        )
    check_unique(items, str(path))
    return items
