"""Resamples of subjects, and the weights that they give to trials.

One resample draws n of the n subjects with replacement. With c[s] the times that subject s was
drawn, a target trial weighs c[s] and a nontarget trial c[a] * c[b] (see `eval.bootstrap`).

Trials are sorted by score once. A metric then reads cumulative sums of integer weights. Of millions
of trials nearly all lie far from every threshold that a resample can have. Their weights matter,
but not their order. So the range of scores is cut into cells. The weight of a whole cell is a
product of matrices: for all resamples at once, c times the numbers of trials of each pair of
subjects, times c. From these sums each metric tells the few cells that can hold its threshold.
These are cut once more in the same way, and only the trials of the few small cells that are left
are weighed one by one. The counts are whole numbers, so the result is that of weighing every trial,
to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from eval.cores import num_cores, num_threads
from eval.errors import LikenessError
from eval.progress import report
from eval.types import Bools, Floats, Scores
from eval.verification import AnyFloats
from eval.weighted import Block, CellSums, Counts, Metric, Order, Weighted, repeated, weighted

Subjects = NDArray[np.integer[Any]]
T = TypeVar("T")
V = TypeVar("V")

_BLOCK = 1 << 18  # weights of trials that are held at once: a few MB, which stay in the cache
_THINNED_FROM = 1 << 15  # trials; of fewer all are weighed, which is as quick
_CELLS_PER_OCTAVE = 4  # cuts lie where the number of errors grows by a factor of 2 ** (1 / 4)
_SPLIT_FROM = 1 << 14  # trials in cells that matter; from so many on these cells are cut again,
_PARTS = 8  # into so many parts by the targets and as many by the nontargets
_MOST_WEIGHED = 0.25  # of the trials; where more could matter, all are weighed
_TOGETHER = 1 << 19  # numbers of draws (resamples times subjects) in one product of matrices
_ROUNDS = 100  # how often an empty resample is drawn again
_PROBED = 1_000  # nontarget trials of which one has weight in nearly every resample


@dataclass(frozen=True, eq=False)
class Ranked:
    """Scored trials in ascending order, and who is compared in them.

    Attributes:
        order: The scores.
        of_target: (T,) the subject of each target trial.
        of_enrol: (N,) the enrolled subject of each nontarget trial.
        of_probe: (N,) the other one; None if each nontarget trial is drawn by itself.
        n: How many subjects (or trials) are drawn from.
        target_cells: The places (K,) of cells, which stand for many trials each, among the targets,
            and their weights (B, K) in resamples. None where each trial is weighed by itself.
        nontarget_cells: The same among the nontargets.
    """

    order: Order
    of_target: Subjects
    of_enrol: Subjects
    of_probe: Subjects | None
    n: int
    target_cells: tuple[Counts, Counts] | None = None
    nontarget_cells: tuple[Counts, Counts] | None = None

    def is_empty(self, c: Counts) -> Bools:
        """(B,) whether resamples (B, n) hold no target or no nontarget trial."""
        empty: Bools = np.count_nonzero(c[:, self._has_targets], axis=1) == 0
        probed = slice(None, None, max(1, len(self.of_enrol) // _PROBED))
        doubtful = ~(self._nontarget(c, probed) > 0).any(axis=1)
        for row in np.flatnonzero(doubtful):
            empty[row] |= not self._nontarget(c[row : row + 1], slice(None)).any()
        return empty

    @cached_property
    def _has_targets(self) -> Bools:
        """(n,) which subjects have target trials."""
        has_targets = np.zeros(self.n, dtype=np.bool_)
        has_targets[self.of_target] = True
        return has_targets

    def _nontarget(self, c: Counts, part: slice) -> Counts:
        """The weights (B, M) of some nontarget trials."""
        weights: Counts = c[:, self.of_enrol[part]]
        return weights if self.of_probe is None else weights * c[:, self.of_probe[part]]

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


def ranked(scores: Scores, subjects: tuple[Subjects, int] | None) -> Ranked:
    """Sorts scored trials.

    Args:
        scores: P trials.
        subjects: The subjects (P, 2) of both sides, numbered from 0, and how many there are; None
            to draw the trials themselves.
    """
    at = []
    for rows in (np.flatnonzero(scores.target), np.flatnonzero(~scores.target)):
        order = np.argsort(scores.values[rows])
        at.append(rows[order])
    target, nontarget = (scores.values[rows] for rows in at)
    ordered = Order(target, nontarget)
    if subjects is None:
        return Ranked(ordered, at[0], at[1], None, len(scores))
    pairs, n = subjects
    return Ranked(ordered, pairs[at[0], 0], pairs[at[1], 0], pairs[at[1], 1], n)


def resampled(
    metrics: Mapping[str, Metric], trials: Ranked, num_resamples: int, rng: np.random.Generator
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
        LikenessError: Draw after draw is empty; there are too few subjects.
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
    num_redrawn = done = 0
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
        thinned = (cells and cells.thinned(c, known)) or trials
        work = partial(_values, functions, thinned, c)
        for num_rows, of_block in in_threads(work, _rows(len(c), thinned)):
            for name, value in of_block.items():
                values[name].append(value)
            done += num_rows
            report("resampling", done, num_resamples)
    return {name: np.concatenate(parts) for name, parts in values.items()}, num_redrawn


def _draw(trials: Ranked, rows: int, rng: np.random.Generator) -> tuple[Counts, int]:
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
    raise LikenessError(
        f"bootstrap: {_ROUNDS} draws in a row of {n} subjects held no target or no "
        "nontarget trial; too few subjects for an interval"
    )


def in_threads(work: Callable[[T], V], values: Iterable[T]) -> Iterator[V]:
    """Yield work(value) for each value, in their order, from as many threads as there are cores.

    NumPy and SciPy let other threads run while they compute. With OMP_NUM_THREADS=1 there is one
    thread, as in all other work.
    """
    number = min(num_cores(), num_threads())
    if number < 2:
        yield from map(work, values)
        return
    with ThreadPoolExecutor(number) as pool:
        yield from pool.map(work, values)


def _rows(num_resamples: int, thinned: Ranked) -> list[slice]:
    """Rows of resamples whose weights are held at once."""
    num_weights = thinned.order.target.size + thinned.order.nontarget.size
    height = max(1, _BLOCK // num_weights)
    return [slice(start, start + height) for start in range(0, num_resamples, height)]


def _values(
    functions: Mapping[str, Callable[[Block], Floats]], thinned: Ranked, c: Counts, rows: slice
) -> tuple[int, dict[str, Floats]]:
    """How many resamples some rows of c (B, n) are, and each metric on them."""
    block = thinned.block(c[rows], rows)
    return len(block.target), {name: function(block) for name, function in functions.items()}


@dataclass(frozen=True, eq=False)
class Cells:
    """The range of scores in K cells.

    Attributes:
        trials: The trials.
        starts: (K,) the lowest score that each cell may hold.
        at_target: (K + 1,) the place of the first target of each cell, and T.
        at_nontarget: (K + 1,) the same of the nontargets.
        pairs_of: The places of a cell's nontargets -> its enrolled subjects (A,), and how often
            (A, n) each of them is compared with each subject. It is filled when it is needed.
    """

    trials: Ranked
    starts: AnyFloats
    at_target: Counts
    at_nontarget: Counts
    pairs_of: dict[tuple[int, int], tuple[Subjects, Any]]

    @classmethod
    def of(cls, trials: Ranked) -> Cells:
        """Cuts the scores so that the errors of both kinds grow by a constant factor."""
        target, nontarget = trials.order.target, trials.order.nontarget
        starts: list[AnyFloats] = [
            np.minimum(target[:1], nontarget[:1]),
            target[_spread(target.size)],
            nontarget[nontarget.size - 1 - _spread(nontarget.size)],
        ]
        return cls._cut(trials, np.concatenate(starts), {})

    @classmethod
    def _cut(
        cls,
        trials: Ranked,
        starts: AnyFloats,
        pairs_of: dict[tuple[int, int], tuple[Subjects, Any]],
    ) -> Cells:
        """The cells that begin at some scores."""
        starts = np.unique(starts)
        target, nontarget = trials.order.below(starts)
        at_target = np.append(target, trials.order.target.size)
        at_nontarget = np.append(nontarget, trials.order.nontarget.size)
        return cls(trials, starts, at_target, at_nontarget, pairs_of)

    def _split(self, which: Bools) -> Cells:
        """Cuts some of the cells into parts that hold about as many trials each."""
        starts = [self.starts]
        for scores, at in (
            (self.trials.order.target, self.at_target),
            (self.trials.order.nontarget, self.at_nontarget),
        ):
            low, size = at[:-1][which], np.diff(at)[which]
            parts = np.arange(1, _PARTS)[:, None]
            starts.append(scores[(low + size * parts // _PARTS)[:, size > 0].ravel()])
        return self._cut(self.trials, np.concatenate(starts), self.pairs_of)

    def _pairs(self, low: int, high: int) -> tuple[Subjects, Any]:
        """The pairs of subjects of the nontargets from `low` to `high`."""
        if (low, high) not in self.pairs_of:
            from scipy.sparse import csr_array  # imported here, as it takes 80 ms

            enrol, probe, n = self.trials.of_enrol, self.trials.of_probe, self.trials.n
            assert probe is not None
            pairs = csr_array(
                (np.ones(high - low), (enrol[low:high], probe[low:high])), shape=(n, n)
            )
            enrolled = np.flatnonzero(np.diff(pairs.indptr))
            self.pairs_of[low, high] = enrolled, pairs[enrolled]
        return self.pairs_of[low, high]

    def sums(self, draws: Floats, cells: Counts) -> tuple[Counts, Counts]:
        """The weights (B, M) of the targets and of the nontargets of M cells.

        Args:
            draws: (n, B) how often each subject is drawn. Whole numbers below 2 ** 53 are exact in
                float64, whose products are the fastest.
            cells: Their numbers (M,).
        """
        from scipy.sparse import csr_array

        n, sizes = self.trials.n, np.diff(self.at_target)[cells]
        rows = np.arange(sizes.sum()) + np.repeat(
            self.at_target[cells] - (np.cumsum(sizes) - sizes), sizes
        )
        numbers = np.repeat(np.arange(cells.size), sizes)
        targets = csr_array(
            (np.ones(rows.size), (numbers, self.trials.of_target[rows])), shape=(cells.size, n)
        )
        target = (targets @ draws).T
        nontarget = np.zeros((draws.shape[1], cells.size))

        def weigh(i: int) -> None:
            low, high = (int(self.at_nontarget[cells[i] + end]) for end in (0, 1))
            if low < high:
                enrolled, pairs = self._pairs(low, high)
                nontarget[:, i] = np.einsum("ab,ab->b", pairs @ draws, draws[enrolled])

        for _ in in_threads(weigh, range(cells.size)):
            pass
        return target.astype(np.int64), nontarget.astype(np.int64)

    def _matter(self, target: Counts, nontarget: Counts, metrics: list[Weighted]) -> Bools:
        """The cells (K,) that can hold the threshold of a metric, by their weights (B, K)."""
        first = np.zeros((len(target), 1), np.int64)
        misses = np.concatenate([first, np.cumsum(target, axis=1)], axis=1)
        rejected = np.concatenate([first, np.cumsum(nontarget, axis=1)], axis=1)
        sums = CellSums(misses, rejected[:, -1:] - rejected)
        matter = np.zeros(self.starts.size, dtype=np.bool_)
        for metric in metrics:
            matter |= metric.cells(sums).any(axis=0)
        return matter

    def _num_trials(self, which: Bools) -> int:
        """How many trials some of the cells (K,) hold."""
        return int(np.diff(self.at_target)[which].sum() + np.diff(self.at_nontarget)[which].sum())

    def thinned(self, c: Counts, metrics: list[Weighted]) -> Ranked | None:
        """The trials that can matter to the metrics in resamples c (B, n).

        None where these are so many that all may as well be weighed.
        """
        draws = np.ascontiguousarray(c.T, dtype=np.float64)
        target, nontarget = self.sums(draws, np.arange(self.starts.size))
        cells, matter = self, self._matter(target, nontarget, metrics)
        if self._num_trials(matter) > _SPLIT_FROM:
            cells = self._split(matter)
            whole = np.searchsorted(self.starts, cells.starts, side="right") - 1
            fresh = np.flatnonzero(matter[whole])
            target, nontarget = target[:, whole], nontarget[:, whole]
            target[:, fresh], nontarget[:, fresh] = cells.sums(draws, fresh)
            matter = cells._matter(target, nontarget, metrics)
        size = self.trials.order.target.size + self.trials.order.nontarget.size
        if cells._num_trials(matter) > _MOST_WEIGHED * size:
            return None
        return cells._weighed(matter, target, nontarget)

    def _weighed(self, matter: Bools, target: Counts, nontarget: Counts) -> Ranked:
        """The trials of the cells that matter, and the weights (B, K) of the others."""
        rows = [self._rows(matter, at) for at in (self.at_target, self.at_nontarget)]
        (target_rows, target_cells), (nontarget_rows, nontarget_cells) = rows
        order, trials = self.trials.order, self.trials
        assert trials.of_probe is not None
        target_scores = order.target[target_rows].copy()
        nontarget_scores = order.nontarget[nontarget_rows].copy()
        target_scores[target_cells] = nontarget_scores[nontarget_cells] = self.starts[~matter]
        return Ranked(
            Order(target_scores, nontarget_scores),
            trials.of_target[target_rows],
            trials.of_enrol[nontarget_rows],
            trials.of_probe[nontarget_rows],
            trials.n,
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
