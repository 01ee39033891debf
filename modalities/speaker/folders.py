"""A user's own recordings, DATA/SPEAKER/**/*.wav (or flac, mp3, ...): items, splits and trials.

DATA may also be a list, a table, a Kaldi folder or an RTTM file (toolkit.data.listing). The split
divides the speakers. Other data sets use scan() and the pairs too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from eval.errors import LikenessError
from eval.types import Trials, name_first
from modalities.speaker.decoding import AV_SUFFIXES, SUFFIXES
from toolkit.data import shards, tree
from toolkit.data.item_checks import label_numbers
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
    """List the recordings of the speakers of one split.

    Those of a folder are in order of speaker and path, those of a list in its order.

    The speakers are divided, never the files of one speaker.

    Args:
        data: The folder of the speakers' folders, or of .tar shards; or a list, a table, a Kaldi
            folder or an RTTM file, of which every item has a label.
        split: "train", "test", or "all" for everyone.
        test_share: The share of the speakers that are held out for "test". round(test_share x
            speakers), at least 2, are held out; with 0, nobody is.
        seed: The seed of the draw of these speakers.
        columns: Which column of a table is which, as in "label=spk", where its name does not say.
        label: A pattern of paths, from which the speakers are taken: "{label}_*.wav".
        root: The folder that relative paths start from, by default that of the list.

    Returns:
        Items whose id is the path below `data` and whose label is the speaker, which is the first
        folder.

    Raises:
        LikenessError: The folder is missing. The folder has no audio files, only one speaker, or
            too few speakers to hold some out.
    """
    return hold_out(
        list_all(data, columns=columns, label=label, root=root),
        split=split,
        test_share=test_share,
        seed=seed,
        where=data,
        example="DATA/SPEAKER/file.wav",
        of="speaker",
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
    """List the recordings of a split and trials among them.

    All pairs are trials if there are at most num_trials. Otherwise the trials are a seeded draw,
    half target and half nontarget, none of them twice. Where one kind has fewer than half, all of
    it is taken, and the other kind fills up. A warning counts the speakers with a single file,
    which have no target trial.

    Args:
        data: As in items(). So are split, test_share, seed, columns, label and root.
        num_trials: The most trials that are made, at least 2.

    Returns:
        The items, and the labelled trials.

    Raises:
        LikenessError: No speaker has two files, num_trials is below 2, or items() refuses the data.
            The folder is missing.
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
    names, numbers = label_numbers(chosen)
    single = [names[number] for number in np.flatnonzero(np.bincount(numbers) == 1)]
    if len(single) == len(names):
        raise LikenessError(
            f"{data}: each of the {len(names)} speakers of split {split!r} has a single file, so "
            "that no target trial exists; add files"
        )
    if single:
        warnings.warn(
            f"{data}: {len(single)} of {len(names)} speakers have a single file and so no target "
            f"trial ({name_first(single)})",
            stacklevel=2,
        )
    return chosen, draw_pairs(chosen, num_trials, np.random.default_rng(seed))


def list_all(data: str | Path, *, columns: str = "", label: str = "", root: str = "") -> Items:
    """List all recordings of whatever a person has; the arguments are those of items().

    Raises:
        LikenessError: The data or some of the files are missing. Some items have no label, or the
            data cannot be understood.
    """
    listed = list_items(
        data,
        suffixes=SUFFIXES + AV_SUFFIXES,
        scan=scan,
        columns=columns,
        label=label,
        root=root,
    )
    label_numbers(listed)
    return listed


def scan(root: Path, *, example: str = "DATA/SPEAKER/file.wav") -> Items:
    """List every audio file below the folders of `root`, in the order of their paths.

    Hidden files are passed over. If `root` holds .tar shards (toolkit.data.shards.write makes
    them), their items are listed instead, in the same order.

    Args:
        root: The folder of the speakers' folders.
        example: The expected layout, for the messages.

    Returns:
        Items whose id is the posix path below root, and whose label is the first folder.

    Raises:
        LikenessError: root is missing. There is no audio file in any folder; the message states the
            expected layout.
    """
    if not root.is_dir():
        raise LikenessError(f"{root}: no such folder; one with {example} is needed")
    allowed = SUFFIXES + AV_SUFFIXES
    if any(root.glob("*.tar")):
        return shards.items(root, suffixes=allowed).sorted_as_paths()
    recordings = tree.in_folders(root, allowed)
    if not recordings:
        loose = sum(path.suffix.lower() in allowed for path in root.iterdir())
        beside = (
            f"; {loose} lie directly in it, without a speaker's folder: name where the speaker is "
            "in their names, as in --label '{label}_*.wav'"
            if loose
            else ""
        )
        raise LikenessError(
            f"{root}: no audio files in its folders{beside}; {example} is expected, with one of "
            f"{', '.join(allowed)}"
        )
    return recordings


def stratified_folds(
    groups: Sequence[Sequence[str]], num_folds: int, seed: int = 0
) -> list[set[str]]:
    """Divide the members of each group evenly over folds.

    The sizes of the folds differ by at most one, also within each group.

    Args:
        groups: The names of the members of each group, such as women and men.
        num_folds: How many folds to make, from 2 to the number of all members.
        seed: The seed of the draw.

    Returns:
        The members of each fold.

    Raises:
        LikenessError: num_folds is out of range.

    Example:
        >>> [len(fold) for fold in stratified_folds([["f1", "f2", "f3"], ["m1", "m2"]], 2)]
        [3, 2]
    """
    rng = np.random.default_rng(seed)
    shuffled = [group[i] for group in map(sorted, groups) for i in rng.permutation(len(group))]
    if not 2 <= num_folds <= len(shuffled):
        raise LikenessError(
            f"num_folds is {num_folds} for {len(shuffled)} speakers; 2 to {len(shuffled)} are "
            "allowed"
        )
    return [set(shuffled[i::num_folds]) for i in range(num_folds)]


def check_split(split: str) -> None:
    """Raise ValueError for any split but train, test and all."""
    if split not in ("train", "test", "all"):
        raise LikenessError(f"split is {split!r}; allowed are 'train', 'test' and 'all'")


def of_fold(
    every: Sequence[Item],
    groups: Sequence[Sequence[str]],
    split: Split,
    *,
    fold: int,
    num_folds: int,
    data_set: str,
) -> list[Item]:
    """Take the items of a split, where the labels of each group are divided over folds (seed 0).

    Args:
        every: The items of all splits.
        groups: The labels of each group, see stratified_folds.
        split: "test" is fold number `fold`, "train" the rest, "all" everything.
        fold: The number of the fold, from 0.
        num_folds: How many folds there are.
        data_set: The name of the data set, for the message.

    Raises:
        LikenessError: There is no such fold.
    """
    if not 0 <= fold < num_folds:
        raise LikenessError(
            f"{data_set}: fold is {fold}; 0 to {num_folds - 1} are allowed with num_folds "
            f"{num_folds}"
        )
    if split == "all":
        return list(every)
    held_out = stratified_folds(groups, num_folds)[fold]
    return [item for item in every if (item.label in held_out) == (split == "test")]
