"""A shallow network over a mixture's adapted means, which tell who speaks from what is said.

It is for data sets of a few dozen to a few hundred classes, where deep networks overfit, and for
tests on another data set than that of the training.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.backbones.pooling import valid_frames
from likeness.toolkit.backbones.statistics import (
    Start,
    add_discriminant,
    estimate_discriminant,
    run_discriminant,
)

_ENOUGH_FRAMES = 100_000  # for the mixture; of twice as many or more, some are left out
_COSINES = 40  # of a component's features, C; in_dim if there are fewer bands
_CEPSTRA = 20  # that align frames; in_dim if there are fewer bands
_DELTAS = 12  # cepstra whose differences over time are taken as well
_RELEVANCE = 8.0  # how many frames the fallback counts for
_FLOOR = 1e-2  # of a component's variances, as a share of the variance of all frames
_TRACE = 1e-6  # A component with a smaller share of all frames together has none.


def cosine_transform(size: int, number: int) -> Tensor:
    """Return the first `number` columns of the orthonormal cosine transform (DCT-II).

    Args:
        size: The length of what is transformed.
        number: How many coefficients are kept.

    Returns:
        (size, number) float32.

    Example:
        >>> x = cosine_transform(8, 8)
        >>> torch.allclose(x.T @ x, torch.eye(8), atol=1e-6)
        True
    """
    if torch.get_default_device().type == "meta":
        return torch.empty(size, number)  # the size is asked for, as torch.eye is avoided below
    place = (torch.arange(size, dtype=torch.float64) + 0.5) * (math.pi / size)
    columns = torch.cos(place[:, None] * torch.arange(number)) * (2 / size) ** 0.5
    columns[:, 0] /= 2**0.5
    transform: Tensor = columns.float()
    return transform


def log_densities(x: Tensor, weights: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Return the log of weight times density of each component of a Gaussian mixture.

    Args:
        x: (..., A).
        weights: (K,) of sum 1.
        means: (K, A).
        variances: (K, A).

    Returns:
        (..., K).

    Example:
        >>> log_densities(torch.zeros(1, 2), *map(torch.tensor, ([1.0], [[0.0] * 2], [[1.0] * 2])))
        tensor([[-1.8379]])
    """
    precision = 1 / variances
    constant = weights.log() - 0.5 * (
        (2 * math.pi * variances).log() + means.square() * precision
    ).sum(dim=1)
    return x @ (means * precision).T - x.square() @ (0.5 * precision.T) + constant


def fit_mixture(x: Tensor, num_components: int, *, steps: int = 15) -> tuple[Tensor, ...]:
    """Fit a Gaussian mixture with diagonal covariances by expectation and maximisation.

    It starts from k-means (k-means++ and ten steps) on standardised rows, with the same random
    numbers on each call and device. Variances have a floor of a hundredth of those of all rows. A
    component that loses all its rows gets the mean and the variance of all, and next to no weight.

    Args:
        x: (N, A) float64, at least num_components rows.
        num_components: K.
        steps: How often all components are estimated again.

    Returns:
        Weights (K,), means (K, A) and variances (K, A).

    Raises:
        LikenessError: There are fewer rows than components.

    Example:
        >>> x = torch.tensor([[0.0], [0.2], [5.0], [5.2]], dtype=torch.float64)
        >>> weights, means, _ = fit_mixture(x, 2)
        >>> [round(value, 3) for value in sorted(means.flatten().tolist())], weights.tolist()
        ([0.1, 5.1], [0.5, 0.5])
    """
    if len(x) < num_components:
        raise LikenessError(
            f"MixtureStatistics: {num_components} components need as many frames, but the training "
            f"views have {len(x)}; give longer views or fewer components"
        )
    mean, variance = x.mean(dim=0), x.var(dim=0, correction=0).clamp(min=1e-12)
    group = _k_means(x / variance.sqrt(), num_components)
    share = nn.functional.one_hot(group, num_components).to(x.dtype)
    for _ in range(steps + 1):
        means = _component_means(share, x, mean)
        squares = _component_means(share, x.square(), mean.square() + variance)
        variances = torch.maximum(squares - means.square(), _FLOOR * variance)
        count = share.sum(dim=0).clamp(min=_TRACE)
        weights = count / count.sum()
        share = log_densities(x, weights, means, variances).softmax(dim=1)
    return weights, means, variances


