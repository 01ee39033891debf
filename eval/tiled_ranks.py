"""Ranks in a gallery too large to be scored at once: tile by tile, in parts of the queries.

Of the scores of a query, only those of its relevant items and the `depth` highest of all others are
kept from one tile to the next. The ranks are those of eval.ranks, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from eval.ranks import Counts, Ranks, prepared, ranks_among
from eval.tiles import CELLS, PART_CELLS, TILE, borders, repeated, scorer
from eval.types import Bools, Floats32

_KEPT = 1 << 24  # highest and relevant scores of a part: 64 MB each
_ROOM = 4  # so many times the scores that are needed are kept, before the lowest are cut
_SAMPLED = 16  # one of so many scores is enough to see where the highest begin
_LOWEST = np.finfo(np.float32).min


@dataclass(frozen=True, eq=False)
class LargeSearch:
    """A retrieval of Q queries from a large gallery.

    Attributes:
        queries: (Q, D) raw rows.
        gallery: (G, D), or None where the queries search each other.
        similarity: A name of eval.similarity.
        depth: How many of the highest scores are kept of each query.
        order: (G,) the rows of the gallery, class by class.
        numbers: (Q,) the queries in the sequence in which they are searched.
        begin, end: (Q,) where the class of each query of the sequence stands in `order`.
        twins: (G,) which rows of the gallery are equal to others.
    """

    queries: Floats32
    gallery: Floats32 | None
    similarity: str
    depth: int
    order: Counts
    numbers: Counts
    begin: Counts
    end: Counts
    twins: Bools

    @property
    def parts(self) -> list[slice]:
        """The parts of the sequence; they follow from the sizes alone."""
        most_relevant = max(1, int((self.end - self.begin).max()))
        step = CELLS // TILE
        height = step * max(1, PART_CELLS // (step * self.order.size))
        height = max(1, min(height, _KEPT // (_ROOM * self.depth), _KEPT // most_relevant))
        size = self.numbers.size
        return [slice(k, min(k + height, size)) for k in range(0, size, height)]

    def ranks(
        self, part: slice, advance: Callable[[int], object]
    ) -> Iterator[tuple[Counts, Ranks]]:
        """The ranks of a part, block by block, as `eval.ranks.rank_blocks`."""
        source = self.queries if self.gallery is None else self.gallery
        numbers, step = self.numbers[part], CELLS // TILE
        x = prepared(self.queries[numbers], slice(None), self.similarity)
        blocks = [slice(k, min(k + step, numbers.size)) for k in range(0, numbers.size, step)]
        best = [_Best(b.stop - b.start, min(self.depth, self.order.size)) for b in blocks]
        # Rows of length 1 have their cosine as inner product.
        compared = "dot" if self.similarity == "cosine" else self.similarity
        cuts = borders(np.arange(self.order.size), self.order.size, TILE).tolist()
        for first, last in pairwise(cuts):
            rows = self.order[first:last]
            y = prepared(source[rows], slice(None), self.similarity)
            scores_of = scorer(y, self.twins[rows], compared)
            for block, kept in zip(blocks, best, strict=True):
                scores = scores_of(x[block])
                here = slice(part.start + block.start, part.start + block.stop)
                if self.gallery is None:
                    own = np.arange(here.start, here.stop)
                    inside = np.flatnonzero((own >= first) & (own < last))
                    scores[inside, own[inside] - first] = -np.inf
                begin, end = (
                    np.clip(edge[here], first, last) - first for edge in (self.begin, self.end)
                )
                kept.add(scores, begin, end)
                advance(block.stop * (last - first) + numbers.size * first)
        for block, kept in zip(blocks, best, strict=True):
            yield numbers[block], kept.ranks()


def large_search(
    queries: Floats32,
    query_codes: Counts,
    gallery: Floats32 | None,
    gallery_codes: Counts,
    *,
    similarity: str,
    depth: int,
) -> LargeSearch:
    """Prepares a search. Arguments and errors: those of `eval.ranks.rank_blocks`."""
    order = np.argsort(gallery_codes, kind="stable")
    numbers = order if gallery is None else np.arange(query_codes.size)
    begin, end = (
        np.searchsorted(gallery_codes[order], query_codes[numbers], side=side)
        for side in ("left", "right")
    )
    twins = repeated(
        queries if gallery is None else gallery,
        lambda rows: prepared(rows, slice(None), similarity),
    )
    return LargeSearch(queries, gallery, similarity, depth, order, numbers, begin, end, twins)


class _Best:
    """The scores of the relevant items of B queries, and the highest of all other items.

    `kept` has all others above `floor`. Where at least `depth` of them are not below it, `level`
    counts those that are equal to it.
    """

    def __init__(self, num_queries: int, depth: int) -> None:
        self._depth = depth
        self._kept = np.full((num_queries, _ROOM * depth), -np.inf, dtype=np.float32)
        self._fill = np.zeros(num_queries, dtype=np.int64)
        self._floor = np.full(num_queries, _LOWEST, dtype=np.float32)
        self._level = np.zeros(num_queries, dtype=np.int64)
        self._queries: list[Counts] = []
        self._relevant: list[Floats32] = []

    def add(self, scores: Floats32, begin: Counts, end: Counts) -> None:
        """Adds scores (B, T), which are overwritten; the relevant ones are begin to end."""
        counts = end - begin
        query = np.repeat(np.arange(counts.size), counts)
        column = np.arange(query.size) + np.repeat(begin - np.cumsum(counts) + counts, counts)
        values = scores[query, column]
        scores[query, column] = -np.inf
        others = values > -np.inf  # the query itself is not relevant
        self._queries.append(query[others])
        self._relevant.append(values[others])
        if self._append(scores):
            return
        self._cut(self._kept)
        self._raise(scores)
        if not self._append(scores):
            floor = self._floor[:, None]
            self._level += np.count_nonzero(scores == floor, axis=1)
            scores[scores <= floor] = -np.inf
            self._cut(np.concatenate([self._kept, scores], axis=1))

    def _append(self, scores: Floats32) -> bool:
        """Keeps the scores above the floor, and counts those at it. False: there is no room."""
        enough = scores >= self._floor[:, None]
        if 2 * np.count_nonzero(enough) > self._kept.size:
            return False
        at = np.flatnonzero(enough)  # several times as fast as with two dimensions
        rows, values = at // scores.shape[1], scores.ravel().take(at)
        higher = values > self._floor[rows]
        above, num_rows = rows[higher], len(scores)
        more = np.bincount(above, minlength=num_rows)
        if (self._fill + more).max() > self._kept.shape[1]:
            return False
        self._level += np.bincount(rows[~higher], minlength=num_rows)
        place = np.arange(above.size) + np.repeat(self._fill - np.cumsum(more) + more, more)
        self._kept[above, place] = values[higher]
        self._fill += more
        return True

    def _raise(self, scores: Floats32) -> None:
        """Raises the floor to a score that a sample suggests, where `depth` scores are above it."""
        sample = scores[:, ::_SAMPLED]
        place = sample.shape[1] - (self._depth + self._depth // 2) // _SAMPLED - 8
        if place < 0:
            return
        suggested = np.partition(sample, place, axis=1)[:, place]
        valid = np.count_nonzero(scores > suggested[:, None], axis=1) >= self._depth
        raised = valid & (suggested > self._floor)
        self._floor = np.where(raised, suggested, self._floor)
        self._level[raised] = 0

    def _cut(self, scores: Floats32) -> None:
        """Keeps the highest of these scores, of which all others were at most the floor."""
        last = scores.shape[1] - self._depth
        highest = np.partition(scores, last, axis=1)[:, last:]
        raised = highest[:, 0] > self._floor
        at_new = np.count_nonzero(scores == highest[:, :1], axis=1)
        self._level = np.where(raised, at_new, self._level)
        self._floor = np.where(raised, highest[:, 0], self._floor)
        highest[highest <= self._floor[:, None]] = -np.inf
        highest.sort(axis=1)
        self._kept[:, : self._depth] = highest[:, ::-1]
        self._kept[:, self._depth :] = -np.inf
        self._fill = np.count_nonzero(highest > -np.inf, axis=1)

    def ranks(self) -> Ranks:
        """The ranks of the relevant items among all."""
        self._cut(self._kept)
        top = self._kept[:, : self._depth][:, ::-1]
        # Below all that are above the floor stand those at it.
        floor = np.where(self._level > 0, self._floor, -np.inf)[:, None]
        top = np.where(top > -np.inf, top, floor).astype(np.float32)
        query, values = np.concatenate(self._queries), np.concatenate(self._relevant)
        order = np.lexsort((-values, query))
        ends = np.cumsum(np.bincount(query, minlength=len(top)))
        relevant = np.split(values[order], ends[:-1])
        return ranks_among(relevant, top, lambda row: int(self._level[row]))
