"""The verdict follows from the interval: value, interval, p and words agree, for all measures."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import likeness
from likeness.eval.formats.trials import write_scores
from likeness.eval.intervals import bootstrap, comparison, per_item
from likeness.eval.intervals.bootstrap import NOTHING_KNOWN, Drawn, bounds, t_interval
from likeness.eval.intervals.comparison import Difference, Outcome, summarise, verdict
from likeness.eval.intervals.guarantee import guaranteed_threshold
from likeness.eval.intervals.small_rates import bound_of, exact_bounds
from likeness.eval.metrics.differentials import Differential
from likeness.eval.metrics.groups import evaluate_groups
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.metrics.verification import balanced_accuracy, cllr, eer, min_dcf, tar_at_far
from likeness.eval.reports.comparison import markdown, notes, table, to_json
from likeness.eval.results import bracketed, p_text
from likeness.eval.types import Scores
from tests.eval.all_pairs import all_pairs, people

ALPHA = 0.05
MANY = Drawn(40, "subjects")


def excludes_0(ends: tuple[float, float] | list[float] | None, note: str = "") -> bool | None:
    """None where the interval decides nothing: there is none, or it holds all differences."""
    return None if ends is None or NOTHING_KNOWN in note else not ends[0] <= 0 <= ends[1]


def check(of: Difference, *, over_seeds: bool) -> None:
    """That all parts of a difference say the same."""
    found = [(of.interval, of.p, of.interval_note)]
    found += [(of.seed_interval, of.seed_p, of.seed_note)] * over_seeds
    for ends, p, _ in found:
        assert (ends is None) == (p is None)
        if ends is not None and p is not None:
            assert excludes_0(ends) == (p < ALPHA)
            assert ends[0] <= of.value <= ends[1]
    each = [excludes_0(ends, note) for ends, _, note in found]
    assert of.distinguishable == (False if False in each else None if None in each else True)
    words = {True: "yes", False: "no", None: "unknown"}[of.distinguishable]
    assert verdict(of).split(",")[0] == words
    ps = [p for _, p, _ in found]
    assert (of.p_holm is None) == (None in ps)
    if of.p_holm is not None:
        assert of.p_holm >= max(p for p in ps if p is not None)
        if of.distinguishable:
            assert ("also" in verdict(of)) == (of.p_holm < ALPHA)


VALUES = st.floats(-1, 1).map(lambda value: round(value, 6))


@given(
    VALUES,
    st.floats(1e-4, 2),
    st.floats(1, 1000),
    st.sampled_from([0.5, 0.9, 0.95, 0.999]),
    st.sampled_from([1.0, np.inf]),
)
def test_p_is_the_level_at_which_the_interval_touches_0(value, error, freedom, level, largest):
    ends, p = bootstrap.t_test(value, error, freedom, level, largest)
    assert ends[0] <= value <= ends[1]
    assert -largest <= ends[0] <= ends[1] <= largest
    if abs(p - (1 - level)) > 1e-9:
        assert excludes_0(ends) == (p < 1 - level)
    assert p == pytest.approx(2 * stats.t(freedom).sf(abs(value) / error), abs=1e-12)
    if 1e-9 < p < 1 - 1e-9:
        touching, _ = bootstrap.t_test(value, error, freedom, 1 - p)
        assert min(map(abs, touching)) < 1e-6 * error + 1e-9


@given(
    st.lists(st.lists(VALUES.map(abs), min_size=1, max_size=4), min_size=2, max_size=4),
    st.integers(2, 40),
    st.integers(2, 60),
    st.sampled_from([1.0, 3.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_every_difference_agrees_with_itself(runs, subjects, draws, scale, over_seeds, seed):
    """Shares and other numbers, few and many subjects, draws and seeds."""
    rng = np.random.default_rng(seed)
    outcomes: dict[str, dict[int, Outcome]] = {str(number): {} for number in range(len(runs))}
    for number, of_seeds in enumerate(runs):
        for seed, value in enumerate(of_seeds):
            drawn = {"eer": scale * np.clip(value + 0.1 * rng.normal(size=draws), 0, 1)}
            number_of = Drawn(subjects, "subjects")
            outcomes[str(number)][seed] = Outcome({"eer": scale * value}, drawn, "list", number_of)
    cells, _ = summarise(outcomes, ["eer"], reference="0", over_seeds=over_seeds)
    for cell in cells[1:]:
        of = cell.difference
        assert of is not None
        check(of, over_seeds=over_seeds)
        if scale == 1:
            for ends in (cell.interval, of.interval, of.seed_interval):
                assert ends is None or -1 <= ends[0] <= ends[1] <= 1


def outcome(value: float, gap: float, noise: float = 0.01) -> Outcome:
    draws = value + noise * np.random.default_rng(0).normal(size=200)
    return Outcome({"eer": value + gap}, {"eer": draws + gap}, "t", MANY)


@pytest.mark.parametrize(
    ("gaps", "words"),
    [
        ([0.1, 0.11, 0.09], "yes, also after Holm"),
        ([0.3, -0.2, 0.1], "no"),
        ([0.1], "unknown"),
        ([0.125, 0.125], "unknown"),
        ([0.3, -0.2], "unknown"),  # over two seeds from -100 to 100 %
        ([0.0, 0.0], "no"),
    ],
)
def test_both_kinds_of_intervals_are_needed(gaps, words):
    """Without any interval over seeds nothing is called distinguishable."""
    runs = {
        "a": {seed: outcome(0.25, 0.0) for seed in range(len(gaps))},
        "b": {seed: outcome(0.25, gap, 0.0101) for seed, gap in enumerate(gaps)},
    }
    cells, _ = summarise(runs, ["eer"], reference="a")
    of = cells[1].difference
    assert of is not None
    check(of, over_seeds=True)
    assert verdict(of) == words
    assert (excludes_0(of.seed_interval, of.seed_note) is None) == bool(of.seed_note)
    head, row = comparison.difference_rows("a", "subjects", {("b", "eer"): of}, seeds=True)
    assert len(head) == len(row) == 9
    assert row[-1] == words


def test_rounding_is_no_difference():
    """Means over seeds in another order differ by rounding alone."""
    values = [0.1, 0.2, 0.7]
    runs = {
        name: {
            seed: Outcome({"eer": value}, {"eer": value * np.linspace(0.9, 1.1, 60)}, "t", MANY)
            for seed, value in enumerate(order)
        }
        for name, order in (("a", values), ("b", values[::-1]))
    }
    cells, _ = summarise(runs, ["eer"], reference="a")
    assert cells[1].difference is not None
    assert verdict(cells[1].difference) != "yes"
    assert cells[1].difference.p is None


def test_holm_can_reject_with_few_draws():
    """p comes from t, so that no number of draws bounds it from below."""
    systems = {str(k): {0: outcome(0.2, 0.1 * k, 0.01 + 0.005 * k)} for k in range(4)}
    for runs in systems.values():
        runs[0].replicates["eer"].resize(20, refcheck=False)
    cells, _ = summarise(systems, ["eer"], reference="0", over_seeds=False)
    assert [verdict(cell.difference) for cell in cells[1:]] == ["yes, also after Holm"] * 3


@pytest.mark.parametrize("p", [0.0, 1e-9, 0.00099, 0.001, 0.0123, 0.0499999, 0.05, 0.0500001, 1])
def test_a_printed_p_is_on_its_side_of_the_level(p):
    assert (float(p_text(p).removeprefix("<")) < ALPHA) == (p < ALPHA)


# ---------------------------------------------------------------- shares, and nothing known


@given(st.lists(st.floats(0, 1), min_size=5, max_size=30), st.floats(0, 1), st.integers(1, 50))
def test_an_interval_of_a_share_is_one(drawn, value, number):
    values = np.array(drawn)
    if np.ptp(values) > 1e-6:
        above = t_interval(values + 1e-12, value, 0.95, number)  # a mean of ones may be above 1
        for low, high in (t_interval(values, value, 0.95, number), above):
            assert 0 <= low <= high <= 1
    found = bounds(values, value, 0.95, Drawn(number, "subjects"))
    whole = found.ends is not None and bracketed("eer", found.ends) == "[0.00, 100.00]"
    assert (NOTHING_KNOWN in found.note) == whole


def test_an_interval_of_all_values_says_that_nothing_is_known():
    none, wide = Drawn(0, "pairs"), np.array([0.0, 1.0] * 20)
    unknown: list[bootstrap.Bounds | Any] = [
        exact_bounds(0.0, 0.95, none),
        exact_bounds(1.0, 0.95, MANY, none),
        bound_of("eer", (MANY, none), 0.95),
        bound_of("global_far(eer)", (MANY, none), 0.95),
        bound_of("balanced_accuracy", (none, none), 0.95),
        bound_of("min_dcf(0.5)", (none, none), 0.95),
        bounds(wide, 0.5, 0.95, Drawn(5, "subjects", 2.0)),
        bootstrap.paired_bounds(wide - 0.5, 0.0, 0.95, Drawn(5, "subjects", 2.0), 1.0),
    ]
    for found in unknown:
        assert NOTHING_KNOWN in found.note
    known = [exact_bounds(0.0, 0.95, MANY), bounds(3 * wide - 1, 0.5, 0.95, MANY)]
    known += [bound_of("balanced_accuracy", (MANY, none), 0.95)]
    assert not any(NOTHING_KNOWN in found.note for found in known)


# ---------------------------------------------------------------- what is printed and written


def systems(folder: Path, num_subjects: int, far_apart: float) -> list[Path]:
    """Score files of three systems on the same trials; the last differs from the first."""
    trials, scores, _ = all_pairs(num_subjects)
    rng, files = np.random.default_rng(1), []
    for name, gap in (("a", 0.0), ("b", 0.1), ("c", far_apart)):
        values = scores.values + 0.3 * rng.normal(size=len(trials)) + gap * scores.target
        write_scores(folder / f"{name}.txt", trials, values)
        files.append(folder / f"{name}.txt")
    return files


@pytest.mark.parametrize("num_subjects", [4, 6, 12, 30])
@pytest.mark.parametrize("far_apart", [-1.5, 0.3, 6.0])
def test_evaluate_prints_and_writes_one_verdict(num_subjects, far_apart, tmp_path):
    """For every measure, in the JSON file and in the table, also with few draws."""
    settings = VerificationSettings(fars=(0.1, 0.001), llr=True, num_resamples=200)
    result = likeness.evaluate(systems(tmp_path, num_subjects, far_apart), settings)
    result.save(tmp_path / "r.json")
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    metrics = {"eer", "min_dcf(0.01)", "min_dcf(0.05)", "tar_at_far(0.1)", "tar_at_far(0.001)"}
    assert {entry["metric"] for entry in document["differences"]} == metrics
    for entry in document["differences"]:
        ends, p = entry["interval"], entry["p"]
        assert (ends is None) == (p is None)
        assert entry["distinguishable"] == excludes_0(ends, entry["interval_note"])
        if ends is not None:
            assert excludes_0(ends) == (p < ALPHA)
            assert -1 <= ends[0] <= entry["value"] <= ends[1] <= 1
    cells = r"^[bc] .*\[ *(\S+), +(\S+)\].*? +(\S+) +(\S+) +(no|yes|unknown)"
    rows = re.findall(cells, str(result), re.M)
    assert len(rows) == sum(entry["p"] is not None for entry in document["differences"])
    for low, high, p, _, word in rows:
        assert (float(p.removeprefix("<")) < ALPHA) == (word == "yes")
        assert (low[0] == high[0]) == (word == "yes")  # the signs of both ends


def test_bench_adjusts_all_its_differences_together():
    """As `bench` does: each condition has its own, and Holm is over all."""
    made: dict[Any, Difference] = {}
    for number in range(6):
        runs = {"a": {0: outcome(0.3, 0.0)}, "b": {0: outcome(0.3, 0.004 * number, 0.012)}}
        cell = summarise(runs, ["eer"], reference="a", over_seeds=False)[0][1]
        assert cell.difference is not None
        made[number] = cell.difference
    for of in comparison.after_holm(made).values():
        check(of, over_seeds=False)


def groups_of(num_resamples: int) -> tuple[Differential, ...]:
    _, scores, subjects = all_pairs(16)
    sides = (subjects % 2).astype(np.int32)
    settings = VerificationSettings(fars=(0.1,), num_resamples=num_resamples, terms="iso")
    made = evaluate_groups("x", scores, subjects, sides, ["m", "f"], settings=settings)
    return made.differentials


@pytest.mark.parametrize(("num_resamples", "can"), [(5, False), (18, False), (19, True)])
def test_chance_has_a_bound_only_where_the_divisions_can_show_it(num_resamples, can):
    """Of 18 random divisions none makes a p of 1 / 19 below .05."""
    limits = [each.by_chance for each in groups_of(num_resamples) if each.measure == "gini"]
    assert all((limit is not None) == can for limit in limits)


def test_a_guaranteed_rate_is_not_below_the_measured_one():
    for seed in range(30):
        scores, pairs = people(80, seed, 3.0)
        _, guarantee = guaranteed_threshold(scores, pairs, 0.1)
        assert guarantee.measured_far <= 0.1


# ---------------------------------------------------------------- compare


PER_ITEM: dict[str, Any] = {
    "accuracy": partial(per_item.mean, column="correct"),
    "ece": per_item.calibration_error,
    "ece_l2": partial(per_item.calibration_error, power=2),
    "norm_auroc": per_item.norm_auroc,
    "nmi": per_item.mutual_information,
    "norm": partial(per_item.mean, column="norm"),
}
PER_TRIAL: dict[str, Any] = {
    "eer": eer,
    "min_dcf(0.05)": partial(min_dcf, p_target=0.05),
    "tar_at_far(0.1)": partial(tar_at_far, far=0.1),
    "balanced_accuracy": balanced_accuracy,
    "cllr": cllr,
}


def run_of_items(worse: float, rng: np.random.Generator, num_classes: int) -> Outcome:
    labels = np.repeat(np.arange(num_classes), 6).astype(np.float64)
    right = rng.random(labels.size) > worse
    columns = {
        "label": labels,
        "cluster": np.where(right, labels, 0),
        "correct": right.astype(np.float64),
        "confidence": rng.random(labels.size),
        "norm": 5 + 3 * worse + rng.normal(size=labels.size),
    }
    ids = tuple(map(str, range(labels.size)))
    measured = per_item.PerItem(ids, columns, labels.astype(np.int32), "classes")
    return comparison.measure_items(measured, PER_ITEM, num_resamples=100)


def run_of_trials(worse: float, rng: np.random.Generator, num_subjects: int) -> Outcome:
    _, scores, subjects = all_pairs(num_subjects, gap=3.0)
    values = scores.values - 3 * worse * scores.target + 0.3 * rng.normal(size=len(scores))
    behind = comparison.Subjects(subjects, "ids", "list")
    return comparison.measure(Scores(values, scores.target), PER_TRIAL, behind, num_resamples=100)


@pytest.mark.parametrize("num_seeds", [1, 2, 4])
@pytest.mark.parametrize("number", [6, 25])
@pytest.mark.parametrize(("run", "metrics"), [(run_of_items, PER_ITEM), (run_of_trials, PER_TRIAL)])
def test_compare_writes_and_prints_one_verdict(run, metrics, number, num_seeds):
    """For every measure of trials and items, in the JSON file and in all tables."""
    rng = np.random.default_rng(num_seeds)
    outcomes = {
        name: {seed: run(worse, rng, number) for seed in range(num_seeds)}
        for name, worse in (("a", 0.2), ("same", 0.2), ("close", 0.25), ("far", 0.7))
    }
    cells, reference = summarise(outcomes, [*metrics], reference="a")
    every = [(name, seed) for name in outcomes for seed in range(num_seeds)]
    runs = [comparison.Run(name, seed, f"{name}/{seed}") for name, seed in every]
    counts = {"targets": 9, "nontargets": 9, "subjects": number}
    what = [*outcomes], [*metrics], [*range(num_seeds)], runs, cells, reference, False, counts
    made = comparison.Comparison(*what, "ids", 100, [], [])
    words = []
    for cell in json.loads(to_json(made, command=""))["cells"]:
        if cell["variant"] == "a":
            continue
        of = Difference(**cell["difference"])
        check(of, over_seeds=True)
        words.append(verdict(of))
        assert (of.distinguishable is True) <= (num_seeds > 1)
        for ends in (of.interval, of.seed_interval):
            within = ends is None or -1 <= ends[0] <= ends[1] <= 1
            assert within or cell["metric"] in ("norm", "cllr")
    holm_of = [cell.difference.p_holm for cell in cells if cell.difference is not None]
    assert made.num_comparisons == len(holm_of) - holm_of.count(None)
    if num_seeds == 4 and number == 25:
        assert {"no", "yes, also after Holm"} <= set(words)
    at_end = r" (yes, also after Holm|yes, but not after Holm|no|unknown)(?: \|)?$"
    for text in (table(made), markdown(made)):
        assert re.findall(at_end, text, re.M) == words
    if num_seeds == 1:
        assert "one seed says nothing about other seeds" in " ".join(notes(made))
