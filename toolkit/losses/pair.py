"""Losses that hold every pair against a universal threshold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from toolkit.losses.common import KeyBank, Rates, against, checked, known_settings
from toolkit.losses.pairing import (
    Pairs,
    Reduction,
    average,
    by_anchor,
    distance,
    learned,
    mean,
    pair_up,
    summed,
)
from toolkit.losses.simple import count_pairs, logistic_pairs, refuse_negative


class PairBCE(nn.Module):
    """Binary cross-entropy of scale * z_i.k_j + bias over all pairs: mean softplus(-(2 t_ij -
    1)(scale z_i.k_j + bias)), t_ij = 1 for equal labels.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; nothing is normalised. bias
    starts at 0 and is learned unless learn_bias=False; scale 1. Without any pair the value is 0,
    connected to z. A bank costs one block of logits at a time, as SimPLE's.
    """

    PAPER: ClassVar[str] = "Wen et al. 2023 (the vanilla loss of SimPLE)"
    GEOMETRY: ClassVar[str] = "inner product"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "bce_pair__own; torch's binary cross-entropy over the pairs"
    NOTES: ClassVar[str] = ""
    bank: KeyBank | None
    similarity = "dot"

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        scale: float = 1.0,
        bias: float = 0.0,
        learn_bias: bool = True,
    ):
        super().__init__()
        if scale <= 0:
            raise ValueError(f"PairBCE: scale={scale} must be positive")
        self.dim, self.scale, self.bank = dim, scale, None
        self.bias: nn.Parameter | float = (
            nn.Parameter(torch.tensor(float(bias))) if learn_bias else float(bias)
        )

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        refuse_negative(y)
        keys, key_labels, own = against(self.bank, z, y, z_key)
        num_positive, num_negative = count_pairs(y, key_labels, own)
        weight = 1.0 / (num_positive + num_negative).clamp(min=1).to(z.dtype)
        return logistic_pairs(
            self.scale * z, keys, self.bias, 0.0, (y, key_labels, own), (weight, weight)
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class Contrastive(nn.Module):
    """mean over positive pairs of [d - positive_margin]+ plus mean over negative pairs of
    [negative_margin - d]+; d = |z_i - k_j| of unit rows.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. Margins 0 and 1 are distances
    (0..2). squared=True: half the squares, as in the paper. reduction="nonzero" averages the terms
    above 0, positive and negative apart (pytorch-metric-learning); "mean" averages all. No pairs:
    0, connected to z.
    """

    PAPER: ClassVar[str] = "Hadsell et al. 2006"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "contrastive__pml; loops"
    NOTES: ClassVar[str] = (
        "The paper squares the hinges and normalises nothing (squared=True gives the squares)."
    )
    bank: KeyBank | None

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        positive_margin: float = 0.0,
        negative_margin: float = 1.0,
        squared: bool = False,
        reduction: Reduction = "nonzero",
    ):
        super().__init__()
        self.dim, self.squared, self.reduction, self.bank = dim, squared, reduction, None
        self.positive_margin, self.negative_margin = positive_margin, negative_margin

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        positive, num_positive, negative, num_negative = by_anchor(
            self._terms, pair_up(self.bank, z, y, z_key, normalise=True)
        )
        return average(positive, num_positive) + average(negative, num_negative)

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        return hinges(
            distance(pairs.x, pairs.keys),
            pairs.masks(),
            (self.positive_margin, self.negative_margin),
            self.squared,
            self.reduction,
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


def hinges(
    d: Tensor,
    masks: tuple[Tensor, Tensor],
    margins: tuple[float, float],
    squared: bool,
    reduction: Reduction,
) -> tuple[Tensor, ...]:
    """The two halves of the contrastive loss on given distances (B, Q): each anchor's sum over
    positives, their number, and the same of negatives.
    """
    positive, negative = (d - margins[0]).relu(), (margins[1] - d).relu()
    if squared:
        positive, negative = 0.5 * positive.square(), 0.5 * negative.square()
    return *summed(positive, masks[0], reduction), *summed(negative, masks[1], reduction)


class AMC(nn.Module):
    """mean over all pairs of theta^2 for equal labels and [margin - theta]+^2 for different ones;
    theta the angle between z_i and k_j.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar; both sides normalised by the
    angle. margin .5 radians. Cosines are held 1e-7 within [-1, 1], so an angle of exactly 0 or pi
    counts 4.5e-4 off and has no gradient. The paper adds it to a cross-entropy with weight .1. No
    pairs: 0.
    """

    PAPER: ClassVar[str] = "Choi et al. 2020"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "amc_pair__own; loops"
    NOTES: ClassVar[str] = ""
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, margin: float = 0.5):
        super().__init__()
        self.dim, self.margin, self.bank = dim, margin, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return average(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        theta = (pairs.x @ pairs.keys.T).clamp(-1 + 1e-7, 1 - 1e-7).acos()
        return summed(
            torch.where(same, theta, (self.margin - theta).relu()).square(), same | other, "mean"
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class SNRContrastive(nn.Module):
    """The contrastive loss with d_ij = Var(z_i - k_j) / Var(z_i), noise to signal over the
    dimensions of RAW embeddings (z_i is the anchor).

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. Margins 0 and 1; mean over the
    terms above 0, positive and negative apart. normalise=True divides rows by their norm first, as
    pytorch-metric-learning does. zero_mean adds zero_mean * mean_i |sum_d z_id|, the paper's
    regulariser. An anchor whose coordinates are all equal (summed squares about their mean below
    1e-16), a zero row for one, has no signal: its pairs are left out.
    No pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Yuan et al. 2019"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "snr_contrastive__pml (normalise=True); loops"
    NOTES: ClassVar[str] = (
        "pytorch-metric-learning normalises the embeddings (normalise=True); the paper does not."
    )
    bank: KeyBank | None

    @known_settings
    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        positive_margin: float = 0.0,
        negative_margin: float = 1.0,
        normalise: bool = False,
        zero_mean: float = 0.0,
        reduction: Reduction = "nonzero",
    ):
        super().__init__()
        self.dim, self.normalise, self.zero_mean, self.reduction, self.bank = (
            dim,
            normalise,
            zero_mean,
            reduction,
            None,
        )
        self.positive_margin, self.negative_margin = positive_margin, negative_margin

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, *rest = pair_up(self.bank, z, y, z_key, normalise=self.normalise)
        centred = x - x.mean(1, keepdim=True)
        if keys is x:
            keys = centred
        elif self.normalise:  # a copy of the bank already
            keys.sub_(keys.mean(1, keepdim=True))
        else:
            keys = keys - keys.mean(1, keepdim=True)
        pairs = Pairs(centred, keys, *rest)
        positive, num_positive, negative, num_negative = by_anchor(self._terms, pairs)
        value = average(positive, num_positive) + average(negative, num_negative)
        return value + self.zero_mean * mean(x.sum(1).abs()) if self.zero_mean else value

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        signal = pairs.x.square().sum(1, keepdim=True)
        silent = signal < 1e-16  # divided by infinity instead, such a row gets no gradient
        ratio = distance(pairs.x, pairs.keys, squared=True) / signal.masked_fill(silent, torch.inf)
        same, other = pairs.masks()
        return hinges(
            ratio,
            (same & ~silent, other & ~silent),
            (self.positive_margin, self.negative_margin),
            False,
            self.reduction,
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


def log_ratio(
    square: Tensor, target: Tensor, keep: Tensor, eps: float = 1e-6, target_eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """Each anchor's mean_{i<j} (log(d_i / d_j) - log(g_i / g_j))^2 on squared distances d and
    target distances g (A, Q); whether it has a pair of keys.

    Over the n kept cells of an anchor, with u = log d - log g, the mean over its pairs is 2 sum (u
    - mean u)^2 / (n - 1): no triplets are built.
    """
    u = ((square + eps).log() - (target + target_eps).log()).masked_fill(~keep, 0.0)
    count = keep.sum(1)
    centred = (u - (u.sum(1) / count.clamp(min=1))[:, None]).masked_fill(~keep, 0.0)
    return 2.0 * centred.square().sum(1) / (count - 1).clamp(min=1), count > 1


class LogRatio(nn.Module):
    """mean over anchors a and pairs i<j of their keys of (log(d_ai / d_aj) - log(g_ai / g_aj))^2:
    distances in proportion to those of continuous labels.

    d = |z_a - k_i|^2 + 1e-6 of RAW embeddings; g = |t_a - t_i|^2 + target_eps, where y (B,) int64
    are rows of targets, num_classes numbers or vectors (a pose, an age). Without targets g is 0 for
    equal classes and 1 for different ones: defined, but this loss is made for continuous labels. z
    (B, dim) raw, z_key (B, dim) or None -> scalar. Anchors with fewer than two keys are left out;
    if all are, the value is 0, connected to z.
    """

    PAPER: ClassVar[str] = "Kim et al. 2019"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "nothing"
    VERIFIED: ClassVar[str] = "log_ratio__own (its one anchor); loops"
    NOTES: ClassVar[str] = (
        "Every row is an anchor; the paper takes one anchor per batch with its nearest neighbours."
    )
    bank: KeyBank | None
    targets: Tensor | None  # (C, T)
    similarity = "euclidean"

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        targets: Sequence[float] | Sequence[Sequence[float]] | None = None,
        eps: float = 1e-6,
        target_eps: float = 1e-6,
    ):
        super().__init__()
        self.dim, self.eps, self.target_eps, self.bank = dim, eps, target_eps, None
        self.register_buffer(
            "targets",
            None if targets is None else torch.tensor(targets).float().reshape(len(targets), -1),
        )
        if targets is not None:
            self.num_classes = len(targets)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return average(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=False)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        same, other = pairs.masks()
        if self.targets is None:
            target = other.to(pairs.x.dtype)
        else:
            targets = self.targets.to(pairs.x.dtype)
            target = distance(
                targets[pairs.y], targets[pairs.key_labels.clamp(min=0)], squared=True
            )
        return log_ratio(
            distance(pairs.x, pairs.keys, squared=True),
            target,
            same | other,
            self.eps,
            self.target_eps,
        )

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)
