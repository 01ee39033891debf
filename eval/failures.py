"""Failures to enrol and to acquire, and the generalised rates that count them (ISO/IEC 19795-1).

FMR and FNMR are our FAR and FRR of trials that were compared. An item that could not be embedded is
compared with nothing, so it is in neither. The generalised rates GFAR and GFRR
count it as what a system does with it, which is to accept nobody: a trial with such an item is not
accepted. They are counted over the whole trial list. FTE is the share of the enrolment ids without
an embedding, and FTA is that of the probe ids. By group, the FTE is that of all ids of the group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from likeness.eval.bootstrap import Bounds
from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import text_lines
from likeness.eval.formats.subjects import subjects_of
from likeness.eval.groups import Part, Rate, rates_at
from likeness.eval.results import Result, complement, with_bounds
from likeness.eval.small_rates import share_over_groups
from likeness.eval.types import UNKNOWN, Bools, Scores, Trials, name_first, nfc
from likeness.eval.verification import tar_threshold


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
        return frozenset(source)
    lines = (line for _, line in text_lines(Path(source)))
    return frozenset(nfc(re.split(r"\t" if "\t" in line else r"\s", line)[0]) for line in lines)


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
    of_side = [
        np.array([id in ids for id in side], np.bool_)
        for side in (trials.enrol_ids, trials.probe_ids)
    ]
    lost = of_side[0][trials.enrol] | of_side[1][trials.probe]
    if ids and (not any(side.any() for side in of_side) or lost.all()):
        raise LikenessError(
            f"failures: of {len(ids)} ids ({name_first(sorted(ids))}) none is in the trials, or no "
            "trial is left without one; give the whole trial list, and the ids as it has them"
        )
    kept = ~lost
    target = None if trials.target is None else trials.target[kept]
    left = replace(trials, enrol=trials.enrol[kept], probe=trials.probe[kept], target=target)
    return left, Failures(trials, ids, lost)


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
    values = np.full(len(whole), scores.values.min() - 1)
    values[~lost] = scores.values
    numbers, _ = subjects_of(whole, subject_of)
    if numbers is None:
        settings = replace(settings, num_resamples=0)
        numbers = np.arange(len(whole.enrol_ids)), np.arange(len(whole.probe_ids))
    pairs = np.stack([numbers[0][whole.enrol], numbers[1][whole.probe]], axis=1)
    thresholds = {
        f"{far:g}": tar_threshold(scores.targets, scores.nontargets, far) for far in settings.fars
    }
    rates, _ = rates_at(Part(Scores(values, whole.target), pairs), thresholds, settings)
    own = ("method", "interval_note")
    common: dict[str, Any] = {k: v for k, v in of.conventions.items() if k not in own}
    common |= {"trials": len(whole), "trials_lost": int(lost.sum())}
    results = []
    for name, side, number in (
        ("fte", whole.enrol_ids, numbers[0]),
        ("fta", whole.probe_ids, numbers[1]),
    ):
        failed = np.array([id in ids for id in side], np.float64)
        stated = {"failed": int(failed.sum()), "items": len(side)}
        result = Result(
            *(of.system, name, float(failed.mean()), None, None, of.counts),
            common | stated,
            of.protocol,
        )
        results.append(with_bounds(result, share_over_groups(failed, number, settings)))
    for at, threshold in thresholds.items():
        for name, rate in (
            ("gfar", rates[f"global_far({at})"]),
            ("gfrr", rates[f"global_tar({at})"]),
        ):
            assert rate.value is not None
            rule = "over the whole list; a trial with a failed item is not accepted"
            remark = (
                f"counts all {len(whole):,} trials, of which {int(lost.sum()):,} have a failed "
                "item; the threshold is held fixed while subjects are drawn"
            )
            limit = threshold if np.isfinite(threshold) else None
            result = Result(
                *(of.system, f"{name}({at})", rate.value, rate.interval, limit, of.counts),
                common
                | {"rule": rule, "remark": remark}
                | ({"interval_note": rate.note} if rate.note else {}),
                of.protocol,
            )
            results.append(result if name == "gfar" else complement(result))
    return results


def fte_by_group(
    failures: Failures,
    group_of: Mapping[str, str],
    subject_of: Mapping[str, str],
    settings: Any,
) -> dict[str, Rate]:
    """The share of the items of each group that could not be embedded.

    Args:
        failures: The whole list, and the failed ids.
        group_of: Id or subject -> group.
        subject_of: Id -> subject.
        settings: The draws of the intervals, over subjects.
    """
    ids = list(dict.fromkeys((*failures.trials.enrol_ids, *failures.trials.probe_ids)))
    subjects = np.array([subject_of.get(id, id.partition("/")[0]) for id in ids])
    groups = np.array(
        [
            group_of.get(id) or group_of.get(subject, UNKNOWN)
            for id, subject in zip(ids, subjects.tolist(), strict=True)
        ]
    )
    failed = np.array([id in failures.ids for id in ids], np.float64)
    rates = {}
    for group in dict.fromkeys(groups.tolist()):
        of = groups == group
        found = share_over_groups(failed[of], subjects[of], settings) or Bounds(None)
        rates[group] = Rate(float(failed[of].mean()), *found)
    return rates
