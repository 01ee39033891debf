"""The settings of scoring, and ids that are listed without the ending of their files."""

import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.metrics.calibration import Fusion
from likeness.eval.metrics.failures import compared_trials
from likeness.eval.scoring.plda import Plda
from likeness.eval.scoring.score import Scored, add_spellings, calibrate, score
from likeness.eval.scoring.settings import Scoring
from likeness.eval.types import Trials

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
PLDA = Plda(np.zeros(DIM), np.eye(DIM), np.zeros(DIM), np.eye(DIM), np.ones(DIM))


OF_ONE = {"cohort": COHORT, "cohort_subjects": dict.fromkeys(COHORT.ids, "a")}
MOODS = ("mood_low", "mood_high")


def test_every_field_that_holds_a_value_of_a_file_can_be_read(tmp_path) -> None:
    """The edge knows how to read a path for each field that is no name or number."""
    for field in fields(Scoring):
        if field.name in ("similarity", "pooling", "norm", "top_n"):
            continue
        with pytest.raises((OSError, ValueError)):
            Scoring(**{field.name: tmp_path / "absent.npz"})


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ({"norm": "x"}, "'x'"),
        ({"pooling": "ijb"}, "'ijb'"),
        ({"similarity": "cosin"}, "'cosine'"),
        ({"similarity": "simple:2"}, "simple:2"),
        ({"plda": PLDA, "similarity": "dot"}, "leave out"),
        ({"plda": PLDA, "cohort": COHORT}, "leave out"),
        ({"cohort_subjects": {"c0": "a"}}, "without a cohort"),
        ({"cohort": COHORT, "cohort_subjects": {"c0": "a"}}, "'c1'"),
        ({"cohort": COHORT, "cohort_subjects": dict.fromkeys(COHORT.ids, np.nan)}, "20 of 20 ids"),
        ({**OF_ONE, "norm": "s"}, "cohort of 1"),
        ({"calibration": Fusion((1.0,), 0.0, ("",), (1.0, 1.0), MOODS)}, "mood"),
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


def test_a_plda_scores() -> None:
    rows = EMBEDDINGS.matrix
    scored = score(TRIALS, EMBEDDINGS, Scoring(plda=PLDA))
    np.testing.assert_allclose(scored.values, PLDA.score(rows, rows, FIRST, SECOND))
    assert re.fullmatch(r"plda \([0-9a-f]{8}\), model abc", scored.system)


SHIFTED = Embeddings(COHORT.ids, np.random.default_rng(4).standard_normal(COHORT.matrix.shape))
PEOPLE = {name: f"p{int(name[1:]) % 4}" for name in COHORT.ids}


@pytest.mark.parametrize(
    ("fitted", "others"),
    [
        ({"plda": PLDA}, [{"plda": replace(PLDA, psi=2 * PLDA.psi)}]),
        ({"subtract_mean": COHORT}, [{"subtract_mean": SHIFTED}]),
        (
            {"cohort": COHORT, "norm": "s"},
            [{"cohort": SHIFTED}, {"cohort": COHORT, "cohort_subjects": PEOPLE}],
        ),
    ],
)
def test_a_calibration_is_for_the_files_that_it_was_fitted_with(
    fitted: dict[str, Any], others: list[dict[str, Any]]
) -> None:
    of_fit = Scoring(**fitted).system(EMBEDDINGS.meta)
    calibration = Fusion((1.0,), 0.0, (of_fit,))
    assert score(TRIALS, EMBEDDINGS, Scoring(**fitted, calibration=calibration)).system == of_fit
    for other in others:
        with pytest.raises(ValueError, match="is for other scores"):
            score(TRIALS, EMBEDDINGS, Scoring(norm="s", **other, calibration=calibration))


def test_the_words_of_a_system_tell_how_items_were_read_and_no_order(tmp_path) -> None:
    turned = Embeddings(COHORT.ids[::-1], COHORT.matrix[::-1])
    words = [Scoring(cohort=of, norm="s").system({}) for of in (COHORT, turned)]
    assert words[0] == words[1]
    PLDA.save(tmp_path / "plda.json")
    forms: tuple[Any, ...] = (PLDA, tmp_path / "plda.json")
    words = [Scoring(plda=of).system({}) for of in forms]
    assert words[0] == words[1]
    meta = {"model": "ab12", "modality": "face", "faces": "central"}
    assert Scoring().system(meta) == "cosine, model ab12"
    for reading in ({"flip": "concat"}, {"crops": "10 x 4 s, mean", "pauses": "left out"}):
        stated = ", ".join(" ".join(pair) for pair in reading.items())
        assert Scoring().system(meta | reading) == f"cosine, {stated}, model ab12"


