"""Before and after a training: how its recipe reads the data, and which commands may come next."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.column_names import parse_columns
from likeness.eval.thresholds import LEAST_ERRORS
from likeness.eval.types import Trials
from likeness.held_out import HeldOut
from likeness.models.trust import options_of
from likeness.toolkit.data.labels import LabelPattern
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training.recipe import Recipe

_FARS = (0.01, 0.1)  # the first that the trials can measure is proposed
_COMMANDS = 3
_SERVICE_PACKAGES = ("fastapi", "granian", "python_multipart", "prometheus_client")
_EXPORT_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


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


def next_commands(recipe: Recipe, data: Path, out: Path, held_out: HeldOut | None) -> list[str]:
    """Say what may come next.

    Args:
        recipe: The recipe that was trained.
        data: Its data.
        out: The folder of its run.
        held_out: The trials of held-out items that the run has, if there are any.

    Returns:
        At most three commands. Each can be run as it is, in this order.
    """
    trust = options_of(*map(describe, (recipe.frontend, recipe.backbone, recipe.read)))
    commands, serving = [], []
    if held_out is not None:
        far = _far_of(held_out.scored.trials)
        rate = [] if far == "eer" else ["--far", far]
        commands = [_line("evaluate", out, "--save-to", out, *rate, "--report", out / "evaluation")]
        serving = ["--far", far]
    commands += _embed(recipe, data, out, trust)
    if all(map(find_spec, _SERVICE_PACKAGES)):
        commands.append(_line("serve", "--model", out, *serving, *trust))
    if recipe.modality == "embedding":
        return commands[:1]  # a head is joined with its model before anything else is done
    if all(map(find_spec, _EXPORT_PACKAGES)):
        commands.append(_line("export", out, "--out", out / "model.onnx", *trust))
    return commands[:_COMMANDS]


def _far_of(trials: Trials) -> str:
    """The lowest of some false-accept rates that the trials can measure, else "eer"."""
    assert trials.target is not None
    nontargets = int(np.count_nonzero(~trials.target))
    return next((str(far) for far in _FARS if far * nontargets >= LEAST_ERRORS), "eer")


def _embed(recipe: Recipe, data: Path, out: Path, trust: list[str]) -> list[str]:
    """The command that embeds all the data, if they are in a form that `embed` takes."""
    if not takes_settings(recipe.items) or data.suffix == ".rec":
        return []
    stated = recipe.items.keywords if isinstance(recipe.items, partial) else {}
    words: list[str | Path] = ["--items", data]
    words += ["--root", stated["root"]] if stated.get("root") else []
    for column in filter(None, stated.get("columns", "").split(",")):
        words += ["--columns", column]
    return [_line("embed", "--model", out, *words, "--out", out / "embeddings.npz", *trust)]


def _line(*words: str | Path) -> str:
    return shlex.join(["likeness", *map(str, words)])
