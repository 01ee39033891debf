"""Systems scored on the same trials: the difference of each to a reference, paired by subject.

Two systems that err on the same subjects have intervals that overlap although one is surely better.
Both are measured here on the same resamples of the subjects, and the difference is taken resample
by resample (as in likeness.eval.intervals.comparison).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.intervals import comparison
from likeness.eval.results import aligned, metric_label, reasons
from likeness.eval.types import Trials, ascending, pair_numbers


@dataclass(frozen=True)
class Paired:
    """The differences of all systems to the reference.

    Attributes:
        reference: The system that is subtracted.
        differences: (system, metric) -> its difference.
        unpaired: The systems without differences, on other trials than the reference's, and how
            many of these they lack or have besides.
        over: What the intervals are taken over: "subjects" or "trials".
    """

    reference: str
    differences: Mapping[tuple[str, str], comparison.Difference]
    unpaired: Mapping[str, int]
    over: str


def matching_order(first: Trials, second: Trials) -> NDArray[np.int64] | None:
    """For each trial of one list the row of the same trial in another one.

    Trials match by their ids, and by their labels if both lists have them. The order of rows may
    differ, and trials may repeat. The enrolment and the probe side are told apart: `a b` and `b a`
    are different trials.

    Returns:
        (P,) rows of the second list; None where the lists are not of the same trials.

    Example:
        >>> one = Trials(("a",), ("b", "c"), [0, 0], [0, 1], [True, False])
        >>> two = Trials(("a",), ("c", "b"), [0, 0], [0, 1], [False, True])
        >>> matching_order(one, two).tolist()
        [1, 0]
    """
    both = first, second
    labelled = first.target is not None and second.target is not None
    sides = [(trials.enrol_ids, trials.probe_ids) for trials in both]
    names = ("enrol", "probe", "target") if labelled else ("enrol", "probe")
    if sides[0] == sides[1] and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in names
    ):
        return np.arange(len(first))  # as most lists are, and sorting millions takes seconds
    if len(first) != len(second):
        return None
    keys = _keys(first, second)
    rows, other_rows = map(ascending, keys)
    if not np.array_equal(keys[0][rows], keys[1][other_rows]):
        return None
    order = np.empty(len(first), dtype=np.int64)
    order[rows] = other_rows
    return order


def num_differing(first: Trials, second: Trials) -> int:
    """How many trials of one list are not in the other; of both counts the larger one.

    Example:
        >>> one = Trials(("a",), ("b", "c"), [0, 0], [0, 1])
        >>> num_differing(one, Trials(("a", "c"), ("b", "a"), [0, 1], [0, 1]))
        1
    """
    keys = _keys(first, second)
    place = np.unique(np.concatenate(keys), return_inverse=True)[1]
    times, others = (np.bincount(of, minlength=place.size) for of in np.split(place, [len(first)]))
    return max(int(np.maximum(more, 0).sum()) for more in (times - others, others - times))


def _keys(first: Trials, second: Trials) -> list[NDArray[np.int64]]:
    """(P,) a number for each trial of both lists, with its label if both have labels."""
    keys = pair_numbers(first, second)
    if first.target is None or second.target is None:
        return keys
    return [2 * keys[0] + first.target, 2 * keys[1] + second.target]


def differences(
    reference: str,
    outcomes: Mapping[str, comparison.Outcome],
    unpaired: Mapping[str, int],
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
    if not outcomes:
        return Paired(reference, {}, unpaired, over)
    metrics = list(dict.fromkeys(name for each in outcomes.values() for name in each.values))
    runs = {system: {0: outcome} for system, outcome in outcomes.items()}
    cells, _ = comparison.summarise(runs, metrics, reference=reference, over_seeds=False)
    of_cells = {(cell.variant, cell.metric): cell.difference for cell in cells if cell.difference}
    return Paired(reference, of_cells, unpaired, over)


def to_json(paired: Paired) -> dict[str, Any]:
    """The keys "differences" and "unpaired" of the results document."""
    keys = ("value", "interval", "interval_note", "p", "p_holm", "distinguishable")
    return {
        "differences": [
            {"system": system, "reference": paired.reference, "metric": metric}
            | {key: getattr(difference, key) for key in keys}
            for (system, metric), difference in paired.differences.items()
        ],
        "unpaired": list(paired.unpaired),
    }


def rows(paired: Paired) -> list[list[str]]:
    """The head and the rows of the table of differences; empty where there are none."""
    compared = paired.reference, paired.over, paired.differences
    return comparison.difference_rows(*compared, seeds=False)


def notes(paired: Paired) -> list[str]:
    """What the differences are, why intervals are missing, and which systems have none; a sentence
    or two each.
    """
    sentences = []
    if paired.differences:
        num_tested = sum(each.p is not None for each in paired.differences.values())
        sentences.append(
            f"Differences to {paired.reference} on the same trials: {100 * comparison.LEVEL:g} % "
            f"bootstrap, the same resampled {paired.over} for both systems. p: the level at which "
            "the interval touches 0. Distinguishable: the interval excludes 0; p (Holm): for all "
            f"{num_tested} differences at once."
        )
        if paired.over == "trials":
            sentences.append("Trials share subjects, so that these intervals are optimistic.")
        sentences += reasons(
            [
                (f"{system}, {metric_label(metric)}", of.interval, of.interval_note)
                for (system, metric), of in paired.differences.items()
            ]
        )
    for system, num in paired.unpaired.items():
        other = f"{system} and {paired.reference} are not on the same trials"
        sentences.append(f"{other} ({num:,} of them differing): no difference is given.")
    return sentences


def table(paired: Paired) -> str:
    """The differences as aligned text, and what they are."""
    differences = ["", *aligned(rows(paired))] if paired.differences else []
    return "\n".join([*differences, "", *notes(paired)]) + "\n"
