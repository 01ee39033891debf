"""What commands say of items that cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval.errors import LikenessError
from toolkit.console import one_line, say

if TYPE_CHECKING:
    from toolkit.data.reading import Bad

NUM_NAMED = 20  # so many are named, and the others counted


def check_bad_items(bad_items: str) -> None:
    """Raise ValueError unless `--bad-items` says what there is to choose from."""
    if bad_items not in ("skip", "refuse"):
        raise LikenessError(f"--bad-items {bad_items!r}: must be skip or refuse")


def print_bad(bad: Sequence[Bad], others: str) -> None:
    """Print to stderr which items cannot be read, and why.

    Args:
        bad: The items, of which the first are named.
        others: What the rest is called after its number, such as "files".
    """
    for item in bad[:NUM_NAMED]:
        say(one_line(f"skipped {item.id}: {item.reason}"), error=True)
    if len(bad) > NUM_NAMED:
        say(f"skipped {len(bad) - NUM_NAMED} more {others}", error=True)
