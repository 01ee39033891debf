"""Makes trials among labelled items: all pairs, or a seeded draw of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.items.items import Index, Item, Items, label_numbers
from likeness.eval.types import Trials


def all_pairs(items: Sequence[Item]) -> Trials:
    """Makes trials of all pairs i < j of items, which are target where the labels agree.

    Args:
        items: N items with labels.

    Returns:
        The N (N - 1) / 2 trials.

    Raises:
        LikenessError: Items have no label.

    Example:
        >>> from pathlib import Path
        >>> items = [Item(id, Path(id), id[0]) for id in ("a1", "a2", "b1")]
        >>> all_pairs(items).target.tolist()
        [True, False, False]
    """
    return _trials(items, *np.triu_indices(len(items), k=1))


def draw_pairs(
    items: Sequence[Item],
    num_trials: int,
    rng: np.random.Generator,
    *,
    same: Sequence[str | None] | None = None,
    across: Sequence[str | None] | None = None,
) -> Trials:
    """Makes trials of all pairs i < j of items, or of a draw if there are more than num_trials.

    The draw has num_trials distinct pairs. Half of them are target, as far as there are so many. It
    is uniform within each kind, and the trials are in order.

    Args:
        items: N items with labels.
        num_trials: The number of trials, at most.
        rng: The random numbers.
        same: The group of each item (N,), such as its sex. Both sides of a trial are of one group.
        across: The session of each item (N,). Both sides of a target trial are of different ones.

    Raises:
        LikenessError: Items have no label, there is no target pair to draw, or items of one label
            are in several groups.
    """
    items = Items.of(items)
    # With the items ordered by group, label and session, the later target partners of position p
    # are those from the end of its session to the end of its label, and its nontarget partners
    # those from there to the end of its group. So a pair is a number, and distinct numbers are
    # drawn. Neither all pairs nor rejected draws are ever in memory.
    label = label_numbers(items)[1]
    group, session = _numbers(same, len(items)), _numbers(across, len(items))
    if np.unique(np.stack((label, group)), axis=1).shape[1] > np.unique(label).size:
        raise LikenessError("items of one label are in several groups; correct their groups")
    order = np.lexsort((session, label, group))
    position = np.arange(len(items), dtype=np.int64)
    label_end = _run_ends(label[order])
    start = position + 1 if across is None else _run_ends(label[order], session[order])
    group_end = _run_ends(group[order])
    num_target = int((label_end - start).sum())
    if not num_target:
        reason = "has a single item" if across is None else "has items of one session only"
        num_labels = np.unique(label).size
        raise LikenessError(f"no target trial: each of the {num_labels} labels {reason}; add items")
    num_nontarget = int((group_end - label_end).sum())
    num_trials = min(num_trials, num_target + num_nontarget)
    targets = min(num_target, max(num_trials // 2, num_trials - num_nontarget))
    target_pairs = _decode(start, label_end - start, targets, rng)
    nontarget_pairs = _decode(label_end, group_end - label_end, num_trials - targets, rng)
    pairs = order[np.concatenate((target_pairs, nontarget_pairs), axis=1)]
    enrol, probe = pairs.min(axis=0), pairs.max(axis=0)
    in_order = np.lexsort((probe, enrol))
    return _trials(items, enrol[in_order], probe[in_order])


def among(
    items: Items, enrol: NDArray[Any], probe: NDArray[Any], target: NDArray[np.bool_] | None
) -> tuple[Items, Trials]:
    """Of items, those that trials between their rows name, and these trials."""
    used, places = np.unique(np.stack((enrol, probe)), return_inverse=True)
    chosen = items.take(used)
    ids, (first, second) = tuple(chosen.ids), places.reshape(2, -1).astype(np.int32)
    return chosen, Trials(ids, ids, first, second, target)


def _numbers(names: Sequence[str | None] | None, size: int) -> Index:
    """(N,) numbers of names, all the same where there are none."""
    if names is None:
        return np.zeros(size, dtype=np.int64)
    return np.unique([str(name) for name in names], return_inverse=True)[1].astype(np.int64)


def _run_ends(*keys: Index) -> Index:
    """(N,) the position after the last of the run of equal keys that each position is in."""
    changes = np.any([np.diff(key) != 0 for key in keys], axis=0)
    runs = np.append(0, np.cumsum(changes))
    return np.searchsorted(runs, runs, side="right").astype(np.int64)


def _decode(first: Index, num: Index, size: int, rng: np.random.Generator) -> Index:
    """(2, size) distinct pairs of positions.

    They are uniform over the pairs (p, first[p] + 0 ... num[p] - 1).
    """
    upto = np.cumsum(num)
    drawn = np.zeros(0, dtype=np.int64)
    if size:
        drawn = rng.choice(int(upto[-1]), size=size, replace=False)
    position = np.searchsorted(upto, drawn, side="right")
    before = upto[position] - num[position]
    return np.stack((position, first[position] + drawn - before))


def _trials(items: Sequence[Item], enrol: Index, probe: Index) -> Trials:
    """The trials of these pairs of items, with their labels."""
    items = Items.of(items)
    ids, label = tuple(items.ids), label_numbers(items)[1]
    target = label[enrol] == label[probe]
    return Trials(ids, ids, enrol.astype(np.int32), probe.astype(np.int32), target)
