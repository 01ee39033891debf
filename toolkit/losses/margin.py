"""Margin softmax on the hypersphere."""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.classes import add_to_target, class_rows, cross_entropy, target_column
from likeness.toolkit.losses.common import (
    checked,
    cosine_of_angle,
    positive,
    proxies,
    radians,
    uniform,
)
from likeness.toolkit.losses.contract import Rates, default_groups, proxy_group
from likeness.toolkit.losses.softmax import (
    NormFace,
    generalised_product,
    norms,
    scaled_cosine,
    tau_groups,
)
from likeness.toolkit.vmf.rows import unit

Wrap = Literal["monotone", "easy", "clamp", "none", "continuous"]
Grad = Literal["exact", "detached"]
Ramp = Literal["linear", "exponential"]


def sine(cosine: Tensor) -> Tensor:
    """sqrt(1 - c^2) of cosines c, of any shape, with the exact value and a finite gradient.

    The gradient is zero where 1 - c^2 is within rounding of 0.
    """
    square = 1.0 - cosine * cosine
    tiny = 1e-7 if cosine.dtype == torch.float32 else 1e-14
    return torch.where(
        square > tiny, square.clamp(min=tiny).sqrt(), square.detach().clamp(min=0.0).sqrt()
    )


def angle(cosine: Tensor) -> Tensor:
    """arccos(c) in [0, pi] radians, exact at both ends, with the finite gradient of `sine`."""
    return torch.atan2(sine(cosine), cosine)


def cos_plus_margin(cosine: Tensor, margin: float | Tensor, wrap: Wrap) -> Tensor:
    """cos(theta + margin), with one of the field's five rules for theta + margin > pi.

    Args:
        cosine: cos(theta), of any shape.
        margin: Radians: a number or a tensor of cosine's shape.
        wrap: What happens beyond pi. "monotone": cos(theta) - margin sin(margin) there
            (insightface's classic code, pytorch-metric-learning, SpeechBrain). "continuous":
            cos(theta) - 1 + cos(margin) there, which has no step at pi (WeSpeaker). "easy": no
            margin unless cos(theta) > 0. "clamp": theta + margin stops at pi (OpenSphere, AdaFace).
            "none": it turns back (arcface_torch, the vMF paper).

    Returns:
        Cosines, of cosine's shape.
    """
    cos_m, sin_m = (
        (margin.cos(), margin.sin())
        if isinstance(margin, Tensor)
        else (math.cos(margin), math.sin(margin))
    )
    shifted = cosine * cos_m - sine(cosine) * sin_m
    turn = -cos_m  # cos(pi - margin)
    if wrap == "monotone":
        return torch.where(cosine > turn, shifted, cosine - margin * sin_m)
    if wrap == "continuous":
        return torch.where(cosine > turn, shifted, cosine - 1 + cos_m)
    if wrap == "easy":
        return torch.where(cosine > 0, shifted, cosine)
    if wrap == "clamp":
        return torch.where(cosine > turn, shifted, cosine * 0 - 1)
    return shifted


def margin_softmax(logits: Tensor, y: Tensor, target: Tensor, changed: Tensor) -> Tensor:
    """The mean cross-entropy after the target's logit has become another.

    It overwrites `logits`, so that no second (B, C) block is made.

    Args:
        logits: (B, C).
        y: Labels (B,).
        target: The target's logits as they are in `logits` (B,).
        changed: What they become (B,).

    Returns:
        A scalar.
    """
    return cross_entropy(add_to_target(logits, y, changed - target), y)


def straight_through(value: Tensor, through: Tensor, grad: Grad) -> Tensor:
    """`value`, with its own gradient ("exact") or with that of `through` ("detached").

    The latter is the characteristic gradient detachment of SphereFace-R.
    """
    return value if grad == "exact" else through + (value - through).detach()


def angular_margin_softmax(
    logits: Tensor,
    y: Tensor,
    scale: float | Tensor,
    margin: float,
    wrap: Wrap,
    grad: Grad = "exact",
) -> Tensor:
    """ArcFace of logits (B, C) = scale * cosine, which it overwrites; y (B,) -> scalar."""
    target = target_column(logits, y)
    cosine = target / scale
    shifted = straight_through(cos_plus_margin(cosine, margin, wrap), cosine, grad)
    return margin_softmax(logits, y, target, scale * shifted)


