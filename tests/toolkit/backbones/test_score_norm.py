"""ScoreNorm beside the score normalisation of eval, and at its edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from likeness.eval.scoring.normalization import cohort_statistics
from likeness.eval.similarity import matrix
from likeness.toolkit.backbones.score_norm import ScoreNorm


def estimated(rows: np.ndarray, labels: np.ndarray, *, batches: int = 1) -> ScoreNorm:
    head = ScoreNorm(rows.shape[1])
    parts = zip(np.array_split(rows, batches), np.array_split(labels, batches), strict=True)
    head.estimate((torch.from_numpy(x), None, torch.from_numpy(y)) for x, y in parts)
    return head


def test_its_dot_products_are_scores_over_the_spread_of_the_cohort() -> None:
    """A cohort of vectors and their opposites has mean 0, and so has every row of its scores.

    Their spread by eval is then the root mean square.
    """
    rng = np.random.default_rng(0)
    half = rng.normal(size=(20, 5))
    cohort = np.concatenate([half, -half]) + 3.0
    head = estimated(cohort, np.arange(40))
    x = rng.normal(size=(7, 5)) + 3.0
    z = head(torch.from_numpy(x).float()).double().numpy()
    spread = cohort_statistics(x - 3.0, cohort - 3.0, similarity="cosine").std
    expected = matrix(x - 3.0, x - 3.0, "cosine") / np.sqrt(np.outer(spread, spread))
    np.testing.assert_allclose(z @ z.T, expected, rtol=1e-5, atol=1e-6)


def test_a_subject_counts_once_however_many_embeddings_it_has() -> None:
    """The moment by loops over subjects, with the mean over all embeddings."""
    rng = np.random.default_rng(1)
    labels = np.array([0] * 9 + [1, 1, 2] + [3] * 4)
    rows = rng.normal(size=(16, 3)) + rng.normal(size=(4, 3))[labels]
    head = estimated(rows, labels + 100, batches=3)
    units = rows - rows.mean(axis=0)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    moment = np.zeros((3, 3))
    for label in range(4):
        mean = units[labels == label].mean(axis=0)
        moment += np.outer(mean, mean) / 4
    np.testing.assert_allclose(head.moment.numpy(), moment, rtol=1e-5)
    np.testing.assert_allclose(head.mean.numpy(), rows.mean(axis=0), rtol=1e-5)


def test_an_embedding_that_resembles_nobody_has_a_finite_score() -> None:
    """The cohort lies in a plane; orthogonal to it sigma is the floor, a tenth of the usual."""
    cohort = np.array([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    head = estimated(cohort, np.arange(4))
    z = head(torch.tensor([[0.0, 0, 5], [1, 0, 0], [0, 0, 0]]))
    usual = (1 / 3) ** 0.5  # root mean square over all directions: the trace is 1
    torch.testing.assert_close(z[0].square().sum(), torch.tensor(1 / (0.1 * usual)))
    torch.testing.assert_close(z[1].square().sum(), torch.tensor(2**0.5))
    assert z[2].tolist() == [0, 0, 0]  # at the mean: no direction
    assert (z > -1e3).all()
    assert (z < 1e3).all()


def test_what_cannot_be_normalised_is_refused() -> None:
    for value in (1.0, 0.1, 1000.1):  # of which rounding moves the mean of the last two
        with pytest.raises(ValueError, match="all 3 subjects are alike"):
            estimated(np.full((6, 4), value), np.array([0, 0, 1, 1, 2, 2]))
    with pytest.raises(ValueError, match="takes embeddings \\(B, 4\\)"):
        ScoreNorm(4)(torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_does_not_round_the_constants(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(2)
    head = estimated(rng.normal(size=(60, 32)) + 4.0, np.arange(60) // 3)
    x = torch.from_numpy(rng.normal(size=(9, 32)) + 4.0).float()
    alone = head(x)
    with torch.autocast("cpu", dtype=dtype):
        assert torch.equal(head(x), alone)
        assert head(x.to(dtype)).dtype == torch.float32
