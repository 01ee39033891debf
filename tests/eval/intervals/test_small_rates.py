"""Bounds without an error against the binomial distribution and against draws of people; plans
against a count of the variance over draws of people.
"""

from dataclasses import astuple
from itertools import permutations
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.intervals import small_rates
from likeness.eval.intervals.small_rates import Plan, independent, upper_bound
from likeness.eval.metrics.groups import share_over_groups
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.types import Scores
from tests.eval.all_pairs import people
from tests.scripts import run_command


@given(st.integers(1, 60), st.data(), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_bound_is_where_the_binomial_tail_is_what_is_left(n, data, confidence):
    errors = data.draw(st.integers(0, n))
    p = upper_bound(errors, n, confidence)
    if errors == n:
        assert p == 1
        return
    tail = sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(errors + 1))
    assert tail == pytest.approx(1 - confidence, abs=1e-9)
    if not errors:
        assert p == pytest.approx(1 - (1 - confidence) ** (1 / n))


def test_the_rule_of_three_is_near_the_bound():
    for n in (30, 100, 10_000):
        assert upper_bound(0, n) < 3 / n < 1.06 * upper_bound(0, n)
    assert upper_bound(0, 0) == 1.0


def test_where_no_error_was_seen_the_results_have_the_exact_bound():
    scores, pairs = people(12, 0, 50)
    settings = VerificationSettings(num_resamples=50, fars=(0.5,), p_targets=(0.05,))
    found = {r.metric: r for r in measure_system(scores, settings, subjects=pairs)[0]}
    both = [1 - 0.025 ** (1 / n) for n in (12, 6)]  # people, and pairs of people without a common
    assert found["eer"].interval == pytest.approx((0, max(both)))
    assert found["tar_at_far(0.5)"].interval == pytest.approx((1 - (1 - 0.05 ** (1 / 12)), 1))
    assert found["min_dcf(0.05)"].interval == (0, min(1, both[0] + 19 * both[1]))
    assert found["balanced_accuracy"].interval == pytest.approx((1 - sum(both) / 2, 1))
    assert "3/6" in str(found["eer"].conventions["interval_note"])
    alone = measure_system(scores, settings)[0][0]  # nobody knows who is who
    assert alone.interval == pytest.approx((0, 1 - 0.025 ** (1 / 12)))
    assert "optimistic" in str(alone.conventions["interval_note"])
    few, pairs = people(2, 0, 50)
    assert measure_system(few, settings, subjects=pairs)[0][0].interval == (0, pytest.approx(0.975))


def test_one_error_of_few_people_says_nothing_of_others():
    settings = VerificationSettings(num_resamples=50, fars=(0.5,), p_targets=())

    def notes(num_people: int, errors: int) -> str:
        scores, pairs = people(num_people, 0, 50)
        values = scores.values.copy()
        values[np.flatnonzero(~scores.target)[:errors]] = scores.targets.mean()
        wrong = Scores(values, scores.target)
        found = measure_system(wrong, settings, subjects=pairs)[0]
        return " ".join(str(of.conventions.get("interval_note")) for of in found)

    assert "with 1 error nothing can be said" in notes(9, 1)
    assert not any("can be said" in notes(*of) for of in ((9, 0), (9, 9), (30, 1)))


def test_the_bound_holds_over_draws_of_people():
    """Tests of 20 people each, who show no error: the true rate is below the bound in 95 %."""
    limit, kept, shown = 3.5, 0, 0
    truth = np.mean([(people(200, s, 0)[0].nontargets >= limit).mean() for s in range(900, 920)])
    for seed in range(300):
        scores, pairs = people(20, seed, 99)
        if not (scores.nontargets >= limit).any():
            shown += 1
            drawn = independent(scores, pairs)
            kept += truth <= small_rates.bound_of("global_far(x)", drawn, 0.95).ends[1]
    assert shown > 20
    assert kept == shown


