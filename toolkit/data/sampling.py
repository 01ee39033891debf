"""Which items go into which batch: pure functions of (seed, epoch), so that any step can be found
again without saved state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.data.batch import Draw

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Sampling:
    """batch_size items a step; an epoch has as many whole batches as the items fill (what is left
    over is dropped).

    items_per_class=0: a shuffled pass over all items. items_per_class=K: batch_size/K classes x K
    items; every class once per epoch pass, items of a class in shuffled rounds. weighting="sqrt":
    each place is given to a class with probability proportional to the square root of its size, and
    the items of a class are drawn equally often up to one (word2vec's and mBERT's compromise
    between the classes' natural shares and equal ones).

    open_shards=W: a shuffled pass whose reads stay near each other, for items in tar shards: the
    shards come in shuffled order and their items are mixed within a window of W shards that slides
    over them.
    - Locality: every draw is from one of the W shards open at its time; each time the window moves
      by one, one shard is closed and the next opened, so that a shard is opened once in an epoch
      (the W - 1 that are open where it begins and ends, twice).
    - Mixing: an item lies anywhere in its shard's time with equal probability, so that two
      neighbours share a shard with probability 1/W (where shards are of a size) and a batch draws
      on all W; with W = number of shards or more it is the plain shuffle. Of shards that were
      packed in shuffled order (toolkit.data.shards.write), a window is a random sample of the data.
    """

    batch_size: int = 64
    items_per_class: int = 0
    weighting: Literal["uniform", "sqrt"] = "uniform"
    open_shards: int = 0


def epoch_batches(
    labels: Index, sampling: Sampling, *, seed: int, epoch: int, shards: Index | None = None
) -> Index:
    """(num_batches, batch_size) item indices of one epoch, equal for equal arguments. labels,
    shards: (N,) class and shard number of each item.
    """
    rng = np.random.default_rng((seed, epoch))
    if sampling.items_per_class:
        return _class_balanced(labels, sampling, rng)
    if sampling.weighting == "sqrt":
        return _in_batches(_sqrt_weighted(labels, rng), sampling.batch_size)
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
    """The batches of steps start..stop-1; a run resumed at `start` sees what an uninterrupted one
    sees. shards: (N,) shard number of each item, where sampling.open_shards is set
    (toolkit.data.shards.shard_numbers).
    """
    check(labels, sampling, shards)
    per_epoch = max(1, labels.size // sampling.batch_size)
    epoch, batches = -1, np.empty((0, 0), dtype=np.int64)
    for step in range(start, stop):
        wanted, row = divmod(step, per_epoch)
        if wanted != epoch:
            epoch, batches = (
                wanted,
                epoch_batches(labels, sampling, seed=seed, epoch=wanted, shards=shards),
            )
            assert len(batches) == per_epoch
        yield [Draw(index, step, position) for position, index in enumerate(batches[row].tolist())]


def check(labels: Index, sampling: Sampling, shards: Index | None = None) -> None:
    """ValueError if the data cannot fill one batch, or the settings contradict each other."""
    size, each, window = sampling.batch_size, sampling.items_per_class, sampling.open_shards
    if size < 1 or each < 0 or window < 0:
        raise ValueError(
            f"sampling: batch_size={size}, items_per_class={each} and open_shards={window}; "
            "batch_size must be at least 1, items_per_class and open_shards at"
            " least 0 (0 = shuffled)"
        )
    if sampling.weighting not in ("uniform", "sqrt"):
        raise ValueError(
            f"sampling: weighting={sampling.weighting!r}; 'uniform' and 'sqrt' are allowed"
        )
    if (each > 0) + (sampling.weighting == "sqrt") + (window > 0) > 1:
        raise ValueError(
            f"sampling: items_per_class={each}, weighting={sampling.weighting!r} and "
            f"open_shards={window} exclude each other; set one of them, since classes"
            " that are drawn by their weight lie in any shard"
        )
    if window and (shards is None or shards.shape != labels.shape):
        raise ValueError(
            f"sampling: open_shards={window} needs the shard number of each of the {labels.size} "
            "items, but got"
            f" {'none' if shards is None else f'shape {shards.shape}'}; only items in tar shards "
            "have one (toolkit.data.shards): set open_shards to 0 for files"
        )
    if each and size % each:
        raise ValueError(f"sampling: batch_size={size} is no multiple of items_per_class={each}")
    if each and size // each > (classes := int(np.unique(labels).size)):
        raise ValueError(
            f"sampling: {size // each} classes a batch (batch_size {size} / items_per_class "
            f"{each}) but the data has {classes}; lower batch_size"
        )
    if not each and size > labels.size:
        raise ValueError(
            f"sampling: batch_size={size} but there are only {labels.size} items; lower batch_size"
        )


def _class_balanced(labels: Index, sampling: Sampling, rng: np.random.Generator) -> Index:
    """N classes x K items; an epoch has about as many draws as there are items.

    A class smaller than K repeats its items.
    """
    each = sampling.items_per_class
    by_class = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    sizes = sizes[sizes > 0]
    first = np.cumsum(sizes) - sizes
    per_batch = sampling.batch_size // each
    num_batches = max(1, labels.size // sampling.batch_size)
    # Whole shuffled rounds over the classes, so that no class is drawn twice in a batch unless a
    # round ends inside it; that case is swapped away below.
    order = np.concatenate(
        [rng.permutation(sizes.size) for _ in range(-(-num_batches * per_batch // sizes.size))]
    )[: num_batches * per_batch]
    visits = _without_repeats(order.reshape(num_batches, per_batch), sizes.size, rng).reshape(-1)

    # Each visit takes the next K of its class's line of shuffled rounds. Round k of a class is
    # shuffled at the first visit that reaches into it, in the order of the visits: the random
    # numbers are drawn as if the batches were made one by one.
    num_visits = np.bincount(visits, minlength=sizes.size)
    by_visit = np.argsort(visits, kind="stable")
    first_visit = np.cumsum(num_visits) - num_visits
    nth = np.empty(visits.size, dtype=np.int64)  # how many visits to its class came before
    nth[by_visit] = np.arange(visits.size) - np.repeat(first_visit, num_visits)
    num_rounds = -(-num_visits * each // sizes)
    round_class = np.repeat(np.arange(sizes.size), num_rounds)
    round_number = np.arange(round_class.size) - np.repeat(
        np.cumsum(num_rounds) - num_rounds, num_rounds
    )
    reached_at = by_visit[first_visit[round_class] + round_number * sizes[round_class] // each]
    start = np.cumsum(num_rounds * sizes) - num_rounds * sizes  # where a class's line begins
    line = np.empty(int((num_rounds * sizes).sum()), dtype=np.int64)
    in_order = np.lexsort((round_number, reached_at))
    round_class, round_number = round_class[in_order], round_number[in_order]
    places = start[round_class] + round_number * sizes[round_class]
    for place, begin, size in zip(
        places.tolist(), first[round_class].tolist(), sizes[round_class].tolist(), strict=True
    ):
        line[place : place + size] = rng.permutation(by_class[begin : begin + size])
    drawn: Index = line[(start[visits] + nth * each)[:, None] + np.arange(each)]
    return drawn.reshape(num_batches, sampling.batch_size)


def _sqrt_weighted(labels: Index, rng: np.random.Generator) -> Index:
    """(N,) draws with repeats, in random order: places are given to classes by the square roots of
    their sizes.
    """
    sizes = np.bincount(labels)
    share = np.sqrt(sizes)
    drawn = rng.multinomial(labels.size, share / share.sum())
    rounds, rest = np.divmod(drawn, np.maximum(sizes, 1))
    by_class = rng.permutation(labels.size)
    by_class = by_class[
        np.argsort(labels[by_class], kind="stable")
    ]  # each class's items in random order
    rank = np.arange(labels.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    ordered = labels[by_class]
    return rng.permutation(np.repeat(by_class, rounds[ordered] + (rank < rest[ordered])))


def _windowed(shards: Index, window: int, rng: np.random.Generator) -> Index:
    """(N,) a pass over all items: shard r of the shuffled order spreads its items evenly over the
    times r to r + window, on a ring of num_shards.
    """
    num_shards = int(shards.max()) + 1
    place = rng.permutation(num_shards)
    time = place[shards] + rng.random(shards.size) * min(window, num_shards)
    time[time >= num_shards] -= (
        num_shards  # on a ring, so that the first and last batches are mixed as well as the others
    )
    return np.argsort(time, kind="stable")


def _without_repeats(batches: Index, num_classes: int, rng: np.random.Generator) -> Index:
    """Replace a class that a batch holds twice by one that it does not hold."""
    ascending = np.sort(batches, axis=1)
    for number in np.flatnonzero((ascending[:, 1:] == ascending[:, :-1]).any(axis=1)):
        row = batches[number]
        values, first = np.unique(row, return_index=True)
        absent = np.setdiff1d(np.arange(num_classes), values)
        second = np.setdiff1d(np.arange(row.size), first)
        row[second] = rng.permutation(absent)[: second.size]
    return batches


def _in_batches(order: Index, size: int) -> Index:
    return order[: order.size // size * size].reshape(-1, size).astype(np.int64)
