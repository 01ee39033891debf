"""Guaranteed thresholds: the count by the beta distribution, the pairs by their definition, and the
share of draws of subjects in which the rate is kept by simulation.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import beta, binom, norm

from likeness.eval.guarantee import (
    guaranteed_threshold,
    independent_scores,
    num_allowed,
    pairs_needed,
)
from likeness.eval.types import Scores

FAR, CONFIDENCE = 0.1, 0.95


@pytest.mark.parametrize("far", [0.001, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("confidence", [0.05, 0.5, 0.95, 0.99])
def test_the_count_is_the_largest_whose_clopper_pearson_bound_is_the_rate(
    far: float, confidence: float
) -> None:
    least = pairs_needed(far, confidence)
    assert num_allowed(far, confidence, least) == 0
    assert num_allowed(far, confidence, least - 1) == -1
    for size in (least, 2 * least + 7, 40 * least):
        k = num_allowed(far, confidence, size)
        assert beta.ppf(confidence, k + 1, size - k) <= far * (1 + 1e-9)
        # Of as many false accepts as trials the bound is 1.
        assert k + 1 == size or beta.ppf(confidence, k + 2, size - k - 1) > far


def complete(num: int) -> NDArray[np.int64]:
    """All pairs of subjects."""
    return np.stack(np.triu_indices(num, 1), axis=1)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_no_two_trials_share_a_subject_and_none_could_be_added(
    trials: list[tuple[int, int, int]], random: object
) -> None:
    trials = [(a, b, 100 * min(a, b) + 10 * max(a, b) + c) for a, b, c in trials if a != b]
    if not trials:
        return
    pairs, values = np.array([t[:2] for t in trials]), np.array([t[2] for t in trials])
    drawn = independent_scores(values, pairs)
    used = [divmod(int(value) // 10, 10) for value in drawn]  # a score names its subjects
    subjects = [subject for pair in used for subject in pair]
    assert len(set(subjects)) == len(subjects)
    assert all(a in subjects or b in subjects for a, b in pairs.tolist())
    # Neither the order of rows nor of sides matters.
    order = list(range(len(trials)))
    random.shuffle(order)  # type: ignore[attr-defined]
    again = independent_scores(values[order], pairs[order][:, ::-1])
    assert again.tolist() == drawn.tolist()


def test_every_pair_and_every_trial_of_a_pair_is_drawn_equally_often() -> None:
    pairs = np.repeat(complete(4), 3, axis=0)  # six pairs of three trials
    values = np.arange(18.0)
    counts = np.zeros(18)
    for seed in range(3000):
        drawn = independent_scores(values, pairs, seed=seed)
        assert drawn.size == 2
        counts[drawn.astype(int)] += 1
    expected = 3000 * 2 / 18
    # 18 counts, each binomial; 4.5 standard errors are passed once in 8,000 runs of other seeds.
    assert np.abs(counts - expected).max() < 4.5 * math.sqrt(expected)


def population(num: int, rng: np.random.Generator) -> tuple[Scores, NDArray[np.int64]]:
    """All pairs of some subjects: a nontarget score is the sum of two effects and noise.

    A subject who resembles many has a high effect. The sum is normal with variance 1 + 1 + 1/4.
    """
    pairs = complete(num)
    effects = rng.standard_normal(num)
    nontarget = effects[pairs].sum(axis=1) + 0.5 * rng.standard_normal(len(pairs))
    own = np.repeat(np.arange(num)[:, None], 2, axis=1)
    values = np.concatenate([np.full(num, 50.0), nontarget])
    return Scores(values, np.arange(values.size) < num), np.concatenate([own, pairs])


def true_far(threshold: float) -> float:
    return float(norm.sf(threshold / math.sqrt(2.25)))


def trial_wise(scores: Scores) -> float:
    """The threshold of the same rule if trials were independent, as they are not."""
    nontarget = np.sort(scores.nontargets)
    k = num_allowed(FAR, CONFIDENCE, nontarget.size)
    return float(np.nextafter(nontarget[nontarget.size - 1 - k], np.inf))


@pytest.mark.parametrize("num", [60, pytest.param(110, marks=pytest.mark.slow)])
def test_the_rate_is_exceeded_as_rarely_as_stated_where_bounds_over_trials_fail(num: int) -> None:
    rng = np.random.default_rng(num)
    repeats = 1000
    ours = naive = 0
    for _ in range(repeats):
        scores, subjects = population(num, rng)
        threshold, guarantee = guaranteed_threshold(scores, subjects, FAR, confidence=CONFIDENCE)
        ours += true_far(threshold) > FAR
        naive += true_far(trial_wise(scores)) > FAR
    # Scores do not tie, so the chance is the binomial tail itself, up to the gap between the limit
    # and the next score, which the threshold is.
    chance = binom.cdf(guarantee.allowed, num // 2, FAR)
    assert chance <= 1 - CONFIDENCE
    low, high = binom.ppf([0.0005, 0.9995], repeats, chance)
    assert low - 5 <= ours <= high
    assert binom.cdf(ours, repeats, 1 - CONFIDENCE) < 0.999  # not above 5 % in truth
    assert naive > 0.25 * repeats


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_threshold_is_the_lowest_score_that_the_count_allows(seed: int) -> None:
    scores, subjects = population(70, np.random.default_rng(seed))
    threshold, guarantee = guaranteed_threshold(scores, subjects, FAR)
    drawn = independent_scores(scores.nontargets, subjects[~scores.target])
    assert guarantee.pairs == drawn.size == 35
    assert (drawn >= threshold).sum() == guarantee.allowed
    lower = scores.values[scores.values < threshold].max()
    assert (drawn >= lower).sum() > guarantee.allowed
    assert guarantee.measured_far == np.mean(scores.nontargets >= threshold)
    assert num_allowed(FAR, CONFIDENCE, guarantee.pairs) == guarantee.allowed
