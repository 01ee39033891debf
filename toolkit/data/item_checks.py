"""What is asked of all items of a data set together: unique ids, their labels, a digest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.provenance import digest
from toolkit.data.items import Item, Items


def distinct_labels(items: Sequence[Item]) -> list[str]:
    """Returns the labels of items, sorted; "None" for items without.

    Example:
        >>> from pathlib import Path
        >>> distinct_labels([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        ['ann', 'bob']
    """
    return sorted(map(str, set(Items.of(items).labels)))


def fingerprint(items: Sequence[Item]) -> str:
    """Returns the digest of the ids and labels of items, in their order.

    Example:
        >>> from pathlib import Path
        >>> fingerprint([Item("1", Path("1"), "bob")]) == digest(["1\\0bob"])
        True
    """
    items = Items.of(items)
    return digest(map("\0".join, zip(items.ids, map(str, items.labels), strict=True)))


def label_numbers(items: Sequence[Item]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Numbers the classes of items in the order of their names.

    Args:
        items: N items with labels.

    Returns:
        The sorted class names, and the class number of each item (N,).

    Raises:
        LikenessError: An item has no label.

    Example:
        >>> from pathlib import Path
        >>> label_numbers([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        (('ann', 'bob'), array([1, 0]))
    """
    items = Items.of(items)
    numbers = items.labels.numbers.astype(np.int64)
    if (numbers < 0).any():
        unlabelled = items[int(numbers.argmin())].id
        raise LikenessError(f"{unlabelled!r} has no label; training needs one for each item")
    used, rank = np.unique(numbers, return_inverse=True)
    return tuple(items.labels.names[number] for number in used.tolist()), rank


def check_unique(items: Sequence[Item], where: str) -> None:
    """Refuses repeated ids.

    Args:
        items: The items.
        where: The name of the list or folder, with which the message begins.

    Raises:
        LikenessError: An id is repeated.
    """
    items = Items.of(items)
    seen: dict[str, Item] = {}
    for item in map(items.__getitem__, items.ids.repeated().tolist()):  # the others are unique
        if seen.setdefault(item.id, item) is not item:
            raise LikenessError(
                f"{where}: the id {item.id!r} is there twice ({seen[item.id].path.name!a} and "
                f"{item.path.name!a}; ids are compared in Unicode NFC); remove one, or give each a "
                "name of its own"
            )
