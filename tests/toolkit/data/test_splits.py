"""The division of labelled items."""

import warnings
from pathlib import Path

import pytest

from likeness.eval.items.items import Item
from likeness.toolkit.data.splits import hold_out


def test_labels_of_two_values_are_asked_about() -> None:
    items = [Item(f"{i}", Path(f"{i}"), "fm"[i % 2]) for i in range(40)]
    with pytest.warns(UserWarning, match="two values .*sex"):
        hold_out(items, split="all", test_share=0.2, seed=0, where="DATA")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hold_out(items[:10], split="all", test_share=0.2, seed=0, where="DATA")
