"""What a training leaves for whoever goes on: its test in files, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from eval.formats.trials import write_trials
from eval.formats.writing import atomic_path
from eval.scoring.score import Scoring, score
from eval.thresholds import LEAST_ERRORS
from eval.types import Embeddings, Trials
from likeness.data_settings import takes_settings
from likeness.scoring import named
from toolkit.data.item_lists import write_items
from toolkit.data.items import Item, Items
from toolkit.models.embed import embed_all, pick_device
from toolkit.training import measure
from toolkit.training.of_data import of_data
from toolkit.training.recipe import Recipe, Verification

_FARS = (0.01, 0.1)  # the first that the trials can measure is proposed
_COMMANDS = 3


def write_test(recipe: Recipe, data: Path, out: Path) -> list[str]:
    """Write what a finished run was tested on, and say what may come next.

    The folder OUT/test gets items.txt and labels.txt, if the items are files of their own. A recipe
    of verification trials also gets trials.txt and scores.txt, the scores of the trained model.

    Args:
        recipe: The recipe that was trained.
        data: Its data.
        out: The folder of its run.

    Returns:
        The next commands, at most three. Each can be run as it is, in this order.

    Raises:
        ValueError: Trial items cannot be read.
    """
    folder = out / "test"
    if isinstance(recipe.measure, Verification):
        items, trials = recipe.measure.trials(data)
        folder.mkdir(exist_ok=True)
        _score(recipe, data, out, items, trials)
        is_listed = _write_lists(folder, items)
        far = _far_of(trials)
        rate = [] if far == "eer" else ["--far", far]
        report: list[str | Path] = ["--save-to", out, "--report", folder / "report"]
        commands = [
            _line("evaluate", folder / "scores.txt", *rate, *report),
            *_embed(recipe, data, out, is_listed),
            *_serve(out, "--far", far),
        ]
    elif recipe.measure is not None:
        folder.mkdir(exist_ok=True)
        items = Items.of(recipe.measure.items(data))
        commands = []
        if _write_lists(folder, items):
            made = folder / "embeddings.npz"
            listed: list[str | Path] = ["--items", folder / "items.txt", "--out", made]
            labels: list[str | Path] = [
                "--labels",
                folder / "labels.txt",
                "--report",
                folder / "report",
            ]
            commands = [
                _line("embed", "--model", out, *listed),
                _line("retrieve", "--embeddings", made, *labels),
            ]
        commands += _serve(out)
    else:
        commands = [*_embed(recipe, data, out, False), *_serve(out)]
    if recipe.modality == "embedding":
        return commands[:1]  # a head is joined with its model before anything else is done
    return [*commands, *_export(out)][:_COMMANDS]


def _score(recipe: Recipe, data: Path, out: Path, items: Sequence[Item], trials: Trials) -> None:
    """Write the trials and the trained model's scores of them."""
    model = measure.load_embedder(out, of_data(recipe, data))
    embedder = model.embedder.to(pick_device())
    made = embed_all(embedder, items, model.read, what="trial", workers=recipe.compute.workers)
    scored = score(trials, Embeddings(made.ids, made.matrix, model.meta), Scoring())
    write_trials(out / "test" / "trials.txt", trials)
    named(scored, f"held-out trials of {data}").save(out / "test" / "scores.txt")


def _write_lists(folder: Path, items: Sequence[Item]) -> bool:
    """Write the items and their labels; returns whether they can be listed at all."""
    if any(item.span is not None or item.label is None for item in items):
        return False
    try:
        whole = [item._replace(path=item.path.absolute()) for item in items]
        write_items(folder / "items.txt", whole)
    except ValueError:  # names that no list can hold
        return False
    with (
        atomic_path(folder / "labels.txt") as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        file.writelines(f"{item.id}\t{item.label}\n" for item in items)
    return True


def _far_of(trials: Trials) -> str:
    """The lowest of some false-accept rates that the trials can measure, else "eer"."""
    assert trials.target is not None
    nontargets = int(np.count_nonzero(~trials.target))
    return next((str(far) for far in _FARS if far * nontargets >= LEAST_ERRORS), "eer")


def _embed(recipe: Recipe, data: Path, out: Path, is_listed: bool) -> list[str]:
    """The command that embeds the data: all that a person gave, else what the test listed."""
    source: list[str | Path] = ["--items", out / "test" / "items.txt"]
    if takes_settings(recipe.items) and data.suffix != ".rec":
        stated = recipe.items.keywords if isinstance(recipe.items, partial) else {}
        columns = [column for column in stated.get("columns", "").split(",") if column]
        root = ["--root", stated["root"]] if stated.get("root") else []
        options = [word for column in columns for word in ("--columns", column)]
        source = ["--items", data, *root, *options]
    elif not is_listed:
        return []
    return [_line("embed", "--model", out, *source, "--out", out / "embeddings.npz")]


def _serve(out: Path, *options: str) -> list[str]:
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn")):
        return []
    return [_line("serve", "--model", out, *options)]


def _export(out: Path) -> list[str]:
    if any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        return []
    return [_line("export", out, "--onnx", out / "model.onnx")]


def _line(*words: str | Path) -> str:
    return shlex.join(["likeness", *map(str, words)])
