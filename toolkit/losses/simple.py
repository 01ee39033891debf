"""SimPLE: pairwise similarity learning without proxies, normalisation or margins."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from toolkit.losses.common import KeyBank, Rates, against, checked, full


def polarlike(z: Tensor) -> Tensor:
    """(..., D) -> (..., D-1): softplus of the first coordinate times the direction of the others, as the released code has it."""
    return softplus(z[..., :1]) * normalize(z[..., 1:], dim=-1, eps=1e-12)


def generalised_inner_product(z: Tensor, keys: Tensor, b_theta: Tensor | float) -> Tensor:
    """S (B, Q) = z.k - b_theta |z| |k|: Eq 6 of the SimPLE paper."""
    return z @ keys.T - b_theta * _norm(z) * _norm(keys).T


def _norm(z: Tensor) -> Tensor:
    """(N, 1) norms whose gradient is finite (zero) at a zero row."""
    square = z.square().sum(dim=1, keepdim=True)
    return torch.where(square > 0, square.clamp(min=torch.finfo(z.dtype).tiny).sqrt(), square)


class SimPLE(nn.Module):
    """L = weight * [alpha mean_P softplus(-(S - margin + b) / r) + (1 - alpha) mean_N softplus(r (S + margin + b))]. SimPLE paper, Eq 8.

    S is the generalised inner product of RAW embeddings; P and N are the pairs of equal and of different labels between the batch and its keys
    (see losses.common.against), self-pairs and empty slots of the bank left out. A pair is accepted iff S > -b.
    z (B, dim) raw, y (B,) int64, z_key (B, dim) of the momentum encoder or None -> scalar. num_classes is ignored. An empty P or N contributes 0.

    b: start value of the bias, learned unless learn_b=False. b_theta is fixed as in the paper's appendix and the release;
    learn_b_theta=True is the text of Sec. 3.
    reduction="separate" takes both means apart, as the release does; "joint" is the literal expectation over all pairs of Eq 8.
    features="polarlike" applies the release's softplus-magnitude features first. weight is the release's lw (500).
    """

    bank: KeyBank | None

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        b_theta: float = 0.3,
        r: float = 3.0,
        alpha: float = 0.001,
        b: float = -10.0,
        margin: float = 0.0,
        weight: float = 1.0,
        learn_b: bool = True,
        learn_b_theta: bool = False,
        reduction: Literal["separate", "joint"] = "separate",
        features: Literal["raw", "polarlike"] = "raw",
    ):
        super().__init__()
        if not (0 < alpha < 1 and r > 0):
            raise ValueError(f"SimPLE: alpha={alpha} must be in (0, 1) and r={r} positive")
        self.dim, self.r, self.alpha, self.margin, self.weight = dim, r, alpha, margin, weight
        self.reduction, self.features = reduction, features
        self.b = nn.Parameter(torch.tensor(float(b)), requires_grad=learn_b)
        self.b_theta: nn.Parameter | float = nn.Parameter(torch.tensor(float(b_theta))) if learn_b_theta else float(b_theta)
        self.bank = None

    @property
    def similarity(self) -> str:
        """The name by which eval.similarity scores these embeddings."""
        return f"simple:{float(self.b_theta):.6g}"

    def scores(self, z: Tensor, keys: Tensor) -> Tensor:
        """(B, Q) similarities S of raw embeddings."""
        z, keys = full(z), full(keys)
        if self.features == "polarlike":
            z, keys = polarlike(z), polarlike(keys)
        return generalised_inner_product(z, keys, self.b_theta if isinstance(self.b_theta, float) else self.b_theta.to(z.dtype))

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        keys, key_labels, own = against(self.bank, z, y, z_key)
        logits = self.scores(z, keys) + self.b.to(z.dtype)
        same = y[:, None] == key_labels[None, :]
        other = ~same & (key_labels >= 0)[None, :]  # an empty slot is in neither set: its label is -1, no class
        same = same.scatter(1, own[:, None], False)
        row, column = same.nonzero(as_tuple=True)  # positives are few: gather them instead of a second full-size block
        positive = softplus((self.margin - logits[row, column]) / self.r).sum()
        negative = softplus(self.r * (logits + self.margin)).masked_fill(~other, 0.0).sum()
        num_positive, num_negative = row.numel(), other.sum()
        if self.reduction == "joint":
            total = self.alpha * positive + (1 - self.alpha) * negative
            return self.weight * total / (num_positive + num_negative).clamp(min=1)
        return self.weight * (self.alpha * positive / max(num_positive, 1) + (1 - self.alpha) * negative / num_negative.clamp(min=1))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        """b and b_theta at a tenth of the backbone's rate (the release: .01 beside .1), without decay."""
        learned = [parameter for parameter in self.parameters() if parameter.requires_grad]
        return [{"params": learned, "lr": 0.1 * optim.lr, "weight_decay": 0.0}] if learned else []
