"""Margin softmax on the hypersphere."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from toolkit.losses.common import (
    Rates,
    add_to_target,
    checked,
    class_rows,
    cross_entropy,
    in_full,
    known_settings,
    proxy_groups,
    refuse_angular_bias,
    target_column,
)
from toolkit.losses.softmax import generalised_product, norms, scaled_cosine, tau_groups
from toolkit.vmf.precision import full, unit

Wrap = Literal["monotone", "easy", "clamp", "none"]
Grad = Literal["exact", "detached"]
Ramp = Literal["linear", "exponential"]


def sine(cosine: Tensor) -> Tensor:
    """sqrt(1 - c^2) with the exact value and a finite gradient: zero where 1 - c^2 is within
    rounding of 0.
    """
    square = 1.0 - cosine * cosine
    tiny = 1e-7 if cosine.dtype == torch.float32 else 1e-14
    return torch.where(
        square > tiny, square.clamp(min=tiny).sqrt(), square.detach().clamp(min=0.0).sqrt()
    )


def angle(cosine: Tensor) -> Tensor:
    """arccos(c) in [0, pi], exact at both ends, with the finite gradient of `sine`."""
    return torch.atan2(sine(cosine), cosine)


def cos_plus_margin(cosine: Tensor, margin: float | Tensor, wrap: Wrap) -> Tensor:
    """cos(theta + margin) with one of the field's four rules for theta + margin > pi; margin a
    number or a tensor of cosine's shape.

    monotone: cos(theta) - margin sin(margin) there (insightface's classic code,
    pytorch-metric-learning, SpeechBrain);
    easy: no margin unless cos(theta) > 0; clamp: theta + margin stops at pi (OpenSphere, AdaFace);
    none: it turns back (arcface_torch, the vMF paper).
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
    if wrap == "easy":
        return torch.where(cosine > 0, shifted, cosine)
    if wrap == "clamp":
        return torch.where(cosine > turn, shifted, cosine * 0 - 1)
    return shifted


def margin_softmax(logits: Tensor, y: Tensor, target: Tensor, changed: Tensor) -> Tensor:
    """Mean cross-entropy after the target's logit `target` (B,) has become `changed` (B,).

    Overwrites `logits`: no second (B, C) block is made.
    """
    return cross_entropy(add_to_target(logits, y, changed - target), y)


def straight_through(value: Tensor, through: Tensor, grad: Grad) -> Tensor:
    """`value`, with its own gradient ("exact") or with that of `through` ("detached":
    characteristic gradient detachment).
    """
    return value if grad == "exact" else through + (value - through).detach()


def angular_margin_softmax(
    logits: Tensor, y: Tensor, scale: float | Tensor, margin: float, wrap: Wrap, grad: Grad
) -> Tensor:
    """ArcFace of logits (B, C) = scale * cosine, which it overwrites."""
    target = target_column(logits, y)
    cosine = target / scale
    return margin_softmax(
        logits,
        y,
        target,
        scale * straight_through(cos_plus_margin(cosine, margin, wrap), cosine, grad),
    )


class MovingMargin:
    """A margin that is 0 until step START, rises until STOP and stays: linearly, or exponentially,
    1 - .001 ** progress (WeSpeaker's MarginScheduler).
    """

    def __init__(self, owner: str, margin: float, warmup_steps: int | tuple[int, int], ramp: Ramp):
        self.owner, self.margin, self.ramp = owner, margin, ramp
        self.start, self.stop = (
            (warmup_steps, warmup_steps) if isinstance(warmup_steps, int) else warmup_steps
        )
        if not 0 <= self.start <= self.stop:
            raise ValueError(
                f"{owner}: warmup_steps={warmup_steps} must be a number of steps or (START, STOP) "
                "with 0 <= START <= STOP"
            )
        self.current: float | None = (
            None if self.stop else margin
        )  # None: warm-up is on, but nobody has said at which step

    def at_step(self, step: int) -> None:
        """Set the margin for this step, counted from 0."""
        progress = (
            1.0
            if step >= self.stop
            else max(0.0, (step - self.start) / (self.stop - self.start))
            if self.stop > self.start
            else 0.0
        )
        share = progress if self.ramp == "linear" or progress == 1 else 1 - 0.001**progress
        self.current = share * self.margin

    def now(self, training: bool) -> float:
        """The margin; in evaluation without a step, the final one."""
        if self.current is None and training:
            raise RuntimeError(
                f"{self.owner}: warmup_steps={self.start, self.stop}, but the step is unknown; "
                "call loss.at_step(step) before every training step"
            )
        return self.margin if self.current is None else self.current


