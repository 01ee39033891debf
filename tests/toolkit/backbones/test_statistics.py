"""Statistics as embeddings, and their norm by a cohort."""

import numpy as np
import pytest
import torch
from scipy.linalg import eigh

from likeness import backbones
from likeness.eval.metrics.similarity import matrix
from likeness.eval.scoring.normalization import cohort_statistics
from likeness.toolkit.backbones.statistics import movement_statistics, order_statistics


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("frames", [4, 9, 30])
def test_order_statistics_are_numpy_s_on_the_valid_frames(frames, gradient):
    x = torch.randn(3, 30, 5, generator=torch.Generator().manual_seed(frames))
    x[:, 1] = x[:, 0]  # ties
    mask = torch.arange(30)[None] < torch.tensor([[30], [frames], [7]])
    cuts = (0.02, 0.1, 0.5, 0.9, 0.98)
    ours = order_statistics(x.requires_grad_(gradient), mask).detach().numpy()
    for row, valid in enumerate((30, frames, 7)):
        part = x[row, :valid].detach().numpy()
        order = np.argsort(part.mean(axis=1), kind="stable")
        groups = [[order[r] for r in range(valid) if r * 4 // valid == k] for k in range(4)]
        expected = [part[group].mean(axis=0) for group in groups]
        expected += [*np.quantile(part, cuts, axis=0), part.std(axis=0)]
        np.testing.assert_allclose(ours[row], np.concatenate(expected), atol=2e-5)


def test_movement_statistics_are_numpy_s_on_the_valid_frames():
    """Recordings of 30 frames, of 9 and of 2, which are shorter than a difference of 4."""
    valid = (30, 9, 2)
    x = torch.randn(3, 30, 6, generator=torch.Generator().manual_seed(0))
    mask = torch.arange(30)[None] < torch.tensor(valid)[:, None]
    ours = movement_statistics(x, mask, differences=(1, 4), num_correlated=3).numpy()
    for row, frames in enumerate(valid):
        part = x[row, :frames].numpy()
        moved = (part[1:] - part[:-1]).std(axis=0)
        far = (part[4:] - part[:-4]).std(axis=0) if frames > 4 else np.full(6, 1e-5)
        groups = np.corrcoef(part.reshape(frames, 3, 2).mean(axis=2).T)
        expected = [moved, far, [groups[0, 1], groups[0, 2], groups[1, 2]]]
        np.testing.assert_allclose(ours[row], np.concatenate(expected), atol=2e-5)


@pytest.mark.parametrize("dim", [9, 4])
def test_a_start_as_a_rotation_keeps_the_angles_of_the_whitening(dim):
    """With as many dimensions as directions; fewer are a projection, which is orthogonal."""
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(10).repeat_interleave(6)
    features = torch.randn(60, 12, 4, generator=generator)
    net = backbones.OrderStatistics(4, dim=dim, num_directions=9, start="rotation").eval()
    net.estimate([(features, None, labels)])
    whitened = (net.statistics(features) - net.mean) @ net.directions
    with torch.no_grad():
        ours = net(features)
    products = net.linear.weight @ net.linear.weight.T
    torch.testing.assert_close(products, torch.eye(dim), atol=1e-5, rtol=0)
    if dim == 9:
        expected = torch.nn.functional.cosine_similarity(whitened[:1], whitened)
        found = torch.nn.functional.cosine_similarity(ours[:1], ours)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("frames", [1, 100, 997, 3000])
def test_frames_that_are_all_alike_do_not_correlate(frames):
    """The mean of equal numbers is not always that number, and all groups are then off at once."""
    x = torch.linspace(-15.94, 11.77, 8).expand(1, frames, 8)
    mask = torch.ones(1, frames, dtype=torch.bool)
    found = movement_statistics(x, mask, differences=(), num_correlated=8)
    assert found.shape == (1, 28)
    assert found.abs().max() < 0.02


def test_estimated_directions_are_fisher_s():
    """Against scipy's generalised eigenproblem on the same statistics."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(6).repeat_interleave(40)
    level = torch.randn(6, 4, generator=generator)[labels]
    features = torch.randn(240, 12, 4, generator=generator) + level[:, None]
    net = backbones.OrderStatistics(4, dim=8, num_directions=9).eval()
    net.estimate((features[i : i + 60], None, labels[i : i + 60]) for i in range(0, 240, 60))
    x, y = net.statistics(features).double().numpy(), labels.numpy()
    within = sum(np.cov(x[y == k].T, bias=True) for k in range(6)) / 6
    scale = np.sqrt(np.diag(within))
    shrunk = 0.7 * within + 0.3 * np.diag(scale**2)
    centres = np.stack([x[y == k].mean(axis=0) for k in range(6)]) - x.mean(axis=0)
    values, vectors = eigh(centres.T @ centres, shrunk)
    ours = net.directions.numpy()
    assert not ours[:, 5:].any()  # six classes span five directions
    for k in range(5):
        theirs = vectors[:, ::-1][:, k]
        cosine = ours[:, k] @ theirs / np.linalg.norm(ours[:, k]) / np.linalg.norm(theirs)
        assert abs(cosine) == pytest.approx(1, abs=1e-3)
    assert (values[::-1][:5] > 0).all()
    projected = (x - net.mean.numpy()) @ ours[:, :5]
    assert np.square(projected).mean() == pytest.approx(1, rel=1e-4)


def test_output_norm_is_as_asked():
    net = backbones.OrderStatistics(4, dim=16, norm=5.0, dropout=0.0).train()
    z = net(torch.randn(64, 20, 4))
    assert z.square().sum(dim=1).mean().sqrt().item() == pytest.approx(5.0, rel=0.02)


def estimated(rows: np.ndarray, labels: np.ndarray, *, batches: int = 1) -> backbones.ScoreNorm:
    head = backbones.ScoreNorm(rows.shape[1])
    parts = zip(np.array_split(rows, batches), np.array_split(labels, batches), strict=True)
    head.estimate((torch.from_numpy(x), None, torch.from_numpy(y)) for x, y in parts)
    return head


def test_its_dot_products_are_scores_over_the_spread_of_the_cohort():
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


def test_a_subject_counts_once_however_many_embeddings_it_has():
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


def test_an_embedding_that_resembles_nobody_has_a_finite_score():
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


def test_what_cannot_be_normalised_is_refused():
    for value in (1.0, 0.1, 1000.1):  # of which rounding moves the mean of the last two
        with pytest.raises(ValueError, match="all 3 subjects are alike"):
            estimated(np.full((6, 4), value), np.array([0, 0, 1, 1, 2, 2]))
    with pytest.raises(ValueError, match="takes embeddings \\(B, 4\\)"):
        backbones.ScoreNorm(4)(torch.zeros(2, 3))