def test_independent_trials_are_people_and_pairs_without_a_common_one():
    scores, pairs = people(9, 1, 3)
    for subjects, counts in ((pairs, [9, 4]), (None, [9, 36])):
        assert [drawn.number for drawn in independent(scores, subjects)] == counts


@pytest.mark.parametrize(("far", "width", "correlation"), [(0.01, 0.5, 0), (1e-4, 0.3, 0.002)])
def test_a_plan_is_the_least_that_reaches_the_width(far, width, correlation):
    pairs, people = Plan(far, width).people(correlation=correlation)

    def half(n: int) -> float:
        share = 1 + 2 * (n - 2) * correlation
        return 1.959964 * np.sqrt(far * (1 - far) * share / (n * (n - 1) / 2)) / far

    assert half(people) <= width * 1.000001 < half(people - 1) * 1.001
    assert half(people - 2) > width
    assert pairs == np.ceil(1.959964**2 * (1 - far) / far / width**2)
    assert f"{people:,} people" in Plan(far, width).text(correlation=correlation)


def test_the_correlation_is_that_of_all_two_pairs_that_share_a_person():
    scores, pairs = people(14, 3, 4)
    measured = small_rates.correlation_of(scores, pairs, 0.4)
    wrong = scores.values >= np.sort(scores.nontargets)[::-1][int(0.4 * 91) - 1]
    rows = [k for k in range(len(pairs)) if pairs[k, 0] != pairs[k, 1]]
    rate = np.mean(wrong[rows])
    sharing = [(k, m) for k, m in permutations(rows, 2) if set(pairs[k]) & set(pairs[m])]
    products = [(wrong[k] - rate) * (wrong[m] - rate) for k, m in sharing]
    assert measured == pytest.approx(np.mean(products) / (rate * (1 - rate)))


def test_shares_over_groups():
    settings = VerificationSettings(num_resamples=100)
    share, ends, note = astuple(share_over_groups([0, 0, 0, 0], [*"aabc"], settings))
    assert share == 0
    assert ends == pytest.approx((0, 1 - 0.05 ** (1 / 3)))
    assert "3 subjects" in note
    low, high = share_over_groups([1, 0] * 10, [*range(20)], settings).interval
    assert 0.2 < low < 0.5 < high < 0.8
    assert share_over_groups([1, 0], [0, 1], VerificationSettings(num_resamples=0)).interval is None


@pytest.mark.parametrize(
    "text", ["far=1e-4", "far=x,width=.5", "far=.1,width=.5,level=.9", "", "far=2,width=.5"]
)
def test_a_plan_that_is_written_otherwise_or_of_no_rate_is_refused(text):
    with pytest.raises(LikenessError, match=r"far=1e-4,width=\.5"):
        small_rates.parse_plan(text)


def test_the_command_plans_with_and_without_scores(tmp_path, capsys):
    assert run_command("evaluate", "--plan", "far=1e-4,width=.5") == 0
    assert "555 people" in capsys.readouterr().out
    scores, pairs = people(30, 0, 2)
    rows = zip(*pairs.T, scores.values, (pairs[:, 0] == pairs[:, 1]).astype(int), strict=True)
    path = tmp_path / "scores.txt"
    path.write_text("".join("p{}/1 p{}/2 {} {}\n".format(*row) for row in rows))
    assert run_command("evaluate", path, "--plan", "far=.1,width=.5", "--resamples", "0") == 0
    assert "correlate by" in capsys.readouterr().out
    assert run_command("evaluate") == 2
    bare = likeness.evaluate(scores, VerificationSettings(num_resamples=0))
    assert "SCORES of a first test" in bare.plan(0.01, 0.5)
    for far, width in ((0, 0.5), (0.01, 0)):
        with pytest.raises(LikenessError, match="plan far="):
            bare.plan(far, width)
    report = ("--far", 0, "--resamples", 0, "--report", tmp_path / "page")  # no test to plan
    assert run_command("evaluate", path, *report) == 0
    assert (tmp_path / "page" / "index.html").is_file()
