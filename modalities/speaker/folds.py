"""Folds of speakers that are even within each group, and the items of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from eval.errors import LikenessError
from toolkit.data.items import Item

Split = Literal["train", "test", "all"]


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
