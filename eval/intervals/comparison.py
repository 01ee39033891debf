"""Variants of a recipe over seeds: means, standard errors, and differences to a reference that are
paired by subject and by seed.

Two questions, two intervals. Would other SUBJECTS agree? The trained models are fixed, the subjects
are resampled; every run is measured on the same draws, so that a difference is taken draw by draw
(likeness.eval.intervals.bootstrap). Would other SEEDS agree? The subjects are fixed, the
differences of equal seeds have a t interval.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from likeness.eval.intervals import bootstrap, per_item
from likeness.eval.intervals.per_item import PerItem
from likeness.eval.intervals.subjects import subjects_of
from likeness.eval.results import bracketed, metric_label, metric_text, p_text
from likeness.eval.types import Floats, Ints, Scores, Trials

LEVEL = 0.95
K = TypeVar("K")
Interval = tuple[float, float]


@dataclass(frozen=True)
class Subjects:
    """The subjects of a trial list: pairs (P, 2) integers or None if unknown, one phrase on where
    they came from, and a digest of the list.
    """

    pairs: Ints | None
    source: str
    trial_list: str

    @property
    def num_subjects(self) -> int | None:
        return None if self.pairs is None else int(np.unique(self.pairs).size)


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished run: the value of each metric, and its (R,) values on resamples of the subjects,
    whose draws are equal for all runs of one trial_list.

    drawn: what the resamples rest on, see likeness.eval.intervals.bootstrap.bounds.
    """

    values: Mapping[str, float]
    replicates: Mapping[str, Floats]
    trial_list: str
    drawn: bootstrap.Drawn


@dataclass(frozen=True)
class Run:
    """What became of one run. failed: the reason, "" if it finished. scores: SHA-256 of its score
    file. seconds, items_per_second: of training.
    """

    variant: str
    seed: int
    folder: str
    failed: str = ""
    values: Mapping[str, float] | None = None
    scores: str = ""
    seconds: float | None = None
    items_per_second: float | None = None


@dataclass(frozen=True)
class Difference:
    """A variant's mean minus the reference's over the seeds that both finished, and what may be
    said of it.

    Each p is the level at which its interval touches 0. A system that has no seeds has no
    seed_interval, seed_note and seed_p.

    Attributes:
        value: The difference of the means.
        num_seeds: How many seeds both finished.
        interval: Over subjects, None where there is none.
        distinguishable: Whether each interval excludes 0; None where one is missing, or holds every
            possible difference, and the other excludes 0.
        seed_interval: Student's t over seeds, None where there is none.
        p: Of the interval over subjects.
        p_holm: Of both intervals, which is the larger p, after Holm (1979) over all comparisons of
            the table; None where an interval is missing.
        interval_note: Why there is no interval over subjects, or why it is not to be relied on.
        seed_p: Of the interval over seeds.
        seed_note: The note on the interval over seeds.
    """

    value: float
    num_seeds: int
    interval: Interval | None
    distinguishable: bool | None
    seed_interval: Interval | None
    p: float | None
    p_holm: float | None = None
    interval_note: str = ""
    seed_p: float | None = None
    seed_note: str = ""

    @property
    def joint_p(self) -> float | None:
        """The larger p of all intervals that were asked for, None where one is missing."""
        if self.p is None or not (self.seed_note or self.seed_interval):
            return self.p
        return None if self.seed_p is None else max(self.p, self.seed_p)


@dataclass(frozen=True)
class Cell:
    """A variant's metric. standard_error: over seeds, None with one seed. interval: of the mean
    over seeds, subjects resampled; None where there is none. interval_note: why, or why it is not
    to be relied on.
    """

    variant: str
    metric: str
    values: Mapping[int, float]
    mean: float
    standard_error: float | None
    interval: Interval | None
    difference: Difference | None = None
    interval_note: str = ""


@dataclass(frozen=True)
class Tuned:
    """What tuning chose: field -> value, its score on the validation classes, and every trial
    (settings, score or reason of failure).
    """

    metric: str
    chosen: Mapping[str, object]
    score: float
    trials: Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Comparison:
    """Everything that the tables, the JSON file and the page show. reference: "" if no run
    finished; picked: it is the best on these very trials.

    counts: of the test, "targets", "nontargets" and "subjects" (None if unknown), or "items" and
    what is drawn: "classes" (of which there are so many).
    """

    variants: Sequence[str]
    metrics: Sequence[str]
    seeds: Sequence[int]
    runs: Sequence[Run]
    cells: Sequence[Cell]
    reference: str
    picked: bool
    counts: Mapping[str, int | None]
    subjects_from: str
    num_resamples: int
    varied: Sequence[str]
    allowed: Sequence[str]
    watched: str = ""
    tuned: Mapping[str, Tuned] | None = None
    definitions: Mapping[str, object] | None = None  # metric -> its function and arguments

    @property
    def differences(self) -> dict[tuple[str, str], Difference]:
        """(variant, metric) -> its difference to the reference."""
        return {
            (cell.variant, cell.metric): cell.difference
            for cell in self.cells
            if cell.difference is not None
        }

    @property
    def num_comparisons(self) -> int:
        return sum(difference.p_holm is not None for difference in self.differences.values())

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.failed]


