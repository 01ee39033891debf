"""Losses that compare every pair with one threshold for all."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from likeness.toolkit.losses.common import checked, compare_with, positive
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.pairing import (
    Indices,
    Pairs,
    average,
    by_anchor,
    distance,
    mean,
    pair_up,
    sum_masked,
)
from likeness.toolkit.losses.simple import count_pairs, logistic_pairs, refuse_negative
from likeness.toolkit.vmf.rows import unit

EPS = 1e-6  # keeps the logarithms of LogRatio finite


@checked
class PairBCE(nn.Module):
    """Binary cross-entropy over all pairs, SimPLE's vanilla loss. Wen et al. 2023.

    mean softplus(-(2 t_ij - 1)(scale s_ij + bias)), where t_ij is 1 for equal labels and else 0,
    and s_ij is z_i.k_j, with nothing normalised. Without any pair the value is 0, connected to z. A
    bank costs one block of logits at a time, as SimPLE's does.

    With product="cosine" and learn_scale=True this is logistic regression on the cosine, the loss
    that Nair & Hinton 2010 train faces with (RBM in Table 1 of the SimPLE paper). Their text was
    not looked up; what was assumed is one learned scale and one learned bias.

    Args:
        num_classes: Not used.
        scale: Factor of s_ij, or where it starts; positive.
        bias: Where the bias starts.
        learn_bias: Learn the bias.
        product: "inner product", or "cosine".
        learn_scale: Learn the scale.

    Raises:
        LikenessError: scale is not positive and finite.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        scale: float = 1.0,
        bias: float = 0.0,
        learn_bias: bool = True,
        product: Literal["inner product", "cosine"] = "inner product",
        learn_scale: bool = False,
    ):
        super().__init__()
        positive(self, scale=scale)
        self.dim, self.product = dim, product
        self.bank: KeyBank | None = None
        self.scale: nn.Parameter | float = (
            nn.Parameter(torch.tensor(float(scale))) if learn_scale else scale
        )
        self.bias: nn.Parameter | float = (
            nn.Parameter(torch.tensor(float(bias))) if learn_bias else float(bias)
        )

    @property
    def similarity(self) -> str:
        """The name by which likeness.eval.metrics.similarity scores these embeddings."""
        return "cosine" if self.product == "cosine" else "dot"

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        refuse_negative(y)
        keys, key_labels, own = compare_with(self.bank, z, y, z_key)
        num_positive, num_negative = count_pairs(y, key_labels, own)
        weight = 1.0 / (num_positive + num_negative).clamp(min=1).to(z.dtype)
        if self.product == "cosine":
            z, keys = unit(z), unit(keys)
        scale = self.scale.to(z.dtype) if isinstance(self.scale, Tensor) else self.scale
        return logistic_pairs(
            scale * z, keys, self.bias, 0.0, (y, key_labels, own), (weight, weight)
        )


@checked
class Contrastive(nn.Module):
    """The contrastive loss. Hadsell et al. 2006.

    mean over positive pairs of [d - positive_margin]+ plus mean over negative pairs of
    [negative_margin - d]+, with d = |z_i - k_j| of unit rows. Both means are over the terms above
    0. No pairs: 0, connected to z.

    Args:
        num_classes: Not used.
        positive_margin, negative_margin: Distances in 0..2.
        squared: Half the squares of the hinges, as in the paper.

    Example:
        >>> loss = Contrastive(8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        positive_margin: float = 0.0,
        negative_margin: float = 1.0,
        squared: bool = False,
    ):
        super().__init__()
        self.dim, self.squared = dim, squared
        self.bank: KeyBank | None = None
        self.positive_margin, self.negative_margin = positive_margin, negative_margin

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        positive, num_positive, negative, num_negative = by_anchor(
            self._terms, pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True)
        )
        return average(positive, num_positive) + average(negative, num_negative)

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: what `hinges` gives."""
        d, margins = distance(pairs.x, pairs.keys), (self.positive_margin, self.negative_margin)
        return hinges(d, pairs.masks(), margins, squared=self.squared)


