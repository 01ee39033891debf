"""Sampling: what a batch holds, how often each item is drawn, and runs that are resumed."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.toolkit.data.sampling import Sampling, check, draws, epoch_batches, fitted


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_class_balanced_batches_hold_n_distinct_classes_of_k(classes, sizes, each, epoch):
    labels = np.repeat(np.arange(classes), np.arange(classes) % sizes + 1)
    per_batch = max(1, classes // 2)
    batches = epoch_batches(labels, Sampling(per_batch * each, each), seed=3, epoch=epoch)
    for batch in batches:
        drawn, counts = np.unique(labels[batch], return_counts=True)
        assert drawn.size == per_batch
        assert (counts == each).all()


def test_shuffled_is_a_pass_without_repeats():
    batches = epoch_batches(np.zeros(23, dtype=np.int64), Sampling(5), seed=0, epoch=1)
    assert batches.shape == (4, 5)
    assert np.unique(batches).size == 20


@given(st.lists(st.integers(1, 9), min_size=2, max_size=9), st.integers(1, 5), st.integers(0, 99))
def test_class_balanced_draws_come_in_shuffled_rounds_of_a_class(sizes, each, seed):
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    drawn = epoch_batches(labels, Sampling(2 * each, each), seed=seed, epoch=2).reshape(-1)
    for label, size in enumerate(sizes):
        line = drawn[labels[drawn] == label]
        for start in range(0, line.size, size):
            of_round = line[start : start + size]
            assert np.unique(of_round).size == of_round.size


@pytest.mark.parametrize("sampling", [Sampling(4), Sampling(4, 2), Sampling(4, open_shards=2)])
@given(st.integers(0, 20))
def test_any_sampling_can_be_resumed(sampling, start):
    labels, shards = np.repeat(np.arange(5), 5), np.arange(25) % 6
    drawn = partial(draws, labels, sampling, seed=7, stop=25, shards=shards)
    whole = list(drawn(start=0))
    assert list(drawn(start=start)) == whole[start:]
    # an epoch has 6 batches; the next one differs
    following = [[each._replace(step=each.step - 6) for each in batch] for batch in whole[6:12]]
    assert whole[:6] != following


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 14), st.integers(0, 2**31)
)
def test_open_shards_reads_every_item_once_from_few_shards_at_a_time(sizes, window, seed):
    shards = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    alike, sampling = np.zeros(shards.size, dtype=np.int64), Sampling(1, open_shards=window)
    order = epoch_batches(alike, sampling, seed=seed, epoch=0, shards=shards).reshape(-1)
    np.testing.assert_array_equal(np.sort(order), np.arange(shards.size))
    # The window slides over the shards in shuffled order, by one at a time and once around: with
    # the places moved only when a draw demands it, that suffices.
    place = np.random.default_rng((seed, 0)).permutation(len(sizes))
    newest = 0
    for at in place[shards[order]].tolist():
        if (newest - at) % len(sizes) >= window:
            newest += (at - newest) % len(sizes)
    assert newest < len(sizes)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="exclude each other"):
        check(Sampling(4, 2, open_shards=2))
    with pytest.raises(ValueError, match="open_shards=-1"):
        check(Sampling(4, open_shards=-1))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(1, 12), st.integers(0, 4))
def test_a_fitted_batch_is_the_largest_that_the_data_fill(labels, size, each):
    stated = Sampling(size * max(1, each), items_per_class=each)
    most = each * len(set(labels)) if each else len(labels)
    assert fitted(np.array(labels), stated).batch_size == min(stated.batch_size, most)
