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

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

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
from eval.errors import LikenessError
from eval.formats.provenance import likeness_version
from eval.formats.trials import read_scores
from eval.progress import tracked
from eval.reports import comparison
from eval.types import Scores, name_first
from toolkit.console import Interrupted
from toolkit.models.parts import describe
from toolkit.training.compared_run import SCORES, first_metric, train_and_measure
from toolkit.training.lock import under_lock
from toolkit.training.log import read_log
from toolkit.training.measure import TEST, settings_of
from toolkit.training.recipe import Recipe
from toolkit.training.start import ReadInitial, read_initial
from toolkit.training.study import Score, Untunable, tune
from toolkit.training.tune import Ranges, check_ranges, on_validation_classes
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
        overrides: What the command line set, which cannot be tuned too.
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
    check_variants(variants, num_seeds, terms.reference, terms.allow_different)
    searched = _searched(variants, search, terms, data)
    measured = data_of(variants, data)
    plan_file = out / "plan.json"
    keep_plan(plan_file, _without(variants, searched), measured)
    score = partial(first_metric, data=data, read_initial=read_initial)
    train = partial(train_and_measure, data=data, read_initial=read_initial)
    try:
        chosen, tuned, untunable = _tune(variants, searched, search, measured, score, out, say)
        keep_plan(plan_file, _without(chosen, untunable), measured)
        runs = _train_all(chosen, untunable, num_seeds, measured, train, out, say)
    except (Interrupted, KeyboardInterrupt):
        raise Interrupted(
            f"stopped by Ctrl-C; {out} is whole, and the same command goes on"
        ) from None
    result = _stated(_summary(chosen, runs, measured, out, terms.reference), chosen, tuned)
    logs = {(run.variant, run.seed): read_log(out / run.folder) for run in runs}
    scores = _first_scores(chosen, runs, measured, out)
    version = likeness_version()
    comparison.write(out, result, logs, command=terms.command, version=version, scores=scores)
    return result


def _without(variants: Mapping[str, Recipe], names: Collection[str]) -> dict[str, Recipe]:
    return {name: recipe for name, recipe in variants.items() if name not in names}


def _searched(
    variants: Mapping[str, Recipe], search: Search | None, terms: Terms, data: Path
) -> dict[str, Ranges]:
    """The ranges of the variants that are tuned, checked."""
    if search is None:
        return {}
    searched = {name: ranges for name, ranges in search.ranges.items() if name in variants}
    if not searched:
        raise LikenessError(
            "--tune: the recipe file states no RANGES for these variants; add RANGES = {variant: "
            "{field: Range(low, high)}} (toolkit.training.tune)"
        )
    for name, ranges in searched.items():
        check_ranges(variants[name], ranges, name, search.overrides)
        changed = [field for field in ranges if not within(field, METHOD)]
        refuse(changed, terms.allow_different, f"RANGES of {name} change")
        on_validation_classes(variants[name]).items(data)  # too few classes for a validation split
    return searched


def _tune(
    variants: Mapping[str, Recipe],
    searched: Mapping[str, Ranges],
    search: Search | None,
    measured: Mapping[str, Data],
    score: Score,
    out: Path,
    say: Callable[[str], None],
) -> tuple[dict[str, Recipe], dict[str, Tuned], dict[str, str]]:
    """The variants with the settings that the search chose, what it found, and why it failed for
    those where every trial failed.
    """
    chosen, tuned, untunable = dict(variants), dict[str, Tuned](), dict[str, str]()
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
    return chosen, tuned, untunable


def _train_all(
    variants: Mapping[str, Recipe],
    untunable: Mapping[str, str],
    num_seeds: int,
    measured: Mapping[str, Data],
    train: Callable[..., Run],
    out: Path,
    say: Callable[[str], None],
) -> list[Run]:
    """Train and measure every variant with every seed; in the order of the variants.

    They are trained seed by seed, so that a stopped comparison has some runs of all variants.
    """
    runs: list[Run] = []
    order = [(name, seed) for seed in range(num_seeds) for name in variants]
    for number, (name, seed) in enumerate(tracked(order, "comparing", unit="runs"), 1):
        run = Run(name, seed, f"{name}/seed-{seed}", failed=untunable.get(name, ""))
        if not run.failed:
            tell = partial(_tell, say, f"run {number} of {len(order)}: {name} seed {seed}")
            recipe = replace(variants[name], seed=seed)
            folder = out / run.folder
            run = train(run, recipe, measured[name], folder=folder, tell=tell)
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
    variants: Collection[str], runs: Sequence[Run], measured: Mapping[str, Data], out: Path
) -> dict[str, Scores]:
    """The scores of each variant's first finished run, for the DET and ROC curves; none where
    items are measured instead of trials.
    """
    scores: dict[str, Scores] = {}
    for name in variants:
        run = next((run for run in runs if run.variant == name and not run.failed), None)
        trials = measured[name].trials
        if run is not None and trials is not None:
            scored, values = read_scores(out / run.folder / SCORES, trials)
            assert scored.target is not None
            scores[name] = Scores(values, scored.target)
    return scores


def _summary(
    variants: Mapping[str, Recipe],
    runs: Sequence[Run],
    measured: Mapping[str, Data],
    out: Path,
    reference: str,
) -> Comparison:
    """The numbers of the table from the score files, resampled."""
    metrics = list(dict.fromkeys(name for recipe in variants.values() for name in recipe.metrics))
    num_resamples = resamples_needed((len(variants) - 1) * len(metrics))
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in variants}
    counts: dict[str, dict[str, int | None]] = {}
    for run in runs:
        if not run.failed:
            outcomes[run.variant][run.seed], counts[run.variant] = _outcome(
                variants[run.variant], measured[run.variant], out / run.folder, num_resamples
            )
    mixed = [
        name
        for name, by_seed in outcomes.items()
        if len({outcome.trial_list for outcome in by_seed.values()}) > 1
    ]
    if mixed:
        raise LikenessError(
            f"the seeds of {len(mixed)} variants were measured on different items "
            f"({name_first(mixed)}): the test's data has changed since the first; "
            "compare into another --out"
        )
    better = next(iter(variants.values())).schedule.higher_is_better
    cells, chosen = summarise(outcomes, metrics, reference=reference, higher_is_better=better)
    subjects = measured[chosen or next(iter(variants))].subjects
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
        num_resamples=num_resamples,
        varied=(),
        allowed=(),
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


def _tell(say: Callable[[str], None], doing: str, text: str) -> None:
    say(f"{doing}: {text}" if text else doing)