def subjects_behind(trials: Trials, labels: Mapping[str, str | None]) -> Subjects:
    """Subjects of the trials from the items' labels (id -> label) where they agree with the
    targets, else as `likeness.eval.intervals.subjects.subjects_of` finds them.
    """
    named = {item_id: str(label) for item_id, label in labels.items() if label is not None}
    try:
        of_sides, phrase = subjects_of(trials, named)[0], "labels of the items"
    except ValueError:
        of_sides, phrase = subjects_of(trials)
    pairs = None
    if of_sides is not None:
        pairs = np.stack([of_sides[0][trials.enrol], of_sides[1][trials.probe]], axis=1)
    return Subjects(pairs, phrase, trial_list_digest(trials))


def trial_list_digest(trials: Trials) -> str:
    """The SHA-256 of the ids, pairs and targets of a trial list."""
    digest = hashlib.sha256("\0".join([*trials.enrol_ids, "", *trials.probe_ids]).encode())
    for part in (trials.enrol, trials.probe, trials.target):
        digest.update(b"" if part is None else part.tobytes())
    return digest.hexdigest()


def measure(
    scores: Scores,
    metrics: Mapping[str, bootstrap.Metric],
    subjects: Subjects,
    *,
    num_resamples: int,
) -> Outcome:
    """A finished run's scores to the values of its metrics and their (num_resamples,) values on
    resamples of the subjects (of the trials if unknown).

    Errors: those of likeness.eval.intervals.bootstrap.bounds_of.
    """
    values = {
        name: float(metric(scores.targets, scores.nontargets)) for name, metric in metrics.items()
    }
    _, made = bootstrap.bounds_of(metrics, scores, subjects.pairs, num_resamples=num_resamples)
    drawn = bootstrap.drawn_from(scores.target, subjects.pairs)
    return Outcome(values, made, subjects.trial_list, drawn)


def measure_items(
    measured: PerItem, metrics: Mapping[str, per_item.Metric], *, num_resamples: int
) -> Outcome:
    """The same of what a classifier's or retrieval system's test measured on each item, on
    resamples of its groups.
    """
    values = {name: float(metric(measured.columns)) for name, metric in metrics.items()}
    made = per_item.resample(metrics, measured, num_resamples=num_resamples)
    return Outcome(values, made, measured.digest, measured.drawn)


def summarise(
    outcomes: Mapping[str, Mapping[int, Outcome]],
    metrics: Sequence[str],
    *,
    reference: str = "",
    best_by: str = "",
    higher_is_better: bool = False,
    over_seeds: bool = True,
) -> tuple[list[Cell], str]:
    """Cells of every variant and metric with differences to the reference, and the reference's
    name.

    outcomes: variant -> seed -> Outcome, empty for a variant without a finished run. reference: a
    variant; "" takes the one with the best mean of the metric best_by, by default the first. A mean
    that is NaN is never the best.
    over_seeds: whether other seeds are asked about, too; not of systems that were trained once.
    Variants that were measured on another trial list than the reference get no difference: nothing
    pairs them.

    >>> drawn = bootstrap.Drawn(40, "subjects")
    >>> one = Outcome({"eer": 0.1}, {"eer": np.array([0.1, 0.2])}, "list", drawn)
    >>> two = Outcome({"eer": 0.3}, {"eer": np.array([0.3, 0.5])}, "list", drawn)
    >>> cells, reference = summarise({"a": {0: one}, "b": {0: two}}, ["eer"])
    >>> reference, [round(end, 4) for end in cells[1].difference.interval]
    ('a', [-0.6985, 1.0])
    """
    cells = [
        _cell(variant, metric, runs)
        for variant, runs in outcomes.items()
        for metric in metrics
        if any(metric in outcome.values for outcome in runs.values())
    ]
    means = {
        cell.variant: cell.mean
        for cell in cells
        if cell.metric == (best_by or metrics[0]) and not np.isnan(cell.mean)
    }
    if not reference and means:
        reference = (max if higher_is_better else min)(means, key=means.__getitem__)
    against = outcomes.get(reference, {})
    differences = {
        i: each
        for i, cell in enumerate(cells)
        if cell.variant != reference
        and (each := _difference(cell.metric, outcomes[cell.variant], against, over_seeds))
    }
    found = after_holm(differences)
    return [replace(cell, difference=found.get(i)) for i, cell in enumerate(cells)], reference


def verdict(difference: Difference) -> str:
    """Whether a difference is distinguishable from none, in words."""
    if difference.distinguishable is None:
        return "unknown"
    if not difference.distinguishable:
        return "no"
    sure = difference.p_holm is not None and difference.p_holm < 1 - LEVEL
    return "yes, also after Holm" if sure else "yes, but not after Holm"


