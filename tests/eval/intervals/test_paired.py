"""Paired differences, and intervals that say what they do not know."""

import json
import re

import numpy as np
import pytest
from scipy import stats

import likeness
from likeness import evaluate
from likeness.eval.formats.trials import read_scores, write_scores
from likeness.eval.intervals.bootstrap import Drawn, bounds, bounds_of, drawn_from
from likeness.eval.intervals.paired import matching_order
from likeness.eval.metrics.system import VerificationSettings, measure_system
from likeness.eval.metrics.verification import eer
from likeness.eval.results import table as result_table
from likeness.eval.types import Scores, Trials
from tests.eval.all_pairs import all_pairs
from tests.scripts import printed

FAST = VerificationSettings(num_resamples=200, p_targets=(0.05,), fars=(0.1,))


@pytest.fixture
def folder(tmp_path):
    """a, b: the same trials in another order and of close systems. c: without five of them."""
    trials, scores, _ = all_pairs(25)
    rng = np.random.default_rng(1)
    order = rng.permutation(len(trials))
    better = scores.values + 0.2 * rng.standard_normal(len(trials)) + 0.4 * trials.target
    for name, rows, values in (
        ("a", np.arange(len(trials)), scores.values),
        ("b", order, better),
        ("c", order[5:], scores.values),
    ):
        write_scores(tmp_path / f"{name}.txt", trials.rows(rows), values[rows])
    return tmp_path


def test_the_difference_is_that_of_each_resample(folder):
    result = likeness.evaluate([folder / "a.txt", folder / "b.txt"], FAST)
    result.save(folder / "r.json")
    result.report(folder / "report")
    document = json.loads((folder / "r.json").read_text(encoding="utf-8"))
    actual = {result["metric"]: result for result in document["differences"]}
    assert list(actual) == ["eer", "min_dcf(0.05)", "tar_at_far(0.1)"]
    assert document["unpaired"] == []
    sides = []
    for name in ("a", "b"):  # each in an order of its own: by the ids
        trials, values = read_scores(folder / f"{name}.txt")
        ids = (trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe)
        items = np.stack([np.array(of)[rows] for of, rows in ids], axis=1)
        order = np.lexsort(items.T)
        pairs = np.array([[int(name[1:3]) for name in row] for row in items[order]])
        sides.append((Scores(values[order], trials.target[order]), pairs))
    draws = [bounds_of({"eer": eer}, *side, num_resamples=200)[1]["eer"] for side in sides]
    gaps = draws[1] - draws[0]
    rates = [eer(side.targets, side.nontargets) for side, _ in sides]
    number = drawn_from(sides[0][0].target, sides[0][1]).effective
    assert number is not None
    error = gaps.std() * np.sqrt(number / (number - 1))
    t = stats.t(number - 1, loc=rates[1] - rates[0], scale=error)
    assert actual["eer"]["interval"] == pytest.approx(t.interval(0.95), abs=1e-12)
    assert actual["eer"]["value"] == pytest.approx(rates[1] - rates[0], abs=1e-12)
    assert actual["eer"]["p"] == pytest.approx(2 * min(t.cdf(0), t.sf(0)))
    width = np.ptp(actual["eer"]["interval"])
    for entry in document["results"][::3]:
        assert np.ptp(entry["interval"]) > width  # what pairing is for
    assert "Differences to a" in (folder / "report" / "index.html").read_text(encoding="utf-8")


def test_the_reference_is_the_first(folder):
    for reference, *others in (("a", "b", "c"), ("b", "a", "c")):
        paths = [folder / f"{name}.txt" for name in (reference, *others)]
        settings = ("--resamples", 50, "--json", folder / "r.json", "--force")
        text = printed("evaluate", *paths, *settings)
        assert f"minus {reference}" in text
        document = json.loads((folder / "r.json").read_text(encoding="utf-8"))
        assert {record["reference"] for record in document["differences"]} == {reference}
        assert {result["system"] for result in document["differences"]} == {"a", "b"} - {reference}
        assert document["unpaired"] == ["c"]
        assert f"c and {reference} are not on the same trials" in text


def test_systems_on_other_trials_and_equal_ones_are_named(tmp_path):
    lines = ["a/1 a/2 2 1", "b/1 b/2 3 1", "a/1 b/1 1 0", "a/2 b/2 0 0"]
    for name in "xy":
        (tmp_path / name).write_text("\n".join(lines))
    (tmp_path / "z").write_text("\n".join([*lines[:3], "b/2 a/2 0 0"]))
    settings = VerificationSettings((), fars=(), num_resamples=0)
    with pytest.warns(UserWarning, match="the same scores in all 4 trials"):
        found = evaluate([tmp_path / name for name in "xyz"], settings)
    assert "(1 of them" in str(found)


