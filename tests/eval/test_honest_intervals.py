"""Where an interval may be printed: not of fewer than 5 subjects, marked below 20, never without
width, in every table, page and JSON.
"""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import likeness
from eval import per_item
from eval.bootstrap import Bounds, Drawn, bounds, bounds_of, drawn_from, interval
from eval.comparison import Comparison, Outcome, Subjects, measure, measure_items, summarise
from eval.formats import embeddings as files
from eval.formats.trials import write_scores
from eval.groups import evaluate_groups
from eval.groups import table as group_table
from eval.per_item import PerItem
from eval.protocols.identification import IdentificationSettings, Labelled, identify_labelled
from eval.protocols.ijb import PRESETS, verification_1_1
from eval.protocols.retrieval import RetrievalSettings
from eval.protocols.verification import VerificationSettings, evaluate
from eval.reports.comparison import table, to_json
from eval.reports.items import html as items_html
from eval.results import ends_text
from eval.results import table as result_table
from eval.types import Embeddings, Scores, Trials
from eval.verification import eer
from likeness.searching import retrieve

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


def test_subjects_without_nontarget_trials_do_not_count() -> None:
    own = np.stack([np.arange(30)] * 2, axis=1)
    others = np.array([[0, 1], [1, 2], [2, 0]])
    assert drawn_from(np.arange(33) < 30, np.concatenate([own, others]))[:2] == (
        3,
        "subjects in nontarget trials",
    )


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


def test_ends_are_printed_with_the_digits_that_part_them() -> None:
    assert ends_text("eer", (0.16001, 0.16004)) == ("16.001", "16.004")
    assert ends_text("min_dcf(0.01)", (0.25, 0.2500000001)) == ("0.2500000000", "0.2500000001")
    assert ends_text("eer", (0.1, 0.2)) == ("10.00", "20.00")


def test_the_json_and_the_page_of_two_subjects_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.reports.page.can_plot", lambda: False)  # plots take seconds
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


def test_groups_have_intervals_of_their_own_subjects() -> None:
    trials, scores, subjects = a_list(28)
    group = (np.arange(28) >= 3).astype(int) + (np.arange(28) >= 10)  # of 3, 7 and 18 subjects
    made = evaluate_groups(
        "x",
        scores,
        subjects.astype(np.int32),
        group[subjects].astype(np.int32),
        ("few", "some", "more"),
        settings=FAST,
    )
    few, some, more = made.groups
    assert {rate.interval for rate in few.rates.values()} == {None}
    assert any(rate.interval is not None for rate in some.rates.values())
    assert all("no interval" in rate.note for rate in few.rates.values())
    text = group_table([made])
    assert "few: no interval: 3 subjects" in text
    assert all(
        ratio.interval is None
        for ratio in made.ratios.values()
        if "few" in (ratio.worst, ratio.best)
    )
    assert more.flags[0].startswith("18 subjects")
    assert len(trials) == scores.values.size


def test_a_ratio_of_rates_that_do_not_vary_has_no_interval() -> None:
    """All subjects of a group have the same scores, so that every resample has the group's EER."""
    target_scores, pair_scores = (
        ((0.0, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0)),
        ((0.5, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0)),
    )
    rows = [
        (value, enrol, probe, group)
        for group in (0, 1)
        for enrol in range(6 * group, 6 * group + 6)
        for probe in range(6 * group, 6 * group + 6)
        for value in (target_scores if enrol == probe else pair_scores)[group]
    ]
    values, enrol, probe, group = (np.array(column) for column in zip(*rows, strict=True))
    scores = Scores(values, enrol == probe)
    pairs, sides = (
        np.stack([value, other], axis=1).astype(np.int32)
        for value, other in ((enrol, probe), (group, group))
    )
    made = evaluate_groups("x", scores, pairs, sides, ("a", "b"), settings=FAST)
    ratio = made.ratios["eer"]
    assert ratio.value == pytest.approx((1 / 3) / (1 / 4))
    assert ratio.interval is None
    assert "give the same value" in ratio.note
    assert "[1.33, 1.33]" not in group_table([made])