class MovingMargin:
    """A margin that is 0 until step START, rises until step STOP and then stays.

    Args:
        owner: Name of the loss, for messages.
        margin: The final margin.
        warmup_steps: (START, STOP), or a number N for (N, N): no margin before step N.
        ramp: "linear", or "exponential": 1 - .001 ** progress (WeSpeaker's MarginScheduler).

    Raises:
        LikenessError: Not 0 <= START <= STOP.
    """

    def __init__(self, owner: str, margin: float, warmup_steps: int | tuple[int, int], ramp: Ramp):
        self.owner, self.margin, self.ramp = owner, margin, ramp
        steps = (warmup_steps, warmup_steps) if isinstance(warmup_steps, int) else warmup_steps
        self.start, self.stop = steps
        if not 0 <= self.start <= self.stop:
            raise LikenessError(
                f"{owner}: warmup_steps={warmup_steps} must be a number of steps or (START, STOP) "
                "with 0 <= START <= STOP"
            )
        # None: there is a warm-up, and `at_step` was not called yet.
        self.current: float | None = None if self.stop else margin

    def at_step(self, step: int) -> None:
        """Set the margin for this step, counted from 0."""
        if step >= self.stop:
            progress = 1.0
        else:
            progress = max(0.0, (step - self.start) / max(self.stop - self.start, 1))
        share = progress if self.ramp == "linear" or progress == 1 else 1 - 0.001**progress
        self.current = share * self.margin

    def now(self, training: bool) -> float:
        """The margin of the current step; in evaluation without a step, the final one.

        Raises:
            LikenessError: In training, if there is a warm-up and `at_step` was never called.
        """
        if self.current is None and training:
            raise LikenessError(
                f"{self.owner}: warmup_steps={self.start, self.stop}, but the step is unknown; "
                "call loss.at_step(step) before every training step"
            )
        return self.margin if self.current is None else self.current


@checked
class ArcFace(nn.Module):
    """Additive angular margin softmax (AAM-Softmax in speech). Deng et al. 2019.

    Cross-entropy of scale * cos(theta_j), where the target's is scale * cos(theta_y + margin). Both
    sides are normalised.

    Args:
        margin: Radians in [0, pi): .5 for faces, .2 for speech.
        scale: Factor of the cosine: 64 for faces, 30 to 32 for speech.
        wrap: What happens beyond pi: see cos_plus_margin.
        grad: "exact" differentiates the loss. "detached" is what arcface_torch and OpenSphere run:
            the margin is a constant, so that d(logit)/d(cos) = scale.
        warmup_steps, ramp: How the margin rises: see MovingMargin.
        learn_scale: Learn scale = exp(tau), starting at `scale`, as in the vMF paper (Eq 4, with
            wrap="none").
        tau_lr: The rate at which tau learns.
        start: Class vectors start uniform within +-start, as that paper's do; 0 is Xavier's normal
            distribution.

    Raises:
        LikenessError: margin is not in [0, pi), or scale is not positive.

    Example:
        >>> loss = ArcFace(8, 10, margin=0.2, scale=30.0)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 3, 3, 9])).shape
        torch.Size([])
    """

    spreads_classes = True

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.5,
        scale: float = 64.0,
        wrap: Wrap = "monotone",
        grad: Grad = "exact",
        warmup_steps: int | tuple[int, int] = 0,
        ramp: Ramp = "linear",
        learn_scale: bool = False,
        tau_lr: float = 0.001,
        start: float = 0.0,
    ):
        super().__init__()
        radians(self, margin=margin)
        positive(self, scale=scale)
        self.dim, self.num_classes = dim, num_classes
        self.margin, self.scale, self.wrap = margin, scale, wrap
        self.grad, self.tau_lr = grad, tau_lr
        self.moving = MovingMargin("ArcFace", margin, warmup_steps, ramp)
        self.proxies = proxies(num_classes, dim, uniform(start, nn.init.xavier_normal_))
        self.tau = nn.Parameter(torch.tensor(math.log(scale))) if learn_scale else None

    def at_step(self, step: int) -> None:
        """Set the margin for this step (counted from 0) of the warm-up."""
        self.moving.at_step(step)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale * cosine, without a margin."""
        return scaled_cosine(z, self.proxies, self.scale if self.tau is None else self.tau.exp())

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        margin = self.moving.now(self.training)
        scale = self.scale if self.tau is None else self.tau.exp().to(z.dtype)
        return angular_margin_softmax(self.logits(z), y, scale, margin, self.wrap, self.grad)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """The usual groups; a learned scale at the rate tau_lr, without momentum and decay."""
        if self.tau is None:
            return default_groups(self, optim)
        return tau_groups(self, self.tau, self.tau_lr, optim)


@checked
class CosFace(NormFace):
    """Additive cosine margin softmax (AM-Softmax). Wang et al. 2018.

    Cross-entropy of scale * cos(theta_j), where the target's is scale * (cos(theta_y) - margin).
    The margin is a constant, so that the gradient is the same whether it is detached (OpenSphere)
    or not.

    product="generalised" is CosFace* of the SimPLE paper (Wen et al. 2023, Eq 10): logits
    |z||w_j| (cos - b_theta), where the target's has cos - b_theta - margin. Eq 10 prints the margin
    on all other classes instead, which makes the task easier: lowers="others" is that.
    product="inner product" is the same with b_theta = 0. These two normalise nothing: the norms
    take the place of `scale`.

    Args:
        margin: Lowers the target's cosine: .35 for faces, .2 for speech.
        scale: Factor of the cosine: 64 for faces, 30 for speech; not used by the other products.
        product: "cosine", "inner product" or "generalised".
        b_theta: Cosine in [-1, 1] of the generalised product.
        lowers: Whose cosine the margin lowers: the "target"'s, or that of the "others".
        warmup_steps, ramp: How the margin rises: see MovingMargin.

    Raises:
        LikenessError: scale is not positive, or b_theta is no cosine.
    """

    # many parameters: each is a setting of the paper or of its release
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.35,
        scale: float = 64.0,
        product: Literal["cosine", "inner product", "generalised"] = "cosine",
        b_theta: float = 0.3,
        lowers: Literal["target", "others"] = "target",
        warmup_steps: int | tuple[int, int] = 0,
        ramp: Ramp = "linear",
    ):
        super().__init__(dim, num_classes, scale=scale)
        cosine_of_angle(self, b_theta=b_theta)
        self.moving = MovingMargin("CosFace", margin, warmup_steps, ramp)
        self.margin, self.product, self.lowers = margin, product, lowers
        self.b_theta = float(b_theta) if product == "generalised" else 0.0

    @property
    def similarity(self) -> str:
        """The name by which likeness.eval.metrics.similarity scores these embeddings."""
        return {"cosine": "cosine", "inner product": "dot"}.get(
            self.product, f"simple:{self.b_theta:.6g}"
        )

    def at_step(self, step: int) -> None:
        """Set the margin for this step (counted from 0) of the warm-up."""
        self.moving.at_step(step)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): the products without a margin."""
        if self.product == "cosine":
            return super().logits(z)
        return generalised_product(z, self.proxies.to(z.dtype), self.b_theta)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits, margin = self.logits(z), self.moving.now(self.training)
        if self.product == "cosine":
            lengths = self.scale * torch.ones_like(logits[0])
            lowered = margin * torch.ones_like(z[:, 0])
        else:
            lengths, lowered = norms(self.proxies.to(z.dtype)), margin * norms(z)
        of_target = lowered * class_rows(lengths, y)
        if self.lowers == "others":
            logits, of_target = logits - lowered[:, None] * lengths, -of_target
        return cross_entropy(add_to_target(logits, y, -of_target), y)


