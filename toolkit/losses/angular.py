"""The sum of the angular loss over all its triplets by matrix products."""

from typing import Any, cast

import torch
from torch import Tensor

from likeness.toolkit.losses.pairing import Pairs, chunks, log1p_exp
from likeness.toolkit.vmf.rows import once_in_full


class _AngularSum(torch.autograd.Function):
    """Sum over positive pairs of log(1 + sum_n exp(scale (a + p).n - pull a.p)), and their number.

    The exponential of a sum is a product: with E_an = exp(scale a.n) of the negatives, the inner
    sums of all pairs of some classes are one matrix product of rows of E, and so are their
    gradients. Rows are sorted by class, and each positive's row of E is made once, a block of
    positives at a time. keys is None where x are the keys themselves. keys take no gradient, nor do
    the negatives beside keys.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        keys: Tensor | None,
        negatives: Tensor,
        pairs: Pairs,
        scale: float,
        pull: float,
    ) -> tuple[Tensor, Tensor]:
        labels, order = pairs.key_labels, pairs.y.argsort(stable=True)
        a, y, own = x.detach()[order], pairs.y[order], pairs.own[order]
        column = order if keys is None else torch.isin(labels, y).nonzero()[:, 0]
        column = column[labels[column].argsort(stable=True)]
        ahead, shift = _exponentials(a, y, negatives, labels, scale)
        info = torch.finfo(x.dtype)
        least = negatives.shape[0] * info.tiny / info.eps
        total, count = x.new_zeros(()), column.new_zeros(())
        slope, grad_a = torch.zeros_like(ahead), torch.zeros_like(a)
        grad_n = torch.zeros_like(negatives) if ctx.needs_input_grad[2] else None
        # An eighth of the width: enough rows for a product worth its while.
        for some in chunks(len(column), len(negatives) // 8, x.device):
            p_own, p_label = column[some], labels[column[some]]
            rows = _range_of(y, p_label)
            p = a[some] if keys is None else keys[p_own]
            if keys is None:
                of_p, p_shift = ahead[some], shift[some]
            else:
                of_p, p_shift = _exponentials(p, p_label, negatives, labels, scale)
            same = (y[rows, None] == p_label) & (own[rows, None] != p_own)
            sums = ahead[rows] @ of_p.T
            together = sums.log() + (shift[rows, None] + p_shift)
            # Below `least` the product may have lost terms that count: such pairs are few, and
            # their exponents are added before exp is taken.
            lost = same & (sums < least) & (ahead[rows].amax(1) > 0)[:, None]
            i, j = lost.nonzero(as_tuple=True)
            for few in chunks(len(i), len(negatives), x.device):
                exponent = _exponents(a[rows][i[few]], y[rows][i[few]], negatives, labels, scale)
                exponent.add_(scale * p[j[few]] @ negatives.T)
                together[i[few], j[few]] = exponent.logsumexp(1)
            above = together - pull * (a[rows] @ p.T)
            total += log1p_exp(above).masked_fill_(~same, 0.0).sum()
            count += same.sum()
            steep = above.sigmoid().masked_fill_(~same, 0.0)
            grad_a[rows] -= pull * steep @ p
            weight = torch.where(sums < least, 0.0, steep / sums)
            slope[rows] += weight @ of_p
            if keys is None:
                grad_a[some] -= pull * steep.T @ a[rows]
                slope[some] += weight.T @ ahead[rows]
            for few in chunks(len(i), len(negatives), x.device):
                exponent = _exponents(a[rows][i[few]], y[rows][i[few]], negatives, labels, scale)
                exponent.add_(scale * p[j[few]] @ negatives.T)
                exponent.sub_(together[i[few], j[few]][:, None])
                share = exponent.exp_().mul_(scale * steep[i[few], j[few]][:, None])
                grad_a.index_add_(0, rows.start + i[few], share @ negatives)
                if keys is None:
                    grad_a.index_add_(0, some.start + j[few], share @ negatives)
                if grad_n is not None:
                    grad_n.addmm_(share.T, a[rows][i[few]] + p[j[few]])
        slope.mul_(ahead).mul_(scale)
        grad_a.addmm_(slope, negatives)
        if grad_n is not None:
            grad_n.addmm_(slope.T, a)
        ctx.save_for_backward(torch.empty_like(grad_a).index_copy_(0, order, grad_a), grad_n)
        ctx.mark_non_differentiable(count)
        return total, count

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_n = ctx.saved_tensors
        return grad * grad_x, None, None if grad_n is None else grad * grad_n, None, None, None


def _range_of(y: Tensor, labels: Tensor) -> slice:
    """Rows of the sorted labels y (B,) whose label is among the sorted `labels` (N,)."""
    first = torch.searchsorted(y, labels[:1])
    last = torch.searchsorted(y, labels[-1:], right=True)
    return slice(int(first), int(last))


def _exponents(x: Tensor, y: Tensor, negatives: Tensor, labels: Tensor, scale: float) -> Tensor:
    """scale x.n (N, Q) of the keys of other classes, -inf elsewhere."""
    return ((scale * x) @ negatives.T).masked_fill_(
        (y[:, None] == labels) | (labels < 0), -torch.inf
    )


def _exponentials(
    x: Tensor, y: Tensor, negatives: Tensor, labels: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """exp(scale x.n - shift) (N, Q), 0 where n is no negative, and the shift (N,).

    The shift is each row's largest exponent, 0 without negatives.
    """
    exponent = _exponents(x, y, negatives, labels, scale)
    shift = exponent.amax(1)
    shift = torch.where(shift > -torch.inf, shift, 0.0)
    return exponent.sub_(shift[:, None]).exp_(), shift


def angular_sum(
    x: Tensor, keys: Tensor | None, negatives: Tensor, pairs: Pairs, scale: float, pull: float
) -> tuple[Tensor, Tensor]:
    """Sum the angular loss over all positive pairs.

    Args:
        x: Anchors (B, D).
        keys: (Q, D), or None where they are x.
        negatives: The keys as negatives (Q, D).
        pairs: Their labels.
        scale: Factor of (a + p).n.
        pull: Factor of a.p.

    Returns:
        The sum, and how many positive pairs there are: two scalars.
    """
    sums = _AngularSum.apply(  # type: ignore[no-untyped-call]
        x, keys, negatives, pairs, scale, pull
    )
    return cast(tuple[Tensor, Tensor], sums)
