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
import os
import re
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
    Subjects,
    Tuned,
    measure,
    measure_items,
    resamples_needed,
    subjects_behind,
    summarise,
)
from eval.formats.files import atomic_path
from eval.formats.provenance import likeness_version, sha256
from eval.formats.trials import read_scores, write_scores
from eval.reports import comparison
from eval.similarity import score_trials
from eval.types import Floats, Scores, Trials, name_first
from toolkit.console import Interrupted
from toolkit.data.batch import Item
from toolkit.models.embed import embed_all, pick_device
from toolkit.models.parts import describe
from toolkit.training import recipe as recipes
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
from toolkit.training.moved import place
from toolkit.training.recipe import Recipe, Verification, current
from toolkit.training.train import fit
from toolkit.training.tune import Ranges, check_ranges, on_validation_classes, tune

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
    "schedule.warmup_steps",
    "schedule.decay",
    "schedule.halve_after",
    "estimate_views",
)
INDIFFERENT = (
    "seed",
    "schedule.save_every",
    "schedule.keep_best",
    "compute.workers",
    "compute.prefetch",
    "compute.threads",
    "compute.cache",
)
GROUPS = ("schedule", "compute", "parallel", "measure")  # whose fields are compared one by one
_RESULT, _SCORES = "result.json", "scores.txt"
_FAILURES = (
    ValueError,
    RuntimeError,
    OSError,
)  # of one run: a loss that is NaN, unreadable items, memory or disk that is full


@dataclass(frozen=True)
class Data:
    """What the runs of a variant are trained and measured on. digest: of the training items' ids
    and labels, and of the trials.

    items, trials, subjects: None for a recipe that measures items, which it finds itself.
    """

    digest: str
    items: Sequence[Item]
    trials: Trials | None
    subjects: Subjects | None


def load_variants(
    file: str, names: Sequence[str] = (), overrides: Sequence[str] = ()
) -> tuple[dict[str, Recipe], dict[str, Ranges]]:
    """The variants of RECIPE.py (all, or those named) with the overrides applied, and its RANGES.

    Of a file whose variants are called GROUP.NAME, `RECIPE.py:GROUP` takes those of one group, by
    their NAME alone.

    ValueError as toolkit.training.recipe.load and override say; for a file of several groups of
    which none is named.
    """
    group = ""
    if ":" in file and not Path(file).is_file():
        file, _, group = file.partition(":")
    found = recipes.read(file)
    if any(one.partition("=")[0].strip() == "seed" for one in overrides):
        raise ValueError(
            "override seed: compare runs the seeds 0 to N - 1; say how many with --seeds N"
        )
    listed, ranges = found["RECIPES"], found.get("RANGES", {})
    groups = list(dict.fromkeys(name.partition(".")[0] for name in listed))
    if group:
        listed, ranges = recipes.of_group(listed, group), recipes.of_group(ranges, group)
        if not listed:
            raise ValueError(
                f"recipe {file}:{group}: compare takes RECIPE.py alone; name variants with "
                f"--variants {group}"
            )
    elif not names and len(groups) > 1 and all("." in name for name in listed):
        raise ValueError(
            f"{file} has variants of {len(groups)} data sets, which cannot be compared; name one, "
            f"as in {file}:{groups[0]}, of {', '.join(groups)}"
        )
    chosen = {
        name: recipes.override(recipes.choose(file, listed, name)[0], list(overrides))
        for name in dict.fromkeys(names or listed)
    }
    return chosen, dict(ranges)


