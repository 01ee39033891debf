"""Losses on an anchor's keys as a ranked list.

Average precision made differentiable, and the weighted violations of a list's margin.
"""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from likeness.toolkit.losses.common import checked, positive
from likeness.toolkit.losses.contract import KeyBank
from likeness.toolkit.losses.pairing import (
    Pairs,
    average,
    by_anchor,
    chunks,
    distance,
    mean,
    pair_up,
)
from likeness.toolkit.vmf.rows import once_in_full


@checked
class FastAP(nn.Module):
    """Average precision from histograms of squared distances of unit rows. Cakir et al. 2019.

    1 - mean over anchors of (1 / N+) sum_b h+_b H+_b / H_b. h+ counts an anchor's positives per
    bin, and H+ and H count positives and all keys up to it. A distance is shared between the two
    nearest of num_bins + 1 centres over [0, 4]. Anchors are the batch's, ranked are its keys.
    Anchors without positives are left out; if all are, the value is 0, connected to z.

    Args:
        num_classes: Not used.
        num_bins: 1 or more.

    Raises:
        LikenessError: num_bins is below 1.
    """

    def __init__(self, dim: int, num_classes: int = 0, *, num_bins: int = 10):
        super().__init__()
        positive(self, num_bins=num_bins)
        self.dim, self.num_bins = dim, num_bins
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        value, usable = by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True))
        return average(value.masked_fill(~usable, 0.0), usable)

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """Of each anchor: 1 - its average precision, and whether it has a positive."""
        same, other = pairs.masks()
        position = (2.0 - 2.0 * pairs.x @ pairs.keys.T).clamp(0.0, 4.0) * (self.num_bins / 4.0)
        positive = self._histogram(position, same)
        of_all = (positive + self._histogram(position, other)).cumsum(1)
        precision = torch.where(
            of_all > 0, positive.cumsum(1) / torch.where(of_all > 0, of_all, 1.0), 0.0
        )
        count = same.sum(1)
        return 1.0 - (positive * precision).sum(1) / count.clamp(min=1), count > 0

    def _histogram(self, position: Tensor, mask: Tensor) -> Tensor:
        """Count the masked cells in bins.

        Each goes to the centres below and above it in proportion.

        Args:
            position: Distances (B, Q) in units of a bin.
            mask: (B, Q).

        Returns:
            (B, num_bins + 1).
        """
        # NaN is no index: it becomes 0 here and stays in share.
        below = position.detach().floor().nan_to_num(0.0).clamp(max=self.num_bins - 1)
        share = (position - below).masked_fill(~mask, 0.0)
        rest = mask.to(position.dtype) - share
        empty = position.new_zeros(len(position), self.num_bins + 1)
        return empty.scatter_add(1, below.long(), rest).scatter_add(1, below.long() + 1, share)


class _SmoothPrecision(torch.autograd.Function):
    """sum over positive pairs (i, j) of weight_i R(j, P_i) / R(j, all).

    R(j, S) = 1 + sum_{k in S, k != j} sigmoid((s_ik - s_ij) / t). Pairs are taken a block at a
    time, and with the sum its gradient, one (B, Q) tensor. j's own cell gives sigmoid(0) = .5 and
    no gradient, hence .5 + the sum over all of S.
    """

    @staticmethod
    def forward(
        ctx: Any, s: Tensor, same: Tensor, other: Tensor, weight: Tensor, temperature: float
    ) -> Tensor:
        row, column = same.nonzero(as_tuple=True)
        total, slope = s.new_zeros(()), torch.zeros_like(s)
        # What is in neither mask is not counted and gets no gradient.
        scaled = (s / temperature).masked_fill_(~(same | other), -torch.inf)
        positive = same.to(s.dtype)
        for some in chunks(len(row), s.shape[1], s.device):
            i, j = row[some], column[some]
            ahead = scaled[i].sub_(scaled[i, j][:, None]).sigmoid_()
            among, rank = 0.5 + (ahead * positive[i]).sum(1), 0.5 + ahead.sum(1)
            by_positive = weight[i] / rank
            total += (by_positive * among).sum()
            if not ctx.needs_input_grad[0]:
                continue
            by_all = by_positive * among / rank / -temperature
            steep = torch.addcmul(
                by_all[:, None], positive[i], by_positive[:, None], value=1.0 / temperature
            ).mul_(ahead.addcmul_(ahead, ahead, value=-1.0))
            slope.index_add_(0, i, steep)
            slope[i, j] -= steep.sum(1)  # each pair occurs once
        ctx.save_for_backward(slope)
        return total

    @staticmethod
    @once_in_full
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad * ctx.saved_tensors[0], None, None, None, None


