"""One recipe, many variants and seeds, under identical data order, budget and augmentation -> a
table with standard errors and intervals.

out/VARIANT/seed-N/
    the run as `likeness train` leaves it, scores.txt (`enrol probe score label`) or test.npz
    (values of each item), result.json (with which a changed recipe or data set is refused)
out/tune/
    the trials of each variant and a run folder for each trial, with --tune
out/comparison.json, table.txt, table.md, table.tex, report/index.html
    the result, worked out anew from the score files each time
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eval import per_item
from eval.comparison import (
    Comparison,
    Outcome,
    Run,
    Subjects,
    Tuned,
    measure,
    measure_items,
    resamples_needed,
    subjects_behind,
    summarise,
)
from eval.errors import LikenessError
from eval.formats.files import json_object
from eval.formats.provenance import digest, likeness_version, sha256
from eval.formats.trials import read_scores, write_scores
from eval.progress import tracked
from eval.reports import comparison
from eval.similarity import score_trials
from eval.types import Scores, Trials
from toolkit.console import Interrupted
from toolkit.data.items import Item, fingerprint
from toolkit.models.parts import describe
from toolkit.parallel.embed import embed_all
from toolkit.training import recipe as recipes
from toolkit.training.folder import RECIPE, check_folder, holds_checkpoint, write_json
from toolkit.training.lock import under_lock
from toolkit.training.log import read_log
from toolkit.training.measure import (
    TEST,
    items_of,
    load_embedder,
    metrics_of,
    run_test,
    settings_of,
)
from toolkit.training.plan import plan
from toolkit.training.recipe import Recipe, Verification, described, flat, of_data
from toolkit.training.start import ReadInitial, read_initial
from toolkit.training.train import fit
from toolkit.training.tune import Ranges, Untunable, check_ranges, on_validation_classes, tune

SCORES, RESULT = "scores.txt", "result.json"  # of a run, in its folder
# What variants may differ in: the method, and what moves no number. Everything else decides what is
# learnt from, for how long, or how it is measured, and fields that are added to Recipe later count
# as such until they are named here.
METHOD = (
    "frontend",
    "backbone",
    "loss",
    "similarity",
    "memory",
    "optim",
    "tuning",
    "schedule.warmup_steps",
    "schedule.decay",
    "schedule.halve_after",
    "estimate_views",
    "start_at_means",
)
INDIFFERENT = (
    "seed",
    "schedule.save_every",
    "compute.workers",
    "compute.prefetch",
    "compute.threads",
    "compute.cache",
)


@dataclass(frozen=True)
class Terms:
    """How variants are set against each other.

    Attributes:
        reference: The variant that the others are set against; "" takes the one with the best mean
            of the first metric.
        allow_different: The fields besides the method in which the variants may differ.
        command: The command line, which the report shows.
    """

    reference: str = ""
    allow_different: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True)
class Search:
    """A search for each variant's settings on validation classes, before it is compared.

    Attributes:
        ranges: Variant -> field -> Range or Choice: what may be searched (toolkit.training.tune).
        num_trials: How many settings are tried for each variant.
    """

    ranges: Mapping[str, Ranges]
    num_trials: int


@dataclass(frozen=True)
class Data:
    """What the runs of a variant are trained and measured on.

    Attributes:
        digest: Of the ids and labels of the training items, and of what is tested.
        items: The items of the trials; empty for a recipe that measures items, which it lists
            itself.
        trials: The trials, or None for such a recipe.
        subjects: The subjects behind the trials, or None for such a recipe.
    """

    digest: str
    items: Sequence[Item]
    trials: Trials | None
    subjects: Subjects | None


@under_lock
def compare(
    variants: Mapping[str, Recipe],
    *,
    num_seeds: int,
    data: Path,
    out: Path,
    terms: Terms = Terms(),
    search: Search | None = None,
    say: Callable[[str], None] = print,
    read_initial: ReadInitial = read_initial,
) -> Comparison:
    """Train every variant with several seeds, measure all runs, and compare.

    A seed gives every variant the same batches and views. A run that fails (its loss becomes NaN,
    say) is reported with its reason, and the others go on. The next call tries it again from its
    last checkpoint. What is finished in `out` is not done again.

    Args:
        variants: Recipes by name.
        num_seeds: Every variant is trained with the seeds 0 to num_seeds - 1.
        data: The folder of the data set.
        out: The folder for runs, tables and report.
        terms: The reference, and the fields in which variants may differ besides METHOD.
        search: A search for settings that comes first.
        say: Takes each line of progress.
        read_initial: Reads the network that a recipe's init names.

    Returns:
        The table: means, standard errors, intervals and paired differences.

    Raises:
        LikenessError: Anything wrong with variants, data or folder, before the first step.
        Interrupted: After Ctrl-C. All is whole, and the same call goes on.
    """
    check_variants(variants, terms.reference, terms.allow_different)
    searched = _searched(variants, search, terms, data) if search else {}
    measured = data_of(variants, data)
    chosen, tuned, untunable = dict(variants), dict[str, Tuned](), dict[str, str]()

    def score(recipe: Recipe, folder: Path) -> float:
        first = next(iter(recipe.metrics))
        recipe = of_data(recipe, data)
        return _train_and_measure(recipe, data, folder, read_initial, only=first)[first]

    try:
        for name, ranges in searched.items():
            assert search is not None
            try:
                chosen[name], tuned[name] = tune(
                    variants[name],
                    ranges,
                    variant=name,
                    num_trials=search.num_trials,
                    out=out / "tune",
                    score=score,
                    data=measured[name].digest,
                    say=say,
                )
            except Untunable as error:
                untunable[name] = str(error)
        runs: list[Run] = []
        # seed by seed, so that a stopped comparison has some runs of all variants
        order = [(name, seed) for seed in range(num_seeds) for name in chosen]
        seeded = {
            (name, seed): of_data(replace(chosen[name], seed=seed), data)
            for name, seed in order
            if name not in untunable
        }
        for (name, seed), recipe in seeded.items():
            _refuse_other_run(out / f"{name}/seed-{seed}", recipe, measured[name], data)
        for number, (name, seed) in enumerate(tracked(order, "comparing", unit="runs"), 1):
            run = Run(name, seed, f"{name}/seed-{seed}", failed=untunable.get(name, ""))
            if not run.failed:
                doing = f"run {number} of {len(order)}: {name} seed {seed}"
                recipe = seeded[name, seed]
                run = _done(run, recipe, measured[name], data, out, doing, say, read_initial)
            runs.append(run)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(
            f"stopped by Ctrl-C; {out} is whole, and the same command goes on"
        ) from None
    runs.sort(key=lambda run: list(chosen).index(run.variant))
    result = _summary(chosen, runs, measured, out, terms.reference, tuned)
    logs = {(run.variant, run.seed): read_log(out / run.folder) for run in runs}
    comparison.write(out, result, logs, command=terms.command, version=likeness_version())
    return result


def _searched(
    variants: Mapping[str, Recipe], search: Search, terms: Terms, data: Path
) -> dict[str, Ranges]:
    """The ranges of the variants that are tuned, checked."""
    searched = {name: ranges for name, ranges in search.ranges.items() if name in variants}
    if not searched:
        raise LikenessError(
            "--tune: the recipe file states no RANGES for these variants; add RANGES = {variant: "
            "{field: Range(low, high)}} (toolkit.training.tune)"
        )
    for name, ranges in searched.items():
        check_ranges(variants[name], ranges)
        changed = [field for field in ranges if not _within(field, METHOD)]
        _refuse(changed, terms.allow_different, f"RANGES of {name} change")
        on_validation_classes(variants[name]).items(data)  # too few classes for a validation split
    return searched


def _refuse_other_run(folder: Path, recipe: Recipe, measured: Data, data: Path) -> None:
    """Refuse a folder whose run, finished or not, is of another recipe or other data."""
    if (folder / RESULT).is_file():
        before = json_object(folder / RESULT)
        if (before["recipe"], before["data"]) != (_digest_of(recipe), measured.digest):
            raise LikenessError(
                f"{folder} holds a run of another recipe or other data; compare with the same "
                "recipes, overrides and data, or choose another --out"
            )
    elif holds_checkpoint(folder):
        check_folder(folder, plan(recipe, data).description, resume=True)


def _digest_of(recipe: Recipe) -> str:
    return digest([json.dumps(described(recipe), sort_keys=True)])


def _done(
    run: Run,
    recipe: Recipe,
    measured: Data,
    data: Path,
    out: Path,
    doing: str,
    say: Callable[[str], None],
    read_initial: ReadInitial,
) -> Run:
    """A run with its values, or with the reason why it failed; not done again if it is there."""
    folder = out / run.folder
    if (folder / RESULT).is_file():
        say(f"{doing}: finished before")
        before = json_object(folder / RESULT)
        fields = ("values", "scores", "seconds", "items_per_second")
        return replace(run, **{name: before[name] for name in fields})
    say(doing)
    try:
        values = _train_and_measure(recipe, data, folder, read_initial, measured=measured)
    except (ValueError, RuntimeError, OSError) as error:  # a loss that is NaN, memory or disk full
        say(f"{doing}: failed: {error}")
        return replace(run, failed=str(error))
    log = read_log(folder)
    seconds = _seconds(log)
    # of the plan: small data have smaller batches than the recipe
    batch_size = json_object(folder / RECIPE)["sampling"]["batch_size"]
    entry: dict[str, Any] = {
        "values": values,
        "scores": sha256(folder / (TEST if recipe.measures_items else SCORES)),
        "seconds": seconds,
        "items_per_second": log[-1]["step"] * batch_size / seconds if seconds else None,
    }
    more = {"recipe": _digest_of(recipe), "data": measured.digest, "version": likeness_version()}
    write_json(folder / RESULT, {"schema": "likeness.run/1"} | more | entry)
    say(f"{doing}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    return replace(run, **entry)


def _train_and_measure(
    recipe: Recipe,
    data: Path,
    folder: Path,
    read_initial: ReadInitial,
    *,
    measured: Data | None = None,
    only: str = "",
) -> dict[str, float]:
    """Train a run, and its metrics; the scores or values behind them are in its folder.

    Args:
        recipe: What is trained.
        data: The folder of the data set.
        folder: The run's folder.
        read_initial: Reads the network that recipe.init names.
        measured: The trials, where they are read already.
        only: The metric that is wanted of items, "" for all.
    """
    threads = torch.get_num_threads()  # a recipe may set it, and the next run starts as this one
    try:
        model = fit(recipe, data=data, out=folder, resume=True, read_initial=read_initial)
        if isinstance(recipe.measure, Verification):
            if measured is None or measured.trials is None:
                items, trials = recipe.measure.trials(data)
            else:
                items, trials = measured.items, measured.trials
            loaded = load_embedder(model, recipe)
            loaded.embedder.to_device()
            workers = recipe.compute.workers
            made = embed_all(loaded.embedder, items, loaded.read, what="trial", workers=workers)
            values = score_trials(trials, made, similarity=loaded.similarity)
            write_scores(folder / SCORES, trials, values)
            assert trials.target is not None
            scores = Scores(values, trials.target)
            metrics = {
                name: float(metric(scores.targets, scores.nontargets))
                for name, metric in recipe.metrics.items()
            }
        else:
            metrics = metrics_of(recipe, run_test(recipe, folder, data), only=only)
    finally:
        torch.set_num_threads(threads)
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise LikenessError(f"{name} is {value} on the trials, which cannot be compared")
    return metrics


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


def _summary(
    variants: Mapping[str, Recipe],
    runs: Sequence[Run],
    measured: Mapping[str, Data],
    out: Path,
    reference: str,
    tuned: Mapping[str, Tuned],
) -> Comparison:
    """The numbers of the table from the score files, resampled, and what is said beside them."""
    metrics = list(dict.fromkeys(name for recipe in variants.values() for name in recipe.metrics))
    num_resamples = resamples_needed((len(variants) - 1) * len(metrics))
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in variants}
    counts: dict[str, dict[str, int | None]] = {}
    for run in runs:
        if not run.failed:
            outcomes[run.variant][run.seed], counts[run.variant] = _outcome(
                variants[run.variant], measured[run.variant], out / run.folder, num_resamples
            )
    better = next(iter(variants.values())).schedule.higher_is_better
    cells, chosen = summarise(outcomes, metrics, reference=reference, higher_is_better=better)
    subjects = measured[chosen or next(iter(variants))].subjects
    varied = [field for field in _differing(variants) if not _within(field, INDIFFERENT)]
    watched = [
        recipe.schedule.watch
        for recipe in variants.values()
        if recipe.schedule.watch and len(settings_of(recipe)) < 2
    ]
    return Comparison(
        list(variants),
        metrics,
        sorted({run.seed for run in runs}),
        runs,
        cells,
        chosen,
        not reference,
        counts.get(chosen) or next(iter(counts.values()), {}),
        "" if subjects is None else subjects.source,
        num_resamples,
        varied=varied,
        allowed=[field for field in varied if not _within(field, METHOD)],
        watched=", ".join(dict.fromkeys(watched)),
        tuned=tuned,
        definitions={
            name: describe(metric, name)
            for recipe in variants.values()
            for name, metric in recipe.metrics.items()
        },
    )


def _outcome(
    recipe: Recipe, measured: Data, folder: Path, num_resamples: int
) -> tuple[Outcome, dict[str, int | None]]:
    """A run's metrics, resampled, and the counts of what they are of."""
    if measured.trials is None:
        items = per_item.read(folder / TEST)
        outcome = measure_items(items, recipe.metrics, num_resamples=num_resamples)
        return outcome, {"items": len(items.ids), items.over: items.num_groups}
    trials, values = read_scores(folder / SCORES, measured.trials)
    assert trials.target is not None
    assert measured.subjects is not None
    outcome = measure(
        Scores(values, trials.target),
        recipe.metrics,
        measured.subjects,
        num_resamples=num_resamples,
    )
    targets = int(trials.target.sum())
    return outcome, {
        "targets": targets,
        "nontargets": len(trials) - targets,
        "subjects": measured.subjects.num_subjects,
    }


