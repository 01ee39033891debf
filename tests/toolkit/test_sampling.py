from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.sampling import Sampling, draws, epoch_batches


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_class_balanced_batches_hold_n_distinct_classes_of_k(classes: int, sizes: int, each: int, epoch: int) -> None:
    labels = np.repeat(np.arange(classes), np.arange(classes) % sizes + 1)
    per_batch = max(1, classes // 2)
    batches = epoch_batches(labels, Sampling(per_batch * each, each), seed=3, epoch=epoch)
    for batch in batches:
        drawn, counts = np.unique(labels[batch], return_counts=True)
        assert drawn.size == per_batch
        assert (counts == each).all()


def test_class_balanced_uses_every_item_of_a_class_before_repeating_one() -> None:
    labels = np.repeat(np.arange(4), 6)
    batches = epoch_batches(labels, Sampling(8, 2), seed=0, epoch=0)
    counts = np.bincount(batches.reshape(-1), minlength=24)
    assert counts.max() == 1  # three batches of 4 classes x 2 items: 24 draws over 24 items, each once


def test_shuffled_is_a_pass_without_repeats() -> None:
    batches = epoch_batches(np.zeros(23, dtype=np.int64), Sampling(5), seed=0, epoch=1)
    assert batches.shape == (4, 5)
    assert np.unique(batches).size == 20


@given(st.integers(0, 20))
def test_a_resumed_run_sees_the_same_batches(start: int) -> None:
    labels = np.repeat(np.arange(5), 4)
    whole = list(draws(labels, Sampling(4, 2), seed=7, start=0, stop=25))
    assert list(draws(labels, Sampling(4, 2), seed=7, start=start, stop=25)) == whole[start:]


def test_epochs_and_seeds_differ() -> None:
    labels = np.repeat(np.arange(5), 4)
    first = epoch_batches(labels, Sampling(4), seed=0, epoch=0)
    assert (first != epoch_batches(labels, Sampling(4), seed=0, epoch=1)).any()
    assert (first != epoch_batches(labels, Sampling(4), seed=1, epoch=0)).any()


@pytest.mark.parametrize(
    ("sampling", "says"),
    [(Sampling(10, 4), "no multiple"), (Sampling(12, 2), "6 classes a batch"), (Sampling(99), "only 20 items"), (Sampling(0), "at least 1")],
)
def test_impossible_batches_are_refused(sampling: Sampling, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        next(draws(np.repeat(np.arange(5), 4), sampling, seed=0, start=0, stop=1))
