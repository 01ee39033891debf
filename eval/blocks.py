"""Exact search in a large gallery, block by block: tiles of its rows against blocks of queries.

A tile and a block of queries are small enough for the cache of a processor, whatever the size of
the gallery. For retrieval, only the scores of a query's relevant items and the `depth` highest of
all others are kept from one tile to the next. The ranks are those of eval.ranks, exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from eval.progress import report
from eval.ranks import Counts, Ranks, prepared, ranks_among, row_keys
from eval.similarity import against, single
from eval.types import Bools, Floats32

TILE = 1 << 14  # rows of the gallery
CELLS = 1 << 23  # scores held at once: 32 MB in float32
_ROWS = 4096  # compared at a time
_KEPT = 1 << 24  # highest and relevant scores of the queries that are searched together: 64 MB each
_ROOM = 4  # so many times the scores that are needed are kept, before the lowest are cut
_SAMPLED = 16  # one of so many scores is enough to see where the highest begin
_LOWEST = np.finfo(np.float32).min


def borders(starts: Counts, total: int, tile: int) -> Counts:
    """Where tiles begin and end, as numbers of groups, so that no group is cut.

    Args:
        starts: (S,) the first row of each group, ascending from 0.
        total: How many rows there are.
        tile: How many rows a tile should have. A border that would cut a group moves to its end, so
            that a tile may have fewer rows, or the rows of a group more.

    Returns:
        (T + 1,) from 0 to S.

    Example:
        >>> borders(np.array([0, 2, 3, 7]), 8, 4).tolist()
        [0, 3, 4]
    """
    num_tiles = -(-total // tile)
    ideal = np.arange(1, num_tiles) * total // num_tiles
    inner = np.searchsorted(starts, ideal)
    return np.unique(np.concatenate([[0], inner, [starts.size]])).astype(np.int64)


def repeated(
    rows: Floats32, prepare: Callable[[Floats32], Floats32] = np.ascontiguousarray
) -> Bools:
    """(N,) which rows are equal, bit for bit, to another one; and perhaps a few more.

    Args:
        rows: (N, D).
        prepare: What is done to rows before they are compared.
    """
    num_rows = len(rows)
    keys = np.empty(num_rows, dtype=np.uint32)
    for start in range(0, num_rows, _ROWS):
        # Adding 0 makes -0 equal to 0 in its bits too.
        part = prepare(rows[start : start + _ROWS]) + np.float32(0)
        keys[start : start + _ROWS] = row_keys(part)
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    marked = np.zeros(num_rows, dtype=np.bool_)
    marked[order[np.append(same, False) | np.append(False, same)]] = True
    return marked


def scorer(rows: Floats32, is_repeated: Bools, similarity: str) -> Callable[[Floats32], Floats32]:
    """Scores of probes against the rows of a tile, (P, D) -> (P, T).

    Rows that stand elsewhere in the gallery too get their scores one by one, so that they tie
    exactly: the last digit of a matrix product may depend on where a row stands in it.
    """
    product, twins = against(rows, similarity), np.flatnonzero(is_repeated)

    def scores(probes: Floats32) -> Floats32:
        # A product with a single row rounds in another way than one with several.
        several = np.repeat(probes, 2, axis=0) if len(probes) == 1 else probes
        values = product(several)[: len(probes)]
        if twins.size:
            values[:, twins] = single(probes[:, None], rows[None, twins], similarity)
        return values

    return scores


def rank_tiles(
    queries: Floats32,
    query_codes: Counts,
    gallery: Floats32 | None,
    gallery_codes: Counts,
    *,
    similarity: str,
    depth: int,
) -> Iterator[tuple[Counts, Ranks]]:
    """The ranks of `eval.ranks.rank_blocks` in a large gallery, with its arguments and errors."""
    order = np.argsort(gallery_codes, kind="stable")  # each class becomes a slice
    numbers = order if gallery is None else np.arange(query_codes.size)
    begin, end = (
        np.searchsorted(gallery_codes[order], query_codes[numbers], side=side)
        for side in ("left", "right")
    )
    most_relevant = max(1, int((end - begin).max()))
    height = max(1, min(_KEPT // (_ROOM * depth), _KEPT // most_relevant))
    source = queries if gallery is None else gallery
    twins = repeated(source, lambda rows: prepared(rows, slice(None), similarity))
    # Rows of length 1 have their cosine as inner product.
    compared = "dot" if similarity == "cosine" else similarity
    cuts = borders(np.arange(order.size), order.size, TILE).tolist()
    for start in range(0, numbers.size, height):
        part = numbers[start : start + height]
        x = prepared(queries[part], slice(None), similarity)
        blocks = [slice(k, k + CELLS // TILE) for k in range(0, part.size, CELLS // TILE)]
        best = [_Best(part[block].size, min(depth, order.size)) for block in blocks]
        for first, last in pairwise(cuts):
            rows = order[first:last]
            scores_of = scorer(
                prepared(source[rows], slice(None), similarity), twins[rows], compared
            )
            for block, kept in zip(blocks, best, strict=True):
                scores = scores_of(x[block])
                here = np.arange(start, start + part.size)[block]
                if gallery is None:
                    inside = np.flatnonzero((here >= first) & (here < last))
                    scores[inside, here[inside] - first] = -np.inf
                kept.add(
                    scores, *(np.clip(edge[here], first, last) - first for edge in (begin, end))
                )
            report("searching", start * order.size + part.size * last, numbers.size * order.size)
        for block, kept in zip(blocks, best, strict=True):
            yield part[block], kept.ranks()


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
