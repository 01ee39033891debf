"""`Scoring` is checked when it is made, and scores without files what `likeness score` scores."""

from __future__ import annotations

import inspect
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from likeness.commands.fit import calibration as fit_command
from likeness.commands.score import score as score_command
from likeness.eval.calibration import Calibration
from likeness.eval.scoring.normalization import as_norm
from likeness.eval.scoring.plda import Plda
from likeness.eval.scoring.score import Scored, calibrate, score
from likeness.eval.scoring.settings import QUALITY, Scoring
from likeness.eval.similarity import matrix
from likeness.eval.types import Embeddings, Trials

NUM, DIM = 12, 4
RNG = np.random.default_rng(3)
EMBEDDINGS = Embeddings(
    tuple(f"s{k % 3}/u{k}" for k in range(NUM)),
    np.repeat(RNG.standard_normal((1, 3, DIM)), 4, axis=0).reshape(NUM, DIM)
    + RNG.standard_normal((NUM, DIM)),
    {"model": "abc"},
)
COHORT = Embeddings(tuple(f"c{k}" for k in range(20)), RNG.standard_normal((20, DIM)))
FIRST, SECOND = (side.astype(np.int32) for side in np.triu_indices(NUM, k=1))
TRIALS = Trials(EMBEDDINGS.ids, EMBEDDINGS.ids, FIRST, SECOND, FIRST % 3 == SECOND % 3)
SECONDS = {name: 1.0 + k for k, name in enumerate(EMBEDDINGS.ids)}
PLDA = Plda(np.zeros(DIM), np.eye(DIM), np.zeros(DIM), np.eye(DIM), np.ones(DIM))


def test_every_field_has_its_option_of_the_command_line() -> None:
    """A new option is a field of Scoring and a parameter of the command, of the same name."""
    names = {field.name for field in fields(Scoring)}
    of_lists = {"context", "trials", "columns", "embeddings", "out", "enrolment"}
    of_lists |= {"strip_extension", "missing"}
    for command, absent, more in (
        (score_command, set(), {"scores", "fusion"}),
        (fit_command, {"calibration"}, {"quality"}),
    ):
        parameters = inspect.signature(command).parameters
        assert set(parameters) - names == of_lists | more
        assert names - set(parameters) == absent
        for field in fields(Scoring):
            assert field.name in absent or parameters[field.name].default == field.default


def test_every_field_that_holds_a_value_of_a_file_can_be_read(tmp_path) -> None:
    """The edge knows how to read a path for each field that is no name or number."""
    for field in fields(Scoring):
        if field.name in ("similarity", "pooling", "scoring_length", "norm", "top_n"):
            continue
        with pytest.raises((OSError, ValueError)):
            Scoring(**{field.name: tmp_path / "absent.npz"})


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Scoring().top_n = 2  # type: ignore[misc]
    subjects = dict.fromkeys(COHORT.ids[:10], "a") | dict.fromkeys(COHORT.ids[10:], "b")
    scoring = Scoring(cohort=COHORT, cohort_subjects=subjects, top_n=2)
    subjects.clear()
    assert len(scoring.cohort_subjects or ()) == 20


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"norm": "x"}, "'x'"),
        ({"pooling": "ijb"}, "'ijb'"),
        ({"similarity": "cosin"}, "'cosine'"),
        ({"similarity": "simple:2"}, "simple:2"),
        ({"plda": PLDA, "similarity": "dot"}, "leave out"),
        ({"plda": PLDA, "cohort": COHORT}, "leave out"),
        ({"scoring_length": "kaldi"}, "without a PLDA"),
        ({"plda": PLDA, "scoring_length": "long"}, "'long'"),
        ({"cohort_subjects": {"c0": "a"}}, "without a cohort"),
        ({"cohort": COHORT, "cohort_subjects": {"c0": "a"}}, "'c1'"),
        (
            {"cohort": COHORT, "cohort_subjects": dict.fromkeys(COHORT.ids, "a"), "norm": "s"},
            "cohort of 1",
        ),
        (
            {"calibration": Calibration(1.0, 0.0, (1.0, 1.0), ("mood_low", "mood_high"))},
            "mood",
        ),
        ({"durations": {"a": "long"}}, "long"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, Any], keyword: str) -> None:
    with pytest.raises(ValueError, match=keyword):
        Scoring(**options)


def test_a_cohort_smaller_than_top_n_is_taken_whole() -> None:
    with pytest.warns(UserWarning, match="20 members"):
        scoring = Scoring("dot", cohort=COHORT)
    whole = score(TRIALS, EMBEDDINGS, Scoring("dot", cohort=COHORT, top_n=20))
    scored = score(TRIALS, EMBEDDINGS, scoring)
    assert scored.values.tolist() == whole.values.tolist()
    assert "over the top 20 of the cohort" in scored.system


