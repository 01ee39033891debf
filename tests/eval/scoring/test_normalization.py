"""Score normalisation against the definitions in loops over trials, and the inputs that have no
normalisation.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from likeness.eval.scoring import normalization as module
from likeness.eval.scoring.normalization import (
    as_norm,
    cohort_statistics,
    s_norm,
    subtract_mean,
    t_norm,
    z_norm,
)
from likeness.eval.similarity import pairs

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


def data(
    seed: int, dim: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((4, dim)),
        rng.standard_normal((6, dim)),
        rng.standard_normal((20, dim)),
        rng.integers(0, 4, 16),
        rng.integers(0, 6, 16),
    )


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("top_n", [None, 2, 7, 20])
def test_against_loops(monkeypatch, similarity, top_n):
    monkeypatch.setattr(module, "_BLOCK", 45)  # two rows at a time
    enrol, probe, cohort, i, j = data(0)
    i, j = i[:4], j[:4]
    scores = pairs(enrol, probe, i, j, similarity)
    how = {"similarity": similarity, "top_n": top_n}
    result = {
        "z": z_norm(scores, enrol, cohort, i=i, **how),
        "t": t_norm(scores, probe, cohort, j=j, **how),
        "s": s_norm(scores, enrol, probe, cohort, i=i, j=j, **how),
    }
    if top_n:
        assert (
            as_norm(scores, enrol, probe, cohort, i=i, j=j, **how).tolist() == result["s"].tolist()
        )
    expected = [
        brute(s, enrol[a], probe[b], cohort, top_n, similarity)
        for s, a, b in zip(scores, i, j, strict=True)
    ]
    for kind, values in result.items():
        # cohort scores are float32
        np.testing.assert_allclose(
            values, [value[kind] for value in expected], rtol=2e-4, atol=2e-4
        )


def test_rows_that_pair_up_need_no_numbers():
    enrol, probe, cohort, i, j = data(1)
    scores = pairs(enrol, probe, i, j)
    indexed = as_norm(scores, enrol, probe, cohort, top_n=5, i=i, j=j)
    np.testing.assert_allclose(
        as_norm(scores, enrol[i], probe[j], cohort, top_n=5), indexed, rtol=1e-5
    )


def test_one_matrix_on_both_sides_is_scored_once(monkeypatch):
    enrol, _, cohort, i, j = data(2)
    scores = pairs(enrol, enrol, i, j % 4)
    apart = as_norm(scores, enrol, enrol.copy(), cohort, top_n=5, i=i, j=j % 4)
    calls = []
    original = module.against
    monkeypatch.setattr(
        module, "against", lambda *arguments: calls.append(1) or original(*arguments)
    )
    assert as_norm(scores, enrol, enrol, cohort, top_n=5, i=i, j=j % 4).tolist() == apart.tolist()
    assert len(calls) == 1


def test_statistics_of_few_rows():
    mean, std = cohort_statistics(
        [[1.0, 0.0]], [[3.0, 9.0], [1.0, 9.0], [-5.0, 9.0]], top_n=2, similarity="dot"
    )
    assert (mean.tolist(), std.tolist()) == ([2], [1])
    assert cohort_statistics(np.ones((0, 2)), np.ones((3, 2))).mean.shape == (0,)


def test_no_trials():
    enrol, probe, cohort, _, _ = data(3)
    assert as_norm([], enrol, probe, cohort, top_n=3, i=[], j=[]).shape == (0,)


def test_subtract_mean():
    x, cohort = np.random.default_rng(0).standard_normal((2, 5, 3))
    np.testing.assert_allclose(
        subtract_mean(x, cohort), x - cohort.mean(axis=0), rtol=1e-6, atol=1e-7
    )
    np.testing.assert_allclose(subtract_mean(cohort, cohort).mean(axis=0), 0, atol=1e-7)
    with pytest.raises(ValueError, match="with one D"):
        subtract_mean(x, cohort[:, :2])
    with pytest.raises(ValueError, match="C >= 1"):
        subtract_mean(x, cohort[:0])


def test_zero_vectors_get_half_a_score_and_a_warning():
    enrol, probe, cohort, i, j = data(4)
    enrol[1] = 0
    scores = pairs(enrol, probe, i, j)
    with pytest.warns(UserWarning, match="1 of 4 enrolment"):
        normed = as_norm(scores, enrol, probe, cohort, top_n=5, i=i, j=j)
    assert np.isfinite(normed).all()
    np.testing.assert_allclose(
        normed[i == 1], t_norm(scores, probe, cohort, top_n=5, j=j)[i == 1] / 2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t_norm(scores, probe, cohort, j=j)


@pytest.mark.parametrize("value", [0.0, 1.0, 1e20])
def test_constant_cohorts_and_embeddings_are_refused(value):
    enrol, probe, cohort, i, j = data(5)
    scores = pairs(enrol, probe, i, j)
    with pytest.raises(ValueError, match="each of the 4 enrolment"):
        as_norm(scores, enrol, probe, np.full_like(cohort, value), top_n=5, i=i, j=j)
    if not value:
        with pytest.raises(ValueError, match="each of the 4 enrolment"):
            z_norm(scores, enrol * 0, cohort, i=i)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top_n": 21}, "top_n = 21"),
        ({"top_n": 1}, "top_n = 1;"),
        ({"cohort": np.ones((1, 5))}, "a cohort of 1 "),
        ({"cohort": np.ones((0, 5))}, "a cohort of 0 "),
        ({"cohort": np.ones((20, 4))}, "one D"),
        ({"i": None}, "do not fit 4 enrolment embeddings"),
        ({"similarity": "cosin"}, "did you mean 'cosine'"),
    ],
)
def test_refused(change, message):
    enrol, probe, cohort, i, j = data(6)
    arguments = {
        "scores": pairs(enrol, probe, i, j),
        "enrol": enrol,
        "probe": probe,
        "cohort": cohort,
        "top_n": 5,
        "i": i,
        "j": j,
    } | change
    with pytest.raises(ValueError, match=message):
        as_norm(**arguments)


def test_the_mean_score_with_the_closest_of_the_cohort():
    cohort = [[1.0, 0], [0, 1], [-1, 0]]
    np.testing.assert_allclose(module.cohort_mean([[1.0, 0]], cohort, top_n=2), [0.5])
    np.testing.assert_allclose(module.cohort_mean([[1.0, 0]], cohort), [0.0], atol=1e-7)