def hinges(
    d: Tensor,
    masks: tuple[Tensor, Tensor],
    margins: tuple[float, float],
    *,
    squared: bool = False,
) -> tuple[Tensor, ...]:
    """The two halves of the contrastive loss on given distances.

    Args:
        d: Distances (B, Q).
        masks: Positive and negative pairs (B, Q).
        margins: Of positive and of negative pairs.
        squared: Half the squares of the hinges.

    Returns:
        Each anchor's sum over positives and how many are above 0, and the same of negatives, (B,)
        each.
    """
    positive, negative = (d - margins[0]).relu(), (margins[1] - d).relu()
    if squared:
        positive, negative = 0.5 * positive.square(), 0.5 * negative.square()
    return *sum_masked(positive, masks[0]), *sum_masked(negative, masks[1])


@checked
class AMC(nn.Module):
    """Angular margin contrastive loss. Choi et al. 2020.

    mean over all pairs of theta^2 for equal labels and [margin - theta]+^2 for different ones,
    where theta is the angle between z_i and k_j. Cosines are kept 1e-7 within [-1, 1], so that an
    angle of exactly 0 or pi counts 4.5e-4 off and has no gradient. The paper adds it to a
    cross-entropy with weight .1. No pairs: 0.

    Args:
        num_classes: Not used.
        margin: Radians.
    """

    def __init__(self, dim: int, num_classes: int = 0, *, margin: float = 0.5):
        super().__init__()
        self.dim, self.margin = dim, margin
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        return average(
            *by_anchor(self._terms, pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True))
        )

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: its sum and how many cells count."""
        same, other = pairs.masks()
        theta = (pairs.x @ pairs.keys.T).clamp(-1 + 1e-7, 1 - 1e-7).acos()
        terms = torch.where(same, theta, (self.margin - theta).relu()).square()
        counted = same | other
        return terms.masked_fill(~counted, 0.0).sum(1), counted.sum(1)


def centred_pairs(
    bank: KeyBank | None,
    z: Tensor,
    y: Tensor,
    z_key: Tensor | None,
    indices_tuple: Indices | None = None,
    *,
    normalise: bool,
) -> tuple[Pairs, Tensor]:
    """Pair a batch with its keys, and subtract from every row the mean of its coordinates.

    Arguments are as in losses.pairing.pair_up.

    Returns:
        The pairs of centred rows, and the anchors (B, D) before they were centred.
    """
    pairs = pair_up(bank, z, y, z_key, indices_tuple, normalise=normalise)
    x, keys = pairs.x, pairs.keys
    centred = x - x.mean(1, keepdim=True)
    if keys is x:
        keys = centred
    elif normalise:  # a copy of the bank already
        keys.sub_(keys.mean(1, keepdim=True))
    else:
        keys = keys - keys.mean(1, keepdim=True)
    return pairs._replace(x=centred, keys=keys), x


def noise_to_signal(pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """The ratios Var(z_i - k_j) / Var(z_i) of pairs of centred rows. Yuan et al. 2019.

    Returns:
        The ratios (B, Q), and the masks (B, Q) of positive and of negative pairs. They leave out
        anchors without signal, whose coordinates are all equal.
    """
    signal = pairs.x.square().sum(1, keepdim=True)
    silent = signal < 1e-16  # divided by infinity instead, such a row gets no gradient
    ratio = distance(pairs.x, pairs.keys, squared=True) / signal.masked_fill(silent, torch.inf)
    same, other = pairs.masks()
    return ratio, same & ~silent, other & ~silent


@checked
class SNRContrastive(nn.Module):
    """The contrastive loss on noise-to-signal ratios. Yuan et al. 2019.

    d_ij = Var(z_i - k_j) / Var(z_i) over the dimensions of RAW embeddings, where z_i is the anchor.
    An anchor whose coordinates are all equal (summed squares about their mean below 1e-16), a zero
    row for example, has no signal: its pairs are left out. No pairs: 0, connected to z.

    Args:
        num_classes: Not used.
        positive_margin, negative_margin: Of the ratio.
        normalise: Divide rows by their norm first, as pytorch-metric-learning does.
        zero_mean: Adds zero_mean * mean_i |sum_d z_id|, the paper's regulariser.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        positive_margin: float = 0.0,
        negative_margin: float = 1.0,
        normalise: bool = False,
        zero_mean: float = 0.0,
    ):
        super().__init__()
        self.dim, self.normalise, self.zero_mean = dim, normalise, zero_mean
        self.bank: KeyBank | None = None
        self.positive_margin, self.negative_margin = positive_margin, negative_margin

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        pairs, x = centred_pairs(self.bank, z, y, z_key, indices_tuple, normalise=self.normalise)
        positive, num_positive, negative, num_negative = by_anchor(self._terms, pairs)
        value = average(positive, num_positive) + average(negative, num_negative)
        return value + self.zero_mean * mean(x.sum(1).abs()) if self.zero_mean else value

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: what `hinges` gives."""
        ratio, same, other = noise_to_signal(pairs)
        margins = self.positive_margin, self.negative_margin
        return hinges(ratio, (same, other), margins)


def log_ratio(square: Tensor, target: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The log-ratio loss of each anchor.

    mean_{i<j} (log(d_i / d_j) - log(g_i / g_j))^2. Over the n kept cells of an anchor, with u = log
    d - log g, the mean over its pairs is 2 sum (u - mean u)^2 / (n - 1): no triplets are built.

    Args:
        square: Squared distances d (A, Q).
        target: Target distances g (A, Q).
        keep: The cells that count (A, Q).

    Returns:
        The means (A,), and whether the anchor has a pair of keys (A,).
    """
    u = ((square + EPS).log() - (target + EPS).log()).masked_fill(~keep, 0.0)
    count = keep.sum(1)
    centred = (u - (u.sum(1) / count.clamp(min=1))[:, None]).masked_fill(~keep, 0.0)
    return 2.0 * centred.square().sum(1) / (count - 1).clamp(min=1), count > 1


