"""Similarities against brute force in float64, along every path: one product, bands of it, gathered
rows.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.metrics import similarity as module
from likeness.eval.metrics.similarity import make_scorer, matrix, pairs, score_trials, single
from likeness.eval.metrics.von_mises_fisher import log_normalizer, mean_resultant
from likeness.eval.types import Trials

NAMES = ("cosine", "dot", "simple", "simple:0", "simple:-.25", "simple:1")
PRECISE = ("euclidean", "poincare", "poincare:.1", "poincare:1")
PRECISE += ("vmf_el", "vmf_b", "vmf_kl", "vmf_el:.25", "vmf_b:9", "vmf_kl:2")
GOLDEN = Path(__file__).parents[2] / "golden"


def brute(x: np.ndarray, y: np.ndarray, similarity: str) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    dot, norms = float(x @ y), float(np.linalg.norm(x) * np.linalg.norm(y))
    if similarity == "cosine":
        return dot / norms if norms else 0.0
    if similarity == "dot":
        return dot
    return dot - float(similarity.partition(":")[2] or 0.3) * norms


def brute_precise(x: np.ndarray, y: np.ndarray, similarity: str) -> float:
    """From the definitions: Moebius addition for the Poincare distance, densities' normalisers at
    the three natural parameters for vMF.
    """
    x, y = x.astype(np.float64), y.astype(np.float64)
    name, _, text = similarity.partition(":")
    if name == "euclidean":
        return -float(np.linalg.norm(x - y))
    if name == "poincare":
        c = float(text or 1e-5)
        x, y = -in_ball(x, c), in_ball(y, c)
        xy, xx, yy = x @ y, x @ x, y @ y
        moved = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
        moved /= 1 + 2 * c * xy + c * c * xx * yy
        return -2 / np.sqrt(c) * float(np.arctanh(np.sqrt(c) * np.linalg.norm(moved)))
    alpha, dim = float(text or 1), x.size
    x, y = alpha * x, alpha * y
    kx, ky = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    lx, ly = float(log_normalizer(kx, dim)), float(log_normalizer(ky, dim))
    if name == "vmf_el":
        return lx + ly - float(log_normalizer(np.linalg.norm(x + y), dim))
    if name == "vmf_b":
        return (lx + ly) / 2 - float(log_normalizer(np.linalg.norm(x + y) / 2, dim))
    mean = float(mean_resultant(kx, dim)) * x / kx if kx else 0 * x
    return -(lx - ly + float(mean @ (x - y)))


def in_ball(x: np.ndarray, c: float) -> np.ndarray:
    norm = np.linalg.norm(x)
    return min(np.tanh(np.sqrt(c) * norm), 1 - 1e-3) / np.sqrt(c) * x / norm if norm else x


def data(n: int, m: int, dim: int, trials: int, seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.standard_normal((n, 1), dtype=np.float32))
    x, y = (rng.standard_normal((of, dim), dtype=np.float32) for of in (n, m))
    x *= lengths
    x[rng.integers(n)] = 0
    return x, y, rng.integers(0, n, trials), rng.integers(0, m, trials)


@pytest.mark.parametrize("similarity", [*NAMES, *PRECISE])
@pytest.mark.parametrize(
    ("path", "kind"),
    [("product", "u1"), ("bands", "i2"), ("sorted bands", "u8"), ("gather", ">i4")],
)
def test_pairs_and_matrix_against_brute_force(monkeypatch, similarity, path, kind):
    """Indices of any kind of integers: there are more cells than the smaller ones count, and int64
    and uint64 do not mix.
    """
    x, y, i, j = data(40, 30, 19, 300, seed=1)
    if "bands" in path:
        monkeypatch.setattr(module, "_CELLS", 1)
        monkeypatch.setattr(module, "_BLOCK_CELLS", 7 * 30)  # bands of 7 rows, the last one of 5
    monkeypatch.setattr(module, "_BLOCK_TRIALS", 64)
    monkeypatch.setattr(module, "_PRODUCT_GAIN", 0 if path == "gather" else 1e9)
    if path == "sorted bands":
        i = np.sort(i)
        i[i == 9] = 10  # and a row that does not occur
        i[(i >= 14) & (i < 21)] = 21
    result, full = pairs(x, y, i.astype(kind), j.astype(kind), similarity), matrix(x, y, similarity)
    assert (result.dtype, full.dtype) == (np.float64, np.float32)
    one = brute_precise if similarity in PRECISE else brute
    expected = np.array([one(x[a], y[b], similarity) for a, b in zip(i, j, strict=True)])
    if similarity in PRECISE:
        # artanh and the differences of the brute force lose digits themselves
        np.testing.assert_allclose(result, expected, rtol=1e-8, atol=2e-7)
        np.testing.assert_allclose(full[i, j], expected, rtol=1e-6, atol=1e-6)
        return
    lengths = [np.linalg.norm(rows.astype(float), axis=1) for rows in (x[i], y[j])]
    scale = 1 if similarity == "cosine" else lengths[0] * lengths[1] + 1e-30
    assert np.max(np.abs(result - expected) / scale) < 5e-7
    assert np.max(np.abs(full[i, j] - expected) / scale) < 5e-7


@pytest.mark.parametrize("dim", [3, 16, 128, 512])
@pytest.mark.parametrize(
    ("similarity", "key"), [("vmf_el", "d_EL"), ("vmf_b", "d_B"), ("vmf_kl", "d_KL_z_p")]
)
@pytest.mark.parametrize("gather", [False, True])
def test_vmf_golden(monkeypatch, dim, similarity, key, gather):
    golden = np.load(GOLDEN / "vmf_distances_exact__mpmath.npz", allow_pickle=False)
    z, p, expected = golden[f"n{dim}/z"], golden[f"n{dim}/p"], -golden[f"n{dim}/{key}"]
    monkeypatch.setattr(module, "_PRODUCT_GAIN", 0 if gather else 1e9)
    i, j = np.indices(expected.shape).reshape(2, -1)
    result = pairs(z, p, i, j, similarity).reshape(expected.shape)
    # the series itself is good to 3e-8 below 64-D
    np.testing.assert_allclose(result, expected, rtol=1e-9, atol=6e-8 if 3 < dim < 128 else 1e-10)
    if key == "d_KL_z_p":
        swapped = pairs(p, z, j, i, similarity).reshape(expected.shape)
        np.testing.assert_allclose(swapped, -golden[f"n{dim}/d_KL_p_z"], rtol=1e-9, atol=6e-8)
    scaled = pairs(z / 4, p / 4, i, j, f"{similarity}:4").reshape(expected.shape)
    np.testing.assert_allclose(scaled, expected, rtol=1e-9, atol=6e-8 if 3 < dim < 128 else 1e-9)
    np.testing.assert_allclose(matrix(z, p, similarity), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["1e-05", "0.1", "1"])
def test_poincare_golden(name):
    """The file's distances are between points of the ball: bring them there by the inverse of
    expmap0. Tolerance: the reference's epsilons.
    """
    golden = np.load(GOLDEN / "poincare__vmf_embeddings.npz", allow_pickle=False)
    root, points = np.sqrt(float(name)), golden["x"]
    norms = np.linalg.norm(points, axis=1)
    inside = np.flatnonzero(root * norms < 1 - 1e-3)
    tangent = points[inside] * (np.arctanh(root * norms[inside]) / (root * norms[inside]))[:, None]
    i, j = np.indices((inside.size, inside.size)).reshape(2, -1)
    result = pairs(tangent, tangent, i, j, f"poincare:{name}").reshape(inside.size, -1)
    np.testing.assert_allclose(-result, golden[f"dist_c{name}"][np.ix_(inside, inside)], atol=1e-4)
    mapped = [in_ball(point, float(name)) for point in points]
    np.testing.assert_allclose(mapped, golden[f"expmap0_c{name}"], atol=1e-12)


@given(st.integers(1, 40), st.integers(0, 9999), st.floats(0.01, 100), st.sampled_from(PRECISE))
def test_a_vector_is_closest_to_itself(dim, seed, size, similarity):
    """Distances are 0 for x = y and never below; the expected likelihood is no distance (it grows
    with the concentrations).
    """
    x = np.random.default_rng(seed).standard_normal((6, dim)) * size
    result = pairs(x, x, *np.indices((6, 6)).reshape(2, -1), similarity).reshape(6, 6)
    assert np.isfinite(result).all()
    if not similarity.startswith("vmf_kl"):
        np.testing.assert_allclose(result, result.T, rtol=1e-12, atol=1e-7 * (1 + size))
    if not similarity.startswith("vmf_el"):
        # 1e-8 |x| from the square root, amplified near the rim of the ball
        tolerance = 1e-6 * (1 + size)
        own = 1e-2 if similarity.startswith("poincare") else tolerance
        assert (np.abs(np.diag(result)) <= own).all()
        assert (result <= tolerance).all()


def test_vmf_of_zero_vectors_is_the_uniform_distribution():
    zero, unit = np.zeros((1, 3)), np.array([[0.0, 3.0, 4.0]])
    assert pairs(zero, zero, [0], [0], "vmf_el")[0] == pytest.approx(-np.log(4 * np.pi))
    # any density integrates to 1 against 1/4pi
    assert pairs(zero, unit, [0], [0], "vmf_el")[0] == pytest.approx(-np.log(4 * np.pi))
    for similarity in ("vmf_b", "vmf_kl", "euclidean", "poincare:1"):
        assert pairs(zero, zero, [0], [0], similarity)[0] == pytest.approx(0, abs=1e-12)
        assert pairs(zero, unit, [0], [0], similarity)[0] < -0.1


@pytest.mark.parametrize(
    "similarity", ["cosine", "dot", "simple:0.3", "euclidean", "poincare", "vmf_el", "vmf_kl"]
)
def test_against_and_single_are_the_matrix(similarity):
    x, y = np.random.default_rng(0).standard_normal((2, 9, 6)).astype(np.float32)
    x[3] = 0
    whole = matrix(x, y, similarity)
    np.testing.assert_allclose(make_scorer(y, similarity)(x), whole, rtol=1e-6)
    alone = single(x[:, None], y[None], similarity)
    np.testing.assert_allclose(alone, whole, rtol=1e-4, atol=1e-5)
    assert alone.dtype == np.float32


def test_zero_vectors_score_zero():
    zero, unit = np.zeros((1, 3)), np.ones((1, 3))
    for similarity in NAMES:
        assert pairs(zero, unit, [0], [0], similarity).tolist() == [0]
        assert pairs(zero, zero, [0], [0], similarity).tolist() == [0]
        assert matrix(unit, zero, similarity).tolist() == [[0]]


def test_zero_vectors_in_trials_are_counted_and_named(recwarn):
    trials = Trials(("a", "b"), ("c", "d"), [0, 1, 0], [0, 0, 1])
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 2.0]])
    probes = Embeddings(("c", "d"), rows[[0, 3]])
    score_trials(trials, Embeddings(("a", "e", "z", "b"), rows), probes)
    assert not recwarn.list  # what the trials do not use does not matter
    with pytest.warns(UserWarning, match="2 embeddings.*'b'"):
        assert score_trials(trials, Embeddings(("a", "b", "c", "d"), rows)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "similarity", ["cosin", "vmf", "poincare:0", "poincare:x", "vmf_b:-1", "euclidean:2"]
)
def test_unknown_similarities(similarity):
    with pytest.raises(LikenessError):
        pairs(np.ones((1, 2)), np.ones((1, 2)), [0], [0], similarity)


def test_score_trials():
    enrol = Embeddings(("c", "a", "b"), np.array([[1, 0], [0, 2], [3, 4]]))
    trials = Trials(("a", "b"), ("b", "c"), np.array([0, 1, 1]), np.array([0, 0, 1]))
    np.testing.assert_allclose(score_trials(trials, enrol), [0.8, 1, 0.6], rtol=1e-6)
    probe = Embeddings(("b", "c"), np.array([[1, 1], [0, 1]]))
    np.testing.assert_allclose(score_trials(trials, enrol, probe, "dot"), [2, 7, 4])
    lacking = Trials(("a", "x", "y"), ("b", "z"), np.array([0, 1, 2]), np.array([0, 1, 1]))
    with pytest.raises(LikenessError):
        score_trials(lacking, enrol, probe)
