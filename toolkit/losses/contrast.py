"""Losses that hold each positive of an anchor against all its negatives at once (tuples)."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from toolkit.losses.common import KeyBank, Rates, checked
from toolkit.losses.margin import sine
from toolkit.losses.pair import distance, learned, log1p_exp, masked_lse, mean, over, pair_up

WithoutPositives = Literal["drop", "zero"]


class TupletMargin(nn.Module):
    """mean over positive pairs of log(1 + sum_n exp(scale (cos theta_n - cos(theta_p - margin)))), the negatives being the anchor's.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised. margin .1 radians (5.73 degrees), scale 64.
    Anchors are the batch's, positives and negatives its keys. No positive pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Yu & Tao 2019"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "tuplet_margin__pml; loops"
    NOTES: ClassVar[str] = "Without the paper's intra-pair variance term. The gradient of equal rows is finite, where pytorch-metric-learning's is NaN."
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, margin: float = math.radians(5.73), scale: float = 64.0):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0:
            raise ValueError(f"TupletMargin: margin={margin} must be radians in [0, pi) and scale={scale} positive")
        self.dim, self.margin, self.scale, self.bank = dim, margin, scale, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        cosine = x @ keys.T
        row, column = same.nonzero(as_tuple=True)
        positive = cosine[row, column]
        slack = positive * math.cos(self.margin) + sine(positive) * math.sin(self.margin)
        return mean(log1p_exp(masked_lse(self.scale * cosine, other)[row] - self.scale * slack))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class NPair(nn.Module):
    """mean over positive pairs of log(1 + sum over other classes c of mean_{n in c} exp(a.n - a.p)), plus l2 * mean |z|^2; RAW inner products.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. pairs="all": every pair, each other class weighing as one negative, whatever the
    order of rows: the expectation inside the logarithm of the paper's random choice of one pair per class. pairs="one" is the paper's tuple itself:
    per class, its first row in the batch is the anchor and that row's first key of the class the positive; cross-entropy of anchors with positives.
    l2 0; the paper's regulariser is .02 to .25. With keys, anchors are the batch's and positives and negatives the keys. No positive pairs: 0 + l2 term.
    """

    PAPER: ClassVar[str] = "Sohn 2016"
    GEOMETRY: ClassVar[str] = "inner product"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "npairs__pml (pairs='one', of unit rows); loops"
    NOTES: ClassVar[str] = (
        "All pairs by default instead of one per class (pairs='one'), so that the order of rows does not matter; l2 is 0. pytorch-metric-learning normalises."
    )
    bank: KeyBank | None
    similarity = "dot"

    def __init__(self, dim: int, num_classes: int = 0, *, pairs: Literal["all", "one"] = "all", l2: float = 0.0):
        super().__init__()
        self.dim, self.pairs, self.l2, self.bank = dim, pairs, l2, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, key_labels, _ = pair_up(self.bank, z, y, z_key, normalise=False)
        penalty = self.l2 * mean(x.square().sum(1)) if self.l2 else 0.0
        if self.pairs == "one":
            anchors = _first_of_each(y)
            anchors = anchors[same[anchors].any(1)]
            return n_pair(x[anchors], keys[same[anchors].to(torch.uint8).argmax(1)]) + penalty
        _, group, size = torch.unique(key_labels, return_inverse=True, return_counts=True)
        product = x @ keys.T
        row, column = same.nonzero(as_tuple=True)
        return mean(log1p_exp(masked_lse(product - size[group].to(x.dtype).log(), other)[row] - product[row, column])) + penalty

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


def _first_of_each(y: Tensor) -> Tensor:
    """Indices of the first row of each label."""
    labels, group = torch.unique(y, return_inverse=True)
    return torch.full_like(labels, len(y)).scatter_reduce(0, group, torch.arange(len(y), device=y.device), "amin")


