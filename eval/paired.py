"""Systems scored on the same trials: the difference of each to a reference, paired by subject.

Two systems that err on the same subjects have intervals that overlap although one is surely better.
Both are measured here on the same resamples of the subjects, and the difference is taken resample
by resample (as in eval.comparison).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.bootstrap import Drawn, Resamples
from eval.comparison import LEVEL, Difference, Outcome, summarise, verdict
from eval.results import Result, aligned, metric_label, signed_ends, signed_text
from eval.types import Trials


class Matched(NamedTuple):
    """How the trials of two lists match.

    Attributes:
        order: (P,) for each trial of the first list the row of the same trial in the second; None
            where the lists are not of the same trials.
        only_first: Trials that the second list lacks.
        only_second: Trials that the first list lacks.
        other_label: Trials that are target trials in one list and nontarget trials in the other.
    """

    order: NDArray[np.int64] | None
    only_first: int
    only_second: int
    other_label: int


@dataclass(frozen=True)
class Paired:
    """The differences of all systems to the reference.

    Attributes:
        reference: The system that is subtracted.
        differences: (system, metric) -> its difference.
        unpaired: The systems without differences, on other trials than the reference's: how the
            trials of the reference match theirs.
        over: What the intervals are taken over: "subjects" or "trials".
    """

    reference: str
    differences: Mapping[tuple[str, str], Difference]
    unpaired: Mapping[str, Matched]
    over: str


def match_trials(first: Trials, second: Trials) -> Matched:
    """Matches the trials of two lists by their ids; the order of rows may differ, and trials may
    repeat.

    The enrolment and the probe side are told apart: `a b` and `b a` are different trials. Labels
    are compared if both lists have them.

    Example:
        >>> one = Trials(("a",), ("b", "c"), [0, 0], [0, 1], [True, False])
        >>> two = Trials(("a",), ("c", "b"), [0, 0], [0, 1], [False, True])
        >>> match_trials(one, two).order.tolist()
        [1, 0]
    """
    both = [trials.target for trials in (first, second) if trials.target is not None]
    if _sides(first) == _sides(second) and all(
        np.array_equal(side, other)
        for side, other in (
            (first.enrol, second.enrol),
            (first.probe, second.probe),
            *([tuple(both)] if len(both) == 2 else []),
        )
    ):
        # as most lists are, and sorting millions of trials takes seconds
        return Matched(np.arange(len(first)), 0, 0, 0)
    numbers = [
        {name: i for i, name in enumerate(dict.fromkeys((*a, *b)))}
        for a, b in zip(_sides(first), _sides(second), strict=True)
    ]
    keys = []
    for trials in (first, second):
        enrol, probe = (
            np.array([number[name] for name in ids], dtype=np.int64)
            for number, ids in zip(numbers, _sides(trials), strict=True)
        )
        keys.append(enrol[trials.enrol] * len(numbers[1]) + probe[trials.probe])
    counts = [np.unique(key, return_counts=True) for key in keys]
    common, at_first, at_second = np.intersect1d(
        counts[0][0], counts[1][0], assume_unique=True, return_indices=True
    )
    shared = int(np.minimum(counts[0][1][at_first], counts[1][1][at_second]).sum())
    lacking = len(first) - shared, len(second) - shared
    orders = [np.argsort(key, kind="stable") for key in keys]
    places = [np.searchsorted(keys[i], common, sorter=orders[i]) for i in (0, 1)]
    other_label = 0
    if len(both) == 2:
        labels = [target[orders[i][places[i]]] for i, target in enumerate(both)]
        other_label = int(np.count_nonzero(labels[0] != labels[1]))
    if any(lacking) or other_label:
        return Matched(None, *lacking, other_label)
    order = np.empty(len(first), dtype=np.int64)
    order[orders[0]] = orders[1]
    return Matched(order, 0, 0, 0)


def _sides(trials: Trials) -> tuple[Sequence[str], Sequence[str]]:
    return trials.enrol_ids, trials.probe_ids


def differences(
    reference: str,
    results: Sequence[Result],
    resamples: Mapping[str, Resamples],
    drawn: Mapping[str, Drawn],
    unpaired: Mapping[str, Matched],
) -> Paired:
    """The differences of all systems to the reference, in the metrics that were resampled.

    Args:
        reference: A system of the results.
        results: Of all systems.
        resamples: system -> its resamples, which are the same draws for all systems on the trials
            of the reference.
        drawn: system -> what its intervals rest on.
        unpaired: The systems on other trials, see `Paired`.
    """
    values: dict[str, dict[str, float]] = {}
    for result in results:
        values.setdefault(result.system, {})[result.metric] = result.value
    outcomes = {
        system: {
            0: Outcome(
                {metric: values[system][metric] for metric in made.values},
                made.values,
                system if system in unpaired else "",
                drawn[system],
            )
        }
        for system, made in resamples.items()
    }
    metrics = list(dict.fromkeys(metric for made in resamples.values() for metric in made.values))
    cells = summarise(outcomes, metrics, reference=reference)[0] if outcomes else []
    differences = {
        (cell.variant, cell.metric): cell.difference
        for cell in cells
        if cell.difference is not None
    }
    over = "trials" if any(result.counts["subjects"] is None for result in results) else "subjects"
    return Paired(reference, differences, unpaired, over)


def to_json(paired: Paired) -> dict[str, Any]:
    """The keys "differences" and "unpaired" of the results document."""
    rows = [
        {
            "system": system,
            "reference": paired.reference,
            "metric": metric,
            "value": difference.value,
            "interval": difference.interval,
            "interval_note": difference.interval_note,
            "p": difference.p,
            "p_holm": difference.p_holm,
            "distinguishable": difference.distinguishable if difference.p is not None else None,
        }
        for (system, metric), difference in paired.differences.items()
    ]
    return {
        "differences": rows,
        "unpaired": [
            {
                "reference": paired.reference,
                "system": system,
                "only_in_reference": matched.only_first,
                "only_in_system": matched.only_second,
                "other_label": matched.other_label,
            }
            for system, matched in paired.unpaired.items()
        ],
    }


def rows(paired: Paired) -> list[list[str]]:
    """The head and the rows of the table of differences; empty where there are none."""
    if not paired.differences:
        return []
    head = [f"minus {paired.reference}", "metric", "difference", f"over {paired.over}"]
    body = [
        [
            system,
            metric_label(metric),
            signed_text(metric, difference.value),
            signed_ends(metric, difference.interval, difference.interval_note),
            *("-" if p is None else f"{p:.3f}" for p in (difference.p, difference.p_holm)),
            verdict(difference),
        ]
        for (system, metric), difference in paired.differences.items()
    ]
    return [[*head, "p", "p (Holm)", "distinguishable"], *body]


def notes(paired: Paired) -> list[str]:
    """What the differences are, why intervals are missing, and which systems have none; a sentence
    or two each.
    """
    sentences = []
    if paired.differences:
        optimistic = (
            " Trials share subjects, so that intervals over trials are optimistic."
            if paired.over == "trials"
            else ""
        )
        sentences.append(
            f"Differences to {paired.reference} on the same trials: {100 * LEVEL:g} % bootstrap, "
            f"the same resampled {paired.over} for both systems."
            f"{optimistic} Distinguishable: the interval excludes 0; p (Holm): for all "
            f"{len(paired.differences)} differences at once."
        )
        noted: dict[str, list[tuple[str, str]]] = {}
        for key, difference in paired.differences.items():
            if difference.interval_note:
                noted.setdefault(difference.interval_note, []).append(key)
        for reason, concerned in noted.items():
            star = "" if paired.differences[concerned[0]].interval is None else "* "
            which = "; ".join(f"{system}, {metric_label(metric)}" for system, metric in concerned)
            where = "" if len(concerned) == len(paired.differences) else f"{which}: "
            sentences.append(f"{star}Difference: {where}{reason}.")
    for system, matched in paired.unpaired.items():
        parts = [
            f"{number:,} {what}"
            for number, what in (
                (matched.only_first, f"only in {paired.reference}"),
                (matched.only_second, f"only in {system}"),
                (matched.other_label, "with another label"),
            )
            if number
        ]
        sentences.append(
            f"{system} and {paired.reference} are not on the same trials ({', '.join(parts)}): no "
            "difference is given."
        )
    return sentences


def table(paired: Paired) -> str:
    """The differences as aligned text, and what they are."""
    lines: list[str] = []
    if body := rows(paired):
        lines += ["", *aligned(body)]
    return "\n".join([*lines, "", *notes(paired)]) + "\n"