def difference_rows(
    reference: str, over: str, differences: Mapping[tuple[str, str], Difference], *, seeds: bool
) -> list[list[str]]:
    """The head and the rows of a table of differences; empty where there are none.

    Args:
        reference: What is subtracted.
        over: What was resampled, such as "subjects".
        differences: (variant or system, metric) -> its difference.
        seeds: Whether the interval over seeds has a column.
    """
    head = [f"minus {reference}", "metric", "difference", f"over {over}", "p"]
    head += ["over seeds", "p"] * seeds
    rows = [[*head, "p (Holm)", "distinguishable"]]
    for (name, metric), each in differences.items():
        found = [(each.interval, each.interval_note, each.p)]
        found += [(each.seed_interval, each.seed_note, each.seed_p)] * seeds
        row = [name, metric_label(metric), metric_text(metric, each.value, "+")]
        for ends, note, p in found:
            row += [bracketed(metric, ends, note, sign="+") or "-", p_text(p)]
        rows.append([*row, p_text(each.p_holm), verdict(each)])
    return rows if differences else []


def after_holm(differences: Mapping[K, Difference]) -> dict[K, Difference]:
    """The differences with `p_holm` over all of them."""
    tested = {key: p for key, of in differences.items() if (p := of.joint_p) is not None}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    return {key: replace(of, p_holm=adjusted.get(key)) for key, of in differences.items()}


def holm(p: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given (Holm 1979): the k-th smallest of m
    times m - k + 1, made monotone, at most 1.

    >>> [round(one, 4) for one in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p, kind="stable")
    stepped = [(len(p) - k) * p[i] for k, i in enumerate(order)]
    adjusted = np.empty(len(p))
    if len(p):
        adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return [float(value) for value in adjusted]


def _cell(variant: str, metric: str, runs: Mapping[int, Outcome]) -> Cell:
    values = {
        seed: outcome.values[metric] for seed, outcome in runs.items() if metric in outcome.values
    }
    each = np.array(list(values.values()))
    error = float(each.std(ddof=1) / np.sqrt(each.size)) if each.size > 1 else None
    mean = float(each.mean())
    drawn = next(iter(runs.values())).drawn
    ends, note = bootstrap.bounds(_mean_replicates(metric, runs, list(values)), mean, LEVEL, drawn)
    return Cell(variant, metric, values, mean, error, ends, interval_note=note)


def _difference(
    metric: str, runs: Mapping[int, Outcome], against: Mapping[int, Outcome], over_seeds: bool
) -> Difference | None:
    seeds = [
        seed
        for seed in runs
        if seed in against and metric in runs[seed].values and metric in against[seed].values
    ]
    if not seeds or any(runs[seed].trial_list != against[seed].trial_list for seed in seeds):
        return None
    ours, theirs = (np.array([of[seed].values[metric] for seed in seeds]) for of in (runs, against))
    draws = [_mean_replicates(metric, of, seeds) for of in (runs, against)]
    largest = 1.0 if bootstrap.is_share(ours, theirs, *draws) else np.inf
    each = _minus(ours, theirs)
    value, drawn = float(each.mean()), against[seeds[0]].drawn
    ends, note, p = bootstrap.paired_bounds(_minus(*draws), value, LEVEL, drawn, largest)
    made = Difference(value, len(seeds), ends, None, None, p, interval_note=note)
    if over_seeds:
        seed_ends, note, seed_p = _tested_over_seeds(each, largest)
        made = replace(made, seed_interval=seed_ends, seed_note=note, seed_p=seed_p)
    tests = (made.p, made.interval_note), (made.seed_p, made.seed_note)
    told = [p for p, note in tests if p is not None and bootstrap.NOTHING_KNOWN not in note]
    missed = any(p >= 1 - LEVEL for p in told)
    known = missed or len(told) == 1 + over_seeds
    return replace(made, distinguishable=not missed if known else None)


def _minus(ours: Floats, theirs: Floats) -> Floats:
    """The difference, which is 0 where it is no more than rounding."""
    rounding = 1e-12 * np.maximum(np.abs(ours), np.abs(theirs))
    difference: Floats = ours - theirs
    return np.where(np.abs(difference) <= rounding, 0.0, difference)


def _mean_replicates(metric: str, runs: Mapping[int, Outcome], seeds: Sequence[int]) -> Floats:
    """(R,) the metric on each resample of the subjects, averaged over the seeds."""
    mean: Floats = np.mean([runs[seed].replicates[metric] for seed in seeds], axis=0)
    return mean


def _tested_over_seeds(differences: Floats, largest: float) -> bootstrap.PairedBounds:
    """Student's t over (S,) differences of equal seeds."""
    n = differences.size
    if n < 2 or np.ptp(differences) <= 1e-12 * np.abs(differences).max():
        why = "one seed says" if n < 2 else "all seeds differ alike, which says"
        return bootstrap.PairedBounds(None, f"no interval: {why} nothing about other seeds", None)
    error = float(differences.std(ddof=1) / np.sqrt(n))
    ends, p = bootstrap.t_test(float(differences.mean()), error, n - 1, LEVEL, largest)
    return bootstrap.PairedBounds(ends, bootstrap.complete_note("", ends, -largest, largest), p)
