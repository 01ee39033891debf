"""What all pair losses share: the pairs of a batch with its keys, safe distances, masked sums."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from likeness.toolkit.losses.common import compare_with
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.simple import refuse_negative
from likeness.toolkit.vmf.rows import once_in_full, unit

# Numbers in a block of a blockwise sum on a CPU, so that it stays in the cache; 64 times as many
# elsewhere.
BLOCK = 1 << 18


# What a miner of pytorch-metric-learning gives: anchors, positives, anchors and negatives of pairs,
# or anchors, positives and negatives of triplets, int64 rows of the batch.
Indices = tuple[Tensor, Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


class Mined(NamedTuple):
    """What a miner of pytorch-metric-learning chose.

    Args:
        positive, negative: Masks of pairs (B, Q).
        triplets: Rows of anchors, columns of positives and of negatives; None if it chose pairs.
    """

    positive: Tensor
    negative: Tensor
    triplets: tuple[Tensor, Tensor, Tensor] | None

    def rows(self, rows: slice) -> "Mined":
        """The part of some anchors."""
        triplets = self.triplets
        if triplets is not None:
            a, p, n = triplets
            here = (a >= rows.start) & (a < rows.stop)
            triplets = a[here] - rows.start, p[here], n[here]
        return Mined(self.positive[rows], self.negative[rows], triplets)


def mined_from(indices: Indices, count: int) -> Mined:
    """Turn the indices of a miner into masks (count, count), where a pair counts once.

    Args:
        indices: (anchors, positives, anchors, negatives) or (anchors, positives, negatives).
        count: The size of the batch.
    """
    first, positive, second, negative = (
        indices if len(indices) == 4 else (*indices[:2], indices[0], indices[2])
    )
    masks = torch.zeros(2, count, count, dtype=torch.bool, device=first.device)
    masks[0][first, positive] = True
    masks[1][second, negative] = True
    return Mined(masks[0], masks[1], None if len(indices) == 4 else indices)


class Pairs(NamedTuple):
    """Anchors and the keys that they are compared with.

    Args:
        x: Anchors (B, D), with gradient.
        keys: Keys (Q, D); x itself without z_key.
        y: Labels of the anchors (B,), int64.
        key_labels: Labels of the keys (Q,), int64, -1 for an empty slot.
        own: The column of each row's self-pair (B,), int64.
        mined: The pairs that a miner chose, or None for all.
    """

    x: Tensor
    keys: Tensor
    y: Tensor
    key_labels: Tensor
    own: Tensor
    mined: Mined | None = None

    def masks(self) -> tuple[Tensor, Tensor]:
        """Mark the positive and the negative pairs.

        Returns:
            Two masks (B, Q): pairs of equal labels without self-pairs, and pairs of different
            labels without empty slots; those of a miner, where it was asked.
        """
        if self.mined is not None:
            return self.mined.positive, self.mined.negative
        same = self.y[:, None] == self.key_labels[None, :]
        other = ~same & (self.key_labels >= 0)[None, :]
        same[torch.arange(len(self.y), device=self.y.device), self.own] = False
        return same, other


def pair_up(
    bank: KeyBank | None,
    z: Tensor,
    y: Tensor,
    z_key: Tensor | None,
    indices_tuple: Indices | None = None,
    *,
    normalise: bool,
) -> Pairs:
    """Pair a batch with its keys (losses.common.against).

    Args:
        bank: The loss's bank of keys, or None.
        z: Embeddings (B, D).
        y: Labels (B,).
        z_key: Embeddings (B, D) of the momentum encoder, or None.
        indices_tuple: What a miner chose of the batch, or None for all pairs.
        normalise: Divide anchors and keys by their norms.

    Raises:
        LikenessError: A label is negative.
    """
    refuse_negative(y)
    keys, key_labels, own = compare_with(bank, z, y, z_key)
    x = unit(z) if normalise else z
    mined = None if indices_tuple is None else mined_from(indices_tuple, len(z))
    return Pairs(
        x, x if keys is z else unit(keys) if normalise else keys, y, key_labels, own, mined
    )


def by_anchor(
    terms: Callable[[Pairs], tuple[Tensor, ...]], pairs: Pairs, *, again: bool = True
) -> tuple[Tensor, ...]:
    """Compute the terms of all pairs from blocks of anchors, each of 4 BLOCK pairs.

    With more than one block, what a block's gradient needs is computed again in the backward pass,
    so that no (B, Q) tensor outlives its block. Against a bank the memory is that of one block (a
    dozen of its tensors), at the price of one more product.

    Args:
        terms: Makes vectors, in the order of anchors, from the pairs of some anchors.
        pairs: All pairs.
        again: False keeps what the gradient needs instead: for terms that draw at random, or whose
            Functions keep little and take their time.

    Returns:
        The vectors that `terms` makes, those of the blocks joined end to end.
    """
    blocks = chunks(len(pairs.x), len(pairs.keys) // 4, pairs.x.device)
    if len(blocks) <= 1:
        return terms(pairs)
    made = []
    for rows in blocks:
        mined = None if pairs.mined is None else pairs.mined.rows(rows)
        block = Pairs(
            pairs.x[rows], pairs.keys, pairs.y[rows], pairs.key_labels, pairs.own[rows], mined
        )
        if again:
            made.append(checkpoint(terms, block, use_reentrant=False, preserve_rng_state=False))
        else:
            made.append(terms(block))
    return tuple(torch.cat(parts) for parts in zip(*made, strict=True))


class _Distance(torch.autograd.Function):
    """Euclidean distances (A, B) of rows, or their squares, by one product.

    Pairs so close that the product would cancel are subtracted instead. Equal rows get exactly 0
    and the zero subgradient; the gradient needs no (A, B, D) tensor. alike: a and b are one tensor.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, squared: bool, alike: bool) -> Tensor:
        # vector_norm makes no copy of a bank, as a square would.
        size_a = torch.linalg.vector_norm(a, dim=1).square()
        size_b = size_a if alike else torch.linalg.vector_norm(b, dim=1).square()
        size = size_a[:, None] + size_b
        square = torch.addmm(size, a, b.T, alpha=-2.0)
        close = square < 1e-2 * size
        if alike:  # a row and itself are known, and as many as rows
            square.fill_diagonal_(0.0)
            close.fill_diagonal_(False)
        row, column = close.nonzero(as_tuple=True)
        for some in chunks(len(row), a.shape[1], a.device):
            square[row[some], column[some]] = (a[row[some]] - b[column[some]]).square().sum(1)
        distance = square.clamp_(min=0.0) if squared else square.clamp_(min=0.0).sqrt_()
        ctx.squared, ctx.alike = squared, alike
        ctx.save_for_backward(a, b, distance, row, column)
        return distance

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        a, b, distance, row, column = ctx.saved_tensors
        weight = 2.0 * grad if ctx.squared else torch.where(distance > 0, grad / distance, 0.0)
        if ctx.alike:
            weight.fill_diagonal_(0.0)
        close = weight[row, column]
        weight[row, column] = 0.0
        if ctx.alike:  # one product gives the gradients of both sides
            weight = weight + weight.T
        grad_a: Tensor | None = None
        grad_b: Tensor | None = None
        if ctx.needs_input_grad[0]:
            grad_a = torch.addmm(weight.sum(1)[:, None] * a, weight, b, alpha=-1.0)
        if ctx.needs_input_grad[1] and not ctx.alike:  # it is as large as a bank
            grad_b = torch.addmm(weight.sum(0)[:, None] * b, weight.T, a, alpha=-1.0)
        for some in chunks(len(row), a.shape[1], a.device):
            apart = (a[row[some]] - b[column[some]]) * close[some, None]
            if grad_a is not None:
                grad_a.index_add_(0, row[some], apart)
            other = grad_a if ctx.alike else grad_b
            if other is not None:
                other.index_add_(0, column[some], apart, alpha=-1.0)
        return grad_a, grad_b, None, None


