"""Losses that weigh an anchor's pairs by their violations.

They take the log-sum-exp of an anchor's positives and of its negatives apart.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from likeness.toolkit.losses.common import checked, positive
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.mining import mine_multi_similarity
from likeness.toolkit.losses.pairing import (
    Indices,
    Pairs,
    average,
    by_anchor,
    distance,
    log1p_exp,
    masked_lse,
    mean,
    pair_up,
)


@checked
class MultiSimilarity(nn.Module):
    """Multi-similarity loss over mined pairs. Wang et al. 2019.

    mean over anchors of log(1 + sum_p e^{-alpha (s_p - base)}) / alpha + log(1 + sum_n e^{beta (s_n
    - base)}) / beta, s the cosine. An anchor without kept pairs counts as 0. No pairs: 0, connected
    to z.

    Args:
        num_classes: Not used.
        alpha: Steepness for positives, positive.
        beta: Steepness for negatives, positive.
        base: Cosine that separates both.
        epsilon: A positive is kept if it is less similar than the anchor's most similar negative +
            epsilon, a negative if it is more similar than its least similar positive - epsilon.
            None keeps all pairs.
        direction: Weight of direction regularization (DR-MS, Mohan et al. 2020), not negative: s_n
            becomes s_n - direction cos(x_n - x, x_p - x), x the anchor and p its least similar
            positive; without one, s_n stays. A negative on the positive's side of the anchor is
            pushed less, and one on the other side more. Published with .3 and base .7.

    Raises:
        LikenessError: alpha or beta are not positive.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        alpha: float = 2.0,
        beta: float = 50.0,
        base: float = 0.5,
        epsilon: float | None = 0.1,
        direction: float = 0.0,
    ):
        super().__init__()
        positive(self, alpha=alpha, beta=beta)
        self.dim = dim
        self.alpha, self.beta, self.base = alpha, beta, base
        self.epsilon, self.direction = epsilon, direction
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
        """The term of each anchor."""
        same, other = pairs.masks()
        s = pairs.x @ pairs.keys.T
        if self.epsilon is not None and pairs.mined is None:
            same, other = mine_multi_similarity(s, same, other, self.epsilon)
        pull = log1p_exp(masked_lse(-self.alpha * (s - self.base), same)) / self.alpha
        if self.direction:
            s = s - self.direction * _towards_positive(pairs, s, same)
        push = log1p_exp(masked_lse(self.beta * (s - self.base), other)) / self.beta
        return (pull + push,)


_APART = 1e-6  # rows of length 1 that are closer have no direction between them in float32


def _towards_positive(pairs: Pairs, s: Tensor, same: Tensor) -> Tensor:
    """The cosine (B, Q) between the ways from an anchor to a key and to its farthest positive.

    0, without gradient, where the anchor has no positive, or one of the ways no length.

    Args:
        pairs: Rows of length 1.
        s: Cosines (B, Q).
        same: Positives (B, Q).
    """
    farthest = s.detach().masked_fill(~same, torch.inf).argmin(1)
    way: Tensor = pairs.keys[farthest] - pairs.x
    length = torch.linalg.vector_norm(way, dim=1, keepdim=True)
    way = way / length.masked_fill(~same.any(1, keepdim=True) | (length < _APART), torch.inf)
    along = way @ pairs.keys.T - (way * pairs.x).sum(1, keepdim=True)
    d = distance(pairs.x, pairs.keys)
    cosine: Tensor = along / d.masked_fill(d < _APART, torch.inf)
    return cosine


@checked
class CirclePair(nn.Module):
    """Circle loss on pairs. Sun et al. 2020.

    log(1 + sum_p e^{-scale a_p (s_p - 1 + margin)} sum_n e^{scale a_n (s_n - margin)}), with a_p =
    [1 + margin - s_p]+, a_n = [s_n + margin]+ and no gradient to a; s is the cosine. Without a
    positive or without a negative: 0, connected to z.

    Args:
        num_classes: Not used.
        margin: .4 for retrieval, .25 for faces.
        scale: 80 for retrieval, 256 for faces, positive.
        over: "anchor": of each anchor's pairs, then the mean over anchors above 0. "batch": once,
            of all pairs of the batch (released code).

    Raises:
        LikenessError: scale is not positive.
    """

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
        positive(self, scale=scale)
        self.dim, self.margin, self.scale, self.over = dim, margin, scale, over
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        pull, push = by_anchor(
            self._terms, pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True)
        )
        if self.over == "batch":
            pull, push = pull.logsumexp(0, keepdim=True), push.logsumexp(0, keepdim=True)
        value = log1p_exp(pull + push)
        return average(value, value > 0)

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: the log-sum-exp of its positives, and of its negatives."""
        same, other = pairs.masks()
        s = pairs.x @ pairs.keys.T
        pull = -self.scale * (1 + self.margin - s.detach()).relu() * (s - 1 + self.margin)
        push = self.scale * (s.detach() + self.margin).relu() * (s - self.margin)
        return masked_lse(pull, same), masked_lse(push, other)
