"""Similarities against brute force in float64, along every path: one product, bands of it, gathered rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval import similarity as module
from eval.similarity import matrix, pairs, score_trials
from eval.types import Embeddings, Trials

NAMES = ("cosine", "dot", "simple", "simple:0", "simple:-.25", "simple:1")


def brute(x: np.ndarray, y: np.ndarray, similarity: str) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    dot, norms = float(x @ y), float(np.linalg.norm(x) * np.linalg.norm(y))
    if similarity == "cosine":
        return dot / norms if norms else 0.0
    if similarity == "dot":
        return dot
    return dot - float(similarity.partition(":")[2] or 0.3) * norms


def data(n: int, m: int, dim: int, trials: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, dim), dtype=np.float32) * np.exp(rng.standard_normal((n, 1), dtype=np.float32))
    y = rng.standard_normal((m, dim), dtype=np.float32)
    x[rng.integers(n)] = 0
    return x, y, rng.integers(0, n, trials), rng.integers(0, m, trials)


@pytest.mark.parametrize("similarity", NAMES)
@pytest.mark.parametrize("path", ["product", "bands", "sorted bands", "gather"])
def test_pairs_against_brute_force(monkeypatch, similarity, path):
    x, y, i, j = data(40, 30, 19, 700, seed=1)
    if "bands" in path:
        monkeypatch.setattr(module, "_CELLS", 1)
        monkeypatch.setattr(module, "_BLOCK_CELLS", 7 * 30)  # bands of 7 rows, the last one of 5
    monkeypatch.setattr(module, "_BLOCK_TRIALS", 64)
    monkeypatch.setattr(module, "_PRODUCT_GAIN", 0 if path == "gather" else 1e9)
    if path == "sorted bands":
        i = np.sort(i)
        i[i == 9] = 10  # and a row that does not occur
        i[(i >= 14) & (i < 21)] = 21
    found = pairs(x, y, i, j, similarity)
    expected = np.array([brute(x[a], y[b], similarity) for a, b in zip(i, j, strict=True)])
    scale = 1 if similarity == "cosine" else np.linalg.norm(x[i].astype(float), axis=1) * np.linalg.norm(y[j].astype(float), axis=1) + 1e-30
    assert found.dtype == np.float64
    assert np.max(np.abs(found - expected) / scale) < 5e-7
    full = matrix(x, y, similarity)
    assert full.dtype == np.float32
    assert np.max(np.abs(full[i, j] - expected) / scale) < 5e-7


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(0, 60), st.integers(0, 9999), st.sampled_from(NAMES))
def test_any_shape(n, m, dim, trials, seed, similarity):
    x, y, i, j = data(n, m, dim, trials, seed)
    found = pairs(x, y, i.astype(np.int32), j, similarity)
    expected = [brute(x[a], y[b], similarity) for a, b in zip(i, j, strict=True)]
    assert found.shape == (trials,)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_the_paths_are_really_taken(monkeypatch):
    x, y, i, j = data(50, 50, 4, 200, seed=2)
    taken = []
    for name in ("_product_then_gather", "_gather_then_dot"):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, name=name, original=original: taken.append(name) or original(*args))
    pairs(x, y, i, j)
    pairs(x, y, i[:20], j[:20])
    pairs(np.zeros((5000, 4)), np.zeros((5000, 4)), np.arange(9) * 500, np.arange(9) * 500)
    assert taken == ["_product_then_gather", "_product_then_gather", "_product_then_gather"]
    big = np.zeros((5000, 4))
    pairs(big, big, np.arange(5000), np.arange(5000))  # 25 M cells for 5,000 trials
    assert taken[-1] == "_gather_then_dot"


def test_zero_vectors_score_zero():
    zero, one = np.zeros((1, 3)), np.ones((1, 3))
    for similarity in NAMES:
        assert pairs(zero, one, [0], [0], similarity).tolist() == [0]
        assert pairs(zero, zero, [0], [0], similarity).tolist() == [0]
        assert matrix(one, zero, similarity).tolist() == [[0]]


def test_extreme_norms_have_a_cosine():
    x = np.array([[1e-30, 1e-30], [1e30, -1e30]], dtype=np.float32)
    np.testing.assert_allclose(pairs(x, x, [0, 1, 0], [0, 1, 1]), [1, 1, 0], atol=1e-6)


def test_simple_is_the_paper_formula():
    x, y = np.array([[3.0, 4.0]]), np.array([[2.0, 0.0]])
    assert pairs(x, y, [0], [0], "simple").tolist() == pytest.approx([6 - 0.3 * 10])
    assert pairs(x, y, [0], [0], "simple:.5").tolist() == pytest.approx([6 - 0.5 * 10])


def test_equal_trials_have_equal_scores():
    x, y, i, j = data(30, 30, 64, 500, seed=3)
    found = pairs(x, y, np.tile(i, 2), np.tile(j, 2))
    assert found[:500].tobytes() == found[500:].tobytes()


def test_no_trials():
    assert pairs(np.ones((2, 3)), np.ones((2, 3)), [], []).shape == (0,)
    assert matrix(np.ones((0, 3)), np.ones((2, 3)), "simple").shape == (0, 2)


@pytest.mark.parametrize(
    ("similarity", "message"),
    [
        ("cosin", "did you mean 'cosine'.*allowed: cosine, dot, simple, simple:B_THETA"),
        ("COSINE", "did you mean 'cosine'"),
        ("euclid", "allowed: cosine, dot"),
        ("simple:x", "'x' is not a number"),
        ("simple:", "'' is not a number"),
        ("simple:2", r"must lie in \[-1, 1\]"),
        ("simple:nan", r"must lie in \[-1, 1\]"),
        ("cosine:1", "unknown similarity 'cosine:1'"),
    ],
)
def test_unknown_similarities(similarity, message):
    with pytest.raises(ValueError, match=message):
        pairs(np.ones((1, 2)), np.ones((1, 2)), [0], [0], similarity)
    with pytest.raises(ValueError, match=message):
        matrix(np.ones((1, 2)), np.ones((1, 2)), similarity)


@pytest.mark.parametrize(
    ("i", "j", "message"),
    [([2], [0], "i must be"), ([-1], [0], "i must be"), ([0], [3], "j must be"), ([0.0], [0], "i must be"), ([0, 1], [0], "must pair up")],
)
def test_bad_indices(i, j, message):
    with pytest.raises(ValueError, match=message):
        pairs(np.ones((2, 2)), np.ones((2, 2)), i, j)


def test_dimension_mismatch():
    for a, b in ((np.ones((2, 3)), np.ones((2, 4))), (np.ones(3), np.ones((2, 3)))):
        with pytest.raises(ValueError, match="with one D"):
            pairs(a, b, [0], [0])
        with pytest.raises(ValueError, match="with one D"):
            matrix(a, b)


def test_score_trials():
    enrol = Embeddings(("c", "a", "b"), np.array([[1, 0], [0, 2], [3, 4]]))
    trials = Trials(("a", "b"), ("b", "c"), np.array([0, 1, 1]), np.array([0, 0, 1]))
    np.testing.assert_allclose(score_trials(trials, enrol), [0.8, 1, 0.6], rtol=1e-6)
    probe = Embeddings(("b", "c"), np.array([[1, 1], [0, 1]]))
    np.testing.assert_allclose(score_trials(trials, enrol, probe, "dot"), [2, 7, 4])
    lacking = Trials(("a", "x", "y"), ("b", "z"), np.array([0, 1, 2]), np.array([0, 1, 1]))
    with pytest.raises(KeyError, match=r"2 of 3 enrolment ids \('x', 'y'\) and 1 of 2 probe ids \('z'\)"):
        score_trials(lacking, enrol, probe)
