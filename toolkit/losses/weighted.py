"""Losses that weigh an anchor's pairs by their violations: log-sum-exp of its positives and of its
negatives apart.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from toolkit.losses.common import KeyBank, Rates, checked, known_settings
from toolkit.losses.mining import mine_multi_similarity
from toolkit.losses.pairing import (
    Pairs,
    by_anchor,
    learned,
    log1p_exp,
    masked_lse,
    mean,
    over,
    pair_up,
)


class MultiSimilarity(nn.Module):
    """mean over anchors of log(1 + sum_p e^{-alpha (s_p - base)}) / alpha + log(1 + sum_n e^{beta
    (s_n - base)}) / beta, s the cosine, over mined pairs.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised. alpha 2,
    beta 50, base .5. epsilon .1: a positive is kept if it is less similar than the anchor's most
    similar negative + epsilon, a negative if it is more similar than its least similar positive -
    epsilon; epsilon=None keeps all pairs. An anchor without kept pairs counts as 0. Anchors are the
    batch's, the rest its keys. No pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Wang et al. 2019a"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = (
        "multi_similarity__pml (epsilon=None), multi_similarity_miner__pml (value and mined "
        "pairs); loops"
    )
    NOTES: ClassVar[str] = "The release also drops positives of cosine above 1 - 1e-5."
    bank: KeyBank | None

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float | None = 0.1,
    ):
        super().__init__()
        if alpha <= 0 or beta <= 0:
            raise ValueError(f"MultiSimilarity: alpha={alpha} and beta={beta} must be positive")
        self.dim, self.alpha, self.beta, self.base, self.epsilon, self.bank = (
            dim,
            alpha,
            beta,
            base,
            epsilon,
            None,
        )

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return mean(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        s = pairs.x @ pairs.keys.T
        if self.epsilon is not None:
            same, other = mine_multi_similarity(s, same, other, self.epsilon)
        pull = log1p_exp(masked_lse(-self.alpha * (s - self.base), same)) / self.alpha
        push = log1p_exp(masked_lse(self.beta * (s - self.base), other)) / self.beta
        return (pull + push,)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class CirclePair(nn.Module):
    """log(1 + sum_p e^{-scale a_p (s_p - 1 + margin)} sum_n e^{scale a_n (s_n - margin)}), a_p = [1
    + margin - s_p]+, a_n = [s_n + margin]+, no gradient to a.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; s the cosine of normalised rows.
    margin .4, scale 80 (faces .25, 256). over="anchor": of each anchor's pairs, the mean over
    anchors above 0; "batch": once, of all pairs of the batch (released code). Anchors are the
    batch's, the rest its keys. Without a positive or without a negative: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Sun et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "circle_pair__pml; loops"
    NOTES: ClassVar[str] = (
        "The release takes all pairs of the batch together (over='batch'), the paper those of one "
        "anchor."
    )
    bank: KeyBank | None

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 0.4,
        scale: float = 80.0,
        over: Literal["anchor", "batch"] = "anchor",
    ):
        super().__init__()
        if scale <= 0:
            raise ValueError(f"CirclePair: scale={scale} must be positive")
        self.dim, self.margin, self.scale, self.over, self.bank = dim, margin, scale, over, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        pull, push = by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True))
        if self.over == "batch":
            pull, push = pull.logsumexp(0, keepdim=True), push.logsumexp(0, keepdim=True)
        value = log1p_exp(pull + push)
        return over(value, torch.ones_like(value, dtype=torch.bool), "nonzero")

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        s = pairs.x @ pairs.keys.T
        pull = -self.scale * (1 + self.margin - s.detach()).relu() * (s - 1 + self.margin)
        push = self.scale * (s.detach() + self.margin).relu() * (s - self.margin)
        return masked_lse(pull, same), masked_lse(push, other)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)
