"""`likeness score` and its calibration as functions on files: against the pieces put together by
hand, and everything that can be wrong with the files.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.eval.formats import embeddings as files
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import read_scores, read_trials
from likeness.eval.metrics.calibration import Fusion, fit_fusion, load_fusion
from likeness.eval.metrics.similarity import pairs
from likeness.eval.scoring.normalization import as_norm, subtract_mean, t_norm, z_norm
from tests.scripts import run_command

NUM, DIM = 24, 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Noisy embeddings of 6 subjects, all pairs as trials, a cohort, durations, and an enrolment
    list of the first two utterances of each subject.
    """
    rng = np.random.default_rng(0)
    subjects = rng.standard_normal((6, DIM))
    ids = tuple(f"s{k % 6}/u{k}" for k in range(NUM))
    matrix = (subjects[np.arange(NUM) % 6] + 0.8 * rng.standard_normal((NUM, DIM))) * rng.uniform(
        1, 5, (NUM, 1)
    ) + 1
    files.write_embeddings(
        tmp_path / "e.npz", Embeddings(ids, matrix, {"similarity": "simple:0.2", "model": "abc"})
    )
    files.write_embeddings(
        tmp_path / "c.npz",
        Embeddings(tuple(f"c{k}" for k in range(40)), rng.standard_normal((40, DIM)) * 2 + 1),
    )
    write(
        tmp_path / "trials",
        [f"{ids[a]} {ids[b]} {int(a % 6 == b % 6)}" for a in range(NUM) for b in range(a)],
    )
    write(tmp_path / "models", [f"m{k} {ids[k]} {ids[k + 6]}" for k in range(6)])
    write(
        tmp_path / "model_trials",
        [f"m{k} {ids[p]} {int(k == p % 6)}" for k in range(6) for p in range(12, NUM)],
    )
    write(tmp_path / "seconds", [f"{item_id} {1.5 + k}" for k, item_id in enumerate(ids)])
    write(tmp_path / "cohort_subjects", [f"c{k} t{k // 4}" for k in range(40)])
    return tmp_path


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")


def score(
    folder: Path, trials: str = "trials", *, file: str = "e.npz", probe=None, models=None, **options
) -> str:
    scoring = likeness.Scoring(**options)
    scored = likeness.score(folder / trials, folder / file, scoring, probe=probe, models=models)
    scored.save(folder / "out")
    return scored.system


def calibrate(
    folder: Path, trials: str = "trials", *, quality=(), p_target=0.5, models=None, **options
) -> None:
    how = {"quality": quality, "p_target": p_target, "models": models}
    scoring = likeness.Scoring(**options)
    likeness.calibrate(folder / trials, folder / "e.npz", scoring, **how).save(folder / "c.json")


def expected(folder: Path, similarity: str = "simple:0.2", centred: bool = False):
    trials, loaded, cohort = (
        read_trials(folder / "trials"),
        files.read_embeddings(folder / "e.npz"),
        files.read_embeddings(folder / "c.npz").matrix,
    )
    matrix = loaded.matrix
    if centred:
        matrix, cohort = subtract_mean(matrix, cohort), subtract_mean(cohort, cohort)
    i, j = loaded.rows(trials.enrol_ids)[trials.enrol], loaded.rows(trials.probe_ids)[trials.probe]
    return trials, matrix, cohort, i, j, pairs(matrix, matrix, i, j, similarity)


def scores(folder: Path) -> np.ndarray:
    return read_scores(folder / "out", read_trials(folder / "trials"))[1]


def test_the_similarity_comes_from_the_option_else_the_embeddings_else_cosine(folder):
    system = score(folder)
    assert system == "simple:0.2, model abc"
    np.testing.assert_allclose(scores(folder), expected(folder)[-1], rtol=1e-5, atol=1e-5)
    score(folder, similarity="vmf_b")
    np.testing.assert_allclose(scores(folder), expected(folder, "vmf_b")[-1], rtol=1e-9)
    loaded = files.read_embeddings(folder / "e.npz")
    files.write_embeddings(folder / "plain.ark", Embeddings(loaded.ids, loaded.matrix))
    assert score(folder, file="plain.ark") == "cosine"


@pytest.mark.parametrize("norm", ["as", "z", "t", "s"])
def test_norms(folder, norm):
    _, matrix, cohort, i, j, raw = expected(folder, centred=True)
    how = {"similarity": "simple:0.2"}
    others = {"cohort": folder / "c.npz", "subtract_mean": folder / "c.npz"}
    text = score(folder, top_n=9, norm=norm, **others, **how)
    z, t = z_norm(raw, matrix, cohort, i=i, **how), t_norm(raw, matrix, cohort, j=j, **how)
    reference = {
        "z": z,
        "t": t,
        "s": (z + t) / 2,
        "as": as_norm(raw, matrix, matrix, cohort, top_n=9, i=i, j=j, **how),
    }[norm]
    np.testing.assert_allclose(scores(folder), reference, rtol=1e-4, atol=1e-5)
    assert f"mean subtracted, {norm}_norm" in text
    assert ("top 9" in text) == (norm == "as")


