"""tune(): the settings of a variant that score best on validation classes, searched with Optuna."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from eval.comparison import Tuned
from eval.errors import LikenessError
from eval.formats.provenance import digest
from toolkit.training.recipe import Recipe, described, override
from toolkit.training.tune import Choice, Range, Ranges, Search, as_text, on_validation_classes

MOST_POINTS = 1 << 16  # of a grid that is laid out
INSTALL = "tuning needs Optuna, which is not installed: pip install 'likeness[tune]'"
# trains a recipe in a folder, going on where it was stopped, and gives the first metric on the
# recipe's trials
Score = Callable[[Recipe, Path], float]


class Untunable(LikenessError):
    """Every trial failed."""


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
    """The recipe with the settings that score best on the validation classes.

    Each point of a grid of Choices is tried once at most. Trial k proposes from a sampler seeded
    with k, so that an interrupted search proposes what an uninterrupted one would. Ties go to the
    earlier trial.

    Args:
        recipe: What is tuned.
        ranges: What may be searched. A Search says how a trial is scored.
        variant: The recipe's name.
        num_trials: The number of trials in all, those of earlier calls included.
        out: Keeps the study (study.log) and a run folder for each trial; a stopped search goes on.
        score: Trains a recipe in a folder and gives its first metric.
        data: A digest of what is trained on. say: Takes each line of progress.

    Returns:
        The recipe with the chosen settings, and what the search found.

    Raises:
        LikenessError: Optuna is not installed. The folder holds a search of another recipe, ranges
            or data. Every trial failed.
    """
    search = ranges if isinstance(ranges, Search) else Search(ranges)
    metric = next(iter(recipe.metrics))
    inner = _looked_at(on_validation_classes(recipe), metric, search.looks)
    study = _open_study(inner, search, variant, out, data)
    points = _points(ranges)
    num_trials = min(num_trials, len(points) or num_trials)
    for number in range(num_trials):
        settings = _settings(study, number, ranges, points)
        if settings is not None:
            say(f"tuning {variant}: trial {number + 1} of {num_trials}: {_shown(settings)}")
            folder = out / variant / f"trial-{number}"
            if failed := _try(study, number, inner, search, settings, folder, score):
                say(f"tuning {variant}: trial {number + 1} failed: {failed}")
    tried = study.trials[:num_trials]
    proposed = [points[t.number] if points else dict(t.params) for t in tried]
    trials = [_entry(study, trial, proposed[trial.number], search) for trial in tried]
    finished = [trial for trial in tried if trial.value is not None]
    if not finished:
        raise Untunable(
            f"tuning {variant}: all {num_trials} trials failed, the first because: "
            f"{trials[0]['failed']}; narrow its RANGES"
        )
    pick = max if recipe.schedule.higher_is_better else min
    best = pick(finished, key=lambda trial: trial.value or 0.0)
    chosen = proposed[best.number]
    return _with(recipe, chosen), Tuned(metric, dict(chosen), float(best.value or 0.0), trials)


def _open_study(recipe: Recipe, search: Search, variant: str, out: Path, data: str) -> Any:
    """The study of a variant in the folder's journal, begun or gone on with.

    It states what is searched, so that a search of something else is refused.
    """
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend
    except ModuleNotFoundError:
        raise LikenessError(INSTALL) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    out.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(out / "study.log")))
    direction = "maximize" if recipe.schedule.higher_is_better else "minimize"
    study = optuna.create_study(
        storage=storage, study_name=variant, direction=direction, load_if_exists=True
    )
    searched = {name: [type(values).__name__, asdict(values)] for name, values in search.items()}
    stated = digest(
        [json.dumps([described(recipe), searched], sort_keys=True), data, f"seeds={search.seeds}"]
    )
    if study.user_attrs.get("stated", stated) != stated:
        raise LikenessError(
            f"{out} holds a search of another recipe, on other data or of other RANGES for "
            f"{variant}; choose another --out"
        )
    study.set_user_attr("stated", stated)
    return study


def _settings(
    study: Any, number: int, ranges: Ranges, points: Sequence[dict[str, Any]]
) -> dict[str, Any] | None:
    """What a trial is to try: the next point of a grid, or what TPE proposes; None where the trial
    was finished before.
    """
    import optuna

    before = study.trials[number] if number < len(study.trials) else None
    if before is not None and before.state.is_finished():
        return None
    distributions = {field: _distribution(values) for field, values in ranges.items()}
    if points:
        if before is None:
            study.enqueue_trial(points[number])
        # waiting: it was killed after it was put down
        if before is None or before.state == optuna.trial.TrialState.WAITING:
            study.ask(distributions)
        return points[number]
    study.sampler = optuna.samplers.TPESampler(seed=number)
    return dict(before.params if before is not None else study.ask(distributions).params)


def _try(
    study: Any,
    number: int,
    recipe: Recipe,
    search: Search,
    settings: Mapping[str, Any],
    folder: Path,
    score: Score,
) -> str:
    """Score one trial, and write it into the study. Returns why it failed, "" where it did not."""
    import optuna

    try:
        if settings.keys() != search.keys():
            raise LikenessError("killed while its settings were written")
        changed = _with(recipe, settings)
        if search.seeds == 1:
            value = score(changed, folder)
        else:
            values = [
                score(replace(changed, seed=seed), folder / f"seed-{seed}")
                for seed in range(search.seeds)
            ]
            study.set_user_attr(f"seeds-{number}", values)
            value = float(np.median(values))
    except (ValueError, RuntimeError, OSError) as error:
        study.set_user_attr(f"failed-{number}", str(error))
        study.tell(number, state=optuna.trial.TrialState.FAIL)
        return str(error)
    study.tell(number, value)
    return ""


def _entry(study: Any, trial: Any, settings: dict[str, Any], search: Search) -> dict[str, Any]:
    """What a report shows of a trial."""
    entry = {
        "settings": settings,
        "score": trial.value,
        "failed": study.user_attrs.get(f"failed-{trial.number}", ""),
    }
    if search.seeds > 1:
        entry["seeds"] = study.user_attrs.get(f"seeds-{trial.number}")
    return entry


def _points(ranges: Ranges) -> list[dict[str, Any]]:
    """Every combination of the choices, in a fixed random order; [] where a Range is among them, or
    there are more than MOST_POINTS.
    """
    choices = [values.values for values in ranges.values() if isinstance(values, Choice)]
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
    return override(recipe, [f"{field}={as_text(value)}" for field, value in settings.items()])


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{field}={value:.4g}" if isinstance(value, float) else f"{field}={as_text(value)}"
        for field, value in settings.items()
    )


def _distribution(values: Range | Choice) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, Choice):
        return CategoricalDistribution(values.values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return IntDistribution(values.low, values.high, log=values.log)
    return FloatDistribution(values.low, values.high, log=values.log)