def _component_means(share: Tensor, x: Tensor, otherwise: Tensor) -> Tensor:
    """The means (K, A) of rows (N, A), weighted by shares (N, K); else (A,) where there is none."""
    count = share.sum(dim=0)[:, None]
    return torch.where(count > _TRACE, share.T @ x / count.clamp(min=_TRACE), otherwise)


def _k_means(x: Tensor, number: int) -> Tensor:
    """Divide rows (N, A) into groups; returns (N,) the number of each row's group."""
    generator = torch.Generator().manual_seed(0)
    # Drawn on the CPU, so that every device starts from the same rows.
    first = int(torch.randint(len(x), (1,), generator=generator))
    centres = x[first : first + 1]
    distance = (x - centres).square().sum(dim=1)
    for _ in range(number - 1):
        total = distance.cumsum(dim=0)
        drawn = torch.rand(1, generator=generator, dtype=x.dtype).to(x.device) * total[-1]
        place = int(torch.searchsorted(total, drawn).clamp(max=len(x) - 1))
        centres = torch.cat([centres, x[place : place + 1]])
        distance = torch.minimum(distance, (x - x[place]).square().sum(dim=1))
    group = torch.cdist(x, centres).argmin(dim=1)
    for _ in range(10):
        sums = torch.zeros_like(centres).index_add_(0, group, x)
        count = torch.bincount(group, minlength=number)[:, None]
        centres = torch.where(count > 0, sums / count.clamp(min=1), centres)
        group = torch.cdist(x, centres).argmin(dim=1)
    return group


