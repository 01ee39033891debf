"""`likeness score` and its calibration as functions on files: against the pieces put together by
hand, and everything that can be wrong with the files.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness import Embeddings, read_trials
from likeness.eval.formats import embeddings as files
from likeness.metrics import as_norm, fit_fusion, pairs, subtract_mean, t_norm, z_norm

NUM, DIM = 24, 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Noisy embeddings of 6 subjects, all pairs as trials, a cohort, durations, and an enrolment
    list of the first two utterances of each subject.
    """
    rng = np.random.default_rng(0)
    subjects = rng.standard_normal((6, DIM))
    ids = tuple(f"s{k % 6}/u{k}" for k in range(NUM))
    directions = subjects[np.arange(NUM) % 6] + 0.8 * rng.standard_normal((NUM, DIM))
    matrix = directions * rng.uniform(1, 5, (NUM, 1)) + 1
    Embeddings(ids, matrix, {"similarity": "simple:0.2", "model": "abc"}).save(tmp_path / "e.npz")
    cohort = rng.standard_normal((40, DIM)) * 2 + 1
    Embeddings(tuple(f"c{k}" for k in range(40)), cohort).save(tmp_path / "c.npz")
    pairs = [(a, b) for a in range(NUM) for b in range(a)]
    write(tmp_path / "trials", [f"{ids[a]} {ids[b]} {int(a % 6 == b % 6)}" for a, b in pairs])
    write(tmp_path / "models", [f"m{k} {ids[k]} {ids[k + 6]}" for k in range(6)])
    searches = [(k, p) for k in range(6) for p in range(12, NUM)]
    write(tmp_path / "model_trials", [f"m{k} {ids[p]} {int(k == p % 6)}" for k, p in searches])
    write(tmp_path / "seconds", [f"{item_id} {1.5 + k}" for k, item_id in enumerate(ids)])
    write(tmp_path / "cohort_subjects", [f"c{k} t{k // 4}" for k in range(40)])
    return tmp_path


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n")


def score(folder, trials="trials", *, file="e.npz", probe=None, models=None, **options):
    scoring = likeness.Scoring(**options)
    return likeness.score(folder / trials, folder / file, scoring, probe=probe, models=models)


def calibrate(folder, trials="trials", *, quality=(), p_target=0.5, models=None, **options):
    how = {"quality": quality, "p_target": p_target, "models": models}
    return likeness.calibrate(folder / trials, folder / "e.npz", likeness.Scoring(**options), **how)


def expected(folder: Path, similarity: str = "simple:0.2", centred: bool = False):
    trials = read_trials(folder / "trials")
    loaded, cohort = (files.read_embeddings(folder / name) for name in ("e.npz", "c.npz"))
    matrix, cohort = loaded.matrix, cohort.matrix
    if centred:
        matrix, cohort = subtract_mean(matrix, cohort), subtract_mean(cohort, cohort)
    i, j = loaded.rows(trials.enrol_ids)[trials.enrol], loaded.rows(trials.probe_ids)[trials.probe]
    return trials, matrix, cohort, i, j, pairs(matrix, matrix, i, j, similarity)


def test_the_similarity_comes_from_the_option_else_the_embeddings_else_cosine(folder):
    scored = score(folder)
    assert scored.system == "simple:0.2, model abc"
    np.testing.assert_allclose(scored.values, expected(folder)[-1], rtol=1e-5, atol=1e-5)
    by_name = score(folder, similarity="vmf_b").values
    np.testing.assert_allclose(by_name, expected(folder, "vmf_b")[-1], rtol=1e-9)
    loaded = files.read_embeddings(folder / "e.npz")
    Embeddings(loaded.ids, loaded.matrix).save(folder / "plain.ark")
    assert score(folder, file="plain.ark").system == "cosine"


@pytest.mark.parametrize("norm", ["as", "z", "t", "s"])
def test_norms(folder, norm):
    _, matrix, cohort, i, j, raw = expected(folder, centred=True)
    how = {"similarity": "simple:0.2"}
    others = {"cohort": folder / "c.npz", "subtract_mean": folder / "c.npz"}
    scored = score(folder, top_n=9, norm=norm, **others, **how)
    z, t = z_norm(raw, matrix, cohort, i=i, **how), t_norm(raw, matrix, cohort, j=j, **how)
    adaptive = as_norm(raw, matrix, matrix, cohort, top_n=9, i=i, j=j, **how)
    reference = {"z": z, "t": t, "s": (z + t) / 2, "as": adaptive}[norm]
    np.testing.assert_allclose(scored.values, reference, rtol=1e-4, atol=1e-5)
    assert re.search(rf"mean subtracted \([0-9a-f]{{8}}\), {norm}_norm", scored.system)
    assert ("top 9" in scored.system) == (norm == "as")


