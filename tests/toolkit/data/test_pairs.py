"""Trials within groups and across sessions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.toolkit.data.items import Item
from likeness.toolkit.data.pairs import draw_pairs


@pytest.mark.parametrize("num_trials", [10, 40, 10_000])
@pytest.mark.parametrize("has_sexes", [False, True])
@pytest.mark.parametrize("has_sessions", [False, True])
def test_trials_within_groups_and_across_sessions(
    num_trials: int, has_sexes: bool, has_sessions: bool
) -> None:
    """Against all pairs by loops."""
    rng = np.random.default_rng(1)
    labels = [f"s{number}" for number in rng.integers(0, 7, 40)]
    items = [Item(str(i), Path(str(i)), label) for i, label in enumerate(labels)]
    sexes = ["fm"[int(label[1]) % 2] for label in labels]
    sessions = [str(number) for number in rng.integers(0, 3, 40)]
    allowed = {
        (i, j): labels[i] == labels[j]
        for i in range(40)
        for j in range(i + 1, 40)
        if (not has_sexes or sexes[i] == sexes[j])
        and (not has_sessions or labels[i] != labels[j] or sessions[i] != sessions[j])
    }
    trials = draw_pairs(
        items,
        num_trials,
        np.random.default_rng(0),
        same=sexes if has_sexes else None,
        across=sessions if has_sessions else None,
    )
    assert trials.target is not None
    drawn = list(zip(trials.enrol.tolist(), trials.probe.tolist(), strict=True))
    assert drawn == sorted(set(drawn))
    assert [allowed[pair] for pair in drawn] == trials.target.tolist()
    assert len(drawn) == min(num_trials, len(allowed))
    if num_trials <= 40:
        assert trials.target.sum() == num_trials // 2
