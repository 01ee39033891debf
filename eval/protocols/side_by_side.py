"""Several verification systems side by side: each measured, those on the same trials set against a
reference, and error rates by groups of subjects.
"""

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.intervals import paired, uncertainty
from likeness.eval.intervals.bootstrap import Bounds, drawn_from, draws_of
from likeness.eval.intervals.comparison import Outcome
from likeness.eval.intervals.paired import Paired
from likeness.eval.intervals.subjects import subjects_of
from likeness.eval.items.levels import labels_of_ids
from likeness.eval.metrics import groups
from likeness.eval.metrics.failures import Failures, fte_by_group, generalised_rates
from likeness.eval.metrics.self_matches import trial_counts
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.metrics.verification import measured_eer, num_allowed, sort_scores
from likeness.eval.option import if_option
from likeness.eval.progress import step
from likeness.eval.results import Result, metric_beside
from likeness.eval.types import Bools, Ints, Scores, Trials


@dataclass(eq=False)
class Compared:
    """What was measured of several systems.

    Attributes:
        results: Of all systems, in the order of the tables.
        scores: System -> its scores; those on the trials of the reference in its order.
        trials: System -> the trials of its scores.
        grouped: Error rates by groups, one entry per system; empty without groups.
        paired: The differences to the reference; None where there are none.
        subject_of: Id -> name of its subject, as far as it is known.
        subjects: System -> (P, 2) the numbers of the subjects of both sides, where they are known.
    """

    results: list[Result]
    scores: dict[str, Scores]
    trials: dict[str, Trials]
    grouped: list[groups.Grouped] = field(default_factory=list)
    paired: Paired | None = None
    subject_of: dict[str, str] = field(default_factory=dict)
    subjects: dict[str, Ints] = field(default_factory=dict)

    def alone(self, system: str) -> "Compared":
        """What was measured of one system.

        Raises:
            KeyError: There is no system of that name.
        """
        return Compared(
            [result for result in self.results if result.system == system],
            {system: self.scores[system]},
            {name: trials for name, trials in self.trials.items() if name == system},
            [of for of in self.grouped if of.system == system],
            subject_of=self.subject_of,
            subjects={name: pairs for name, pairs in self.subjects.items() if name == system},
        )

    def more_json(self) -> dict[str, Any]:
        """What the JSON of the results holds besides them."""
        more: dict[str, Any] = {}
        if self.grouped:
            more["groups"] = [asdict(system) for system in self.grouped]
        if self.paired is not None:
            more |= paired.to_json(self.paired)
        return more


def check_labels(name: str, target: Bools | None) -> None:
    """Refuses trials without labels, or that are all targets or all nontargets.

    Args:
        name: What the error calls the system.
        target: (P,) the labels.

    Raises:
        LikenessError: The trials are such ones.

    >>> check_labels("x.txt", np.array([True, True]))
    Traceback (most recent call last):
    ...
    likeness.LikenessError: x.txt: all 2 are target trials; give both kinds
    """
    if target is None:
        remedy = f"give the trial list that has them{if_option(', by --trials')}"
        remedy += if_option(", or add --all-targets where each pair is of one subject")
        raise LikenessError(f"{name}: it has no labels; {remedy}")
    if target.all() or not target.any():
        kind = "target" if target.any() else "nontarget"
        raise LikenessError(f"{name}: all {target.size} are {kind} trials; give both kinds")


