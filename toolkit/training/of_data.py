"""Settings of a recipe that follow from its data set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from toolkit.training.recipe import Recipe


@runtime_checkable
class OfData(Protocol):
    """A front-end some of whose settings follow from the data set."""

    def of_data(self, data: Path) -> dict[str, Any]:
        """Return these settings by name."""


def of_data(recipe: Recipe, data: Path) -> Recipe:
    """Return the recipe with the settings of its front-end that follow from the data.

    They become part of the recipe, so that a checkpoint describes them and a resumed run compares
    them.

    Args:
        recipe: What is trained, and how.
        data: The data set.

    Raises:
        LikenessError: The front-end refuses the data. There is no such data set.
    """
    frontend = recipe.frontend
    function: Any = frontend.func if isinstance(frontend, partial) else frontend
    if not isinstance(function, OfData):
        return recipe
    return replace(recipe, frontend=partial(frontend, **function.of_data(data)))
