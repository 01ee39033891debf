"""Verification metrics on resamples of subjects, and the weights that these give to trials.

One resample draws n of the n subjects with replacement. With c[s] the times that subject s was
drawn, a target trial weighs c[s] and a nontarget trial c[a] * c[b] (see
`likeness.eval.intervals.bootstrap`).

Trials are sorted by score once. A metric then reads cumulative sums of integer weights. Of millions
of trials nearly all lie far from every threshold that a resample can have. Their weights matter,
but not their order. So the range of scores is cut into cells. The weight of a whole cell is a
product of matrices: for all resamples at once, c times the numbers of trials of each pair of
subjects, times c. From these sums each metric tells the few cells that can hold its threshold.
These are cut into smaller ones and summed in the same way. Only the trials of those that can still
hold a threshold are weighed one by one. The counts are whole numbers, so the result is that of
weighing every trial, to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from likeness.eval.cores import keep_freed_memory, num_cores, num_threads
from likeness.eval.errors import LikenessError
from likeness.eval.metrics import verification
from likeness.eval.metrics.verification import AnyFloats, num_allowed
from likeness.eval.progress import report
from likeness.eval.types import Bools, Floats, Scores, ascending

Counts = NDArray[np.int64]
Subjects = NDArray[np.integer[Any]]
Metric = Callable[..., float]  # metric(target, nontarget)
Weights = tuple[float, float]  # of FRR and FAR in a cost
T = TypeVar("T")
V = TypeVar("V")

_BLOCK = 1 << 18  # weights of trials that are held at once: a few MB, which stay in the cache
_THINNED_FROM = 1 << 15  # trials; of fewer all are weighed, which is as quick
_CELLS_PER_OCTAVE = 2  # cuts lie where the number of errors grows by a factor of 2 ** (1 / 2)
_REFINEMENTS, _PARTS = 2, 8  # how often a cell that matters is cut, and into how many parts
_LEAST_CUT = 1 << 12  # trials of a class in a cell that is cut; the sums of cells take memory too
_DENSE = 1 / 16  # the share of pairs from which a dense product is faster than a sparse one
_TOGETHER = 1 << 19  # numbers of draws (resamples times subjects) in one product of matrices
_ROUNDS = 100  # how often an empty resample is drawn again
_PROBED = 1_000  # nontarget trials of which one has weight in nearly every resample


@dataclass(frozen=True, eq=False)
class Ranked:
    """Scored trials in ascending order, and who is compared in them.

    Attributes:
        target: (T,) scores of the target trials.
        nontarget: (N,) scores of the nontarget trials.
        of_target: (T,) the subject of each target trial.
        of_enrol: (N,) the enrolled subject of each nontarget trial.
        of_probe: (N,) the other one; None if each nontarget trial is drawn by itself.
        n: How many subjects (or trials) are drawn from.
        target_cells: The places (K,) of cells, which stand for many trials each, among the targets,
            and their weights (B, K) in resamples. None where each trial is weighed by itself.
        nontarget_cells: The same among the nontargets.
    """

    target: AnyFloats
    nontarget: AnyFloats
    of_target: Subjects
    of_enrol: Subjects
    of_probe: Subjects | None
    n: int
    target_cells: tuple[Counts, Counts] | None = None
    nontarget_cells: tuple[Counts, Counts] | None = None

    @property
    def size(self) -> int:
        """How many trials there are."""
        return self.target.size + self.nontarget.size

    def below(self, thresholds: AnyFloats) -> tuple[Counts, Counts]:
        """How many scores of each class lie below each threshold, and then all of them."""
        target, nontarget = (
            np.append(np.searchsorted(scores, thresholds, side="left"), scores.size)
            for scores in (self.target, self.nontarget)
        )
        return target.astype(np.int64), nontarget.astype(np.int64)

    @cached_property
    def points(self) -> tuple[Counts, Counts]:
        """Every point of the ROC: one for each distinct score, and one that rejects all."""
        return self.below(np.unique(np.concatenate([self.target, self.nontarget])))

    @cached_property
    def corners(self) -> tuple[Counts, Counts]:
        """The lower left corners of the ROC, at distinct target scores.

        Of corners between which no nontarget lies only that which misses least is kept.
        """
        target, nontarget = self.below(np.unique(self.target))
        first = np.append(True, nontarget[1:] != nontarget[:-1])
        return target[first], nontarget[first]

    @cached_property
    def up_to_nontarget(self) -> Counts:
        """How many target scores lie at or below each nontarget score."""
        return np.searchsorted(self.target, self.nontarget, side="right").astype(np.int64)

    def is_empty(self, c: Counts) -> Bools:
        """(B,) whether resamples (B, n) hold no target or no nontarget trial."""
        empty: Bools = np.count_nonzero(c[:, self._with_targets], axis=1) == 0
        probed = slice(None, None, max(1, len(self.of_enrol) // _PROBED))
        doubtful = ~(self._nontarget(c, probed) > 0).any(axis=1)
        for row in np.flatnonzero(doubtful):
            empty[row] |= not self._nontarget(c[row : row + 1], slice(None)).any()
        return empty

    @cached_property
    def _with_targets(self) -> Subjects:
        """The subjects that have target trials."""
        return np.unique(self.of_target)

    def _nontarget(self, c: Counts, part: slice) -> Counts:
        """The weights (B, M) of some nontarget trials."""
        weights: Counts = c[:, self.of_enrol[part]]
        return weights if self.of_probe is None else weights * c[:, self.of_probe[part]]

    def block(self, c: Counts, rows: slice) -> Block:
        """The cumulative weights in resamples c (b, n), which are some rows of all."""
        target = np.zeros((len(c), self.of_target.size + 1), np.int64)
        nontarget = np.zeros((len(c), self.of_enrol.size + 1), np.int64)
        for i, times in enumerate(c):
            of_nontarget = times[self.of_enrol]
            if self.of_probe is not None:
                of_nontarget *= times[self.of_probe]
            for weights, cells, sums in (
                (times[self.of_target], self.target_cells, target),
                (of_nontarget, self.nontarget_cells, nontarget),
            ):
                if cells is not None:
                    weights[cells[0]] = cells[1][rows][i]
                np.cumsum(weights, out=sums[i, 1:])
        return Block(self, target, nontarget)


@dataclass(frozen=True, eq=False)
class Block:
    """B resamples.

    Attributes:
        trials: What the weights belong to.
        target: (B, T + 1) cumulative weights of the target trials in score order, from 0.
        nontarget: (B, N + 1) the same of the nontarget trials.
    """

    trials: Ranked
    target: Counts
    nontarget: Counts

    @cached_property
    def corner_rates(self) -> tuple[Floats, Floats]:
        """FRR and FAR (B, K) at the corners."""
        at_target, at_nontarget = self.trials.corners
        total = self.nontarget[:, -1:]
        return self.target[:, at_target] / self.target[:, -1:], (
            total - self.nontarget[:, at_nontarget]
        ) / total


class Weighted(NamedTuple):
    """A metric on weighted trials.

    Attributes:
        values: Gives the metric (B,) on the resamples of a block.
        cells: Gives the cells (B, K) in which the threshold of the metric can lie, by the errors
            (B, K + 1) at the ends of the cells in ascending order of thresholds: the weight of the
            targets below each end, and of the nontargets at or above it.
    """

    values: Callable[[Block], Floats]
    cells: Callable[[Counts, Counts], Bools]


def weighted_form(metric: Metric) -> Weighted | None:
    """The weighted form of a metric of likeness.eval.metrics.verification, or None if it has none.

    Args:
        metric: The function itself, or a partial of it with keywords.
    """
    metric = metric if isinstance(metric, partial) else partial(metric)
    function, keywords = metric.func, metric.keywords
    if metric.args:
        return None
    method, rule = keywords.get("method", "interpolated"), keywords.get("rule", "strict")
    if function is verification.eer and method in ("interpolated", "nearest"):
        return Weighted(partial(_eer, method=method), _eer_cells)
    if function is verification.min_dcf:
        weights = verification.check_costs(**{"c_miss": 1.0, "c_fa": 1.0, **keywords})
        return Weighted(
            partial(_min_dcf, weights=weights), partial(_min_dcf_cells, weights=weights)
        )
    if function is verification.balanced_accuracy:
        cells = partial(_min_dcf_cells, weights=(1.0, 1.0))
        return Weighted(lambda block: 1 - _min_dcf(block, weights=(1.0, 1.0)) / 2, cells)
    if function is verification.tar_at_far and rule == "strict":
        far = keywords["far"]
        return Weighted(partial(_tar_at_far, far=far), partial(_tar_at_far_cells, far=far))
    return None


def _eer(block: Block, *, method: str) -> Floats:
    """Bisection on FAR - FRR over the ROC points of all trials.

    Points whose trials have no weight repeat their neighbour, so the last point with FAR >= FRR and
    the next are still adjacent and distinct points of the resample's own ROC.
    """
    at_target, at_nontarget = block.trials.points
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
        return (
            np.where(first, low_misses, high_misses) / num_targets
            + np.where(first, low_accepts, high_accepts) / num_nontargets
        ) / 2
    values: Floats = (
        low_accepts + low_gap / (low_gap - high_gap) * (high_accepts - low_accepts)
    ) / num_nontargets
    return values


def _eer_cells(misses: Counts, accepts: Counts) -> Bools:
    """The cell in which FAR - FRR changes its sign."""
    gap = accepts * misses[:, -1:] - misses * accepts[:, :1]
    return (gap[:, :-1] >= 0) & (gap[:, 1:] < 0)


def _cost(frr: Floats, far: Floats, weights: Weights) -> Floats:
    """The normalised detection cost of operating points."""
    miss_weight, fa_weight = weights
    cost: Floats = far * fa_weight
    cost += frr if miss_weight == 1 else frr * miss_weight
    return cost


def _min_dcf(block: Block, *, weights: Weights) -> Floats:
    values: Floats = _cost(*block.corner_rates, weights).min(axis=1)
    return values


def _min_dcf_cells(misses: Counts, accepts: Counts, *, weights: Weights) -> Bools:
    """The cells in which a cost may be lower than at any of their ends.

    No threshold of a cell misses less than its lower end, or accepts less than its upper end.
    Rounding keeps this order, so a cell that is left out cannot hold the minimum.
    """
    frr, far = misses / misses[:, -1:], accepts / accepts[:, :1]
    best = _cost(frr, far, weights).min(axis=1, keepdims=True)
    least = _cost(frr[:, :-1], far[:, 1:], weights)
    better: Bools = least < best
    return better


def _tar_at_far(block: Block, *, far: float) -> Floats:
    values = np.ones(len(block.target))
    each = zip(block.target, block.nontarget, num_allowed(far, block.nontarget[:, -1]), strict=True)
    for i, (target, nontarget, allowed) in enumerate(each):
        if allowed < nontarget[-1]:
            # The (allowed + 1)-th largest weighted nontarget score, then the targets above it.
            limit = np.searchsorted(nontarget, nontarget[-1] - allowed - 1, side="right") - 1
            values[i] = (target[-1] - target[block.trials.up_to_nontarget[limit]]) / target[-1]
    return values


def _tar_at_far_cells(misses: Counts, accepts: Counts, *, far: float) -> Bools:
    """The cell of the highest nontarget score that is one too many, none if all are allowed."""
    allowed = num_allowed(far, accepts[:, :1])
    return (accepts[:, :-1] > allowed) & (accepts[:, 1:] <= allowed)


def metric_of_repeats(metric: Metric, block: Block) -> Floats:
    """Any metric (B,): on the trials repeated by their weights."""
    trials = block.trials
    return np.array(
        [
            metric(
                np.repeat(trials.target, np.diff(target)),
                np.repeat(trials.nontarget, np.diff(nontarget)),
            )
            for target, nontarget in zip(block.target, block.nontarget, strict=True)
        ]
    )


def rank_trials(scores: Scores, subjects: tuple[Subjects, int] | None) -> Ranked:
    """Sorts scored trials.

    Args:
        scores: P trials.
        subjects: The subjects (P, 2) of both sides, numbered from 0, and how many there are; None
            to draw the trials themselves.
    """
    order = ascending(scores.values)
    at = [order[scores.target[order] == kind] for kind in (True, False)]
    target, nontarget = (scores.values[rows] for rows in at)
    if subjects is None:
        return Ranked(target, nontarget, at[0], at[1], None, len(scores))
    pairs, n = subjects
    return Ranked(target, nontarget, pairs[at[0], 0], pairs[at[1], 0], pairs[at[1], 1], n)


def resample_metrics(
    metrics: Mapping[str, Metric], trials: Ranked, num_resamples: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Metrics on resamples.

    Args:
        metrics: Name -> metric(target, nontarget).
        trials: What is drawn from.
        num_resamples: R.
        rng: Where the draws come from.

    Returns:
        The values (R,) of each metric. A draw without any target or nontarget trial is replaced.

    Raises:
        LikenessError: Draw after draw is empty; there are too few subjects.
    """
    keep_freed_memory()
    forms = {name: weighted_form(metric) for name, metric in metrics.items()}
    known = [form for form in forms.values() if form is not None]
    thin = trials.of_probe is not None and trials.size >= _THINNED_FROM and len(known) == len(forms)
    cells = Cells.of(trials) if thin else None
    functions = {
        name: form.values if form is not None else partial(metric_of_repeats, metrics[name])
        for name, form in forms.items()
    }
    values: dict[str, list[Floats]] = {name: [] for name in metrics}
    # Redrawing takes its numbers from the same generator. So the draws of one step are always as
    # many, whatever is done with them.
    step = max(1, min(num_resamples, _BLOCK // max(trials.n, trials.size)))
    together = step if cells is None else max(step, _TOGETHER // trials.n // step * step)
    for start in range(0, num_resamples, together):
        firsts = range(start, min(start + together, num_resamples), step)
        c = np.concatenate([_draw(trials, min(step, num_resamples - i), rng) for i in firsts])
        thinned = trials if cells is None else cells.thinned(c, known)
        height = max(1, _BLOCK // thinned.size)
        blocks = [slice(first, first + height) for first in range(0, len(c), height)]
        for rows, of_block in in_threads(partial(_values, functions, thinned, c), blocks):
            for name, value in of_block.items():
                values[name].append(value)
            report("resampling", min(start + rows.stop, num_resamples), num_resamples)
    return {name: np.concatenate(parts) for name, parts in values.items()}


def _draw(trials: Ranked, rows: int, rng: np.random.Generator) -> Counts:
    """How often (rows, n) each subject is drawn; empty draws are drawn again."""
    n = trials.n
    counts, pending = np.zeros((rows, n), np.int64), np.arange(rows)
    for _ in range(_ROUNDS):
        drawn = rng.integers(n, size=(pending.size, n)) + np.arange(pending.size)[:, None] * n
        c = np.bincount(drawn.ravel(), minlength=pending.size * n).reshape(-1, n)
        counts[pending] = c
        pending = pending[trials.is_empty(c)]
        if not pending.size:
            return counts
    raise LikenessError(f"bootstrap: {n} subjects are too few for an interval; add some")


def in_threads(work: Callable[[T], V], values: Iterable[T]) -> Iterator[V]:
    """Yield work(value) for each value, in their order, from as many threads as there are cores.

    NumPy and SciPy let other threads run while they compute. With OMP_NUM_THREADS=1 there is one
    thread, as in all other work.
    """
    number = min(num_cores(), num_threads())
    if number < 2:
        yield from map(work, values)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import, needed here only

    with ThreadPoolExecutor(number) as pool:
        yield from pool.map(work, values)


def _values(
    functions: Mapping[str, Callable[[Block], Floats]], thinned: Ranked, c: Counts, rows: slice
) -> tuple[slice, dict[str, Floats]]:
    """Each metric on some rows of the resamples c (B, n)."""
    block = thinned.block(c[rows], rows)
    return rows, {name: function(block) for name, function in functions.items()}


class Cells:
    """The range of scores in K cells.

    Args:
        trials: The trials.
        starts: The lowest score that each cell may hold, in any order.

    Attributes:
        starts: (K,) these scores, ascending.
        at_target: (K + 1,) the place of the first target of each cell, and T.
        at_nontarget: (K + 1,) the same of the nontargets.
    """

    def __init__(self, trials: Ranked, starts: AnyFloats) -> None:
        self.trials, self.starts = trials, np.unique(starts)
        self.at_target, self.at_nontarget = trials.below(self.starts)
        self._pairs: dict[int, tuple[Subjects, Any]] = {}

    @classmethod
    def of(cls, trials: Ranked) -> Cells:
        """Cuts the scores so that the errors of both kinds grow by a constant factor."""
        target, nontarget = trials.target, trials.nontarget
        highest = nontarget[nontarget.size - 1 - _spread(nontarget.size)]
        lowest = np.minimum(target[:1], nontarget[:1])
        return cls(trials, np.concatenate([lowest, target[_spread(target.size)], highest]))

    @cached_property
    def _targets(self) -> Any:
        """(K, n) how many targets each subject has in each cell, sparse."""
        from scipy.sparse import csr_array  # imported here, as it takes 80 ms

        ones = np.ones(self.trials.target.size)
        shape = self.starts.size, self.trials.n
        return csr_array((ones, self.trials.of_target, self.at_target), shape=shape)

    def _pairs_in(self, cell: int) -> tuple[Subjects, Any]:
        """The enrolled subjects (A,) of the nontargets of a cell, and how often (A, n) each of them
        is compared with each subject.
        """
        from scipy.sparse import csr_array

        if cell not in self._pairs:
            enrol, probe, n = self.trials.of_enrol, self.trials.of_probe, self.trials.n
            assert probe is not None
            rows = slice(*self.at_nontarget[cell : cell + 2])
            ones = np.ones(enrol[rows].size)
            pairs = csr_array((ones, (enrol[rows], probe[rows])), shape=(n, n))
            enrolled = np.flatnonzero(np.diff(pairs.indptr))
            self._pairs[cell] = enrolled, pairs[enrolled]
        return self._pairs[cell]

    def sums(self, draws: Floats, cells: Sequence[int] | None = None) -> tuple[Counts, Counts]:
        """The weights (B, K) of the targets and of the nontargets of each cell.

        Args:
            draws: (n, B) how often each subject is drawn. Whole numbers below 2 ** 53 are exact in
                float64, whose products are the fastest.
            cells: The cells that are weighed; None for all.
        """

        def weigh(cell: int) -> Floats:
            enrolled, pairs = self._pairs_in(cell)
            is_dense = pairs.nnz > _DENSE * enrolled.size * self.trials.n
            times = (pairs.toarray() if is_dense else pairs) @ draws
            return np.asarray(np.einsum("ab,ab->b", times, draws[enrolled]))

        cells = range(self.starts.size) if cells is None else cells
        nontarget = np.stack(list(in_threads(weigh, cells)), axis=1)
        return (self._targets[list(cells)] @ draws).T.astype(np.int64), nontarget.astype(np.int64)

    def finer(self, matter: Bools) -> tuple[Cells, Bools]:
        """The cells (K',) with those that matter (K,) cut into parts, and which are as before."""
        starts = [self.starts]
        for scores, at in (
            (self.trials.target, self.at_target),
            (self.trials.nontarget, self.at_nontarget),
        ):
            cut = matter & (np.diff(at) >= _LEAST_CUT)
            places = np.linspace(at[:-1][cut], at[1:][cut], _PARTS, endpoint=False, dtype=np.int64)
            starts.append(scores[places.ravel()])
        cells = Cells(self.trials, np.concatenate(starts))
        return cells, np.isin(cells.starts, self.starts[~matter])

    def thinned(self, c: Counts, metrics: list[Weighted]) -> Ranked:
        """The trials that can matter to the metrics in resamples c (B, n), those of each other cell
        as one trial of its weight.
        """
        draws = np.ascontiguousarray(c.T, dtype=np.float64)
        cells, (target, nontarget) = self, self.sums(draws)
        matter = _that_matter(target, nontarget, metrics)
        for _ in range(_REFINEMENTS):
            if not matter.any():
                break
            cells, known = cells.finer(matter)
            sums = np.empty((2, len(c), known.size), np.int64)
            sums[:, :, known] = target[:, ~matter], nontarget[:, ~matter]
            sums[:, :, ~known] = cells.sums(draws, np.flatnonzero(~known).tolist())
            target, nontarget = sums
            matter = _that_matter(target, nontarget, metrics)
        return cells._merged(matter, target, nontarget)

    def _merged(self, matter: Bools, target: Counts, nontarget: Counts) -> Ranked:
        """The trials of the cells that matter, and one for each other cell, by its weights (B, K)
        of targets and nontargets.
        """
        trials = self.trials
        rows, places = _rows_of(matter, self.at_target)
        other_rows, other_places = _rows_of(matter, self.at_nontarget)
        target_scores, nontarget_scores = trials.target[rows], trials.nontarget[other_rows]
        target_scores[places] = nontarget_scores[other_places] = self.starts[~matter]
        assert trials.of_probe is not None
        return Ranked(
            target_scores,
            nontarget_scores,
            # as indices, which every resample would otherwise convert them to
            trials.of_target[rows].astype(np.intp),
            trials.of_enrol[other_rows].astype(np.intp),
            trials.of_probe[other_rows].astype(np.intp),
            trials.n,
            (places, target[:, ~matter]),
            (other_places, nontarget[:, ~matter]),
        )


def _that_matter(target: Counts, nontarget: Counts, metrics: list[Weighted]) -> Bools:
    """(K,) the cells that can hold a threshold of a metric in a resample, by weights (B, K)."""
    misses, rejected = (
        np.pad(np.cumsum(weights, axis=1), ((0, 0), (1, 0))) for weights in (target, nontarget)
    )
    accepts = rejected[:, -1:] - rejected
    each = [metric.cells(misses, accepts).any(axis=0) for metric in metrics]
    matter: Bools = np.any(each, axis=0)
    return matter


def _rows_of(matter: Bools, at: Counts) -> tuple[Counts, Counts]:
    """The rows of the trials in cells that matter, with row 0 in the place of each other cell.

    Returns:
        The rows (M,), and the places (K',) of the other cells among them.
    """
    sizes = np.where(matter, np.diff(at), 1)
    starts = np.cumsum(sizes) - sizes
    rows = np.arange(sizes.sum()) + np.repeat(at[:-1] - starts, sizes)
    places = starts[~matter]
    rows[places] = 0
    return rows, places


def _spread(size: int) -> Counts:
    """Places 0 to size - 1 in steps that grow by a constant factor."""
    steps = np.arange(int(np.log2(size) * _CELLS_PER_OCTAVE) + 1)
    return np.unique((2.0 ** (steps / _CELLS_PER_OCTAVE)).astype(np.int64) - 1).clip(0, size - 1)
