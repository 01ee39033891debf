"""PLDA against the Gaussian densities that define it, against Kaldi's rules written anew, and from
embeddings to scores through the command.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import eigh
from scipy.stats import multivariate_normal, norm

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, write_embeddings
from likeness.eval.metrics.verification import eer
from likeness.eval.scoring.plda import Plda, _em, fit_plda, load_plda
from tests.scripts import printed, refused


def draw(
    num: int, each: int, dim: int, seed: int = 0, spread: float = 1.0
) -> tuple[np.ndarray, list[str], np.ndarray, np.ndarray]:
    """num classes of `each` items from known B and W."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, dim, dim))
    between, within = a @ a.T * spread + np.eye(dim), b @ b.T * 0.3 + np.eye(dim) * 0.2
    points = rng.multivariate_normal(rng.standard_normal(dim), between, num)
    noise = rng.multivariate_normal(np.zeros(dim), within, num * each)
    rows = np.repeat(points, each, axis=0) + noise
    return rows, [f"s{k}" for k in range(num) for _ in range(each)], between, within


@given(st.integers(0, 2**32 - 1), st.integers(1, 5))
@settings(max_examples=15)
def test_the_score_is_the_likelihood_ratio_of_two_gaussians(seed: int, dim: int) -> None:
    """In the coordinates in which W = I and B = diag(psi)."""
    rows, labels, _, _ = draw(20, 4, dim + 1, seed)
    plda = fit_plda(rows, labels, lda_dim=dim)
    seen, between, total = plda.project(rows), np.diag(plda.psi), np.diag(plda.psi + 1)
    both = np.block([[total, between], [between, total]])
    first, two = multivariate_normal(cov=both), multivariate_normal(cov=total)
    i, j = np.array([0, 3, 7, 7]), np.array([1, 20, 9, 70])
    expected = [
        first.logpdf(np.r_[seen[a], seen[b]]) - two.logpdf(seen[a]) - two.logpdf(seen[b])
        for a, b in zip(i, j, strict=True)
    ]
    np.testing.assert_allclose(plda.score(rows, rows, i, j), expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(plda.score(rows, rows, j, i), expected, rtol=1e-5, atol=1e-4)


def test_a_step_of_em_is_that_of_the_loop_over_items_with_classes_of_many_sizes() -> None:
    rng = np.random.default_rng(3)
    sizes = [1, 1, 2, 3, 3, 5]
    classes = np.repeat(np.arange(6), sizes)
    rows = rng.standard_normal((15, 2)) + rng.standard_normal((6, 2))[classes]
    between, within = np.eye(2), np.eye(2)
    for _ in range(3):
        second, residual = np.zeros((2, 2)), np.zeros((2, 2))
        for k, size in enumerate(sizes):
            covariance = np.linalg.inv(np.linalg.inv(between) + size * np.linalg.inv(within))
            y = covariance @ np.linalg.inv(within) @ rows[classes == k].sum(axis=0)
            second += covariance + np.outer(y, y)
            for x in rows[classes == k]:
                residual += np.outer(x - y, x - y) + covariance
        between, within = second / 6, residual / 15
    result = _em(rows, classes, 3)
    np.testing.assert_allclose(result[0], between, rtol=1e-10)
    np.testing.assert_allclose(result[1], within, rtol=1e-10)


def test_lda_keeps_the_directions_that_part_the_classes() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((400, 6)) * [1, 1, 1, 50, 1, 1]
    rows[:, 1] += np.repeat(rng.standard_normal(40) * 8, 10)
    rows[:, 4] += np.repeat(rng.standard_normal(40) * 5, 10)
    plda = fit_plda(rows, np.repeat(np.arange(40), 10), lda_dim=2)
    assert plda.lda.shape == (6, 2)
    assert np.abs(plda.lda[[1, 4]]).min(axis=0).max() < np.abs(plda.lda[[1, 4]]).max()
    assert np.abs(plda.lda[[0, 2, 3, 5]]).max() < 0.2 * np.abs(plda.lda[[1, 4]]).max()
    assert plda.psi[0] > plda.psi[1] > 1


@pytest.mark.parametrize(
    ("rows", "labels", "lda_dim"),
    [
        (np.ones((3, 2)), "ab", 0),
        (np.full((4, 2), np.nan), "aabb", 0),
        (np.ones((4, 2)), "aaaa", 0),
        (np.ones((4, 2)), "abcd", 0),
        (np.ones((4, 9)), "aabb", 1),
        (np.ones((4, 2)), "aabb", 2),
    ],
)
def test_what_cannot_be_fitted_is_refused(rows: np.ndarray, labels: str, lda_dim: int) -> None:
    with pytest.raises(LikenessError, match="plda"):
        fit_plda(rows, list(labels), lda_dim=lda_dim)


def test_files_come_back_and_others_are_refused(tmp_path: Path) -> None:
    rows, labels, _, _ = draw(20, 4, 4)
    plda = fit_plda(rows, labels, lda_dim=3, model="abc")
    path = tmp_path / "p.json"
    plda.save(path)
    again = load_plda(path)
    assert again.model == "abc"
    i = np.arange(10)
    expected = plda.score(rows, rows, i, i + 1)
    np.testing.assert_allclose(again.score(rows, rows, i, i + 1), expected, rtol=1e-12)
    with pytest.raises(ValueError, match=r"4 dims, .*\(2, 3\)"):
        again.project(np.zeros((2, 3)))
    whole = json.loads(path.read_text())
    wrong = [{"format": "x"}, {"psi": [1.0]}, {"psi": [-1.0, 1, 1]}, {"mean": [1e999] * 4}]
    for change in (*wrong, {"more": 1}, {"lda": "no"}):
        path.write_text(json.dumps({**whole, **change}))
        with pytest.raises(ValueError, match="not a PLDA file"):
            load_plda(path)


def kaldi_scores(
    plda: Plda, enrol: np.ndarray, probe: np.ndarray
) -> tuple[list[np.ndarray], list[list[float]]]:
    """Written anew from Kaldi's ivector-plda-scoring with one utterance a side: its vectors after
    Plda::TransformIvector, and all of its scores.

    Its command has subtracted the mean, applied LDA and set the length (ivector-normalize-length)
    before.
    """
    dim, psi = len(plda.psi), plda.psi

    def transformed(row: np.ndarray) -> np.ndarray:
        moved = plda.lda.T @ (row - plda.mean)
        moved = moved * math.sqrt(dim) / np.linalg.norm(moved)
        u = plda.transform @ moved - plda.transform @ plda.centre
        # the covariance of one utterance is Psi + I / 1
        return u * math.sqrt(dim / np.sum(u**2 / (psi + 1.0 / 1)))

    def score(u: np.ndarray, v: np.ndarray) -> float:
        mean, variance = psi / (psi + 1.0) * u, 1.0 + psi / (psi + 1.0)
        same = norm(mean, np.sqrt(variance)).logpdf(v).sum()
        return float(same - norm(0, np.sqrt(1.0 + psi)).logpdf(v).sum())

    left, right = [transformed(row) for row in enrol], [transformed(row) for row in probe]
    return left, [[score(u, v) for v in right] for u in left]


def test_scores_are_kaldis_written_anew() -> None:
    rows, labels, _, _ = draw(40, 4, 6, seed=4)
    plda = fit_plda(rows, labels, lda_dim=4)
    enrol, probe = rows[:5], rows[2:9]
    vectors, expected = kaldi_scores(plda, enrol, probe)
    np.testing.assert_allclose(plda.project(enrol), vectors, rtol=1e-10)
    i, j = np.repeat(np.arange(5), 7), np.tile(np.arange(7), 5)
    scores = plda.score(enrol, probe, i, j).reshape(5, 7)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)


