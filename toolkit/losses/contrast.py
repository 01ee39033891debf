"""Losses that hold each positive of an anchor against all its negatives at once (tuples)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from toolkit.losses.common import KeyBank, Rates, checked, known_settings
from toolkit.losses.margin import sine
from toolkit.losses.pairing import (
    Pairs,
    by_anchor,
    distance,
    learned,
    log1p_exp,
    masked_lse,
    mean,
    over,
    pair_up,
)
from toolkit.losses.weighted import CirclePair as CirclePair  # their path of old
from toolkit.losses.weighted import MultiSimilarity as MultiSimilarity

WithoutPositives = Literal["drop", "zero"]


class TupletMargin(nn.Module):
    """mean over positive pairs of log(1 + sum_n exp(scale (cos theta_n - cos(theta_p - margin)))),
    the negatives being the anchor's.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised. margin .1
    radians (5.73 degrees), scale 64. Anchors are the batch's, positives and negatives its keys. No
    positive pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Yu & Tao 2019"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "tuplet_margin__pml; loops"
    NOTES: ClassVar[str] = (
        "Without the paper's intra-pair variance term. The gradient of equal rows is finite, where "
        "pytorch-metric-learning's is NaN."
    )
    bank: KeyBank | None

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = math.radians(5.73),
        scale: float = 64.0,
    ):
        super().__init__()
        if not 0 <= margin < math.pi or scale <= 0:
            raise ValueError(
                f"TupletMargin: margin={margin} must be radians in [0, pi) and scale={scale} "
                "positive"
            )
        self.dim, self.margin, self.scale, self.bank = dim, margin, scale, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return mean(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        cosine = pairs.x @ pairs.keys.T
        row, column = same.nonzero(as_tuple=True)
        positive = cosine[row, column]
        slack = positive * math.cos(self.margin) + sine(positive) * math.sin(self.margin)
        return (log1p_exp(masked_lse(self.scale * cosine, other)[row] - self.scale * slack),)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class NPair(nn.Module):
    """mean over positive pairs of log(1 + sum over other classes c of mean_{n in c} exp(a.n -
    a.p)), plus l2 * mean |z|^2; RAW inner products.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. pairs="all": every pair, each
    other class weighing as one negative, whatever the
    order of rows: the expectation inside the logarithm of the paper's random choice of one pair per
    class. pairs="one" is the paper's tuple itself: per class, its first row in the batch is the
    anchor and that row's first key of the class the positive; cross-entropy of anchors with
    positives. l2 0; the paper's regulariser is .02 to .25. With keys, anchors are the batch's and
    positives and negatives the keys. No positive pairs: 0 + l2 term.
    """

    PAPER: ClassVar[str] = "Sohn 2016"
    GEOMETRY: ClassVar[str] = "inner product"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "npairs__pml (pairs='one', of unit rows); loops"
    NOTES: ClassVar[str] = (
        "All pairs by default instead of one per class (pairs='one'), so that the order of rows "
        "does not matter; l2 is 0. pytorch-metric-learning normalises."
    )
    bank: KeyBank | None
    similarity = "dot"

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        pairs: Literal["all", "one"] = "all",
        l2: float = 0.0,
    ):
        super().__init__()
        self.dim, self.pairs, self.l2, self.bank = dim, pairs, l2, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        pairs = pair_up(self.bank, z, y, z_key, normalise=False)
        penalty = self.l2 * mean(z.square().sum(1)) if self.l2 else 0.0
        if self.pairs == "one":
            anchors = _first_of_each(y)
            same, _ = Pairs(
                pairs.x[anchors], pairs.keys, y[anchors], pairs.key_labels, pairs.own[anchors]
            ).masks()
            return (
                n_pair(
                    pairs.x[anchors[same.any(1)]],
                    pairs.keys[same[same.any(1)].to(torch.uint8).argmax(1)],
                )
                + penalty
            )
        _, group, size = torch.unique(
            pairs.key_labels, return_inverse=True, return_counts=True
        )  # once: a bank is sorted for it
        return (
            mean(*by_anchor(partial(self._terms, size[group].to(pairs.x.dtype).log()), pairs))
            + penalty
        )

    def _terms(self, log_size: Tensor, pairs: Pairs) -> tuple[Tensor, ...]:
        """log_size (Q,): the logarithm of how many keys each key's class has."""
        same, other = pairs.masks()
        product = pairs.x @ pairs.keys.T
        row, column = same.nonzero(as_tuple=True)
        return (log1p_exp(masked_lse(product - log_size, other)[row] - product[row, column]),)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


def _first_of_each(y: Tensor) -> Tensor:
    """Indices of the first row of each label."""
    labels, group = torch.unique(y, return_inverse=True)
    return torch.full_like(labels, len(y)).scatter_reduce(
        0, group, torch.arange(len(y), device=y.device), "amin"
    )


def n_pair(anchors: Tensor, positives: Tensor) -> Tensor:
    """Cross-entropy of the inner products of N anchors with N positives (N, D), row i's target
    being positive i; 0 without rows.
    """
    product = anchors @ positives.T
    return mean(product.logsumexp(1) - product.diagonal()) if len(product) else product.sum()


