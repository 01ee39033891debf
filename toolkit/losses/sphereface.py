"""Multiplicative angular margins: L-Softmax, SphereFace, SphereFace-R, SphereFace2."""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, softplus

from likeness.toolkit.losses.classes import (
    class_rows,
    class_sum,
    cross_entropy,
    set_target,
    target_column,
)
from likeness.toolkit.losses.common import checked, positive, proxies, radians, share
from likeness.toolkit.losses.margin import (
    Grad,
    angle,
    cos_plus_margin,
    margin_softmax,
    straight_through,
)
from likeness.toolkit.losses.softmax import NormFace, Softmax, norms, scaled_cosine
from likeness.toolkit.vmf.rows import unit


def psi(cosine: Tensor, margin: float) -> Tensor:
    """(-1)^k cos(m theta) - 2k with k = floor(m theta / pi).

    That is cos(m theta) continued so that it falls all the way from theta = 0 to pi. For a whole m,
    cos(m theta) is the Chebyshev polynomial of cos(theta), whose gradient is exact everywhere.

    Args:
        cosine: cos(theta), of any shape.
        margin: m, at least 1.

    Returns:
        A tensor of cosine's shape.
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


@checked
class LSoftmax(Softmax):
    """Large-margin softmax, with a multiplicative angular margin. Liu et al. 2016.

    Cross-entropy of z.w_j, where the target's is |z| |w_y| psi(theta_y). Nothing is normalised.

    Args:
        margin: Factor of the angle, a whole number.
    """

    def __init__(self, dim: int, num_classes: int, *, margin: int = 4):
        super().__init__(dim, num_classes)
        self.margin = margin

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        own = class_rows(self.proxies.to(z.dtype), y)
        cosine = (unit(z) * unit(own)).sum(dim=1)
        return margin_softmax(
            logits, y, target_column(logits, y), norms(z) * norms(own) * psi(cosine, self.margin)
        )


@checked
class SphereFace(nn.Module):
    """A-Softmax: L-Softmax with normalised proxies. Liu et al. 2017.

    Cross-entropy of |z| cos(theta_j), where the target's is |z| (lam cos(theta_y) + psi(theta_y)) /
    (1 + lam). lam is annealed: at_step(step) sets it to max(lam_min, lam_start / (1 + lam_rate
    (step + 1))). Before the first call, and in evaluation, it is lam_min. lam_min = lam_start = 0
    is the paper's equation.

    Args:
        margin: Factor of the angle, a whole number.
        lam_start, lam_rate, lam_min: How lam falls.
    """

    spreads_classes = True

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: int = 4,
        lam_start: float = 1000.0,
        lam_rate: float = 0.12,
        lam_min: float = 5.0,
    ):
        super().__init__()
        self.dim, self.num_classes, self.margin = dim, num_classes, margin
        self.lam_start, self.lam_rate, self.lam_min = lam_start, lam_rate, lam_min
        self.lam = lam_min
        self.proxies = proxies(num_classes, dim)

    def at_step(self, step: int) -> None:
        """Set lam for this step, counted from 0."""
        self.lam = max(self.lam_min, self.lam_start / (1 + self.lam_rate * (step + 1)))

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): |z| cos(theta_j), without a margin."""
        return linear(z, unit(self.proxies).to(z.dtype))

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits = self.logits(z)
        cosine = (unit(z) * unit(class_rows(self.proxies, y)).to(z.dtype)).sum(dim=1)
        lam = self.lam if self.training else self.lam_min
        shrunk = (lam * cosine + psi(cosine, self.margin)) / (1 + lam)
        return margin_softmax(logits, y, target_column(logits, y), norms(z) * shrunk)


@checked
class SphereFaceR(NormFace):
    """SphereFace Revived: a multiplicative margin that may be any real number. Liu et al. 2022.

    Cross-entropy of scale * cos(theta_j). Version 1: the target's cosine becomes psi(theta_y).
    Version 2: the target's stays, and the others' become cos(theta_j / margin). Both sides are
    normalised.

    Args:
        version: 1 or 2.
        margin: Factor of the angle, at least 1; None takes 1.7 for version 1 and 1.4 for version 2.
        scale: Factor of the cosine, positive.
        grad: "detached" is the paper's characteristic gradient detachment, part of its method: the
            margin is a constant. "exact" differentiates the loss.
    """

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
        super().__init__(dim, num_classes, scale=scale)
        self.margin = margin if margin is not None else 1.7 if version == 1 else 1.4
        self.version, self.grad = version, grad

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        if self.version == 1:
            logits = self.logits(z)
            target = target_column(logits, y)
            cosine = target / self.scale
            shrunk = straight_through(psi(cosine, self.margin), cosine, self.grad)
            return margin_softmax(logits, y, target, self.scale * shrunk)
        cosine = scaled_cosine(z, self.proxies)
        widened = straight_through((angle(cosine) / self.margin).cos(), cosine, self.grad)
        return cross_entropy(self.scale * set_target(widened, y, target_column(cosine, y)), y)


