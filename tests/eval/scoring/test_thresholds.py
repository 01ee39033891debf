"""Stored thresholds and guaranteed ones."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import write_scores
from likeness.eval.intervals.guarantee import (
    Guarantee,
    guaranteed_threshold,
    independent_scores,
    num_pairs_allowed,
    pairs_needed,
)
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.scoring.origin import Origin, read_origin, write_origin
from likeness.eval.scoring.threshold_files import read_thresholds, write_thresholds
from likeness.eval.scoring.thresholds import LEAST_ERRORS, Thresholds, measure
from likeness.eval.types import Scores, Trials
from tests.eval.all_pairs import people

ORIGIN = Origin("cosine, model ab", {"model": "ab", "similarity": "cosine"}, trials="t.txt")


def scores(targets: int = 200, nontargets: int = 2000) -> Scores:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(2, 1, targets), rng.normal(0, 1, nontargets)])
    return Scores(np.round(values, 2), np.arange(values.size) < targets)


def test_a_far_is_kept_and_no_lower_score_would_keep_it() -> None:
    given = scores()
    found, left_out = measure(given, ORIGIN, data="x", fars=[0.1, 0.01], date="2026-11-22")
    assert left_out == ()
    for far in (0.1, 0.01):
        value = found.at(far).value
        others = np.unique(given.values)
        lower = others[others < value].max()
        assert np.mean(given.nontargets >= value) <= far < np.mean(given.nontargets >= lower)
        assert found.at(far).frr == np.mean(given.targets < value)
    at_eer = found.at("eer")
    assert at_eer.far == np.mean(given.nontargets >= at_eer.value)
    assert abs(at_eer.far - at_eer.frr) < 0.01
    assert found.source(found.at(0.01)) == "FAR 1 %, measured on x: 2,200 trials, 2026-11-22"


def test_a_far_with_fewer_than_ten_errors_behind_it_is_left_out() -> None:
    for nontargets, kept in ((999, False), (1000, True)):
        found, left_out = measure(scores(50, nontargets), ORIGIN, data="x", fars=[0.01])
        assert left_out == (() if kept else (LEAST_ERRORS / 1000,))
        if not kept:
            with pytest.raises(LikenessError):
                found.at(0.01)
    with pytest.raises(LikenessError):
        found.at(0.02)
    with pytest.raises(LikenessError):
        found.at(False)


def test_a_rate_that_is_not_stored_has_its_own_reason(tmp_path: Path) -> None:
    """Of 1,500 nontarget trials 30 share the highest score, and 15 may pass at FAR 1 %."""
    ids, rows = tuple(map(str, range(1600))), np.arange(1600)
    trials = Trials(("enrolled",), ids, np.zeros(1600, np.int32), rows, rows < 100)
    values = np.where(rows < 100, 1400 + rows, rows - 100)
    write_scores(tmp_path / "s.txt", trials, np.minimum(values, 1470))
    write_origin(tmp_path / "s.txt", ORIGIN)
    settings = VerificationSettings(fars=(0.1, 0.01, 0.001), num_resamples=0)
    evaluation = likeness.evaluate(tmp_path / "s.txt", settings)
    with pytest.warns(UserWarning, match="not stored") as warned:
        evaluation.save_thresholds(tmp_path / "t.json")
    texts = " ".join(str(each.message) for each in warned)
    assert "FAR 0.1 %, where fewer than 10 of 1,500 nontarget trials may pass" in texts
    assert "FAR 1 %, where more nontarget trials than may pass share the highest score" in texts


def test_each_way_of_scoring_and_each_model_has_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    first, _ = measure(scores(), ORIGIN, data="first", fars=[0.1], subjects=7)
    normed, _ = measure(scores(), Origin("as_norm", {"model": "ab"}), data="n", fars=[0.1])
    again, _ = measure(scores(), ORIGIN, data="again", fars=[0.01])
    for entry in (first, normed, again):
        write_thresholds(path, entry)
    assert read_thresholds(path) == (again, normed)
    other, _ = measure(scores(), Origin("cosine", {"model": "cd"}), data="o", fars=[0.1])
    write_thresholds(path, other)
    assert read_thresholds(path) == (other, again, normed)


def test_a_rate_stays_while_the_scores_are_the_same_and_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "t.json"

    def store(far: float, nontargets: int = 2000) -> Thresholds:
        measured, _ = measure(scores(200, nontargets), ORIGIN, data="x", fars=[far])
        return write_thresholds(path, measured)

    tenth = store(0.1).at(0.1)
    for _ in range(2):
        both = store(0.01)
        assert both.at(0.1) == tenth
        assert both == read_thresholds(path)[0]
        assert len(both.points) == 3
    assert [point.name for point in store(0.01, 1999).points][1:] == ["FAR 1 %"]


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": math.nan},
        {"threshold": "0.4"},
        {"threshold": 10**400},
        {"far": 1.5},
        {"at": "fpir"},
        {"targets": 2.5},
        {"nontargets": None},
        {"date": "yesterday"},
        {"data": "a\nb"},
        {"data": "a\u202eb"},
        {"centre": ["x"]},
        {"centre": [[1.0]]},
        {"centre": [math.nan]},
    ],
    ids=str,
)
def test_an_edited_file_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    write_thresholds(path, measure(scores(), ORIGIN, data="x", fars=[0.1], subjects=7)[0])
    document = json.loads(path.read_text())
    entry = document["measured"][0]
    for name, value in changes.items():
        (entry["points"][1] if name in entry["points"][1] else entry)[name] = value
    path.write_text(json.dumps(document))
    with pytest.raises(LikenessError):
        read_thresholds(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, '{"format": "other/1"}', "\xff"])
def test_another_file_is_refused_and_never_replaced(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text, encoding="latin-1")
    found, _ = measure(scores(), ORIGIN, data="x", fars=[0.1])
    with pytest.raises(LikenessError):
        write_thresholds(path, found)
    assert path.read_text(encoding="latin-1") == text


def test_scores_that_were_edited_say_nothing_of_their_origin(tmp_path: Path) -> None:
    path = tmp_path / "scores.txt"
    path.write_text("a b 0.5 1\n")
    assert read_origin(path) is None
    write_origin(path, ORIGIN)
    assert read_origin(path) == ORIGIN
    path.write_text("a b 0.6 1\n")
    assert read_origin(path) is None
    (tmp_path / "scores.txt.origin.json").write_text("{")
    with pytest.raises(LikenessError):
        read_origin(path)
    write_origin("/dev/null", ORIGIN)  # which nobody reads again


def test_a_curve_says_what_any_threshold_means_and_no_more_than_data_support(tmp_path):
    rng = np.random.default_rng(0)
    target = rng.normal(2, 1, 300).astype(np.float32)
    nontarget = np.round(rng.normal(0, 1, 5000), 2).astype(np.float32)  # with ties
    scores = Scores(np.concatenate((target, nontarget)), np.arange(5300) < 300)
    data = "a\u3000b\u00a0c"  # blanks, which names of files may have
    entry, _ = measure(scores, Origin("dot"), data=data, fars=[0.01])
    assert 50 <= len(entry.curve) <= 100
    for value, far, frr in entry.curve:
        accepted = sum(score >= value for score in nontarget.tolist())
        refused = sum(score < value for score in target.tolist())
        assert far == max(accepted, LEAST_ERRORS) / 5000
        assert frr == max(refused, LEAST_ERRORS) / 300
    fars = [place.far for place in entry.curve]
    assert fars == sorted(fars, reverse=True)
    assert max(fars) > 0.45  # from lenient ...
    assert min(fars) == LEAST_ERRORS / 5000  # ... to the strictest that ten trials stand behind
    write_thresholds(tmp_path / "t.json", entry)
    assert read_thresholds(tmp_path / "t.json") == (entry,)


def test_a_guaranteed_rate_is_stored_with_what_stands_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    given, pairs = people(100, 0, 3)
    asked = (0.95, pairs)
    plain = write_thresholds(path, measure(given, ORIGIN, data="x", fars=[0.1, 0.2])[0])
    sure = measure(given, ORIGIN, data="x", fars=[0.1], subjects=100, guarantee=asked)[0]
    kept = write_thresholds(path, sure)
    assert read_thresholds(path) == (kept,)
    # It takes the place of the measured threshold of the same rate; others stay.
    point = kept.at(0.1)
    assert kept.at(0.2) == plain.at(0.2)
    assert point.value > plain.at(0.1).value
    far = np.mean(given.nontargets >= point.value)
    assert point.guarantee == Guarantee(0.95, 50, 1, 0, far)
    assert point.frr == np.mean(given.targets < point.value)
    assert kept.source(point).startswith("FAR at most 10 % (95 % confidence over subjects), ")
    # Other rates stay beside it, and it beside them, as long as the subjects are the same.
    for number, stays in ((100, True), (30, False)):
        later = measure(given, ORIGIN, data="x", fars=[0.3], subjects=number)[0]
        assert (point in write_thresholds(path, later).points) is stays
    with pytest.raises(LikenessError):
        measure(given, ORIGIN, data="x", fars=[0.1, 0.01], guarantee=asked)


FAR, CONFIDENCE = 0.1, 0.95


@pytest.mark.parametrize("far", [0.001, 0.01, 0.1, 0.5])
@pytest.mark.parametrize("confidence", [0.05, 0.5, 0.95, 0.99])
def test_the_count_is_the_largest_whose_clopper_pearson_bound_is_the_rate(far, confidence):
    least = pairs_needed(far, confidence)
    assert num_pairs_allowed(far, confidence, least) == 0
    assert num_pairs_allowed(far, confidence, least - 1) == -1
    for size in (least, 2 * least + 7, 40 * least):
        k = num_pairs_allowed(far, confidence, size)
        assert beta.ppf(confidence, k + 1, size - k) <= far * (1 + 1e-9)
        # Of as many false accepts as trials the bound is 1.
        assert k + 1 == size or beta.ppf(confidence, k + 2, size - k - 1) > far


TRIAL = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 3))


@given(st.lists(TRIAL, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_no_two_trials_share_a_subject_and_none_could_be_added(trials, random):
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
    random.shuffle(order)
    again = independent_scores(values[order], pairs[order][:, ::-1])
    assert again.tolist() == drawn.tolist()


def test_every_pair_and_every_trial_of_a_pair_is_drawn_equally_often() -> None:
    of_four = np.stack(np.triu_indices(4, 1), axis=1)
    pairs = np.repeat(of_four, 3, axis=0)  # six pairs of three trials
    values = np.arange(18.0)
    counts = np.zeros(18)
    for seed in range(3000):
        drawn = independent_scores(values, pairs, seed=seed)
        assert drawn.size == 2
        counts[drawn.astype(int)] += 1
    expected = 3000 * 2 / 18
    # 18 counts, each binomial; 4.5 standard errors are passed once in 8,000 runs of other seeds.
    assert np.abs(counts - expected).max() < 4.5 * math.sqrt(expected)


@pytest.mark.parametrize("num", [60, pytest.param(110, marks=pytest.mark.slow)])
def test_the_rate_is_exceeded_as_rarely_as_stated(num: int) -> None:
    repeats, exceeded = 1000, 0
    for seed in range(repeats):
        scores, subjects = people(num, seed, 50, shared=1.0, noise=0.5)
        threshold, guarantee = guaranteed_threshold(scores, subjects, FAR, confidence=CONFIDENCE)
        exceeded += norm.sf(threshold / math.sqrt(2.25)) > FAR
    # Scores do not tie, so the chance is the binomial tail itself, up to the gap between the limit
    # and the next score, which the threshold is.
    chance = binom.cdf(guarantee.allowed, num // 2, FAR)
    assert chance <= 1 - CONFIDENCE
    low, high = binom.ppf([0.0005, 0.9995], repeats, chance)
    assert low - 5 <= exceeded <= high


@settings(max_examples=30)
@given(st.integers(0, 2**32 - 1))
def test_the_threshold_is_the_lowest_score_that_the_count_allows(seed: int) -> None:
    scores, subjects = people(70, seed, 50)
    threshold, guarantee = guaranteed_threshold(scores, subjects, FAR)
    drawn = independent_scores(scores.nontargets, subjects[~scores.target])
    assert guarantee.pairs == drawn.size == 35
    assert (drawn >= threshold).sum() == guarantee.allowed
    lower = scores.values[scores.values < threshold].max()
    assert (drawn >= lower).sum() > guarantee.allowed
    assert guarantee.measured_far == np.mean(scores.nontargets >= threshold)
    assert num_pairs_allowed(FAR, CONFIDENCE, guarantee.pairs) == guarantee.allowed
