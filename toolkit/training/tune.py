"""Hyper-parameters picked on validation classes: the classes of the training items are divided, the
test is never touched. Optuna, an extra, searches.

A recipe file states what may be searched, variant by variant, with the dotted names of the command
line:

    RANGES = {"arcface": {"loss.margin": Range(0.1, 0.5), "optim.lr": Range(1e-3, 1e-1, log=True),
    "optim.name": Choice(("sgd", "adamw"))}}

Where all of a variant's ranges are Choices, they span a grid. Its points are drawn in a fixed order
without replacement, so that no point is tried twice, and the search ends when all have been. With a
Range among them TPE proposes all values; a choice then comes up again, beside other numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from eval.comparison import Tuned
from eval.formats.provenance import digest
from eval.types import Trials
from toolkit.data.batch import Item
from toolkit.data.pairs import draw_pairs
from toolkit.models.parts import describe
from toolkit.training.moved import place
from toolkit.training.recipe import Recipe, Retrieval, Verification, override

VALIDATION_SHARE, LEAST_CLASSES, MOST_PAIRS = 0.25, 4, 20_000
MOST_POINTS = 1 << 16  # of a grid that is laid out
INSTALL = "tuning needs Optuna, which is not installed: pip install 'likeness[tune]'"


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included; whole numbers if both ends are. log: evenly in the
    logarithm.
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"Range({self.low}, {self.high}, log={self.log}): low must be below high, and "
                "above 0 with log=True"
            )


@dataclass(frozen=True)
class Choice:
    """One of several numbers, texts, truth values or None."""

    values: tuple[str | int | float | bool | None, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise ValueError(f"Choice({self.values}): at least 2 values are needed to choose from")


Ranges = Mapping[str, Range | Choice]


class Search(dict[str, "Range | Choice"]):
    """Ranges of a variant with how a trial is scored, in place of the bare mapping: RANGES =
    {"cos": Search({...}, seeds=3, looks=50)}.

    seeds: runs of each trial, with the seeds 0, 1, ...; the trial's score is their median. looks:
    how often a run is measured while it trains, evenly; its score is then the best of these; 0:
    that of the finished model. Both together are the nivMF paper's Supp. I: three seeds, the median
    of the maxima. ValueError for seeds below 1 or looks below 0.
    """

    def __init__(self, ranges: Ranges, *, seeds: int = 1, looks: int = 0) -> None:
        if seeds < 1 or looks < 0:
            raise ValueError(f"Search: seeds={seeds} must be 1 or more and looks={looks} 0 or more")
        super().__init__(ranges)
        self.seeds, self.looks = seeds, looks


# trains a recipe in a folder, going on where it was stopped, and gives the first metric on the
# recipe's trials
Score = Callable[[Recipe, Path], float]


def divide(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """(fit items, validation items): max(4, a quarter) of the classes are held out, the same ones
    whatever the order of the items.

    Labels that agree up to '#' are one class and its augmentations (speaker, speaker#speed=0.9):
    they stay together, and validation holds only the class itself, as test trials do. ValueError if
    fewer than 2 classes are left to fit.
    """
    base = {item.id: str(item.label).partition("#")[0] or str(item.label) for item in items}
    classes = sorted(set(base.values()))
    num = max(LEAST_CLASSES, round(VALIDATION_SHARE * len(classes)))
    if len(classes) - num < 2:
        raise ValueError(
            f"tuning: {len(classes)} classes to train on, of which {num} would be for validation; "
            f"at least {LEAST_CLASSES + 2} are needed, so do not tune"
        )
    held_out = {classes[i] for i in np.random.default_rng(0).permutation(len(classes))[:num]}
    kept = [item for item in items if base[item.id] not in held_out]
    validation = [item for item in items if base[item.id] in held_out]
    plain = {base[item.id] for item in validation if item.label == base[item.id]}
    return kept, [
        item for item in validation if item.label == base[item.id] or base[item.id] not in plain
    ]


def fit_items(data: Path, *, items: Callable[[Path], Sequence[Item]]) -> list[Item]:
    """The training items of a recipe without the validation classes: a recipe part, so that a run
    states what it was trained on.
    """
    return divide(items(data))[0]


def held_out_items(data: Path, *, items: Callable[[Path], Sequence[Item]]) -> list[Item]:
    """The validation items among the training items of a recipe: a part of its test while it is
    tuned.
    """
    return divide(items(data))[1]


def validation_trials(
    data: Path, *, items: Callable[[Path], Sequence[Item]]
) -> tuple[list[Item], Trials]:
    """All pairs among the validation items; of more than MOST_PAIRS a seeded draw of distinct ones,
    half target as far as there are so many.

    Returns the items that occur and the trials. ValueError if no validation class has two items.
    """
    held_out = sorted(held_out_items(data, items=items), key=lambda item: str(item.label))
    drawn = draw_pairs(held_out, MOST_PAIRS, np.random.default_rng(0))
    assert drawn.target is not None
    if drawn.target.all() or not drawn.target.any():
        raise ValueError(
            f"tuning: {len(held_out)} validation items give {int(drawn.target.sum())} target "
            f"trials of {len(drawn)}; both kinds are needed"
        )
    used, index = np.unique(np.stack((drawn.enrol, drawn.probe)), return_inverse=True)
    chosen = [held_out[i] for i in used]
    ids = tuple(item.id for item in chosen)
    enrol, probe = index.reshape(2, -1).astype(np.int32)
    return chosen, Trials(ids, ids, enrol, probe, drawn.target)


def on_validation_classes(recipe: Recipe) -> Recipe:
    """The recipe trained on the fit classes and evaluated on the validation classes of its training
    items; its own trials or test items do not occur.

    A recipe with a validation is evaluated by that instead, trained as it is. ValueError for a
    classification without one, since it knows no unseen classes, and for a recipe without measure.
    """
    measure: Any = recipe.measure
    items = partial(fit_items, items=recipe.items)
    if isinstance(measure, Verification):
        trials = partial(validation_trials, items=recipe.items)
        return replace(recipe, items=items, measure=replace(measure, trials=trials))
    if measure is not None and measure.validation is not None:
        inner = replace(measure.validation, metrics=measure.metrics, validation=measure.validation)
        return replace(recipe, measure=inner)
    if not isinstance(measure, Retrieval):
        raise ValueError(
            "tuning: the recipe has no validation to tune on; give its measure one, on items that "
            "are neither trained nor tested on"
        )
    retrieved = replace(measure, items=partial(held_out_items, items=recipe.items))
    return replace(recipe, items=items, measure=retrieved)


def check_ranges(
    recipe: Recipe, ranges: Ranges, variant: str, overridden: Sequence[str] = ()
) -> None:
    """ValueError before any training for a field that does not exist, takes no such value, or is
    also set on the command line.
    """
    both = sorted(
        {place(field) for field in ranges}
        & {place(one.partition("=")[0].strip()) for one in overridden}
    )
    if both:
        raise ValueError(
            f"RANGES of {variant}: {', '.join(both)} is tuned and also set on the command line; "
            "leave one out"
        )
    for field, one in ranges.items():
        if not isinstance(one, (Range, Choice)):
            raise ValueError(
                f"RANGES of {variant}: {field} is {one!r}; give a Range or a Choice of "
                "toolkit.training.tune"
            )
        for value in (one.low, one.high) if isinstance(one, Range) else one.values:
            override(recipe, [f"{field}={_text(value)}"])


def tune(
    recipe: Recipe,
    ranges: Ranges,
    *,
    variant: str,
    num_trials: int,
    out: Path,
    score: Score,
    data: str = "",
    say: Callable[[str], None] = print,
) -> tuple[Recipe, Tuned]:
    """The recipe with the settings that score best on the validation classes, after num_trials
    trials in all (earlier calls' included).

    A grid of Choices needs no more trials than it has points: then each is tried once. ranges: a
    Search says how a trial is scored.

    out: keeps the study (Optuna's journal, study.log) and a run folder per trial; an interrupted
    search goes on with the trial that was stopped. Trial k proposes from a sampler seeded with k,
    so that an interrupted search proposes what an uninterrupted one would. Ties go to the earlier
    trial.
    data: a digest of what is trained on.
    ModuleNotFoundError without Optuna; ValueError if the folder holds a search of another recipe,
    ranges or data; RuntimeError if every trial failed.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise ModuleNotFoundError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = ranges if isinstance(ranges, Search) else Search(ranges)
    metric = next(iter(recipe.metrics))
    inner = _looked_at(on_validation_classes(recipe), metric, search.looks)
    points = _points(ranges)
    num_trials = min(num_trials, len(points) or num_trials)
    out.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / "study.log")))
    direction = "maximize" if recipe.schedule.higher_is_better else "minimize"
    study = optuna.create_study(
        storage=storage, study_name=variant, direction=direction, load_if_exists=True
    )
    stated = digest(
        [
            json.dumps(
                [
                    describe(inner),
                    {field: [type(one).__name__, asdict(one)] for field, one in ranges.items()},
                ],
                sort_keys=True,
            ),
            data,
        ]
    )
    if search.seeds > 1:
        stated = digest([stated, f"seeds={search.seeds}"])
    if study.user_attrs.get("stated", stated) != stated:
        raise ValueError(
            f"{out} holds a search of another recipe, on other data or of other RANGES for "
            f"{variant}; choose another --out"
        )
    study.set_user_attr("stated", stated)
    distributions = {field: _distribution(one) for field, one in ranges.items()}
    for number in range(num_trials):
        before = study.trials[number] if number < len(study.trials) else None
        if before is not None and before.state.is_finished():
            continue
        if points:
            if before is None:
                study.enqueue_trial(points[number])
            if (
                before is None or before.state == optuna.trial.TrialState.WAITING
            ):  # killed after it was put down
                study.ask(distributions)
            settings = points[number]
        else:
            study.sampler = optuna.samplers.TPESampler(seed=number)
            settings = dict(
                before.params if before is not None else study.ask(distributions).params
            )
        say(f"tuning {variant}: trial {number + 1} of {num_trials}: {_shown(settings)}")
        try:
            if settings.keys() != ranges.keys():
                raise ValueError("killed while its settings were written")
            folder = out / variant / f"trial-{number}"
            tried = _with(inner, settings)
            if search.seeds == 1:
                value = score(tried, folder)
            else:
                values = [
                    score(replace(tried, seed=seed), folder / f"seed-{seed}")
                    for seed in range(search.seeds)
                ]
                study.set_user_attr(f"seeds-{number}", values)
                value = float(np.median(values))
        except (ValueError, RuntimeError, OSError) as error:
            study.set_user_attr(f"failed-{number}", str(error))
            study.tell(number, state=optuna.trial.TrialState.FAIL)
            say(f"tuning {variant}: trial {number + 1} failed: {error}")
        else:
            study.tell(number, value)
    found = {
        one.number: points[one.number] if points else dict(one.params)
        for one in study.trials[:num_trials]
    }
    trials = [
        {
            "settings": found[one.number],
            "score": one.value,
            "failed": study.user_attrs.get(f"failed-{one.number}", ""),
        }
        | ({"seeds": study.user_attrs.get(f"seeds-{one.number}")} if search.seeds > 1 else {})
        for one in study.trials[:num_trials]
    ]
    finished = [one for one in study.trials[:num_trials] if one.value is not None]
    if not finished:
        raise RuntimeError(
            f"tuning {variant}: all {num_trials} trials failed, the first because: "
            f"{trials[0]['failed']}; narrow its RANGES"
        )
    best = (max if recipe.schedule.higher_is_better else min)(
        finished, key=lambda one: one.value or 0.0
    )
    return _with(recipe, found[best.number]), Tuned(
        metric, dict(found[best.number]), float(best.value or 0.0), trials
    )


