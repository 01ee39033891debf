"""Failures to enrol and to acquire, and the generalised rates that count them (ISO/IEC 19795-1).

FMR and FNMR are our FAR and FRR of trials that were compared. An item that could not be embedded is
compared with nothing, so it is in neither. The generalised rates GFAR and GFRR
count it as what a system does with it, which is to accept nobody: a trial with such an item is not
accepted. They are counted over the whole trial list. FTE is the share of the enrolment ids without
an embedding, and FTA is that of the probe ids. By group, the FTE is that of all ids of the group.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import text_lines
from likeness.eval.intervals.bootstrap import Bounds
from likeness.eval.intervals.subjects import subjects_of
from likeness.eval.items.levels import labels_of_ids
from likeness.eval.metrics.groups import Part, Rate, rates_at, share_over_groups
from likeness.eval.metrics.verification import measured_tar, sort_scores
from likeness.eval.results import Result, complement, metric_beside
from likeness.eval.types import UNKNOWN, Bools, Floats, Scores, Trials, item_id, name_first, respell


class Failures(NamedTuple):
    """A whole trial list, and what of it could not be compared.

    Attributes:
        trials: P trials with labels.
        ids: The ids without an embedding.
        lost: (P,) which trials have such an id.
    """

    trials: Trials
    ids: Collection[str]
    lost: Bools


def read_failures(source: str | PathLike[str] | Iterable[str]) -> frozenset[str]:
    """The ids of items that could not be embedded.

    Args:
        source: What `likeness embed` wrote beside its embeddings: lines of an id, a tab and a
            reason. Lines of ids alone, or of an id, a blank and a reason, do as well; or the ids.
    """
    if not isinstance(source, str | PathLike):
        return frozenset(map(str, source))
    lines = (line for _, line in text_lines(Path(source)))
    return frozenset(item_id(re.split(r"\t" if "\t" in line else r"\s", line)[0]) for line in lines)


def compared_trials(trials: Trials, ids: Collection[str]) -> tuple[Trials, Failures]:
    """The trials both of whose items have an embedding, and the failures.

    Args:
        trials: The whole list, with labels.
        ids: The ids without an embedding.

    Raises:
        LikenessError: None of the ids is in the list, or no trial is left.

    >>> trials = Trials(("a", "b"), ("c", "d"), [0, 0, 1], [0, 1, 1], [1, 0, 1])
    >>> left, failures = compared_trials(trials, ["c"])
    >>> len(left), failures.lost.tolist()
    (2, [True, False, False])
    """
    failed = [_among(side, ids) > 0 for side in (trials.enrol_ids, trials.probe_ids)]
    kept = ~(failed[0][trials.enrol] | failed[1][trials.probe])
    if not kept.any() or (ids and not (failed[0].any() or failed[1].any())):
        listed = f"of {len(ids)} ids ({name_first(sorted(ids))}) none is in the trials"
        raise LikenessError(f"failures: {listed}, or no trial is without one; correct them")
    return trials.rows(kept), Failures(trials, ids, ~kept)


def generalised_rates(
    failures: Failures,
    scores: Scores,
    settings: Any,
    of: Result,
    subject_of: Mapping[str, str] | None = None,
) -> list[Result]:
    """FTE, FTA, and at the threshold of each FAR the GFAR and the GFRR.

    Args:
        failures: The whole list and what of it is lost.
        scores: Of the other trials, in their order.
        settings: The FARs and the draws of the intervals.
        of: A result of the same system, whose conventions hold here, too.
        subject_of: Id -> subject, see `subjects_of`.
    """
    whole, ids, lost = failures
    assert whole.target is not None
    # below every threshold, at which such a trial is never accepted
    values = np.full(len(whole), np.nextafter(scores.values.min(), -np.inf))
    values[~lost] = scores.values
    numbers, _ = subjects_of(whole, subject_of)
    if numbers is None:  # there are no intervals then
        settings = replace(settings, num_resamples=0)
        sizes = len(whole.enrol_ids), len(whole.probe_ids)
        numbers = np.zeros(sizes[0], np.int32), np.zeros(sizes[1], np.int32)
    pairs = np.stack([numbers[0][whole.enrol], numbers[1][whole.probe]], axis=1)
    ordered = sort_scores(scores.targets, scores.nontargets)
    thresholds = {f"{far:g}": measured_tar(ordered, far).threshold for far in settings.fars}
    at_thresholds, _ = rates_at(Part(Scores(values, whole.target), pairs), thresholds, settings)
    rates = {
        "fte": share_over_groups(_among(whole.enrol_ids, ids), numbers[0], settings),
        "fta": share_over_groups(_among(whole.probe_ids, ids), numbers[1], settings),
    }
    for at in thresholds:
        rates[f"gfar({at})"] = at_thresholds[f"global_far({at})"]
        rates[f"gfrr({at})"] = complement(at_thresholds[f"global_tar({at})"])
    remark = (
        f"of all {len(whole):,} trials {int(lost.sum()):,} have a failed item, and are not "
        "accepted; thresholds are held fixed while subjects are drawn"
    )
    num_targets = int(whole.target.sum())
    counts = {"targets": num_targets, "nontargets": len(whole) - num_targets}
    of, results = replace(of, counts={**of.counts, **counts}), []
    for name, rate in rates.items():
        limit, bounds = thresholds.get(name[5:-1], np.inf), Bounds(rate.interval, rate.note)
        value = float(rate.value or 0)
        results.append(metric_beside(of, name, value, bounds, limit, remark=remark))
    return results


def fte_by_group(
    failures: Failures, group_of: Mapping[str, str], subject_of: Mapping[str, str], settings: Any
) -> dict[str, Rate]:
    """The share of the items of each group that could not be embedded.

    Args:
        failures: The whole list, and the failed ids.
        group_of: Id or subject -> group.
        subject_of: Id -> subject; by default the first folder of the id.
        settings: The draws of the intervals, over subjects.
    """
    ids = list(dict.fromkeys((*failures.trials.enrol_ids, *failures.trials.probe_ids)))
    folders, subject_of = labels_of_ids(ids), respell(subject_of, ids)
    subjects = [subject_of.get(id, folder) for id, folder in zip(ids, folders, strict=True)]
    group_of = respell(group_of, [*ids, *subjects])
    rows: dict[str, list[int]] = {}
    for row, (id, subject) in enumerate(zip(ids, subjects, strict=True)):
        rows.setdefault(group_of.get(id) or group_of.get(subject, UNKNOWN), []).append(row)
    failed, people = _among(ids, failures.ids), np.array(subjects)
    return {
        group: share_over_groups(failed[of], people[of], settings) for group, of in rows.items()
    }


def _among(names: Sequence[str], ids: Collection[str]) -> Floats:
    """(N,) 1 for a name that is among the ids, else 0."""
    found = respell(dict.fromkeys(ids), names)
    return np.array([name in found for name in names], np.float64)