def test_two_files_and_the_order_of_their_rows_change_nothing(folder):
    loaded = files.read_embeddings(folder / "e.npz")
    once = score(folder, cohort=folder / "c.npz", top_n=9)
    order = np.random.default_rng(1).permutation(NUM)
    ids = tuple(loaded.ids[k] for k in order)
    Embeddings(ids, loaded.matrix[order], loaded.meta).save(folder / "p.npz")
    again = score(folder, probe=folder / "p.npz", cohort=folder / "c.npz", top_n=9)
    np.testing.assert_allclose(again.values, once.values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "norm_weighted"])
def test_multi_enrolment(folder, pooling):
    trials, loaded = read_trials(folder / "model_trials"), files.read_embeddings(folder / "e.npz")
    cohort = files.read_embeddings(folder / "c.npz").matrix
    matrix = loaded.matrix - cohort.mean(axis=0, dtype=np.float64)
    models = (matrix[:6] + matrix[6:12]) / (2 if pooling == "mean" else 1)
    how = {"models": folder / "models", "pooling": pooling, "subtract_mean": folder / "c.npz"}
    scored = score(folder, "model_trials", **how).values
    i = np.array([int(enrol_id[1:]) for enrol_id in trials.enrol_ids])[trials.enrol]
    j = loaded.rows(trials.probe_ids)[trials.probe]
    reference = pairs(models, matrix, i, j, "simple:0.2")
    np.testing.assert_allclose(scored, reference, rtol=1e-4, atol=1e-4)


def test_a_cohort_of_subject_means(folder):
    _, matrix, cohort, i, j, raw = expected(folder)
    means = cohort.reshape(10, 4, DIM).mean(axis=1)
    how = {"cohort": folder / "c.npz", "cohort_subjects": folder / "cohort_subjects"}
    scored = score(folder, top_n=5, **how).values
    reference = as_norm(raw, matrix, matrix, means, top_n=5, i=i, j=j, similarity="simple:0.2")
    np.testing.assert_allclose(scored, reference, rtol=1e-3, atol=1e-4)


def test_calibration_with_all_quality_measures(folder):
    how = {"cohort": folder / "c.npz", "top_n": 9, "durations": folder / "seconds"}
    measures = ("log_norm", "log_duration", "cohort_mean")
    fitted = calibrate(folder, quality=measures, p_target=0.1, **how)
    fitted.save(folder / "c.json")
    assert fitted.p_target == 0.1
    assert fitted.names == tuple(f"{name}_{side}" for name in measures for side in ("low", "high"))
    raw = score(folder, cohort=folder / "c.npz", top_n=9).values
    _, matrix, cohort, i, j, _ = expected(folder)
    loaded = files.read_embeddings(folder / "e.npz")
    norms, seconds = loaded.norms.astype(float), 1.5 + np.arange(NUM)
    every = np.indices((NUM, 40)).reshape(2, -1)
    full = pairs(matrix, cohort, *every, "simple:0.2").reshape(NUM, 40)
    closest = np.sort(full, axis=1)[:, -9:].mean(axis=1)
    qualities = (np.log(norms), np.log(seconds), closest)
    sides = [side(of[i], of[j]) for of in qualities for side in (np.minimum, np.maximum)]
    columns = np.stack(sides, axis=1)
    target = read_trials(folder / "trials").target
    by_hand = fit_fusion(raw, target, quality=columns, names=fitted.names, p_target=0.1)
    np.testing.assert_allclose(fitted.weights, by_hand.weights, rtol=1e-2)
    llr = score(folder, calibration=folder / "c.json", **how).values
    np.testing.assert_allclose(llr, by_hand.apply(raw, columns), rtol=1e-2, atol=2e-2)


def test_durations_of_models_are_sums(folder):
    how = {"models": folder / "models", "durations": folder / "seconds", "similarity": "cosine"}
    fitted = calibrate(folder, "model_trials", quality=["log_duration"], **how)
    llr = score(folder, "model_trials", calibration=fitted, **how).values
    plain = score(folder, "model_trials", models=folder / "models", similarity="cosine")
    trials = plain.trials
    enrol = np.array([2 * (1.5 + int(name[1:])) + 6 for name in trials.enrol_ids])[trials.enrol]
    probe = np.array([1.5 + int(name.split("u")[1]) for name in trials.probe_ids])[trials.probe]
    quality = np.sort(np.log(np.stack([enrol, probe], axis=1)), axis=1)
    np.testing.assert_allclose(llr, fitted.apply(plain.values, quality))


