"""The LFW protocol against brute force over folds and thresholds, and the real pairs.txt."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.protocols.lfw import read_pairs, ten_fold_accuracy


def brute_accuracy(scores, same, fold):
    accuracy, chosen = [], []
    for number in sorted(set(fold)):
        train = [(s, y) for s, y, f in zip(scores, same, fold, strict=True) if f != number]
        test = [(s, y) for s, y, f in zip(scores, same, fold, strict=True) if f == number]
        best, most = math.inf, -1
        for t in [math.inf, *sorted({s for s, _ in train}, reverse=True)]:
            right = sum((s >= t) == y for s, y in train)
            if right > most:
                best, most = t, right
        chosen.append(best)
        accuracy.append(sum((s >= best) == y for s, y in test) / len(test))
    return np.mean(accuracy), np.std(accuracy), chosen


@st.composite
def cases(draw):
    n = draw(st.integers(4, 24))
    fold = [*range(draw(st.integers(2, 4)))]
    fold += draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    scores = draw(st.lists(st.integers(-3, 3), min_size=len(fold), max_size=len(fold)))
    same = draw(st.lists(st.booleans(), min_size=len(fold) - 2, max_size=len(fold) - 2))
    return scores, [*same, True, False], fold


@given(cases())
def test_accuracy_is_brute_force_over_the_scores_of_the_other_folds(case):
    scores, same, fold = case
    mean, std, chosen = brute_accuracy(*case)
    result = ten_fold_accuracy(scores, same, folds=fold)
    assert (result.mean, result.std) == pytest.approx((mean, std), abs=1e-12)
    np.testing.assert_array_equal(result.thresholds, chosen)


def test_lfw_pairs(shared):
    trials, fold = read_pairs(shared / "data" / "protocols" / "lfw" / "pairs.txt", suffix=".jpg")
    assert (len(trials), int(trials.target.sum()), len(trials.enrol_ids)) == (6000, 3000, 7701)
    assert trials.enrol_ids[trials.enrol[0]] == "Abel_Pacheco/Abel_Pacheco_0001.jpg"
    assert trials.probe_ids[trials.probe[0]] == "Abel_Pacheco/Abel_Pacheco_0004.jpg"
    np.testing.assert_array_equal(fold, np.repeat(np.arange(10), 600))
    names = [enrol_id.split("/")[0] for enrol_id in trials.enrol_ids]
    same = [names[i] == names[j] for i, j in zip(trials.enrol, trials.probe, strict=True)]
    np.testing.assert_array_equal(trials.target, same)
    of_fold = [np.append(trials.enrol[fold == f], trials.probe[fold == f]) for f in range(10)]
    subjects = [{names[i] for i in sides} for sides in of_fold]
    # folds share no subject
    assert all(not subjects[i] & subjects[j] for i in range(10) for j in range(i))


def test_damaged_pairs_are_refused(tmp_path):
    file = tmp_path / "pairs.txt"
    file.write_text("2\t1\nAnn\t1\t2\nAnn\t1\tBob\t3\nCy\t1\t2\nCy\t1\tDi\t1\n\n")
    trials, fold = read_pairs(file)
    assert trials.target.tolist() == [True, False, True, False]
    assert (fold.tolist(), trials.enrol_ids[1]) == ([0, 0, 1, 1], "Ann/Ann_0002")
    file.write_text("1\nAnn 1 2\nAnn 1 Bob 3\n")
    assert read_pairs(file)[1].tolist() == [0, 0]
    pairs = ("Ann 1 2\n", "Ann 1 Bob 2\nAnn 1 Bob 3\n", "Ann 1 2\nAnn 1 Ann 3\n")
    for text in ("", "ten 300\n", *("1 1\n" + lines for lines in pairs)):
        file.write_text(text)
        with pytest.raises(LikenessError):
            read_pairs(file)


def test_bad_input_is_refused():
    same = [True, False, True, False]
    for scores, labels, more in (
        ([0.0, math.nan, 1.0, 2.0], same, {}),
        ([0.0, math.inf, 1.0, 2.0], same, {}),
        ([0.0] * 4, [True] * 4, {}),
        ([0.0] * 4, [2, 0, 1, 0], {}),
        ([0.0] * 4, same, {"folds": [0, 0, 0, 0]}),
    ):
        with pytest.raises(LikenessError):
            ten_fold_accuracy(scores, labels, **{"folds": 2, **more})
