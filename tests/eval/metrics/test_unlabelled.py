"""Thresholds from unlabelled items: the rate that they promise, on people who were drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.unlabelled import (
    LEAST_ITEMS,
    centre_of,
    estimated_thresholds,
    subtract_centre,
)
from likeness.eval.types import Floats, unit_rows


def place(seed: int, people: int, each: int, *, shift: float = 1.0, dim: int = 48) -> Floats:
    """Unit embeddings (people, each, dim) of a place that moves all of them into one direction.

    Some people are like others, as real ones are by sex and age.
    """
    rng = np.random.default_rng(seed)
    spread = np.exp(-np.arange(dim) / 24)
    kinds = rng.normal(size=(5, 1, dim)) * spread
    person = 0.8 * kinds[rng.integers(5, size=people)] + rng.normal(size=(people, 1, dim)) * spread
    rows = person + 0.6 * rng.normal(size=(people, each, dim)) * spread
    rows += shift * rng.normal(size=dim)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("far", [0.01, 0.05])
def test_the_rate_at_the_threshold_is_within_a_factor_of_two(far):
    rates, plain = [], []
    for seed in range(12):
        rows = place(seed, people=60, each=8, shift=2.0)
        known, new = (part.reshape(-1, part.shape[-1]) for part in (rows[:, :4], rows[:, 4:]))
        person = np.repeat(np.arange(60), 4)
        others = person[:, None] != person
        turned = unit_rows_of(subtract_centre(new, centre_of(known)))
        rates.append(((turned @ turned.T)[others] >= estimated_thresholds(known, [far])[0]).mean())
        plain.append(((new @ new.T)[others] >= estimated_thresholds(known, [far])[0]).mean())
    assert far / 2 < np.median(rates) < 2 * far
    assert all(far / 5 < rate < 5 * far for rate in rates)
    assert min(plain) > 10 * far  # scores that are not centred


def unit_rows_of(rows: Floats) -> Floats:
    return unit_rows(rows, np.linalg.norm(rows, axis=1))


def test_pairs_of_one_person_hardly_move_the_threshold():
    alone = place(0, people=240, each=1).reshape(240, -1)
    together = place(0, people=24, each=10).reshape(240, -1)  # a tenth of the pairs
    (estimated,) = estimated_thresholds(together, [0.01])
    assert estimated == pytest.approx(estimated_thresholds(alone, [0.01])[0], abs=0.15)
    assert np.quantile(unit_pairs(together), 0.99) > estimated + 0.1


def unit_pairs(rows: Floats) -> Floats:
    turned = unit_rows_of(subtract_centre(rows, centre_of(rows)))
    return (turned @ turned.T)[np.triu_indices(len(rows), 1)]


@settings(deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.1, 100))
def test_centred_rows_keep_their_norms_and_do_not_depend_on_them(seed, scale):
    rows = np.random.default_rng(seed).normal(size=(7, 5)) + 2
    centre = centre_of(unit_rows_of(rows))
    made = subtract_centre(rows * scale, centre)
    np.testing.assert_allclose(np.linalg.norm(made, axis=1), scale * np.linalg.norm(rows, axis=1))
    expected = unit_rows_of(rows) - centre  # by the definition
    np.testing.assert_allclose(unit_rows_of(made), unit_rows_of(expected), atol=1e-12)


def test_stricter_rates_have_higher_thresholds_and_too_little_is_refused():
    rows = place(3, people=50, each=2).reshape(100, -1)
    found = estimated_thresholds(rows, [0.1, 0.03, 0.01, 0.001])
    assert found == sorted(found)
    with pytest.raises(LikenessError, match="too few"):
        estimated_thresholds(rows[: LEAST_ITEMS - 1], [0.01])
    with pytest.raises(LikenessError, match="labelled"):
        estimated_thresholds(rows, [1e-4])
