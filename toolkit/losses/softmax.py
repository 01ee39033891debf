"""Softmax cross-entropy: on raw embeddings, and on the cosine with a learned or a fixed scale."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from toolkit.losses.common import (
    Rates,
    checked,
    cross_entropy,
    in_full,
    known_settings,
    proxy_groups,
    refuse_angular_bias,
)
from toolkit.vmf.precision import full, unit


def norms(x: Tensor) -> Tensor:
    """(N, D) -> (N,) Euclidean norms whose gradient at a zero row is zero, not NaN."""
    square = x.square().sum(dim=1)
    return torch.where(square > 0, square.clamp(min=torch.finfo(x.dtype).tiny).sqrt(), square)


def generalised_product(
    z: Tensor, proxies: Tensor, b_theta: float, bias: Tensor | None = None
) -> Tensor:
    """(B, C) z.w - b_theta |z| |w| (+ bias): Eq 6 of the SimPLE paper between embeddings and
    proxies; b_theta = 0 is the inner product.
    """
    product = linear(z, proxies, bias)
    return (
        product if b_theta == 0 else torch.addr(product, norms(z), norms(proxies), alpha=-b_theta)
    )


def scaled_cosine(z: Tensor, proxies: Tensor, scale: float | Tensor = 1.0) -> Tensor:
    """(B, C) scale * cos(z, w).

    A number multiplies the (B, D) rows, which is cheaper than the (B, C) result.
    """
    rows, columns = unit(z), unit(proxies)
    if isinstance(scale, Tensor):
        return scale.to(rows.dtype) * linear(rows, columns.to(rows.dtype))
    return linear(scale * rows, columns.to(rows.dtype))


def tau_groups(
    loss: nn.Module, proxies: nn.Parameter, tau: nn.Parameter, tau_lr: float, optim: Rates
) -> list[dict[str, Any]]:
    """Proxies as usual; tau at its own rate, without momentum or decay (vMF paper, App. D.3)."""
    groups = proxy_groups(loss, proxies, optim)
    rest = [
        parameter for group in groups[1:] for parameter in group["params"] if parameter is not tau
    ]
    own = {"params": [tau], "lr": tau_lr, "weight_decay": 0.0, "momentum": 0.0, "nesterov": False}
    return [groups[0], own, *([{**groups[1], "params": rest}] if rest else [])]


class Softmax(nn.Module):
    """Cross-entropy of z W^T, nothing normalised and no bias: STANDARD, Eq 1 of the vMF paper
    (bias=True: the usual linear classifier).

    z (B, dim) raw, y (B,) int64 -> scalar mean. Pairs are compared by cosine unless a recipe says
    similarity="euclidean", the paper's geometry of STANDARD. Class vectors start normal with
    deviation dim^-1/2, or with start > 0 uniform within +-start, as the paper's do (App. D.1; its
    release). product="generalised": CE* of the SimPLE paper's appendix B (Eq 9), logits z.w -
    b_theta |z| |w|; pairs are then scored by simple:b_theta.
    """

    PAPER: ClassVar[str] = "Scott et al. 2021 (STANDARD); CE*: Wen et al. 2023"
    GEOMETRY: ClassVar[str] = "inner product"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "standard__vmf_embeddings; CE*: closed form"
    NOTES: ClassVar[str] = "no bias, as in the vMF paper"

    proxies: nn.Parameter  # (C, D)

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        bias: bool = False,
        product: Literal["inner product", "generalised"] = "inner product",
        b_theta: float = 0.3,
        start: float = 0.0,
    ):
        super().__init__()
        refuse_angular_bias("Softmax", b_theta)
        self.dim, self.num_classes, self.product = dim, num_classes, product
        self.b_theta = float(b_theta) if product == "generalised" else 0.0
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.normal_(self.proxies, std=dim**-0.5)
        if start:
            nn.init.uniform_(self.proxies, -start, start)
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None

    @property
    def similarity(self) -> str:
        """The name by which eval.similarity scores these embeddings."""
        return f"simple:{self.b_theta:.6g}" if self.product == "generalised" else "cosine"

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C)"""
        z = full(z)
        return generalised_product(
            z,
            self.proxies.to(z.dtype),
            self.b_theta,
            None if self.bias is None else self.bias.to(z.dtype),
        )

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)


class Cosine(nn.Module):
    """Cross-entropy of exp(tau) cos(z, w_j), with tau learned: COSINE, Eq 3 of the vMF paper.

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. tau starts at 0 (fixed sets,
    SOP), 3.466 = log 32 (Cars196), 2.773 = log 16 (CUB); it is trained at the rate tau_lr (paper:
    1e-4 to 1e-2), without momentum and weight decay. start: as in Softmax; 0 is Xavier's normal.
    """

    PAPER: ClassVar[str] = "Zhai & Wu 2019; Scott et al. 2021 (COSINE)"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "cosine__vmf_embeddings"
    NOTES: ClassVar[str] = "the release stores -tau"

    proxies: nn.Parameter  # (C, D)

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        tau: float = 0.0,
        tau_lr: float = 0.001,
        start: float = 0.0,
    ):
        super().__init__()
        self.dim, self.num_classes, self.tau_lr = dim, num_classes, tau_lr
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)
        if start:
            nn.init.uniform_(self.proxies, -start, start)
        self.tau = nn.Parameter(torch.tensor(float(tau)))

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) exp(tau) * cosine."""
        return scaled_cosine(z, self.proxies, self.tau.exp())

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return tau_groups(self, self.proxies, self.tau, self.tau_lr, optim)


class NormFace(nn.Module):
    """Cross-entropy of scale * cos(z, w_j) with a fixed scale.

    Wang et al. 2017 (pytorch-metric-learning: NormalizedSoftmaxLoss, temperature = 1 / scale).

    z (B, dim) raw, y (B,) int64 -> scalar mean; both sides normalised. scale 30.
    """

    PAPER: ClassVar[str] = "Wang et al. 2017"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = True
    spreads_classes = True
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z, proxies"
    VERIFIED: ClassVar[str] = "normalized_softmax__pml"
    NOTES: ClassVar[str] = ""

    proxies: nn.Parameter  # (C, D)

    def __init__(self, dim: int, num_classes: int, *, scale: float = 30.0):
        super().__init__()
        if not 0 < scale < math.inf:
            raise ValueError(f"NormFace: scale={scale} must be positive")
        self.dim, self.num_classes, self.scale = dim, num_classes, scale
        self.proxies = nn.Parameter(torch.empty(num_classes, dim))
        nn.init.xavier_normal_(self.proxies)

    @in_full
    def logits(self, z: Tensor) -> Tensor:
        """(B, C) scale * cosine."""
        return scaled_cosine(z, self.proxies, self.scale)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return cross_entropy(self.logits(z), y)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return proxy_groups(self, self.proxies, optim)
