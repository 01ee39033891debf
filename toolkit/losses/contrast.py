"""Losses that compare each positive of an anchor with all its negatives at once (tuples).

The anchors are the batch's, positives and negatives its keys (losses.common.against).
"""

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from likeness.toolkit.losses.common import checked, positive, radians
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.margin import sine
from likeness.toolkit.losses.pairing import (
    Indices,
    Pairs,
    by_anchor,
    distance,
    log1p_exp,
    masked_lse,
    mean,
    pair_up,
)

WithoutPositives = Literal["drop", "zero"]


@checked
class TupletMargin(nn.Module):
    """Tuplet margin loss. Yu & Tao 2019.

    mean over positive pairs of log(1 + sum_n exp(scale (cos theta_n - cos(theta_p - margin)))),
    over the anchor's negatives n. Both sides are normalised. No positive pairs: 0, connected to z.

    Args:
        num_classes: Not used.
        margin: Radians in [0, pi).
        scale: Factor of the cosine, positive.

    Raises:
        LikenessError: A setting is outside its range.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = math.radians(5.73),
        scale: float = 64.0,
    ):
        super().__init__()
        radians(self, margin=margin)
        positive(self, scale=scale)
        self.dim, self.margin, self.scale = dim, margin, scale
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        return mean(
            *by_anchor(self._terms, pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True))
        )

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """The term of each positive pair."""
        same, other = pairs.masks()
        cosine = pairs.x @ pairs.keys.T
        row, column = same.nonzero(as_tuple=True)
        positive = cosine[row, column]
        slack = positive * math.cos(self.margin) + sine(positive) * math.sin(self.margin)
        return (log1p_exp(masked_lse(self.scale * cosine, other)[row] - self.scale * slack),)


@checked
class NPair(nn.Module):
    """N-pair loss on RAW inner products. Sohn 2016.

    mean over positive pairs of log(1 + sum over other classes c of mean_{n in c} exp(a.n - a.p)),
    plus l2 * mean |z|^2. No positive pairs: 0 + the l2 term.

    Args:
        num_classes: Not used.
        pairs: "all" takes every pair, where each other class weighs as one negative, whatever the
            order of rows: the expectation inside the logarithm of the paper's random choice of one
            pair per class. "one" is the paper's tuple itself: per class, its first row in the batch
            is the anchor and that row's first key of the class the positive; cross-entropy of
            anchors with positives.
        l2: Weight of the regulariser; the paper's is .02 to .25.
    """

    similarity = "dot"

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        pairs: Literal["all", "one"] = "all",
        l2: float = 0.0,
    ):
        super().__init__()
        self.dim, self.pairs, self.l2 = dim, pairs, l2
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        pairs = pair_up(self.bank, z, y, z_key, normalise=False)
        penalty = self.l2 * mean(z.square().sum(1)) if self.l2 else 0.0
        if self.pairs == "one":
            anchors = _first_of_each(y)
            same, _ = Pairs(
                pairs.x[anchors], pairs.keys, y[anchors], pairs.key_labels, pairs.own[anchors]
            ).masks()
            usable = same.any(1)
            first = same[usable].to(torch.uint8).argmax(1)
            return n_pair(pairs.x[anchors[usable]], pairs.keys[first]) + penalty
        # Once for all blocks, since the whole bank is sorted for it.
        _, group, size = torch.unique(pairs.key_labels, return_inverse=True, return_counts=True)
        terms = partial(self._terms, size[group].to(pairs.x.dtype).log())
        return mean(*by_anchor(terms, pairs)) + penalty

    def _terms(self, log_size: Tensor, pairs: Pairs) -> tuple[Tensor, ...]:
        """The term of each positive pair.

        Args:
            log_size: (Q,), the logarithm of how many keys each key's class has.
            pairs: Some anchors and all keys.
        """
        same, other = pairs.masks()
        product = pairs.x @ pairs.keys.T
        row, column = same.nonzero(as_tuple=True)
        return (log1p_exp(masked_lse(product - log_size, other)[row] - product[row, column]),)


def _first_of_each(y: Tensor) -> Tensor:
    """Indices of the first row of each label in y (B,)."""
    labels, group = torch.unique(y, return_inverse=True)
    return torch.full_like(labels, len(y)).scatter_reduce(
        0, group, torch.arange(len(y), device=y.device), "amin"
    )


def n_pair(anchors: Tensor, positives: Tensor) -> Tensor:
    """Cross-entropy of the inner products of N anchors with N positives (N, D).

    Row i's target is positive i. 0 without rows.
    """
    product = anchors @ positives.T
    return mean(product.logsumexp(1) - product.diagonal()) if len(product) else product.sum()


@checked
class NTXent(nn.Module):
    """InfoNCE for any number of positives. van den Oord et al. 2018; Chen et al. 2020.

    mean over ordered positive pairs of -log(e^{s_p / t} / (e^{s_p / t} + sum_n e^{s_n / t})), s the
    cosine. An anchor's other positives are not in the denominator, as they are in SupCon. No
    positive pairs: 0, connected to z.

    Args:
        num_classes: Not used.
        temperature: t, positive (SimCLR: .1 to .5).

    Raises:
        LikenessError: temperature is not positive.
    """

    def __init__(self, dim: int, num_classes: int = 0, *, temperature: float = 0.07):
        super().__init__()
        positive(self, temperature=temperature)
        self.dim, self.temperature = dim, temperature
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        return mean(
            *by_anchor(self._terms, pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True))
        )

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """The term of each positive pair."""
        same, other = pairs.masks()
        s = (pairs.x / self.temperature) @ pairs.keys.T
        row, column = same.nonzero(as_tuple=True)
        return (log1p_exp(masked_lse(s, other)[row] - s[row, column]),)


@checked
class SupCon(nn.Module):
    """Supervised contrastive loss, L_out of the paper. Khosla et al. 2020.

    mean over anchors of -(1 / |P|) sum_{p in P} [s_p / t - lse over all other keys of s / t], s the
    cosine. Self-pairs and empty slots are left out. No positive pairs: 0, connected to z. Without
    negative pairs the other positives remain in the denominator, as in the paper and its release: n
    equal rows of one class cost log(n - 1). pytorch-metric-learning gives 0 for such a batch.

    Args:
        num_classes: Not used.
        temperature: t, positive (released code: .07).
        without_positives: An anchor without positives is left out of the mean ("drop") or counts as
            0 in it ("zero", the released code).

    Raises:
        LikenessError: temperature is not positive.

    Example:
        >>> loss = SupCon(8, temperature=0.07)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        temperature: float = 0.1,
        without_positives: WithoutPositives = "drop",
    ):
        super().__init__()
        positive(self, temperature=temperature)
        self.dim = dim
        self.temperature, self.without_positives = temperature, without_positives
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        of_anchor, usable = by_anchor(
            self._terms, pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True)
        )
        total = of_anchor.masked_fill(~usable, 0.0).sum()
        return total / (
            max(len(y), 1) if self.without_positives == "zero" else usable.sum().clamp(min=1)
        )

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: its mean over positives, and whether it has any."""
        same, other = pairs.masks()
        s = (pairs.x / self.temperature) @ pairs.keys.T
        count = same.sum(1)
        return masked_lse(s, same | other) - s.masked_fill(~same, 0.0).sum(1) / count.clamp(
            min=1
        ), count > 0


@checked
class LiftedStructure(nn.Module):
    """Lifted structured loss. Song et al. 2016.

    mean over ordered positive pairs (a, p) of [d_ap + log sum over the negatives n of a or of p of
    e^{margin - d_n}]+^2 / 2, with d = |a - k| of unit rows. Against keys, the negatives of a are
    keys, and those of p, itself a key, are the batch's anchors of other classes: the same (B, Q)
    block read by columns, so that the loss of a batch with itself is the paper's. No positive
    pairs: 0, connected to z.

    Args:
        num_classes: Not used.
        margin: A distance.
        generalised: Take the mean over anchors of [lse_p d_ap + lse_n(margin - d_an)]+ instead
            (Hermans et al. 2017). A sum over nothing counts as 0, as in pytorch-metric-learning.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 1.0,
        generalised: bool = False,
    ):
        super().__init__()
        self.dim, self.margin, self.generalised = dim, margin, generalised
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        pairs = pair_up(self.bank, z, y, z_key, normalise=True)
        if self.generalised:
            return mean(*by_anchor(self._both, pairs))
        apart, push, column, push_of_row = by_anchor(self._positives, pairs)
        push_of_key = push_of_row[column] if pairs.keys is pairs.x else self._turned(pairs, column)
        return mean((apart + torch.logaddexp(push, push_of_key)).relu().square()) / 2

    def _turned(self, pairs: Pairs, column: Tensor) -> Tensor:
        """The push of the keys in these columns, from the anchors of other classes."""
        used, where = torch.unique(column, return_inverse=True)
        # `own` matters to positives only, and these pairs are read for their negatives.
        own = torch.zeros_like(used)
        turned = Pairs(pairs.keys[used], pairs.x, pairs.key_labels[used], pairs.y, own)
        (push_of_key,) = by_anchor(self._push, turned)
        return push_of_key[where]

    def _positives(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each positive pair: its distance, its anchor's push, its key's column; of each anchor:
        its push.
        """
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys)
        row, column = same.nonzero(as_tuple=True)
        push = masked_lse(self.margin - d, other)
        return d[row, column], push[row], column, push

    def _push(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: log sum over its negatives of e^{margin - d}."""
        return (masked_lse(self.margin - distance(pairs.x, pairs.keys), pairs.masks()[1]),)

    def _both(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """The generalised term of each anchor."""
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys)
        sums = masked_lse(d, same), masked_lse(self.margin - d, other)
        pull, push = (value.masked_fill(value == -torch.inf, 0.0) for value in sums)
        return ((pull + push).relu(),)
