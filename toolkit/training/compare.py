"""One recipe, many variants and seeds, under identical data order, budget and augmentation -> a
table with standard errors and intervals.

out/VARIANT/seed-N/
    the run as `likeness train` leaves it, scores.txt (`enrol probe score label`) or test.npz
    (values of each item), result.json
out/plan.json
    what is being compared: a changed recipe or data set is refused
out/tune/
    Optuna's study and a run folder for each trial, with --tune
out/comparison.json, table.txt, table.md, table.tex, report/index.html
    the result, worked out anew from the score files each time
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from eval import per_item
from eval.comparison import (
    Comparison,
    Outcome,
    Run,
    Tuned,
    measure,
    measure_items,
    resamples_needed,
    summarise,
)
from eval.formats.provenance import likeness_version, sha256
from eval.formats.trials import read_scores, write_scores
from eval.reports import comparison
from eval.similarity import score_trials
from eval.types import Floats, Scores, Trials, name_first
from toolkit.console import Interrupted
from toolkit.data.batch import Item
from toolkit.models.embed import embed_all, pick_device
from toolkit.models.parts import describe
from toolkit.training.lock import under_lock
from toolkit.training.log import read_log
from toolkit.training.measure import (
    TEST,
    load_embedder,
    metrics_of,
    run_test,
    settings_of,
)
from toolkit.training.moved import place
from toolkit.training.recipe import Recipe, Verification
from toolkit.training.train import fit
from toolkit.training.tune import Ranges, check_ranges, on_validation_classes, tune
from toolkit.training.variants import (
    INDIFFERENT,
    METHOD,
    Data,
    check_variants,
    data_of,
    differing,
    keep_plan,
    refuse,
    within,
    write_json,
)

_RESULT, _SCORES = "result.json", "scores.txt"
_FAILURES = (
    ValueError,
    RuntimeError,
    OSError,
)  # of one run: a loss that is NaN, unreadable items, memory or disk that is full


@dataclass(frozen=True)
class Terms:
    """How variants are set against each other.

    reference: what the others are set against, "" = the best mean of the first metric.
    allow_different: the fields besides the method in which the variants may differ.
    command: the command line, which the report shows.
    """

    reference: str = ""
    allow_different: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True)
class Tuning:
    """A search for each variant's settings on validation classes, before it is compared.

    ranges: what may be searched, variant -> field -> Range or Choice (toolkit.training.tune).
    num_trials: how many settings are tried for each variant. overrides: what the command line set,
    which cannot be tuned too.
    """

    ranges: Mapping[str, Ranges]
    num_trials: int
    overrides: Sequence[str] = ()


@under_lock
def compare(
    variants: Mapping[str, Recipe],
    *,
    num_seeds: int,
    data: Path,
    out: Path,
    terms: Terms = Terms(),
    tuning: Tuning | None = None,
    say: Callable[[str], None] = print,
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
        tuning: A search for settings that comes first.
        say: Takes each line of progress.

    Returns:
        The table: means, standard errors, intervals and paired differences.

    Raises:
        ValueError: Anything wrong with variants, data or folder, before the first step.
        Interrupted: After Ctrl-C. All is whole, and the same call goes on.
    """
    terms = replace(terms, allow_different=[place(field) for field in terms.allow_different])
    check_variants(variants, num_seeds, terms.reference, terms.allow_different)
    searched = _searched(variants, tuning, terms, data)
    measured = data_of(variants, data)
    plan_file = out / "plan.json"
    keep_plan(
        plan_file, {name: one for name, one in variants.items() if name not in searched}, measured
    )
    try:
        chosen, tuned, untunable = _tune(variants, searched, tuning, measured, data, out, say)
        keep_plan(
            plan_file,
            {name: one for name, one in chosen.items() if name not in untunable},
            measured,
        )
        runs = _train_all(chosen, untunable, num_seeds, measured, data, out, say)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(
            f"stopped by Ctrl-C; {out} is whole, and the same command goes on"
        ) from None
    result = _stated(_summary(chosen, runs, measured, out, terms.reference), chosen, tuned)
    logs = {(run.variant, run.seed): read_log(out / run.folder) for run in runs}
    scores = {name: _first_scores(name, runs, measured, out) for name in chosen}
    comparison.write(
        out,
        result,
        logs,
        command=terms.command,
        version=likeness_version(),
        scores={name: one for name, one in scores.items() if one is not None},
    )
    return result


