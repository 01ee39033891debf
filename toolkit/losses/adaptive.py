"""Margin softmax whose margin or weights depend on the sample or on the course of training."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from toolkit.losses.common import (
    Rates,
    checked,
    cross_entropy,
    in_full,
    known_settings,
    proxy_groups,
    target_column,
    with_target,
)
from toolkit.losses.margin import Wrap, angle, cos_plus_margin, margin_softmax
from toolkit.losses.softmax import norms, scaled_cosine


class CircleSoftmax(nn.Module):
    """Circle loss with class proxies: cross-entropy of s a_j (c_j - Delta_j), a_y = [1 + m - c]+,
    Delta_y = 1 - m; others a_j = [c + m]+, Delta_j = m.

    The weights a are constants for the gradient. z (B, dim) raw, y (B,) int64 -> scalar mean; both
    sides normalised. Sun et al. 2020. margin .25, scale 256 (faces); .4, 80 (retrieval).
    """

    PAPER: ClassVar[str] = "Sun et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "circle_class__own; loops"
    NOTES: ClassVar[str] = "the version with class labels; pairs: Circle"

    proxies: nn.Parameter  # (C, D)

    def __init__(self, dim: int, num_classes: int, *, margin: float = 0.25, scale: float = 256.0):
        super().__init__()
        if scale <= 0:
            raise ValueError(f"CircleSoftmax: scale={scale} must be positive")
        self.dim, self.num_classes, self.margin, self.scale = dim, num_classes, margin, scale
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without margin and weights: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine, m = scaled_cosine(z, self.proxies), self.margin
        own = target_column(cosine, y)
        target = self.scale * (1 + m - own.detach()).clamp(min=0) * (own - (1 - m))
        logits = self.scale * (cosine.detach() + m).clamp(min=0) * (cosine - m)
        return cross_entropy(with_target(logits, y, target), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class CurricularFace(nn.Module):
    """ArcFace whose hard negatives, cos(theta_j) > cos(theta_y + m), become c_j (t + c_j), t being
    the running mean of the target's cosine. Huang et al. 2020.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. margin .5, scale 64. t moves
    in training mode only, before it is used: ema <- .99 ema + .01 mean_i c_iy from 0, and t = ema /
    (1 - .99^steps), the mean without the pull of the start. debias=False: t = ema, as in the paper.
    """

    PAPER: ClassVar[str] = "Huang et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "curricularface__curricularface; loops"
    NOTES: ClassVar[str] = (
        "paper and release start t at 0 (debias=False); the others see no difference after some "
        "hundred steps"
    )

    proxies: nn.Parameter  # (C, D)
    ema: Tensor  # (1,)
    steps: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        momentum: float = 0.99,
        debias: bool = True,
    ):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0 or not 0 <= momentum < 1:
            raise ValueError(
                f"CurricularFace: margin={margin} must be radians in [0, pi), scale={scale} "
                f"positive and momentum={momentum} in [0, 1)"
            )
        self.dim, self.num_classes, self.margin, self.scale, self.momentum, self.debias = (
            dim,
            num_classes,
            margin,
            scale,
            momentum,
            debias,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)
        self.register_buffer("ema", torch.zeros(1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def t(self) -> Tensor:
        """The running mean of the target's cosine; 0 before the first step."""
        weight = (
            1 - self.momentum ** self.steps.clamp(min=1).to(self.ema.dtype) if self.debias else 1.0
        )
        return (self.ema / weight)[0]

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale)

    # compiled, torch 2.13 lets gradient through detach() into a buffer changed in the same graph
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _move(self, mean: Tensor) -> None:
        self.ema.mul_(self.momentum).add_((1 - self.momentum) * mean)
        self.steps.add_(1)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine = scaled_cosine(z, self.proxies)
        own = target_column(cosine, y)
        if self.training and len(y):
            self._move(own.detach().mean())
        t = self.t.to(z.dtype)
        hard = cosine > cos_plus_margin(own.detach(), self.margin, "none")[:, None]
        bent = torch.where(hard, cosine * (t + cosine), cosine)
        target = cos_plus_margin(own, self.margin, "monotone")
        return cross_entropy(self.scale * with_target(bent, y, target), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class MagFace(nn.Module):
    """ArcFace with a margin that grows with the norm, and a price on small norms: the norm comes to
    tell quality. Meng et al. 2021.

    a = clip(|z|, low, high); margin(a) linear from margin_low to margin_high; L =
    ArcFace(margin(a)) + weight mean(a / high^2 + 1 / a). z (B, dim) raw, y (B,) int64 -> scalar
    mean; both sides normalised. low 10, high 110, margins .45 and .8, weight 35, scale 64.
    wrap="easy" is the release's default (easy_margin). No gradient reaches a norm outside [low,
    high], as in the release.
    """

    PAPER: ClassVar[str] = "Meng et al. 2021"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = (
        "magface__magface, magface_easy__magface; loops with norms inside [low, high]"
    )
    NOTES: ClassVar[str] = 'the release trains with wrap="easy"'

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        low: float = 10.0,
        high: float = 110.0,
        margin_low: float = 0.45,
        margin_high: float = 0.8,
        weight: float = 35.0,
        scale: float = 64.0,
        wrap: Wrap = "monotone",
    ):
        super().__init__()
        if not (0 < low < high and 0 <= margin_low <= margin_high < math.pi and scale > 0):
            raise ValueError(
                f"MagFace: 0 < low={low} < high={high}, 0 <= margin_low={margin_low} <= "
                f"margin_high={margin_high} < pi and scale={scale} > 0 must hold"
            )
        self.dim, self.num_classes, self.scale, self.wrap, self.weight = (
            dim,
            num_classes,
            scale,
            wrap,
            weight,
        )
        self.low, self.high, self.margin_low, self.margin_high = low, high, margin_low, margin_high
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        a = norms(z).clamp(self.low, self.high)
        margin = self.margin_low + (self.margin_high - self.margin_low) / (self.high - self.low) * (
            a - self.low
        )
        logits = self.logits(z)
        target = target_column(logits, y)
        price = (a / self.high**2 + 1 / a).mean()
        return (
            margin_softmax(
                logits,
                y,
                target,
                self.scale * cos_plus_margin(target / self.scale, margin, self.wrap),
            )
            + self.weight * price
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class AdaFace(nn.Module):
    """Margin softmax that trusts samples of large norm: k = clip(h (|z| - mean) / (std + .001), -1,
    1), a constant for the gradient. Kim et al. 2022.

    target: scale (cos(theta - m k) - (m + m k)), the angle kept inside [.001, pi - .001]; others
    scale cos(theta_j). Norms are clipped to [.001, 100]. z (B, dim) raw, y (B,) int64 -> scalar
    mean; both sides normalised. margin m .4, h .333, scale 64. mean and std (unbiased) of the norms
    are running
    means, moved in training mode only and before use: momentum x old + (1 - momentum) x batch's,
    .99 in the paper, debiased so that they start at the first batch's; momentum=0: each batch's
    own, the release's class default. A batch of one sample does not move them (it has no std).
    """

    PAPER: ClassVar[str] = "Kim et al. 2022"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "adaface__adaface; loops"
    NOTES: ClassVar[str] = (
        "the release starts at mean 20, std 100 and clamps every cosine to +-.999, where it loses "
        "its gradient; here they are debiased and unclamped"
    )

    proxies: nn.Parameter  # (C, D)
    ema: Tensor  # (2,) of mean and std, before debiasing
    steps: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.4,
        h: float = 0.333,
        scale: float = 64.0,
        momentum: float = 0.99,
    ):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0 or not 0 <= momentum < 1:
            raise ValueError(
                f"AdaFace: margin={margin} must be radians in [0, pi), scale={scale} positive and "
                f"momentum={momentum} in [0, 1)"
            )
        self.dim, self.num_classes, self.margin, self.h, self.scale, self.momentum = (
            dim,
            num_classes,
            margin,
            h,
            scale,
            momentum,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)
        self.register_buffer("ema", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale)

    @torch.no_grad()
    def quality(self, z: Tensor) -> Tensor:
        """(B,) k in [-1, 1]: the norm among recent norms.

        In training mode it moves the running mean and std first.
        """
        length = norms(z).clamp(1e-3, 100.0)
        if self.training and len(z) > 1:
            std, mean = torch.std_mean(length)
            self.ema.copy_(
                self.momentum * self.ema + (1 - self.momentum) * torch.stack([mean, std])
            )
            self.steps.add_(1)
        mean, std = (
            self.ema / (1 - self.momentum ** self.steps.clamp(min=1).to(self.ema.dtype))
        ).to(z.dtype)
        k = (self.h * (length - mean) / (std + 1e-3)).clamp(-1, 1)
        return torch.where(self.steps > 0, k, 0.0)  # nothing known yet: every norm is average

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        k = self.quality(z)
        logits = self.logits(z)
        target = target_column(logits, y)
        theta = (angle(target / self.scale) - self.margin * k).clamp(1e-3, math.pi - 1e-3)
        return margin_softmax(logits, y, target, self.scale * (theta.cos() - self.margin * (1 + k)))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