@step("measuring")
def evaluate_together(
    systems: Mapping[str, tuple[Trials, Scores]],
    settings: VerificationSettings,
    *,
    subject_of: Mapping[str, str] | None = None,
    groupings: Mapping[str, Mapping[str, str]] | None = None,
    quality: Mapping[str, Mapping[str, float]] | None = None,
    failures: Failures | None = None,
) -> Compared:
    """Measures several systems on lists of trials; those on the same trials are compared with the
    first on the same resamples.

    Args:
        systems: Name -> the labelled trials and their scores.
        settings: What is measured and by which rule.
        subject_of: Id -> subject, for intervals over subjects, see `subjects_of`.
        groupings: What the groups are, such as "sex" -> id or subject -> group. The error rates are
            then measured by group as well.
        quality: System -> id -> its quality, such as the norm. How well it says which trials are
            decided wrongly is then measured as well, see `likeness.eval.intervals.uncertainty`.
        failures: What of the list could not be compared. The generalised rates are then measured
            as well, see `likeness.eval.metrics.failures`.

    Raises:
        LikenessError: Groups are asked for where no subjects are known; and as `subjects_of`,
            `measure_system` and `likeness.eval.metrics.groups.group_sides`.

    >>> trials = Trials(("a/1", "b/1"), ("a/2", "b/2"), [0, 0, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1])
    >>> good, bad = (Scores(values, trials.target) for values in ([3, 1, 1, 3], [3, 4, 1, 2]))
    >>> systems = {"good": (trials, good), "bad": (trials, bad)}
    >>> compared = evaluate_together(systems, VerificationSettings((), fars=(), num_resamples=0))
    >>> {result.system: result.value for result in compared.results if result.metric == "eer"}
    {'good': 0.0, 'bad': 0.5}
    """
    reference, known = next(iter(systems)), dict(subject_of or {})
    trials = {name: listed for name, (listed, _) in systems.items()}
    scores = {name: measured for name, (_, measured) in systems.items()}
    unpaired = _in_one_order(scores, trials, reference)
    name_equal(scores)
    compared = Compared([], scores, trials, subject_of=known)
    outcomes: dict[str, Outcome] = {}
    for name, own in scores.items():
        source = _find_subjects(compared, name, subject_of, warns=settings.num_resamples > 0)
        subjects = compared.subjects.get(name)
        results, draws = measure_system(
            own, settings, subjects=subjects, subjects_from=source, system=name
        )
        if about := trial_counts(trials[name]):
            results = [replace(of, conventions=about | dict(of.conventions)) for of in results]
        compared.results += results
        if groupings:
            _compare_groups(compared, name, settings, groupings, failures)
        if quality is not None:
            compared.results += _rated_decisions(
                results[0], trials[name], own, quality[name], settings, subjects
            )
        if failures is not None:
            compared.results += generalised_rates(failures, own, settings, results[0], subject_of)
        if draws is not None:
            values = {of.metric: of.value for of in results if of.metric in draws}
            trial_list, drawn = name if name in unpaired else "", drawn_from(own.target, subjects)
            outcomes[name] = Outcome(values, draws, trial_list, drawn)
    if len(systems) > 1 and (outcomes or unpaired):
        over = "subjects" if len(compared.subjects) == len(systems) else "trials"
        compared.paired = paired.differences(reference, outcomes, unpaired, over)
    return compared


def _find_subjects(
    compared: Compared, name: str, subject_of: Mapping[str, str] | None, *, warns: bool
) -> str:
    """Adds the subjects of a system's trials, where they are known; says where they come from."""
    listed = compared.trials[name]
    numbers, source = subjects_of(listed, subject_of)
    if numbers is not None:
        first, second = (of.astype(np.int32) for of in numbers)
        sides = first[listed.enrol], second[listed.probe]
        compared.subjects[name] = np.stack(sides, axis=1)
        compared.subject_of |= {} if subject_of else _named(listed, numbers, source)
    elif warns:
        text = f"{name}: intervals are over trials, so they are too narrow; subjects are {source}"
        warnings.warn(f"{text}: correct the labels, or give the subjects", stacklevel=5)
    return source


def _compare_groups(
    compared: Compared,
    name: str,
    settings: VerificationSettings,
    groupings: Mapping[str, Mapping[str, str]],
    failures: Failures | None,
) -> None:
    """Adds the error rates of a system by groups."""
    if name not in compared.subjects:
        raise LikenessError(f"{name}: groups need subjects; give lists by --subjects")
    for by, group_of in groupings.items():
        sides = groups.group_sides(compared.trials[name], group_of, compared.subject_of)
        scores, subjects = compared.scores[name], compared.subjects[name]
        system = groups.evaluate_groups(name, scores, subjects, *sides, settings=settings)
        fte: dict[str, Any] = {}
        if failures is not None:
            fte = fte_by_group(failures, group_of, compared.subject_of, settings)
        compared.grouped.append(replace(system, by=by, fte=fte))


