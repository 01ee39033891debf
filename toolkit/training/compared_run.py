"""One run of a comparison: trained, measured, and kept, so that it is not done again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval.comparison import Run
from eval.errors import LikenessError
from eval.formats.files import json_object
from eval.formats.provenance import likeness_version, sha256
from eval.formats.trials import write_scores
from eval.similarity import score_trials
from eval.types import Floats, Scores, Trials, name_first
from toolkit.data.items import Item
from toolkit.parallel.embed import embed_all
from toolkit.training.folder import RECIPE
from toolkit.training.log import read_log
from toolkit.training.measure import TEST, load_embedder, metrics_of, run_test
from toolkit.training.recipe import Recipe, Verification, described, of_data
from toolkit.training.start import ReadInitial, read_initial
from toolkit.training.train import fit
from toolkit.training.variants import RESULT, Data, write_json

SCORES = "scores.txt"
# what ends one run and not the comparison: a loss that is NaN, unreadable items, memory or disk
# that is full
_FAILURES = (ValueError, RuntimeError, OSError)


def train_and_measure(
    run: Run,
    recipe: Recipe,
    measured: Data,
    data: Path,
    folder: Path,
    tell: Callable[[str], None],
    *,
    read_initial: ReadInitial = read_initial,
) -> Run:
    """Train and measure one run, or take what is finished.

    Args:
        run: Its variant and seed.
        recipe: The variant's recipe with that seed.
        measured: The trials that it is measured on, where it has any.
        data: The folder of the data set.
        folder: The run's folder.
        tell: Takes what became of it.
        read_initial: Reads the network that recipe.init names.

    Returns:
        The run with its values, or with the reason why it failed.
    """
    recipe = of_data(recipe, data)
    digest = hashlib.sha256(json.dumps(described(recipe), sort_keys=True).encode()).hexdigest()
    scores_file = folder / (TEST if recipe.measures_items else SCORES)
    finished = _finished(run, folder / RESULT, scores_file, digest)
    if finished is not None:
        tell("finished before")
        return finished
    tell("")
    try:
        values = _measure(recipe, measured, data, folder, read_initial)
    except _FAILURES as error:
        tell(f"failed: {error}")
        return replace(run, failed=str(error))
    log = read_log(folder)
    seconds = _seconds(log)
    # of the plan: small data have smaller batches than the recipe
    batch_size = json_object(folder / RECIPE)["sampling"]["batch_size"]
    rate = log[-1]["step"] * batch_size / seconds if seconds else None
    run = replace(
        run, values=values, scores=sha256(scores_file), seconds=seconds, items_per_second=rate
    )
    entry = {
        "schema": "likeness.run/1",
        "recipe": digest,
        "data": measured.digest,
        "scores": run.scores,
        "values": values,
        "seconds": seconds,
        "items_per_second": rate,
        "version": likeness_version(),
    }
    write_json(folder / RESULT, entry)
    tell(", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    return run


def first_metric(
    recipe: Recipe, folder: Path, *, data: Path, read_initial: ReadInitial = read_initial
) -> float:
    """The first metric of a recipe, trained in a folder and measured as the recipe says."""
    recipe = of_data(recipe, data)
    train = partial(fit, data=data, out=folder, resume=True, read_initial=read_initial)
    if isinstance(recipe.measure, Verification):
        with _own_threads():
            model = train(recipe)
            items, trials = recipe.measure.trials(data)
            scores = score_model(model, recipe, items, trials)
        return next(iter(_values(recipe, scores, trials).values()))
    name = next(iter(recipe.metrics))
    with _own_threads():
        train(recipe)
        return _finite(metrics_of(recipe, run_test(recipe, folder, data), only=name))[name]


def score_model(model: Path, recipe: Recipe, items: Sequence[Item], trials: Trials) -> Floats:
    """(P,) scores of the trials by the model of a run of `recipe` and the similarity that it was
    trained for.

    Raises:
        LikenessError: Trial items cannot be read.
    """
    loaded = load_embedder(model, recipe)
    loaded.embedder.to_device()
    embeddings = embed_all(
        loaded.embedder, items, loaded.read, what="trial", workers=recipe.compute.workers
    )
    return score_trials(trials, embeddings, similarity=loaded.similarity)


def _finished(run: Run, result: Path, scores_file: Path, digest: str) -> Run | None:
    """The run as it was kept; None where it is not finished, or another recipe's or damaged."""
    if not (result.is_file() and scores_file.is_file()):
        return None
    kept = json_object(result)
    if kept.get("recipe") != digest or kept.get("scores") != sha256(scores_file):
        return None
    fields = ("values", "scores", "seconds", "items_per_second")
    return replace(run, **{name: kept[name] for name in fields})


def _measure(
    recipe: Recipe, measured: Data, data: Path, folder: Path, read_initial: ReadInitial
) -> dict[str, float]:
    """Train a run, and its metrics; the scores or values behind them are in its folder."""
    with _own_threads():
        model = fit(recipe, data=data, out=folder, resume=True, read_initial=read_initial)
        if measured.trials is None:
            return _finite(metrics_of(recipe, run_test(recipe, folder, data)))
        scores = score_model(model, recipe, measured.items, measured.trials)
        values = _values(recipe, scores, measured.trials)
        write_scores(folder / SCORES, measured.trials, scores)
        return values


@contextmanager
def _own_threads() -> Iterator[None]:
    """Restore the number of CPU threads: a recipe may set it, and the next run must not depend on
    the one before.
    """
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _values(recipe: Recipe, scores: Floats, trials: Trials) -> dict[str, float]:
    assert trials.target is not None
    checked = Scores(scores, trials.target)
    return _finite(
        {
            name: float(metric(checked.targets, checked.nontargets))
            for name, metric in recipe.metrics.items()
        }
    )


def _finite(values: dict[str, float]) -> dict[str, float]:
    unusable = [name for name, value in values.items() if not math.isfinite(value)]
    if unusable:
        raise LikenessError(
            f"{len(unusable)} metrics are not finite on the trials ({name_first(unusable)}); such "
            "a number cannot be compared"
        )
    return values


def _seconds(log: Sequence[Mapping[str, Any]]) -> float | None:
    """Training time of the steps that count, summed over the stretches of a run that was stopped;
    None if the log does not say.
    """
    total, before = 0.0, 0.0
    for entry in log:
        if "seconds" in entry:
            total += before if entry["seconds"] < before else 0.0  # the clock began anew
            before = entry["seconds"]
    return total + before or None
