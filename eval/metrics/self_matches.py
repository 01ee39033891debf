"""What compares an item with itself, and pairs that are there twice.

An item that is compared with itself measures nothing, so no rate counts it. `Trials` itself refuses
a pair with two labels. A pair that is there twice counts each time, and is named: published lists
have such pairs (VoxCeleb1-O 337, in both orders), and their numbers are over all trials.

The protocols of published sets (IJB, LFW) are measured as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError, shorten
from likeness.eval.formats.embeddings import Embeddings, Labelled
from likeness.eval.metrics.ranks import duplicates, row_keys
from likeness.eval.types import (
    Bools,
    Floats,
    Pairs,
    Trials,
    ascending,
    counted,
    number_items,
    pair_text,
    quoted,
    same_items,
)

Rows = NDArray[np.int64]


def itself_text(what: str, count: int, total: int, first: str, *, left_out: bool = True) -> str:
    """Say how many comparisons are of an item with itself, in the words of all commands.

    Args:
        what: What they are: "trials", "pairs" or "searches".
        count: How many are of an item with itself.
        total: How many there are.
        first: The first of them.
        left_out: Whether they are left out, or shown because they were asked for.

    Example:
        >>> itself_text("trials", 1, 20, "a a")
        '1 of 20 trials compares an item with itself (first: a a), which measures nothing and is \
left out'
    """
    text = f"{_share(count, total, what, 'compare')} an item with itself (first: {first})"
    return f"{text}, which measures nothing{' and is left out' * left_out}"


def _share(count: int, total: int, what: str, verb: str) -> str:
    """How many of some comparisons do something."""
    return f"{count:,} of {total:,} {what} {verb}{'s' * (count == 1)}"


def without_self_trials(
    trials: Trials, itself: Rows | None = None, *, left_out: bool = True
) -> tuple[Trials, Bools]:
    """Leave out the trials of an item with itself, and name them and those that repeat a pair.

    Args:
        trials: P trials.
        itself: The rows of those with themselves (default: those whose ids name one item).
        left_out: Whether they are left out; else they are only named.

    Returns:
        The other trials, and (P,) which these are.

    Raises:
        LikenessError: No trial is left.

    Example:
        >>> trials = Trials(("a",), ("a", "b"), [0, 0], [0, 1], [True, False])
        >>> others, rows = without_self_trials(trials)
        >>> len(others), rows.tolist(), others.self_matches
        (1, [False, True], 1)
    """
    itself = trials.itself if itself is None else itself
    others: Bools = np.ones(len(trials), dtype=np.bool_)
    if itself.size:
        row, others[itself] = itself[0], not left_out
        text = ("trials", itself.size, len(trials), pair_text(trials, row))
        if not others.any():
            raise LikenessError(f"{itself_text(*text)}; give pairs of different items")
        warnings.warn(itself_text(*text, left_out=left_out), stacklevel=3)
    warn_of_repeats(trials, "trials")
    if not others.all():
        trials = trials.rows(others, self_matches=trials.self_matches + itself.size)
    return trials, others


def warn_of_repeats(trials: Trials, what: str) -> None:
    """Name the labelled trials that repeat a pair."""
    if trials.repeats:
        text = f"{_share(trials.repeats, len(trials), what, 'repeat')} a pair, in any order; each"
        warnings.warn(f"{text} counts, as in published lists", stacklevel=4)


def warn_of_two_scores(where: str, trials: Trials, values: Floats) -> None:
    """Name the pairs that are there twice with scores that differ.

    Args:
        where: The system or file, with which the message begins.
        trials: P labelled trials.
        values: (P,) their scores.
    """
    if not trials.repeats:
        return
    pairs = trials.pairs()
    order = ascending(pairs)
    again = np.flatnonzero(np.diff(pairs[order]) == 0)
    first, second = order[again], order[again + 1]
    differ = np.flatnonzero(~np.isclose(values[first], values[second], rtol=1e-5, atol=1e-6))
    if differ.size:
        rows = int(first[differ[0]]), int(second[differ[0]])
        shown = " and ".join(f"{values[row]:.6g}" for row in rows)
        text = f"{where}: {counted(differ.size, 'pair')} scored twice with scores that differ"
        example = f"(first: {pair_text(trials, rows[0])}, {shown})"
        warnings.warn(f"{text} {example}; each counts, so remove the wrong ones", stacklevel=4)


def trial_counts(trials: Trials) -> dict[str, int]:
    """What a result says of the list of its trials: self-matches left out, pairs repeated."""
    counts = {"self_matches": trials.self_matches, "repeated_trials": trials.repeats}
    return {name: count for name, count in counts.items() if count}


def enrolled_itself(trials: Trials, models: Mapping[str, Sequence[str]]) -> Rows:
    """The rows of trials whose probe is one of the items that enrol the model.

    Args:
        trials: P trials of models.
        models: Model -> the items that enrol it.

    Example:
        >>> trials = Trials(("ann",), ("ann/1", "ann/2"), [0, 0], [0, 1])
        >>> enrolled_itself(trials, {"ann": ["./ann/1"]}).tolist()
        [0]
    """
    items = [(row, item) for row, m in enumerate(trials.enrol_ids) for item in models.get(m, ())]
    rows, probes = same_items([item for _, item in items], trials.probe_ids)
    width = len(trials.probe_ids)
    enrolled = np.array([row for row, _ in items], np.int64)[rows] * width + probes
    return np.flatnonzero(np.isin(trials.enrol.astype(np.int64) * width + trials.probe, enrolled))


def content_keys(rows: Embeddings) -> NDArray[np.uint64]:
    """(N,) a number for what an item holds: embeddings that are equal bit for bit share it."""
    keys = row_keys(rows.matrix).astype(np.uint64) << np.uint64(32)
    return keys | rows.norms.view(np.uint32)


def warn_of_copies(what: str, copies: NDArray[Any], total: int, pair: Callable[[int], str]) -> None:
    """Name the comparisons of two items that hold the same, such as a file and its copy.

    They count: equal embeddings are no proof, and data sets are published with their copies.

    Args:
        what: As in `itself_text`.
        copies: The rows of such comparisons.
        total: How many comparisons there are.
        pair: The names of both sides of a row.
    """
    if copies.size:
        text = f"{_share(copies.size, total, what, 'compare')} two copies of one item (first: "
        text += f"{shorten(pair(int(copies[0])))}, whose embeddings are equal)"
        warnings.warn(f"{text}; they count, so remove one of each copy", stacklevel=4)


def warn_of_copied_trials(trials: Trials, enrol: Embeddings, probe: Embeddings) -> None:
    """Name the trials of two items with equal embeddings.

    Args:
        trials: P trials.
        enrol: What its enrolment ids were made from, before they were pooled or centred.
        probe: The same of its probe ids.
    """
    keys = content_keys(enrol), content_keys(probe)
    i, j = enrol.rows(trials.enrol_ids), probe.rows(trials.probe_ids)
    is_copy = keys[0][i][trials.enrol] == keys[1][j][trials.probe]
    is_copy &= (enrol.norms[i] > 0)[trials.enrol]
    is_copy[trials.itself] = False
    copies = np.flatnonzero(is_copy)
    warn_of_copies("trials", copies, len(trials), lambda row: pair_text(trials, row))


def name_self_matches(
    queries: Embeddings, gallery: Embeddings, itself: Pairs, *, among: bool = False
) -> None:
    """Name the queries that are in a gallery themselves, or whose copy is.

    Args:
        queries: What is searched for.
        gallery: What is searched in.
        itself: The queries that are in the gallery themselves, as `self_matches` finds them.
        among: Whether the queries search each other, so that all are.
    """
    found = np.unique(itself[0])
    if found.size and not among:
        name = shorten(queries.ids[found[0]])
        warnings.warn(itself_text("searches", found.size, len(queries), name), stacklevel=3)
    asked, searched = content_keys(queries), content_keys(gallery)
    keys, counts = np.unique(searched, return_counts=True)
    place = np.minimum(np.searchsorted(keys, asked), keys.size - 1)
    num = np.where(keys[place] == asked, counts[place], 0)
    same = asked[itself[0]] == searched[itself[1]]
    np.subtract.at(num, itself[0][same], 1)
    copies = np.flatnonzero((num > 0) & (queries.norms > 0))

    def pair(row: int) -> str:
        own = itself[1][itself[0] == row]
        other = np.setdiff1d(np.flatnonzero(searched == asked[row]), own)[0]
        return f"{queries.ids[row]} {gallery.ids[other]}"

    warn_of_copies("searches", copies, len(queries), pair)


def without_copies(embeddings: Embeddings) -> Embeddings:
    """Leave out items that are there again, by their ids or with equal embeddings, and name them.

    Args:
        embeddings: Items that are all compared with each other.

    Example:
        >>> without_copies(Embeddings(("a", "./a", "b"), [[1, 0], [1, 1], [0, 1]])).ids
        ('a', 'b')
    """
    (numbers,) = number_items(embeddings.ids)
    every = np.arange(len(embeddings))
    again = np.union1d(every[numbers != every], duplicates(embeddings.matrix, "dot")[0])
    if not again.size:
        return embeddings
    name = shorten(embeddings.ids[again[0]])
    text = f"items that repeat another are left out: {again.size} of {len(embeddings)}"
    warnings.warn(f"{text} (first: {name})", stacklevel=3)
    first = np.setdiff1d(every, again)
    ids = tuple(embeddings.ids[row] for row in first)
    return Embeddings(ids, embeddings.matrix[first], embeddings.meta)


def self_matches(queries: Labelled, gallery: Labelled) -> Pairs:
    """Find the queries that are in a gallery themselves, by their ids.

    Args:
        queries: What is searched for.
        gallery: What is searched in.

    Returns:
        (K,) rows of the queries in their order, and (K,) rows of the gallery.

    Raises:
        LikenessError: An item has another label in the gallery.

    Example:
        >>> rows = Embeddings(("a", "b"), [[1, 0], [0, 1]])
        >>> gallery = Embeddings(("c", "./b"), [[1, 0], [0, 1]])
        >>> self_matches(Labelled(rows, ["a", "b"]), Labelled(gallery, ["c", "b"]))
        (array([1]), array([1]))
    """
    rows, found = same_items(queries.embeddings.ids, gallery.embeddings.ids)
    labels = np.asarray(queries.labels)[rows], np.asarray(gallery.labels)[found]
    for at in np.flatnonzero(labels[0] != labels[1])[:1].tolist():
        name, both = queries.embeddings.ids[rows[at]], [quoted(str(of[at])) for of in labels]
        raise LikenessError(f"{name!r} is labelled both {' and '.join(both)}; remove one label")
    return rows, found
