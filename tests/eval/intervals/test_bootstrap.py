"""Bootstrap over subjects: the weighted fast path against trials repeated by their weights, the law
of the draws, coverage, refusals.
"""

import math
import statistics
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.stats import norm

from likeness.eval.errors import LikenessError
from likeness.eval.intervals import bootstrap, resampling
from likeness.eval.intervals.bootstrap import Drawn, bounds_of, interval, paired_bounds, t_interval
from likeness.eval.intervals.resampling import weighted_form
from likeness.eval.metrics.verification import balanced_accuracy, eer, min_dcf, tar_at_far
from likeness.eval.types import Scores

FAST = {
    "eer": eer,
    "eer nearest": partial(eer, method="nearest"),
    "min_dcf": partial(min_dcf, p_target=0.05),
    "accuracy": balanced_accuracy,
    "min_dcf costs": partial(min_dcf, p_target=0.3, c_miss=10.0, c_fa=2.0),
    "tar": partial(tar_at_far, far=0.1),
    "tar strict": partial(tar_at_far, far=0.29, rule="strict"),
    "tar all": partial(tar_at_far, far=1.0),
}


SEEDS = st.integers(0, 99)


def all_pairs(num_subjects, targets_each, rng, *, spread=0.0, distance=2.0, decimals=15):
    """Every pair of subjects once as a nontarget trial, `targets_each` target trials per subject,
    whose scores share an offset.
    """
    own = np.repeat(np.arange(num_subjects), targets_each)
    a, b = np.triu_indices(num_subjects, 1)
    subjects = np.concatenate([np.stack([own, own], 1), np.stack([a, b], 1)])
    offsets = distance + spread * rng.standard_normal(num_subjects)[own]
    target = offsets + rng.standard_normal(own.size)
    values = np.concatenate([target, rng.standard_normal(a.size)]).round(decimals)
    return Scores(values, np.arange(len(subjects)) < own.size), subjects


def drawn(metrics, scores, subjects, *, num_resamples, seed=0):
    """The values of metrics on resamples, of however few subjects."""
    trials, rng = bootstrap.sorted_trials(scores, subjects), np.random.default_rng(seed)
    return resampling.resample_metrics(metrics, trials, num_resamples, rng)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 7), st.integers(1, 4), st.sampled_from([0, 1, 15]), SEEDS, st.booleans())
def test_fast_path_is_the_slow_path(num_subjects, targets_each, decimals, seed, over_trials):
    rng, sizes = np.random.default_rng(seed), (num_subjects, targets_each)
    scores, subjects = all_pairs(*sizes, rng, distance=0.7, decimals=decimals)
    # a lambda hides what it calls
    slow = {name: lambda t, n, metric=metric: metric(t, n) for name, metric in FAST.items()}
    assert all(weighted_form(metric) for metric in FAST.values())
    assert not any(weighted_form(metric) for metric in slow.values())
    given_subjects = None if over_trials else subjects
    draw = partial(drawn, scores=scores, subjects=given_subjects, num_resamples=20, seed=seed)
    fast, repeated = draw(FAST), draw(slow)
    for name in FAST:
        np.testing.assert_allclose(fast[name], repeated[name], atol=1e-12, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(1, 9), st.sampled_from([0, 1, 2, 15]), st.integers(0, 999))
def test_trials_that_cannot_matter_are_weighed_in_cells(num_subjects, targets_each, decimals, seed):
    rng = np.random.default_rng(seed)
    more = {"distance": rng.uniform(0, 4), "decimals": decimals}
    scores, subjects = all_pairs(num_subjects, targets_each, rng, **more)
    repeats = rng.integers(1, 5, size=len(scores))
    values = np.repeat(scores.values, repeats) + 0.2 * rng.standard_normal(repeats.sum())
    scores = Scores(values.round(decimals), np.repeat(scores.target, repeats))
    subjects = np.repeat(subjects, repeats, axis=0)
    plain = drawn(FAST, scores, subjects, num_resamples=30, seed=seed)
    for name in FAST:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(resampling, "_THINNED_FROM", 0)
            thinned = drawn({name: FAST[name]}, scores, subjects, num_resamples=30, seed=seed)
        assert thinned[name].tolist() == plain[name].tolist(), name


