"""Losses of metric learning with proxies: centres, neighbours, anchors, uniformity."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from likeness.toolkit.losses.classes import (
    add_to_target,
    class_gather,
    class_logsumexp,
    class_mean,
    class_rows,
    class_sum,
    cross_entropy,
    set_target,
    target_column,
)
from likeness.toolkit.losses.common import checked, normal, positive, proxies, refuse_pairs
from likeness.toolkit.losses.contract import Rates, proxy_group
from likeness.toolkit.losses.softmax import norms, scaled_cosine
from likeness.toolkit.vmf.rows import full, unit


@checked
class CenterLoss(nn.Module):
    """Softmax cross-entropy plus the distance to the class's centre. Wen et al. 2016.

    CE(z W^T) + weight / 2 mean_i |z_i - c_y|^2. `proxies` (C, D) are the classifier's vectors W,
    `centres` (C, D) the centres c. Nothing is normalised.

    Args:
        weight: Of the distance.
        classify: False leaves the cross-entropy out.
        centre_grad: "paper" gives the centres the paper's update, sum_{y_i = j} (c_j - z_i) / (1 +
            n_j), as their gradient, which does not depend on weight or batch size. "loss" gives
            them the gradient of the value.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        weight: float = 0.003,
        classify: bool = True,
        centre_grad: Literal["paper", "loss"] = "paper",
    ):
        super().__init__()
        self.dim, self.num_classes = dim, num_classes
        self.weight, self.classify, self.centre_grad = weight, classify, centre_grad
        self.proxies = proxies(num_classes, dim, normal(dim**-0.5)).requires_grad_(classify)
        self.centres = proxies(num_classes, dim, nn.init.zeros_)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): z W^T; without a classifier, -|z - c_j|^2 / 2 up to |z|^2 / 2."""
        if self.classify:
            return linear(z, self.proxies.to(z.dtype))
        centres = self.centres.to(z.dtype)
        return linear(z, centres, -centres.square().sum(dim=1) / 2)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        own = class_rows(self.centres, y).to(z.dtype)
        if self.centre_grad == "paper":
            value = self.weight / 2 * (z - own.detach()).square().sum(dim=1).mean()
            count = (y[:, None] == y).sum(dim=1)
            pull = ((own - z.detach()).square().sum(dim=1) / (2.0 * (1 + count))).sum()
            value = value + (pull - pull.detach())  # adds 0, with the paper's gradient
        else:
            value = self.weight / 2 * (z - own).square().sum(dim=1).mean()
        return value + cross_entropy(self.logits(z), y) if self.classify else value

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """The centres at the proxies' rate, without decay; the classifier as usual."""
        centres = proxy_group(optim, self.centres, decay=False)
        return [proxy_group(optim, self.proxies), centres] if self.classify else [centres]


@checked
class ProxyNCA(nn.Module):
    """Neighbourhood components analysis with a proxy per class. Movshovitz-Attias et al. 2017.

    -log of e^-d(z, p_y) over the sum of e^-d(z, p_j) for j != y, with d = scale^2 |z - p|^2 of unit
    rows. The own proxy is not in the sum, so that the value may be negative.

    Args:
        scale: Norm of embeddings and proxies.
    """

    spreads_classes = True

    def __init__(self, dim: int, num_classes: int, *, scale: float = 3.0):
        super().__init__()
        self.dim, self.num_classes, self.scale = dim, num_classes, scale
        self.proxies = proxies(num_classes, dim, normal(1 / 8))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): 2 scale^2 cos = -d up to a term that is the same for all classes."""
        return scaled_cosine(z, self.proxies, 2 * self.scale**2)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        target = target_column(logits, y)
        return (class_logsumexp(set_target(logits, y, -torch.inf)) - target).mean()


@checked
class ProxyNCAPlusPlus(nn.Module):
    """Cross-entropy of -|z - p_j|^2 / temperature of unit rows. Teh et al. 2020.

    The logits are 2 cos / temperature, up to a term that is the same for all classes.

    Args:
        temperature: Positive.

    Raises:
        LikenessError: temperature is not positive.
    """

    spreads_classes = True

    def __init__(self, dim: int, num_classes: int, *, temperature: float = 1 / 9):
        super().__init__()
        positive(self, temperature=temperature)
        self.dim, self.num_classes, self.temperature = dim, num_classes, temperature
        self.proxies = proxies(num_classes, dim, normal(1 / 8))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): 2 cos / temperature."""
        return scaled_cosine(z, self.proxies, 2 / self.temperature)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)


def anchor_proxies(logits: Tensor, y: Tensor, shift: float) -> Tensor:
    """The value of ProxyAnchor, given scaled cosines.

    Args:
        logits: scale * cosine (B, C).
        y: Labels (B,).
        shift: scale * margin.

    Returns:
        A scalar.
    """
    # A finite stand-in for log 0: a column without members has gradient 0, not NaN.
    never = -1e30
    classes, member = torch.unique(y, return_inverse=True)
    own = torch.full((len(y), len(classes)), never, dtype=logits.dtype, device=logits.device)
    own = own.scatter(1, member[:, None], shift - target_column(logits, y)[:, None])
    other = set_target(logits + shift, y, never)
    return softplus(own.logsumexp(dim=0)).mean() + class_mean(softplus(other.logsumexp(dim=0)))


