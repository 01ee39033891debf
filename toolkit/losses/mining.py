"""Which of a batch's pairs and triplets count: chosen from distances or similarities (B, Q) and the
masks of losses.pairing, without gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolkit.losses.pairing import chunks

Triplets = tuple[
    Tensor, Tensor, Tensor
]  # rows of anchors, columns of positives and of negatives, (T,) int64 each


@torch.no_grad()
def mine_batch_hard(d: Tensor, same: Tensor, other: Tensor) -> Triplets:
    """For each anchor that has both: its farthest positive and its nearest negative."""
    (a,) = (same.any(1) & other.any(1)).nonzero(as_tuple=True)
    return (
        a,
        d[a].masked_fill(~same[a], -1.0).argmax(1),
        d[a].masked_fill(~other[a], torch.inf).argmin(1),
    )


@torch.no_grad()
def mine_facenet(d: Tensor, same: Tensor, other: Tensor) -> Triplets:
    """For each positive pair: the nearest negative farther than the positive.

    Pairs without one are left out.
    """
    row, column = same.nonzero(as_tuple=True)
    chosen, found = torch.empty_like(row), torch.empty_like(row, dtype=torch.bool)
    for some in chunks(len(row), d.shape[1], d.device):
        farther = other[row[some]] & (d[row[some]] > d[row[some], column[some]][:, None])
        chosen[some], found[some] = (
            d[row[some]].masked_fill(~farther, torch.inf).argmin(1),
            farther.any(1),
        )
    return row[found], column[found], chosen[found]


@torch.no_grad()
def mine_distance_weighted(
    d: Tensor, same: Tensor, other: Tensor, dim: int, *, cutoff: float = 0.5, drop: float = 1.4
) -> Triplets:
    """For each positive pair a negative drawn with probability 1 / q(d), q the density of distances
    between random points of the unit sphere.

    log q = (dim - 2) log d + (dim - 3) / 2 log(1 - d^2 / 4); d is taken as cutoff at least;
    negatives at drop or farther are not drawn, and an anchor without a nearer one is left out.
    Draws come from torch's default generator, which a resumed run restores. Wu et al. 2017.
    """
    near = d.clamp(min=cutoff)
    log_weight = (2.0 - dim) * near.log() - (dim - 3) / 2 * (1.0 - 0.25 * near.square()).clamp(
        min=torch.finfo(d.dtype).tiny
    ).log()
    drawable = other & (near < drop)
    log_weight = log_weight.masked_fill(~drawable, -torch.inf)
    usable = drawable.any(1)
    same = same & usable[:, None]
    a, p = same.nonzero(as_tuple=True)
    if not len(a):
        return a, p, p
    weight = (
        (log_weight - log_weight.amax(1, keepdim=True)).exp().nan_to_num(1.0)
    )  # rows that are not usable are drawn from, and not used
    drawn = weight.multinomial(int(same.sum(1).max()), replacement=True)
    return a, p, drawn[a, same.cumsum(1)[a, p] - 1]


@torch.no_grad()
def mine_multi_similarity(
    s: Tensor, same: Tensor, other: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """The positive and negative pairs (B, Q) that are within epsilon of an anchor's hardest pair of
    the other kind.
    """
    hardest_positive = s.masked_fill(~same, torch.inf).amin(1, keepdim=True)
    hardest_negative = s.masked_fill(~other, -torch.inf).amax(1, keepdim=True)
    return same & (s - epsilon < hardest_negative), other & (s + epsilon > hardest_positive)
