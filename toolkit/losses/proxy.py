"""Proxies of metric learning: centres, neighbourhood components, anchors, several centres per
class, uniformity.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from toolkit.losses.common import (
    Rates,
    add_to_target,
    checked,
    class_gather,
    class_logsumexp,
    class_mean,
    class_rows,
    class_sum,
    cross_entropy,
    in_full,
    known_settings,
    proxy_groups,
    target_column,
    with_target,
)
from toolkit.losses.softmax import norms, scaled_cosine
from toolkit.vmf.precision import full, unit


class CenterLoss(nn.Module):
    """Softmax cross-entropy plus the distance to the class's centre: CE(z W^T) + weight / 2 mean_i
    |z_i - c_y|^2. Wen et al. 2016.

    z (B, dim) raw, y (B,) int64 -> scalar mean; nothing normalised. weight .003; classify=False
    leaves the cross-entropy out. proxies (C, D) are the classifier's, centres (C, D) the centres.
    centre_grad="paper": their gradient is the paper's update sum_{y_i = j} (c_j - z_i) / (1 + n_j),
    which does not depend on weight or batch size; "loss": the gradient of the value.
    """

    PAPER: ClassVar[str] = "Wen et al. 2016"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "center__own; loops"
    NOTES: ClassVar[str] = (
        "the paper moves centres at the rate .5; here the optimiser does, at the proxies' rate and "
        "without decay"
    )

    proxies: nn.Parameter  # (C, D)

    @known_settings
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
        self.dim, self.num_classes, self.weight, self.classify, self.centre_grad = (
            dim,
            num_classes,
            weight,
            classify,
            centre_grad,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        self.centres = nn.Parameter(torch.zeros(num_classes, dim))
        nn.init.normal_(self.proxies, std=dim**-0.5)
        self.proxies.requires_grad_(classify)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) z W^T; without a classifier, -|z - c_j|^2 / 2 up to |z|^2 / 2."""
        z = full(z)
        if self.classify:
            return linear(z, self.proxies.to(z.dtype))
        centres = self.centres.to(z.dtype)
        return linear(z, centres, -centres.square().sum(dim=1) / 2)

    @checked
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
        rate = optim.lr * optim.proxy_lr_scale
        centres = {"params": [self.centres], "lr": rate, "weight_decay": 0.0}
        return (
            [{"params": [self.proxies], "lr": rate, "weight_decay": optim.weight_decay}, centres]
            if self.classify
            else [centres]
        )