def n_pair(anchors: Tensor, positives: Tensor) -> Tensor:
    """Cross-entropy of the inner products of N anchors with N positives (N, D), row i's target being positive i; 0 without rows."""
    product = anchors @ positives.T
    return mean(product.logsumexp(1) - product.diagonal()) if len(product) else product.sum()


class NTXent(nn.Module):
    """mean over ordered positive pairs of -log(e^{s_p / t} / (e^{s_p / t} + sum_n e^{s_n / t})), s the cosine: InfoNCE for any number of positives.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised. temperature t .07 (SimCLR: .1 to .5). An anchor's other
    positives are not in the denominator, as they are in SupCon. Anchors are the batch's, the rest its keys. No positive pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "van den Oord et al. 2018; Chen et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "ntxent__pml; loops"
    NOTES: ClassVar[str] = ""
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, temperature: float = 0.07):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"NTXent: temperature={temperature} must be positive")
        self.dim, self.temperature, self.bank = dim, temperature, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        s = x @ keys.T / self.temperature
        row, column = same.nonzero(as_tuple=True)
        return mean(log1p_exp(masked_lse(s, other)[row] - s[row, column]))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class SupCon(nn.Module):
    """mean over anchors of -(1 / |P|) sum_{p in P} [s_p / t - lse over all other keys of s / t], s the cosine: L_out of the paper.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised. temperature t .1 (released code: .07).
    without_positives: an anchor with no positive is left out of the mean ("drop") or counts as 0 in it ("zero", the released code).
    Anchors are the batch's, the rest its keys, own keys and empty slots left out. No positive pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Khosla et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "supcon__pml, supcon__supcontrast (without_positives='zero'); loops"
    NOTES: ClassVar[str] = "The release counts anchors without positives as 0 (without_positives='zero')."
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, temperature: float = 0.1, without_positives: WithoutPositives = "drop"):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"SupCon: temperature={temperature} must be positive")
        self.dim, self.temperature, self.without_positives, self.bank = dim, temperature, without_positives, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        s = x @ keys.T / self.temperature
        count = same.sum(1)
        of_anchor = masked_lse(s, same | other) - s.masked_fill(~same, 0.0).sum(1) / count.clamp(min=1)
        total = of_anchor.masked_fill(count == 0, 0.0).sum()
        return total / (max(len(y), 1) if self.without_positives == "zero" else (count > 0).sum().clamp(min=1))

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class LiftedStructure(nn.Module):
    """mean over ordered positive pairs (a, p) of [d_ap + log sum over the negatives n of a or of p of e^{margin - d_n}]+^2 / 2; d = |a - k| of unit rows.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. margin 1. Against keys, the negatives of a are keys, and those of p, itself a key,
    are the batch's anchors of other classes: the same (B, Q) block read by columns, so that the loss of a batch with itself is the paper's.
    generalised=True: mean over anchors of [lse_p d_ap + lse_n(margin - d_an)]+ (Hermans et al. 2017), anchors without positives left out ("drop"),
    counted as 0 ("zero"), or left with their negatives' term ("negatives", as pytorch-metric-learning has it). No positive pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Song et al. 2016; Hermans et al. 2017 (generalised)"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "lifted_structure__pml, gen_lifted__pml (without_positives='negatives'); loops"
    NOTES: ClassVar[str] = "Rows are normalised, which the paper does not do."
    bank: KeyBank | None

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 1.0,
        generalised: bool = False,
        without_positives: Literal["drop", "zero", "negatives"] = "drop",
    ):
        super().__init__()
        self.dim, self.margin, self.generalised, self.without_positives, self.bank = dim, margin, generalised, without_positives, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        d = distance(x, keys)
        push = masked_lse(self.margin - d, other)
        if self.generalised:
            alone = ~same.any(1)
            pull = masked_lse(d, same)
            if self.without_positives == "negatives":
                return mean((pull.masked_fill(alone, 0.0) + push.masked_fill(~other.any(1), 0.0)).relu())
            return over((pull + push).relu(), torch.ones_like(alone) if self.without_positives == "zero" else ~alone, "mean")
        row, column = same.nonzero(as_tuple=True)
        push_of_key = push if keys is x else masked_lse(self.margin - d, other, dim=0)
        return mean((d[row, column] + torch.logaddexp(push[row], push_of_key[column])).relu().square()) / 2

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class MultiSimilarity(nn.Module):
    """mean over anchors of log(1 + sum_p e^{-alpha (s_p - base)}) / alpha + log(1 + sum_n e^{beta (s_n - base)}) / beta, s the cosine, over mined pairs.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised. alpha 2, beta 50, base .5. epsilon .1: a positive is kept
    if it is less similar than the anchor's most similar negative + epsilon, a negative if it is more similar than its least similar positive - epsilon;
    epsilon=None keeps all pairs. An anchor without kept pairs counts as 0. Anchors are the batch's, the rest its keys. No pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Wang et al. 2019a"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "multi_similarity__pml (epsilon=None), multi_similarity_miner__pml (value and mined pairs); loops"
    NOTES: ClassVar[str] = "The release also drops positives of cosine above 1 - 1e-5."
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, alpha: float = 2.0, beta: float = 50.0, base: float = 0.5, epsilon: float | None = 0.1):
        super().__init__()
        if alpha <= 0 or beta <= 0:
            raise ValueError(f"MultiSimilarity: alpha={alpha} and beta={beta} must be positive")
        self.dim, self.alpha, self.beta, self.base, self.epsilon, self.bank = dim, alpha, beta, base, epsilon, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        s = x @ keys.T
        if self.epsilon is not None:
            same, other = mine_multi_similarity(s, same, other, self.epsilon)
        pull = log1p_exp(masked_lse(-self.alpha * (s - self.base), same)) / self.alpha
        push = log1p_exp(masked_lse(self.beta * (s - self.base), other)) / self.beta
        return mean(pull + push)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


