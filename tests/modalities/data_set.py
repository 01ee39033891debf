"""What tests/modalities/test_data_sets.py has to know of a data set. The test file of each data set
states it in DATA_SETS, beside the function that draws a miniature of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class DataSet:
    """One data set, and what its miniature holds.

    Attributes:
        draw: Draws the miniature below a folder.
        items: Lists the items of a `split`; None where the data set has trials alone.
        trials: Lists items and trials; None where it has items alone.
        labels: The labels of all items.
        splits: The splits that divide all items.
        mixes_labels: Whether a label may be in several splits.
        keeps_order: Whether the items come in the order of a list or a file, and not sorted.
        fetch: What the message says, as a pattern, where the data set is not there; "" stands for
            `likeness prepare NAME`, and None for a data set that is part of a package.
        whole: Lists the data set as it was published, which the miniature is not.
        counts: What the message of `whole` says, as a pattern.
    """

    draw: Callable[[Path], object]
    items: Callable[..., Sequence[Any]] | None = None
    trials: Callable[..., Any] | None = None
    labels: Sequence[str] = ()
    splits: Sequence[str] = ("train", "test")
    mixes_labels: bool = False
    keeps_order: bool = False
    fetch: str | None = ""
    whole: Callable[..., Any] | None = None
    counts: str = ""
