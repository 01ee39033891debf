"""Who the errors of a verification system come from: subjects and pairs of subjects."""

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from likeness.eval.metrics.verification import measured_eer, sort_scores
from likeness.eval.reports.page import EMPTY, prose, table
from likeness.eval.types import Scores, Trials, respell

Counts = NDArray[np.int64]

_NUM_ROWS = 1000  # subjects in the table
_RULE = (
    "Errors are counted at the threshold of the equal error rate. A nontarget trial counts for the "
    "subjects of both of its sides."
)


def errors_by_subject(
    trials: Trials, scores: Scores, subject_of: Mapping[str, str], threshold: float
) -> tuple[list[str], Counts]:
    """Count the errors of each subject, over the trials whose subjects are known.

    Args:
        trials: P of them.
        scores: of the trials.
        subject_of: id -> subject.
        threshold: a trial is accepted if its score is at least this.

    Returns:
        The S subjects, and (4, S): target trials, those that are rejected, nontarget trials with
        the subject on either side, and those that are accepted.

    >>> trials = Trials(("a1", "b1"), ("a2", "b2"), [0, 0, 1, 1], [0, 1, 0, 1])
    >>> subject_of = {"a1": "a", "a2": "a", "b1": "b", "b2": "b"}
    >>> scores = Scores([0.9, 0.8, 0.1, 0.2], [1, 0, 0, 1])
    >>> names, counts = errors_by_subject(trials, scores, subject_of, 0.5)
    >>> names, counts.tolist()
    (['a', 'b'], [[1, 1], [0, 1], [2, 2], [1, 1]])
    """
    names = sorted({*subject_of.values()} - {""})
    subject_of = respell(subject_of, trials.enrol_ids + trials.probe_ids)
    number = {name: i for i, name in enumerate(names)}
    sides = [
        np.array([number.get(subject_of.get(id, ""), -1) for id in ids], dtype=np.int64)[index]
        for ids, index in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
    ]
    known = (sides[0] >= 0) & (sides[1] >= 0)
    accepted = scores.values >= threshold
    counts = []
    for kind, wrong, of in (
        (scores.target, ~accepted, sides[1:]),
        (~scores.target, accepted, sides),
    ):
        for chosen in (known & kind, known & kind & wrong):
            each = [np.bincount(side[chosen], minlength=len(names)) for side in of]
            counts.append(np.sum(each, axis=0))
    return names, np.array(counts)


def who_errs(trials: Trials, scores: Scores, subject_of: Mapping[str, str]) -> Markup:
    """A row for each subject with its errors.

    Args:
        trials: of one system.
        scores: of the trials.
        subject_of: id -> subject.

    Returns:
        HTML, which is empty where fewer than two subjects are known.
    """
    if len(set(subject_of.values())) < 2:
        return EMPTY
    threshold = measured_eer(sort_scores(scores.targets, scores.nontargets)).threshold
    errors = errors_by_subject(trials, scores, subject_of, threshold)
    return prose(_RULE, soft=True) + _table(*errors)


def _table(names: Sequence[str], counts: Counts) -> Markup:
    """A row for each subject, those with most errors first."""
    order = np.argsort(-(counts[1] + counts[3]), kind="stable")
    rows = []
    for i in order[:_NUM_ROWS].tolist():
        targets, rejects, nontargets, accepts = counts[:, i].tolist()
        frr, far = _percent(rejects, targets), _percent(accepts, nontargets)
        rows.append([names[i], f"{targets:,}", frr, f"{nontargets:,}", far])
    left_out = order.size - len(rows)
    note = f"{left_out:,} subjects with fewer errors are left out." if left_out else ""
    head = ["Subject", "Target trials", "FRR %", "Nontarget trials", "FAR %"]
    shown = table(head, rows, kind="n", caption="Subjects", sortable=True)
    return shown + prose(note, soft=True)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}" if whole else "–"
