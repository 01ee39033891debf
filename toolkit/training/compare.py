"""One recipe, many variants and seeds, under identical data order, budget and augmentation -> a
table with standard errors and intervals.

out/VARIANT/seed-N/
    the run as `likeness train` leaves it, scores.txt (`enrol probe score label`) or test.npz
    (values of each item), result.json (with which a changed recipe, data set or network is
    refused)
out/tune/
    the trials of each variant and a run folder for each trial, with --tune
out/comparison.json, table.txt, table.md, table.tex, report/index.html
    the result, worked out anew from the score files each time
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch

from likeness.eval.errors import LikenessError, likeness_version
from likeness.eval.formats.files import file_digest, json_object
from likeness.eval.formats.provenance import digest, sha256
from likeness.eval.formats.runs import LAST
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.intervals import per_item
from likeness.eval.intervals.comparison import (
    Comparison,
    Outcome,
    Run,
    Subjects,
    Tuned,
    measure,
    measure_items,
    subjects_behind,
    summarise,
    trial_list_digest,
)
from likeness.eval.items.items import Items
from likeness.eval.progress import track
from likeness.eval.reports import comparison
from likeness.eval.types import Scores, Trials, name_first
from likeness.eval.writing import write_json
from likeness.toolkit.console import say
from likeness.toolkit.models.parts import describe, values_in
from likeness.toolkit.signals import Interrupted
from likeness.toolkit.sources import digest_of_sources
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.listed import list_by, trials_by
from likeness.toolkit.training.lock import only_writer
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.measure import (
    TEST,
    Embedded,
    load_model,
    metrics_of,
    run_test,
    settings_of,
)
from likeness.toolkit.training.plan import CheckHeldOut, fingerprint, plan
from likeness.toolkit.training.recipe import ItemMeasure, Recipe, Verification, fit_to_data
from likeness.toolkit.training.run import check_same, flat, holds_checkpoint
from likeness.toolkit.training.search import Ranges, check_ranges, divide_for_validation, tune
from likeness.toolkit.training.start import ReadInitial, read_initial
from likeness.toolkit.training.train import fit

SCORES, RESULT = "scores.txt", "result.json"  # of a run, in its folder
NUM_RESAMPLES = 1000
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
            of the watched metric, or of the first.
        allow_different: The fields besides the method in which the variants may differ.
        ranges: Variant -> field -> Range or Choice: what is searched for it on validation classes,
            before it is compared (likeness.toolkit.training.search).
        num_trials: How many settings are tried for each variant; 0 searches nothing.
        command: The command line, which the report shows.
    """

    reference: str = ""
    allow_different: Sequence[str] = ()
    ranges: Mapping[str, Ranges] = field(default_factory=dict)
    num_trials: int = 0
    command: str = ""


class Listed(NamedTuple):
    """A variant with what its runs are trained and measured on.

    Attributes:
        recipe: With the settings that follow from the data.
        description: The recipe as JSON values.
        digest: Of the ids, labels and files of the training items, of what is tested, and of the
            files and the initial network that the recipe names.
        trials: The trials; None for a recipe that measures items.
        subjects: The subjects behind the trials; None for such a recipe.
    """

    recipe: Recipe
    description: dict[str, Any]
    digest: str
    trials: Trials | None = None
    subjects: Subjects | None = None


def listed(
    recipe: Recipe,
    data: Path,
    check_held_out: CheckHeldOut | None = None,
    *,
    read_initial: ReadInitial = read_initial,
) -> Listed:
    """Check a variant, and list what it is trained and tested on."""
    planned = plan(recipe, data, check_held_out=check_held_out)
    made = planned.recipe, json.loads(planned.description)
    paths = dict.fromkeys(item.path for item in chain(planned.items, planned.held_out))
    named = [Path(text) for text in values_in(made[1]) if isinstance(text, str)]
    if recipe.init:  # of a run, perhaps its last network is taken, and not the best
        named.append(Path(recipe.init, LAST))
    files = [file_digest(path) for path in named if os.path.isfile(path)]
    init = [read_initial(recipe.init).digest] if recipe.init else []
    trained_on = [planned.fingerprint, digest_of_sources(paths), *files, *init]
    if planned.trials is None:
        return Listed(*made, digest([*trained_on, fingerprint(planned.held_out)]))
    items, trials = planned.trials
    subjects = subjects_behind(trials, {item.id: item.label for item in items})
    return Listed(*made, digest([*trained_on, subjects.trial_list]), trials, subjects)