def test_threads_change_no_number(monkeypatch):
    scores, subjects = all_pairs(60, 4, np.random.default_rng(5), decimals=2)
    monkeypatch.setattr(resampling, "_THINNED_FROM", 0)
    monkeypatch.setattr(resampling, "_BLOCK", 1 << 12)
    values, threads = [], set()
    weigh = resampling.Ranked.block

    def noted(*arguments):
        threads.add(threading.get_ident())
        return weigh(*arguments)

    monkeypatch.setattr(resampling.Ranked, "block", noted)
    for number in (1, 4):
        monkeypatch.setattr(resampling, "num_cores", lambda number=number: number)
        monkeypatch.setenv("OMP_NUM_THREADS", "4")
        values.append(drawn(FAST, scores, subjects, num_resamples=200))
        assert (threads == {threading.get_ident()}) is (number == 1)
    for name in FAST:
        np.testing.assert_array_equal(values[0][name], values[1][name])


def test_other_metrics_and_switches_take_the_slow_path():
    others = partial(eer, method="convex_hull"), partial(tar_at_far, far=0.1, rule="nearest")
    for metric in (*others, partial(eer, [0.0]), np.mean):
        assert weighted_form(metric) is None
    scores, subjects = all_pairs(5, 3, np.random.default_rng(0))
    low, high = interval(
        lambda t, n: float(np.mean(t) - np.mean(n)), scores, subjects, num_resamples=50
    )
    assert 0 < low < 2 < high < 4
    # a misspelt switch is the metric's own error
    with pytest.raises(TypeError, match="unexpected keyword argument 'p_targt'"):
        interval(partial(min_dcf, p_targt=0.1), scores, subjects, num_resamples=2)


def test_an_interval_does_not_depend_on_company_order_names_or_block_size(monkeypatch):
    rng = np.random.default_rng(2)
    scores, subjects = all_pairs(15, 6, rng, decimals=1)
    together, _ = bounds_of(FAST, scores, subjects, num_resamples=100, seed=5)
    alone = interval(FAST["min_dcf"], scores, subjects, num_resamples=100, seed=5)
    assert together["min_dcf"].ends == alone
    order = rng.permutation(scores.values.size)
    shuffled = Scores(scores.values[order], scores.target[order])
    others = 1000 + 7 * subjects[order]
    assert together == bounds_of(FAST, shuffled, others, num_resamples=100, seed=5)[0]
    assert together["eer"].ends != interval(eer, scores, subjects, num_resamples=100, seed=6)
    monkeypatch.setattr(resampling, "_BLOCK", 3 * scores.values.size)
    assert together == bounds_of(FAST, scores, subjects, num_resamples=100, seed=5)[0]


def test_the_interval_is_that_of_its_definition():
    """Draws, weights, spread and quantile again, with loops and the standard library."""
    rng = np.random.default_rng(4)
    n, num_resamples = 12, 80
    scores, subjects = all_pairs(n, 6, rng, spread=0.7)
    chosen = (subjects[:, 0] > 3) | (rng.random(len(scores)) < 0.4)  # unequal subjects
    scores, subjects = Scores(scores.values[chosen], scores.target[chosen]), subjects[chosen]
    draws = np.random.default_rng(8).integers(n, size=(num_resamples, n))

    def measured(drawn):
        target, nontarget = [], []
        for value, is_target, (a, b) in zip(scores.values, scores.target, subjects, strict=True):
            times = list(drawn).count(a) * (1 if is_target else list(drawn).count(b))
            (target if is_target else nontarget).extend([value] * times)
        return eer(np.array(target), np.array(nontarget))

    point, values = measured(range(n)), [measured(drawn) for drawn in draws]
    trials_of = [[0] * n, [0] * n]
    for is_target, (a, b) in zip(scores.target, subjects, strict=True):
        for subject in (a, b):
            trials_of[int(is_target)][subject] += 1
    k = min(sum(of) ** 2 / sum(each**2 for each in of) for of in trials_of)
    margin = statistics.pstdev(values) / 2
    logits = [math.log((x + margin) / (1 + margin - x)) for x in (point, *values)]
    spread = math.sqrt(sum((x - logits[0]) ** 2 for x in logits[1:]) / num_resamples)
    half = float(stats.t(k - 1).ppf(0.95)) * math.sqrt(k / (k - 1)) * spread
    ends = (logits[0] - half, logits[0] + half)
    expected = [(1 + 2 * margin) / (1 + math.exp(-end)) - margin for end in ends]
    found = interval(eer, scores, subjects, num_resamples=num_resamples, level=0.9, seed=8)
    assert k < 0.97 * n
    assert found == pytest.approx(expected, abs=1e-12)


