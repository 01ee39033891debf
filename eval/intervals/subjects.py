"""The subjects of ids and of trials, over which intervals are resampled."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.parquet import Column
from likeness.eval.items.levels import check_levels, labels_of_ids
from likeness.eval.option import if_option
from likeness.eval.types import Bools, Ints, Trials, counted, name_first, pair_text, respell

CONNECTED = "groups connected by target trials"  # the source of subjects that are only supposed


def labels_of(
    side: str,
    ids: Sequence[str],
    mapping: Mapping[str, str] | None = None,
    kind: str = "subject",
    *,
    remedy: str = "",
) -> list[str]:
    """The label of each id.

    Args:
        side: What the ids are of, for the messages.
        ids: N ids.
        mapping: Id -> label. None takes the first path component of the ids.
        kind: What a label is: "subject" or "label".
        remedy: How labels are given; by default in a list.

    Raises:
        LikenessError: Ids have no label. All are counted, the first are named. The first component
            need not be the label (levels.check_levels).

    >>> labels_of("gallery", ["ann/1", "bob/1"])
    ['ann', 'bob']
    """
    if mapping is None:
        check_levels(ids, side, remedy=remedy or f"give a list of lines `id {kind}`")
        labels = labels_of_ids(ids)
    else:
        label_of = respell(mapping, ids)
        labels = [label_of.get(id, "") for id in ids]
    if missing := [id for id, label in zip(ids, labels, strict=True) if not label]:
        by_option = if_option(" by --labels" if kind in ("class", "label") else "")
        remedy = remedy or f"add lines `id {kind}`{by_option}, such as an utt2spk"
        count = f"{len(missing)} of {len(ids)} ids have no {kind} ({name_first(missing)})"
        raise LikenessError(f"{side}: {count}; {remedy}")
    return labels


def subjects_of(
    trials: Trials, mapping: Mapping[str, str] | None = None
) -> tuple[tuple[Ints, Ints] | None, str]:
    """Numbers the subjects of the enrol_ids and of the probe_ids of trials.

    The subjects come from the first of these sources that is there and agrees with every label:

    1. `mapping`, from id to subject;
    2. the first path component of the ids;
    3. the groups of ids that the target trials connect, if no nontarget trial lies inside a group.

    An interval over trials instead of subjects is too narrow. So a caller to whom None is returned
    has to say that the subjects are not known.

    Args:
        trials: A trial list with E enrol_ids and Q probe_ids.
        mapping: The subject of each id.

    Returns:
        The subject numbers (E,) and (Q,), which share one numbering, or None if they cannot be
        known; and a text that says how they were found.

    Raises:
        LikenessError: Ids have no subject in `mapping`, or it contradicts labels. All are counted,
            and the first is named.

    Example:
        >>> subjects_of(Trials(("ann/1", "bob/1"), ("ann/2",), [0, 1], [0, 0], [True, False]))
        ((array([0, 1], dtype=int32), array([0], dtype=int32)), 'first path component of the ids')
    """
    if mapping is not None:
        sides = (trials.enrol_ids, trials.probe_ids)
        subjects = number_subjects(*(labels_of("trials", side, mapping) for side in sides))
        if (wrong := np.flatnonzero(_contradictions(trials, subjects))).size:
            pair = pair_text(trials, int(wrong[0]))
            raise LikenessError(f"subjects: the label of {pair} contradicts the mapping")
        return subjects, "given mapping"
    if trials.target is None:
        return None, "unknown: the list has no labels"
    enrol, probe = (labels_of_ids(ids) for ids in (trials.enrol_ids, trials.probe_ids))
    named = ""
    if all(enrol) and all(probe):
        subjects = number_subjects(enrol, probe)
        wrong = np.flatnonzero(_contradictions(trials, subjects))
        if not wrong.size:
            return subjects, "first path component of the ids"
        contradict = "contradicts" if wrong.size == 1 else "contradict"
        named = (
            f", {counted(wrong.size, 'label')} of {len(trials):,} {contradict} the first folders "
            f"of the ids (first: {pair_text(trials, int(wrong[0]))})"
        )
    first, second = number_subjects(trials.enrol_ids, trials.probe_ids)
    pairs = first[trials.enrol[trials.target]], second[trials.probe[trials.target]]
    num_ids = len({*trials.enrol_ids, *trials.probe_ids})
    group = connected_groups(*pairs, num_ids).astype(np.int32)
    subjects = group[first], group[second]
    if _contradictions(trials, subjects).any():
        return (
            None,
            f"unknown: the ids do not name subjects{named}, and nontarget trials lie inside the "
            "groups that target trials connect",
        )
    return subjects, CONNECTED


def connected_groups(
    first: NDArray[np.integer[Any]], second: NDArray[np.integer[Any]], number: int
) -> NDArray[np.int64]:
    """The groups of things that pairs connect, as scipy.sparse's connected_components finds them,
    whose import takes longer than this does for most lists.

    Args:
        first: (P,) the numbers of the first of each pair.
        second: (P,) those of the second.
        number: How many things there are, N.

    Returns:
        (N,) The number of each thing's group, from 0 in the order of their first things.

    Example:
        >>> connected_groups(np.array([1, 3]), np.array([2, 1]), 5)
        array([0, 1, 1, 1, 2])
    """
    group = np.arange(number)
    while len(first):  # half of the groups that have a pair are joined each time, or more
        lowest = np.minimum(first, second)
        np.minimum.at(group, first, lowest)
        np.minimum.at(group, second, lowest)
        while (further := group[group]).sum() < group.sum():
            group = further
        first, second = group[first], group[second]
        apart = first != second
        first, second = first[apart], second[apart]
    return (np.cumsum(group == np.arange(number)) - 1)[group]


def number_subjects(enrol: Sequence[str], probe: Sequence[str]) -> tuple[Ints, Ints]:
    """One numbering of the names of both sides, by first occurrence."""
    codes = Column.of([*enrol, *probe]).codes
    return codes[: len(enrol)], codes[len(enrol) :]


def _contradictions(trials: Trials, subjects: tuple[Ints, Ints]) -> Bools:
    """(P,) where a label is not what the subjects say; nowhere in a blind list."""
    if trials.target is None:
        return np.zeros(len(trials), dtype=np.bool_)
    enrol, probe = subjects
    wrong: Bools = (enrol[trials.enrol] == probe[trials.probe]) != trials.target
    return wrong
