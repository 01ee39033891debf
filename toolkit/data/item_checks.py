"""What is asked of all items of a data set together: unique ids, their labels, a digest."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError
from eval.formats.provenance import digest
from toolkit.data.columns import blocks
from toolkit.data.items import Item, Items


def distinct_labels(items: Sequence[Item]) -> list[str]:
    """Returns the labels of items, sorted; "None" for items without.

    Example:
        >>> from pathlib import Path
        >>> distinct_labels([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        ['ann', 'bob']
    """
    if not isinstance(items, Items):
        return sorted({str(item.label) for item in items})
    labels = {items.labels.names[number] for number in items.labels.used().tolist()}
    return sorted(labels | ({"None"} if (items.labels.numbers < 0).any() else set()))


def fingerprint(items: Sequence[Item]) -> str:
    """Returns the digest of the ids and labels of items, in their order.

    Example:
        >>> from pathlib import Path
        >>> fingerprint([Item("1", Path("1"), "bob")]) == digest(["1\\0bob"])
        True
    """
    if not isinstance(items, Items):
        return digest(f"{item.id}\0{item.label}" for item in items)
    # A NUL stands between the values of a digest too, so one value may hold a block of items.
    return digest(
        "\0".join(
            chain.from_iterable(
                zip(
                    items.ids.strings(start, stop),
                    map(str, items.labels.strings(start, stop)),
                    strict=True,
                )
            )
        )
        for start, stop in blocks(len(items))
    )


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
    if isinstance(items, Items):
        unlabelled = list(items.ids.take(np.flatnonzero(items.labels.numbers < 0)[:1]))
    else:
        unlabelled = [item.id for item in items if item.label is None]
    if unlabelled:
        raise LikenessError(f"{unlabelled[0]!r} has no label; training needs one for each item")
    if isinstance(items, Items):
        used = items.labels.used()
        rank = np.zeros(len(items.labels.names), dtype=np.int64)
        rank[used] = np.arange(used.size)
        return tuple(items.labels.names.take(used)), rank[items.labels.numbers]
    names = tuple(sorted({str(item.label) for item in items}))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[str(item.label)] for item in items], dtype=np.int64)


def check_unique(items: Sequence[Item], where: str) -> None:
    """Refuses repeated ids.

    Args:
        items: The items.
        where: The name of the list or folder, with which the message begins.

    Raises:
        LikenessError: An id is repeated.
    """
    if isinstance(items, Items):
        items = items.take(items.ids.repeated())  # the others are unique
    seen: dict[str, Item] = {}
    for item in items:
        if seen.setdefault(item.id, item) is not item:
            raise LikenessError(
                f"{where}: the id {item.id!r} is there twice ({seen[item.id].path.name!a} and "
                f"{item.path.name!a}; ids are compared in Unicode NFC); remove one, or give each a "
                "name of its own"
            )
