"""What a training leaves for whoever goes on: its test in files, and the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from eval.formats import embeddings as embedding_files
from eval.formats.trials import write_trials
from eval.formats.writing import atomic_path
from eval.per_item import PerItem
from eval.scoring.score import Scoring, score
from eval.thresholds import LEAST_ERRORS
from eval.types import Embeddings, Trials
from likeness.data_settings import takes_settings
from likeness.scoring import named
from toolkit.data.items import Items
from toolkit.models.embed import embed_all, pick_device
from toolkit.training import measure
from toolkit.training.of_data import of_data
from toolkit.training.recipe import Recipe, Verification

_FARS = (0.01, 0.1)  # the first that the trials can measure is proposed
_COMMANDS = 3


def write_test(recipe: Recipe, data: Path, out: Path, measured: PerItem | None = None) -> list[str]:
    """Write what a finished run was tested on, and say what may come next.

    The folder OUT/test gets embeddings.npz, the test items as the trained model embeds them. A
    recipe of verification trials also gets trials.txt and scores.txt, and one that measures items
    labels.txt.

    Args:
        recipe: The recipe that was trained.
        data: Its data.
        out: The folder of its run.
        measured: What a recipe that measures items found of them.

    Returns:
        The next commands, at most three. Each can be run as it is, in this order.

    Raises:
        ValueError: Trial items cannot be read.
    """
    if isinstance(recipe.measure, Verification):
        first, far = _of_trials(recipe, recipe.measure, data, out)
        commands = [first, *_embed(recipe, data, out), *_serve(out, "--far", far)]
    elif measured is not None:
        commands = [_of_items(recipe, data, out, measured), *_embed(recipe, data, out)]
        commands += _serve(out)
    else:
        commands = [*_embed(recipe, data, out), *_serve(out)]
    if recipe.modality == "embedding":
        return commands[:1]  # a head is joined with its model before anything else is done
    return [*commands, *_export(out)][:_COMMANDS]


def _of_trials(recipe: Recipe, test: Verification, data: Path, out: Path) -> tuple[str, str]:
    """Score the trials by the trained model.

    Returns:
        The command that evaluates the scores, and the false-accept rate that it measures.
    """
    items, trials = test.trials(data)
    model = measure.load_embedder(out, of_data(recipe, data))
    embedder = model.embedder.to(pick_device())
    made = embed_all(embedder, items, model.read, what="trial", workers=recipe.compute.workers)
    embeddings = Embeddings(made.ids, made.matrix, model.meta)
    scored = named(score(trials, embeddings, Scoring()), f"held-out trials of {data}")
    folder = _folder(out)
    embedding_files.write(folder / "embeddings.npz", embeddings)
    write_trials(folder / "trials.txt", trials)
    scored.save(folder / "scores.txt")
    far = _far_of(trials)
    words: list[str | Path] = [folder / "scores.txt", "--save-to", out]
    words += [] if far == "eer" else ["--far", far]
    words += ["--embeddings", folder / "embeddings.npz", *_media(data, made.ids)]
    return _line("evaluate", *words, "--report", folder / "report"), far


def _of_items(recipe: Recipe, data: Path, out: Path, measured: PerItem) -> str:
    """Write the embeddings and labels of what was measured; the command that retrieves them."""
    assert isinstance(recipe.measure, measure.Settings)
    assert measured.embeddings is not None
    folder, meta = _folder(out), measure.load_embedder(out, of_data(recipe, data)).meta
    matrix = np.asarray(measured.embeddings, dtype=np.float32)
    embedding_files.write(folder / "embeddings.npz", Embeddings(measured.ids, matrix, meta))
    items = Items.of(recipe.measure.items(data))
    with (
        atomic_path(folder / "labels.txt") as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        file.writelines(f"{item.id}\t{item.label}\n" for item in items)
    words: list[str | Path] = ["--embeddings", folder / "embeddings.npz"]
    words += ["--labels", folder / "labels.txt", *_media(data, measured.ids)]
    return _line("retrieve", *words, "--report", folder / "retrieval")


def _folder(out: Path) -> Path:
    folder = out / "test"
    folder.mkdir(exist_ok=True)
    return folder


def _far_of(trials: Trials) -> str:
    """The lowest of some false-accept rates that the trials can measure, else "eer"."""
    assert trials.target is not None
    nontargets = int(np.count_nonzero(~trials.target))
    return next((str(far) for far in _FARS if far * nontargets >= LEAST_ERRORS), "eer")


def _media(data: Path, ids: Iterable[str]) -> list[str | Path]:
    """The option with which a page shows the items, where their ids are files of the data."""
    return ["--media", data] if data.is_dir() and (data / next(iter(ids))).is_file() else []


def _embed(recipe: Recipe, data: Path, out: Path) -> list[str]:
    """The command that embeds all the data, if they are in a form that `embed` takes."""
    if not takes_settings(recipe.items) or data.suffix == ".rec":
        return []
    stated = recipe.items.keywords if isinstance(recipe.items, partial) else {}
    words: list[str | Path] = ["--items", data]
    words += ["--root", stated["root"]] if stated.get("root") else []
    for column in filter(None, stated.get("columns", "").split(",")):
        words += ["--columns", column]
    return [_line("embed", "--model", out, *words, "--out", out / "embeddings.npz")]


def _serve(out: Path, *options: str) -> list[str]:
    needed = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")
    return [_line("serve", "--model", out, *options)] if _are_installed(needed) else []


def _export(out: Path) -> list[str]:
    needed = ("onnx", "onnxscript", "onnxruntime")
    return [_line("export", out, "--onnx", out / "model.onnx")] if _are_installed(needed) else []


def _are_installed(names: Iterable[str]) -> bool:
    return all(find_spec(name) is not None for name in names)


def _line(*words: str | Path) -> str:
    return shlex.join(["likeness", *map(str, words)])
