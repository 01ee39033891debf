"""MixtureStatistics: against scikit-learn's mixture, and loops over frames."""

import numpy as np
import pytest
import torch
from scipy.fft import dct
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from likeness.toolkit.backbones.mixture import MixtureStatistics, fit_mixture


def clouds(num: int) -> torch.Tensor:
    """Three clouds of points in the plane."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [6.0, 1.0], [-1.0, 7.0]], dtype=torch.float64)
    spread = torch.tensor([[1.0, 0.8], [0.7, 1.0], [1.0, 1.0]], dtype=torch.float64)
    noise = torch.randn(num, 2, generator=generator, dtype=torch.float64)
    return centres[torch.arange(num) % 3] + noise * spread[torch.arange(num) % 3]


def test_mixture_is_scikit_learn_s():
    x = clouds(600)
    weights, means, variances = fit_mixture(x, 3, steps=100)
    steps = {"tol": 1e-10, "max_iter": 500, "reg_covar": 0.0, "random_state": 0}
    theirs = GaussianMixture(3, covariance_type="diag", **steps).fit(x.numpy())
    order, known = means[:, 0].argsort(), theirs.means_[:, 0].argsort()
    pairs = (weights, theirs.weights_), (means, theirs.means_), (variances, theirs.covariances_)
    for ours, other in pairs:
        np.testing.assert_allclose(ours[order].numpy(), other[known], rtol=1e-4, atol=1e-5)


def test_a_component_without_frames_has_the_mean_and_the_variance_of_all():
    """Three components for two different frames: the third one starts with none."""
    x = torch.tensor([[0.0], [0.0], [5.0], [5.0]], dtype=torch.float64)
    weights, means, variances = fit_mixture(x, 3)
    least = int(weights.argmin())
    assert weights[least] < 1e-6
    assert sorted(means.flatten().tolist()) == pytest.approx([0, 2.5, 5], abs=1e-5)
    assert float(means[least]) == 2.5
    assert float(variances[least]) == 6.25


def test_frames_of_a_component_that_training_had_none_of_are_compared_with_all():
    """Training recordings that all hold the same two sounds leave one of three components empty."""
    level = torch.tensor([40.0, 0.0, 0.0, 0.0])
    first, second = level + torch.tensor([0, 3.0, 0, -3]), level + torch.tensor([0, -3.0, 0, 3])
    views = torch.stack([first, second]).repeat(6, 10, 1)
    net = MixtureStatistics(4, dim=2, num_components=3)
    net.estimate([(views, None, torch.arange(6) // 2)])
    empty = int(net.weights.argmin())
    overall = (views[0] @ net.cosines).mean(dim=0)
    torch.testing.assert_close(net.centres[empty], overall, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_frames", [1, 2, 3])
def test_recordings_of_a_few_frames_have_finite_embeddings_that_padding_keeps(num_frames):
    torch.manual_seed(0)
    net = MixtureStatistics(6, dim=4, num_components=3)
    net.estimate([(torch.randn(8, 20, 6), None, torch.arange(8) % 4)])
    x = torch.randn(1, num_frames, 6)
    padded = torch.cat([x, torch.full((1, 12 - num_frames, 6), 1e4)], dim=1)
    alone = net.eval()(x)
    assert alone.isfinite().all()
    beside = net(padded, torch.tensor([num_frames / 12]))
    torch.testing.assert_close(beside, alone, rtol=1e-4, atol=1e-5)


def test_too_few_frames_are_refused():
    with pytest.raises(ValueError, match="32 components"):
        fit_mixture(torch.zeros(31, 2), 32)


def test_statistics_are_those_of_a_loop_over_frames():
    torch.manual_seed(0)
    net = MixtureStatistics(22, num_components=3)  # more bands than cepstra
    features, labels = torch.randn(8, 20, 22), torch.arange(8) % 4
    net.estimate([(features, None, labels)])
    view = features[0].double().numpy()
    coefficients = dct(view, norm="ortho", axis=1)
    ceps = coefficients[:, :20] - coefficients[:, :20].mean(axis=0)
    moved, count, overall = np.zeros((3, 22)), np.zeros(3), np.zeros(22)
    mixture = [each.double().numpy() for each in (net.weights, net.means, net.variances)]
    parts = [(w, multivariate_normal(m, np.diag(v))) for w, m, v in zip(*mixture, strict=True)]
    for t in range(20):
        delta = ceps[min(t + 1, 19), :12] - ceps[max(t - 1, 0), :12]
        key = np.concatenate([ceps[t], delta])
        density = [w * part.pdf(key) for w, part in parts]
        for k in range(3):
            share = density[k] / sum(density)
            apart = coefficients[t] - net.centres[k].double().numpy()
            moved[k] += share * apart
            count[k] += share
            overall += share * apart / 20
    expected = (moved + 8 * overall) / (count[:, None] + 8)
    np.testing.assert_allclose(net.statistics(features)[0], expected.ravel(), atol=1e-4)