class ProxyNCA(nn.Module):
    """-log of e^-d(z, p_y) over the sum of e^-d(z, p_j) for j != y, d = scale^2 |z - p|^2 of unit
    rows. Movshovitz-Attias et al. 2017.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. scale 3. The own proxy is
    not in the sum, so the value may be negative.
    """

    PAPER: ClassVar[str] = "Movshovitz-Attias et al. 2017"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "proxynca__official; loops over distances"
    NOTES: ClassVar[str] = (
        "pytorch-metric-learning's has the own proxy in the sum: that is ProxyNCAPlusPlus"
    )

    proxies: nn.Parameter  # (C, D)

    def __init__(self, dim: int, num_classes: int, *, scale: float = 3.0):
        super().__init__()
        if num_classes < 2:
            raise ValueError(
                f"ProxyNCA: num_classes={num_classes}, but there must be at least 2: the own proxy "
                "is not in the denominator"
            )
        self.dim, self.num_classes, self.scale = dim, num_classes, scale
        self.proxies = nn.Parameter(torch.randn(num_classes, dim) / 8)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) 2 scale^2 cos = -d up to a term that is the same for all classes."""
        return scaled_cosine(z, self.proxies, 2 * self.scale**2)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        target = target_column(logits, y)
        return (class_logsumexp(with_target(logits, y, -torch.inf)) - target).mean()

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class ProxyNCAPlusPlus(nn.Module):
    """Cross-entropy of -|z - p_j|^2 / temperature of unit rows, which is 2 cos / temperature.

    Teh et al. 2020.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. temperature 1/9.
    """

    PAPER: ClassVar[str] = "Teh et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = (
        "proxyncapp__official, proxynca__pml, proxynca_s9__pml; loops over distances"
    )
    NOTES: ClassVar[str] = "pytorch-metric-learning calls it ProxyNCALoss (temperature 1)"

    proxies: nn.Parameter  # (C, D)

    def __init__(self, dim: int, num_classes: int, *, temperature: float = 1 / 9):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"ProxyNCAPlusPlus: temperature={temperature} must be positive")
        self.dim, self.num_classes, self.temperature = dim, num_classes, temperature
        self.proxies = nn.Parameter(torch.randn(num_classes, dim) / 8)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) 2 cos / temperature."""
        return scaled_cosine(z, self.proxies, 2 / self.temperature)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class ProxyAnchor(nn.Module):
    """Every proxy is an anchor: mean over present classes of log(1 + sum_{x in p} e^{-s (c - m)}) +
    mean over all of log(1 + sum_{x not in p} e^{s (c + m)}).

    z (B, dim) raw, y (B,) int64 -> scalar; both sides normalised. margin .1, scale 32. Kim et al.
    2020. epsilon=1e-12: rows are divided by sqrt(|x|^2 + epsilon), as in the release, which
    shortens rows of a norm near 1e-6.
    """

    PAPER: ClassVar[str] = "Kim et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "proxyanchor__official, proxyanchor__pml; loops"
    NOTES: ClassVar[str] = "the release adds 1e-12 under the root of the norm (`epsilon`)"

    proxies: nn.Parameter  # (C, D)

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
        if scale <= 0:
            raise ValueError(f"ProxyAnchor: scale={scale} must be positive")
        self.dim, self.num_classes, self.margin, self.scale, self.epsilon = (
            dim,
            num_classes,
            margin,
            scale,
            epsilon,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out")

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine."""
        if self.epsilon == 0:
            return scaled_cosine(z, self.proxies, self.scale)
        z, proxies = (
            full(x) * (full(x).square().sum(dim=1, keepdim=True) + self.epsilon).rsqrt()
            for x in (z, self.proxies)
        )
        return self.scale * linear(z, proxies.to(z.dtype))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits, shift = self.logits(z), self.scale * self.margin
        never = (
            -1e30
        )  # a finite stand-in for log 0: a column without members has gradient 0, not NaN
        classes, member = torch.unique(y, return_inverse=True)
        own = torch.full((len(y), len(classes)), never, dtype=z.dtype, device=z.device)
        own = own.scatter(1, member[:, None], shift - target_column(logits, y)[:, None])
        other = with_target(logits + shift, y, never)
        return softplus(own.logsumexp(dim=0)).mean() + class_mean(softplus(other.logsumexp(dim=0)))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class SoftTriple(nn.Module):
    """K centres per class: S_j = sum_k softmax_k(c_jk / gamma) c_jk; cross-entropy of scale (S_j -
    margin 1[j = y]) + tau R. Qian et al. 2019.

    R = mean over classes of sum_{s < t} sqrt(2 - 2 w_s.w_t + 1e-5) / (K (K - 1)) draws a class's
    centres together. z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised.
    num_centres 10, scale 20, gamma .1, margin .01, tau .2. The first centre of every class is in
    proxies (C, D), the others in centres (K - 1, C, D).
    """

    PAPER: ClassVar[str] = "Qian et al. 2019"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "softtriple__pml (tau = 0); loops"
    NOTES: ClassVar[str] = "pytorch-metric-learning has no R (tau = 0)"

    proxies: nn.Parameter  # (C, D)

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
        if num_centres < 1 or scale <= 0 or gamma <= 0:
            raise ValueError(
                f"SoftTriple: num_centres={num_centres}, scale={scale} and gamma={gamma} must be "
                "positive"
            )
        self.dim, self.num_classes, self.scale, self.gamma, self.margin, self.tau = (
            dim,
            num_classes,
            scale,
            gamma,
            margin,
            tau,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        self.centres = nn.Parameter(torch.empty(num_centres - 1, num_classes, dim))
        for one in (self.proxies, *self.centres):
            nn.init.xavier_normal_(one)

    def _centres(self) -> Tensor:
        """(K, C, D) unit rows."""
        return unit(torch.cat([self.proxies[None], self.centres]))

    def _scores(self, z: Tensor, centres: Tensor) -> Tensor:
        cosine = linear(unit(z), centres.to(full(z).dtype).flatten(0, 1)).view(
            len(z), *centres.shape[:2]
        )
        return ((cosine / self.gamma).softmax(dim=1) * cosine).sum(dim=1)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * S_j, without a margin: what prediction uses."""
        return self.scale * self._scores(z, self._centres())

    @checked
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
        return [
            {
                "params": [self.proxies, self.centres],
                "lr": optim.lr * optim.proxy_lr_scale,
                "weight_decay": optim.weight_decay,
            }
        ]


class HUG(nn.Module):
    """Hyperspherical uniformity gap: proxies apart, samples at their proxy; alpha E_s(w) + beta
    mean_i |z_i - w_y|. Liu et al. 2023.

    E_s is the mean of |w_j - w_k|^-s over ordered pairs of different classes: the Riesz energy,
    least when proxies are spread evenly. z (B, dim) raw, y (B,) int64 -> scalar; both sides
    normalised. s = 2, alpha = beta = 1. Distances below 1e-3 count as 1e-3 in the energy. Time and
    memory of the energy grow with num_classes squared.
    """

    PAPER: ClassVar[str] = "Liu et al. 2023"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "loops; energy of the regular simplex"
    NOTES: ClassVar[str] = "the paper's MHE form with means instead of sums; no cross-entropy"

    proxies: nn.Parameter  # (C, D)

    def __init__(
        self, dim: int, num_classes: int, *, s: float = 2.0, alpha: float = 1.0, beta: float = 1.0
    ):
        super().__init__()
        if s <= 0:
            raise ValueError(f"HUG: s={s} must be positive")
        self.dim, self.num_classes, self.s, self.alpha, self.beta = dim, num_classes, s, alpha, beta
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) cosine: the nearest proxy is the class."""
        return scaled_cosine(z, self.proxies)

    def energy(self) -> Tensor:
        """Mean of |w_j - w_k|^-s over ordered pairs; 0 for a single class."""
        rows = unit(self.proxies)
        others, place = class_gather(rows)
        square = (
            (2 - 2 * linear(rows, others)).clamp(min=1e-6).scatter_(1, place[:, None], torch.inf)
        )
        return class_sum(square.pow(-self.s / 2).sum(dim=1)) / max(
            len(others) * (len(others) - 1), 1
        )

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        gap = norms(unit(z) - unit(class_rows(self.proxies, y)).to(z.dtype)).mean()
        return self.alpha * self.energy().to(z.dtype) + self.beta * gap

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