class ArcFace(nn.Module):
    """Additive angular margin softmax: cross-entropy of scale * cos, the target's being scale *
    cos(theta + margin). Deng et al. 2019; AAM-Softmax in speech.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. margin in radians (.5 faces,
    .2 speech), scale 64 (faces) or 30-32 (speech). grad="exact" differentiates the loss;
    grad="detached" is what arcface_torch and OpenSphere run: the margin is a constant,
    d(logit)/d(cos) = scale. warmup_steps=N: no margin before step N; (START, STOP): a ramp in
    between, linear or exponential (MovingMargin). The training loop calls at_step(step).
    learn_scale=True: scale = exp(tau) is learned from the given start at the rate tau_lr, as in the
    vMF paper (Eq 4, with wrap="none").
    start: class vectors start uniform within +-start, as that paper's do; 0 is Xavier's normal.
    """

    PAPER: ClassVar[str] = "Deng et al. 2019"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = (
        "arcface__pml, arcface__insightface, combined_arc__insightface, arcface_cgd__opensphere, "
        "arcface__vmf_embeddings, "
        "aam_softmax__speechbrain, aam_softmax_easy__speechbrain; loops over angles"
    )
    NOTES: ClassVar[str] = (
        "releases differ beyond theta + margin = pi (`wrap`); arcface_torch and OpenSphere detach "
        'the margin (grad="detached")'
    )

    proxies: nn.Parameter  # (C, D)

    @known_settings
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
        if not 0 <= margin < math.pi or scale <= 0:
            raise ValueError(
                f"ArcFace: margin={margin} must be radians in [0, pi) and scale={scale} positive"
            )
        self.dim, self.num_classes, self.margin, self.scale, self.wrap, self.grad, self.tau_lr = (
            dim,
            num_classes,
            margin,
            scale,
            wrap,
            grad,
            tau_lr,
        )
        self.moving = MovingMargin("ArcFace", margin, warmup_steps, ramp)
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)
        if start:
            nn.init.uniform_(self.proxies, -start, start)
        self.tau = nn.Parameter(torch.tensor(math.log(scale))) if learn_scale else None

    def at_step(self, step: int) -> None:
        """Set the margin for this step (counted from 0) of the warm-up."""
        self.moving.at_step(step)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine, without a margin: what prediction uses."""
        return scaled_cosine(z, self.proxies, self.scale if self.tau is None else self.tau.exp())

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        margin = self.moving.now(self.training)
        scale = self.scale if self.tau is None else self.tau.exp().to(z.dtype)
        return angular_margin_softmax(self.logits(z), y, scale, margin, self.wrap, self.grad)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return (
            proxy_groups(self, self.proxies, optim)
            if self.tau is None
            else tau_groups(self, self.proxies, self.tau, self.tau_lr, optim)
        )


class CosFace(nn.Module):
    """Additive cosine margin softmax: cross-entropy of scale * cos, the target's being scale * (cos
    - margin). Wang et al. 2018; AM-Softmax.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. margin .35, scale 64
    (faces), .2 and 30 (speech). The margin is a constant, so the gradient is the same whether it is
    detached (OpenSphere) or not.
    product="generalised": CosFace* of the SimPLE paper's appendix B (Eq 10), |z||w_j| (cos -
    b_theta), the target's with cos - b_theta - margin; product="inner product": the same with
    b_theta = 0. Neither normalises anything: the norms take the place of `scale`, which is not
    used.
    warmup_steps, ramp: as in ArcFace.
    """

    PAPER: ClassVar[str] = "Wang et al. 2018; CosFace*: Wen et al. 2023"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = (
        "cosface__pml, cosface__insightface, cosface_cgd__opensphere, am_softmax__speechbrain; "
        "CosFace*: closed form"
    )
    NOTES: ClassVar[str] = (
        "SimPLE's Eq 10 prints the margin in the non-targets with a minus, which would ease the "
        "task; here the target's logit is lowered"
    )

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.35,
        scale: float = 64.0,
        product: Literal["cosine", "inner product", "generalised"] = "cosine",
        b_theta: float = 0.3,
        warmup_steps: int | tuple[int, int] = 0,
        ramp: Ramp = "linear",
    ):
        super().__init__()
        if scale <= 0:
            raise ValueError(f"CosFace: scale={scale} must be positive")
        refuse_angular_bias("CosFace", b_theta)
        self.moving = MovingMargin("CosFace", margin, warmup_steps, ramp)
        self.dim, self.num_classes, self.margin, self.scale, self.product = (
            dim,
            num_classes,
            margin,
            scale,
            product,
        )
        self.b_theta = float(b_theta) if product == "generalised" else 0.0
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    @property
    def similarity(self) -> str:
        """The name by which eval.similarity scores these embeddings."""
        return {"cosine": "cosine", "inner product": "dot"}.get(
            self.product, f"simple:{self.b_theta:.6g}"
        )

    def at_step(self, step: int) -> None:
        """Set the margin for this step (counted from 0) of the warm-up."""
        self.moving.at_step(step)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) without a margin: what prediction uses."""
        if self.product == "cosine":
            return scaled_cosine(z, self.proxies, self.scale)
        z = full(z)
        return generalised_product(z, self.proxies.to(z.dtype), self.b_theta)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        logits, margin = self.logits(z), self.moving.now(self.training)
        if self.product == "cosine":
            lowered = self.scale * margin * torch.ones_like(z[:, 0])
        else:
            lowered = margin * norms(z) * class_rows(norms(self.proxies.to(z.dtype)), y)
        return cross_entropy(add_to_target(logits, y, -lowered), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class SubCenterArcFace(nn.Module):
    """ArcFace with K sub-centres per class: cos_j is the largest over the class's sub-centres, so
    that noisy samples gather at a minor one. Deng et al. 2020.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. num_subcentres 3, margin .5,
    scale 64; wrap and grad as in ArcFace. The first sub-centre of every class is in proxies (C, D),
    the others in subcentres (K - 1, C, D).
    """

    PAPER: ClassVar[str] = "Deng et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "subcenter_arcface__pml"
    NOTES: ClassVar[str] = ""

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        num_subcentres: int = 3,
        margin: float = 0.5,
        scale: float = 64.0,
        wrap: Wrap = "monotone",
        grad: Grad = "exact",
    ):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0 or num_subcentres < 1:
            raise ValueError(
                f"SubCenterArcFace: margin={margin} must be radians in [0, pi), scale={scale} and "
                f"num_subcentres={num_subcentres} positive"
            )
        self.dim, self.num_classes, self.margin, self.scale, self.wrap, self.grad = (
            dim,
            num_classes,
            margin,
            scale,
            wrap,
            grad,
        )
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        self.subcentres = nn.Parameter(torch.empty(num_subcentres - 1, num_classes, dim))
        for one in (self.proxies, *self.subcentres):
            nn.init.xavier_normal_(one)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * the largest cosine over the class's sub-centres, without a margin."""
        rows = self.scale * unit(z)
        largest = linear(rows, unit(self.proxies).to(rows.dtype))
        for one in self.subcentres:
            largest = torch.maximum(largest, linear(rows, unit(one).to(rows.dtype)))
        return largest

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return angular_margin_softmax(
            self.logits(z), y, self.scale, self.margin, self.wrap, self.grad
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return [
            {
                "params": [self.proxies, self.subcentres],
                "lr": optim.lr * optim.proxy_lr_scale,
                "weight_decay": optim.weight_decay,
            }
        ]
