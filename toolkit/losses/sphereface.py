"""Multiplicative angular margins: L-Softmax, SphereFace, SphereFace-R, SphereFace2."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from toolkit.losses.common import (
    Rates,
    checked,
    class_rows,
    class_sum,
    cross_entropy,
    in_full,
    known_settings,
    proxy_groups,
    target_column,
    with_target,
)
from toolkit.losses.margin import Grad, angle, cos_plus_margin, margin_softmax, straight_through
from toolkit.losses.softmax import norms, scaled_cosine
from toolkit.vmf.precision import full, unit


def psi(cosine: Tensor, margin: float) -> Tensor:
    """(-1)^k cos(m theta) - 2k with k = floor(m theta / pi): cos(m theta) continued so that it
    falls all the way from theta = 0 to pi.

    For a whole m, cos(m theta) is the Chebyshev polynomial of cos(theta), whose gradient is exact
    everywhere.
    """
    theta = angle(cosine.detach())
    k = (margin * theta / math.pi).floor().clamp(max=math.ceil(margin) - 1)
    if float(margin).is_integer():
        before, folded = torch.ones_like(cosine), cosine
        for _ in range(int(margin) - 1):
            before, folded = folded, 2 * cosine * folded - before
    else:
        folded = (margin * angle(cosine)).cos()
    return (1 - 2 * (k % 2)) * folded - 2 * k


class LSoftmax(nn.Module):
    """Large-margin softmax: cross-entropy of z.w_j, the target's being |z| |w_y| psi(theta_y), psi
    = (-1)^k cos(m theta) - 2k. Liu et al. 2016.

    z (B, dim) raw, y (B,) int64 -> scalar mean; nothing normalised. margin = m = 4, a whole number.
    """

    PAPER: ClassVar[str] = "Liu et al. 2016"
    GEOMETRY: ClassVar[str] = "inner product"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "lsoftmax__pml; loops over angles"
    NOTES: ClassVar[str] = "no annealing"

    proxies: nn.Parameter  # (C, D)

    def __init__(self, dim: int, num_classes: int, *, margin: int = 4):
        super().__init__()
        if margin < 1 or margin != int(margin):
            raise ValueError(f"LSoftmax: margin={margin} must be a whole number, 1 or more")
        self.dim, self.num_classes, self.margin = dim, num_classes, margin
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.normal_(self.proxies, std=dim**-0.5)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) z.w_j, without a margin: what prediction uses."""
        z = full(z)
        return linear(z, self.proxies.to(z.dtype))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        own = class_rows(self.proxies.to(z.dtype), y)
        cosine = (unit(z) * unit(own)).sum(dim=1)
        return margin_softmax(
            logits, y, target_column(logits, y), norms(z) * norms(own) * psi(cosine, self.margin)
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class SphereFace(nn.Module):
    """A-Softmax: cross-entropy of |z| cos(theta_j), the target's being |z| (lam cos + psi(theta_y))
    / (1 + lam). Liu et al. 2017.

    z (B, dim) raw, y (B,) int64 -> scalar mean; proxies normalised, z not. margin = m = 4, a whole
    number.
    lam is annealed: max(lam_min, lam_start / (1 + lam_rate (step + 1))), after at_step(step), which
    the training loop calls before every step; until then, and in evaluation, lam = lam_min. lam_min
    = lam_start = 0 is the paper's equation. grad: see ArcFace.
    """

    PAPER: ClassVar[str] = "Liu et al. 2017"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "proxies"
    VERIFIED: ClassVar[str] = "sphereface_pml__pml, asoftmax__wespeaker; loops over angles"
    NOTES: ClassVar[str] = (
        "the paper's text gives lam only for training; without at_step it stays at lam_min"
    )

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: int = 4,
        lam_start: float = 1000.0,
        lam_rate: float = 0.12,
        lam_min: float = 5.0,
        grad: Grad = "exact",
    ):
        super().__init__()
        if margin < 1 or margin != int(margin) or lam_min < 0:
            raise ValueError(
                f"SphereFace: margin={margin} must be a whole number, 1 or more, and "
                f"lam_min={lam_min} not negative"
            )
        self.dim, self.num_classes, self.margin, self.grad = dim, num_classes, margin, grad
        self.lam_start, self.lam_rate, self.lam_min = lam_start, lam_rate, lam_min
        self.lam = lam_min
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    def at_step(self, step: int) -> None:
        """Set lam for this step, counted from 0."""
        self.lam = max(self.lam_min, self.lam_start / (1 + self.lam_rate * (step + 1)))

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) |z| cos(theta_j), without a margin: what prediction uses."""
        z = full(z)
        return linear(z, unit(self.proxies).to(z.dtype))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        cosine = (unit(z) * unit(class_rows(self.proxies, y)).to(z.dtype)).sum(dim=1)
        lam = self.lam if self.training else self.lam_min
        shrunk = (lam * cosine + psi(cosine, self.margin)) / (1 + lam)
        return margin_softmax(
            logits,
            y,
            target_column(logits, y),
            norms(z) * straight_through(shrunk, cosine, self.grad),
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class SphereFaceR(nn.Module):
    """SphereFace Revived: cross-entropy of scale * cos(theta_j) with a multiplicative margin m that
    may be any real number. Liu et al. 2022.

    version=1 (margin 1.7): the target's cosine becomes psi(theta_y). version=2 (margin 1.4): the
    target's stays, the others' become cos(theta_j / m). z (B, dim) raw, y (B,) int64 -> scalar
    mean; both sides normalised. scale 30.
    grad="detached" is the paper's characteristic gradient detachment, part of its method: the
    margin is a constant; "exact" differentiates the loss.
    """

    PAPER: ClassVar[str] = "Liu et al. 2022"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "v1: sphereface_r__opensphere; v2: loops over angles"
    NOTES: ClassVar[str] = (
        'grad="detached" is the paper\'s own; version 2 is written down from its formula, no '
        "release has it"
    )

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        version: Literal[1, 2] = 1,
        margin: float | None = None,
        scale: float = 30.0,
        grad: Grad = "detached",
    ):
        super().__init__()
        self.margin = margin if margin is not None else 1.7 if version == 1 else 1.4
        if self.margin < 1 or scale <= 0:
            raise ValueError(
                f"SphereFaceR: margin={self.margin} must be at least 1 and scale={scale} positive"
            )
        self.dim, self.num_classes, self.version, self.scale, self.grad = (
            dim,
            num_classes,
            version,
            scale,
            grad,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        if self.version == 1:
            logits = self.logits(z)
            target = target_column(logits, y)
            cosine = target / self.scale
            return margin_softmax(
                logits,
                y,
                target,
                self.scale * straight_through(psi(cosine, self.margin), cosine, self.grad),
            )
        cosine = scaled_cosine(z, self.proxies)
        widened = straight_through((angle(cosine) / self.margin).cos(), cosine, self.grad)
        return cross_entropy(self.scale * with_target(widened, y, target_column(cosine, y)), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class SphereFace2(nn.Module):
    """One binary classification per class, with one threshold for all: SphereFace2.

    Wen et al. 2022.

    L = weight * mean_i { alpha softplus(-(s (g(t_iy) - m_C) + b)) + (1 - alpha) sum_{j != y}
    softplus(s (g(n_ij) + m_C) + b) }, g(c) = 2 ((c + 1) / 2)^t - 1. kind="C": t = n = cos(theta)
    and m_C = margin; kind="A": t = cos(min(theta + margin, pi)), n = cos(max(theta - margin, 0))
    and m_C = 0. z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. alpha .7, scale
    40, margin .4, t 3 (OpenSphere); 32, .2 (C) or .15 (A) in wespeaker. b is learned; b=None starts
    it where the loss is smallest while every cosine is 0. OpenSphere: weight = 50 / scale and
    grad="detached".
    """

    PAPER: ClassVar[str] = "Wen et al. 2022"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = (
        "sphereface2_c__opensphere, sphereface2_c__wespeaker, sphereface2_a__wespeaker; b: minimum "
        "of the loss"
    )
    NOTES: ClassVar[str] = 'OpenSphere: weight 50 / scale, grad="detached"; wespeaker starts b at 0'

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        kind: Literal["C", "A"] = "C",
        alpha: float = 0.7,
        scale: float = 40.0,
        margin: float = 0.4,
        t: float = 3.0,
        b: float | None = None,
        weight: float = 1.0,
        grad: Grad = "exact",
    ):
        super().__init__()
        if not (0 < alpha < 1 and scale > 0 and t >= 1 and 0 <= margin < math.pi):
            raise ValueError(
                f"SphereFace2: alpha={alpha} must be in (0, 1), scale={scale} positive, t={t} >= 1 "
                f"and margin={margin} radians in [0, pi)"
            )
        if num_classes < 2:
            raise ValueError(
                f"SphereFace2: num_classes={num_classes}, but there must be at least 2: the others "
                "are the negatives"
            )
        self.dim, self.num_classes, self.kind, self.alpha, self.scale, self.margin, self.t = (
            dim,
            num_classes,
            kind,
            alpha,
            scale,
            margin,
            t,
        )
        self.weight, self.grad = weight, grad
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)
        self.bias = nn.Parameter(torch.tensor(self.best_bias() if b is None else float(b)))

    def best_bias(self) -> float:
        """The b that minimises the loss while all cosines are 0: alpha sigma(-y - b) = (1 -
        alpha)(C - 1) sigma(n + b) for the logits y, n there.
        """
        ratio = self.alpha / ((1 - self.alpha) * (self.num_classes - 1))
        at_zero = torch.zeros(
            1, dtype=torch.float64, device="cpu"
        )  # read at once, also while the loss is built on the meta device
        y, n = (float(one) for one in self._bent(at_zero, at_zero))
        root = math.sqrt((1 - ratio) ** 2 + 4 * ratio * math.exp(y - n))
        return (
            math.log(2 * ratio / (1 - ratio + root)) - n
            if ratio <= 1
            else math.log((ratio - 1 + root) / 2) - y
        )  # the form without cancellation

    def _bent(self, target: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines with the target and with other classes -> their logits without the bias."""
        shift = self.margin if self.kind == "C" else 0.0
        if (
            self.kind == "A"
        ):  # cos(theta - m) = -cos((pi - theta) + m), and -c is the cosine of pi - theta
            target, other = (
                cos_plus_margin(target, self.margin, "clamp"),
                -cos_plus_margin(-other, self.margin, "clamp"),
            )
        return self.scale * (self._g(target) - shift), self.scale * (self._g(other) + shift)

    def _g(self, cosine: Tensor) -> Tensor:
        return 2 * ((cosine + 1) / 2).clamp(min=0).pow(self.t) - 1

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale g(cos) + b, without a margin: what prediction uses; accept iff positive."""
        return self.scale * self._g(scaled_cosine(z, self.proxies)) + self.bias

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine = scaled_cosine(z, self.proxies)
        own = target_column(cosine, y)
        target, other = self._bent(own, cosine)
        target, other = (
            straight_through(target, self.scale * own, self.grad),
            straight_through(other, self.scale * cosine, self.grad),
        )
        bias = self.bias.to(z.dtype)
        negative = class_sum(with_target(softplus(other + bias), y, 0.0))
        return (
            self.weight
            * (self.alpha * softplus(-(target + bias)) + (1 - self.alpha) * negative).mean()
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
