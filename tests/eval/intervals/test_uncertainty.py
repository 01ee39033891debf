"""The AUROC of a quality and risk-coverage curves: against enumeration, loops and repeats."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.intervals import bootstrap, uncertainty
from likeness.eval.intervals.bootstrap import t_interval
from likeness.eval.intervals.uncertainty import drawn_auroc, quality_auroc, risk_coverage
from likeness.eval.metrics.system import VerificationSettings
from likeness.eval.protocols.retrieval import RetrievalSettings, retrieve
from likeness.eval.protocols.side_by_side import evaluate_together
from likeness.eval.results import table
from likeness.eval.types import Scores, Trials
from tests.eval.all_pairs import all_pairs

# Few distinct values make ties; risks between 0 and 1 are those of queries whose neighbours tie.
answer = st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0]))
answers = st.lists(answer, min_size=1, max_size=6)


@given(answers)
def test_auroc_is_the_expected_share_of_pairs_over_all_outcomes(given_answers):
    quality, risk = zip(*given_answers, strict=True)
    ordered = pairs = 0.0
    for wrong in product((0, 1), repeat=len(risk)):
        chance = np.prod([p if w else 1 - p for w, p in zip(wrong, risk, strict=True)])
        for q, w in zip(quality, wrong, strict=True):
            for other, v in zip(quality, wrong, strict=True):
                if w == 0 and v == 1:
                    pairs += chance
                    ordered += chance * ((q > other) + 0.5 * (q == other))
    if pairs < 1e-9:
        with pytest.raises(LikenessError):
            quality_auroc(quality, risk)
    else:
        assert quality_auroc(quality, risk) == pytest.approx(ordered / pairs, abs=1e-12)


@given(answers, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_no_bit_and_the_curve_is_that_of_a_loop(given_answers, random):
    curve = risk_coverage(*zip(*given_answers, strict=True))
    kept = [[r for q, r in given_answers if q >= limit] for limit in curve.quality]
    assert sorted({q for q, _ in given_answers}, reverse=True) == curve.quality.tolist()
    assert curve.coverage == pytest.approx([len(of) / len(given_answers) for of in kept])
    assert curve.risk == pytest.approx([np.mean(of) for of in kept])
    shuffled = list(given_answers)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert all(map(np.array_equal, curve, risk_coverage(*zip(*shuffled, strict=True))))
    both = [zip(*of, strict=True) for of in (given_answers, shuffled)]
    values = [drawn_auroc(*of)(np.ones(len(shuffled))) for of in both]
    assert np.array_equal(*values, equal_nan=True)


@settings(max_examples=50)
@given(answers, st.data())
def test_weights_are_answers_that_are_there_several_times(given_answers, data):
    size = len(given_answers)
    weights = data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size))
    quality, risk = map(np.array, zip(*given_answers, strict=True))
    found, total = drawn_auroc(quality, risk)(weights), sum(weights)
    if total:
        repeated = drawn_auroc(np.repeat(quality, weights), np.repeat(risk, weights))
        assert found == pytest.approx(repeated(np.ones(total)), abs=1e-12, nan_ok=True)
    else:
        assert np.isnan(found)


NONE = [([1.0, np.nan], [0, 1]), ([1.0], [0, 1]), ([], [])]
NONE += [([1.0, 2.0], [0, risk]) for risk in (1.5, np.nan)]


@pytest.mark.parametrize(("quality", "risk"), NONE, ids=str)
def test_what_is_no_quality_or_no_risk_is_refused(quality, risk):
    for function in (quality_auroc, risk_coverage):
        with pytest.raises(LikenessError):
            function(quality, risk)  # type: ignore[operator]


def test_intervals_over_classes_are_those_of_the_answers_repeated():
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(30), 6)
    quality, risk = rng.integers(0, 20, 180), (rng.random(180) < 0.3).astype(float)
    auroc, settings_ = drawn_auroc(quality, risk), RetrievalSettings(num_resamples=50, seed=7)
    whole, drawn = quality_auroc(quality, risk), bootstrap.Drawn(30, "classes")
    (found,) = bootstrap.bounds_over_groups(
        lambda times: [auroc(times)], [whole], groups, drawn, settings_
    )
    draws = np.random.default_rng(7).integers(30, size=(50, 30))
    rows = [np.concatenate([np.flatnonzero(groups == g) for g in draw]) for draw in draws]
    values = np.array([quality_auroc(quality[row], risk[row]) for row in rows])
    assert found.ends == pytest.approx(t_interval(values, whole, 0.95, 30))


def test_the_quality_of_a_trial_is_the_lower_one_of_the_sides_that_have_any():
    norms = {"a": 3.0, "b": 1.0, "c": 2.0}
    trials = Trials(("a", "b"), ("c", "a"), [0, 0, 1], [0, 1, 0])
    models = Trials(("m1", "m2"), ("c", "a"), [0, 1], [0, 1])
    for of, expected, word in ((trials, [2, 3, 1], "lower norm"), (models, [2, 3], "probe side")):
        values, message = uncertainty.trial_quality(of, norms)
        assert values.tolist() == expected
        assert word in message
    for lacking in (Trials(("a", "x"), ("c",), [0, 1], [0, 0]), Trials(("m",), ("n",), [0], [0])):
        with pytest.raises(LikenessError):
            uncertainty.trial_quality(lacking, norms)


def subject_trials() -> tuple[Trials, Scores, NDArray[np.int64], dict[str, float]]:
    """All pairs of three items of each subject; bad items have a low quality and noisy scores."""
    trials, scores, pairs = all_pairs(12, 3, gap=4.0)
    quality = np.round(np.random.default_rng(4).random(36), 1)
    noise = np.random.default_rng(5).standard_normal(len(trials))
    noise *= 1 - np.minimum(quality[trials.enrol], quality[trials.probe])
    by_id = dict(zip(trials.enrol_ids, quality.tolist(), strict=True))
    return trials, Scores(scores.values + 5 * noise, scores.target), pairs, by_id


def test_a_verification_is_rated_beside_its_error_rates_on_the_same_draws():
    trials, scores, pairs, by_id = subject_trials()
    settings_ = VerificationSettings(num_resamples=40, seed=5)
    plain = evaluate_together({"a": (trials, scores)}, settings_)
    systems = {"a": (trials, scores), "b": (trials, scores)}
    quality = {"a": by_id, "b": dict.fromkeys(by_id, 1.0)}
    rated = evaluate_together(systems, settings_, quality=quality)
    of = {(result.system, result.metric): result for result in rated.results}
    assert [of["a", result.metric] for result in plain.results] == plain.results
    of_items = np.array([by_id[name] for name in trials.enrol_ids])
    of_trials = np.minimum(of_items[trials.enrol], of_items[trials.probe])
    wrong = uncertainty.errors_at(scores, of["a", "eer"].threshold)
    assert of["a", "quality_auroc"].value == pytest.approx(quality_auroc(of_trials, wrong))
    assert of["a", "quality_auroc"].value > 0.6  # the quality of these items is worth its name
    assert of["b", "quality_auroc"].value == 0.5
    assert "AUROC of the quality" in table(rated.results)
    # A metric that gets the trials repeated by their weights finds them by their distinct scores.
    place = {score: row for row, score in enumerate(scores.values.tolist())}

    def repeated(target: NDArray[np.float64], nontarget: NDArray[np.float64]) -> float:
        rows = [place[score] for score in [*target, *nontarget]]
        return quality_auroc(of_trials[rows], wrong[rows])

    expected = bootstrap.interval(repeated, scores, pairs, num_resamples=40, seed=5)
    assert of["a", "quality_auroc"].interval == pytest.approx(expected)


def test_a_retrieval_is_rated_by_the_norm_of_its_queries():
    rng = np.random.default_rng(6)
    labels = np.repeat(np.arange(25), 4)
    matrix = np.eye(25)[labels] + 0.5 * rng.standard_normal((100, 25))
    matrix *= rng.random((100, 1)) + 0.5
    ids = tuple(f"c{c:02}/{i}" for i, c in enumerate(labels))
    items = Embeddings((*ids, "alone/1"), np.concatenate([matrix, np.ones((1, 25))]))
    by_norm = retrieve(items, settings=RetrievalSettings(quality="norm", num_resamples=30))
    values = {result.metric: result for result in by_norm.results}
    unit = items.matrix / items.norms[:, None]
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    wrong = np.append(labels, -1)[cosines.argmax(axis=1)[:-1]] != labels
    assert values["r_auroc"].value == pytest.approx(quality_auroc(items.norms[:-1], wrong))
    low, high = values["r_auroc"].interval or (1, 0)
    assert low < values["r_auroc"].value < high
    assert "R-AUROC" in by_norm.table()
