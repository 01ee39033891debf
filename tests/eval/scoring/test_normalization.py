"""Score normalisation against the definitions in loops over trials, and the inputs that have no
normalisation.
"""

import warnings

import numpy as np
import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.similarity import pairs
from likeness.eval.scoring import normalization as module

SIMILARITIES = ("cosine", "dot", "simple:0.3", "euclidean", "vmf_b", "vmf_kl")


def one(x: np.ndarray, y: np.ndarray, similarity: str) -> float:
    return float(pairs(x[None], y[None], [0], [0], similarity)[0])


def brute(
    s: float, e: np.ndarray, p: np.ndarray, cohort: np.ndarray, top_n: int | None, similarity: str
) -> dict[str, float]:
    def normed(scores: list[float]) -> float:
        kept = sorted(scores, reverse=True)[:top_n]
        return (s - np.mean(kept)) / np.sqrt(np.mean((np.array(kept) - np.mean(kept)) ** 2))

    z = normed([one(e, c, similarity) for c in cohort])
    t = normed([one(c, p, similarity) for c in cohort])
    return {"z": z, "t": t, "s": (z + t) / 2}


def data(seed: int, dim: int = 5) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    rows = [rng.standard_normal((size, dim)) for size in (4, 6, 20)]
    return *rows, rng.integers(0, 4, 16), rng.integers(0, 6, 16)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("top_n", [None, 2, 7, 20])
def test_against_loops(monkeypatch, similarity, top_n):
    monkeypatch.setattr(module, "_BLOCK", 45)  # two rows at a time
    enrol, probe, cohort, i, j = data(0)
    i, j = i[:4], j[:4]
    scores = pairs(enrol, probe, i, j, similarity)
    how = {"similarity": similarity, "top_n": top_n}
    result = {
        "z": module.z_norm(scores, enrol, cohort, i=i, **how),
        "t": module.t_norm(scores, probe, cohort, j=j, **how),
        "s": module.s_norm(scores, enrol, probe, cohort, i=i, j=j, **how),
    }
    if top_n:
        as_norm = module.as_norm(scores, enrol, probe, cohort, i=i, j=j, **how)
        assert as_norm.tolist() == result["s"].tolist()
    expected = [
        brute(s, enrol[a], probe[b], cohort, top_n, similarity)
        for s, a, b in zip(scores, i, j, strict=True)
    ]
    for kind, values in result.items():
        # cohort scores are float32
        np.testing.assert_allclose(
            values, [value[kind] for value in expected], rtol=2e-4, atol=2e-4
        )


def test_one_matrix_on_both_sides_gives_the_same_as_a_copy():
    enrol, _, cohort, i, j = data(2)
    scores, how = pairs(enrol, enrol, i, j % 4), {"top_n": 5, "i": i, "j": j % 4}
    apart = module.as_norm(scores, enrol, enrol.copy(), cohort, **how)
    assert module.as_norm(scores, enrol, enrol, cohort, **how).tolist() == apart.tolist()


def test_statistics_of_few_rows_and_no_trials():
    enrol, cohort = [[1.0, 0.0]], [[3.0, 9.0], [1.0, 9.0], [-5.0, 9.0]]
    mean, std = module.cohort_statistics(enrol, cohort, top_n=2, similarity="dot")
    assert (mean.tolist(), std.tolist()) == ([2], [1])
    assert module.cohort_mean(enrol, cohort, top_n=2, similarity="dot").tolist() == [2]
    assert module.as_norm([], enrol, enrol, cohort, top_n=3, i=[], j=[]).shape == (0,)
    # Rows that pair up need no numbers.
    assert np.isfinite(module.as_norm([1.0], enrol, enrol, cohort, top_n=3)).all()


def test_subtract_mean():
    x, cohort = np.random.default_rng(0).standard_normal((2, 5, 3))
    np.testing.assert_allclose(
        module.subtract_mean(x, cohort), x - cohort.mean(axis=0), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(module.subtract_mean(cohort, cohort).mean(axis=0), 0, atol=1e-7)
    with pytest.raises(ValueError, match="with one D"):
        module.subtract_mean(x, cohort[:, :2])
    with pytest.raises(ValueError, match="C >= 1"):
        module.subtract_mean(x, cohort[:0])


def test_zero_vectors_get_half_a_score_and_a_warning():
    enrol, probe, cohort, i, j = data(4)
    enrol[1] = 0
    scores = pairs(enrol, probe, i, j)
    with pytest.warns(UserWarning, match="1 of 4 enrolment"):
        normed = module.as_norm(scores, enrol, probe, cohort, top_n=5, i=i, j=j)
    assert np.isfinite(normed).all()
    np.testing.assert_allclose(
        normed[i == 1], module.t_norm(scores, probe, cohort, top_n=5, j=j)[i == 1] / 2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.t_norm(scores, probe, cohort, j=j)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e20])
def test_constant_cohorts_and_embeddings_are_refused(value):
    enrol, probe, cohort, i, j = data(5)
    scores = pairs(enrol, probe, i, j)
    with pytest.raises(ValueError, match="all 4 enrolment"):
        module.as_norm(scores, enrol, probe, np.full_like(cohort, value), top_n=5, i=i, j=j)
    if not value:
        with pytest.raises(ValueError, match="all 4 enrolment"):
            module.z_norm(scores, enrol * 0, cohort, i=i)


@pytest.mark.parametrize(
    "change",
    [
        {"top_n": 21},
        {"top_n": 1},
        {"cohort": np.ones((1, 5))},
        {"cohort": np.ones((20, 4))},
        {"i": None},
        {"similarity": "cosin"},
    ],
)
def test_refused(change):
    enrol, probe, cohort, i, j = data(6)
    arguments = {"enrol": enrol, "probe": probe, "cohort": cohort, "top_n": 5, "i": i, "j": j}
    with pytest.raises(LikenessError):
        module.as_norm(pairs(enrol, probe, i, j), **(arguments | change))