def test_an_interval_holds_its_metric_and_stays_between_0_and_1():
    rng = np.random.default_rng(0)
    for value in (0.0, 0.002, 0.5, 0.99, 1.0):
        values = np.clip(value + 0.05 * rng.standard_normal(200), 0, 1)
        (low, high), wider, few, two = (t_interval(values, value, 0.95, k) for k in (20, 3, 1, 2))
        assert 0 <= wider[0] <= low <= value <= high <= wider[1] <= 1
        assert high - low > 0.05
        assert few == two


def test_a_difference_and_what_is_no_share_are_not_taken_to_the_logit_scale():
    values = np.tile([0.1, 0.2, 0.4], 10)
    factor = float(stats.t(29).ppf(0.975)) * np.sqrt(30 / 29)
    found = paired_bounds(values, 0.2, 0.95, Drawn(30, "subjects"), 1.0)
    half = factor * np.std(values)
    assert found.ends == pytest.approx((0.2 - half, 0.2 + half))
    assert found.p == pytest.approx(2 * stats.t(29).sf(0.2 * stats.t(29).ppf(0.975) / half))
    half = factor * np.sqrt(np.mean((values - 0.2) ** 2))
    assert t_interval(values + 1, 1.2, 0.95, 30) == pytest.approx((1.2 - half, 1.2 + half))


def test_few_draws_know_the_spread_no_better_than_few_subjects():
    many, few = (Drawn(number, "subjects") for number in (1000, 20))
    values = np.random.default_rng(0).uniform(size=20)
    for found in (bootstrap.bounds, partial(paired_bounds, largest=1.0)):
        assert found(values, 0.5, 0.95, many) == found(values, 0.5, 0.95, few)
        assert found(values[:2], 0.5, 0.95, many).note == bootstrap.NOTHING_KNOWN


def test_coverage_of_the_true_eer_with_unequal_subjects():
    """Target scores N(2 + offset of the subject, 1), offsets N(0, 1): N(2, 2) over the population;
    nontarget scores N(0, 1). The target trials of the 40 subjects are a geometric series, 1 to 30.
    """
    edges = np.linspace(-1, 3, 100_001)
    truth = norm.sf(edges)[np.argmin(np.abs(norm.sf(edges) - norm.cdf(edges, 2, np.sqrt(2))))]
    sizes = np.round(30 ** (np.arange(40) / 39)).astype(int)
    over_subjects = over_trials = 0
    for seed in range(200):
        scores, subjects = all_pairs(40, 30, np.random.default_rng(seed), spread=1.0)
        kept = ~scores.target
        kept[: 40 * 30] = (np.arange(30) < sizes[:, None]).ravel()
        scores, subjects = Scores(scores.values[kept], scores.target[kept]), subjects[kept]
        low, high = interval(eer, scores, subjects, num_resamples=150, seed=seed)
        over_subjects += low <= truth <= high
        low, high = interval(eer, scores, None, num_resamples=150, seed=seed)
        over_trials += low <= truth <= high
    assert over_subjects >= 0.92 * 200
    assert over_trials < 0.8 * 200


def test_empty_resamples_are_drawn_again(monkeypatch):
    scores, subjects = all_pairs(2, 1, np.random.default_rng(0))
    # without both subjects there is no nontarget trial: half of the draws
    values = drawn({"eer": eer}, scores, subjects, num_resamples=200)["eer"]
    assert values.tolist() == [eer(scores.targets, scores.nontargets)] * 200
    monkeypatch.setattr(resampling, "_ROUNDS", 1)
    with pytest.raises(LikenessError):
        drawn({"eer": eer}, scores, subjects, num_resamples=200)


def test_refusals():
    scores, subjects = all_pairs(4, 2, np.random.default_rng(0))
    mixed, alike = subjects.copy(), subjects.copy()
    mixed[0, 1] = alike[-1] = 3
    nobody = Scores(np.zeros(2), np.zeros(2, dtype=bool))
    refused = [(scores, mixed, 0.9), (scores, alike, 0.9), (nobody, None, 0.9)]
    refused += [(scores, subjects, level) for level in (0.0, 1.0, 95.0, float("nan"))]
    for some, of, level in refused:
        with pytest.raises(LikenessError):
            interval(eer, some, of, level=level, num_resamples=2)
