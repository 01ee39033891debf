"""Sampling: what a batch holds, how often each item is drawn, and runs that are resumed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.toolkit.data.sampling import Index, Sampling, check, draws, epoch_batches, fitted


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_class_balanced_batches_hold_n_distinct_classes_of_k(
    classes: int, sizes: int, each: int, epoch: int
) -> None:
    labels = np.repeat(np.arange(classes), np.arange(classes) % sizes + 1)
    per_batch = max(1, classes // 2)
    batches = epoch_batches(labels, Sampling(per_batch * each, each), seed=3, epoch=epoch)
    for batch in batches:
        drawn, counts = np.unique(labels[batch], return_counts=True)
        assert drawn.size == per_batch
        assert (counts == each).all()


def test_shuffled_is_a_pass_without_repeats() -> None:
    batches = epoch_batches(np.zeros(23, dtype=np.int64), Sampling(5), seed=0, epoch=1)
    assert batches.shape == (4, 5)
    assert np.unique(batches).size == 20


def one_by_one(labels: Index, sampling: Sampling, seed: int, epoch: int) -> Index:
    """Class-balanced batches made visit by visit, as runs before shards existed had them."""
    rng, each = np.random.default_rng((seed, epoch)), sampling.items_per_class
    members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    per_batch, num_batches = sampling.batch_size // each, max(1, labels.size // sampling.batch_size)
    rounds = [
        rng.permutation(len(members)) for _ in range(-(-num_batches * per_batch // len(members)))
    ]
    batches = np.concatenate(rounds)[: num_batches * per_batch].reshape(num_batches, per_batch)
    for row in batches:
        values, first = np.unique(row, return_index=True)
        if values.size < row.size:
            second = np.setdiff1d(np.arange(row.size), first)
            row[second] = rng.permutation(np.setdiff1d(np.arange(len(members)), values))[
                : second.size
            ]
    lines: list[list[int]] = [[] for _ in members]
    drawn: list[int] = []
    for number in batches.reshape(-1):
        while len(lines[number]) < each:
            lines[number] += rng.permutation(members[number]).tolist()
        drawn += lines[number][:each]
        del lines[number][:each]
    return np.array(drawn).reshape(num_batches, -1)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.integers(1, 5),
    st.integers(0, 2**31),
    st.data(),
)
def test_class_balanced_batches_of_a_seed_never_change(
    sizes: list[int], each: int, seed: int, data: st.DataObject
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    sampling = Sampling(each * data.draw(st.integers(1, np.unique(labels).size)), each)
    np.testing.assert_array_equal(
        epoch_batches(labels, sampling, seed=seed, epoch=2), one_by_one(labels, sampling, seed, 2)
    )


@pytest.mark.parametrize(
    "sampling",
    [Sampling(4), Sampling(4, 2), Sampling(4, weighting="sqrt"), Sampling(4, open_shards=2)],
)
@given(st.integers(0, 20))
def test_any_sampling_can_be_resumed(sampling: Sampling, start: int) -> None:
    labels, shards = np.repeat(np.arange(5), 5), np.arange(25) % 6
    whole = list(draws(labels, sampling, seed=7, start=0, stop=25, shards=shards))
    assert (
        list(draws(labels, sampling, seed=7, start=start, stop=25, shards=shards)) == whole[start:]
    )
    # an epoch has 6 batches; the next one differs
    assert whole[:6] != [
        [entry._replace(step=entry.step - 6) for entry in batch] for batch in whole[6:12]
    ]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=10), st.integers(0, 2**31))
def test_sqrt_weighting_draws_the_items_of_a_class_equally_often(
    sizes: list[int], seed: int
) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    batches = epoch_batches(labels, Sampling(1, weighting="sqrt"), seed=seed, epoch=0)
    assert batches.shape == (labels.size, 1)
    counts = np.bincount(batches.reshape(-1), minlength=labels.size)
    for index in range(len(sizes)):
        assert np.ptp(counts[labels == index]) <= 1


def test_sqrt_weighting_gives_classes_the_square_root_of_their_share() -> None:
    sizes = np.array([1, 0, 100, 400, 2500, 6999])
    labels = np.repeat(np.arange(6), sizes)
    batches = [
        epoch_batches(labels, Sampling(50, weighting="sqrt"), seed=0, epoch=epoch)
        for epoch in range(5)
    ]
    counts = np.bincount(labels[np.concatenate(batches).reshape(-1)], minlength=6)
    share = np.sqrt(sizes) / np.sqrt(sizes).sum()
    assert (np.abs(counts - 50_000 * share) <= 5 * np.sqrt(50_000 * share * (1 - share))).all()
    # the places of a class are spread over the epoch
    per_batch = (labels[batches[0]] == 5).mean(axis=1)
    assert per_batch.std() == pytest.approx(np.sqrt(share[5] * (1 - share[5]) / 50), rel=0.25)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 14), st.integers(0, 2**31)
)
def test_open_shards_reads_every_item_once_from_few_shards_at_a_time(
    sizes: list[int], window: int, seed: int
) -> None:
    shards = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    order = epoch_batches(
        np.zeros(shards.size, dtype=np.int64),
        Sampling(1, open_shards=window),
        seed=seed,
        epoch=0,
        shards=shards,
    ).reshape(-1)
    np.testing.assert_array_equal(np.sort(order), np.arange(shards.size))
    # The window slides over the shards in shuffled order, by one at a time and once around: with
    # the places moved only when a draw demands it, that suffices.
    place = np.random.default_rng((seed, 0)).permutation(len(sizes))
    newest = 0
    for at in place[shards[order]].tolist():
        if (newest - at) % len(sizes) >= window:
            newest += (at - newest) % len(sizes)
    assert newest < len(sizes)


def test_settings_that_contradict_each_other_are_refused() -> None:
    labels, shards = np.repeat(np.arange(5), 4), np.zeros(20, dtype=np.int64)
    for sampling in (
        Sampling(4, 2, "sqrt"),
        Sampling(4, 2, open_shards=2),
        Sampling(4, weighting="sqrt", open_shards=2),
    ):
        with pytest.raises(ValueError, match="exclude each other"):
            check(labels, sampling, shards)
    with pytest.raises(ValueError, match="weighting"):
        check(labels, Sampling(4, weighting="cube"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="open_shards=-1"):
        check(labels, Sampling(4, open_shards=-1))


@pytest.mark.parametrize(
    ("sampling", "says"),
    [
        (Sampling(10, 4), "multiple"),
        (Sampling(12, 2), "of 5 classes"),
        (Sampling(99), "only 20 items"),
        (Sampling(0), "at least 1"),
    ],
)
def test_impossible_batches_are_refused(sampling: Sampling, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        next(draws(np.repeat(np.arange(5), 4), sampling, seed=0, start=0, stop=1))


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=40),
    st.integers(1, 12),
    st.integers(0, 4),
)
def test_a_fitted_batch_is_the_largest_that_the_data_fill(
    labels: list[int], size: int, each: int
) -> None:
    classes = np.array(labels)
    stated = Sampling(size * max(1, each), items_per_class=each)
    batch_size = fitted(classes, stated).batch_size
    check(classes, replace(stated, batch_size=batch_size))
    if batch_size < stated.batch_size:
        with pytest.raises(ValueError, match="lower batch_size"):
            check(classes, replace(stated, batch_size=batch_size + max(1, each)))
