"""Scores of target trials alone, such as of prompts and their clones: how similar both sides are.

Without nontarget trials there is no error rate. What can be measured is the mean and the median
score, and the share that a threshold from elsewhere accepts.
"""

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import File
from likeness.eval.intervals import paired
from likeness.eval.intervals.bootstrap import Bounds, bounds, draws_of
from likeness.eval.intervals.comparison import Outcome
from likeness.eval.intervals.per_item import Metric, PerItem, mean, resample
from likeness.eval.intervals.subjects import CONNECTED, subjects_of
from likeness.eval.metrics.self_matches import trial_counts
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.option import if_option
from likeness.eval.progress import step
from likeness.eval.protocols.side_by_side import Compared, name_equal
from likeness.eval.results import Conventions, Result, add_bounds
from likeness.eval.scoring.origin import Origin, contradictions
from likeness.eval.scoring.threshold_files import Rule, find
from likeness.eval.scoring.thresholds import Thresholds
from likeness.eval.types import Ints, Scores, Trials, name_first, respell

PairBy = Literal["enrol", "probe"]
Limits = Mapping[str, tuple[float, str]]
"""Metric -> a threshold from elsewhere, and where it comes from."""


def limits_for(
    threshold: float | None, thresholds: File | Thresholds | None, origins: Collection[Any]
) -> Limits:
    """The thresholds at which accepted target trials are counted.

    Args:
        threshold: A number of the user's own.
        thresholds: Stored ones, or the model or file that has them.
        origins: What gave the scores of each system, None where nobody knows.

    Raises:
        LikenessError: The stored ones are of other scores, or there are none.
    """
    number = Rule(threshold).threshold  # which refuses what is not finite
    own = {} if number is None else {"share_accepted": (number, "a number of your own")}
    if thresholds is None:
        return own
    if isinstance(thresholds, Thresholds):
        entries: tuple[Thresholds, ...] = (thresholds,)
    else:
        is_file = Path(thresholds).suffix.lower() == ".json"
        entries = find(str(thresholds), thresholds if is_file else None)
    for entry in entries:
        if all(origin and _are_alike(entry.origin, origin) for origin in origins):
            at = {"eer" if of.at == "eer" else f"{of.far:g}": of for of in entry.points}
            return own | {
                f"share_accepted({name})": (of.value, entry.source(of)) for name, of in at.items()
            }
    theirs = name_first({entry.origin.system for entry in entries}) or "nothing"
    ours = name_first({origin.system if origin else "unknown" for origin in origins})
    raise LikenessError(
        f"thresholds {thresholds}: none is of these scores, which are of {ours}, but of {theirs}; "
        "score as the model does, or give a number as the threshold"
    )


def _are_alike(stored: Origin, scores: Origin) -> bool:
    same = (stored.system, stored.calibration) == (scores.system, scores.calibration)
    return same and not contradictions(scores.meta, stored.meta)


@step("measuring")
def evaluate_targets(
    systems: Mapping[str, tuple[Trials, Scores]],
    settings: VerificationSettings,
    *,
    subject_of: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    pair_by: PairBy | None = None,
) -> Compared:
    """Measures systems on target trials, and their differences to the first on the same resamples.

    Args:
        systems: Name -> its trials and their scores.
        settings: The intervals that are asked for.
        subject_of: Id -> subject; one side of each trial is enough.
        limits: The thresholds at which accepted trials are counted.
        pair_by: The side whose ids two systems share; None for both.

    Raises:
        LikenessError: A setting of error rates is not the default one; as `subjects_of`.

    >>> one, two = (Trials(("p", "q"), (f"{c}1", f"{c}2"), [0, 1], [0, 1], [1, 1]) for c in "ab")
    >>> systems = {"a": (one, Scores([0.5, 0.7], [1, 1])), "b": (two, Scores([0.6, 0.9], [1, 1]))}
    >>> settings = VerificationSettings(num_resamples=0)
    >>> [of.value for of in evaluate_targets(systems, settings, pair_by="enrol").results]
    [0.6, 0.6, 0.75, 0.75]
    """
    plain = VerificationSettings(**draws_of(settings))
    if idle := [name for name, value in vars(plain).items() if getattr(settings, name) != value]:
        names = ", ".join(idle)
        raise LikenessError(f"{names} would change nothing for target trials alone; leave that out")
    reference, (first, _) = next(iter(systems.items()))
    compared = Compared([], {}, {}, subject_of=dict(subject_of or {}))
    unpaired, outcomes = dict[str, int](), dict[str, Outcome]()
    of_first = _subjects(first, subject_of, settings)
    for name, (trials, scores) in systems.items():
        both = _one_side(first, pair_by), _one_side(trials, pair_by)
        order, (subjects, source) = paired.matching_order(*both), of_first
        if order is None:
            unpaired[name] = paired.num_differing(*both)
            subjects, source = _subjects(trials, subject_of, settings)
        elif name != reference:
            trials, scores = trials.rows(order), Scores(scores.values[order], scores.target)
        stated: Conventions = {"subjects_from": source, "pair_by": pair_by or "enrol and probe"}
        stated |= trial_counts(trials)
        results, outcome = _measure(name, scores, subjects, stated, settings, limits or {})
        compared.results += results
        compared.trials[name], compared.scores[name] = trials, scores
        if settings.num_resamples:
            outcomes[name] = replace(outcome, trial_list=name if name in unpaired else "")
    name_equal(compared.scores)
    if len(systems) > 1 and (outcomes or unpaired):
        compared.paired = paired.differences(reference, outcomes, unpaired, "subjects")
    return compared


