"""Margin softmax on the hypersphere."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from toolkit.losses.common import Rates, checked, proxy_groups, unit

Wrap = Literal["monotone", "easy", "clamp", "none"]


def sine(cosine: Tensor) -> Tensor:
    """sqrt(1 - c^2) with the exact value and a finite gradient: zero where 1 - c^2 is within rounding of 0."""
    square = 1.0 - cosine * cosine
    tiny = 1e-7 if cosine.dtype == torch.float32 else 1e-14
    return torch.where(square > tiny, square.clamp(min=tiny).sqrt(), square.detach().clamp(min=0.0).sqrt())


def cos_plus_margin(cosine: Tensor, margin: float, wrap: Wrap) -> Tensor:
    """cos(theta + margin) with one of the field's four rules for theta + margin > pi.

    monotone: cos(theta) - margin sin(margin) there (insightface's classic code, pytorch-metric-learning, SpeechBrain);
    easy: no margin unless cos(theta) > 0; clamp: theta + margin stops at pi (OpenSphere, AdaFace); none: it turns back (arcface_torch, the vMF paper).
    """
    shifted = cosine * math.cos(margin) - sine(cosine) * math.sin(margin)
    turn = math.cos(math.pi - margin)
    if wrap == "monotone":
        return torch.where(cosine > turn, shifted, cosine - margin * math.sin(margin))
    if wrap == "easy":
        return torch.where(cosine > 0, shifted, cosine)
    if wrap == "clamp":
        return torch.where(cosine > turn, shifted, cosine * 0 - 1)
    return shifted


class ArcFace(nn.Module):
    """Additive angular margin softmax: cross-entropy of scale * cos, the target's being scale * cos(theta + margin). Deng et al. 2019; AAM-Softmax in speech.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. margin in radians (.5 faces, .2 speech), scale 64 (faces) or 30-32 (speech).
    grad="exact" differentiates the loss; grad="detached" is what arcface_torch and OpenSphere run: the margin is a constant, d(logit)/d(cos) = scale.
    """

    proxies: nn.Parameter  # (C, D)

    def __init__(
        self, dim: int, num_classes: int, *, margin: float = 0.5, scale: float = 64.0, wrap: Wrap = "monotone", grad: Literal["exact", "detached"] = "exact"
    ):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0:
            raise ValueError(f"ArcFace: margin={margin} must be radians in [0, pi) and scale={scale} positive")
        self.dim, self.num_classes, self.margin, self.scale, self.wrap, self.grad = dim, num_classes, margin, scale, wrap, grad
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return self.scale * self._cosine(z)

    def _cosine(self, z: Tensor) -> Tensor:
        z = unit(z)
        return nn.functional.linear(z, unit(self.proxies).to(z.dtype))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine = self._cosine(z)
        target = cosine.gather(1, y[:, None])
        shifted = cos_plus_margin(target, self.margin, self.wrap)
        if self.grad == "detached":
            shifted = target + (shifted - target).detach()
        return nn.functional.cross_entropy(self.scale * cosine.scatter(1, y[:, None], shifted), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