def covariances(plda: Plda) -> tuple[np.ndarray, np.ndarray]:
    """B and W in the coordinates after LDA."""
    back = np.linalg.inv(plda.transform)
    return back @ np.diag(plda.psi) @ back.T, back @ back.T


@pytest.mark.parametrize(("within", "between"), [(0.75, 0.25), (0.3, 0.7), (0.0, 0.0), (1.0, 2.0)])
def test_adaptation_is_kaldis_written_anew(within: float, between: float) -> None:
    """As its loop over directions, in the coordinates after LDA, by a generalised decomposition."""
    rows, labels, _, _ = draw(60, 5, 6, seed=5)
    plda = fit_plda(rows, labels, lda_dim=4)
    new = draw(50, 3, 6, seed=6, spread=4.0)[0] * [1, 3, 1, 1, 0.2, 1] + 2
    moved = (new - new.mean(axis=0)) @ plda.lda
    moved = np.stack([row * math.sqrt(4) / np.linalg.norm(row) for row in moved])
    shift = moved.mean(axis=0) - plda.centre
    seen = np.cov(moved.T, bias=True) + np.outer(shift, shift)
    expected_between, expected_within = covariances(plda)
    total = expected_between + expected_within
    excesses = []
    for value, vector in zip(*(part.T for part in eigh(seen, total)), strict=True):
        direction = total @ vector
        if value > 1:
            excesses.append(value - 1)
            excess = (value - 1) * np.outer(direction, direction)
            expected_within = expected_within + within * excess
            expected_between = expected_between + between * excess
    assert 0 < len(excesses) < 4
    adapted = plda.adapt(new, within=within, between=between)
    both = expected_between, expected_within
    for own, expected in zip(covariances(adapted), both, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(adapted.mean, new.mean(axis=0))
    np.testing.assert_allclose(adapted.centre, moved.mean(axis=0))
    assert (np.diff(adapted.psi) <= 0).all()


def test_adaptation_by_hand_where_one_direction_varies_more() -> None:
    """Four points of length sqrt(2) with the covariance diag(1.8, 0.2); the model has W = I and
    B = diag(.25, .5), and so expects diag(1.25, 1.5).
    """
    plda = Plda(np.zeros(2), np.eye(2), np.zeros(2), np.eye(2)[::-1], np.array([0.5, 0.25]))
    points = np.sqrt([[1.8, 0.2]]) * [[1, 1], [1, -1], [-1, 1], [-1, -1]]
    between, within = covariances(plda.adapt(5 * points + [7, 8], within=0.6, between=0.2))
    np.testing.assert_allclose(within, np.diag([1 + 0.6 * 0.55, 1]), atol=1e-12)
    np.testing.assert_allclose(between, np.diag([0.25 + 0.2 * 0.55, 0.5]), atol=1e-12)


def test_adaptation_makes_fewer_errors_in_the_new_domain() -> None:
    """A channel there adds variance within speakers in three dimensions, and moves the mean."""
    rows, labels, _, _ = draw(150, 6, 8, seed=7)
    channel = np.random.default_rng(8).standard_normal((600, 8)) * [6, 6, 6, 0, 0, 0, 0, 0] + 9
    new = draw(100, 6, 8, seed=7)[0] + channel
    plda = fit_plda(rows, labels)
    i, j = np.triu_indices(300, 1)
    same = i // 6 == j // 6
    rates = []
    for each in (plda, plda.adapt(new[300:])):
        scores = each.score(new[:300], new[:300], i, j)
        rates.append(eer(scores[same], scores[~same]))
    assert rates[1] < 0.8 * rates[0]


@pytest.mark.parametrize("new", [np.ones((3, 3)), np.ones((9, 2)), np.ones(9)])
def test_what_cannot_adapt_is_refused(new: np.ndarray) -> None:
    rows, labels, _, _ = draw(20, 4, 3)
    with pytest.raises(LikenessError, match="plda"):
        fit_plda(rows, labels).adapt(new)


def test_a_vector_without_a_length_stays_zero() -> None:
    rows, labels, _, _ = draw(40, 4, 5, seed=6)
    plda = fit_plda(rows, labels)
    centred = replace(plda, centre=np.zeros(5))
    np.testing.assert_array_equal(centred.project(plda.mean[None]), np.zeros((1, 5)))


def test_the_command_fits_on_embeddings_whose_folders_are_their_classes(tmp_path: Path) -> None:
    rows, labels, _, _ = draw(30, 5, 4, seed=2)
    rows = rows.astype(np.float32)
    named = [f"{label}/{k}" for k, label in enumerate(labels)]
    fit = ("fit", "plda", tmp_path / "e.npz", "--out", tmp_path / "p.json")
    write_embeddings(tmp_path / "e.npz", Embeddings(tuple(named), rows, {"model": "m1"}))
    shown = printed(*fit, "--lda-dim", 3)
    assert "PLDA of 3 dims fitted on 150 embeddings of 30 classes" in shown
    expected, fitted = fit_plda(rows, labels, lda_dim=3), load_plda(tmp_path / "p.json")
    assert fitted.model == "m1"
    np.testing.assert_allclose(fitted.project(rows), expected.project(rows), rtol=1e-6)
    write_embeddings(tmp_path / "e.npz", Embeddings(tuple(map(str, range(150))), rows))
    said = refused(*fit, "--force")
    assert "150 of 150 ids have no class" in said
    assert "--labels" in said


def test_the_command_adapts_to_embeddings_without_labels(tmp_path: Path) -> None:
    rows, labels, _, _ = draw(30, 5, 4, seed=2)
    named = tuple(f"{label}/{k}" for k, label in enumerate(labels))
    write_embeddings(tmp_path / "e.npz", Embeddings(named, rows, {"model": "m1"}))
    new = (draw(30, 5, 4, seed=3, spread=5)[0] * [1, 4, 1, 1]).astype(np.float32)
    write_embeddings(tmp_path / "new.ark", Embeddings(tuple(map(str, range(150))), new))
    fit = ("fit", "plda", tmp_path / "e.npz", "--out", tmp_path / "p.json", "--within-covar-scale")
    assert "--adapt" in refused(*fit, "0.3")
    assert "at most" in refused(*fit, "inf", "--adapt", tmp_path / "new.ark")
    shown = printed(*fit, "0.3", "--between-covar-scale", 0.7, "--adapt", tmp_path / "new.ark")
    assert "new.ark" in shown
    plain = fit_plda(rows.astype(np.float32), labels)
    expected, fitted = plain.adapt(new, within=0.3, between=0.7), load_plda(tmp_path / "p.json")
    np.testing.assert_allclose(fitted.project(new), expected.project(new), rtol=1e-6)
    assert np.abs(fitted.project(new) - plain.project(new)).max() > 0.1
    np.save(tmp_path / "new.npy", new)  # without ids
    printed(*fit, "0.3", "--adapt", tmp_path / "new.npy", "--force")
    assert (load_plda(tmp_path / "p.json").project(new) == fitted.project(new)).all()
    write_embeddings(tmp_path / "new.npz", Embeddings(named, rows, {"model": "m2"}))
    assert "m2" in refused(*fit, "0.3", "--force", "--adapt", tmp_path / "new.npz")
