"""How a recipe reads the data that it is given: settings of all its parts that list items."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.formats.column_names import parse_columns
from toolkit.data.labels import LabelPattern
from toolkit.training.recipe import Recipe


def with_data_settings(
    recipe: Recipe,
    *,
    columns: str | Mapping[str, str] = "",
    label: str = "",
    root: str | Path | None = None,
) -> Recipe:
    """Give a recipe whose items, and those of its measure, are listed with these settings.

    Args:
        recipe: The recipe.
        columns: Which column of a table is which, as in "label=spk".
        label: A pattern of paths that has the labels, such as "{label}_*.wav".
        root: The folder that relative paths start from.

    Returns:
        The recipe; the same one where nothing is set.

    Raises:
        LikenessError: A setting is malformed, or the recipe lists a data set of its own, which has
            no such settings.
    """
    stated = parse_columns(columns)
    settings = {
        "columns": ",".join(f"{role}={name}" for role, name in stated.items()),
        "label": LabelPattern(label).text if label else "",
        "root": "" if root is None else str(root),
    }
    settings = {name: value for name, value in settings.items() if value}
    if not settings:
        return recipe
    if not takes_settings(recipe.items):
        raise LikenessError(
            f"--{' and --'.join(settings)}: this recipe lists a data set of its own; take the "
            f"recipe {recipe.modality}/folders for data of yours, or leave the options out"
        )
    return replace(
        recipe, items=partial(recipe.items, **settings), measure=_set(recipe.measure, settings)
    )


def _set(measure: Any, settings: Mapping[str, str]) -> Any:
    """A measure whose parts that list items have the settings."""
    if not is_dataclass(measure) or isinstance(measure, type):
        return measure
    changed = {}
    for field in fields(measure):
        value = getattr(measure, field.name)
        if field.name == "validation":
            changed[field.name] = _set(value, settings)
        elif callable(value) and takes_settings(value):
            changed[field.name] = partial(value, **settings)
    return replace(measure, **changed)


def takes_settings(part: Any) -> bool:
    """Whether a part lists whatever a person has."""
    function = part.func if isinstance(part, partial) else part
    return {"columns", "label", "root"} <= inspect.signature(function).parameters.keys()
