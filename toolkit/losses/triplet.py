"""Losses of an anchor, a positive and a negative, and the mining that picks them."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from toolkit.losses.common import KeyBank, Rates, checked, unit
from toolkit.losses.pair import chunks, distance, learned, log1p_exp, pair_up

Mining = Literal["all", "hard", "semihard", "facenet", "batch_hard", "distance_weighted"]
Reduction = Literal["nonzero", "mean", "sum"]
Triplets = tuple[Tensor, Tensor, Tensor]  # rows of anchors, columns of positives and of negatives, (T,) int64 each


class _TripletSum(torch.autograd.Function):
    """Sum of [d_p - d_n + margin]+ (or softplus) over all triplets of the masks or the hard or semi-hard among them; how many are above 0; how many there are.

    Triplets are taken a block of positive pairs at a time; the sum's gradient, one (B, Q) tensor, is taken with it.
    """

    @staticmethod
    def forward(ctx: Any, d: Tensor, same: Tensor, other: Tensor, margin: float, kind: str, smooth: bool) -> Triplets:
        row, column = same.nonzero(as_tuple=True)
        slope = torch.zeros_like(d)
        total, above, count = d.new_zeros(()), row.new_zeros(()), row.new_zeros(())  # counts in int64: exact
        for some in chunks(len(row), d.shape[1], d.device):
            anchor, positive = row[some], column[some]
            gap = d[anchor, positive][:, None] - d[anchor]  # (m, Q): above 0 where the negative is closer
            mined = other[anchor]
            if kind == "hard":
                mined &= gap >= 0
            elif kind == "semihard":
                mined &= (gap < 0) & (gap >= -margin)
            violation = gap + margin
            term = (log1p_exp(violation) if smooth else violation.relu()).masked_fill_(~mined, 0.0)
            weight = (violation.sigmoid() if smooth else (violation > 0).to(d.dtype)).masked_fill_(~mined, 0.0)
            slope.index_add_(0, anchor, weight, alpha=-1.0)
            slope[anchor, positive] += weight.sum(1)  # each pair occurs once
            total, above, count = total + term.sum(), above + (term > 0).sum(), count + mined.sum()
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(above, count)
        return total, above, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return grad * ctx.saved_tensors[0], None, None, None, None, None


def triplet_loss(d: Tensor, triplets: Triplets, *, margin: float, smooth: bool = False, reduction: Reduction = "nonzero") -> Tensor:
    """The triplet loss of given distances (B, Q) at given triplets."""
    a, p, n = triplets
    violation = d[a, p] - d[a, n] + margin
    term = log1p_exp(violation) if smooth else violation.relu()
    return _reduced(term.sum(), (term > 0).sum(), term.numel(), reduction)


def _reduced(total: Tensor, above: Tensor, count: Tensor | int, reduction: Reduction) -> Tensor:
    if reduction == "sum":
        return total
    return total / (above.clamp(min=1) if reduction == "nonzero" else torch.as_tensor(count).clamp(min=1))


@torch.no_grad()
def mine_batch_hard(d: Tensor, same: Tensor, other: Tensor) -> Triplets:
    """For each anchor that has both: its farthest positive and its nearest negative."""
    (a,) = (same.any(1) & other.any(1)).nonzero(as_tuple=True)
    return a, d[a].masked_fill(~same[a], -1.0).argmax(1), d[a].masked_fill(~other[a], torch.inf).argmin(1)


@torch.no_grad()
def mine_facenet(d: Tensor, same: Tensor, other: Tensor) -> Triplets:
    """For each positive pair: the nearest negative farther than the positive. Pairs without one are left out."""
    row, column = same.nonzero(as_tuple=True)
    chosen, found = torch.empty_like(row), torch.empty_like(row, dtype=torch.bool)
    for some in chunks(len(row), d.shape[1], d.device):
        farther = other[row[some]] & (d[row[some]] > d[row[some], column[some]][:, None])
        chosen[some], found[some] = d[row[some]].masked_fill(~farther, torch.inf).argmin(1), farther.any(1)
    return row[found], column[found], chosen[found]


@torch.no_grad()
def mine_distance_weighted(d: Tensor, same: Tensor, other: Tensor, dim: int, *, cutoff: float = 0.5, drop: float = 1.4) -> Triplets:
    """For each positive pair a negative drawn with probability 1 / q(d), q the density of distances between random points of the unit sphere.

    log q = (dim - 2) log d + (dim - 3) / 2 log(1 - d^2 / 4); d is taken as cutoff at least; negatives at drop or farther are not drawn, and an
    anchor without a nearer one is left out. Draws come from torch's default generator, which a resumed run restores. Wu et al. 2017.
    """
    near = d.clamp(min=cutoff)
    log_weight = (2.0 - dim) * near.log() - (dim - 3) / 2 * (1.0 - 0.25 * near.square()).clamp(min=torch.finfo(d.dtype).tiny).log()
    drawable = other & (near < drop)
    log_weight = log_weight.masked_fill(~drawable, -torch.inf)
    usable = drawable.any(1)
    same = same & usable[:, None]
    a, p = same.nonzero(as_tuple=True)
    if not len(a):
        return a, p, p
    weight = (log_weight - log_weight.amax(1, keepdim=True)).exp().nan_to_num(1.0)  # rows that are not usable are drawn from, and not used
    drawn = weight.multinomial(int(same.sum(1).max()), replacement=True)
    return a, p, drawn[a, same.cumsum(1)[a, p] - 1]


class Triplet(nn.Module):
    """[d(a, p) - d(a, n) + margin]+ over mined triplets, or softplus of the same if smooth; d = |a - k| of unit rows, or its square.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. Anchors are the batch's; positives and negatives its keys. margin .2.
    mining: "all" triplets; "hard": d(a, n) <= d(a, p); "semihard": d(a, p) < d(a, n) <= d(a, p) + margin; "facenet": per positive pair the nearest
    negative beyond the positive; "batch_hard": per anchor its farthest positive and nearest negative; "distance_weighted": mine_distance_weighted.
    reduction: mean over the triplets above 0 ("nonzero"), over those mined ("mean"), or "sum" (FaceNet). No triplets: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Weinberger & Saul 2009; Schroff et al. 2015; Hermans et al. 2017"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "triplet_{all,soft,hard,semihard,batchhard,distance_weighted}__pml; loops"
    NOTES: ClassVar[str] = (
        "FaceNet squares the distances (squared=True) and sums; batch-hard's paper averages all terms (reduction='mean') and may not normalise."
    )
    bank: KeyBank | None

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 0.2,
        mining: Mining = "all",
        smooth: bool = False,
        squared: bool = False,
        reduction: Reduction = "nonzero",
    ):
        super().__init__()
        self.dim, self.margin, self.mining, self.smooth, self.squared, self.reduction = dim, margin, mining, smooth, squared, reduction
        self.bank = None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        d = distance(x, keys, squared=self.squared)
        if self.mining == "batch_hard":
            triplets = mine_batch_hard(d, same, other)
        elif self.mining == "facenet":
            triplets = mine_facenet(d, same, other)
        elif self.mining == "distance_weighted":
            triplets = mine_distance_weighted(d.detach().sqrt() if self.squared else d, same, other, self.dim)
        else:
            total, above, count = cast(Triplets, _TripletSum.apply(d, same, other, self.margin, self.mining, self.smooth))  # type: ignore[no-untyped-call]
            return _reduced(total, above, count, self.reduction)
        return triplet_loss(d, triplets, margin=self.margin, smooth=self.smooth, reduction=self.reduction)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class MarginLoss(nn.Module):
    """([d(a, p) - beta + margin]+ + [beta - d(a, n) + margin]+) summed over triplets, divided by the number of terms above 0; d = |a - k| of unit rows.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar. margin .2; beta 1.2, the boundary, learned unless learn_beta=False, one for all or
    per_class (of the anchor's class). nu adds nu * beta (global), or nu times the triplets' beta over the same divisor (per class).
    mining: "all" triplets (in closed form: no triplet is built) or "distance_weighted", as in the paper. No triplets: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Wu et al. 2017"
    GEOMETRY: ClassVar[str] = "euclidean"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "pair"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "margin__pml; loops over triplets"
    NOTES: ClassVar[str] = "All triplets by default; the paper draws negatives by distance (mining='distance_weighted') and gives beta its own rate."
    bank: KeyBank | None

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        learn_beta: bool = True,
        per_class: bool = False,
        nu: float = 0.0,
        mining: Literal["all", "distance_weighted"] = "all",
    ):
        super().__init__()
        if per_class:
            if num_classes < 1:
                raise ValueError(f"MarginLoss: per_class=True needs num_classes, but it is {num_classes}")
            self.num_classes = num_classes
        self.dim, self.margin, self.per_class, self.nu, self.mining, self.bank = dim, margin, per_class, nu, mining, None
        start = torch.full((num_classes,), float(beta)) if per_class else torch.tensor(float(beta))
        self.beta: nn.Parameter | float = nn.Parameter(start, requires_grad=learn_beta) if learn_beta or per_class else float(beta)

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        x, keys, same, other, *_ = pair_up(self.bank, z, y, z_key, normalise=True)
        d = distance(x, keys)
        beta = torch.as_tensor(self.beta, dtype=z.dtype, device=z.device)
        of_row = beta[y] if self.per_class else beta.expand(len(y))
        if self.mining == "distance_weighted":
            a, p, n = mine_distance_weighted(d, same, other, self.dim)
            positive, negative = (d[a, p] - of_row[a] + self.margin).relu(), (of_row[a] - d[a, n] + self.margin).relu()
            total, above, boundaries = positive.sum() + negative.sum(), (positive > 0).sum() + (negative > 0).sum(), of_row[a].sum()
        else:  # a positive pair is in as many triplets as its anchor has negatives, and the other way round
            positive = (d - of_row[:, None] + self.margin).relu().masked_fill(~same, 0.0)
            negative = (of_row[:, None] - d + self.margin).relu().masked_fill(~other, 0.0)
            of_positive, of_negative = other.sum(1), same.sum(1)
            total = (of_positive * positive.sum(1) + of_negative * negative.sum(1)).sum()
            above = (of_positive * (positive > 0).sum(1) + of_negative * (negative > 0).sum(1)).sum()
            boundaries = (of_positive * of_negative * of_row).sum()
        value = total / above.clamp(min=1)
        return value + self.nu * (boundaries / above.clamp(min=1) if self.per_class else beta) if self.nu else value

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)


class _AngularSum(torch.autograd.Function):
    """sum over positive pairs (a, p) of log(1 + sum_n exp(scale (s_an + s_pn) - pull_ap)), a block of pairs at a time, its gradient taken with it.

    s_pn are rows of s itself if keys is None, else products of keys and negatives, neither of which takes a gradient.
    """

    @staticmethod
    def forward(ctx: Any, s: Tensor, pull: Tensor, keys: Tensor | None, negatives: Tensor, other: Tensor, row: Tensor, column: Tensor, scale: float) -> Tensor:
        total, slope, slope_of_pull = s.new_zeros(()), torch.zeros_like(s), torch.empty_like(pull)
        for some in chunks(len(row), s.shape[1] // 16, s.device):  # enough rows for a product worth its while
            a, p = row[some], column[some]
            to_positive = s[p] if keys is None else keys[p] @ negatives.T
            exponent = to_positive.add_(s[a]).mul_(scale).masked_fill_(~other[a], -torch.inf)
            together = exponent.logsumexp(1)
            above = together - pull[some]
            total += log1p_exp(above).sum()
            slope_of_pull[some] = -above.sigmoid()
            share = exponent.sub_(together.clamp(min=torch.finfo(s.dtype).min)[:, None]).exp_().mul_(scale * above.sigmoid()[:, None])
            slope.index_add_(0, a, share)
            if keys is None:
                slope.index_add_(0, p, share)
        ctx.save_for_backward(slope, slope_of_pull)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        slope, slope_of_pull = ctx.saved_tensors
        return grad * slope, grad * slope_of_pull, None, None, None, None, None, None


class Angular(nn.Module):
    """mean over positive pairs of log(1 + sum_n exp(4 tan^2(alpha) (a + p).n - 2 (1 + tan^2(alpha)) a.p)), rows normalised.

    z (B, dim) raw, y (B,) int64, z_key (B, dim) or None -> scalar: anchors a are the batch's, p and n its keys. alpha: 40 degrees, in radians
    (the paper: 36 to 55 degrees). negatives="raw" leaves n alone unnormalised, as pytorch-metric-learning's code has it.
    Work is positive pairs times keys, taken a block at a time. No positive pairs: 0, connected to z.
    """

    PAPER: ClassVar[str] = "Wang et al. 2017"
    GEOMETRY: ClassVar[str] = "angular"
    PROXY: ClassVar[bool] = False
    COMPARES: ClassVar[str] = "triplet"
    NORMALISED: ClassVar[str] = "z"
    VERIFIED: ClassVar[str] = "angular__pml (negatives='raw'); loops"
    NOTES: ClassVar[str] = "pytorch-metric-learning normalises a and p but not n (negatives='raw'). The paper's N-pair + angular is the sum of the two losses."
    bank: KeyBank | None

    def __init__(self, dim: int, num_classes: int = 0, *, alpha: float = math.radians(40.0), negatives: Literal["unit", "raw"] = "unit"):
        super().__init__()
        if not 0 < alpha < math.pi / 2:
            raise ValueError(f"Angular: alpha={alpha} must be radians in (0, pi/2)")
        self.dim, self.square_tan, self.negatives, self.bank = dim, math.tan(alpha) ** 2, negatives, None

    @checked
    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        raw = pair_up(self.bank, z, y, z_key, normalise=False)
        same, other = raw.same, raw.other
        x = unit(raw.x)
        keys = x if raw.keys is raw.x else unit(raw.keys)
        negatives = raw.keys if self.negatives == "raw" else keys
        row, column = same.nonzero(as_tuple=True)
        pull = 2 * (1 + self.square_tan) * (x[row] * keys[column]).sum(1)
        of_keys = None if keys is x else keys
        total = _AngularSum.apply(x @ negatives.T, pull, of_keys, negatives.detach(), other, row, column, 4 * self.square_tan)  # type: ignore[no-untyped-call]
        return cast(Tensor, total) / max(len(row), 1)

    def param_groups(self, optim: Rates) -> list[dict[str, Any]]:
        return learned(self, optim)