@checked
class LogRatio(nn.Module):
    """Distances in proportion to those of continuous labels. Kim et al. 2019.

    mean over anchors a and pairs i<j of their keys of (log(d_ai / d_aj) - log(g_ai / g_aj))^2, with
    d = |z_a - k_i|^2 + 1e-6 of RAW embeddings and g = |t_a - t_i|^2 + 1e-6. Labels y are then
    rows of `targets`. Without targets |t_a - t_i|^2 is 0 for equal classes and 1 for different
    ones: defined, but this loss is made for continuous labels. Anchors with fewer than two keys are
    left out; if all are, the value is 0, connected to z.

    Args:
        num_classes: Not used.
        targets: num_classes numbers or vectors (a pose, an age), or None.
    """

    targets: Tensor | None  # (C, T)
    similarity = "euclidean"

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        targets: Sequence[float] | Sequence[Sequence[float]] | None = None,
    ):
        super().__init__()
        self.dim = dim
        self.bank: KeyBank | None = None
        self.register_buffer(
            "targets",
            None if targets is None else torch.tensor(targets).float().reshape(len(targets), -1),
        )
        if targets is not None:
            self.num_classes = len(targets)

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return average(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=False)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: what `log_ratio` gives."""
        same, other = pairs.masks()
        if self.targets is None:
            target = other.to(pairs.x.dtype)
        else:
            targets = self.targets.to(pairs.x.dtype)
            target = distance(
                targets[pairs.y], targets[pairs.key_labels.clamp(min=0)], squared=True
            )
        square = distance(pairs.x, pairs.keys, squared=True)
        return log_ratio(square, target, same | other)