def test_identification_ijb_and_retrieval(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for num in (3, 8):
        names = [f"s{i}" for i in range(num)]
        centres = rng.standard_normal((num, 8))
        gallery = Embeddings(tuple(f"{name}/g" for name in names), centres.astype(np.float32))
        rows = np.repeat(centres, 4, axis=0) + rng.standard_normal((4 * num, 8))
        probes = Embeddings(
            tuple(f"{name}/{k}" for name in names for k in range(4)), rows.astype(np.float32)
        )
        who = [item_id.split("/")[0] for item_id in probes.ids]
        result = identify_labelled(
            [Labelled(gallery, names)],
            Labelled(probes, who),
            IdentificationSettings("cosine", fpirs=(), ranks=(1,), num_resamples=40),
            system="x",
            conventions={"subjects_from": "ids"},
        )
        assert (result.results[0].interval is not None) == (num == 8)
        assert f"{num} subjects, fewer than" in result.table()
        files.write(tmp_path / "p.npz", probes)
        found = retrieve(tmp_path / "p.npz", settings=RetrievalSettings(num_resamples=40))
        text = found.table()
        assert f"{num} classes, fewer than" in text
        assert bool(BRACKET.search(text)) == (num == 8)
        trials, scores, subjects = a_list(num)
        pooled = Embeddings(trials.enrol_ids, rng.standard_normal((3 * num, 8)).astype(np.float32))
        made = verification_1_1(
            "x",
            pooled,
            trials,
            PRESETS["likeness"],
            fars=(0.1,),
            subjects=subjects,
            num_resamples=40,
        )
        assert (made[0].interval is not None) == (num == 8)
        assert len(scores.values) == len(trials)


def per_class(num: int, value: float | None = None) -> PerItem:
    values = np.random.default_rng(0).random(4 * num) if value is None else np.full(4 * num, value)
    return PerItem(
        tuple(map(str, range(4 * num))),
        {"recall@1": values},
        np.repeat(np.arange(num), 4),
        "classes",
    )


def test_the_page_of_a_test_on_items(tmp_path: Path) -> None:
    metrics = {"recall@1": partial(per_item.mean, column="recall@1")}
    for measured, words in (
        (per_class(3), "3 classes, fewer than 5"),
        (per_class(30, 1.0), "give the same value"),
        (per_class(9), "9 classes, fewer than 20"),
    ):
        items_html(tmp_path / "r.html", measured, metrics, command="x", num_resamples=40)
        assert words in (tmp_path / "r.html").read_text(encoding="utf-8")


def compared(
    outcomes: dict[str, dict[int, Outcome]], metric: str, counts: dict[str, int | None]
) -> Comparison:
    cells, reference = summarise(outcomes, [metric], reference="a")
    return Comparison(
        list(outcomes),
        [metric],
        [0],
        [],
        cells,
        reference,
        False,
        counts,
        "ids",
        num_resamples=60,
        varied=(),
        allowed=(),
    )


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


@pytest.mark.parametrize(
    ("number", "has", "marked"), [(2, False, False), (6, True, True), (24, True, False)]
)
def test_a_comparison(number: int, has: bool, marked: bool) -> None:
    trials, first, pairs = a_list(number)
    second = Scores(
        first.values + np.random.default_rng(1).standard_normal(len(trials)), first.target
    )
    subjects = Subjects(pairs.astype(np.int32), "ids", "list")
    runs = {
        name: {0: measure(value, {"eer": eer}, subjects, num_resamples=60)}
        for name, value in (("a", first), ("b", second))
    }
    made = compared(runs, "eer", {"targets": 1, "nontargets": 1, "subjects": number})
    difference = made.cells[1].difference
    assert difference is not None
    assert (
        (made.cells[0].interval is not None)
        == (difference.interval is not None)
        == (difference.p is not None)
        == has
    )
    assert made.num_comparisons == has
    text = table(made)
    assert bool(BRACKET.search(text)) == has
    assert ("] *" in text) == marked
    assert (f"{number} subjects, fewer than" in text) == (marked or not has)
    assert (
        json.loads(to_json(made, command="", version="0"))["cells"][0]["interval_note"]
        == made.cells[0].interval_note
    )
    classes = {
        name: {
            0: measure_items(
                per_class(number),
                {"r": partial(per_item.mean, column="recall@1")},
                num_resamples=60,
            )
        }
        for name in "ab"
    }
    of_items = compared(classes, "r", {"items": 4 * number, "classes": number})
    assert (of_items.cells[0].interval is not None) == has
    equal = of_items.cells[1].difference
    assert equal is not None
    assert equal.interval is None  # the two are the same: no width
    assert not equal.distinguishable