class NTXent(nn.Module):
    """mean over ordered positive pairs of -log(e^{s_p / t} / (e^{s_p / t} + sum_n e^{s_n / t})), s
    the cosine: InfoNCE for any number of positives.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised.
    temperature t .07 (SimCLR: .1 to .5). An anchor's other positives are not in the denominator, as
    they are in SupCon. Anchors are the batch's, the rest its keys. No positive pairs: 0, connected
    to z.
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
        return mean(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        s = (pairs.x / self.temperature) @ pairs.keys.T
        row, column = same.nonzero(as_tuple=True)
        return (log1p_exp(masked_lse(s, other)[row] - s[row, column]),)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class SupCon(nn.Module):
    """mean over anchors of -(1 / |P|) sum_{p in P} [s_p / t - lse over all other keys of s / t], s
    the cosine: L_out of the paper.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised.
    temperature t .1 (released code: .07).
    without_positives: an anchor with no positive is left out of the mean ("drop") or counts as 0 in
    it ("zero", the released code). Anchors are the batch's, the rest its keys, own keys and empty
    slots left out. No positive pairs: 0, connected to z.
    Without negative pairs the other positives remain in the denominator, as in the paper and its
    release: n equal rows of one class cost log(n - 1). pytorch-metric-learning gives 0 for such a
    batch.
    """

    PAPER: ClassVar[str] = "Khosla et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "supcon__pml, supcon__supcontrast (without_positives='zero'); loops"
    NOTES: ClassVar[str] = (
        "The release counts anchors without positives as 0 (without_positives='zero')."
    )
    bank: KeyBank | None

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        temperature: float = 0.1,
        without_positives: WithoutPositives = "drop",
    ):
        super().__init__()
        if temperature <= 0:
            raise ValueError(f"SupCon: temperature={temperature} must be positive")
        self.dim, self.temperature, self.without_positives, self.bank = (
            dim,
            temperature,
            without_positives,
            None,
        )

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        of_anchor, usable = by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True))
        total = of_anchor.masked_fill(~usable, 0.0).sum()
        return total / (
            max(len(y), 1) if self.without_positives == "zero" else usable.sum().clamp(min=1)
        )

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        s = (pairs.x / self.temperature) @ pairs.keys.T
        count = same.sum(1)
        return masked_lse(s, same | other) - s.masked_fill(~same, 0.0).sum(1) / count.clamp(
            min=1
        ), count > 0

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class LiftedStructure(nn.Module):
    """mean over ordered positive pairs (a, p) of [d_ap + log sum over the negatives n of a or of p
    of e^{margin - d_n}]+^2 / 2; d = |a - k| of unit rows.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. margin 1. Against keys, the
    negatives of a are keys, and those of p, itself a key, are the batch's anchors of other classes:
    the same (B, Q) block read by columns, so that the loss of a batch with itself is the paper's.
    generalised=True: mean over anchors of [lse_p d_ap + lse_n(margin - d_an)]+ (Hermans et al.
    2017), anchors without positives left out ("drop"), counted as 0 ("zero"), or left with their
    negatives' term ("negatives", as pytorch-metric-learning has it). No positive pairs: 0,
    connected to z.
    """

    PAPER: ClassVar[str] = "Song et al. 2016; Hermans et al. 2017 (generalised)"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = (
        "lifted_structure__pml, gen_lifted__pml (without_positives='negatives'); loops"
    )
    NOTES: ClassVar[str] = "Rows are normalised, which the paper does not do."
    bank: KeyBank | None

    @known_settings
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
        self.dim, self.margin, self.generalised, self.without_positives, self.bank = (
            dim,
            margin,
            generalised,
            without_positives,
            None,
        )

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        pairs = pair_up(self.bank, z, y, z_key, normalise=True)
        if self.generalised:
            pull, push, alone = by_anchor(self._both, pairs)
            if self.without_positives == "negatives":
                return mean(
                    (
                        pull.masked_fill(alone, 0.0) + push.masked_fill(push == -torch.inf, 0.0)
                    ).relu()
                )
            return over(
                (pull + push).relu(),
                torch.ones_like(alone) if self.without_positives == "zero" else ~alone,
                "mean",
            )
        apart, push, column = by_anchor(self._positives, pairs)
        used, where = torch.unique(column, return_inverse=True)
        turned = Pairs(
            pairs.keys[used], pairs.x, pairs.key_labels[used], y, torch.zeros_like(used)
        )  # own matters to positives only
        (push_of_key,) = by_anchor(self._push, turned)
        return mean((apart + torch.logaddexp(push, push_of_key[where])).relu().square()) / 2

    def _positives(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each positive pair: its distance, its anchor's push, its key's column."""
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys)
        row, column = same.nonzero(as_tuple=True)
        return d[row, column], masked_lse(self.margin - d, other)[row], column

    def _push(self, pairs: Pairs) -> tuple[Tensor, ...]:
        return (masked_lse(self.margin - distance(pairs.x, pairs.keys), pairs.masks()[1]),)

    def _both(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys)
        return masked_lse(d, same), masked_lse(self.margin - d, other), ~same.any(1)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)