class MixtureStatistics(nn.Module):
    """Adapted means of a Gaussian mixture, within-class whitening and a linear layer, to (B, dim).

    The components of the mixture stand for kinds of sounds. Frames are aligned with them by cepstra
    less their mean over the recording, and their differences over time. For each component, the
    statistics say how the recording's features differ there from those of all training recordings:
    the first cosines of the log filterbank, with its level and colour. A component with few frames
    falls back to the recording's mean difference over all frames. So two recordings with other
    words are more alike than their plain means are.

    The mixture and the whitening are estimated once from the training data by `estimate`, then
    frozen and saved. Dropout, a linear layer and batch norm follow, as in OrderStatistics. Padded
    frames are left out, so padding never changes an embedding. Take a front-end without mean
    normalisation. Source: Reynolds et al. 2000 (adapted means), Campbell et al. 2006
    (supervectors); the fallback is this project's.

    Args:
        in_dim: The number of bands of the log filterbank (B, T, in_dim).
        dim: The size of the embeddings.
        dropout: The share of whitened statistics that is dropped in training.
        num_components: The number of components of the mixture.
        num_directions: The number of discriminant directions.
        start: What the linear layer is before training: see OrderStatistics.

    Example:
        >>> net = MixtureStatistics(8, dim=4, num_components=2)
        >>> views = torch.randn(6, 30, 8), None, torch.tensor([0, 0, 1, 1, 2, 2])
        >>> net.estimate([views])
        >>> net.eval()(torch.randn(2, 50, 8)).shape
        torch.Size([2, 4])
    """

    pads_exactly = True
    cosines: Tensor  # (in_dim, C)
    weights: Tensor  # (K,) of the mixture
    means: Tensor  # (K, A)
    variances: Tensor  # (K, A)
    centres: Tensor  # (K, C) of all training recordings
    mean: Tensor  # (K * C,) of the statistics
    directions: Tensor  # (K * C, num_directions)

    def __init__(
        self,
        in_dim: int,
        *,
        dim: int = 128,
        dropout: float = 0.5,
        num_components: int = 32,
        num_directions: int = 128,
        start: Start = "random",
    ):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        num_cosines = min(_COSINES, in_dim)
        keys, size = min(_CEPSTRA, in_dim) + min(_DELTAS, in_dim), num_components * num_cosines
        transform = cosine_transform(in_dim, num_cosines)
        self.register_buffer("cosines", transform, persistent=False)
        self.register_buffer("weights", torch.full((num_components,), 1 / num_components))
        self.register_buffer("means", torch.zeros(num_components, keys))
        self.register_buffer("variances", torch.ones(num_components, keys))
        self.register_buffer("centres", torch.zeros(num_components, num_cosines))
        self.gain = dim**-0.5
        add_discriminant(self, size, num_directions, dropout, start)

    def keys(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return by what frames are aligned with components, and what is compared within these.

        Args:
            features: (B, T, in_dim).
            mask: (B, T) bool, True for valid frames, which come first.

        Returns:
            Cepstra and their differences over time (B, T, A), and cosines (B, T, C).
        """
        x = features.to(self.cosines.dtype) @ self.cosines
        cepstra, num = x[..., :_CEPSTRA], mask.sum(dim=1).clamp(min=1)
        cepstra = (
            cepstra - (cepstra * mask[..., None]).sum(dim=1, keepdim=True) / num[:, None, None]
        )
        # Beyond both ends the first and the last frame go on.
        place = torch.arange(x.shape[1], device=x.device)[None]
        later = torch.minimum(place + 1, num[:, None] - 1)
        earlier = (place - 1).clamp(min=0).expand_as(later)
        moving = cepstra[..., :_DELTAS]
        after, before = (
            moving.gather(1, index[..., None].expand(-1, -1, moving.shape[2]))
            for index in (later, earlier)
        )
        return torch.cat([cepstra, after - before], dim=2), x

    def statistics(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return how the features differ in each component: (B, num_components * C)."""
        mask = valid_frames(features, lengths)
        keys, x = self.keys(features, mask)
        share = log_densities(keys, self.weights, self.means, self.variances).softmax(dim=2)
        share = share * mask[..., None]
        count = share.sum(dim=1)[..., None]
        moved = share.transpose(1, 2) @ x - count * self.centres
        overall = moved.sum(dim=1, keepdim=True) / mask.sum(dim=1).clamp(min=1)[:, None, None]
        return ((moved + _RELEVANCE * overall) / (count + _RELEVANCE)).flatten(1)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return raw embeddings (B, dim) of features (B, T, in_dim) with relative lengths (B,)."""
        # Without autocast, because the whitening magnifies rounding.
        with torch.autocast(features.device.type, enabled=False):
            return run_discriminant(self, self.statistics(features, lengths))

    @torch.no_grad()
    def estimate(self, batches: Iterable[tuple[Tensor, Tensor | None, Tensor]]) -> None:
        """Estimate the mixture and the discriminant directions from (features, lengths, labels).

        The mixture is fitted to all frames. Of 200,000 or more it takes evenly spaced ones, which
        are 100,000 to 200,000. The views are kept in memory meanwhile.

        Raises:
            LikenessError: The views have fewer frames than the mixture has components.
        """
        views = list(batches)
        masks = [valid_frames(features, lengths) for features, lengths, _ in views]
        step = max(1, sum(int(mask.sum()) for mask in masks) // _ENOUGH_FRAMES)
        drawn: list[tuple[Tensor, Tensor]] = []
        for (features, _, _), mask in zip(views, masks, strict=True):
            keys, x = self.keys(features, mask)
            drawn.append((keys[mask][::step].double(), x[mask][::step].double()))
        keys, x = (torch.cat(part) for part in zip(*drawn, strict=True))
        weights, means, variances = fit_mixture(keys, len(self.weights))
        share = log_densities(keys, weights, means, variances).softmax(dim=1)
        self.weights.copy_(weights)
        self.means.copy_(means)
        self.variances.copy_(variances)
        self.centres.copy_(_component_means(share, x, x.mean(dim=0)))
        statistics = [self.statistics(features, lengths) for features, lengths, _ in views]
        estimate_discriminant(self, statistics, [labels for _, _, labels in views])
