"""Measures of ISO/IEC 19795-10 by loops over the groups, and what random groups show."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.metrics.differentials import gini, worst_to_geometric_mean
from likeness.eval.metrics.groups import Grouped, evaluate_groups, table
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.types import Scores

RATES = st.lists(st.floats(0, 1), min_size=2, max_size=6)


@given(RATES)
def test_the_measures_are_those_of_loops(rates):
    size, total, product = len(rates), sum(rates), np.prod(rates)
    if total > 1e-300:
        apart = sum(abs(a - b) for a in rates for b in rates)
        expected = size / (size - 1) * apart / (2 * size**2 * total / size)
        assert float(gini(rates)) == pytest.approx(expected)
    if product > 1e-200:
        expected = max(rates) / product ** (1 / size)
        assert float(worst_to_geometric_mean(rates)) == pytest.approx(expected)
    if 0 in rates:
        assert np.isnan(worst_to_geometric_mean(rates))


def of_groups(
    values: np.ndarray, pairs: np.ndarray, sides: np.ndarray, resamples: int, fars: tuple = ()
) -> Grouped:
    """Scores of pairs of people, whose sides are of two groups."""
    settings = VerificationSettings(fars=fars, num_resamples=resamples, terms="iso")
    scores = Scores(values, pairs[:, 0] == pairs[:, 1])
    return evaluate_groups("x", scores, pairs, sides, ["one", "two"], settings=settings)


def measured(seed: int, harder: float, n: int = 24, *, resamples: int = 200) -> Grouped:
    """All pairs of n people, of whom every third is of group 2, with more alike strangers."""
    rng = np.random.default_rng(seed)
    a, b = np.triu_indices(n)
    group = np.where(np.arange(n) % 3 == 2, 1, 0)
    values = rng.normal(size=a.size) + 2.5 * (a == b)
    values += harder * ((a != b) & (group[a] == 1) & (group[b] == 1))
    pairs = np.stack([a, b], axis=1).astype(np.int32)
    return of_groups(values, pairs, group[pairs], resamples, fars=(0.1,))


def test_the_numbers_are_those_of_the_rates_in_the_table():
    grouped = measured(0, 1.0)
    found = {(each.rate, each.at, each.measure): each for each in grouped.differentials}
    assert len(found) == 2 * 2 * 2
    rates = [row.rates["global_far(0.1)"].value for row in grouped.groups]
    of = found["fmr", "0.1", "worst_to_geometric_mean"]
    assert of.worst == ["one", "two"][int(np.argmax(rates))]
    assert of.value == pytest.approx(max(rates) / np.sqrt(np.prod(rates)))
    assert of.interval[0] <= of.value <= of.interval[1]
    shares = abs(rates[0] - rates[1]) / sum(rates)
    assert found["fmr", "0.1", "gini"].value == pytest.approx(shares)
    missed = [1 - row.rates["global_tar(eer)"].value for row in grouped.groups]
    of = found["fnmr", "eer", "gini"]
    assert of.worst == ["one", "two"][int(np.argmax(missed))]
    assert "chance alone" in table([grouped])


def test_random_groups_show_what_all_divisions_do():
    """Six people have 15 divisions into 4 and 2; each is as likely as the others."""
    n, rng = 6, np.random.default_rng(4)
    a, b = np.triu_indices(n)
    a, b = np.tile(a, 8), np.tile(b, 8)
    values = rng.normal(size=a.size) + 1.0 * (a == b)
    pairs = np.stack([a, b], axis=1).astype(np.int32)
    group = np.array([0, 0, 0, 0, 1, 1])
    grouped = of_groups(values, pairs, group[pairs], 500)
    of = grouped.differentials[0]
    limit = grouped.thresholds["eer"]

    def ratio(group_of) -> float:
        rates = []
        for g in (0, 1):
            inside = (group_of[a] == g) & (group_of[b] == g) & (a != b)
            rates.append((values[inside] >= limit).mean())
        return max(rates) / np.sqrt(np.prod(rates)) if all(rates) else np.inf

    every = [ratio(np.array(dealt)) for dealt in set(permutations(group.tolist()))]
    assert of.value == pytest.approx(ratio(group))
    least = [one for one in every if np.mean(np.array(every) <= one + 1e-12) >= 0.9]
    if of.by_chance is None:  # a division in which a group shows no error has no bound
        assert not np.isfinite(max(every))
    else:
        assert any(of.by_chance == pytest.approx(one) for one in least)


def test_chance_alone_is_rarely_found_and_a_difference_often():
    same = [measured(seed, 0.0, resamples=100).differentials[3] for seed in range(20)]
    other = [measured(seed, 2.0, 60, resamples=100).differentials[2] for seed in range(5)]
    assert np.mean([of.value is not None and of.value > of.by_chance for of in same]) <= 0.2
    assert all(of.value > of.by_chance for of in other)
    assert "is hardly the reason" in other[0].sentence()


def test_people_who_change_their_group_have_no_random_division():
    a, b = np.triu_indices(8)
    pairs = np.stack([a, b], axis=1).astype(np.int32)
    values = np.random.default_rng(0).normal(size=a.size) + (a == b)
    sides = np.repeat(np.arange(a.size)[:, None] % 2, 2, axis=1).astype(np.int32)
    changing = of_groups(values, pairs, sides, 20)
    assert all(each.by_chance is None for each in changing.differentials)
    assert any("has no bound here" in each.sentence() for each in changing.differentials)