def test_two_files_and_the_order_of_their_rows_change_nothing(folder):
    loaded = files.read_embeddings(folder / "e.npz")
    score(folder, cohort=folder / "c.npz", top_n=9)
    once = scores(folder)
    order = np.random.default_rng(1).permutation(NUM)
    files.write_embeddings(
        folder / "p.npz",
        Embeddings(tuple(loaded.ids[k] for k in order), loaded.matrix[order], loaded.meta),
    )
    score(folder, probe=folder / "p.npz", cohort=folder / "c.npz", top_n=9)
    np.testing.assert_allclose(scores(folder), once, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "norm_weighted"])
def test_multi_enrolment(folder, pooling):
    trials, loaded = read_trials(folder / "model_trials"), files.read_embeddings(folder / "e.npz")
    matrix = loaded.matrix - files.read_embeddings(folder / "c.npz").matrix.mean(
        axis=0, dtype=np.float64
    )
    models = (matrix[:6] + matrix[6:12]) / (2 if pooling == "mean" else 1)
    how = {"models": folder / "models", "pooling": pooling, "subtract_mean": folder / "c.npz"}
    score(folder, "model_trials", **how)
    scored = read_scores(folder / "out", trials)[1]
    i = np.array([int(enrol_id[1:]) for enrol_id in trials.enrol_ids])[trials.enrol]
    j = loaded.rows(trials.probe_ids)[trials.probe]
    np.testing.assert_allclose(
        scored, pairs(models, matrix, i, j, "simple:0.2"), rtol=1e-4, atol=1e-4
    )


def test_a_cohort_of_subject_means(folder):
    _, matrix, cohort, i, j, raw = expected(folder)
    means = cohort.reshape(10, 4, DIM).mean(axis=1)
    score(folder, cohort=folder / "c.npz", cohort_subjects=folder / "cohort_subjects", top_n=5)
    reference = as_norm(raw, matrix, matrix, means, top_n=5, i=i, j=j, similarity="simple:0.2")
    np.testing.assert_allclose(scores(folder), reference, rtol=1e-3, atol=1e-4)


def test_calibration_with_all_quality_measures(folder):
    how = {"cohort": folder / "c.npz", "top_n": 9, "durations": folder / "seconds"}
    measures = ("log_norm", "log_duration", "cohort_mean")
    calibrate(folder, quality=measures, p_target=0.1, **how)
    fitted = load_fusion(folder / "c.json")
    assert fitted.p_target == 0.1
    assert fitted.names == tuple(f"{name}_{side}" for name in measures for side in ("low", "high"))
    score(folder, cohort=folder / "c.npz", top_n=9)
    _, matrix, cohort, i, j, _ = expected(folder)
    raw, loaded = scores(folder), files.read_embeddings(folder / "e.npz")
    norms, seconds = loaded.norms.astype(float), 1.5 + np.arange(NUM)
    every = np.indices((NUM, 40)).reshape(2, -1)
    full = pairs(matrix, cohort, *every, "simple:0.2").reshape(NUM, 40)
    closest = np.sort(full, axis=1)[:, -9:].mean(axis=1)
    columns = [
        side(quality[i], quality[j])
        for quality in (np.log(norms), np.log(seconds), closest)
        for side in (np.minimum, np.maximum)
    ]
    columns = np.stack(columns, axis=1)
    target = read_trials(folder / "trials").target
    by_hand = fit_fusion(raw, target, quality=columns, names=fitted.names, p_target=0.1)
    np.testing.assert_allclose(fitted.weights, by_hand.weights, rtol=1e-2)
    score(folder, calibration=folder / "c.json", **how)
    np.testing.assert_allclose(scores(folder), by_hand.apply(raw, columns), rtol=1e-2, atol=2e-2)


def test_durations_of_models_are_sums(folder):
    how = {"models": folder / "models", "durations": folder / "seconds", "similarity": "cosine"}
    calibrate(folder, "model_trials", quality=["log_duration"], **how)
    score(folder, "model_trials", calibration=folder / "c.json", **how)
    llr = read_scores(folder / "out")[1]
    score(folder, "model_trials", models=folder / "models", similarity="cosine")
    trials, raw = read_scores(folder / "out")
    enrol = np.array([2 * (1.5 + int(enrol_id[1:])) + 6 for enrol_id in trials.enrol_ids])[
        trials.enrol
    ]
    probe = np.array([1.5 + int(probe_id.split("u")[1]) for probe_id in trials.probe_ids])[
        trials.probe
    ]
    fitted = load_fusion(folder / "c.json")
    np.testing.assert_allclose(
        llr, fitted.apply(raw, np.sort(np.log(np.stack([enrol, probe], axis=1)), axis=1))
    )


