"""Which labelled items train, validate and test, and which of them are drawn."""

import warnings
from collections.abc import Sequence

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Item, Items
from likeness.eval.types import check_choice, name_first

_MANY = 20  # items, from which on two labels look like a property


def hold_out(
    every: Sequence[Item],
    *,
    split: str,
    test_share: float,
    validation_share: float = 0.0,
    seed: int,
    where: object,
) -> Items:
    """Returns the items of one split, in their order.

    Labels are divided, never the items of one label. round(test_share x labels) of them, but at
    least 2, are held out, drawn with `seed`. With test_share 0, nobody is held out.

    Args:
        every: All items, with labels.
        split: "train", "validation", "test" or "all".
        test_share: The share of the labels that is held out, from 0 to below 1.
        validation_share: The share of the other labels that validates, from 0 to below 1.
        seed: The seed of the draw.
        where: The data set, with which messages begin.

    Raises:
        LikenessError: There is a single label, or there are too few labels to hold some out.

    Example:
        >>> from pathlib import Path
        >>> items = [Item(id, Path(id), id[0]) for id in ("a1", "a2", "b1", "c1", "d1")]
        >>> chosen = hold_out(items, split="test", test_share=0.25, seed=0, where="DATA")
        >>> len({item.label for item in chosen})
        2
    """
    check_choice("split", split, ("train", "validation", "test", "all"))
    every = Items.of(every)
    if len(names := sorted(map(str, set(every.labels)))) == 2 and len(every) >= _MANY:
        text = f"{where}: the labels have two values ({name_first(names)}); if they are a property"
        warnings.warn(f"{text} such as sex, name others by --columns label=COLUMN", stacklevel=2)
    if split == "all":
        return every
    labels = distinct_labels(every)
    shuffled = [labels[i] for i in np.random.default_rng(seed).permutation(len(labels))]
    num_test = max(2, round(test_share * len(labels))) if test_share > 0 else 0
    rest = shuffled[num_test:]
    num_validation = max(2, round(validation_share * len(rest))) if validation_share > 0 else 0
    parts = {"train": rest[num_validation:], "validation": rest[:num_validation]}
    parts["test"] = shuffled[:num_test]
    if len(parts["train"]) < 2 or not parts[split]:
        sizes = ", ".join(f"{len(part)} for {name}" for name, part in parts.items())
        shares = f"test_share {test_share} and validation_share {validation_share}"
        raise LikenessError(
            f"{where}: {shares} of {len(labels)} labels leave {sizes}, and each needs 2; add "
            "labels, or change the shares (`likeness lists --split all` tests on all labels)"
        )
    return every.take(np.flatnonzero(every.labelled(set(parts[split]))))


def distinct_labels(items: Sequence[Item]) -> list[str]:
    """Returns the labels of items, sorted; "None" for items without.

    Example:
        >>> from pathlib import Path
        >>> distinct_labels([Item("1", Path("1"), "bob"), Item("2", Path("2"), "ann")])
        ['ann', 'bob']
    """
    return sorted(map(str, set(Items.of(items).labels)))