def load_variants(
    file: str, names: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[dict[str, Recipe], dict[str, Ranges]]:
    """Read the variants of a recipe file, and what may be searched for them.

    Args:
        file: RECIPE.py, or RECIPE.py:GROUP for one group of a file whose variants are called
            GROUP.NAME; these are then known by their NAME alone.
        names: The variants that are wanted; none stands for all.
        overrides: `field=value` texts, which are applied to every variant.

    Returns:
        The recipes by name, and the file's RANGES without the fields that overrides set.

    Raises:
        LikenessError: As toolkit.training.recipe.load and override say.
    """
    group = ""
    if ":" in file and not Path(file).is_file():
        file, _, group = file.partition(":")
    defined = recipes.read(file)
    overridden = {text.partition("=")[0].strip() for text in overrides}
    if "seed" in overridden:
        raise LikenessError(
            "override seed: compare runs the seeds 0 to N - 1; say how many with --seeds N"
        )
    listed, ranges = defined["RECIPES"], defined.get("RANGES", {})
    if group:
        listed, ranges = recipes.of_group(listed, group), recipes.of_group(ranges, group)
        if not listed:
            raise LikenessError(
                f"recipe {file}:{group}: compare takes RECIPE.py alone; name variants with "
                f"--variants {group}"
            )
    chosen = {
        name: recipes.override(recipes.choose(file, listed, name)[0], list(overrides))
        for name in dict.fromkeys(names or listed)
    }
    for searched in ranges.values():
        for field in overridden & searched.keys():
            del searched[field]
    return chosen, ranges


def check_variants(
    variants: Mapping[str, Recipe], reference: str, allow_different: Sequence[str]
) -> None:
    """Refuse variants that cannot be compared with each other.

    Args:
        variants: Recipes by name.
        reference: The variant that the others are set against, or "".
        allow_different: The fields besides METHOD and INDIFFERENT in which they may differ.

    Raises:
        LikenessError: It says which variants or fields, and what is allowed.
    """
    if reference and reference not in variants:
        raise LikenessError(
            f"--reference {reference!r} is none of the variants compared: {', '.join(variants)}"
        )
    for name, recipe in variants.items():
        if not recipe.metrics:
            raise LikenessError(f"variant {name!r} has no measure or no metrics to compare by")
    _refuse(
        [field for field in _differing(variants) if not _within(field, METHOD + INDIFFERENT)],
        allow_different,
        "the variants differ in",
    )


def _refuse(fields: Sequence[str], allowed: Sequence[str], what: str) -> None:
    """Refuse fields that differ, unless they are allowed to."""
    refused = [field for field in fields if not _within(field, allowed)]
    if refused:
        raise LikenessError(
            f"{what} {', '.join(refused)}, so that the comparison would not be of methods alone: "
            "make them equal, choose among the variants with --variants, "
            f"or say --allow-different {','.join(refused)}"
        )


def _within(field: str, names: Sequence[str]) -> bool:
    """Whether a field, or the group that it is in, is among the names."""
    return field in names or field.partition(".")[0] in names


def _differing(variants: Mapping[str, Recipe]) -> list[str]:
    """The names of the fields in which the recipes differ; those of GROUPS one by one."""
    every = [flat(describe(recipe)) for recipe in variants.values()]
    names = set[str]().union(*every)
    return sorted(
        name
        for name in names
        if any(settings.get(name) != every[0].get(name) for settings in every)
    )


def data_of(variants: Mapping[str, Recipe], data: Path) -> dict[str, Data]:
    """Items, trials and subjects of every variant; read once where the variants agree, as they
    normally do.
    """
    known: dict[str, Data] = {}
    by_variant: dict[str, Data] = {}
    for name, recipe in variants.items():
        stated = json.dumps([describe(recipe.items, "items"), _tested(recipe)], sort_keys=True)
        if stated not in known:
            known[stated] = _read_data(recipe, data)
        by_variant[name] = known[stated]
    return by_variant


def _read_data(recipe: Recipe, data: Path) -> Data:
    """Items, trials and subjects of one variant."""
    trained = fingerprint(recipe.items(data))
    if not isinstance(recipe.measure, Verification):
        tested = items_of(settings_of(recipe)[-1], data).values()
        stated = json.dumps(_tested(recipe), sort_keys=True)
        return Data(digest([trained, stated, *map(fingerprint, tested)]), (), None, None)
    items, trials = recipe.measure.trials(data)
    subjects = subjects_behind(trials, {item.id: item.label for item in items})
    return Data(digest([trained, subjects.trial_list]), items, trials, subjects)


def _tested(recipe: Recipe) -> Any:
    """What the recipe's measure tests, as JSON values: without metrics and validation."""
    described = describe(recipe.measure, "measure")
    return {key: value for key, value in described.items() if key not in ("metrics", "validation")}
