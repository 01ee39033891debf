"""Losses of an anchor, a positive and a negative, and how these are picked.

Anchors are the batch's, positives and negatives its keys (losses.common.against).
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from likeness.eval.errors import LikenessError
from likeness.toolkit.losses.angular import angular_sum
from likeness.toolkit.losses.common import checked, positive
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.mining import (
    Triplets,
    mine_batch_hard,
    mine_distance_weighted,
    mine_easy_positive,
    mine_facenet,
)
from likeness.toolkit.losses.pair import centred_pairs, noise_to_signal
from likeness.toolkit.losses.pairing import (
    Indices,
    Mined,
    Pairs,
    average,
    by_anchor,
    chunks,
    distance,
    log1p_exp,
    mean,
    pair_up,
    sum_masked,
)
from likeness.toolkit.vmf.rows import once_in_full, unit

Mining = Literal["all", "hard", "semihard", "facenet", "batch_hard", "distance_weighted"]


class _TripletSum(torch.autograd.Function):
    """Sum of [d_p - d_n + margin]+ (or softplus) over all triplets of the masks, or the mined ones.

    Also how many terms are above 0. kind is "all", "hard" or "semihard".
    Triplets are taken a block of positive pairs at a time; the sum's gradient, one (B, Q) tensor,
    is taken with it.
    """

    @staticmethod
    def forward(
        ctx: Any, d: Tensor, same: Tensor, other: Tensor, margin: float, kind: str, smooth: bool
    ) -> tuple[Tensor, Tensor]:
        row, column = same.nonzero(as_tuple=True)
        slope = torch.zeros_like(d)
        total = d.new_zeros(())
        above = row.new_zeros(())  # int64: exact
        for some in chunks(len(row), d.shape[1], d.device):
            anchor, positive = row[some], column[some]
            # The gap (m, Q) is above 0 where the negative is closer.
            gap = d[anchor, positive][:, None] - d[anchor]
            mined = other[anchor]
            if kind == "hard":
                mined &= gap >= 0
            elif kind == "semihard":
                mined &= (gap < 0) & (gap >= -margin)
            violation, left_out = gap.add_(margin), ~mined
            term = log1p_exp(violation) if smooth else violation.relu()
            counted = term.masked_fill_(left_out, 0.0) > 0
            weight = counted.to(d.dtype)
            if smooth:
                weight = violation.sigmoid_().masked_fill_(left_out, 0.0)
            slope.index_add_(0, anchor, weight, alpha=-1.0)
            slope[anchor, positive] += weight.sum(1)  # each pair occurs once
            total, above = total + term.sum(), above + counted.sum()
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(above)
        return total, above

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        return grad * ctx.saved_tensors[0], None, None, None, None, None


def _terms_of(
    d: Tensor, triplets: Triplets, margin: float, *, smooth: bool = False
) -> tuple[Tensor, ...]:
    """The sum over the given triplets, and how many are above 0, (1,) each."""
    a, p, n = triplets
    violation = d[a, p] - d[a, n] + margin
    term = log1p_exp(violation) if smooth else violation.relu()
    return term.sum()[None], (term > 0).sum()[None]


def _sums(
    d: Tensor, same: Tensor, other: Tensor, margin: float, kind: str, *, smooth: bool = False
) -> tuple[Tensor, ...]:
    """What _TripletSum gives, (1,) each."""
    settings = (margin, kind, smooth)
    total, above = _TripletSum.apply(d, same, other, *settings)  # type: ignore[no-untyped-call]
    return total[None], above[None]


def _sums_of_mined(
    d: Tensor, mined: Mined, margin: float, *, smooth: bool = False
) -> tuple[Tensor, ...]:
    """The sums over the triplets that a miner chose, or all that its pairs form."""
    if mined.triplets is not None:
        a, p, n = mined.triplets
        counts = mined.positive[a, p] & mined.negative[a, n]
        return _terms_of(d, (a[counts], p[counts], n[counts]), margin, smooth=smooth)
    return _sums(d, mined.positive, mined.negative, margin, "all", smooth=smooth)


@checked
class Triplet(nn.Module):
    """Triplet loss. Weinberger & Saul 2009; Schroff et al. 2015; Hermans et al. 2017.

    [d(a, p) - d(a, n) + margin]+, the mean of what is above 0 among mined triplets, with d = |a -
    k| of unit rows. No triplets: 0, connected to z.

    Args:
        num_classes: Not used.
        margin: A distance, or its square with squared=True.
        mining: "all": all triplets. "hard": d(a, n) <= d(a, p). "semihard": d(a, p) < d(a, n) <=
            d(a, p) + margin. "facenet": per positive pair the nearest negative beyond the positive.
            "batch_hard": per anchor its farthest positive and nearest negative.
            "distance_weighted": see mine_distance_weighted.
        smooth: Softplus in place of the hinge.
        squared: Squared distances.

    Example:
        >>> loss = Triplet(8, mining="batch_hard")
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 0.2,
        mining: Mining = "all",
        smooth: bool = False,
        squared: bool = False,
    ):
        super().__init__()
        self.dim, self.margin, self.mining = dim, margin, mining
        self.smooth, self.squared = smooth, squared
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        pairs = pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True)
        return average(*by_anchor(self._terms, pairs, again=False))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """A block's triplets: their sum and how many are above 0, (1,) each."""
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys, squared=self.squared)
        if pairs.mined is not None:
            return _sums_of_mined(d, pairs.mined, self.margin, smooth=self.smooth)
        if self.mining == "batch_hard":
            triplets = mine_batch_hard(d, same, other)
        elif self.mining == "facenet":
            triplets = mine_facenet(d, same, other)
        elif self.mining == "distance_weighted":
            triplets = mine_distance_weighted(
                d.detach().sqrt() if self.squared else d, same, other, self.dim
            )
        else:
            return _sums(d, same, other, self.margin, self.mining, smooth=self.smooth)
        return _terms_of(d, triplets, self.margin, smooth=self.smooth)


