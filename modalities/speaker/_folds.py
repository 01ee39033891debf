"""Folds of speakers that are even within each group, and the items of one of them."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item
from likeness.eval.types import check_choice

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

    Example:
        >>> [len(fold) for fold in stratified_folds([["f1", "f2", "f3"], ["m1", "m2"]], 2)]
        [3, 2]
    """
    rng = np.random.default_rng(seed)
    shuffled = [group[i] for group in map(sorted, groups) for i in rng.permutation(len(group))]
    assert 2 <= num_folds <= len(shuffled), num_folds
    return [set(shuffled[i::num_folds]) for i in range(num_folds)]


def items_of_fold(
    every: Sequence[Item], groups: Sequence[Sequence[str]], split: Split, fold: int, num_folds: int
) -> list[Item]:
    """Take the items of a split, where the labels of each group are divided over folds (seed 0).

    Args:
        every: The items of all splits.
        groups: The labels of each group, see stratified_folds.
        split: "test" is fold number `fold`, "train" the rest, "all" everything.
        fold: The number of the fold, from 0.
        num_folds: How many folds there are.

    Raises:
        LikenessError: There is no such split or fold.
    """
    check_choice("split", split, get_args(Split))
    most = sum(map(len, groups))
    if not 2 <= num_folds <= most or not 0 <= fold < num_folds:
        raise LikenessError(
            f"fold is {fold} and num_folds is {num_folds}; 2 to {most} folds, and a number from 0 "
            "to below that are allowed"
        )
    if split == "all":
        return list(every)
    held_out = stratified_folds(groups, num_folds)[fold]
    return [item for item in every if (item.label in held_out) == (split == "test")]
