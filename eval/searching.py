"""The search of identification: what is kept of probes that are searched in a gallery.

Identification needs only a probe's mate, its best rival and how many stand before the mate. That is
what a search keeps, block by block, never the scores of all probes against all subjects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.blocks import CELLS, TILE, borders, repeated, scorer
from eval.errors import LikenessError
from eval.memory import keep_freed_memory
from eval.progress import report
from eval.ranks import check_rows, prepared, row_keys, same_kind
from eval.similarity import single
from eval.types import Floats, Floats32

Counts = NDArray[np.int64]

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
    if not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))
        raise LikenessError(
            f"identification: {len(bad)} scores are NaN or infinite (first: probe {bad[0][0] + 1}, "
            f"template {bad[0][1] + 1}); score them again"
        )
    return _search(
        np.argsort(enrolled, kind="stable"),
        np.bincount(enrolled),
        mate,
        lambda templates: lambda rows: values[rows][:, templates],
        lambda some, templates: values[some, templates].astype(np.float64),
        keep,
    )


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
    # Rows that differ in length alone have the same cosines.
    twins = repeated(
        y, lambda rows: prepared(rows, slice(None), "cosine") if similarity == "cosine" else rows
    )

    # The last digit of a product may depend on where a row stands, so rows stand in an order of
    # their own.
    order = np.lexsort((row_keys(y), enrolled))
    sequence = np.argsort(row_keys(x), kind="stable")

    def scores_of(templates: Counts) -> Callable[[slice], NDArray[Any]]:
        scores = scorer(y[templates], twins[templates], similarity)
        return lambda rows: scores(x[sequence[rows]])

    found = _search(
        order,
        np.bincount(enrolled),
        mate[sequence],
        scores_of,
        lambda some, templates: single(x[sequence[some]], y[templates], similarity),
        keep,
    )
    back = np.argsort(sequence)
    return replace(
        found,
        mate=found.mate[back],
        rival=found.rival[back],
        above=found.above[back],
        tied=found.tied[back],
        highest_probe=sequence[found.highest_probe],
    )


def _labels(gallery_subjects: ArrayLike, probe_subjects: ArrayLike) -> tuple[Counts, int, Counts]:
    """Gallery subjects as numbers 0..S-1 (G,), the number of probes, and each probe's subject among
    them, -1 without a mate (Q,).
    """
    probes, gallery = same_kind(probe_subjects, gallery_subjects)
    subjects, enrolled = np.unique(gallery, return_inverse=True)
    place = np.minimum(np.searchsorted(subjects, probes), subjects.size - 1)
    return enrolled.astype(np.int64), probes.size, np.where(subjects[place] == probes, place, -1)


def _checked(name: str, rows: ArrayLike, count: int) -> Floats32:
    """The rows (count, D), all of whose numbers are finite."""
    values = np.ascontiguousarray(check_rows(f"{name} embeddings", rows))
    if len(values) != count:
        raise LikenessError(
            f"identification: {len(values)} {name} embeddings for {count} labels; give one label "
            "for each"
        )
    return values


def _search(
    order: Counts,
    each: Counts,
    mate: Counts,
    scores_of: Callable[[Counts], Callable[[slice], NDArray[Any]]],
    pairs_of: Callable[[Counts, Counts], NDArray[Any]],
    keep: int,
) -> Searched:
    """Searches all probes in a gallery, of which no more than a tile is needed at a time.

    The scores of mates come first, so that how many subjects stand above them can be counted tile
    by tile.

    Args:
        order: (G,) the templates by subject.
        each: (S,) how many templates each subject has.
        mate: (Q,) the subject of each probe, -1 without a mate.
        scores_of: Templates (T,) -> a slice of the probes -> their scores (rows, T), which are
            overwritten.
        pairs_of: Probes (K,) and templates (K,) -> the scores (K,) of these pairs.
        keep: How many of the largest non-mated scores are kept.
    """
    starts = np.cumsum(each) - each
    own_score = _own_scores(mate, order, each, pairs_of)
    rival = np.full(mate.size, -np.inf)
    above, tied = np.zeros(mate.size, np.int64), np.zeros(mate.size, np.int64)
    highest = _Highest(keep)
    cuts = borders(starts, order.size, TILE).tolist()
    step = max(1, CELLS // min(TILE, order.size))
    for begin, end in pairwise(cuts):
        first = starts[begin]
        templates = order[first : starts[end] if end < starts.size else order.size]
        score = scores_of(templates)
        for start in range(0, mate.size, step):
            rows = slice(start, min(start + step, mate.size))
            scores = score(rows)
            if templates.size > end - begin:
                scores = np.maximum.reduceat(scores, starts[begin:end] - first, axis=1)
            own = np.flatnonzero((mate[rows] >= begin) & (mate[rows] < end))
            scores[own, mate[rows][own] - begin] = -np.inf
            best = scores.max(axis=1)
            np.maximum(rival[rows], best, out=rival[rows])
            behind = np.flatnonzero((mate[rows] >= 0) & (best >= own_score[rows]))
            if behind.size:
                marks = own_score[rows][behind, None].astype(scores.dtype)
                above[rows][behind] += np.count_nonzero(scores[behind] > marks, axis=1)
                tied[rows][behind] += np.count_nonzero(scores[behind] == marks, axis=1)
            if keep:
                highest.add(scores, best, np.arange(rows.start, rows.stop))
            done = first * mate.size + rows.stop * templates.size
            report("searching", done, order.size * mate.size)
    falling = np.argsort(-highest.values, kind="stable")
    return Searched(
        own_score,
        rival,
        above,
        tied,
        highest.values[falling],
        highest.probes[falling],
        starts.size,
    )


def _own_scores(
    mate: Counts,
    order: Counts,
    each: Counts,
    pairs_of: Callable[[Counts, Counts], NDArray[Any]],
) -> Floats:
    """(Q,) the best score of each probe with the templates of its own subject; -inf without one."""
    own = np.full(mate.size, -np.inf)
    starts = np.cumsum(each) - each
    has = np.flatnonzero(mate >= 0)
    ends = np.cumsum(each[mate[has]])
    for part in np.split(has, np.flatnonzero(np.diff(ends // _OWN_ROWS)) + 1):
        if not part.size:
            continue
        counts = each[mate[part]]
        first = np.cumsum(counts) - counts
        inside = np.arange(int(counts.sum())) - np.repeat(first, counts)
        templates = order[np.repeat(starts[mate[part]], counts) + inside]
        values = pairs_of(np.repeat(part, counts), templates)
        own[part] = np.maximum.reduceat(values, first)
    return own


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
