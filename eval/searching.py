"""The search of identification: what is kept of probes that are searched in a gallery.

Identification needs only a probe's mate, its best rival and how many stand before the mate. That is
what a search keeps, block by block, never the scores of all probes against all subjects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.blocks import CELLS, TILE, borders, repeated, scorer
from eval.errors import LikenessError
from eval.memory import keep_freed_memory
from eval.progress import report
from eval.ranks import check_rows, prepared, same_kind
from eval.similarity import matrix, single
from eval.types import Floats, Floats32

Counts = NDArray[np.int64]

MANY_PROBES = 1 << 17  # more are never all in memory at once
_OWN_ROWS = 4096  # templates of mates that are read together


@dataclass(frozen=True, eq=False)
class Searched:
    """What identification keeps of Q probes searched in a gallery of S subjects.

    Made by `search` or `search_embeddings`.

    mate: (Q,) score of the probe's own subject, -inf without a mate. rival: (Q,) best score of any
    other subject, -inf if there is none.
    above, tied: (Q,) how many other subjects score above the mate, and just as high (0 without a
    mate).
    highest, highest_probe: (K,) the largest non-mated scores of all, descending, and their probes;
    K as asked for or all there are.
    """

    mate: Floats
    rival: Floats
    above: Counts
    tied: Counts
    highest: Floats
    highest_probe: Counts
    num_subjects: int

    @cached_property
    def mated(self) -> NDArray[np.bool_]:
        """(Q,) whether the probe's subject is in the gallery."""
        return self.mate > -np.inf

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """(Q,) whether the probe's subject stands alone at rank 1."""
        return self.mated & (self.mate > self.rival)

    @cached_property
    def tops(self) -> Floats:
        """(Q,) top scores of all probes, ascending."""
        return np.sort(np.maximum(self.mate, self.rival))

    @cached_property
    def mates(self) -> Floats:
        """(Q,) mates' scores of all probes, ascending."""
        return np.sort(self.mate)

    @cached_property
    def non_mated_first(self) -> Counts:
        """The probes without a mate, by descending top score."""
        probes = np.flatnonzero(~self.mated)
        return probes[np.argsort(-self.rival[probes], kind="stable")]


def search(
    scores: ArrayLike, gallery_subjects: ArrayLike, probe_subjects: ArrayLike, *, keep: int = 0
) -> Searched:
    """What identification needs of given scores (Q, G). keep: how many of the largest non-mated
    scores (the closed protocol needs ceil(fpir Q)).

    Raises:
        LikenessError: The scores are not (Q, G), there is no probe or no template, there is NaN or
            infinity, or labels are no integers or strings.
    """
    values = np.asarray(scores)
    enrolled, probes, mate = _labels(gallery_subjects, probe_subjects)
    if values.shape != (probes, enrolled.size) or values.dtype.kind not in "fiub":
        raise LikenessError(
            f"identification: scores are {values.dtype} of shape {values.shape}, but {probes} "
            f"probes and {enrolled.size} templates need a number each"
        )
    if values.dtype.kind != "f":
        values = values.astype(np.float64)
    order, starts = _grouped(enrolled)

    def block(rows: slice) -> NDArray[Any]:
        some = values[rows]
        if not np.isfinite(some).all():
            bad = np.argwhere(~np.isfinite(values))
            raise LikenessError(
                f"identification: {len(bad)} scores are NaN or infinite (first: probe "
                f"{bad[0][0] + 1}, template {bad[0][1] + 1}); score them again"
            )
        return (
            np.array(some) if order is None else np.maximum.reduceat(some[:, order], starts, axis=1)
        )

    column = np.argsort(enrolled) if order is None else np.arange(starts.size)
    whole = _Tile(0, starts.size, lambda: block)
    task = _Task([whole], np.arange(probes), np.where(mate >= 0, column[mate], -1), starts.size)
    return _search(task, enrolled.size, keep)


def search_embeddings(
    probes: ArrayLike,
    gallery: ArrayLike,
    gallery_subjects: ArrayLike,
    probe_subjects: ArrayLike,
    *,
    similarity: str = "cosine",
    keep: int = 0,
) -> Searched:
    """`search` straight from embeddings, in blocks: about 150 MB beside the inputs, whatever their
    number.

    probes: (Q, D) raw rows. gallery: (G, D). similarity: a name of eval.similarity. Equal rows give
    equal scores to the last bit, so ties stay ties.
    LikenessError: as for `search`, rows with NaN or infinity, D that differs, unknown similarity.
    """
    keep_freed_memory()
    enrolled, num_probes, mate = _labels(gallery_subjects, probe_subjects)
    x = _checked("probe", probes, num_probes)
    y = _checked("gallery", gallery, enrolled.size)
    small = enrolled.size <= TILE and num_probes <= MANY_PROBES
    make = _one_tile if small else _many_tiles
    return _search(make(x, y, enrolled, mate, similarity), enrolled.size, keep)