def test_a_wrong_label_that_takes_the_subjects_is_named(tmp_path):
    ids = [f"{name}/{i}" for name in "abcd" for i in (1, 2)]
    pairs = [(x, y) for row, x in enumerate(ids) for y in ids[row + 1 :]]
    labels = [int(x[0] == y[0] or (x, y) == ("a/1", "b/1")) for x, y in pairs]
    lines = (f"{x} {y} {i % 5} {labels[i]}\n" for i, (x, y) in enumerate(pairs))
    (tmp_path / "scores").write_text("".join(lines))
    settings = VerificationSettings((), fars=(), num_resamples=20)
    with pytest.warns(UserWarning, match="too narrow.*1 label of 28.*a/1 b/1"):
        evaluate(tmp_path / "scores", settings)


def test_trials_match_as_multisets_of_ordered_pairs():
    """Lists with repetitions and other numbers for the same ids."""
    rng = np.random.default_rng(0)
    names = ("i0", "i1", "i2", "i3")
    for case in range(60):
        shuffled = tuple(map(str, rng.permutation([*names, "unused"])))
        place = np.array([shuffled.index(name) for name in names])
        first = rng.integers(4, size=(6, 2))
        second = rng.permutation(first) if case % 3 else rng.integers(4, size=(6 + case % 2, 2))
        single = Trials(names, names, *first.T, first[:, 0] == first[:, 1])
        label = second[:, 0] == second[:, 1]
        label ^= case % 5 == 1
        order = matching_order(single, Trials(shuffled, shuffled, *place[second].T, label))
        same = sorted(first.tolist()) == sorted(second.tolist()) and case % 5 != 1
        assert (order is not None) == same
        if order is not None:
            np.testing.assert_array_equal(second[order], first)


FEW = VerificationSettings(num_resamples=60)
BRACKET = re.compile(r"\[ *[+-]?[\d.]+, ")  # of an interval, and not of a note


@pytest.mark.parametrize(
    ("number", "has", "marked"),
    [(2, False, False), (4, False, False), (5, True, True), (19, True, True), (20, True, False)],
)
def test_the_number_of_subjects_decides_whether_an_interval_is_printed(number, has, marked):
    _, scores, subjects = all_pairs(number)
    result, _ = bounds_of({"eer": eer}, scores, subjects, num_resamples=60)
    assert (result["eer"].ends is not None) == has
    results = measure_system(scores, FEW, subjects=subjects, subjects_from="ids", system="x")[0]
    text = result_table(results)
    assert bool(BRACKET.search(text)) == has
    assert ("] *" in text) == marked
    assert (f"{number} subjects, fewer than" in text) == (marked or not has)
    assert ("interval_note" in results[0].conventions) == (marked or not has)


def test_subjects_without_target_trials_do_not_count():
    """A hundred subjects of whom three have target trials make an interval of three, and so do
    trials.
    """
    num = 100
    first = np.append([0, 1, 2], np.arange(num))
    subjects = np.stack([first, np.append([0, 1, 2], np.roll(np.arange(num), 1))], axis=1)
    target = np.arange(num + 3) < 3
    scores = Scores(np.random.default_rng(0).standard_normal(num + 3), target)
    assert drawn_from(target, subjects)[:2] == (3, "subjects with target trials")
    assert drawn_from(~target, None) == Drawn(3, "nontarget trials")
    for behind in (subjects, None):
        assert bounds_of({"eer": eer}, scores, behind, num_resamples=20)[0]["eer"].ends is None


def test_an_interval_without_width_is_none():
    many = Drawn(40, "subjects")
    assert bounds(np.zeros(50), 0.0, 0.95, many).ends is None
    assert bounds(np.full(50, 0.3) + 1e-17 * np.arange(50), 0.3, 0.95, many).ends is None
    without = bounds(np.full(50, np.nan), 0.1, 0.95, many)
    assert (without.ends, "no value on any resample" in without.note) == (None, True)
    nearly = np.zeros(1000)
    nearly[0] = 1.0  # outside the central 95 %
    assert "central 95 %" in bounds(nearly, 0.0, 0.95, many).note
    assert bounds(np.arange(50.0), 25.0, 0.95, many).note == ""
