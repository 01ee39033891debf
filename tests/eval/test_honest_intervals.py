"""Where an interval may be printed: not of fewer than 5 subjects, marked below 20, never without
width, in every table, page and JSON.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.eval.bootstrap import Bounds, Drawn, bounds, bounds_of, drawn_from, interval
from likeness.eval.comparison import Outcome, summarise
from likeness.eval.formats.trials import write_scores
from likeness.eval.protocols.verification import VerificationSettings, evaluate
from likeness.eval.results import table as result_table
from likeness.eval.types import Scores, Trials
from likeness.eval.verification import eer

FAST = VerificationSettings(num_resamples=60)
BRACKET = re.compile(r"\[ *[+-]?[\d.]+, ")  # of an interval, and not of a note


def a_list(
    num_subjects: int, each: int = 3, *, seed: int = 0, gap: float = 1.5
) -> tuple[Trials, Scores, np.ndarray]:
    ids = tuple(f"s{i // each:02d}/{i}" for i in range(num_subjects * each))
    a, b = np.triu_indices(len(ids), 1)
    target = a // each == b // each
    values = np.random.default_rng(seed).standard_normal(a.size) + gap * target
    return (
        Trials(ids, ids, a, b, target),
        Scores(values, target),
        np.stack([a // each, b // each], axis=1),
    )


@pytest.mark.parametrize(
    ("number", "has", "marked"),
    [(2, False, False), (4, False, False), (5, True, True), (19, True, True), (20, True, False)],
)
def test_the_number_of_subjects_decides_whether_an_interval_is_printed(
    number: int, has: bool, marked: bool
) -> None:
    _, scores, subjects = a_list(number)
    result, _ = bounds_of({"eer": eer}, scores, subjects, num_resamples=60)
    assert (
        (result["eer"].ends is not None)
        == has
        == (interval(eer, scores, subjects, num_resamples=60) is not None)
    )
    results = evaluate(scores, FAST, subjects=subjects, subjects_from="ids", system="x").results
    text = result_table(results)
    assert bool(BRACKET.search(text)) == has
    assert ("] *" in text) == marked
    assert (f"{number} subjects, fewer than" in text) == (marked or not has)
    assert ("interval_note" in results[0].conventions) == (marked or not has)


def test_subjects_without_target_trials_do_not_count() -> None:
    """A hundred subjects of whom three have target trials make an interval of three, and so do
    trials.
    """
    num = 100
    own = np.stack([np.arange(3)] * 2, axis=1)
    others = np.stack([np.arange(num), np.roll(np.arange(num), 1)], axis=1)
    subjects, target = np.concatenate([own, others]), np.arange(num + 3) < 3
    scores = Scores(np.random.default_rng(0).standard_normal(num + 3), target)
    assert drawn_from(target, subjects)[:2] == (3, "subjects with target trials")
    assert drawn_from(~target, None) == Drawn(3, "nontarget trials")
    for behind in (subjects, None):
        assert bounds_of({"eer": eer}, scores, behind, num_resamples=20)[0]["eer"].ends is None


def test_resamples_that_lose_a_class_mark_the_interval() -> None:
    """All nontarget trials have subject 0 on one side: (1 - 1/n)^n of the draws have none, and are
    drawn again.
    """
    num = 30
    subjects = np.concatenate(
        [
            np.stack([np.arange(num)] * 2, axis=1),
            np.stack([np.zeros(num - 1, dtype=int), np.arange(1, num)], axis=1),
        ]
    )
    scores = Scores(
        np.random.default_rng(0).standard_normal(2 * num - 1), np.arange(2 * num - 1) < num
    )
    result, made = bounds_of({"eer": eer}, scores, subjects, num_resamples=400)
    share = made.num_redrawn / (400 + made.num_redrawn)
    expected = (1 - 1 / num) ** num
    assert share == pytest.approx(
        expected, abs=4 * (expected * (1 - expected) / (400 + made.num_redrawn)) ** 0.5
    )
    assert result["eer"].ends is not None
    assert "drawn again" in result["eer"].note


def test_an_interval_without_width_is_none() -> None:
    many = Drawn(40, "subjects")
    assert bounds(np.zeros(50), 0.0, 0.95, many).ends is None
    assert bounds(np.full(50, 0.3) + 1e-17 * np.arange(50), 0.3, 0.95, many).ends is None
    assert bounds(np.full(50, np.nan), 0.1, 0.95, many) == Bounds(
        None, "no interval: the metric has no value on any resample"
    )
    nearly = np.zeros(1000)
    nearly[0] = 1.0  # outside the central 95 %
    assert "central 95 %" in bounds(nearly, 0.0, 0.95, many).note
    assert bounds(np.arange(50.0), 25.0, 0.95, many).note == ""


def test_the_json_and_the_page_of_two_subjects_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("likeness.eval.reports.page.can_plot", lambda: False)  # plots take seconds
    trials, scores, _ = a_list(2, 4)
    write_scores(tmp_path / "a.txt", trials, scores.values)
    result = likeness.evaluate(tmp_path / "a.txt", FAST)
    result.save(tmp_path / "r.json")
    result.report(tmp_path / "report")
    text = str(result)
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    first = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["results"][0]
    assert first["interval"] is None
    for value in (text, page, first["conventions"]["interval_note"]):
        assert "2 subjects, fewer than 5" in value
    assert not BRACKET.search(text)


def test_seeds_that_all_differ_alike_have_no_interval_over_seeds() -> None:
    drawn = Drawn(40, "subjects")
    for gaps, has in (((0.125, 0.125), False), ((0.125, 0.25), True)):
        first = {
            seed: Outcome({"eer": 0.5 + seed}, {"eer": np.arange(4.0)}, "list", drawn)
            for seed in (0, 1)
        }
        second = {
            seed: Outcome(
                {"eer": 0.5 + seed + gaps[seed]}, {"eer": np.arange(4.0) + 1}, "list", drawn
            )
            for seed in (0, 1)
        }
        cells, _ = summarise({"a": first, "b": second}, ["eer"], reference="a")
        difference = cells[1].difference
        assert difference is not None
        assert (difference.seed_interval is not None) == has