def tested_on(recipe: Recipe, data: Path) -> str:
    """The digest of a recipe and of what it is measured on: items, trials and their files."""
    measure, trial_list = recipe.measure, ""
    if isinstance(measure, Verification):
        items, trials = trials_by(measure.trials, data)
        tested, trial_list = [items], trial_list_digest(trials)
    else:
        assert measure is not None
        parts = measure.items, getattr(measure, "calibrate_on", None)
        tested = [list_by(part, data) for part in parts if part is not None]
    joined = Items.joined(map(Items.of, tested))
    files = digest_of_sources(dict.fromkeys(item.path for item in joined))
    description = json.dumps(flat(describe(recipe)), sort_keys=True)
    return digest([description, fingerprint(joined), trial_list, files])


def compare(
    variants: Mapping[str, Recipe],
    *,
    num_seeds: int,
    data: Path,
    out: Path,
    terms: Terms = Terms(),
    read_initial: ReadInitial = read_initial,
    check_held_out: CheckHeldOut | None = None,
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
        terms: The reference, the fields in which variants may differ besides METHOD, and what is
            searched first.
        read_initial: Reads the network that a recipe's init names.
        check_held_out: As in `likeness.toolkit.training.plan.plan`.

    Returns:
        The table: means, standard errors, intervals and paired differences.

    Raises:
        LikenessError: Anything wrong with variants, data or folder, before the first step.
        Interrupted: After Ctrl-C. All is whole, and the same call goes on.
    """
    with only_writer(out):
        check_variants(variants, terms)
        searched = _searched(variants, terms, data) if terms.num_trials else {}
        chosen = dict[str, Listed]()
        for name, recipe in variants.items():  # which are all measured on the same files
            check = None if chosen else check_held_out
            chosen[name] = listed(recipe, data, check, read_initial=read_initial)
        tuned, runs = dict[str, Tuned](), list[Run]()
        train = partial(fit, data=data, resume=True, read_initial=read_initial)

        def score(recipe: Recipe, folder: Path) -> float:
            metric = recipe.main_metric
            fitted = fit_to_data(recipe, data)
            return _train_and_measure(fitted, data, folder, train, only=metric)[metric]

        search = partial(tune, num_trials=terms.num_trials, out=out / "tune", score=score)
        try:
            for name, ranges in searched.items():
                listing = chosen[name].digest
                recipe, tuned[name] = search(variants[name], ranges, variant=name, data=listing)
                chosen[name] = listed(recipe, data, read_initial=read_initial)
            # seed by seed, so that a stopped comparison has some runs of all variants
            order = [(name, seed) for seed in range(num_seeds) for name in chosen]
            for name, seed in order:
                _refuse_other_run(out / f"{name}/seed-{seed}", chosen[name], seed)
            for number, (name, seed) in enumerate(track(order, "comparing", unit="runs"), 1):
                run = Run(name, seed, f"{name}/seed-{seed}")
                doing = f"run {number} of {len(order)}: {name} seed {seed}"
                runs.append(_done(run, chosen[name], data, out / run.folder, doing, train))
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(f"stopped; {out} is whole, and the same command goes on") from None
        runs.sort(key=lambda run: list(chosen).index(run.variant))
        result = _summary(chosen, runs, out, terms.reference, tuned)
        logs = {(run.variant, run.seed): read_log(out / run.folder) for run in runs}
        comparison.write(out, result, logs, command=terms.command)
        return result


def _searched(variants: Mapping[str, Recipe], terms: Terms, data: Path) -> dict[str, Ranges]:
    """The ranges of the variants that are tuned, checked."""
    searched = {name: ranges for name, ranges in terms.ranges.items() if name in variants}
    if not searched:
        raise LikenessError(
            f"--tune: the recipe file states no RANGES for {name_first(variants)}; in a file of "
            "yours, such as a copy by `likeness recipes --copy`, import Range from "
            'likeness.recipe, and add RANGES = {"arcface": {"loss.margin": Range(0.1, 0.5)}}'
        )
    for name, ranges in searched.items():
        check_ranges(variants[name], ranges)
        changed = [field for field in ranges if not _within(field, METHOD)]
        _refuse(changed, terms.allow_different, f"RANGES of {name} change")
        divide_for_validation(variants[name]).items(data)  # too few classes for a validation split
    return searched


def _refuse_other_run(folder: Path, variant: Listed, seed: int) -> None:
    """Refuse a folder whose run, finished or not, is of another recipe, data or initial network."""
    stated = _stated_result(folder)
    if "scores" not in stated and not holds_checkpoint(folder):
        return
    check_same(folder, variant.description | {"seed": seed})
    if stated.get("data", variant.digest) != variant.digest:
        raise LikenessError(
            f"{folder} holds a run on other data, or from another network or file that its recipe "
            "names; give the same ones (copies of over 64 MiB need their old times), or choose "
            "another --out"
        )


def _stated_result(folder: Path) -> dict[str, Any]:
    """What a run states of its data, and of its values where it is finished."""
    return json_object(folder / RESULT) if (folder / RESULT).is_file() else {}


def _done(
    run: Run, variant: Listed, data: Path, folder: Path, doing: str, train: Callable[..., Path]
) -> Run:
    """A run with its values, or with the reason why it failed; not done again if it is there."""
    measured = folder / (TEST if isinstance(variant.recipe.measure, ItemMeasure) else SCORES)
    before = _stated_result(folder)
    if "scores" in before and measured.is_file() and sha256(measured) == before["scores"]:
        say(f"{doing}: finished before")
        fields = ("values", "scores", "seconds", "items_per_second")
        return replace(run, **{name: before[name] for name in fields})
    say(doing)
    more = {"schema": "likeness.run/1", "data": variant.digest, "version": likeness_version()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RESULT, more)  # whoever goes on with a stopped run knows its data
        recipe = replace(variant.recipe, seed=run.seed)
        values = _train_and_measure(recipe, data, folder, train)
    except (ValueError, RuntimeError, OSError) as error:  # a loss that is NaN, memory or disk full
        say(f"{doing}: failed: {error}")
        return replace(run, failed=str(error))
    log = read_log(folder)
    seconds = _seconds(log)
    num_items = log[-1]["step"] * recipe.sampling.batch_size
    entry: dict[str, Any] = {
        "values": values,
        "scores": sha256(measured),
        "seconds": seconds,
        "items_per_second": num_items / seconds if seconds else None,
    }
    write_json(folder / RESULT, more | entry)
    say(f"{doing}: {', '.join(f'{name} {value:.4f}' for name, value in values.items())}")
    return replace(run, **entry)


def _train_and_measure(
    recipe: Recipe, data: Path, folder: Path, train: Callable[..., Path], *, only: str = ""
) -> dict[str, float]:
    """Train a run, and its metrics; the scores or values behind them are in its folder.

    Args:
        recipe: What is trained.
        data: The folder of the data set.
        folder: The run's folder.
        train: Trains a recipe in a folder, going on where it was stopped.
        only: The metric that is wanted, "" for all.
    """
    threads = torch.get_num_threads()  # a recipe may set it, and the next run starts as this one
    try:
        embedded: Embedded = {}
        train(recipe, out=folder, embedded=embedded)
        if isinstance(recipe.measure, Verification):
            items, trials = trials_by(recipe.measure.trials, data)
            model = load_model(folder, recipe, embedded)
            scores = model.score((items, trials), recipe.measure.flip)
            write_scores(folder / SCORES, trials, scores.values)
            metrics = metrics_of(recipe.metrics, scores, only=only)
        else:
            measured = run_test(recipe, folder, data, embedded)
            metrics = metrics_of(recipe.metrics, measured, only=only)
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
    chosen: Mapping[str, Listed],
    runs: Sequence[Run],
    out: Path,
    reference: str,
    tuned: Mapping[str, Tuned],
) -> Comparison:
    """The numbers of the table from the score files, resampled, and what is said beside them."""
    variants = {name: variant.recipe for name, variant in chosen.items()}
    metrics = list(dict.fromkeys(name for recipe in variants.values() for name in recipe.metrics))
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in variants}
    counts: dict[str, dict[str, int | None]] = {}
    for run in runs:
        if not run.failed:
            outcomes[run.variant][run.seed], counts[run.variant] = _outcome(
                chosen[run.variant], out / run.folder
            )
    first = next(iter(variants.values()))
    cells, best = summarise(
        outcomes,
        metrics,
        reference=reference,
        best_by=first.main_metric,
        higher_is_better=first.schedule.higher_is_better,
    )
    subjects = chosen[best or next(iter(chosen))].subjects
    varied = [field for field in _differing(variants) if not _within(field, INDIFFERENT)]
    watched = [
        recipe.schedule.watch
        for recipe in variants.values()
        if recipe.schedule.watch and len(settings_of(recipe.measure)) < 2
    ]
    return Comparison(
        list(variants),
        metrics,
        sorted({run.seed for run in runs}),
        runs,
        cells,
        best,
        not reference,
        counts.get(best) or next(iter(counts.values()), {}),
        "" if subjects is None else subjects.source,
        NUM_RESAMPLES,
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


def _outcome(variant: Listed, folder: Path) -> tuple[Outcome, dict[str, int | None]]:
    """A run's metrics, resampled, and the counts of what they are of."""
    metrics = variant.recipe.metrics
    if variant.trials is None:
        items = per_item.read(folder / TEST)
        outcome = measure_items(items, metrics, num_resamples=NUM_RESAMPLES)
        return outcome, {"items": len(items.ids), items.over: items.num_groups}
    trials, values = read_scores(folder / SCORES, variant.trials)
    assert trials.target is not None
    assert variant.subjects is not None
    scores = Scores(values, trials.target)
    outcome = measure(scores, metrics, variant.subjects, num_resamples=NUM_RESAMPLES)
    return outcome, {
        "targets": len(scores.targets),
        "nontargets": len(scores.nontargets),
        "subjects": variant.subjects.num_subjects,
    }


def load_variants(
    file: str, names: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[dict[str, Recipe], dict[str, Ranges]]:
    """Read the variants of a recipe file, and what may be searched for them.

    Args:
        file: RECIPE.py, or RECIPE.py:GROUP for one group of a file whose variants are called
            GROUP.NAME; these are then known by their NAME alone.
        names: The variants that are wanted; none stands for all.
        overrides: `field=value` texts, which are applied to every variant. Seeds are set anew.

    Returns:
        The recipes by name, and the file's RANGES without the fields that overrides set.

    Raises:
        LikenessError: As likeness.toolkit.training.recipe.load and override say.
    """
    group = ""
    if not Path(file).is_file():
        file, _, group = file.partition(":")
    defined = recipes.read(file)
    variants, ranges = defined["RECIPES"], defined.get("RANGES", {})
    if group and (of_group := recipes.group_fields(variants, group)):
        variants, ranges = of_group, recipes.group_fields(ranges, group)
    elif group:
        names = [group, *names]
    chosen = {
        name: recipes.override(recipes.choose(file, variants, name)[0], list(overrides))
        for name in dict.fromkeys(names or variants)
    }
    for searched in ranges.values():
        for name in (text.partition("=")[0].strip() for text in overrides):
            searched.pop(name, None)
    return chosen, ranges


def check_variants(variants: Mapping[str, Recipe], terms: Terms) -> None:
    """Refuse variants that cannot be compared with each other.

    Args:
        variants: Recipes by name.
        terms: The variant that the others are set against, and the fields besides METHOD and
            INDIFFERENT in which they may differ.

    Raises:
        LikenessError: It says which variants or fields, and what is allowed.
    """
    if terms.reference and terms.reference not in variants:
        raise LikenessError(
            f"--reference {terms.reference!r} is none of the variants compared: "
            f"{', '.join(variants)}"
        )
    for name, recipe in variants.items():
        if not recipe.metrics:
            raise LikenessError(f"variant {name!r} has no measure or no metrics to compare by")
    differing = [name for name in _differing(variants) if not _within(name, METHOD + INDIFFERENT)]
    _refuse(differing, terms.allow_different, "the variants differ in")


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