@checked
class SNRTriplet(nn.Module):
    """The triplet loss on noise-to-signal ratios. Yuan et al. 2019.

    [d(a, p) - d(a, n) + margin]+ over mined triplets, with d(a, k) = Var(a - k) / Var(a) over the
    dimensions of RAW embeddings. Triplets of an anchor whose coordinates are all equal are left
    out, as in SNRContrastive. No triplets: 0, connected to z.

    Args:
        num_classes: Not used.
        margin: Of the ratio. The default is Triplet's: the paper's own was not looked up.
        mining: "all", "hard", "semihard" or "batch_hard", as in Triplet.
        normalise: Divide rows by their norm first.
        zero_mean: Adds zero_mean * mean_i |sum_d z_id|, the paper's regulariser.

    Example:
        >>> loss = SNRTriplet(8, mining="semihard")
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        margin: float = 0.2,
        mining: Literal["all", "hard", "semihard", "batch_hard"] = "all",
        normalise: bool = False,
        zero_mean: float = 0.0,
    ):
        super().__init__()
        self.dim, self.margin, self.mining = dim, margin, mining
        self.normalise, self.zero_mean = normalise, zero_mean
        self.bank: KeyBank | None = None

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        pairs, x = centred_pairs(self.bank, z, y, z_key, indices_tuple, normalise=self.normalise)
        value = average(*by_anchor(self._terms, pairs, again=False))
        return value + self.zero_mean * mean(x.sum(1).abs()) if self.zero_mean else value

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """A block's triplets: their sum and how many are above 0, (1,) each."""
        ratio, same, other = noise_to_signal(pairs)
        if pairs.mined is not None:
            return _sums_of_mined(ratio, Mined(same, other, pairs.mined.triplets), self.margin)
        if self.mining != "batch_hard":
            return _sums(ratio, same, other, self.margin, self.mining)
        return _terms_of(ratio, mine_batch_hard(ratio, same, other), self.margin)


@checked
class EasyPositive(nn.Module):
    """Each anchor with its most similar positive: EPSHN and EPHN. Xuan et al. 2020.

    mean over anchors a of -log(e^{s(a, p) / temperature} / (e^{s(a, p) / temperature} + e^{s(a, n)
    / temperature})), with s the cosine. p is the anchor's easy positive, the most similar item of
    its class, so that a class need not become a single cluster. An anchor without a positive or
    without a negative to take is left out. No anchors: 0, connected to z.

    Args:
        num_classes: Not used.
        negatives: "semihard" (EPSHN) takes as n the most similar item of another class that is not
            more similar than p. "hard" (EPHN) takes the most similar of all.
        temperature: Positive; .1 in the release.

    Raises:
        LikenessError: temperature is not positive and finite.

    Example:
        >>> loss = EasyPositive(8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).shape
        torch.Size([])
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        negatives: Literal["semihard", "hard"] = "semihard",
        temperature: float = 0.1,
    ):
        super().__init__()
        positive(self, temperature=temperature)
        self.dim, self.negatives, self.temperature = dim, negatives, temperature
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        pairs = pair_up(self.bank, z, y, z_key, normalise=True)
        return average(*by_anchor(self._terms, pairs, again=False))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """A block's anchors: the sum of their terms, and how many count, (1,) each."""
        same, other = pairs.masks()
        s = pairs.x @ pairs.keys.T
        a, p, n = mine_easy_positive(s, same, other, semihard=self.negatives == "semihard")
        terms = log1p_exp((s[a, n] - s[a, p]) / self.temperature)
        return terms.sum()[None], a.new_full((1,), len(a))