@under_lock
def compare(
    variants: Mapping[str, Recipe],
    *,
    num_seeds: int,
    data: Path,
    out: Path,
    reference: str = "",
    allow_different: Sequence[str] = (),
    ranges: Mapping[str, Ranges] | None = None,
    num_tuning_trials: int = 0,
    overrides: Sequence[str] = (),
    command: str = "",
    say: Callable[[str], None] = print,
) -> Comparison:
    """Train every variant with the seeds 0 to num_seeds - 1 into `out`, score the recipe's trials,
    compare; what is finished there is not done again.

    A seed gives every variant the same batches and views: variants that differ in more than METHOD
    are refused, unless the field is in `allow_different`. A run that fails (its loss becomes NaN,
    say) is reported with its reason, the others go on, and the next call tries it again from its
    last checkpoint.
    reference: what the others are set against, "" = the best mean of the first metric.
    num_tuning_trials: first search `ranges` (variant -> field -> Range or Choice) on validation
    classes (toolkit.training.tune); overrides: what the command line set, which cannot be tuned
    too. command: shown in the report. ValueError before the first step for anything wrong with
    variants, data or folder; Interrupted after Ctrl-C, with all whole: the same call goes on.
    """
    allow_different = [place(one) for one in allow_different]
    _check(variants, num_seeds, reference, allow_different)
    searched = (
        {name: one for name, one in (ranges or {}).items() if name in variants}
        if num_tuning_trials
        else {}
    )
    if num_tuning_trials and not searched:
        raise ValueError(
            "tuning: the recipe file states no RANGES for these variants; add RANGES = {variant: "
            "{field: Range(low, high)}} (toolkit.training.tune)"
        )
    for name, one in searched.items():
        check_ranges(variants[name], one, name, overrides)
        _refuse(
            [field for field in map(place, one) if not _within(field, METHOD)],
            allow_different,
            f"RANGES of {name} change",
        )
        on_validation_classes(variants[name]).items(data)  # too few classes for a validation split
    measured = _data(variants, data)
    _keep_plan(
        out / "plan.json",
        {name: one for name, one in variants.items() if name not in searched},
        measured,
    )
    chosen, tuned, runs = dict(variants), dict[str, Tuned](), list[Run]()
    untunable: dict[str, str] = {}
    search = partial(
        tune,
        num_trials=num_tuning_trials,
        out=out / "tune",
        score=partial(_score, data=data),
        say=say,
    )
    plan = [
        (name, seed) for seed in range(num_seeds) for name in variants
    ]  # seed by seed, so that a stopped comparison has some of all
    try:
        for name, one in searched.items():
            try:
                chosen[name], tuned[name] = search(
                    variants[name], one, variant=name, data=measured[name].digest
                )
            except RuntimeError as error:
                untunable[name] = str(error)
        _keep_plan(
            out / "plan.json",
            {name: one for name, one in chosen.items() if name not in untunable},
            measured,
        )
        for number, (name, seed) in enumerate(plan, 1):
            run = Run(name, seed, f"{name}/seed-{seed}", failed=untunable.get(name, ""))
            told = f"run {number} of {len(plan)}: {name} seed {seed}"
            runs.append(
                run
                if run.failed
                else _run(
                    run,
                    replace(chosen[name], seed=seed),
                    measured[name],
                    data,
                    out / run.folder,
                    partial(_tell, say, told),
                )
            )
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(
            f"stopped by Ctrl-C; {out} is whole, and the same command goes on"
        ) from None
    runs.sort(key=lambda one: list(variants).index(one.variant))
    differing = [field for field in _differing(chosen) if not _within(field, INDIFFERENT)]
    result = replace(
        _summary(chosen, runs, measured, out, reference),
        varied=differing,
        allowed=[field for field in differing if not _within(field, METHOD)],
        watched=", ".join(
            dict.fromkeys(
                one.schedule.watch
                for one in chosen.values()
                if one.schedule.watch and len(settings_of(one)) < 2
            )
        ),
        tuned=tuned,
        definitions={
            name: describe(metric, name)
            for one in chosen.values()
            for name, metric in one.metrics.items()
        },
    )
    logs = {(one.variant, one.seed): read_log(out / one.folder) for one in runs}
    shown = {
        name: found
        for name in chosen
        if (found := _first_scores(name, runs, measured, out)) is not None
    }
    comparison.write(out, result, logs, command=command, version=likeness_version(), scores=shown)
    return result


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


def _check(
    variants: Mapping[str, Recipe], num_seeds: int, reference: str, allow_different: Sequence[str]
) -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(
            "compare runs in one process; start it without torchrun, or train the runs one by one "
            "with `likeness train`"
        )
    if num_seeds < 1:
        raise ValueError(f"--seeds {num_seeds}: at least 1 is needed, 2 for a standard error")
    if reference and reference not in variants:
        raise ValueError(
            f"--reference {reference!r} is none of the variants compared: {', '.join(variants)}"
        )
    unfit = [
        name
        for name in variants
        if not re.fullmatch(r"\w[\w.+=-]*", name) or name in ("tune", "report")
    ]
    if unfit:
        raise ValueError(
            f"{len(unfit)} variants cannot name a folder ({name_first(unfit)}); use letters, "
            "digits and _ . + = -, and neither tune nor report"
        )
    unmeasured = [name for name, one in variants.items() if not one.metrics]
    if unmeasured:
        raise ValueError(
            f"{len(unmeasured)} variants have no measure or no metrics "
            f"({name_first(unmeasured)}); a comparison needs both"
        )
    if len({type(one.measure) for one in variants.values()}) > 1:
        raise ValueError(
            "the variants are measured in different ways, "
            f"{', '.join(sorted({type(one.measure).__name__ for one in variants.values()}))}; "
            "choose among them with --variants"
        )
    known = set().union(*(_flat(describe(one)) for one in variants.values())) | {*GROUPS}
    unknown = [field for field in allow_different if field not in known]
    if unknown:
        raise ValueError(
            f"--allow-different: {len(unknown)} are no fields of a recipe ({name_first(unknown)}); "
            "such as items, sampling, schedule.steps are"
        )
    _refuse(
        [field for field in _differing(variants) if not _within(field, METHOD + INDIFFERENT)],
        allow_different,
        "the variants differ in",
    )


