"""Histograms of oriented gradients against their definition pixel by pixel, what they do not see,
and the whitening against numpy.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from likeness.toolkit.backbones.gradients import (
    GradientHistograms,
    oriented_gradients,
    within_class_whitening,
)

Floats = NDArray[np.float64]


def by_pixels(grey: Floats, cells: int, bins: int, sigma: float) -> Floats:
    """(H, W) -> (cells, cells, bins), one pixel, one cell and one bin at a time."""
    x = gaussian_filter(grey, sigma, mode="nearest", radius=math.ceil(3 * sigma)) if sigma else grey
    height, width = x.shape
    result, total = np.zeros((cells, cells, bins)), np.zeros((cells, cells))
    for i in range(height):
        for j in range(width):
            dx = x[i, min(j + 1, width - 1)] - x[i, max(j - 1, 0)]
            dy = x[min(i + 1, height - 1), j] - x[max(i - 1, 0), j]
            place = (math.atan2(dy, dx) / (2 * math.pi) * bins - 0.5) % bins
            low = math.floor(place)
            for row in range(cells):
                for column in range(cells):
                    near = [
                        max(0.0, 1 - abs((k + 0.5) * cells / side - (cell + 0.5)))
                        for k, side, cell in ((i, height, row), (j, width, column))
                    ]
                    total[row, column] += near[0] * near[1]
                    weight = near[0] * near[1] * math.hypot(dx, dy)
                    result[row, column, low % bins] += weight * (1 - (place - low))
                    result[row, column, (low + 1) % bins] += weight * (place - low)
    result /= total[..., None]
    energy = np.zeros((cells, cells))
    for row in range(cells):
        for column in range(cells):
            around = result[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2].sum(axis=2)
            energy[row, column] = around.mean()
    return np.asarray(np.sqrt(result / (energy + 1e-3 * energy.mean())[..., None]))


@pytest.mark.parametrize(
    ("height", "width", "cells", "bins", "sigma"),
    [(12, 12, 3, 8, 0.0), (13, 10, 4, 6, 0.8), (9, 16, 2, 12, 1.5)],
)
def test_histograms_are_their_definition(height, width, cells, bins, sigma):
    grey = np.random.default_rng(height).normal(size=(2, height, width))
    ours = oriented_gradients(torch.from_numpy(grey), cells=cells, bins=bins, sigma=sigma).numpy()
    expected = [by_pixels(image, cells, bins, sigma) for image in grey]
    np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-9)


@given(seed=st.integers(0, 1000), gain=st.floats(1e-3, 1e3), offset=st.floats(-10, 10))
@settings(max_examples=10, deadline=None)
def test_light_and_the_mirror_image_change_nothing(seed, gain, offset):
    torch.manual_seed(seed)
    network = GradientHistograms(2, dim=5, image_size=12).double()
    x = torch.randn(2, 2, 12, 12, dtype=torch.float64)
    z = network(x)
    assert network(torch.zeros(1, 2, 12, 12)).isfinite().all()
    torch.testing.assert_close(network(gain * x + offset), z, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(network(x.flip(3)), z, rtol=1e-9, atol=1e-10)
    assert (network(x.flip(2)) - z).abs().max() > 1e-3  # upside down does
    flat = torch.full((1, 12, 12), offset, dtype=torch.float64)
    assert not oriented_gradients(flat, cells=3, bins=6, sigma=0.0).any()


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_whitened_rows_vary_alike_within_classes(shrinkage):
    rng = np.random.default_rng(3)
    y = np.repeat([4, 9, 2], [7, 20, 13])
    x = rng.normal(size=(40, 5)) @ rng.normal(size=(5, 5)) + 10 * rng.normal(size=(10, 5))[y]
    within = np.zeros((5, 5))
    for label in (2, 4, 9):
        rows = x[y == label] - x[y == label].mean(axis=0)
        within += rows.T @ rows / 40
    shrunk = (1 - shrinkage) * within + shrinkage * np.diag(np.diag(within))
    whitening = within_class_whitening(torch.from_numpy(x), torch.from_numpy(y), shrinkage).numpy()
    np.testing.assert_allclose(whitening.T @ shrunk @ whitening, np.eye(5), atol=1e-9)


def faces(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of six classes, each a fixed pattern under noise and a nuisance pattern of any
    strength that all share.
    """
    rng = torch.Generator().manual_seed(seed)
    small = torch.randn(7, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    patterns = torch.nn.functional.interpolate(small, (32, 32), mode="bicubic")
    y = torch.arange(num) % 6
    strength = torch.randn(num, 1, 1, 1, generator=rng)
    noise = 0.1 * torch.randn(num, 1, 32, 32, generator=rng)
    return patterns[y] + 1.5 * strength * patterns[6:] + noise, y


def test_estimate_finds_what_varies_within_classes_and_scales_the_norm():
    network = GradientHistograms(1, dim=300, image_size=32, norm=5.0).eval()
    x, y = faces(120, 1)
    held_out, labels = faces(60, 2)

    def apart(network: Any) -> float:
        """Mean cosine within classes less the mean between them, of embeddings less their mean."""
        with torch.no_grad():
            z = torch.nn.functional.normalize(network(held_out) - network(held_out).mean(dim=0))
        same, cosine = labels[:, None] == labels, z @ z.T
        return float(cosine[same].mean() - cosine[~same].mean())

    before = apart(network)
    network.estimate((x[i : i + 40], None, y[i : i + 40]) for i in range(0, 120, 40))
    assert apart(network) > before + 0.05
    with torch.no_grad():
        z = network(x)
    # dim 300 of 216 histograms: a rotation
    assert z.square().sum(dim=1).mean().sqrt().item() == pytest.approx(5.0, rel=1e-3)
    assert z.mean(dim=0).abs().max() < 1e-4
