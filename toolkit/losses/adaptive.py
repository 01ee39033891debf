"""Margin softmax whose margin or weights depend on the sample or on the course of training."""

import math

import torch
from torch import Tensor

from likeness.toolkit.losses.classes import cross_entropy, set_target, target_column
from likeness.toolkit.losses.common import checked, radians, share
from likeness.toolkit.losses.margin import Wrap, angle, cos_plus_margin, margin_softmax
from likeness.toolkit.losses.softmax import NormFace, norms, scaled_cosine


@checked
class CircleSoftmax(NormFace):
    """Circle loss with class proxies: every logit has a weight of its own. Sun et al. 2020.

    Cross-entropy of scale a_j (c_j - Delta_j), c the cosine. Target: a_y = [1 + margin - c_y]+ and
    Delta_y = 1 - margin. Others: a_j = [c_j + margin]+ and Delta_j = margin. The weights a are
    constants for the gradient. Both sides are normalised.

    Args:
        margin: .25 for faces, .4 for retrieval.
        scale: 256 for faces, 80 for retrieval.

    Raises:
        LikenessError: scale is not positive.
    """

    def __init__(self, dim: int, num_classes: int, *, margin: float = 0.25, scale: float = 256.0):
        super().__init__(dim, num_classes, scale=scale)
        self.margin = margin

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine, m = scaled_cosine(z, self.proxies), self.margin
        own = target_column(cosine, y)
        target = self.scale * (1 + m - own.detach()).clamp(min=0) * (own - (1 - m))
        logits = self.scale * (cosine.detach() + m).clamp(min=0) * (cosine - m)
        return cross_entropy(set_target(logits, y, target), y)


@checked
class CurricularFace(NormFace):
    """ArcFace that gives hard negatives more weight as training goes on. Huang et al. 2020.

    Hard negatives, cos(theta_j) > cos(theta_y + margin), become c_j (t + c_j), where t is the
    running mean of the target's cosine. t moves in training mode only, before it is used: ema <-
    momentum ema + (1 - momentum) mean_i c_iy, starting from 0, and t = ema / (1 - momentum^steps),
    the mean without the pull of the start. Both sides are normalised.

    Args:
        margin: Radians in [0, pi).
        scale: Factor of the cosine.
        momentum: Of the running mean, in [0, 1).
        debias: False takes t = ema, as the paper does.

    Raises:
        LikenessError: A setting is outside its range.
    """

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
        super().__init__(dim, num_classes, scale=scale)
        radians(self, margin=margin)
        share(self, momentum=momentum)
        self.margin, self.momentum, self.debias = margin, momentum, debias
        self.register_buffer("ema", torch.zeros(1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @property
    def t(self) -> Tensor:
        """The running mean of the target's cosine; 0 before the first step."""
        weight = (
            1 - self.momentum ** self.steps.clamp(min=1).to(self.ema.dtype) if self.debias else 1.0
        )
        return (self.ema / weight)[0]

    # Compiled, torch 2.13 lets a gradient through detach() into a buffer changed in the same graph.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.no_grad()
    def _move(self, mean: Tensor) -> None:
        self.ema.mul_(self.momentum).add_((1 - self.momentum) * mean)
        self.steps.add_(1)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine = scaled_cosine(z, self.proxies)
        own = target_column(cosine, y)
        if self.training and len(y):
            self._move(own.detach().mean())
        t = self.t.to(z.dtype)
        hard = cosine > cos_plus_margin(own.detach(), self.margin, "none")[:, None]
        bent = torch.where(hard, cosine * (t + cosine), cosine)
        target = cos_plus_margin(own, self.margin, "monotone")
        return cross_entropy(self.scale * set_target(bent, y, target), y)


@checked
class MagFace(NormFace):
    """ArcFace with a margin that grows with the norm, and a price on small norms. Meng et al. 2021.

    The norm of an embedding comes to tell its quality. With a = clip(|z|, low, high) and margin(a)
    linear from margin_low to margin_high, the loss is ArcFace(margin(a)) + weight mean(a / high^2 +
    1 / a). No gradient reaches a norm outside [low, high], as in the release. Both sides are
    normalised.

    Args:
        low, high: Range of the norms, 0 < low < high.
        margin_low, margin_high: Radians at the ends of the range.
        weight: Of the price on small norms.
        scale: Factor of the cosine.
        wrap: What happens beyond pi: see cos_plus_margin. "easy" is the release's default.
    """

    # many parameters: each is a setting of the paper or of its release
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
        super().__init__(dim, num_classes, scale=scale)
        self.wrap, self.weight = wrap, weight
        self.low, self.high, self.margin_low, self.margin_high = low, high, margin_low, margin_high

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        a = norms(z).clamp(self.low, self.high)
        rise = (self.margin_high - self.margin_low) / (self.high - self.low)
        margin = self.margin_low + rise * (a - self.low)
        logits = self.logits(z)
        target = target_column(logits, y)
        price = (a / self.high**2 + 1 / a).mean()
        changed = self.scale * cos_plus_margin(target / self.scale, margin, self.wrap)
        return margin_softmax(logits, y, target, changed) + self.weight * price


@checked
class AdaFace(NormFace):
    """Margin softmax that trusts samples of large norm. Kim et al. 2022.

    The target's logit is scale (cos(theta - margin k) - (margin + margin k)), with the angle kept
    inside [.001, pi - .001]; the others are scale cos(theta_j). k = clip(h (|z| - mean) / (std +
    .001), -1, 1) is a constant for the gradient. Norms are clipped to [.001, 100]. Both sides are
    normalised.

    mean and std (unbiased) of the norms are running means, which move in training mode only, before
    they are used. They are debiased, so that they start at the first batch's. A batch of one sample
    does not move them, as it has no std.

    Args:
        margin: Radians in [0, pi).
        h: How far k reaches per standard deviation.
        scale: Factor of the cosine.
        momentum: Of the running means, in [0, 1): .99 in the paper. 0 takes each batch's own, which
            is the default of the release's class.

    Raises:
        LikenessError: A setting is outside its range.
    """

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
        super().__init__(dim, num_classes, scale=scale)
        radians(self, margin=margin)
        share(self, momentum=momentum)
        self.margin, self.h, self.momentum = margin, h, momentum
        self.register_buffer("ema", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def quality(self, z: Tensor) -> Tensor:
        """Compare the norms of embeddings with recent norms.

        In training mode the running mean and std move first.

        Args:
            z: Embeddings (B, dim).

        Returns:
            k (B,) in [-1, 1], without gradient.
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
        return torch.where(self.steps > 0, k, 0.0)  # before the first step every norm is average

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        k = self.quality(z)
        logits = self.logits(z)
        target = target_column(logits, y)
        theta = (angle(target / self.scale) - self.margin * k).clamp(1e-3, math.pi - 1e-3)
        return margin_softmax(logits, y, target, self.scale * (theta.cos() - self.margin * (1 + k)))