@checked
class SmoothAP(nn.Module):
    """Average precision with sigmoids in place of steps. Brown et al. 2020.

    1 - mean over anchors of (1 / |P|) sum_{j in P} R(j, P) / R(j, all), with R(j, S) = 1 + sum_{k
    in S, k != j} sigmoid((s_k - s_j) / t), s the cosine. P are all of an anchor's positives, and
    classes may have any numbers of rows. Anchors are the batch's, ranked are its keys. Anchors
    without positives are left out; if all are, the value is 0, connected to z. Work is positive
    pairs times keys, memory one block and two (B, Q) tensors.

    Args:
        num_classes: Not used.
        temperature: t, positive.
        include_query: Count the anchor's own key in P and in all, as the released code does (it
            asks for equal class sizes).

    Raises:
        LikenessError: temperature is not positive.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        temperature: float = 0.01,
        include_query: bool = False,
    ):
        super().__init__()
        positive(self, temperature=temperature)
        self.dim = dim
        self.temperature, self.include_query = temperature, include_query
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        total, usable = by_anchor(
            self._terms, pair_up(self.bank, z, y, z_key, normalise=True), again=False
        )
        count = usable.sum()
        return (count > 0).to(z.dtype) - total.sum() / count.clamp(min=1)

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """A block's sum of average precisions (1,), and whether each anchor has a positive."""
        same, other = pairs.masks()
        if self.include_query:
            same = same.scatter(1, pairs.own[:, None], True)
        count = same.sum(1)
        weight = 1.0 / count.clamp(min=1).to(pairs.x.dtype)
        s = pairs.x @ pairs.keys.T
        total = _SmoothPrecision.apply(  # type: ignore[no-untyped-call]
            s, same, other, weight, self.temperature
        )
        return cast(Tensor, total)[None], count > 0


@checked
class RankedList(nn.Module):
    """Ranked list loss: weighted violations of an anchor's list. Wang et al. 2019.

    (1 - imbalance) L_P + imbalance L_N, mean over anchors: weighted means of d - (alpha - margin)
    over positives and of alpha - d over negatives, of the pairs that violate them, with d = |a - k|
    of unit rows. The weights of a pair are e^{positive_temperature (d - (alpha - margin))} and
    e^{negative_temperature (alpha - d)}. An anchor whose list is empty counts as 0. No violating
    pairs: 0, connected to z.

    Args:
        num_classes: Not used.
        alpha: Distance beyond which negatives should be.
        margin: Positives should be within alpha - margin.
        positive_temperature, negative_temperature: 0 weighs all violations alike.
        imbalance: Weight of the negatives, in [0, 1].
        weights: "pml" adds 1e-5 per key to the divisors and gives negatives at distance exactly 0
            no weight, as pytorch-metric-learning does.
    """

    def __init__(
        self,
        dim: int,
        num_classes: int = 0,
        *,
        alpha: float = 1.2,
        margin: float = 0.4,
        positive_temperature: float = 0.0,
        negative_temperature: float = 10.0,
        imbalance: float = 0.5,
        weights: Literal["exact", "pml"] = "exact",
    ):
        super().__init__()
        self.dim = dim
        self.alpha, self.margin, self.imbalance = alpha, margin, imbalance
        self.weights, self.positive_temperature = weights, positive_temperature
        self.negative_temperature = negative_temperature
        self.bank: KeyBank | None = None

    def forward(self, z: Tensor, y: Tensor, z_key: Tensor | None = None) -> Tensor:
        return mean(*by_anchor(self._terms, pair_up(self.bank, z, y, z_key, normalise=True)))

    def _terms(self, pairs: Pairs) -> tuple[Tensor, ...]:
        """The term of each anchor."""
        same, other = pairs.masks()
        d = distance(pairs.x, pairs.keys)
        if self.weights == "pml":
            same, other = same & (d > 0), other & (d > 0)
        positive = self._list(d - (self.alpha - self.margin), same, self.positive_temperature)
        negative = self._list(self.alpha - d, other, self.negative_temperature)
        return ((1 - self.imbalance) * positive + self.imbalance * negative,)

    def _list(self, violation: Tensor, mask: Tensor, temperature: float) -> Tensor:
        """Weighted means (B,) of the violations above 0.

        The largest exponent is taken out of both sums.

        Args:
            violation: (B, Q).
            mask: (B, Q).
            temperature: Of the weights.
        """
        mask = mask & (violation > 0)
        exponent = (temperature * violation).masked_fill(~mask, -torch.inf)
        largest = exponent.detach().amax(1, keepdim=True).clamp(min=0.0)
        weight = (exponent - largest).exp()
        total = (weight * violation.masked_fill(~mask, 0.0)).sum(1)
        divisor = weight.sum(1) + (
            1e-5 * mask.shape[1] * (-largest[:, 0]).exp() if self.weights == "pml" else 0.0
        )
        return total / torch.where(mask.any(1), divisor, 1.0)
