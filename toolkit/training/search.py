"""Hyper-parameters picked on validation classes: the classes of the training items are divided, the
test is never touched. Optuna, an extra, searches.

A recipe file states what may be searched, variant by variant, with the dotted names of the command
line:

    RANGES = {"arcface": {"loss.margin": Range(0.1, 0.5), "optim.lr": Range(1e-3, 1e-1, log=True),
    "optim.name": Choice(("sgd", "adamw"))}}

Where all of a variant's ranges are Choices, they span a grid, no point of which is tried twice.
With a Range among them TPE proposes all values; a choice then comes up again, beside other numbers.
"""

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import json_object
from likeness.eval.formats.provenance import digest
from likeness.eval.intervals.comparison import Tuned
from likeness.eval.items.items import Item, Items
from likeness.eval.items.pairs import among, draw_pairs
from likeness.eval.types import Trials
from likeness.eval.writing import write_json
from likeness.toolkit.console import say
from likeness.toolkit.data.splits import distinct_labels
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training.assign import as_text
from likeness.toolkit.training.recipe import Recipe, Retrieval, Verification, override
from likeness.toolkit.training.run import flat

VALIDATION_SHARE, LEAST_CLASSES, MOST_PAIRS = 0.25, 4, 20_000
# trains a recipe in a folder, going on where it was stopped, and gives its main metric on the
# recipe's trials
Score = Callable[[Recipe, Path], float]


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; whole numbers if both ends are.

    Attributes:
        low: The lowest number.
        high: The highest number.
        log: Whether they are drawn evenly in the logarithm.
    """

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Choice:
    """One of several numbers, texts, truth values or None."""

    values: tuple[str | int | float | bool | None, ...]


Ranges = Mapping[str, Range | Choice]


class Search(dict[str, "Range | Choice"]):
    """Ranges of a variant with how a trial is scored, in place of the bare mapping.

    RANGES = {"cos": Search({...}, seeds=3, looks=50)} is the search of the nivMF paper's Supp. I:
    three seeds, and the median of the maxima.

    Args:
        ranges: What may be searched.
        seeds: Runs of each trial, with the seeds 0, 1, ... The trial's score is their median.
        looks: How often a run is measured while it trains, at equal distances. Its score is then
            the best of these; with 0 it is that of the finished model.
    """

    def __init__(self, ranges: Ranges, *, seeds: int = 1, looks: int = 0) -> None:
        super().__init__(ranges)
        self.seeds, self.looks = seeds, looks


def divide(items: Sequence[Item]) -> tuple[Items, Items]:
    """(fit items, validation items): max(4, a quarter) of the classes are held out, the same ones
    whatever the order of the items.

    Labels that agree up to '#' are one class and its augmentations (speaker, speaker#speed=0.9):
    they stay together, and validation holds only the class itself, as test trials do. ValueError if
    fewer than 2 classes are left to fit.
    """
    items = Items.of(items)
    labels = distinct_labels(items)
    base = {label: label.partition("#")[0] or label for label in labels}
    classes = sorted(set(base.values()))
    num = max(LEAST_CLASSES, round(VALIDATION_SHARE * len(classes)))
    if len(classes) - num < 2:
        raise LikenessError(
            f"tuning: {len(classes)} classes to train on, of which {num} would be for validation; "
            f"at least {LEAST_CLASSES + 2} are needed, so do not tune"
        )
    drawn = {classes[i] for i in np.random.default_rng(0).permutation(len(classes))[:num]}
    held_out = {label for label in labels if base[label] in drawn}
    validation = {label for label in held_out if base[label] == label or base[label] not in base}
    return (
        items.take(np.flatnonzero(~items.labelled(held_out))),
        items.take(np.flatnonzero(items.labelled(validation))),
    )


def part_items(data: Path, *, items: Callable[[Path], Sequence[Item]], held_out: bool) -> Items:
    """The validation items among the training items of a recipe, or the others: a recipe part, so
    that a run states what it was trained on.
    """
    return divide(items(data))[held_out]


def validation_trials(
    data: Path, *, items: Callable[[Path], Sequence[Item]]
) -> tuple[Items, Trials]:
    """All pairs among the validation items; of more than MOST_PAIRS a seeded draw of distinct ones,
    half target as far as there are so many.

    Returns the items that occur and the trials. ValueError if no validation class has two items.
    """
    held_out = divide(items(data))[1]
    held_out = held_out[np.argsort(held_out.numbers, kind="stable")]
    drawn = draw_pairs(held_out, MOST_PAIRS, np.random.default_rng(0))
    assert drawn.target is not None
    if drawn.target.all() or not drawn.target.any():
        raise LikenessError(
            f"tuning: {len(held_out)} validation items give {int(drawn.target.sum())} target "
            f"trials of {len(drawn)}; both kinds are needed"
        )
    return among(held_out, drawn.enrol, drawn.probe, drawn.target)


def divide_for_validation(recipe: Recipe) -> Recipe:
    """The recipe trained on the fit classes and evaluated on the validation classes of its training
    items; its own trials or test items do not occur.

    A recipe with a validation is evaluated by that instead, trained as it is. ValueError for a
    classification without one, since it knows no unseen classes, and for a recipe without measure.
    """
    measure: Any = recipe.measure
    items = partial(part_items, items=recipe.items, held_out=False)
    if isinstance(measure, Verification):
        trials = partial(validation_trials, items=recipe.items)
        return replace(recipe, items=items, measure=replace(measure, trials=trials))
    if measure is not None and measure.validation is not None:
        inner = replace(measure.validation, metrics=measure.metrics, validation=measure.validation)
        return replace(recipe, measure=inner)
    if not isinstance(measure, Retrieval):
        raise LikenessError(
            "tuning: the recipe has no validation to tune on; give its measure one, on items that "
            "are neither trained nor tested on"
        )
    retrieved = replace(measure, items=partial(part_items, items=recipe.items, held_out=True))
    return replace(recipe, items=items, measure=retrieved)


def check_ranges(recipe: Recipe, ranges: Ranges) -> None:
    """ValueError before any training for a field that does not exist, or takes no such value."""
    for field, values in ranges.items():
        for value in (values.low, values.high) if isinstance(values, Range) else values.values:
            override(recipe, [f"{field}={as_text(value)}"])
    _distributions(ranges)


def tune(
    recipe: Recipe,
    ranges: Ranges,
    *,
    variant: str,
    num_trials: int,
    out: Path,
    score: Score,
    data: str = "",
) -> tuple[Recipe, Tuned]:
    """The recipe with the settings that score best on the validation classes.

    Each point of a grid of Choices is tried once at most. What a trial proposes follows from the
    trials before it, so that an interrupted search equals an uninterrupted one. Ties go to the
    earlier trial. The next call tries again what failed, unless its settings made it diverge.

    Args:
        recipe: What is tuned.
        ranges: What may be searched. A Search says how a trial is scored.
        variant: The recipe's name.
        num_trials: The number of trials in all, those of earlier calls included.
        out: Keeps the trials (VARIANT.json) and a run folder for each; a stopped search goes on.
        score: Trains a recipe in a folder and gives its main metric.
        data: A digest of what is trained on.

    Returns:
        The recipe with the chosen settings, and what the search found.

    Raises:
        LikenessError: Optuna is needed, and not installed. The folder holds a search of another
            recipe, ranges or data. Every trial failed.
    """
    search = ranges if isinstance(ranges, Search) else Search(ranges)
    metric, maximise = recipe.main_metric, recipe.schedule.higher_is_better
    inner = divide_for_validation(recipe)
    if search.looks:  # a run is measured while it trains, and its best model is kept
        every = max(1, recipe.schedule.steps // search.looks)
        inner = replace(inner, schedule=replace(inner.schedule, eval_every=every, watch=metric))
    out.mkdir(parents=True, exist_ok=True)
    file, stated = out / f"{variant}.json", _stated(inner, search, data)
    trials = _earlier_trials(file, stated)
    write_json(file, {"stated": stated, "trials": trials})  # so that a first trial can go on
    num_trials = min(num_trials, _grid_size(search) or num_trials)
    for number in range(num_trials):
        is_new = number == len(trials)
        if not is_new and not trials[number].get("again"):
            continue
        settings = _proposed(search, trials, maximise) if is_new else trials[number]["settings"]
        say(f"tuning {variant}: trial {number + 1} of {num_trials}: {', '.join(_texts(settings))}")
        folder = out / variant / f"trial-{number}"
        trials[number : number + 1] = [_tried(inner, search, settings, folder, score)]
        if failed := trials[number]["failed"]:
            say(f"tuning {variant}: trial {number + 1} failed: {failed}")
        write_json(file, {"stated": stated, "trials": trials})
    trials = trials[:num_trials]
    finished = [trial for trial in trials if trial["score"] is not None]
    if not finished:
        raise LikenessError(
            f"tuning {variant}: all {num_trials} trials failed, the first because: "
            f"{trials[0]['failed']}; repair this, or narrow its RANGES"
        )
    best = (max if maximise else min)(finished, key=lambda trial: trial["score"])
    chosen = best["settings"]
    return override(recipe, _texts(chosen)), Tuned(metric, chosen, best["score"], trials)


def _stated(recipe: Recipe, search: Search, data: str) -> str:
    """A digest of what a search is of."""
    searched = {name: [type(values).__name__, asdict(values)] for name, values in search.items()}
    whole = json.dumps([flat(describe(recipe)), searched], sort_keys=True)
    return digest([whole, data, f"seeds={search.seeds}"])


def _earlier_trials(file: Path, stated: str) -> list[dict[str, Any]]:
    """The trials of a search that was stopped; LikenessError if it was another one."""
    kept = json_object(file) if file.is_file() else {}
    if kept.get("stated", stated) != stated:
        raise LikenessError(
            f"{file} is a search of another recipe, on other data or of other RANGES; choose "
            "another --out"
        )
    trials: list[dict[str, Any]] = kept.get("trials", [])
    return trials


def _grid_size(ranges: Ranges) -> int:
    """The number of points where all are choices; 0 where a Range is among them."""
    return prod(
        0 if isinstance(values, Range) else len(values.values) for values in ranges.values()
    )


def _proposed(
    ranges: Ranges, trials: Sequence[Mapping[str, Any]], maximise: bool
) -> dict[str, Any]:
    """What Optuna proposes after some trials; it is seeded with their number."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        samplers = optuna.samplers
        kind = samplers.BruteForceSampler if _grid_size(ranges) else samplers.TPESampler
        sampler = kind(seed=len(trials))
    study = optuna.create_study(direction="maximize" if maximise else "minimize", sampler=sampler)
    distributions = _distributions(ranges)
    for trial in trials:
        states = optuna.trial.TrialState
        made = optuna.trial.create_trial(
            params=trial["settings"],
            distributions=distributions,
            value=trial["score"],
            state=states.FAIL if trial["failed"] else states.COMPLETE,
        )
        study.add_trial(made)
    return dict(study.ask(distributions).params)


def _tried(
    recipe: Recipe, search: Search, settings: dict[str, Any], folder: Path, score: Score
) -> dict[str, Any]:
    """One trial: its settings, and its score (that of each seed, too) or why it failed, and whether
    it is tried again.
    """
    trial: dict[str, Any] = {"settings": settings, "score": None, "failed": ""}
    try:
        changed = override(recipe, _texts(settings))
        if search.seeds == 1:
            return trial | {"score": score(changed, folder)}
        values = [
            score(replace(changed, seed=seed), folder / f"seed-{seed}")
            for seed in range(search.seeds)
        ]
    except Diverged as error:
        return trial | {"failed": str(error)}
    except (ValueError, RuntimeError) as error:  # the GPU's memory or a killed process, say
        return trial | {"failed": str(error) or type(error).__name__, "again": True}
    return trial | {"score": float(np.median(values)), "seeds": values}


def _texts(settings: Mapping[str, Any]) -> list[str]:
    return [f"{field}={as_text(value)}" for field, value in settings.items()]


def _distributions(ranges: Ranges) -> dict[str, Any]:
    """The ranges as Optuna takes them, by field."""
    from optuna import distributions

    made: dict[str, Any] = {}
    for field, values in ranges.items():
        if isinstance(values, Choice):
            made[field] = distributions.CategoricalDistribution(values.values)
        else:
            whole = isinstance(values.low, int) and isinstance(values.high, int)
            kind: Any = distributions.IntDistribution if whole else distributions.FloatDistribution
            made[field] = kind(values.low, values.high, log=values.log)
    return made