def test_a_calibration_serves_its_own_system_only(folder):
    calibrate(folder)
    score(folder, calibration=folder / "c.json")
    with pytest.raises(ValueError, match=r"simple:0.2, .*\[cosine, model"):
        score(folder, similarity="cosine", calibration=folder / "c.json")


def test_warnings_are_told(folder):
    with pytest.warns(UserWarning, match="24 of 24 cohort ids"):
        score(folder, cohort=folder / "e.npz", top_n=9)
    with pytest.warns(UserWarning, match="the cohort has 40 members"):
        score(folder, cohort=folder / "c.npz", top_n=999)
    loaded = files.read_embeddings(folder / "e.npz")
    files.write_embeddings(
        folder / "p.npz",
        Embeddings(
            loaded.ids, np.where(np.arange(NUM)[:, None] == 3, 0, loaded.matrix), {"model": "other"}
        ),
    )
    with pytest.warns(UserWarning, match="of another model") as caught:
        score(folder, probe=folder / "p.npz", cohort=folder / "c.npz", top_n=9)
    text = "\n".join(str(warning.message) for warning in caught)
    assert "of another model (other) than" in text
    assert "1 of 23 probe embeddings score the whole cohort alike" in text
    assert np.isfinite(scores(folder)).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"norm": "x"}, "unknown norm 'x'; choose one of as, s, z, t"),
        ({"similarity": "cosin"}, "did you mean 'cosine'"),
        ({"calibration": "trials"}, "no calibration"),
        ({"calibration": "mood.json"}, "its quality measures are mood"),
        ({"cohort": "short.npz", "top_n": 2}, "with one D"),
        ({"subtract_mean": "short.npz"}, "with one D"),
        ({"cohort": "constant.npz", "top_n": 2}, "scores the whole cohort alike"),
        ({"cohort": "c.npz", "cohort_subjects": "one_subject"}, "cohort"),
        ({"models": "empty"}, "empty"),
        ({"trials": "unknown"}, "'x'"),
        ({"trials": "one_model", "models": "lacking"}, "'gone'"),
        ({"trials": "no_model", "models": "models"}, "'n'"),
    ],
)
def test_what_cannot_be_scored_is_refused(folder, how, message):
    files.write_embeddings(folder / "short.npz", Embeddings(("a", "b", "c"), np.eye(3)))
    files.write_embeddings(folder / "constant.npz", Embeddings(("a", "b", "c"), np.ones((3, DIM))))
    Fusion((1.0,), 0.0, ("",), (1.0,), ("mood",)).save(folder / "mood.json")
    write(folder / "unknown", ["x s1/u1 1", "s2/u2 z 0"])
    write(folder / "one_model", ["m1 s1/u2 1"])
    write(folder / "no_model", ["m1 s1/u1 1", "n s1/u1 0"])
    write(folder / "lacking", ["m1 s1/u1 gone"])
    write(folder / "one_subject", ["c0 t0"])
    (folder / "empty").write_text("")
    how = {
        key: folder / value if (folder / str(value)).exists() else value
        for key, value in how.items()
    }
    with pytest.raises(ValueError, match=message):
        score(folder, **how)
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("trials", "quality", "durations", "message"),
    [
        ("trials", "log_duration", "one_second", "duration"),
        ("trials", "log_duration", "long", "a finite number"),
        ("trials", "norm", None, "norm"),
        ("trials", "log_duration", None, "log_duration"),
        ("trials", "cohort_mean", None, "cohort_mean"),
        ("blind", "log_norm", None, "with labels"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(folder, trials, quality, durations, message):
    write(folder / "blind", ["s0/u0 s1/u1"])
    write(folder / "one_second", ["s0/u0 1"])
    write(folder / "long", [f"s{k % 6}/u{k} long" for k in range(NUM)])
    options = {"durations": folder / durations} if durations else {}
    with pytest.raises(ValueError, match=message):
        calibrate(folder, trials, quality=[quality], **options)


def test_columns_of_lists_are_stated(folder: Path, tmp_path: Path) -> None:
    lines = [line.split() for line in (folder / "trials").read_text().splitlines()]
    words = {"1": "Yes", "0": "No"}
    write(tmp_path / "t.csv", ["x;y;v", *(f"{a};{b};{words[label]}" for a, b, label in lines)])
    stated = [f"--columns={role}" for role in ("enrol=x", "probe=y", "label=v")]
    command = ("score", "--embeddings", folder / "e.npz", "--trials")
    for trials, columns in (("trials", []), ("t.csv", stated)):
        out = ("--out", tmp_path / f"{trials}.scores")
        assert run_command(*command, folder / trials, *columns, *out) == 0
    written = (tmp_path / "t.csv.scores").read_text()
    assert written == (tmp_path / "trials.scores").read_text()