def _in_one_order(
    scores: dict[str, Scores], trials: dict[str, Trials], reference: str
) -> dict[str, int]:
    """Brings the scores on the trials of the reference into its order, so that all are measured on
    the same resamples; gives the systems on other trials, and how many of them differ.
    """
    unpaired = dict[str, int]()
    for name in [name for name in scores if name != reference]:
        order = paired.matching_order(trials[reference], trials[name])
        if order is None:
            unpaired[name] = paired.num_differing(trials[reference], trials[name])
        else:
            scores[name] = Scores(scores[name].values[order], scores[reference].target)
            trials[name] = trials[reference]
    return unpaired


def name_equal(scores: Mapping[str, Scores]) -> None:
    """Names systems whose scores are the same, in the same order."""
    first: dict[bytes, str] = {}
    for name, of in scores.items():
        other = first.setdefault(of.values.tobytes(), name)
        if other != name:
            text = f"{name} and {other} have the same scores in all {len(of):,} trials"
            warnings.warn(f"{text}; give the scores of two systems", stacklevel=4)


def _named(trials: Trials, numbers: tuple[Ints, Ints], source: str) -> dict[str, str]:
    """Id -> subject. Its name is the first folder of the ids where the subjects come from there,
    else the first of its ids: numbers begin anew in each list.
    """
    by_folder = source.startswith("first path component")
    sides = ((trials.enrol_ids, numbers[0]), (trials.probe_ids, numbers[1]))
    first: dict[int, str] = {}
    return {
        name: folder if by_folder else f"subject of {first.setdefault(number, name)}"
        for ids, of_side in sides
        for name, number, folder in zip(ids, of_side.tolist(), labels_of_ids(ids), strict=True)
    }


def _rated_decisions(
    of: Result,
    trials: Trials,
    scores: Scores,
    quality: Mapping[str, float],
    settings: VerificationSettings,
    subjects: Ints | None,
) -> list[Result]:
    """How well a quality says which trials are decided wrongly at the threshold of the EER.

    Args:
        of: A result of the same system, whose counts and conventions hold here, too.
        trials: P trials.
        scores: Their scores.
        quality: Id -> its quality. That of a trial is the lower one of its two sides.
        settings: The intervals that are asked for.
        subjects: (P, 2) the subjects of both sides, None where they are unknown.

    Raises:
        LikenessError: Ids have no quality. It is not finite.
    """
    values, meaning = uncertainty.trial_quality(trials, quality, "quality")
    threshold = measured_eer(sort_scores(scores.targets, scores.nontargets)).threshold
    start = float(np.sort(scores.targets)[num_allowed(uncertainty.START_FNMR, scores.targets.size)])
    missed = uncertainty.errors_at(scores, start)
    auroc = uncertainty.drawn_auroc(values, uncertainty.errors_at(scores, threshold))

    def rated(*rows: NDArray[Any]) -> float:
        drawn = np.concatenate(rows).astype(np.int64)
        return auroc(np.bincount(drawn, minlength=values.size))

    def area(target_rows: NDArray[Any], _: NDArray[Any]) -> float:
        rows = target_rows.astype(np.int64)
        return uncertainty.discard_area(values[rows], missed[rows])

    edc = f"edc_pauc({uncertainty.START_FNMR:g})"
    intervals: dict[str, Bounds] = {}
    if settings.num_resamples:
        metrics = {"quality_auroc": rated, edc: area}
        intervals = uncertainty.bounds_over_rows(
            metrics, scores.target, subjects, **draws_of(settings)
        )
    stated = {
        "quality": meaning,
        "risk": "share of wrong decisions at the threshold of the EER, which stays fixed",
        "rule": uncertainty.AUROC_RULE,
    }
    every, ends = np.arange(len(scores)), intervals.get("quality_auroc")
    result = metric_beside(of, "quality_auroc", rated(every), ends, threshold, **stated)
    rule = f"up to {uncertainty.MOST_DISCARDED:.0%} of the target trials discarded by quality"
    value = area(np.flatnonzero(scores.target), every)
    beside = metric_beside(of, edc, value, intervals.get(edc), start, rule=rule)
    return [beside] if np.isnan(result.value) else [result, beside]