@torch.no_grad()
def mine_multi_similarity(s: Tensor, same: Tensor, other: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """The positive and negative pairs (B, Q) that are within epsilon of an anchor's hardest pair of the other kind."""
    hardest_positive = s.masked_fill(~same, torch.inf).amin(1, keepdim=True)
    hardest_negative = s.masked_fill(~other, -torch.inf).amax(1, keepdim=True)
    return same & (s - epsilon < hardest_negative), other & (s + epsilon > hardest_positive)


class CirclePair(nn.Module):
    """log(1 + sum_p e^{-scale a_p (s_p - 1 + margin)} sum_n e^{scale a_n (s_n - margin)}), a_p = [1 + margin - s_p]+, a_n = [s_n + margin]+, no gradient to a.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; s the cosine of normalised rows. margin .4, scale 80 (faces .25, 256).
    over="anchor": of each anchor's pairs, the mean over anchors above 0; "batch": once, of all pairs of the batch (released code).
    Anchors are the batch's, the rest its keys. Without a positive or without a negative: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Sun et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "circle_pair__pml; loops"
    NOTES: ClassVar[str] = "The release takes all pairs of the batch together (over='batch'), the paper those of one anchor."
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, margin: float = 0.4, scale: float = 80.0, over: Literal["anchor", "batch"] = "anchor"):
        super().__init__()
        if scale <= 0:
            raise ValueError(f"CirclePair: scale={scale} must be positive")
        self.dim, self.margin, self.scale, self.over, self.bank = dim, margin, scale, over, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        s = x @ keys.T
        pull = -self.scale * (1 + self.margin - s.detach()).relu() * (s - 1 + self.margin)
        push = self.scale * (s.detach() + self.margin).relu() * (s - self.margin)
        if self.over == "batch":
            pull, push, same, other = (whole.reshape(1, -1) for whole in (pull, push, same, other))
        value = log1p_exp(masked_lse(pull, same) + masked_lse(push, other))
        return over(value, torch.ones_like(value, dtype=torch.bool), "nonzero")

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)