class _Tile(NamedTuple):
    """Subjects of a gallery, as columns of scores, that are scored together."""

    begin: int
    end: int
    open: Callable[[], Callable[[slice], NDArray[Any]]]
    """Its result gives fresh scores (rows, end - begin) of a slice of the sequence of probes."""


class _Task(NamedTuple):
    """A search: its tiles, and the probes in the sequence in which they are searched."""

    tiles: Sequence[_Tile]
    sequence: Counts  # (Q,)
    mate_column: Counts  # (Q,) of each probe, -1 without a mate
    num_subjects: int
    mates: Callable[[Counts], Floats] | None = None
    """Scores of some probes for their mates. None: they are those in the one tile."""


def _one_tile(
    probes: Floats32, gallery: Floats32, enrolled: Counts, mate: Counts, similarity: str
) -> _Task:
    """The search in a gallery that is scored whole. Equal rows are scored once."""
    (x, of_probe), (y, of_template) = _distinct(probes), _distinct(gallery)
    order, starts = _grouped(enrolled)
    # by subject, or as the templates were given
    columns = of_template if order is None else of_template[order]
    # equal probes side by side, and blocks that no row order changes
    all_distinct, sequence = len(x) == mate.size, np.argsort(of_probe, kind="stable")

    def block(rows: slice) -> NDArray[Any]:
        rows_of_block = of_probe[sequence[rows]]
        values = matrix(x[rows_of_block[0] : rows_of_block[-1] + 1], y, similarity)
        if not all_distinct:
            values = values[rows_of_block - rows_of_block[0]]
        if order is None and len(y) == enrolled.size:
            return values
        values = values[:, columns]
        return values if order is None else np.maximum.reduceat(values, starts, axis=1)

    if order is None:
        template = np.argsort(enrolled)  # of each subject
        column = of_template[template] if len(y) == enrolled.size else template
    else:
        column = np.arange(starts.size)
    whole = _Tile(0, starts.size, lambda: block)
    return _Task([whole], sequence, np.where(mate >= 0, column[mate], -1), starts.size)


