"""Which items go into which batch: pure functions of (seed, epoch), so that any step can be found again without saved state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from toolkit.batch import Draw

Index = NDArray[np.int64]


@dataclass(frozen=True)
class Sampling:
    """batch_size items a step. items_per_class=0: a shuffled pass over all items (the last, smaller batch is dropped).
    items_per_class=K: batch_size/K classes x K items; every class once per epoch pass, items of a class in shuffled rounds."""

    batch_size: int = 64
    items_per_class: int = 0


def epoch_batches(labels: Index, sampling: Sampling, *, seed: int, epoch: int) -> Index:
    """(num_batches, batch_size) item indices of one epoch, equal for equal arguments. labels: (N,) class numbers."""
    rng = np.random.default_rng((seed, epoch))
    if sampling.items_per_class == 0:
        return _in_batches(rng.permutation(labels.size), sampling.batch_size)
    return _class_balanced(labels, sampling, rng)


def draws(labels: Index, sampling: Sampling, *, seed: int, start: int, stop: int) -> Iterator[list[Draw]]:
    """The batches of steps start..stop-1; a run resumed at `start` sees what an uninterrupted one sees."""
    check(labels, sampling)
    epoch, per_epoch = 0, epoch_batches(labels, sampling, seed=seed, epoch=0)
    for step in range(start, stop):
        wanted, row = divmod(step, len(per_epoch))  # every epoch has as many batches as the first
        if wanted != epoch:
            epoch, per_epoch = wanted, epoch_batches(labels, sampling, seed=seed, epoch=wanted)
        yield [Draw(int(index), step, position) for position, index in enumerate(per_epoch[row])]


def check(labels: Index, sampling: Sampling) -> None:
    """ValueError if the data cannot fill one batch."""
    size, each = sampling.batch_size, sampling.items_per_class
    classes = int(np.unique(labels).size)
    if size < 1 or each < 0:
        raise ValueError(f"sampling: batch_size={size} and items_per_class={each}; batch_size must be at least 1, items_per_class at least 0 (0 = shuffled)")
    if each and size % each:
        raise ValueError(f"sampling: batch_size={size} is no multiple of items_per_class={each}")
    if each and size // each > classes:
        raise ValueError(f"sampling: {size // each} classes a batch (batch_size {size} / items_per_class {each}) but the data has {classes}; lower batch_size")
    if not each and size > labels.size:
        raise ValueError(f"sampling: batch_size={size} but there are only {labels.size} items; lower batch_size")


def _class_balanced(labels: Index, sampling: Sampling, rng: np.random.Generator) -> Index:
    """N classes x K items; an epoch has about as many draws as there are items. A class smaller than K repeats its items."""
    each = sampling.items_per_class
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    members = [one for one in members if one.size]
    per_batch = sampling.batch_size // each
    num_batches = max(1, labels.size // sampling.batch_size)
    # Whole shuffled rounds over the classes, so that no class is drawn twice in a batch unless a round ends inside it; that case is swapped away below.
    order = np.concatenate([rng.permutation(len(members)) for _ in range(-(-num_batches * per_batch // len(members)))])[: num_batches * per_batch]
    batches = _without_repeats(order.reshape(num_batches, per_batch), len(members), rng)
    queues = [np.empty(0, dtype=np.int64) for _ in members]
    drawn = np.empty((num_batches, per_batch, each), dtype=np.int64)
    for row, classes in enumerate(batches):
        for column, number in enumerate(classes):
            while queues[number].size < each:
                queues[number] = np.concatenate([queues[number], rng.permutation(members[number])])
            drawn[row, column], queues[number] = queues[number][:each], queues[number][each:]
    return drawn.reshape(num_batches, sampling.batch_size)


def _without_repeats(batches: Index, num_classes: int, rng: np.random.Generator) -> Index:
    """Replace a class that a batch holds twice by one that it does not hold."""
    for row in batches:
        values, first = np.unique(row, return_index=True)
        if values.size < row.size:
            absent = np.setdiff1d(np.arange(num_classes), values)
            second = np.setdiff1d(np.arange(row.size), first)
            row[second] = rng.permutation(absent)[: second.size]
    return batches


def _in_batches(order: Index, size: int) -> Index:
    return order[: order.size // size * size].reshape(-1, size).astype(np.int64)