def chunks(count: int, width: int, device: torch.device) -> list[slice]:
    """Cut `count` rows of the given width into slices of about BLOCK numbers each."""
    step = max(1, BLOCK * (1 if device.type == "cpu" else 64) // max(width, 1))
    return [slice(start, start + step) for start in range(0, count, step)]


def distance(a: Tensor, b: Tensor, *, squared: bool = False) -> Tensor:
    """Euclidean distances of rows, with a finite gradient everywhere (zero between equal rows).

    Args:
        a: (A, D).
        b: (B, D).
        squared: Give their squares.

    Returns:
        (A, B).

    Example:
        >>> distance(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[5., 0.]])
    """
    value: Tensor = _Distance.apply(a, b, squared, a is b)  # type: ignore[no-untyped-call]
    return value


def masked_lse(x: Tensor, mask: Tensor, dim: int = 1) -> Tensor:
    """log sum exp over the masked cells; -inf, without gradient, where there are none."""
    return x.masked_fill(~mask, -torch.inf).logsumexp(dim)


def log1p_exp(x: Tensor) -> Tensor:
    """log(1 + e^x), exact in float64 too.

    torch's own softplus is off by 2e-9 at its threshold of 20.
    """
    return nn.functional.softplus(x, threshold=50)


def mean(x: Tensor) -> Tensor:
    """The mean of a vector; 0, still connected to what made it, of an empty one."""
    return x.sum() / max(x.numel(), 1)


def sum_masked(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over the masked cells of each row of (B, Q), and how many of them are above 0."""
    x = x.masked_fill(~mask, 0.0)
    return x.sum(1), (x > 0).sum(1)


def average(total: Tensor, count: Tensor) -> Tensor:
    """The mean of all cells, given sums and how many count; 0, still connected, if none does."""
    return total.sum() / count.sum().clamp(min=1)