def _points(ranges: Ranges) -> list[dict[str, Any]]:
    """Every combination of the choices, in a fixed random order; [] where a Range is among them, or
    there are more than MOST_POINTS.
    """
    choices = [one.values for one in ranges.values() if isinstance(one, Choice)]
    if len(choices) < len(ranges) or prod(map(len, choices)) > MOST_POINTS:
        return []
    grid = [dict(zip(ranges, values, strict=True)) for values in product(*choices)]
    return [grid[i] for i in np.random.default_rng(0).permutation(len(grid))]


def _looked_at(recipe: Recipe, metric: str, looks: int) -> Recipe:
    """The recipe measured `looks` times while it trains, its best model kept; as it is for 0."""
    if not looks:
        return recipe
    return replace(
        recipe,
        schedule=replace(
            recipe.schedule, eval_every=max(1, recipe.schedule.steps // looks), watch=metric
        ),
    )


def _with(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    return override(recipe, [f"{field}={_text(value)}" for field, value in settings.items()])


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{field}={value:.4g}" if isinstance(value, float) else f"{field}={_text(value)}"
        for field, value in settings.items()
    )


def _text(value: object) -> str:
    """As the command line writes it; floats keep all digits."""
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _distribution(one: Range | Choice) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(one, Choice):
        return CategoricalDistribution(one.values)
    if isinstance(one.low, int) and isinstance(one.high, int):
        return IntDistribution(one.low, one.high, log=one.log)
    return FloatDistribution(one.low, one.high, log=one.log)
