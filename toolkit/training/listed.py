"""The data of a run, listed once for all parts of its recipe."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from likeness.eval.items.items import Item, Items
from likeness.eval.metrics.self_matches import without_self_trials
from likeness.eval.types import Trials

_LISTING = ("modality", "columns", "label", "root")


@dataclass(frozen=True, eq=False)
class Listed:
    """Data with all of its items, so that no part of a recipe walks the folder again.

    Attributes:
        path: The folder, list or table.
        items: All of its items.
        listing: The settings by which they were listed.
    """

    path: Path
    items: Items
    listing: Mapping[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


Data = Path | Listed


def listing_of(part: Any) -> dict[str, Any] | None:
    """Return the settings by which a part of a recipe lists whatever a person has.

    None for a part that lists a data set of its own: it has no parameter `every`, which takes all
    items of the data.
    """
    parameters = inspect.signature(part).parameters
    if "every" not in parameters:
        return None
    return {name: parameters[name].default for name in _LISTING}


def trials_by(part: Any, data: Data) -> tuple[Sequence[Item], Trials]:
    """Return the items and trials that a recipe lists, without those of an item with itself.

    Args:
        part: part(data), the trials of a recipe.
        data: As for `list_by`.
    """
    items, trials = list_by(part, data)
    return items, without_self_trials(trials)[0]


def list_by(part: Any, data: Data) -> Any:
    """Return what a part of a recipe lists of the data.

    Args:
        part: part(data), such as the items or the trials of a recipe.
        data: The data. Items that are listed already are handed on, if the part would list the
            same.
    """
    if isinstance(data, Listed) and listing_of(part) == data.listing:
        return part(data.path, every=data.items)
    return part(Path(data))
