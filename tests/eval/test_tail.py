"""Extrapolated rates against distributions whose tail is known, and against loops."""

from __future__ import annotations

import numpy as np
import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.protocols.verification import VerificationSettings, evaluate
from likeness.eval.tail import Tail, _pareto, extrapolated, fit_tail
from likeness.eval.types import Scores


@pytest.mark.parametrize("shape", [-0.3, 0.0, 0.2])
def test_a_tail_is_the_generalised_pareto_distribution(shape) -> None:
    from scipy.stats import genpareto

    tail = Tail(1.5, 0.02, shape, 0.7)
    x = np.array([1.5, 1.7, 2.5, 3.5])
    np.testing.assert_allclose(tail.far(x), 0.02 * genpareto(shape, 1.5, 0.7).sf(x), rtol=1e-6)
    np.testing.assert_allclose(tail.far(tail.threshold(np.array([1e-2, 1e-5]))), [1e-2, 1e-5])


@pytest.mark.parametrize("seed", range(5))
def test_the_moments_are_those_of_a_loop(seed) -> None:
    excesses = np.sort(np.random.default_rng(seed).exponential(size=60))
    a0 = sum(excesses) / 60
    a1 = sum((1 - (i + 1 - 0.35) / 60) * x for i, x in enumerate(excesses)) / 60
    shape = 2 - a0 / (a0 - 2 * a1)
    expected = (shape, 2 * a0 * a1 / (a0 - 2 * a1)) if shape > 0 else (0, a0)
    assert _pareto(excesses) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [("norm", 1, 15), ("expon", 0.5, 2), ("gamma", 0.7, 4), ("t", 0.15, 2)],
)
def test_a_fifth_of_one_in_n_is_near_the_true_rate_or_above(kind, least, most) -> None:
    from scipy import stats

    of = {"norm": stats.norm(), "expon": stats.expon(), "gamma": stats.gamma(2), "t": stats.t(4)}
    ratios = []
    for seed in range(8):
        tail, p = fit_tail(of[kind].rvs(20_000, random_state=seed), seed=seed)
        assert p >= 0.1
        ratios.append(float(tail.far(of[kind].isf(1e-5))) / 1e-5)
    assert least < np.median(ratios) < most


def test_what_is_no_tail_is_refused() -> None:
    rng = np.random.default_rng(0)
    twins = np.append(rng.normal(size=50_000), rng.normal(9, 0.1, size=30))
    for scores in (twins, rng.normal(size=300), rng.integers(0, 5, size=20_000)):
        with pytest.raises(LikenessError, match="no false-accept rate is extrapolated"):
            fit_tail(scores)


def people(n: int, seed: int = 0) -> tuple[Scores, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b = np.triu_indices(n)
    values = rng.normal(size=a.size) + np.where(a == b, 4.5, 0)
    return Scores(values, a == b), np.stack([a, b], axis=1)


def test_results_hold_the_tar_at_the_extrapolated_threshold_and_its_far() -> None:
    from scipy.stats import norm

    scores, pairs = people(150)  # 11,175 nontarget trials
    settings = VerificationSettings(fars=(0.1, 1e-4), tail=True, num_resamples=150)
    results = {r.metric: r for r in evaluate(scores, settings, subjects=pairs).results}
    assert "tail_tar_at_far(0.1)" not in results  # it was counted
    found = results["tail_tar_at_far(0.0001)"]
    assert found.value == np.mean(scores.targets >= found.threshold)
    true = norm.sf(found.threshold)
    assert true <= found.conventions["far_high"]
    assert 1e-4 <= found.conventions["far_high"] <= 1e-3
    assert found.interval[0] < found.value < found.interval[1]


def test_a_rate_too_far_down_is_left_out_with_a_warning() -> None:
    scores, pairs = people(60)
    settings = VerificationSettings(fars=(1e-12,), num_resamples=50)
    with pytest.warns(UserWarning, match="not extrapolated"):
        assert extrapolated(scores, pairs, settings) == {}
    few = Scores([3.0, 1.0, 0.0], [True, False, False])
    with pytest.warns(UserWarning, match="no false-accept rate"):
        assert extrapolated(few, None, settings) == {}