def test_normalised_scores_are_those_of_the_functions() -> None:
    scored = score(TRIALS, EMBEDDINGS, Scoring("dot", cohort=COHORT, top_n=5))
    rows = EMBEDDINGS.matrix
    raw = matrix(rows, rows, "dot")[FIRST, SECOND]
    np.testing.assert_allclose(
        scored.values,
        as_norm(raw, rows, rows, COHORT.matrix, top_n=5, i=FIRST, j=SECOND, similarity="dot"),
        rtol=1e-4,
        atol=1e-5,
    )
    assert scored.system == "dot, as_norm over the top 5 of the cohort, model abc"
    assert scored.scores.targets.size == int(TRIALS.target.sum()) == 18  # type: ignore[union-attr]


def test_a_plda_scores_at_the_length_that_is_asked_for() -> None:
    rows = EMBEDDINGS.matrix
    scored = score(TRIALS, EMBEDDINGS, Scoring(plda=PLDA, scoring_length="kaldi"))
    expected = replace(PLDA, scoring_length="kaldi").score(rows, rows, FIRST, SECOND)
    np.testing.assert_allclose(scored.values, expected)
    assert scored.system == "plda, model abc, scoring length kaldi"


def test_a_calibration_with_every_measure_gives_llrs_of_the_same_scoring() -> None:
    scoring = Scoring("dot", cohort=COHORT, top_n=5, durations=SECONDS)
    fitted = calibrate(TRIALS, EMBEDDINGS, scoring, quality=QUALITY, p_target=0.2)
    assert fitted.names[:2] == ("log_norm_low", "log_norm_high")
    assert len(fitted.weights) == 6
    raw = score(TRIALS, EMBEDDINGS, scoring).values
    llrs = score(TRIALS, EMBEDDINGS, replace(scoring, calibration=fitted)).values
    assert not np.allclose(llrs, fitted.slope * raw + fitted.offset)
    seconds = np.log(np.array(list(SECONDS.values())))
    norms = np.log(EMBEDDINGS.norms.astype(float))
    rest = llrs - fitted.slope * raw - fitted.offset
    for k, value in ((0, norms), (2, seconds)):
        rest -= fitted.weights[k] * np.minimum(value[FIRST], value[SECOND])
        rest -= fitted.weights[k + 1] * np.maximum(value[FIRST], value[SECOND])
    closest = np.sort(matrix(EMBEDDINGS.matrix, COHORT.matrix, "dot"), axis=1)[:, -5:].mean(axis=1)
    rest -= fitted.weights[4] * np.minimum(closest[FIRST], closest[SECOND])
    rest -= fitted.weights[5] * np.maximum(closest[FIRST], closest[SECOND])
    np.testing.assert_allclose(rest, 0, atol=1e-4)
    with pytest.raises(ValueError, match=r"\[dot.*\[cosine"):
        score(TRIALS, EMBEDDINGS, replace(scoring, similarity="cosine", calibration=fitted))
    with pytest.raises(ValueError, match="without calibration"):
        calibrate(TRIALS, EMBEDDINGS, replace(scoring, calibration=fitted))


def test_what_a_measure_lacks_is_named() -> None:
    some = dict(list(SECONDS.items())[:4])
    with pytest.raises(ValueError, match="seconds"):
        calibrate(TRIALS, EMBEDDINGS, Scoring(durations=some), quality=["log_duration"])
    with pytest.raises(ValueError, match="cohort"):
        calibrate(TRIALS, EMBEDDINGS, quality=["cohort_mean"])
    blind = Trials(TRIALS.enrol_ids, TRIALS.probe_ids, FIRST, SECOND)
    with pytest.raises(ValueError, match="with labels"):
        calibrate(blind, EMBEDDINGS)
    with pytest.raises(ValueError, match="66 trials has no labels"):
        score(blind, EMBEDDINGS).scores  # noqa: B018


def test_embeddings_of_another_network_are_warned_of() -> None:
    other = Embeddings(COHORT.ids, COHORT.matrix, {"model": "xyz"})
    with pytest.warns(UserWarning, match="cohort .* xyz|xyz"):
        score(TRIALS, EMBEDDINGS, Scoring(cohort=other, top_n=5))
    with pytest.warns(UserWarning, match="PLDA .*xyz"):
        score(TRIALS, EMBEDDINGS, Scoring(plda=replace(PLDA, model="xyz")))
    probe = Embeddings(EMBEDDINGS.ids, EMBEDDINGS.matrix, {"model": "xyz"})
    with pytest.warns(UserWarning, match="probe .*xyz"):
        scored = score(TRIALS, EMBEDDINGS, probe=probe)
    assert isinstance(scored, Scored)
    np.testing.assert_allclose(scored.values, score(TRIALS, EMBEDDINGS).values, atol=1e-6)
