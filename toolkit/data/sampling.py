"""Decides which items go into which batch.

These are pure functions of (seed, epoch), so that any step can be found again without saved state.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import refuse_broken
from likeness.toolkit.data.batch import Draw

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Sampling:
    """How the items of a step are drawn.

    There are two ways beside the plain one, a shuffled pass over all items, which exclude each
    other.

    - `items_per_class=K` draws batch_size/K classes x K items. Every class comes once in each pass
      over the classes, and the items of a class come in shuffled rounds.
    - `open_shards=W` is a shuffled pass whose reads stay near each other, for items in tar shards.
      The shards come in shuffled order, and their items are mixed within a window of W shards that
      slides over them.

    About the window of W shards:

    - Locality: every draw is from one of the W shards that are open at its time. Each time the
      window moves by one, one shard is closed and the next is opened. So a shard is opened once in
      an epoch; only the W - 1 shards that are open where the epoch begins and ends are opened
      twice.
    - Mixing: an item lies anywhere in the time of its shard with equal probability. So two
      neighbours share a shard with probability 1/W (if the shards have one size), and a batch draws
      on all W. With W equal to the number of shards or more, it is the plain shuffle. If the shards
      were packed in shuffled order (likeness.toolkit.data.shards.write), a window is a random
      sample of the data.

    Attributes:
        batch_size: Items per step of all processes. An epoch drops items that do not fill a batch.
        items_per_class: K items of each of batch_size/K classes per step; 0 ignores classes.
        open_shards: Tar shards mixed at a time; 0 shuffles all items.
    """

    batch_size: int = 64
    items_per_class: int = 0
    open_shards: int = 0


def epoch_batches(
    labels: Index, sampling: Sampling, *, seed: int, epoch: int, shards: Index | None = None
) -> Index:
    """Draws the batches of one epoch; equal arguments give equal batches.

    Args:
        labels: The class number of each item (N,).
        sampling: How to draw.
        seed: The seed of the run.
        epoch: The number of the epoch.
        shards: The shard number of each item (N,), needed where sampling.open_shards is set.

    Returns:
        Item indices (num_batches, batch_size).

    Example:
        >>> epoch_batches(np.zeros(5, np.int64), Sampling(batch_size=2), seed=0, epoch=0).shape
        (2, 2)
    """
    rng = np.random.default_rng((seed, epoch))
    if sampling.items_per_class:
        return _class_balanced(labels, sampling, rng)
    if sampling.open_shards:
        assert shards is not None
        return _in_batches(_windowed(shards, sampling.open_shards, rng), sampling.batch_size)
    return _in_batches(rng.permutation(labels.size), sampling.batch_size)


def draws(
    labels: Index,
    sampling: Sampling,
    *,
    seed: int,
    start: int,
    stop: int,
    shards: Index | None = None,
) -> Iterator[list[Draw]]:
    """Yields the batches of the steps start to stop - 1.

    A run that is resumed at `start` sees what an uninterrupted one sees.

    Args:
        labels: The class number of each item (N,).
        sampling: How to draw: a batch that the data can fill (see `fitted`).
        seed: The seed of the run.
        start: The first step.
        stop: The step after the last.
        shards: The shard number of each item (N,), needed where sampling.open_shards is set; see
            likeness.toolkit.data.shards.shard_numbers.

    Yields:
        The batch_size draws of one step.

    Example:
        >>> labels = np.array([0, 0, 1, 1])
        >>> steps = list(draws(labels, Sampling(batch_size=2), seed=0, start=0, stop=4))
        >>> resumed = list(draws(labels, Sampling(batch_size=2), seed=0, start=3, stop=4))
        >>> resumed == steps[3:]
        True
    """
    per_epoch = batches_per_epoch(labels.size, sampling)
    for step in range(start, stop):
        epoch, row = divmod(step, per_epoch)
        if not row or step == start:
            batches = epoch_batches(labels, sampling, seed=seed, epoch=epoch, shards=shards)
        yield [Draw(index, step, position) for position, index in enumerate(batches[row].tolist())]


def batches_per_epoch(num_items: int, sampling: Sampling) -> int:
    """Returns how many whole batches the items fill in an epoch, but at least one."""
    return max(1, num_items // sampling.batch_size)


def check(sampling: Sampling) -> None:
    """Refuses numbers out of their range, and settings that contradict each other.

    Args:
        sampling: How to draw, whatever the data.

    Raises:
        LikenessError: The message says which setting is wrong, and what is allowed.
    """
    size, each, window = sampling.batch_size, sampling.items_per_class, sampling.open_shards
    rules = {
        "sampling.batch_size is at least 1": size >= 1,
        "sampling.items_per_class is at least 0": each >= 0,
        "sampling.open_shards is at least 0": window >= 0,
        "sampling.items_per_class and sampling.open_shards exclude each other": each * window == 0,
        "sampling.batch_size is a multiple of sampling.items_per_class": not each
        or size % each == 0,
    }
    refuse_broken(rules, lambda name: getattr(sampling, name.partition(".")[2]))


def fitted(labels: Index, sampling: Sampling) -> Sampling:
    """Returns the sampling with the largest batch that the data can fill, up to its own.

    Args:
        labels: The class number of each item (N,).
        sampling: How to draw.

    Returns:
        A batch has at most N items, and with `items_per_class` at most every class once. The same
        sampling, if its batch is no larger.

    Example:
        >>> fitted(np.array([0, 0, 1, 1, 1]), Sampling(batch_size=64)).batch_size
        5
        >>> fitted(np.array([0, 0, 1, 1, 1]), Sampling(batch_size=64, items_per_class=2)).batch_size
        4
    """
    each = sampling.items_per_class
    most = each * int(np.unique(labels).size) if each else int(labels.size)
    return replace(sampling, batch_size=most) if 0 < most < sampling.batch_size else sampling


def _class_balanced(labels: Index, sampling: Sampling, rng: np.random.Generator) -> Index:
    """Batches of N classes x K items; an epoch has about as many draws as there are items.

    A class smaller than K repeats its items.
    """
    each = sampling.items_per_class
    names, sizes = np.unique(labels, return_counts=True)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(sizes)[:-1])
    per_batch = sampling.batch_size // each
    num_batches = batches_per_epoch(labels.size, sampling)
    # The classes come in whole shuffled rounds, so that no class is drawn twice in a batch unless a
    # round ends inside it. `_without_repeats` removes that case.
    order = np.concatenate(
        [rng.permutation(sizes.size) for _ in range(-(-num_batches * per_batch // sizes.size))]
    )[: num_batches * per_batch]
    visits = _without_repeats(order.reshape(num_batches, per_batch), sizes.size, rng).reshape(-1)

    lines = [deque[int]() for _ in names]  # what is left of the shuffled rounds of each class
    drawn = []
    for number in visits.tolist():
        line = lines[number]
        while len(line) < each:
            line.extend(rng.permutation(members[number]).tolist())
        drawn += [line.popleft() for _ in range(each)]
    return np.array(drawn, dtype=np.int64).reshape(num_batches, sampling.batch_size)


def _windowed(shards: Index, window: int, rng: np.random.Generator) -> Index:
    """(N,) a pass over all items in which neighbours come from few shards.

    Shard r of the shuffled order spreads its items evenly over the times r to r + window, on a ring
    of num_shards.
    """
    num_shards = int(shards.max()) + 1
    place = rng.permutation(num_shards)
    time = place[shards] + rng.random(shards.size) * min(window, num_shards)
    # Time is a ring, so that the first and the last batches are mixed as well as the others.
    time[time >= num_shards] -= num_shards
    return np.argsort(time, kind="stable")


def _without_repeats(batches: Index, num_classes: int, rng: np.random.Generator) -> Index:
    """Replaces a class that a batch contains twice by one that it does not contain."""
    ascending = np.sort(batches, axis=1)
    for number in np.flatnonzero((ascending[:, 1:] == ascending[:, :-1]).any(axis=1)):
        row = batches[number]
        values, first = np.unique(row, return_index=True)
        absent = np.setdiff1d(np.arange(num_classes), values)
        second = np.setdiff1d(np.arange(row.size), first)
        row[second] = rng.permutation(absent)[: second.size]
    return batches


def _in_batches(order: Index, size: int) -> Index:
    """Cuts an order of items into whole batches."""
    return order[: order.size // size * size].reshape(-1, size).astype(np.int64, copy=False)