def _searched(
    variants: Mapping[str, Recipe], tuning: Tuning | None, terms: Terms, data: Path
) -> dict[str, Ranges]:
    """The ranges of the variants that are tuned, checked."""
    if tuning is None:
        return {}
    searched = {name: ranges for name, ranges in tuning.ranges.items() if name in variants}
    if not searched:
        raise ValueError(
            "tuning: the recipe file states no RANGES for these variants; add RANGES = {variant: "
            "{field: Range(low, high)}} (toolkit.training.tune)"
        )
    for name, ranges in searched.items():
        check_ranges(variants[name], ranges, name, tuning.overrides)
        changed = [field for field in map(place, ranges) if not within(field, METHOD)]
        refuse(changed, terms.allow_different, f"RANGES of {name} change")
        on_validation_classes(variants[name]).items(data)  # too few classes for a validation split
    return searched


def _tune(
    variants: Mapping[str, Recipe],
    searched: Mapping[str, Ranges],
    tuning: Tuning | None,
    measured: Mapping[str, Data],
    data: Path,
    out: Path,
    say: Callable[[str], None],
) -> tuple[dict[str, Recipe], dict[str, Tuned], dict[str, str]]:
    """The variants with the settings that the search chose, what it found, and why it failed for
    those where every trial failed.
    """
    chosen, tuned, untunable = dict(variants), dict[str, Tuned](), dict[str, str]()
    for name, ranges in searched.items():
        assert tuning is not None
        try:
            chosen[name], tuned[name] = tune(
                variants[name],
                ranges,
                variant=name,
                num_trials=tuning.num_trials,
                out=out / "tune",
                score=partial(_score, data=data),
                data=measured[name].digest,
                say=say,
            )
        except RuntimeError as error:
            untunable[name] = str(error)
    return chosen, tuned, untunable


def _train_all(
    variants: Mapping[str, Recipe],
    untunable: Mapping[str, str],
    num_seeds: int,
    measured: Mapping[str, Data],
    data: Path,
    out: Path,
    say: Callable[[str], None],
) -> list[Run]:
    """Train and measure every variant with every seed; in the order of the variants.

    They are trained seed by seed, so that a stopped comparison has some runs of all variants.
    """
    runs: list[Run] = []
    order = [(name, seed) for seed in range(num_seeds) for name in variants]
    for number, (name, seed) in enumerate(order, 1):
        run = Run(name, seed, f"{name}/seed-{seed}", failed=untunable.get(name, ""))
        if not run.failed:
            tell = partial(_tell, say, f"run {number} of {len(order)}: {name} seed {seed}")
            recipe = replace(variants[name], seed=seed)
            run = _run(run, recipe, measured[name], data, out / run.folder, tell)
        runs.append(run)
    return sorted(runs, key=lambda run: list(variants).index(run.variant))


def _stated(
    result: Comparison, variants: Mapping[str, Recipe], tuned: Mapping[str, Tuned]
) -> Comparison:
    """A comparison with what its report says of the variants beside their numbers."""
    varied = [field for field in differing(variants) if not within(field, INDIFFERENT)]
    watched = [
        recipe.schedule.watch
        for recipe in variants.values()
        if recipe.schedule.watch and len(settings_of(recipe)) < 2
    ]
    return replace(
        result,
        varied=varied,
        allowed=[field for field in varied if not within(field, METHOD)],
        watched=", ".join(dict.fromkeys(watched)),
        tuned=dict(tuned),
        definitions={
            name: describe(metric, name)
            for recipe in variants.values()
            for name, metric in recipe.metrics.items()
        },
    )


def _first_scores(
    variant: str, runs: Sequence[Run], measured: Mapping[str, Data], out: Path
) -> Scores | None:
    """Of a variant's first finished run, for the DET and ROC curves; None where items are measured
    instead of trials.
    """
    run = next((one for one in runs if one.variant == variant and not one.failed), None)
    trials = measured[variant].trials
    if run is None or trials is None:
        return None
    listed, values = read_scores(out / run.folder / _SCORES, trials)
    assert listed.target is not None
    return Scores(values, listed.target)


def score_model(model: Path, recipe: Recipe, items: Sequence[Item], trials: Trials) -> Floats:
    """(P,) scores of the trials by the model of a run of `recipe` and the similarity that it was
    trained for. ValueError if trial items cannot be read.
    """
    loaded = load_embedder(model, recipe)
    loaded.embedder.to(pick_device())
    embeddings = embed_all(
        loaded.embedder, items, loaded.read, what="trial", workers=recipe.compute.workers
    )
    return score_trials(trials, embeddings, similarity=loaded.similarity)