def test_what_labels_and_fits_need_is_refused() -> None:
    with pytest.raises(ValueError, match="without calibration"):
        calibrate(TRIALS, EMBEDDINGS, Scoring(calibration=Fusion((1.0,), 0.0)))
    idle = Scoring(durations=dict.fromkeys(EMBEDDINGS.ids, 2.0))
    for work in (score, calibrate):
        with pytest.raises(ValueError, match="durations change nothing"):
            work(TRIALS, EMBEDDINGS, idle)
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


def test_what_belongs_to_an_item_is_found_however_the_list_spells_it() -> None:
    """Embeddings, durations, subjects, groups, qualities and failures, with a list of `find .`."""
    ids = tuple(f"./{id}" for id in EMBEDDINGS.ids)
    spelled = replace(TRIALS, enrol_ids=ids, probe_ids=ids)
    seconds = dict(zip(EMBEDDINGS.ids, range(1, NUM + 1), strict=True))
    about: Any = {
        "subjects": {id: f"{id[:2]} of the class" for id in EMBEDDINGS.ids},
        "groups": {id: "xy"[id.startswith("s0")] for id in EMBEDDINGS.ids},
        "quality": seconds,
        "embeddings": EMBEDDINGS,
        "failures": [EMBEDDINGS.ids[0]],
    }
    found = []
    for trials in (TRIALS, spelled):
        rows = [score(trials, EMBEDDINGS, missing=way).values for way in ("refuse", "skip")]
        scored = score(compared_trials(trials, about["failures"])[0], EMBEDDINGS)
        evaluated = likeness.evaluate(scored, trials=trials, **about)
        rated = Scoring(durations=seconds)
        fitted = calibrate(trials, EMBEDDINGS, rated, quality=["log_duration"])
        numbers = [(of.metric, of.value, of.interval) for of in evaluated.results]
        found.append([np.stack(rows).tolist(), numbers, evaluated.compared.grouped, fitted])
    assert found[0] == found[1]


ROWS = np.eye(3)
NAMED = Embeddings(("ann/1", "ann/2.flac", "bob/1.0"), ROWS)


def test_scores_are_those_of_the_ids_without_extension() -> None:
    trials = Trials(("./ann/1.wav", "ann/2"), ("ann/2.WAV", "bob/1.0"), [0, 1, 1], [0, 0, 1])
    with pytest.raises(ValueError, match="--strip-extension"):
        likeness.score(trials, NAMED)
    scored = likeness.score(trials, NAMED, strip_extension=True)
    assert scored.values.tolist() == [0, 1, 0]
    assert scored.trials is trials


def test_it_is_not_offered_where_it_does_not_help() -> None:
    trials = Trials(("ann/1.wav", "cid/1.wav"), ("bob/1.0",), [0, 1], [0, 0])
    with pytest.raises(LikenessError) as caught:
        likeness.score(trials, NAMED)
    assert "strip" not in str(caught.value)
    with pytest.raises(ValueError, match="cid/1"):
        likeness.score(trials, NAMED, strip_extension=True)


def test_two_files_of_one_name_are_refused() -> None:
    embeddings = Embeddings(("a.wav", "a.flac", "b.wav"), ROWS)
    assert add_spellings(embeddings, ["a.wav", "b"]).ids == (*embeddings.ids, "b")
    with pytest.raises(ValueError, match=r"'a'.*a\.wav and a\.flac"):
        add_spellings(embeddings, ["a"])


def test_models_and_both_sides_apart() -> None:
    trials = Trials(("m",), ("ann/2",), [0], [0])
    enrol, probe = (Embeddings((name,), [[1, 0]]) for name in ("ann/1", "ann/2.wav"))
    how: Any = {"models": {"m": ["ann/1.wav"]}, "strip_extension": True}
    scored = likeness.score(trials, enrol, probe=probe, **how)
    assert scored.values.tolist() == [1]