@checked
class SphereFace2(nn.Module):
    """One binary classification per class, with one threshold for all. Wen et al. 2022.

    weight * mean_i { alpha softplus(-(s (g(t_iy) - m_C) + b)) + (1 - alpha) sum_{j != y} softplus(s
    (g(n_ij) + m_C) + b) }, with g(c) = 2 ((c + 1) / 2)^t - 1. Both sides are normalised, and b is
    learned.

    Args:
        kind: "C": t_ij = n_ij = cos(theta) and m_C = margin. "A": t_ij = cos(min(theta + margin,
            pi)), n_ij = cos(max(theta - margin, 0)) and m_C = 0.
        alpha: Weight of the positives, in (0, 1).
        scale: s, positive: 40 in OpenSphere, 32 in wespeaker.
        margin: Radians or cosine: .4 in OpenSphere, .2 (C) or .15 (A) in wespeaker.
        t: Exponent of g, at least 1.
        b: Where b starts; None starts it where the loss is smallest while every cosine is 0.
        weight: Factor of the loss; OpenSphere takes 50 / scale.
        grad: "exact" or "detached": see ArcFace. OpenSphere detaches.

    Raises:
        LikenessError: A setting is outside its range.
    """

    spreads_classes = True

    # many parameters: each is a setting of the paper or of its release
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
        share(self, alpha=alpha)
        radians(self, margin=margin)
        positive(self, alpha=alpha, scale=scale, t=t)
        self.dim, self.num_classes = dim, num_classes
        self.kind, self.alpha, self.scale = kind, alpha, scale
        self.margin, self.t = margin, t
        self.weight, self.grad = weight, grad
        self.proxies = proxies(num_classes, dim)
        self.bias = nn.Parameter(torch.tensor(self.best_bias() if b is None else float(b)))

    def best_bias(self) -> float:
        """The b that minimises the loss while all cosines are 0.

        It solves alpha sigma(-y - b) = (1 - alpha)(C - 1) sigma(n + b) for the logits y, n there.
        """
        ratio = self.alpha / ((1 - self.alpha) * (self.num_classes - 1))
        # On the CPU, since it is read at once, also while the loss is built on the meta device.
        at_zero = torch.zeros(1, dtype=torch.float64, device="cpu")
        y, n = (float(logit) for logit in self._bent(at_zero, at_zero))
        root = math.sqrt((1 - ratio) ** 2 + 4 * ratio * math.exp(y - n))
        if ratio <= 1:  # each form where it does not cancel
            return math.log(2 * ratio / (1 - ratio + root)) - n
        return math.log((ratio - 1 + root) / 2) - y

    def _bent(self, target: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines with the target and with others, of any shapes -> logits without the bias."""
        shift = self.margin if self.kind == "C" else 0.0
        if self.kind == "A":
            # cos(theta - m) = -cos((pi - theta) + m), and -c is the cosine of pi - theta.
            target = cos_plus_margin(target, self.margin, "clamp")
            other = -cos_plus_margin(-other, self.margin, "clamp")
        return self.scale * (self._g(target) - shift), self.scale * (self._g(other) + shift)

    def _g(self, cosine: Tensor) -> Tensor:
        return 2 * ((cosine + 1) / 2).clamp(min=0).pow(self.t) - 1

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale g(cos) + b, without a margin; accept if positive."""
        return self.scale * self._g(scaled_cosine(z, self.proxies)) + self.bias

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        cosine = scaled_cosine(z, self.proxies)
        own = target_column(cosine, y)
        target, other = self._bent(own, cosine)
        target = straight_through(target, self.scale * own, self.grad)
        other = straight_through(other, self.scale * cosine, self.grad)
        bias = self.bias.to(z.dtype)
        negative = class_sum(set_target(softplus(other + bias), y, 0.0))
        positive = softplus(-(target + bias))
        return self.weight * (self.alpha * positive + (1 - self.alpha) * negative).mean()