def _run(
    run: Run, recipe: Recipe, measured: Data, data: Path, folder: Path, tell: Callable[[str], None]
) -> Run:
    """Train, score and measure one run, or take what is finished."""
    digest = hashlib.sha256(json.dumps(describe(recipe), sort_keys=True).encode()).hexdigest()
    result, scores_file = folder / _RESULT, folder / (TEST if recipe.measures_items else _SCORES)
    if result.is_file() and scores_file.is_file():
        kept = json.loads(result.read_text(encoding="utf-8"))
        if kept["recipe"] == digest and kept["scores"] == sha256(scores_file):
            tell("finished before")
            return replace(
                run,
                **{
                    name: kept[name] for name in ("values", "scores", "seconds", "items_per_second")
                },
            )
    tell("")
    threads = (
        torch.get_num_threads()
    )  # a recipe may set them; the next run must not depend on the one before
    try:
        model = fit(recipe, data=data, out=folder, resume=True)
        if measured.trials is None:
            values = _finite(metrics_of(recipe, run_test(recipe, folder, data)))
        else:
            scores = score_model(model, recipe, measured.items, measured.trials)
            values = _values(recipe, scores, measured.trials)
            write_scores(scores_file, measured.trials, scores)
    except _FAILURES as error:
        tell(f"failed: {error}")
        return replace(run, failed=str(error))
    finally:
        torch.set_num_threads(threads)
    log = read_log(folder)
    seconds = _seconds(log)
    rate = log[-1]["step"] * recipe.sampling.batch_size / seconds if seconds else None
    run = replace(
        run, values=values, scores=sha256(scores_file), seconds=seconds, items_per_second=rate
    )
    entry = {
        "schema": "likeness.run/1",
        "recipe": digest,
        "data": measured.digest,
        "scores": run.scores,
        "values": values,
    }
    write_json(
        result,
        entry | {"seconds": seconds, "items_per_second": rate, "version": likeness_version()},
    )
    tell(", ".join(f"{name} {value:.4f}" for name, value in values.items()))
    return run


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
        raise ValueError(
            f"{len(unusable)} metrics are not finite on the trials ({name_first(unusable)}); such "
            "a number cannot be compared"
        )
    return values


def _score(recipe: Recipe, folder: Path, *, data: Path) -> float:
    """The first metric of a recipe trained in a folder, on the recipe's own trials."""
    threads = torch.get_num_threads()
    try:
        model = fit(recipe, data=data, out=folder, resume=True)
        if not isinstance(recipe.measure, Verification):
            name = next(iter(recipe.metrics))
            return _finite(metrics_of(recipe, run_test(recipe, folder, data), only=name))[name]
        items, trials = recipe.measure.trials(data)
        scores = score_model(model, recipe, items, trials)
    finally:
        torch.set_num_threads(threads)
    return next(iter(_values(recipe, scores, trials).values()))


def _summary(
    variants: Mapping[str, Recipe],
    runs: Sequence[Run],
    measured: Mapping[str, Data],
    out: Path,
    reference: str,
) -> Comparison:
    """The numbers of the table from the score files, resampled."""
    metrics = list(dict.fromkeys(name for one in variants.values() for name in one.metrics))
    num_resamples = resamples_needed((len(variants) - 1) * len(metrics))
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in variants}
    counts: dict[str, dict[str, int | None]] = {}
    for run in (one for one in runs if not one.failed):
        data, recipe = measured[run.variant], variants[run.variant]
        if data.trials is None:
            found = per_item.read(out / run.folder / TEST)
            outcomes[run.variant][run.seed] = measure_items(
                found, recipe.metrics, num_resamples=num_resamples
            )
            counts[run.variant] = {"items": len(found.ids), found.over: found.num_groups}
        else:
            listed, values = read_scores(out / run.folder / _SCORES, data.trials)
            assert listed.target is not None
            assert data.subjects is not None
            outcomes[run.variant][run.seed] = measure(
                Scores(values, listed.target),
                recipe.metrics,
                data.subjects,
                num_resamples=num_resamples,
            )
            targets = int(listed.target.sum())
            counts[run.variant] = {
                "targets": targets,
                "nontargets": len(listed) - targets,
                "subjects": data.subjects.num_subjects,
            }
    mixed = [
        name
        for name, one in outcomes.items()
        if len({each.trial_list for each in one.values()}) > 1
    ]
    if mixed:
        raise ValueError(
            f"the seeds of {len(mixed)} variants were measured on different items "
            f"({name_first(mixed)}): the test's data has changed since the first; "
            "compare into another --out"
        )
    better = next(iter(variants.values())).schedule.higher_is_better
    cells, chosen = summarise(outcomes, metrics, reference=reference, higher_is_better=better)
    against = measured[chosen or next(iter(variants))]
    found_from = "" if against.subjects is None else against.subjects.found
    seeds = sorted({one.seed for one in runs})
    told = counts.get(chosen) or next(iter(counts.values()), {})
    return Comparison(
        list(variants),
        metrics,
        seeds,
        runs,
        cells,
        chosen,
        not reference,
        told,
        found_from,
        num_resamples=num_resamples,
        varied=(),
        allowed=(),
    )


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


def _tell(say: Callable[[str], None], doing: str, text: str) -> None:
    say(f"{doing}: {text}" if text else doing)
