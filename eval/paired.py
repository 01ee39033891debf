"""Systems scored on the same trials: the difference of each to a reference, paired by subject.

Two systems that err on the same subjects have intervals that overlap although one is surely better.
Both are measured here on the same resamples of the subjects, and the difference is taken resample
by resample (as in likeness.eval.comparison).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from likeness.eval.comparison import LEVEL, Difference, Outcome, difference_rows, summarise
from likeness.eval.formats.subjects import numbered
from likeness.eval.results import aligned, metric_label, reasons
from likeness.eval.types import Trials


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
    sides = [(trials.enrol_ids, trials.probe_ids) for trials in (first, second)]
    targets = [trials.target for trials in (first, second) if trials.target is not None]
    labelled = len(targets) == 2
    if (
        sides[0] == sides[1]
        and np.array_equal(first.enrol, second.enrol)
        and np.array_equal(first.probe, second.probe)
        and (not labelled or np.array_equal(targets[0], targets[1]))
    ):
        # as most lists are, and sorting millions of trials takes seconds
        return Matched(np.arange(len(first)), 0, 0, 0)
    enrol = numbered(first.enrol_ids, second.enrol_ids)
    probe = numbered(first.probe_ids, second.probe_ids)
    width = 1 + max(int(codes.max()) for codes in probe)
    keys = [
        of_enrol[trials.enrol].astype(np.int64) * width + of_probe[trials.probe]
        for of_enrol, of_probe, trials in zip(enrol, probe, (first, second), strict=True)
    ]
    (names, places, counts), (other_names, other_places, other_counts) = (
        np.unique(key, return_index=True, return_counts=True) for key in keys
    )
    _, at, other_at = np.intersect1d(names, other_names, assume_unique=True, return_indices=True)
    shared = int(np.minimum(counts[at], other_counts[other_at]).sum())
    lacking = len(first) - shared, len(second) - shared
    other_label = 0
    if labelled:
        other_label = int(
            np.count_nonzero(targets[0][places[at]] != targets[1][other_places[other_at]])
        )
    if any(lacking) or other_label:
        return Matched(None, *lacking, other_label)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(keys[0], kind="stable")] = np.argsort(keys[1], kind="stable")
    return Matched(order, 0, 0, 0)


def differences(
    reference: str,
    outcomes: Mapping[str, Outcome],
    unpaired: Mapping[str, Matched],
    over: str,
) -> Paired:
    """The differences of all systems to the reference, in the metrics that were resampled.

    Args:
        reference: A system of the outcomes.
        outcomes: System -> what was measured; the draws are the same for all systems on the trials
            of the reference, whose trial list they name.
        unpaired: The systems on other trials, see `Paired`.
        over: What the intervals are taken over: "subjects" or "trials".
    """
    metrics = list(dict.fromkeys(name for each in outcomes.values() for name in each.values))
    runs = {system: {0: outcome} for system, outcome in outcomes.items()}
    cells = summarise(runs, metrics, reference=reference)[0] if runs else []
    found = {(cell.variant, cell.metric): cell.difference for cell in cells if cell.difference}
    return Paired(reference, found, unpaired, over)


def to_json(paired: Paired) -> dict[str, Any]:
    """The keys "differences" and "unpaired" of the results document."""
    keys = ("value", "interval", "interval_note", "p", "p_holm")
    return {
        "differences": [
            {"system": system, "reference": paired.reference, "metric": metric}
            | {key: getattr(difference, key) for key in keys}
            | {"distinguishable": None if difference.p is None else difference.distinguishable}
            for (system, metric), difference in paired.differences.items()
        ],
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
    return difference_rows(paired.reference, paired.over, paired.differences, seeds=False)


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
        sentences += reasons(
            [
                (f"{system}, {metric_label(metric)}", of.interval, of.interval_note)
                for (system, metric), of in paired.differences.items()
            ]
        )
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