@checked
class SubCenterArcFace(NormFace):
    """ArcFace with K sub-centres per class. Deng et al. 2020.

    cos(theta_j) is the largest over the class's sub-centres, so that noisy samples gather at a
    minor one. The first sub-centre of every class is in `proxies` (C, D), the others are in
    `subcentres` (K - 1, C, D). Both sides are normalised.

    Args:
        num_subcentres: K.
        margin, scale, wrap: As in ArcFace.

    Raises:
        LikenessError: margin is not in [0, pi), or scale or num_subcentres are not positive.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_subcentres: int = 3,
        margin: float = 0.5,
        scale: float = 64.0,
        wrap: Wrap = "monotone",
    ):
        super().__init__(dim, num_classes, scale=scale)
        radians(self, margin=margin)
        positive(self, num_subcentres=num_subcentres)
        self.margin, self.wrap = margin, wrap
        self.subcentres = nn.Parameter(torch.empty(num_subcentres - 1, num_classes, dim))
        for subcentre in self.subcentres:
            nn.init.xavier_normal_(subcentre)

    def logits(self, z: Tensor) -> Tensor:
        """(B, dim) -> (B, C): scale * the largest cosine over the class's sub-centres."""
        rows = self.scale * unit(z)
        largest = linear(rows, unit(self.proxies).to(rows.dtype))
        for subcentre in self.subcentres:
            largest = torch.maximum(largest, linear(rows, unit(subcentre).to(rows.dtype)))
        return largest

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return angular_margin_softmax(self.logits(z), y, self.scale, self.margin, self.wrap)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """All sub-centres as proxies."""
        return [proxy_group(optim, self.proxies, self.subcentres)]
