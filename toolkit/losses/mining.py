"""Choose which of a batch's pairs and triplets count.

They are chosen from distances or similarities (B, Q) and the masks of losses.pairing, without
gradient.
"""

import torch
from torch import Tensor

from likeness.toolkit.losses.pairing import chunks

# Rows of anchors, columns of positives and of negatives, (T,) int64 each.
Triplets = tuple[Tensor, Tensor, Tensor]


@torch.no_grad()
def mine_batch_hard(d: Tensor, same: Tensor, other: Tensor) -> Triplets:
    """Take, for each anchor that has both, its farthest positive and its nearest negative.

    Args:
        d: Distances (B, Q).
        same: Positive pairs (B, Q).
        other: Negative pairs (B, Q).

    Returns:
        Rows of anchors, columns of positives and of negatives.
    """
    (a,) = (same.any(1) & other.any(1)).nonzero(as_tuple=True)
    farthest = d[a].masked_fill(~same[a], -1.0).argmax(1)
    return a, farthest, d[a].masked_fill(~other[a], torch.inf).argmin(1)


@torch.no_grad()
def mine_easy_positive(s: Tensor, same: Tensor, other: Tensor, *, semihard: bool) -> Triplets:
    """Take each anchor's most similar positive, and its most similar negative.

    Args:
        s: Similarities (B, Q).
        same: Positive pairs (B, Q).
        other: Negative pairs (B, Q).
        semihard: Of the negatives, only those that are not more similar than that positive.

    Returns:
        Rows of the anchors that have both, columns of positives and of negatives.
    """
    easiest = s.masked_fill(~same, -torch.inf).amax(1, keepdim=True)
    if semihard:
        other = other & (s <= easiest)
    (a,) = (same.any(1) & other.any(1)).nonzero(as_tuple=True)
    easy = s[a].masked_fill(~same[a], -torch.inf).argmax(1)
    return a, easy, s[a].masked_fill(~other[a], -torch.inf).argmax(1)


@torch.no_grad()
def mine_facenet(d: Tensor, same: Tensor, other: Tensor) -> Triplets:
    """Take, for each positive pair, the nearest negative that is farther than the positive.

    Pairs without one are left out. Arguments and result are as in mine_batch_hard.
    """
    row, column = same.nonzero(as_tuple=True)
    chosen, usable = torch.empty_like(row), torch.empty_like(row, dtype=torch.bool)
    for some in chunks(len(row), d.shape[1], d.device):
        farther = other[row[some]] & (d[row[some]] > d[row[some], column[some]][:, None])
        chosen[some] = d[row[some]].masked_fill(~farther, torch.inf).argmin(1)
        usable[some] = farther.any(1)
    return row[usable], column[usable], chosen[usable]


def log_density_of_distances(d: Tensor, dim: int) -> Tensor:
    """The logarithm, up to a constant, of the density q of distances between random unit vectors.

    log q = (dim - 2) log d + (dim - 3) / 2 log(1 - d^2 / 4). Wu et al. 2017.

    Args:
        d: Distances above 0, of any shape.
        dim: Dimension of the vectors.
    """
    height = (1.0 - 0.25 * d.square()).clamp(min=torch.finfo(d.dtype).tiny)
    return (dim - 2.0) * d.log() + (dim - 3) / 2 * height.log()


@torch.no_grad()
def mine_distance_weighted(
    d: Tensor, same: Tensor, other: Tensor, dim: int, *, cutoff: float = 0.5, drop: float = 1.4
) -> Triplets:
    """Draw a negative for each positive pair, about evenly over distances. Wu et al. 2017.

    The probability is in proportion to 1 / q(d), see `log_density_of_distances`. Draws come from
    torch's default generator, which a resumed run restores.

    Args:
        d: Distances of unit rows (B, Q).
        same: Positive pairs (B, Q).
        other: Negative pairs (B, Q).
        dim: Dimension of the embeddings.
        cutoff: Smaller distances count as this one.
        drop: Negatives at this distance or farther are not drawn, and an anchor without a nearer
            one is left out.

    Returns:
        Rows of anchors, columns of positives and of negatives.
    """
    near = d.clamp(min=cutoff)
    log_weight = -log_density_of_distances(near, dim)
    drawable = other & (near < drop)
    log_weight = log_weight.masked_fill(~drawable, -torch.inf)
    usable = drawable.any(1)
    same = same & usable[:, None]
    a, p = same.nonzero(as_tuple=True)
    if not len(a):
        return a, p, p
    # Rows that are not usable are drawn from as well, and the draws are not used.
    weight = (log_weight - log_weight.amax(1, keepdim=True)).exp().nan_to_num(1.0)
    drawn = weight.multinomial(int(same.sum(1).max()), replacement=True)
    return a, p, drawn[a, same.cumsum(1)[a, p] - 1]


@torch.no_grad()
def mine_multi_similarity(
    s: Tensor, same: Tensor, other: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Keep the pairs that are within epsilon of an anchor's hardest pair of the other kind.

    Args:
        s: Similarities (B, Q).
        same: Positive pairs (B, Q).
        other: Negative pairs (B, Q).
        epsilon: Of the similarity.

    Returns:
        The kept positive and the kept negative pairs (B, Q).
    """
    hardest_positive = s.masked_fill(~same, torch.inf).amin(1, keepdim=True)
    hardest_negative = s.masked_fill(~other, -torch.inf).amax(1, keepdim=True)
    return same & (s - epsilon < hardest_negative), other & (s + epsilon > hardest_positive)