def _refuse(differing: Sequence[str], allowed: Sequence[str], what: str) -> None:
    found = [field for field in differing if not _within(field, allowed)]
    if found:
        raise ValueError(
            f"{what} {', '.join(found)}, so that the comparison would not be of methods alone: "
            "make them equal, choose among the variants with --variants, "
            f"or say --allow-different {','.join(found)}"
        )


def _within(field: str, names: Sequence[str]) -> bool:
    return field in names or field.partition(".")[0] in names


def _differing(variants: Mapping[str, Recipe]) -> list[str]:
    """Names of the fields in which the recipes differ; those of GROUPS one by one."""
    flat = [_flat(describe(one)) for one in variants.values()]
    return sorted(name for name in flat[0] if any(one[name] != flat[0][name] for one in flat[1:]))


def _flat(description: dict[str, Any]) -> dict[str, Any]:
    """A description whose GROUPS are taken apart: {"schedule.steps": 100, ...}."""
    whole = {name: one for name, one in description.items() if name not in GROUPS}
    return whole | {
        f"{group}.{name}": one
        for group in GROUPS
        for name, one in (description[group] or {}).items()
    }


def _data(variants: Mapping[str, Recipe], data: Path) -> dict[str, Data]:
    """Items, trials and subjects of every variant; read once where the variants agree, as they
    normally do.
    """
    known: dict[str, Data] = {}
    found: dict[str, Data] = {}
    for name, recipe in variants.items():
        stated = json.dumps(
            [
                describe(recipe.items, "items"),
                _tested(recipe),
            ],
            sort_keys=True,
        )
        if stated not in known:
            trained = json.dumps([[item.id, item.label] for item in recipe.items(data)])
            if not isinstance(recipe.measure, Verification):
                tested = [
                    [[item.id, item.label] for item in items]
                    for items in items_of(settings_of(recipe)[-1], data).values()
                ]
                stands_for = trained + json.dumps([_tested(recipe), tested], sort_keys=True)
                known[stated] = Data(
                    hashlib.sha256(stands_for.encode()).hexdigest(), (), None, None
                )
            else:
                items, trials = recipe.measure.trials(data)
                if trials.target is None:
                    raise ValueError(
                        f"the trials of {name} have no labels; a comparison needs target and "
                        "nontarget trials"
                    )
                subjects = subjects_behind(trials, {item.id: item.label for item in items})
                known[stated] = Data(
                    hashlib.sha256((trained + subjects.trial_list).encode()).hexdigest(),
                    items,
                    trials,
                    subjects,
                )
        found[name] = known[stated]
    return found


def _tested(recipe: Recipe) -> Any:
    """What the recipe's measure tests, as JSON values: without metrics and validation."""
    described = describe(recipe.measure, "measure")
    return {key: one for key, one in described.items() if key not in ("metrics", "validation")}


def _keep_plan(path: Path, variants: Mapping[str, Recipe], measured: Mapping[str, Data]) -> None:
    """Refuse to mix two comparisons in one folder; variants may be added."""
    stated = {
        name: {
            "recipe": json.loads(json.dumps(describe(replace(one, seed=0)))),
            "data": measured[name].digest,
        }
        for name, one in variants.items()
    }
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    changed: dict[str, list[str]] = {}
    for name in stated.keys() & before.keys():
        old, new = _flat(current(before[name]["recipe"])), _flat(stated[name]["recipe"])
        differ = sorted(
            field for field in old.keys() | new.keys() if old.get(field) != new.get(field)
        )
        if differ or before[name]["data"] != stated[name]["data"]:
            changed[name] = differ or ["the data"]
    if changed:
        first = min(changed)
        raise ValueError(
            f"{path.parent} holds runs of other recipes or data: {len(changed)} variants differ "
            f"({first}: {', '.join(changed[first])}); "
            "compare with the same recipes, overrides and data, or choose another --out"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_json(path, before | stated)


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
    _write_json(
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


def _write_json(path: Path, value: Any) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _tell(say: Callable[[str], None], doing: str, text: str) -> None:
    say(f"{doing}: {text}" if text else doing)