def _measure(
    system: str,
    scores: Scores,
    subjects: Ints,
    conventions: Conventions,
    settings: VerificationSettings,
    limits: Limits,
) -> tuple[list[Result], Outcome]:
    """The measures of one system, and the resamples behind their intervals."""
    columns = dict.fromkeys(("mean_score", "median_score"), scores.values)
    for name, (value, _) in limits.items():
        columns[name] = (scores.values >= value).astype(np.float64)
    metrics: dict[str, Metric] = {name: partial(mean, column=name) for name in columns}
    metrics["median_score"] = lambda columns: float(np.median(columns["median_score"]))
    per_trial = PerItem(tuple(map(str, range(len(scores)))), columns, subjects, "subjects")
    values = {name: metric(per_trial.columns) for name, metric in metrics.items()}
    draws, found = {}, dict[str, Bounds]()
    if settings.num_resamples:
        conventions = conventions | draws_of(settings) | {"interval": "bootstrap over subjects"}
        number, seed = settings.num_resamples, settings.seed
        draws = resample(metrics, per_trial, num_resamples=number, seed=seed)
        about = settings.level, per_trial.drawn
        found = {name: bounds(of, values[name], *about) for name, of in draws.items()}
    own: dict[str, Conventions] = {name: {"threshold_from": of} for name, (_, of) in limits.items()}
    own["mean_score"] = {"remark": "all trials are target trials, which have no error rates"}
    counts = {"targets": len(scores), "subjects": per_trial.num_groups}
    results = []
    for name, value in values.items():
        threshold = limits[name][0] if name in limits else None
        stated = conventions | own.get(name, {})
        one = Result(system, name, value, None, threshold, counts, stated, "target trials alone")
        results.append(add_bounds(one, found.get(name)))
    return results, Outcome(values, draws, "", per_trial.drawn)


def _one_side(trials: Trials, side: PairBy | None) -> Trials:
    """The trials by the ids of one side, so that those match whose other ids differ."""
    if side is None:
        return trials
    nothing = np.zeros(len(trials), np.int32)
    if side == "enrol":
        return replace(trials, probe_ids=("",), probe=nothing)
    return replace(trials, enrol_ids=("",), enrol=nothing)


def _subjects(
    trials: Trials, subject_of: Mapping[str, str] | None, settings: VerificationSettings
) -> tuple[Ints, str]:
    """(P,) the subject of each trial, and where they come from. Both sides have the same one."""
    ids = trials.enrol_ids + trials.probe_ids
    known = None if subject_of is None else respell(subject_of, ids)
    if known is not None:
        for enrol, probe in zip(trials.enrol.tolist(), trials.probe.tolist(), strict=True):
            pair = trials.enrol_ids[enrol], trials.probe_ids[probe]
            for id, other in (pair, pair[::-1]):
                if other in known:
                    known.setdefault(id, known[other])
    numbers, source = subjects_of(trials, known)
    assert numbers is not None  # target trials alone contradict no groups
    if source == CONNECTED and settings.num_resamples:
        text = "each group of ids that trials connect counts as a subject; if one has several, give"
        warnings.warn(f"{text} the subjects{if_option(' by --subjects')}", stacklevel=5)
    return numbers[0][trials.enrol], source
