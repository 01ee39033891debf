"""Verification metrics on trials that have whole numbers as weights, such as those of a resample.

Trials are in the order of their scores, and a metric reads cumulative sums of their weights. It
also says in which part of the scores its threshold can lie, when it knows only the errors at some
thresholds. `eval.resampling` then need not weigh the trials of other parts one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.types import Bools, Floats
from eval.verification import AnyFloats, check_costs, eer, min_dcf, num_allowed, tar_at_far

Counts = NDArray[np.int64]
Metric = Callable[..., float]  # metric(target, nontarget)


@dataclass(frozen=True, eq=False)
class Order:
    """The scores of both classes, ascending, and where the points of the ROC lie in them.

    Attributes:
        target: (T,) scores of the target trials.
        nontarget: (N,) scores of the nontarget trials.
    """

    target: AnyFloats
    nontarget: AnyFloats

    def below(self, thresholds: AnyFloats) -> tuple[Counts, Counts]:
        """How many scores of each class lie below each threshold."""
        return (
            np.searchsorted(self.target, thresholds, side="left").astype(np.int64),
            np.searchsorted(self.nontarget, thresholds, side="left").astype(np.int64),
        )

    @cached_property
    def points(self) -> tuple[Counts, Counts]:
        """Every point of the ROC: one for each distinct score, and one that rejects all."""
        target, nontarget = self.below(np.unique(np.concatenate([self.target, self.nontarget])))
        return np.append(target, self.target.size), np.append(nontarget, self.nontarget.size)

    @cached_property
    def corners(self) -> tuple[Counts, Counts]:
        """The lower left corners of the ROC, at distinct target scores.

        Of corners between which no nontarget lies only that which misses least is kept.
        """
        target, nontarget = self.below(np.unique(self.target))
        target = np.append(target, self.target.size)
        nontarget = np.append(nontarget, self.nontarget.size)
        first = np.append(True, nontarget[1:] != nontarget[:-1])
        return target[first], nontarget[first]

    @cached_property
    def up_to_nontarget(self) -> Counts:
        """How many target scores lie at or below each nontarget score."""
        return np.searchsorted(self.target, self.nontarget, side="right").astype(np.int64)


@dataclass(frozen=True, eq=False)
class Block:
    """B resamples.

    Attributes:
        order: What the weights belong to.
        target: (B, T + 1) cumulative weights of the target trials in score order, from 0.
        nontarget: (B, N + 1) the same of the nontarget trials.
    """

    order: Order
    target: Counts
    nontarget: Counts

    @cached_property
    def corner_rates(self) -> tuple[Floats, Floats]:
        """FRR and FAR (B, K) at the corners."""
        at_target, at_nontarget = self.order.corners
        total = self.nontarget[:, -1:]
        return self.target[:, at_target] / self.target[:, -1:], (
            total - self.nontarget[:, at_nontarget]
        ) / total


class CellSums(NamedTuple):
    """The errors of B resamples at the K + 1 ends of K cells, in ascending order of thresholds.

    Attributes:
        misses: (B, K + 1) weight of the targets below each end: 0 first, all of it last.
        false_accepts: (B, K + 1) weight of the nontargets at or above it: all first, 0 last.
    """

    misses: Counts
    false_accepts: Counts


class Weighted(NamedTuple):
    """A metric on weighted trials.

    Attributes:
        values: Gives the metric (B,) on the resamples of a block.
        cells: Gives the cells (B, K) in which the threshold of the metric can lie.
    """

    values: Callable[[Block], Floats]
    cells: Callable[[CellSums], Bools]


def weighted(metric: Metric) -> Weighted | None:
    """The weighted form of a metric of eval.verification, or None if it has none.

    Args:
        metric: The function itself, or a partial of it with keywords.
    """
    function: Any = metric
    keywords: dict[str, Any] = {}
    if isinstance(metric, partial) and not metric.args:
        function, keywords = metric.func, metric.keywords
    names = set(keywords)
    if function is eer and names <= {"method"}:
        method = keywords.get("method", "interpolated")
        if method in ("interpolated", "nearest"):
            return Weighted(partial(_eer, method=method), _eer_cells)
    if function is min_dcf and {"p_target"} <= names <= {"p_target", "c_miss", "c_fa"}:
        return Weighted(partial(_min_dcf, **keywords), partial(_min_dcf_cells, **keywords))
    strict = keywords.get("rule", "strict") == "strict"
    if function is tar_at_far and {"far"} <= names <= {"far", "rule"} and strict:
        far = keywords["far"]
        return Weighted(partial(_tar_at_far, far=far), partial(_tar_at_far_cells, far=far))
    return None


def _eer(block: Block, *, method: str) -> Floats:
    """Bisection on FAR - FRR over the ROC points of all trials.

    Points whose trials have no weight repeat their neighbour, so the last point with FAR >= FRR and
    the next are still adjacent and distinct points of the resample's own ROC.
    """
    at_target, at_nontarget = block.order.points
    row = np.arange(len(block.target))
    num_targets, num_nontargets = block.target[:, -1], block.nontarget[:, -1]

    def errors(point: Counts) -> tuple[Counts, Counts, Counts]:
        misses = block.target[row, at_target[point]]
        false_accepts = num_nontargets - block.nontarget[row, at_nontarget[point]]
        return misses, false_accepts, false_accepts * num_targets - misses * num_nontargets

    low, high = np.zeros_like(row), np.full_like(row, at_target.size - 1)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        crossed = errors(middle)[2] < 0
        low, high = np.where(crossed, low, middle), np.where(crossed, middle, high)
    low_misses, low_accepts, low_gap = errors(low)
    high_misses, high_accepts, high_gap = errors(high)
    if method == "nearest":
        first = low_gap <= -high_gap
        nearest: Floats = (
            np.where(first, low_misses, high_misses) / num_targets
            + np.where(first, low_accepts, high_accepts) / num_nontargets
        ) / 2
        return nearest
    values: Floats = (
        low_accepts + low_gap / (low_gap - high_gap) * (high_accepts - low_accepts)
    ) / num_nontargets
    return values


def _eer_cells(sums: CellSums) -> Bools:
    """The cell in which FAR - FRR changes its sign."""
    gap = sums.false_accepts * sums.misses[:, -1:] - sums.misses * sums.false_accepts[:, :1]
    crossed: Bools = (gap[:, :-1] >= 0) & (gap[:, 1:] < 0)
    return crossed


def _cost(frr: Floats, far: Floats, p_target: float, c_miss: float, c_fa: float) -> Floats:
    """The normalised detection cost of operating points."""
    miss_weight, fa_weight = check_costs(p_target, c_miss, c_fa)
    cost: Floats = far * fa_weight
    cost += frr if miss_weight == 1 else frr * miss_weight
    return cost


def _min_dcf(block: Block, *, p_target: float, c_miss: float = 1.0, c_fa: float = 1.0) -> Floats:
    values: Floats = _cost(*block.corner_rates, p_target, c_miss, c_fa).min(axis=1)
    return values


def _min_dcf_cells(
    sums: CellSums, *, p_target: float, c_miss: float = 1.0, c_fa: float = 1.0
) -> Bools:
    """The cells in which a cost may be lower than at any of their ends.

    No threshold of a cell misses less than its lower end, or accepts less than its upper end.
    Rounding keeps this order, so a cell that is left out cannot hold the minimum.
    """
    frr = sums.misses / sums.misses[:, -1:]
    far = sums.false_accepts / sums.false_accepts[:, :1]
    best = _cost(frr, far, p_target, c_miss, c_fa).min(axis=1, keepdims=True)
    least = _cost(frr[:, :-1], far[:, 1:], p_target, c_miss, c_fa)
    better: Bools = least < best
    return better


def _tar_at_far(block: Block, *, far: float) -> Floats:
    values = np.ones(len(block.target))
    for i, (target, nontarget) in enumerate(zip(block.target, block.nontarget, strict=True)):
        allowed = num_allowed(far, int(nontarget[-1]))
        if allowed < nontarget[-1]:
            # The (allowed + 1)-th largest weighted nontarget score, then the targets above it.
            limit = np.searchsorted(nontarget, nontarget[-1] - allowed - 1, side="right") - 1
            values[i] = (target[-1] - target[block.order.up_to_nontarget[limit]]) / target[-1]
    return values


def _tar_at_far_cells(sums: CellSums, *, far: float) -> Bools:
    """The cell of the highest nontarget score that is one too many, none if all are allowed."""
    total = sums.false_accepts[:, 0]
    allowed = np.array([num_allowed(far, int(number)) for number in total], dtype=np.int64)[:, None]
    limit: Bools = (sums.false_accepts[:, :-1] > allowed) & (sums.false_accepts[:, 1:] <= allowed)
    return limit


def repeated(metric: Metric, block: Block) -> Floats:
    """Any metric (B,): on the trials repeated by their weights."""
    order = block.order
    weights = (
        (np.diff(target), np.diff(nontarget))
        for target, nontarget in zip(block.target, block.nontarget, strict=True)
    )
    return np.array(
        [
            metric(np.repeat(order.target, target), np.repeat(order.nontarget, nontarget))
            for target, nontarget in weights
        ]
    )