def _many_tiles(
    probes: Floats32, gallery: Floats32, enrolled: Counts, mate: Counts, similarity: str
) -> _Task:
    """The search in a large gallery, of which no more than a tile is needed at a time.

    The scores of mates are products of two rows by themselves, so that they are known before the
    first tile, and how many subjects stand above them can be counted tile by tile.
    """
    order = np.argsort(enrolled, kind="stable")
    each = np.bincount(enrolled)
    starts = np.cumsum(each) - each
    # Rows that differ in length alone have the same cosines.
    twins = repeated(
        gallery,
        lambda rows: prepared(rows, slice(None), "cosine") if similarity == "cosine" else rows,
    )
    sequence = np.arange(mate.size)

    def opened(begin: int, end: int) -> Callable[[slice], NDArray[Any]]:
        first = starts[begin]
        templates = order[first : starts[end] if end < starts.size else order.size]
        scores = scorer(gallery[templates], twins[templates], similarity)
        single_templates = templates.size == end - begin

        def block(rows: slice) -> NDArray[Any]:
            values = scores(probes[rows])
            if single_templates:
                return values
            return np.maximum.reduceat(values, starts[begin:end] - first, axis=1)

        return block

    def mates(some: Counts) -> Floats:
        own = np.full(some.size, -np.inf)
        has = np.flatnonzero(mate[some] >= 0)
        counts = each[mate[some[has]]]
        ends = np.cumsum(counts)
        for part in np.split(has, np.flatnonzero(np.diff(ends // _OWN_ROWS)) + 1):
            if not part.size:
                continue
            subjects = mate[some[part]]
            counts = each[subjects]
            first = np.cumsum(counts) - counts
            inside = np.arange(int(counts.sum())) - np.repeat(first, counts)
            templates = order[np.repeat(starts[subjects], counts) + inside]
            of_probe = np.repeat(probes[some[part]], counts, axis=0)
            values = single(of_probe, gallery[templates], similarity)
            own[part] = np.maximum.reduceat(values, first)
        return own

    cuts = borders(starts, order.size, TILE).tolist()
    tiles = [_Tile(begin, end, partial(opened, begin, end)) for begin, end in pairwise(cuts)]
    return _Task(tiles, sequence, mate, starts.size, mates)


def _labels(gallery_subjects: ArrayLike, probe_subjects: ArrayLike) -> tuple[Counts, int, Counts]:
    """Gallery subjects as numbers 0..S-1 (G,), the number of probes, and each probe's subject among
    them, -1 without a mate (Q,).
    """
    probes, gallery = same_kind(probe_subjects, gallery_subjects)
    subjects, enrolled = np.unique(gallery, return_inverse=True)
    place = np.minimum(np.searchsorted(subjects, probes), subjects.size - 1)
    return enrolled.astype(np.int64), probes.size, np.where(subjects[place] == probes, place, -1)


def _grouped(enrolled: Counts) -> tuple[Counts | None, Counts]:
    """Templates ordered by subject, None if each subject has one; and where each subject begins in
    that order (S,).
    """
    each = np.bincount(enrolled)
    return (None if (each == 1).all() else np.argsort(enrolled, kind="stable")), np.cumsum(
        each
    ) - each


def _checked(name: str, rows: ArrayLike, count: int) -> Floats32:
    """The rows (count, D), all of whose numbers are finite."""
    values = np.ascontiguousarray(check_rows(f"{name} embeddings", rows))
    if len(values) != count:
        raise LikenessError(
            f"identification: {len(values)} {name} embeddings for {count} labels; give one label "
            "for each"
        )
    return values


def _distinct(rows: NDArray[np.float32]) -> tuple[NDArray[np.float32], Counts]:
    """The distinct rows, in an order of their own, and the one of each row given."""
    _, first, of_row = np.unique(
        rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel(),
        return_index=True,
        return_inverse=True,
    )
    return rows[first], of_row.astype(np.int64)


def _search(task: _Task, num_templates: int, keep: int) -> Searched:
    """Searches all probes in all tiles, block by block."""
    num_probes, num_tiles = task.sequence.size, len(task.tiles)
    step = max(1, CELLS // (num_templates if num_tiles == 1 else TILE))
    column = task.mate_column[task.sequence]
    mate = np.full(num_probes, -np.inf) if task.mates is None else task.mates(task.sequence)
    rival = np.full(num_probes, -np.inf)
    above, tied = np.zeros(num_probes, np.int64), np.zeros(num_probes, np.int64)
    highest = _Highest(keep)
    for number, tile in enumerate(task.tiles):
        score = tile.open()
        inside = (column >= tile.begin) & (column < tile.end)
        for start in range(0, num_probes, step):
            rows = slice(start, min(start + step, num_probes))
            scores = score(rows)
            own = np.flatnonzero(inside[rows])
            columns = column[rows][own] - tile.begin
            if task.mates is None:
                mate[rows][own] = scores[own, columns]
            scores[own, columns] = -np.inf
            best = scores.max(axis=1)
            np.maximum(rival[rows], best, out=rival[rows])
            behind = np.flatnonzero((column[rows] >= 0) & (best >= mate[rows]))
            if behind.size:
                marks = mate[rows][behind, None].astype(scores.dtype)
                above[rows][behind] += np.count_nonzero(scores[behind] > marks, axis=1)
                tied[rows][behind] += np.count_nonzero(scores[behind] == marks, axis=1)
            if keep:
                highest.add(scores, best, task.sequence[rows])
            report("searching", number * num_probes + rows.stop, num_tiles * num_probes)
    back = np.argsort(task.sequence)
    order = np.argsort(-highest.values, kind="stable")
    return Searched(
        mate[back],
        rival[back],
        above[back],
        tied[back],
        highest.values[order],
        highest.probes[order],
        task.num_subjects,
    )


class _Highest:
    """The `keep` largest scores that were added, and the probes that have them."""

    def __init__(self, keep: int) -> None:
        self.values, self.probes, self._floor = np.empty(0), np.empty(0, np.int64), -np.inf
        self._keep = keep

    def add(self, scores: NDArray[Any], best: NDArray[Any], probes: Counts) -> None:
        """Adds scores (rows, S); best: the largest of each row."""
        keep = self._keep
        # a first floor, or the whole first block would pass
        if not self.values.size and scores.size > keep:
            lowest = np.partition(scores, scores.size - keep, axis=None)[scores.size - keep]
            self._floor = float(np.nextafter(lowest, scores.dtype.type(-np.inf)))
        rows = np.flatnonzero(best > self._floor)
        at = np.nonzero(scores[rows] > self._floor)
        self.values = np.concatenate([self.values, scores[rows[at[0]], at[1]]])
        self.probes = np.concatenate([self.probes, probes[rows[at[0]]]])
        if self.values.size > keep:
            kept = np.argpartition(-self.values, keep - 1)[:keep]
            self.values, self.probes = self.values[kept], self.probes[kept]
            self._floor = float(self.values.min())
