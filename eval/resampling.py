"""Resamples of subjects, and verification metrics on the weights that they give to trials.

One resample draws n of the n subjects with replacement. With c[s] the times that subject s was
drawn, a target trial weighs c[s] and a nontarget trial c[a] * c[b] (see `eval.bootstrap`).

Trials are sorted by score once. A metric then reads cumulative sums of integer weights. Of millions
of trials nearly all lie far from every threshold that a resample can have. Their weights matter,
but not their order. So the range of scores is cut into cells. The weight of a whole cell is a
product of matrices: for all resamples at once, c times the numbers of trials of each pair of
subjects, times c. From these sums each metric tells the few cells that can hold its threshold, and
only their trials are weighed one by one. The counts are whole numbers, so the result is that of
weighing every trial, to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from eval.types import Bools, Floats, Scores, SplitScores
from eval.verification import AnyFloats, check_costs, eer, min_dcf, num_allowed, tar_at_far

Counts = NDArray[np.int64]
Subjects = NDArray[np.integer[Any]]
Metric = Callable[..., float]  # metric(target, nontarget)

_BLOCK = 1 << 18  # weights of trials that are held at once: a few MB, which stay in the cache
_THINNED_FROM = 1 << 17  # trials; of fewer all are weighed, which is as quick
_CELLS_PER_OCTAVE = 4  # cuts lie where the number of errors grows by a factor of 2 ** (1 / 4)
_MOST_WEIGHED = 0.25  # of the trials; where more could matter, all are weighed
_TOGETHER = 1 << 19  # numbers of draws (resamples times subjects) in one product of matrices
_ROUNDS = 100  # how often an empty resample is drawn again
_PROBED = 1_000  # nontarget trials of which one has weight in nearly every resample


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
    function, keywords = (
        (metric.func, dict(metric.keywords))
        if isinstance(metric, partial) and not metric.args
        else (metric, {})
    )
    if function is eer and keywords.get("method", "interpolated") in ("interpolated", "nearest"):
        if not set(keywords) <= {"method"}:
            return None
        return Weighted(partial(_eer, method=keywords.get("method", "interpolated")), _eer_cells)
    if (
        function is min_dcf
        and "p_target" in keywords
        and set(keywords) <= {"p_target", "c_miss", "c_fa"}
    ):
        costs = {"c_miss": 1.0, "c_fa": 1.0} | keywords
        return Weighted(partial(_min_dcf, **costs), partial(_min_dcf_cells, **costs))
    if (
        function is tar_at_far
        and "far" in keywords
        and set(keywords) <= {"far", "rule"}
        and keywords.get("rule", "strict") == "strict"
    ):
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
        misses, false_accepts = (
            block.target[row, at_target[point]],
            num_nontargets - block.nontarget[row, at_nontarget[point]],
        )
        return misses, false_accepts, false_accepts * num_targets - misses * num_nontargets

    low, high = np.zeros_like(row), np.full_like(row, at_target.size - 1)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        crossed = errors(middle)[2] < 0
        low, high = np.where(crossed, low, middle), np.where(crossed, middle, high)
    (low_misses, low_accepts, low_gap), (high_misses, high_accepts, high_gap) = (
        errors(low),
        errors(high),
    )
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


def _min_dcf(block: Block, *, p_target: float, c_miss: float, c_fa: float) -> Floats:
    values: Floats = _cost(*block.corner_rates, p_target, c_miss, c_fa).min(axis=1)
    return values


def _min_dcf_cells(sums: CellSums, *, p_target: float, c_miss: float, c_fa: float) -> Bools:
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


class Trials(NamedTuple):
    """Scored trials in ascending order, and who is compared in them.

    Attributes:
        order: The scores.
        of_target: (T,) the subject of each target trial.
        of_enrol: (N,) the enrolled subject of each nontarget trial.
        of_probe: (N,) the other one; None if each nontarget trial is drawn by itself.
        n: How many subjects (or trials) are drawn from.
    """

    order: Order
    of_target: Subjects
    of_enrol: Subjects
    of_probe: Subjects | None
    n: int

    def is_empty(self, c: Counts) -> Bools:
        """(B,) whether resamples (B, n) hold no target or no nontarget trial."""
        has_targets = np.zeros(self.n, dtype=np.bool_)
        has_targets[self.of_target] = True
        empty: Bools = ~c[:, has_targets].any(axis=1)
        probed = slice(None, None, max(1, len(self.of_enrol) // _PROBED))
        doubtful = ~(self._nontarget(c, probed) > 0).any(axis=1)
        for row in np.flatnonzero(doubtful):
            empty[row] |= not self._nontarget(c[row : row + 1], slice(None)).any()
        return empty

    def _nontarget(self, c: Counts, part: slice) -> Counts:
        """The weights (B, M) of some nontarget trials."""
        weights: Counts = c[:, self.of_enrol[part]]
        return weights if self.of_probe is None else weights * c[:, self.of_probe[part]]


def trials_of(scores: Scores, subjects: tuple[Subjects, int] | None) -> Trials:
    """Sorts scored trials.

    Args:
        scores: P trials.
        subjects: The subjects (P, 2) of both sides, numbered from 0, and how many there are; None
            to draw the trials themselves.

    Raises:
        ValueError: There are no target or no nontarget trials.
    """
    at = []
    for rows in (np.flatnonzero(scores.target), np.flatnonzero(~scores.target)):
        order = np.argsort(scores.values[rows])
        at.append(rows[order])
    target, nontarget = (scores.values[rows].view(SplitScores) for rows in at)
    if not (target.size and nontarget.size):
        raise ValueError(
            f"scores: {target.size} target and {nontarget.size} nontarget trials; an "
            "interval needs at least one of each"
        )
    ordered = Order(target, nontarget)
    if subjects is None:
        return Trials(ordered, at[0], at[1], None, len(scores))
    pairs, n = subjects
    return Trials(ordered, pairs[at[0], 0], pairs[at[1], 0], pairs[at[1], 1], n)


def resampled(
    metrics: Mapping[str, Metric], trials: Trials, num_resamples: int, rng: np.random.Generator
) -> tuple[dict[str, Floats], int]:
    """Metrics on resamples.

    Args:
        metrics: Name -> metric(target, nontarget).
        trials: What is drawn from.
        num_resamples: R.
        rng: Where the draws come from.

    Returns:
        The values (R,) of each metric, and how many draws without any target or nontarget trial
        were replaced.

    Raises:
        ValueError: Draw after draw is empty; there are too few subjects.
    """
    forms = {name: weighted(metric) for name, metric in metrics.items()}
    size = trials.order.target.size + trials.order.nontarget.size
    known = [form for form in forms.values() if form is not None]
    thin = trials.of_probe is not None and size >= _THINNED_FROM and len(known) == len(forms)
    cells = Cells.of(trials) if thin else None
    functions = {
        name: form.values if form is not None else partial(repeated, metrics[name])
        for name, form in forms.items()
    }
    values: dict[str, list[Floats]] = {name: [] for name in metrics}
    num_redrawn = 0
    # Redrawing takes its numbers from the same generator. So the draws of one step are always as
    # many, whatever is done with them.
    step = max(1, min(num_resamples, _BLOCK // max(trials.n, size)))
    together = step if cells is None else max(step, _TOGETHER // trials.n // step * step)
    for start in range(0, num_resamples, together):
        counts = []
        for first in range(start, min(start + together, num_resamples), step):
            drawn, redrawn = _draw(trials, min(step, num_resamples - first), rng)
            counts.append(drawn)
            num_redrawn += redrawn
        c = np.concatenate(counts)
        for block in _blocks(trials, c, cells, known):
            for name, function in functions.items():
                values[name].append(function(block))
    return {name: np.concatenate(parts) for name, parts in values.items()}, num_redrawn


def _draw(trials: Trials, rows: int, rng: np.random.Generator) -> tuple[Counts, int]:
    """How often (rows, n) each subject is drawn, and how many empty draws were replaced."""
    n = trials.n
    counts, pending, redrawn = np.zeros((rows, n), np.int64), np.arange(rows), 0
    for _ in range(_ROUNDS):
        drawn = rng.integers(n, size=(pending.size, n)) + np.arange(pending.size)[:, None] * n
        c = np.bincount(drawn.ravel(), minlength=pending.size * n).reshape(-1, n)
        counts[pending] = c
        pending = pending[trials.is_empty(c)]
        if not pending.size:
            return counts, redrawn
        redrawn += pending.size
    raise ValueError(
        f"bootstrap: {_ROUNDS} draws in a row of {n} subjects held no target or no "
        "nontarget trial; too few subjects for an interval"
    )


def _blocks(
    trials: Trials, c: Counts, cells: Cells | None, metrics: list[Weighted]
) -> Iterator[Block]:
    """The weights of the trials in resamples c (B, n), in blocks of bounded memory."""
    thinned = None if cells is None else cells.thinned(c, metrics)
    if thinned is None:
        thinned = Thinned.none(trials)
    num_weights = thinned.order.target.size + thinned.order.nontarget.size
    rows = max(1, _BLOCK // num_weights)
    for start in range(0, len(c), rows):
        yield thinned.block(c[start : start + rows], slice(start, start + rows))


@dataclass(frozen=True, eq=False)
class Thinned:
    """An order in which cells stand for their trials, and how its weights come about.

    Attributes:
        order: Scores of the trials that are weighed one by one, and one score for each other cell.
        of_target: (T',) their subjects; 0 for a cell.
        of_enrol: (N',) as in `Trials`.
        of_probe: (N',) as in `Trials`.
        target_cells: The places (K',) of cells among the targets, and their weights (B, K').
        nontarget_cells: The same among the nontargets.
    """

    order: Order
    of_target: Subjects
    of_enrol: Subjects
    of_probe: Subjects | None
    target_cells: tuple[Counts, Counts] | None = None
    nontarget_cells: tuple[Counts, Counts] | None = None

    @classmethod
    def none(cls, trials: Trials) -> Thinned:
        """All trials, weighed one by one."""
        return cls(trials.order, trials.of_target, trials.of_enrol, trials.of_probe)

    def block(self, c: Counts, rows: slice) -> Block:
        """The cumulative weights in resamples c (b, n), which are some rows of all."""
        target = np.zeros((len(c), self.of_target.size + 1), np.int64)
        nontarget = np.zeros((len(c), self.of_enrol.size + 1), np.int64)
        for i, times in enumerate(c):
            of_target, of_nontarget = times[self.of_target], times[self.of_enrol]
            if self.of_probe is not None:
                of_nontarget *= times[self.of_probe]
            for weights, cells in (
                (of_target, self.target_cells),
                (of_nontarget, self.nontarget_cells),
            ):
                if cells is not None:
                    weights[cells[0]] = cells[1][rows][i]
            np.cumsum(of_target, out=target[i, 1:])
            np.cumsum(of_nontarget, out=nontarget[i, 1:])
        return Block(self.order, target, nontarget)


@dataclass(frozen=True, eq=False)
class Cells:
    """The range of scores in K cells.

    Attributes:
        trials: The trials.
        starts: (K,) the lowest score that each cell may hold.
        at_target: (K + 1,) the place of the first target of each cell, and T.
        at_nontarget: (K + 1,) the same of the nontargets.
        targets_of: (K, n) how many targets each subject has in each cell.
        pairs_of: For each cell, its enrolled subjects (A,), and how often (A, n) each of them is
            compared with each subject.
    """

    trials: Trials
    starts: AnyFloats
    at_target: Counts
    at_nontarget: Counts
    targets_of: Any
    pairs_of: list[tuple[Subjects, Any]]

    @classmethod
    def of(cls, trials: Trials) -> Cells:
        """Cuts the scores so that the errors of both kinds grow by a constant factor."""
        assert trials.of_probe is not None
        order, n = trials.order, trials.n
        target, nontarget = order.target, order.nontarget
        starts = np.unique(
            np.concatenate(
                [
                    [min(target[0], nontarget[0])],
                    target[_spread(target.size)],
                    nontarget[nontarget.size - 1 - _spread(nontarget.size)],
                ]
            )
        )
        below = order.below(starts)
        at_target, at_nontarget = (
            np.append(below[0], target.size),
            np.append(below[1], nontarget.size),
        )
        cell = np.repeat(np.arange(starts.size), np.diff(at_target))
        targets_of = csr_array(
            (np.ones(target.size), (cell, trials.of_target)), shape=(starts.size, n)
        )
        pairs_of = []
        for low, high in pairwise(at_nontarget.tolist()):
            pairs = csr_array(
                (
                    np.ones(high - low),
                    (trials.of_enrol[low:high], trials.of_probe[low:high]),
                ),
                shape=(n, n),
            )
            enrolled = np.flatnonzero(np.diff(pairs.indptr))
            pairs_of.append((enrolled, pairs[enrolled]))
        return cls(trials, starts, at_target, at_nontarget, targets_of, pairs_of)

    def sums(self, c: Counts) -> tuple[Counts, Counts]:
        """The weights (B, K) of the targets and of the nontargets of each cell."""
        # Whole numbers below 2 ** 53 are exact in float64, whose products are the fastest.
        draws = np.ascontiguousarray(c.T, dtype=np.float64)
        target = (self.targets_of @ draws).T
        nontarget = np.zeros((len(c), len(self.pairs_of)))
        for k, (enrolled, pairs) in enumerate(self.pairs_of):
            if enrolled.size:
                nontarget[:, k] = np.einsum("ab,ab->b", pairs @ draws, draws[enrolled])
        return target.astype(np.int64), nontarget.astype(np.int64)

    def thinned(self, c: Counts, metrics: list[Weighted]) -> Thinned | None:
        """The trials that can matter to the metrics in resamples c (B, n).

        None where these are so many that all may as well be weighed.
        """
        target, nontarget = self.sums(c)
        first = np.zeros((len(c), 1), np.int64)
        misses = np.concatenate([first, np.cumsum(target, axis=1)], axis=1)
        rejected = np.concatenate([first, np.cumsum(nontarget, axis=1)], axis=1)
        sums = CellSums(misses, rejected[:, -1:] - rejected)
        matter = np.zeros(self.starts.size, dtype=np.bool_)
        for metric in metrics:
            matter |= metric.cells(sums).any(axis=0)
        num_weighed = int(
            np.diff(self.at_target)[matter].sum() + np.diff(self.at_nontarget)[matter].sum()
        )
        size = self.trials.order.target.size + self.trials.order.nontarget.size
        if num_weighed > _MOST_WEIGHED * size:
            return None
        rows = [self._rows(matter, at) for at in (self.at_target, self.at_nontarget)]
        (target_rows, target_cells), (nontarget_rows, nontarget_cells) = rows
        order, trials = self.trials.order, self.trials
        assert trials.of_probe is not None
        target_scores = order.target[target_rows].copy()
        nontarget_scores = order.nontarget[nontarget_rows].copy()
        target_scores[target_cells] = nontarget_scores[nontarget_cells] = self.starts[~matter]
        return Thinned(
            Order(target_scores, nontarget_scores),
            trials.of_target[target_rows],
            trials.of_enrol[nontarget_rows],
            trials.of_probe[nontarget_rows],
            (target_cells, target[:, ~matter]),
            (nontarget_cells, nontarget[:, ~matter]),
        )

    def _rows(self, matter: Bools, at: Counts) -> tuple[Counts, Counts]:
        """The rows of the trials in cells that matter, with row 0 in the place of each other cell.

        Returns:
            The rows (M,), and the places (K',) of the other cells among them.
        """
        sizes = np.where(matter, np.diff(at), 1)
        ends = np.cumsum(sizes)
        rows = np.arange(ends[-1]) + np.repeat(at[:-1] - (ends - sizes), sizes)
        places = (ends - sizes)[~matter]
        rows[places] = 0
        return rows, places


def _spread(size: int) -> Counts:
    """Places 0 to size - 1 in steps that grow by a constant factor."""
    steps = np.arange(int(np.log2(size) * _CELLS_PER_OCTAVE) + 1)
    return np.unique((2.0 ** (steps / _CELLS_PER_OCTAVE)).astype(np.int64) - 1).clip(0, size - 1)
