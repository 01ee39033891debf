"""Rates by group: against loops over the trials, against trials repeated by their draws, and
through the command line.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import write_scores
from likeness.eval.intervals.bootstrap import effective_number, t_interval
from likeness.eval.metrics.groups import Grouped, evaluate_groups, group_sides, table
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.metrics.verification import eer, tar_at_far
from likeness.eval.types import Scores, Trials
from tests.eval.all_pairs import all_pairs
from tests.scripts import printed

FARS = (0.1, 0.01)


def a_list(
    num_subjects: int = 12, items: int = 3, *, seed: int = 0, decimals: int = 1
) -> tuple[Trials, Scores, np.ndarray]:
    """Scores with many ties; subjects of even number are of one group, and harder to tell apart."""
    trials, scores, subjects = all_pairs(num_subjects, items, seed=seed)
    harder = (subjects % 2 == 0).all(axis=1) & ~scores.target
    return trials, Scores(np.round(scores.values + 0.5 * harder, decimals), scores.target), subjects


def grouped(trials: Trials, scores: Scores, subjects: np.ndarray, *, resamples: int = 0) -> Grouped:
    parity = {f"s{s:02d}": "even" if s % 2 == 0 else "odd" for s in range(subjects.max() + 1)}
    sides, names = group_sides(trials, parity, {id: id.split("/")[0] for id in trials.enrol_ids})
    settings = VerificationSettings(fars=FARS, num_resamples=resamples)
    return evaluate_groups("x", scores, subjects, sides, names, settings=settings)


def loop_threshold(pairs: list[tuple[float, bool]], far: float | None) -> float:
    """Lowest threshold at the scores whose FAR is within `far`; None: where FAR and FRR are
    nearest, the lower of two.
    """
    best, result = math.inf, math.inf
    num_targets, num_nontargets = sum(t for _, t in pairs), sum(not t for _, t in pairs)
    for threshold in sorted({s for s, _ in pairs}):
        accepts = sum(s >= threshold and not t for s, t in pairs)
        misses = sum(s < threshold and t for s, t in pairs)
        if far is not None:
            if accepts <= far * num_nontargets + 1e-9:
                return threshold
        elif abs(accepts * num_targets - misses * num_nontargets) < best:
            best, result = abs(accepts * num_targets - misses * num_nontargets), threshold
    return result


@given(st.integers(0, 10_000), st.integers(4, 9), st.integers(0, 1))
def test_rates_are_those_of_a_loop_over_the_trials(seed, num_subjects, decimals):
    trials, scores, subjects = a_list(num_subjects, 2, seed=seed, decimals=decimals)
    made = grouped(trials, scores, subjects)
    listed = [(float(s), bool(t)) for s, t in zip(scores.values, scores.target, strict=True)]
    group = [{a % 2, b % 2} for a, b in subjects.tolist()]
    for at, far in (("eer", None), ("0.1", 0.1), ("0.01", 0.01)):
        threshold = loop_threshold(listed, far)
        assert made.thresholds[at] == (threshold if math.isfinite(threshold) else None)
        for row, of_row in ((made.groups[0], {0}), (made.groups[1], {1}), (made.across, {0, 1})):
            inside = [value for value, sides in zip(listed, group, strict=True) if sides == of_row]
            target, nontarget = ([s for s, t in inside if t == kind] for kind in (True, False))
            assert (row.targets, row.nontargets) == (len(target), len(nontarget))
            for name, values in (("global_tar", target), ("global_far", nontarget)):
                expected = sum(s >= threshold for s in values) / len(values) if values else None
                assert row.rates[f"{name}({at})"].value == pytest.approx(expected)
            if of_row != {0, 1}:
                own = eer(target, nontarget) if far is None else tar_at_far(target, nontarget, far)
                assert row.rates["eer" if far is None else f"tar_at_far({at})"].value == own
    assert "eer" not in made.across.rates


def test_intervals_are_those_of_trials_repeated_by_their_draws():
    trials, scores, subjects = a_list(10, 3)
    made = grouped(trials, scores, subjects, resamples=300)
    for number, row in enumerate(made.groups):
        inside = (subjects % 2 == number).all(axis=1)
        names, sides = np.unique(subjects[inside], return_inverse=True)
        sides = sides.reshape(-1, 2)
        assert row.subjects == len(names) == 5
        counts = np.random.default_rng(1 + number).multinomial(5, np.full(5, 0.2), size=300)
        for at, threshold in made.thresholds.items():
            accepted = scores.values[inside] >= threshold
            for name in ("global_tar", "global_far"):
                chosen = scores.target[inside] == (name == "global_tar")
                drawn = []
                for count in counts:
                    a, b = count[sides[chosen].T]
                    times = a if name == "global_tar" else a * b
                    if times.any():
                        drawn.append(np.repeat(accepted[chosen], times).mean())
                number_of = effective_number(np.bincount(sides[chosen].ravel()))
                rate = row.rates[f"{name}({at})"]
                without_error = rate.value == (name == "global_tar")
                if np.ptp(drawn):
                    ends = t_interval(np.array(drawn), rate.value, 0.95, number_of)
                    assert rate.interval == pytest.approx(ends)
                else:
                    assert (rate.interval is None) != without_error
                note = "no error was seen" if without_error else "5 subjects"
                assert ("same value" if rate.interval is None else note) in rate.note
    for rate in made.across.rates.values():
        assert (rate.interval is None) == (rate.value is None)


def test_a_group_without_impostors_of_its_own_has_no_eer_and_is_marked():
    subjects = np.array([[0, 0], [1, 1], [2, 2], [0, 1], [0, 2]])
    scores = Scores([1.0, 0.2, 1.0, 0.5, 0.1], subjects[:, 0] == subjects[:, 1])
    settings = VerificationSettings(fars=(0.5,), num_resamples=50)
    groups = subjects // 2  # 0 and 1 are of x, 2 is of y
    made = evaluate_groups("s", scores, subjects, groups, ["x", "y"], settings=settings)
    y = made.groups[1]
    assert (y.targets, y.nontargets, y.subjects) == (1, 0, 1)
    assert y.rates["eer"].value is None
    assert y.rates["global_far(eer)"].value is None
    assert y.rates["global_tar(eer)"].value == 1.0
    assert any("fewer than 20" in flag for flag in y.flags)
    assert "y* 1 subjects, fewer than 20" in table([made])


def test_an_item_may_have_another_group_than_its_subject():
    trials = Trials(("a/1", "b/1"), ("a/2",), [0, 1], [0, 0], [True, False])
    subject_of = {"a/1": "a", "a/2": "a", "b/1": "b"}
    sides, names = group_sides(trials, {"a": "young", "b": "young", "a/2": "old"}, subject_of)
    assert names == ("old", "young")
    assert sides.tolist() == [[1, 0], [1, 0]]
    many = Trials(tuple(map(str, range(51))), ("0",), [0], [0])
    for refused in (
        (trials, {"a/1": "young", "b": "old"}, {}),  # who has none
        (trials, {"a": "x", "b": "x"}, subject_of),  # one group
        (many, {str(i): f"age {i}" for i in range(51)}, {}),
    ):
        with pytest.raises(LikenessError):
            group_sides(*refused)


def test_groups_come_from_the_columns_of_a_list_of_items(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trials, scores, _ = a_list()
    write_scores("scores.txt", trials, scores.values)
    subjects = [int(name[1 : name.index("/")]) for name in trials.enrol_ids]
    rows = [
        f"{name}.wav,{name},{'fm'[subject % 2]},{10 + subject},{'' if subject == 1 else 'phone'},"
        f"{subject % 3}.5"
        for name, subject in zip(trials.enrol_ids, subjects, strict=True)
    ]
    Path("items.csv").write_text("path,id,sex,age,session,dur\n" + "\n".join(rows) + "\n")
    asked = ["items.csv:sex", "items.csv:age<18", "items.csv:session", "items.csv:duration<1"]
    options = [f"--groups={one}" for one in asked]
    written = ("--json", "r.json", "--report", "page")
    shown = printed("evaluate", "scores.txt", *options, *written)
    assert "scores: by age<18, groups and their own trials" in shown
    document = json.loads(Path("r.json").read_text())
    names = {one["by"]: [row["group"] for row in one["groups"]] for one in document["groups"]}
    groups = {"sex": ["f", "m"], "age<18": ["age<18", "age>=18"], "session": ["phone", "unknown"]}
    groups["duration<1"] = ["duration<1", "duration>=1"]
    assert names == groups
    assert "items.csv" in document["inputs"]
    page = Path("page/index.html").read_text()
    assert page.count("EER by group, at a threshold of its own") == 4
    settings = VerificationSettings(num_resamples=0)
    sexes = {f"s{s:02d}": "fm"[s % 2] for s in set(subjects)}
    phones = {f"s{s:02d}": math.nan if s == 1 else "phone" for s in set(subjects)}
    for both in ((sexes, asked[0]), (phones, asked[2])):
        one, two = (likeness.evaluate("scores.txt", settings, groups=of) for of in both)
        assert one.compared.grouped[0].groups == two.compared.grouped[0].groups
    for wrong, word in (
        ("items.csv:colour", "no column 'colour'"),
        ("items.csv:sex<1", "numbers"),
        ("none.csv:sex", "none.csv"),
        (["items.csv:sex", "items.csv:sex"], "several"),
    ):
        with pytest.raises(ValueError, match=word):
            likeness.evaluate("scores.txt", settings, groups=wrong)