def test_a_calibration_serves_its_own_system_only(folder):
    fitted = calibrate(folder)
    score(folder, calibration=fitted)
    with pytest.raises(ValueError, match="these are of cosine"):
        score(folder, similarity="cosine", calibration=fitted)


def test_a_cohort_of_the_trials_and_a_probe_without_length_are_warned_of(folder):
    with pytest.warns(UserWarning, match="24 of 24 cohort ids"):
        score(folder, cohort=folder / "e.npz", top_n=9)
    loaded = files.read_embeddings(folder / "e.npz")
    matrix = np.where(np.arange(NUM)[:, None] == 3, 0, loaded.matrix)
    Embeddings(loaded.ids, matrix, loaded.meta).save(folder / "p.npz")
    with pytest.warns(UserWarning, match="1 of 23 probe embeddings"):
        scored = score(folder, probe=folder / "p.npz", cohort=folder / "c.npz", top_n=9)
    assert np.isfinite(scored.values).all()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"calibration": "trials"}, "no calibration"),
        ({"cohort": "short.npz", "top_n": 2}, "with one D"),
        ({"subtract_mean": "short.npz"}, "with one D"),
        ({"cohort": "constant.npz", "top_n": 2}, "score the cohort alike"),
        ({"cohort": "c.npz", "cohort_subjects": "one_subject"}, "cohort"),
        ({"models": "empty"}, "empty"),
        ({"trials": "unknown"}, "'x'"),
        ({"trials": "one_model", "models": "lacking"}, "'gone'"),
        ({"trials": "no_model", "models": "models"}, "'n'"),
    ],
)
def test_what_cannot_be_scored_is_refused(folder, how, message):
    Embeddings(("a", "b", "c"), np.eye(3)).save(folder / "short.npz")
    Embeddings(("a", "b", "c"), np.ones((3, DIM))).save(folder / "constant.npz")
    write(folder / "unknown", ["x s1/u1 1", "s2/u2 z 0"])
    write(folder / "one_model", ["m1 s1/u2 1"])
    write(folder / "no_model", ["m1 s1/u1 1", "n s1/u1 0"])
    write(folder / "lacking", ["m1 s1/u1 gone"])
    write(folder / "one_subject", ["c0 t0"])
    (folder / "empty").write_text("")
    how = {key: value if key == "top_n" else folder / value for key, value in how.items()}
    with pytest.raises(ValueError, match=message):
        score(folder, **how)


@pytest.mark.parametrize(
    ("quality", "durations", "message"),
    [
        ("log_duration", "one_second", "duration"),
        ("norm", None, "norm"),
        ("log_duration", None, "log_duration"),
        ("cohort_mean", None, "cohort_mean"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(folder, quality, durations, message):
    write(folder / "one_second", ["s0/u0 1"])
    options = {"durations": folder / durations} if durations else {}
    with pytest.raises(ValueError, match=message):
        calibrate(folder, quality=[quality], **options)


def test_both_sides_may_be_tables_of_others(folder):
    """The enrolment side and the test side, each in a file of its own."""
    loaded, plain = files.read_embeddings(folder / "e.npz"), score(folder, similarity="dot")
    np.save(folder / "enrol.npy", loaded.matrix)
    (folder / "enrol.txt").write_text("\n".join(loaded.ids))
    rows = zip(loaded.ids, loaded.matrix.tolist(), strict=True)
    write(folder / "probe.csv", ["clip,seconds,codes", *(f'{id},2.5,"{row}"' for id, row in rows)])
    lines = [line.split() for line in (folder / "trials").read_text().splitlines()]
    write(folder / "t.csv", ["x,y,v", *(f"{a},{b},{label}" for a, b, label in lines)])
    scored = likeness.score(
        folder / "t.csv",
        folder / "enrol.npy",
        likeness.Scoring(similarity="dot"),
        probe=folder / "probe.csv",
        columns="enrol=x,probe=y,label=v,id=clip,vector=codes",
    )
    assert scored.values.tolist() == pytest.approx(plain.values.tolist(), rel=1e-6)