@checked
class ProxyAnchor(nn.Module):
    """Every proxy is an anchor that is compared with the batch. Kim et al. 2020.

    mean over present classes of log(1 + sum_{x in p} e^{-scale (c - margin)}) + mean over all
    classes of log(1 + sum_{x not in p} e^{scale (c + margin)}), c the cosine. Both sides are
    normalised.

    Args:
        margin: Of the cosine.
        scale: Factor of the cosine, positive.
        epsilon: 1e-12 divides rows by sqrt(|x|^2 + epsilon), as in the release, which shortens rows
            of a norm near 1e-6.

    Raises:
        LikenessError: scale is not positive.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.1,
        scale: float = 32.0,
        epsilon: float = 0.0,
    ):
        super().__init__()
        positive(self, scale=scale)
        self.dim, self.num_classes = dim, num_classes
        self.margin, self.scale, self.epsilon = margin, scale, epsilon
        self.proxies = proxies(num_classes, dim, normal(math.sqrt(2) / math.sqrt(num_classes)))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale * cosine."""
        if self.epsilon == 0:
            return scaled_cosine(z, self.proxies, self.scale)
        z, proxies = (
            full(x) * (full(x).square().sum(dim=1, keepdim=True) + self.epsilon).rsqrt()
            for x in (z, self.proxies)
        )
        return self.scale * linear(z, proxies.to(z.dtype))

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return anchor_proxies(self.logits(z), y, self.scale * self.margin)


@checked
class SoftTriple(nn.Module):
    """Softmax over K centres per class. Qian et al. 2019.

    Cross-entropy of scale (S_j - margin 1[j = y]) + tau R, where S_j = sum_k softmax_k(c_jk /
    gamma) c_jk, c the cosine. R = mean over classes of sum_{s < t} sqrt(2 - 2 w_s.w_t + 1e-5) / (K
    (K - 1)) draws a class's centres together. The first centre of every class is in `proxies` (C,
    D), the others are in `centres` (K - 1, C, D). Both sides are normalised.

    Args:
        num_centres: K.
        scale: Factor of the cosine, positive.
        gamma: Temperature among a class's centres, positive.
        margin: Of the cosine.
        tau: Weight of R.

    Raises:
        LikenessError: num_centres, scale or gamma are not positive.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_centres: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
    ):
        super().__init__()
        positive(self, num_centres=num_centres, scale=scale, gamma=gamma)
        self.dim, self.num_classes = dim, num_classes
        self.scale, self.gamma, self.margin = scale, gamma, margin
        self.tau = tau
        self.proxies = proxies(num_classes, dim)
        self.centres = nn.Parameter(torch.empty(num_centres - 1, num_classes, dim))
        for centre in self.centres:
            nn.init.xavier_normal_(centre)

    def _centres(self) -> Tensor:
        """All centres as unit rows (K, C, D)."""
        return unit(torch.cat([self.proxies[None], self.centres]))

    def _scores(self, z: Tensor, centres: Tensor) -> Tensor:
        """S of embeddings (B, D) and unit centres (K, C, D): (B, C)."""
        cosine = linear(unit(z), centres.to(full(z).dtype).flatten(0, 1)).view(
            len(z), *centres.shape[:2]
        )
        return ((cosine / self.gamma).softmax(dim=1) * cosine).sum(dim=1)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale * S_j, without a margin."""
        return self.scale * self._scores(z, self._centres())

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        centres = self._centres().to(z.dtype)
        logits = self.scale * self._scores(z, centres)
        value = cross_entropy(
            add_to_target(logits, y, torch.full_like(z[:, 0], -self.scale * self.margin)), y
        )
        count = len(centres)
        if self.tau == 0 or count == 1:
            return value
        above = torch.triu_indices(count, count, 1, device=z.device)
        products = torch.einsum("scd,tcd->cst", centres, centres)[:, above[0], above[1]]
        return value + self.tau * class_mean(
            (2 + 1e-5 - 2 * products).clamp(min=1e-6).sqrt().sum(dim=1)
        ) / (count * (count - 1))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """All centres as proxies."""
        return [proxy_group(optim, self.proxies, self.centres)]


@checked
class HUG(nn.Module):
    """Hyperspherical uniformity gap: proxies apart, samples at theirs. Liu et al. 2023.

    alpha E_s(w) + beta mean_i |z_i - w_y| of unit rows. E_s is the mean of |w_j - w_k|^-s over
    ordered pairs of different classes: the Riesz energy, which is least when proxies are spread
    evenly. Distances below 1e-3 count as 1e-3 in it. Its time and memory grow with num_classes
    squared: with 10,000 classes a step takes 87 times as long as a softmax's. More than 65,536
    classes in one process are refused.

    Args:
        s: Exponent of the energy, positive.
        alpha: Weight of the energy.
        beta: Weight of the distances.

    Raises:
        LikenessError: s is not positive.
    """

    spreads_classes = True

    def __init__(
        self, dim: int, num_classes: int, *, s: float = 2.0, alpha: float = 1.0, beta: float = 1.0
    ):
        super().__init__()
        positive(self, s=s)
        self.dim, self.num_classes, self.s, self.alpha, self.beta = dim, num_classes, s, alpha, beta
        self.proxies = proxies(num_classes, dim)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): the cosine; the nearest proxy is the class."""
        return scaled_cosine(z, self.proxies)

    def energy(self) -> Tensor:
        """The mean of |w_j - w_k|^-s over ordered pairs, a scalar; 0 for a single class."""
        rows = unit(self.proxies)
        others, place = class_gather(rows)
        remedy = "take another loss, or parallel.spread_classes"
        refuse_pairs(self, len(rows), len(others), remedy)
        square = (
            (2 - 2 * linear(rows, others)).clamp(min=1e-6).scatter_(1, place[:, None], torch.inf)
        )
        return class_sum(square.pow(-self.s / 2).sum(dim=1)) / max(
            len(others) * (len(others) - 1), 1
        )

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        gap = norms(unit(z) - unit(class_rows(self.proxies, y)).to(z.dtype)).mean()
        return self.alpha * self.energy().to(z.dtype) + self.beta * gap
