"""Where the relevant gallery items of each query rank: all that a retrieval metric needs, from one
blockwise matrix product.

A block of queries is scored against one tile of the gallery after another. The relevant items'
scores are taken out; of the others only the `depth` highest are kept (values, no indices). Two
binary searches then say how many lie above, and level with, each relevant item. Memory: a block of
at most 160 MB, whatever the number of items, and a copy of the gallery where it is small.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.similarity import make_scorer
from likeness.eval.progress import report
from likeness.eval.types import Floats32, ascending, norms_of, unit_rows

Counts = NDArray[np.int64]

_CELLS = 40_000_000  # scores held at once: 160 MB
_TILE = 1 << 16  # items of the gallery that are scored at once
_RELEVANT = 2_000_000  # relevant items held at once
_ROWS = 4096  # scaled or compared at once
_LONGEST = 1e19  # the square of this norm is near the end of float32
LARGE = 1 << 17  # items of a gallery, above which it is not copied


class Ranks(NamedTuple):
    """The relevant items of Q queries, one entry per query and distinct score, ordered by query,
    then from the highest score down.

    query: (T,) 0..Q-1. above: items of any class that score higher. size: items that score the
    same, these included (1 where nothing is tied).
    hits: how many of those are relevant. before: relevant items above. relevant: (Q,) R, the
    relevant items of each query; 0 for a lone query. Places up to the depth that was asked for are
    exact; what lies deeper only has above >= depth.
    """

    query: Counts
    above: Counts
    size: Counts
    before: Counts
    hits: Counts
    relevant: Counts


def label_codes(
    labels: ArrayLike, gallery_labels: ArrayLike | None = None
) -> tuple[Counts, Counts]:
    """Class numbers 0..C-1 of queries (Q,) and gallery (G,), of integers or strings of any size;
    the second is the first if there is no gallery.

    LikenessError for floats, mixed kinds, or a wrong shape.

    >>> label_codes([2**62, 7, 2**62 + 1])[0]
    array([1, 0, 2])
    """
    sides = same_kind(*(side for side in (labels, gallery_labels) if side is not None))
    codes: Counts = np.unique(np.concatenate(sides), return_inverse=True)[1].astype(np.int64)
    return codes[: sides[0].size], codes[codes.size - sides[-1].size :]


def same_kind(*sides: ArrayLike) -> list[NDArray[Any]]:
    """Labels of several sides that compare exactly: integers of any size, or texts."""
    labels = []
    for side in sides:
        values = np.asarray(side)
        if values.dtype == object and all(isinstance(label, str) for label in values.flat):
            values = values.astype(np.str_)
        exact = values.dtype.kind in "iuUS" or (
            values.dtype == object and all(isinstance(label, int) for label in values.flat)
        )
        if values.ndim != 1 or not exact:
            what = f"{values.dtype} of shape {values.shape}"
            raise LikenessError(f"labels: {what}; give integers or texts (N,)")
        labels.append(values)
    if len({side.dtype.kind in "US" for side in labels}) > 1:
        raise LikenessError("some labels are integers and others texts; write all the same way")
    if {side.dtype.kind for side in labels} == {"i", "u"}:  # numpy would join them as floats
        return [side.astype(object) for side in labels]
    return labels


def check_rows(name: str, rows: ArrayLike, labels: Counts | None = None) -> Floats32:
    """(N, D) float32, each with a label where there are labels.

    LikenessError for a wrong shape, no rows, NaN or infinity.
    """
    with np.errstate(over="ignore"):
        values = np.asarray(rows, dtype=np.float32)
    fits = values.ndim == 2 and values.size and (labels is None or len(labels) == len(values))
    if not fits or not np.isfinite(values).all():
        expected = "N >= 1" if labels is None else len(labels)
        raise LikenessError(f"{name}: shape {values.shape}; give finite rows ({expected}, D)")
    return values


def prepare_rows(rows: Floats32, similarity: str) -> Floats32:
    """A copy of the rows, of length 1 for the cosine; zero rows stay zero."""
    rows = rows + np.float32(0)  # -0.0 becomes 0.0: equal rows are equal bit for bit
    if similarity == "cosine":
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            part[:] = unit_rows(part, norms_of(part))
    return rows


def row_keys(rows: Floats32) -> NDArray[np.uint32]:
    """A number for each row (N, D): rows that are equal bit for bit share it, and few others do."""
    weights = np.random.default_rng(0).integers(1 << 32, size=rows.shape[1], dtype=np.uint32)
    keys: NDArray[np.uint32] = np.einsum("nd,d->n", rows.view(np.uint32), weights | np.uint32(1))
    return keys  # sums modulo 2^32


def duplicates(rows: Floats32, similarity: str) -> tuple[Counts, Counts]:
    """Rows that repeat another bit for bit after `prepare_rows`, and that other one: their scores
    must tie, whatever order a BLAS kernel adds in.
    """

    def blocks(order: Counts) -> Iterator[Floats32]:
        for start in range(0, order.size, _ROWS):
            yield prepare_rows(rows[order[start : start + _ROWS]], similarity)

    keys = np.concatenate([row_keys(block) for block in blocks(np.arange(len(rows)))])
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    later = np.flatnonzero(first[which] != np.arange(keys.size))
    original = first[which[later]]
    same = [
        np.all(left.view(np.uint32) == other.view(np.uint32), axis=1)
        for left, other in zip(blocks(later), blocks(original), strict=True)
    ]
    equal = np.concatenate([np.zeros(0, dtype=np.bool_), *same])
    return later[equal], original[equal]


def rank_blocks(
    queries: Floats32,
    query_codes: Counts,
    gallery: Floats32 | None,
    gallery_codes: Counts,
    *,
    similarity: str,
    depth: int,
    by_position: bool = False,
    drop_first: bool = False,
    itself: tuple[Counts, Counts] | None = None,
) -> Iterator[tuple[slice, Ranks]]:
    """Blocks of queries and their Ranks; every query once. gallery=None: queries are the gallery,
    each without itself.

    by_position: tied items rank in the order of their rows, as sequential tools do it; every size
    is then 1 and depth the whole gallery.
    drop_first: with by_position and without a gallery, what ranks first is dropped instead of the
    query itself (RDML).
    itself: (K,) queries in ascending order and (K,) rows of the gallery that are the same items,
    which are not searched. None: those of the same row, without a gallery.
    LikenessError: unknown similarity, inner products beyond float32.
    """
    items = queries if gallery is None else gallery
    longest = norms_of(items).max()
    if similarity != "cosine" and longest > _LONGEST:
        raise LikenessError(f"{similarity}: rows of norm {longest:.3g} overflow; scale them down")
    order = np.argsort(gallery_codes, kind="stable")
    begin, end = (
        np.searchsorted(gallery_codes[order], query_codes, side=side) for side in ("left", "right")
    )
    later, original = duplicates(items, similarity)
    if itself is None:
        itself = (np.arange(len(queries) if gallery is None and not drop_first else 0),) * 2
    scores_of = _scorer(queries, gallery, similarity)
    depth = min(depth, len(items))
    width = len(items) if by_position else min(len(items), max(_TILE, 16 * depth))
    held = width + later.size + (depth if width < len(items) else 0)
    most_relevant = max(1, int((end - begin).max()))
    height = max(1, min(len(queries), _CELLS // held, _RELEVANT // most_relevant))
    buffer = np.empty(height * width, dtype=np.float32)
    of_original = np.empty((height, later.size), dtype=np.float32)

    def tiles(part: slice, asked: Counts, found: Counts) -> Iterator[tuple[int, Floats32]]:
        num = part.stop - part.start
        for left in range(0, len(items), width):
            right = min(left + width, len(items))
            scores = buffer[: num * (right - left)].reshape(num, -1)
            scores_of(part, slice(left, right), scores)
            here = (original >= left) & (original < right)
            of_original[:num, here] = scores[:, original[here] - left]
            here = (later >= left) & (later < right)
            scores[:, later[here] - left] = of_original[:num, here]
            here = (found >= left) & (found < right)
            scores[asked[here], found[here] - left] = -np.inf
            report("searching", part.start + num * right // len(items), len(queries))
            yield left, scores

    for start in range(0, len(queries), height):
        part = slice(start, min(start + height, len(queries)))
        relevant = [order[b:e] for b, e in zip(begin[part], end[part], strict=True)]
        own = slice(*np.searchsorted(itself[0], (start, part.stop)).tolist())
        asked, found = itself[0][own] - start, itself[1][own]
        for query, row in zip(asked.tolist(), found.tolist(), strict=True):
            relevant[query] = relevant[query][relevant[query] != row]
        scored = tiles(part, asked, found)
        if by_position:
            yield part, _ranks_by_position(next(scored)[1], relevant, drop_first)
        else:
            yield part, _ranks(scored, relevant, depth)


def _scorer(
    queries: Floats32, gallery: Floats32 | None, similarity: str
) -> Callable[[slice, slice, Floats32], object]:
    """Scores of some queries against some of the gallery, written into an array."""
    items = queries if gallery is None else gallery
    if similarity not in ("cosine", "dot"):
        of_tile = cache(lambda left, right: make_scorer(items[left:right], similarity))
        return lambda part, tile, out: np.copyto(out, of_tile(tile.start, tile.stop)(queries[part]))
    if len(items) <= LARGE:
        y = prepare_rows(items, similarity)
        x = y if gallery is None else prepare_rows(queries, similarity)
        # of a matrix with itself, numpy takes the symmetric product at two thirds of the cost
        return lambda part, tile, out: np.matmul(x[part], y[tile].T, out=out)
    norms = norms_of(items) if similarity == "cosine" else np.ones(len(items))
    lengths = np.where(norms > 0, norms, 1.0).astype(np.float32)

    def write(part: slice, tile: slice, out: Floats32) -> None:
        np.matmul(prepare_rows(queries[part], similarity), items[tile].T, out=out)
        np.divide(out, lengths[tile], out=out)

    return write


def _ranks(tiles: Iterable[tuple[int, Floats32]], relevant: Sequence[Counts], depth: int) -> Ranks:
    """Overwrites the scores.

    Args:
        tiles: The first row of each tile of the gallery, and the scores (Q, T) of its rows.
        relevant: The rows of each query.
        depth: How many scores of the other rows are kept; the first tile has at least so many.
    """
    sizes = np.array([rows.size for rows in relevant], dtype=np.int64)
    query, row = np.repeat(np.arange(sizes.size), sizes), np.concatenate(relevant)
    values = np.empty(row.size, dtype=np.float32)
    highest = [(np.empty(0, dtype=np.float32), 0)] * sizes.size
    for left, scores in tiles:
        here = (row >= left) & (row < left + scores.shape[1])
        cells = query[here], row[here] - left
        values[here] = scores[cells]
        scores[cells] = -np.inf
        highest = [_highest(line, depth, *top) for line, top in zip(scores, highest, strict=True)]
    starts = np.cumsum(sizes) - sizes
    right, level = np.empty((2, values.size), dtype=np.int64)
    for (of_query, num_lowest), start, end in zip(highest, starts, starts + sizes, strict=True):
        mine = slice(start, end)
        values[mine] = np.sort(values[mine])[::-1]
        right[mine] = of_query.searchsorted(values[mine], side="right")
        level[mine] = right[mine] - of_query.searchsorted(values[mine], side="left")
        level[mine][values[mine] == of_query[0]] = num_lowest  # the tie goes on below the cut
    differs = (query[1:] != query[:-1]) | (values[1:] != values[:-1])
    first = np.flatnonzero(np.append(True, differs)[: values.size])
    hits = np.diff(np.append(first, values.size))
    before = first - starts[query[first]]
    above, size = depth - right[first] + before, level[first] + hits
    return Ranks(query[first], above, size, before, hits, sizes)


def _highest(line: Floats32, depth: int, known: Floats32, num_lowest: int) -> tuple[Floats32, int]:
    """The highest scores (depth,) of a query, in ascending order, and how many in all are level
    with the lowest of them.

    Args:
        line: Scores (N,), which are brought into another order.
        depth: How many are wanted.
        known: The highest of other scores, none or `depth`.
        num_lowest: How many of the other scores are level with the lowest of these.
    """
    if known.size:
        line = np.concatenate([known, line[line >= known[0]]])
    cut = line.size - depth
    if cut:
        line.partition(cut)
    highest = np.sort(line[cut:])
    num_level = int(np.count_nonzero(line == highest[0]))
    if known.size and known[0] == highest[0]:
        num_level += num_lowest - int(np.count_nonzero(known == known[0]))
    return highest, num_level


def _ranks_by_position(scores: Floats32, relevant: Sequence[Counts], drop_first: bool) -> Ranks:
    """Every relevant item by itself; of equal scores the earlier row is first."""
    places: list[Counts] = []
    for line, rows in zip(scores, relevant, strict=True):
        place = np.flatnonzero(np.isin(ascending(-line), rows))
        places.append(place[place > 0] - 1 if drop_first else place)
    query = np.repeat(np.arange(len(places)), [place.size for place in places])
    before = np.concatenate([np.arange(place.size) for place in places])
    ones = np.ones_like(query)
    num_relevant = np.array([rows.size - drop_first for rows in relevant], dtype=np.int64)
    return Ranks(query, np.concatenate(places), ones, before, ones, num_relevant)