@checked
class MarginLoss(nn.Module):
    """Margin-based loss with a boundary between positives and negatives. Wu et al. 2017.

    ([d(a, p) - beta + margin]+ + [beta - d(a, n) + margin]+) summed over triplets, divided by the
    number of terms above 0, with d = |a - k| of unit rows. No triplets: 0, connected to z.

    Args:
        num_classes: Number of classes, needed by per_class only.
        margin: A distance.
        beta: The boundary, or where it starts.
        learn_beta: Learn the boundary.
        per_class: One boundary for each class, that of the anchor's class.
        nu: Adds nu * beta (one boundary), or nu times the triplets' beta over the same divisor (per
            class).
        mining: "all" triplets, in closed form: none is built; or "distance_weighted", as in the
            paper.
    """

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
            self.num_classes = num_classes
        self.dim = dim
        self.margin, self.per_class, self.nu = margin, per_class, nu
        self.mining = mining
        self.bank: KeyBank | None = None
        start = torch.full((num_classes,), float(beta)) if per_class else torch.tensor(float(beta))
        self.beta: nn.Parameter | float = float(beta)
        if learn_beta or per_class:
            self.beta = nn.Parameter(start, requires_grad=learn_beta)

    def forward(
        self,
        z: Tensor,
        y: Tensor,
        z_key: Tensor | None = None,
        indices_tuple: Indices | None = None,
    ) -> Tensor:
        return self.of_pairs(pair_up(self.bank, z, y, z_key, indices_tuple, normalise=True))

    def of_pairs(self, pairs: Pairs) -> Tensor:
        """The value, given the pairs of a batch with its keys, of norm 1: a scalar."""
        total, above, boundaries = (
            made.sum() for made in by_anchor(self._terms, pairs, again=self.mining == "all")
        )
        value = total / above.clamp(min=1)
        if not self.nu:
            return value
        return value + self.nu * (
            boundaries / above.clamp(min=1)
            if self.per_class
            else torch.as_tensor(self.beta, dtype=pairs.x.dtype, device=pairs.x.device)
        )

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Sums over triplets: both hinges, how many hinges are above 0, beta."""
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys)
        beta = torch.as_tensor(self.beta, dtype=d.dtype, device=d.device)
        of_row = beta[pairs.y] if self.per_class else beta.expand(len(d))
        triplets = None if pairs.mined is None else pairs.mined.triplets
        if self.mining == "distance_weighted" and pairs.mined is None:
            triplets = mine_distance_weighted(d, same, other, self.dim)
        if triplets is not None:
            a, p, n = triplets
            positive = (d[a, p] - of_row[a] + self.margin).relu()
            negative = (of_row[a] - d[a, n] + self.margin).relu()
            total, above = (
                positive.sum() + negative.sum(),
                (positive > 0).sum() + (negative > 0).sum(),
            )
            return total[None], above[None], of_row[a].sum()[None]
        # A positive pair is in as many triplets as its anchor has negatives, and the other way
        # round.
        positive, num_positive = sum_masked((d - of_row[:, None] + self.margin).relu(), same)
        negative, num_negative = sum_masked((of_row[:, None] - d + self.margin).relu(), other)
        of_positive, of_negative = other.sum(1), same.sum(1)
        return (
            of_positive * positive + of_negative * negative,
            of_positive * num_positive + of_negative * num_negative,
            of_positive * of_negative * of_row,
        )


@checked
class Angular(nn.Module):
    """Angular loss of triplets. Wang et al. 2017.

    mean over positive pairs of log(1 + sum_n exp(4 tan^2(alpha) (a + p).n - 2 (1 + tan^2(alpha))
    a.p)), with normalised rows. No positive pairs: 0, connected to z. Work is two products (B, Q) x
    (Q, P) over the P keys of the batch's classes, and against a bank these P keys times all Q, once
    each: P Q dim multiplications, beside SupCon's 2 B Q dim. Memory is two (B, Q) tensors and a
    block (losses.angular).

    Args:
        num_classes: Not used.
        alpha: Radians in (0, pi/2); the paper takes 36 to 55 degrees.
        negatives: "raw" leaves n alone unnormalised, as pytorch-metric-learning's code has it.

    Raises:
        LikenessError: alpha is outside (0, pi/2).
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        alpha: float = math.radians(40.0),
        negatives: Literal["unit", "raw"] = "unit",
    ):
        super().__init__()
        if not 0 < alpha < math.pi / 2:
            raise LikenessError(f"Angular: alpha={alpha} must be radians in (0, pi/2)")
        self.dim = dim
        self.square_tan, self.negatives = math.tan(alpha) ** 2, negatives
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        raw = pair_up(self.bank, z, y, z_key, normalise=False)
        x = unit(z)
        keys = x if raw.keys is z else unit(raw.keys)
        negatives = raw.keys if self.negatives == "raw" else keys
        of_keys = None if keys is x else keys
        total, count = angular_sum(
            x, of_keys, negatives, raw, 4 * self.square_tan, 2 * (1 + self.square_tan)
        )
        return total / count.clamp(min=1)
