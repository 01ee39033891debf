"""The commands that may come after a training."""

from __future__ import annotations

import shlex
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from eval.thresholds import LEAST_ERRORS
from eval.types import Trials
from likeness.data_settings import takes_settings
from likeness.held_out import HeldOut
from likeness.models.trust import options_of
from toolkit.models.parts import describe
from toolkit.training.recipe import Recipe

_FARS = (0.01, 0.1)  # the first that the trials can measure is proposed
_COMMANDS = 3
_SERVICE_PACKAGES = ("fastapi", "granian", "python_multipart", "prometheus_client")
_EXPORT_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


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
    commands, serving = [], []
    if held_out is not None:
        far = _far_of(held_out.scored.trials)
        rate = [] if far == "eer" else ["--far", far]
        commands = [_line("evaluate", out, "--save-to", out, *rate, "--report", out / "evaluation")]
        serving = ["--far", far]
    trust = options_of(*map(describe, (recipe.frontend, recipe.backbone, recipe.read)))
    commands += [*_embed(recipe, data, out, trust), *_serve(out, *serving, *trust)]
    if recipe.modality == "embedding":
        return commands[:1]  # a head is joined with its model before anything else is done
    return [*commands, *_export(out, trust)][:_COMMANDS]


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


def _serve(out: Path, *options: str) -> list[str]:
    if not all(map(find_spec, _SERVICE_PACKAGES)):
        return []
    return [_line("serve", "--model", out, *options)]


def _export(out: Path, trust: list[str]) -> list[str]:
    if not all(map(find_spec, _EXPORT_PACKAGES)):
        return []
    return [_line("export", out, out / "model.onnx", *trust)]


def _line(*words: str | Path) -> str:
    return shlex.join(["likeness", *map(str, words)])
