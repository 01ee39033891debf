"""The positions of the threshold slider against counts by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.reports.verification import positions
from likeness.eval.types import Scores


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=60))
def test_every_distinct_score_of_a_short_list_is_a_position(pairs) -> None:
    values, target = (np.array(each) for each in zip(*pairs, strict=True))
    target[:2] = True, False
    made = positions(Scores(values.astype(float), target))
    assert made.thresholds[:-1].tolist() == sorted(set(values.tolist()))
    for i, threshold in enumerate(made.thresholds):
        assert made.false_accepts[i] == np.count_nonzero((values >= threshold) & ~target)
        assert made.false_rejects[i] == np.count_nonzero((values < threshold) & target)
    assert (made.false_accepts[-1], made.false_rejects[-1]) == (0, target.sum())


def test_positions_of_a_long_list_are_bounded_exact_and_close_where_errors_are_rare() -> None:
    rng = np.random.default_rng(0)
    target = rng.random(300_000) < 0.1
    scores = Scores((2 * target + rng.standard_normal(300_000)).astype(np.float32), target)
    made = positions(scores, wanted=[0.5, 1.25])
    assert made.thresholds.size <= 2010
    assert {0.5, 1.25} <= set(made.thresholds.tolist())
    for i in range(0, made.thresholds.size, 97):
        accepted = scores.values >= made.thresholds[i]
        assert made.false_accepts[i] == np.count_nonzero(accepted & ~target)
        assert made.false_rejects[i] == np.count_nonzero(~accepted & target)
    # The first false accepts and the first false rejects have a position each.
    assert set(range(10)) <= set(made.false_accepts.tolist())
    assert set(range(10)) <= set(made.false_rejects.tolist())
    assert np.abs(np.diff(made.false_accepts)).max() < 0.005 * (~target).sum()
    assert np.abs(np.diff(made.false_rejects)).max() < 0.005 * target.sum()
