"""Where the relevant gallery items of each query rank: all that a retrieval metric needs, from one
blockwise matrix product.

Scores of a block of queries against the whole gallery; the relevant items' scores are taken out; of
the others only the `depth` highest are partially selected and sorted (values, no indices); two
binary searches say how many lie above, and level with, each relevant item. Memory: one copy of the
rows and a block of at most 160 MB, whatever the number of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.errors import LikenessError
from eval.progress import report
from eval.similarity import matrix
from eval.types import Floats, Floats32

Counts = NDArray[np.int64]

_CELLS = 40_000_000  # scores held at once: 160 MB
_RELEVANT = 2_000_000  # relevant items held at once
# relevant items of a query, up to which counting them one by one is faster than a whole sort
_FEW = 40
_ROWS = 4096  # scaled or compared at once
_LONGEST = 1e19  # the square of this norm is near the end of float32


class Ranks(NamedTuple):
    """The relevant items of Q queries, one entry per query and distinct score, ordered by query,
    then from the highest score down.

    query: (T,) 0..Q-1. above: items of any class that score higher. size: items that score the
    same, these included (1 where nothing is tied).
    hits: how many of those are relevant. before: relevant items above. relevant: (Q,) R, the
    relevant items of each query; 0 for a lone query. Places up to `depth` are exact; what lies
    deeper only has above >= depth.
    """

    query: Counts
    above: Counts
    size: Counts
    before: Counts
    hits: Counts
    relevant: Counts
    depth: int


def label_codes(
    labels: ArrayLike, gallery_labels: ArrayLike | None = None
) -> tuple[Counts, Counts]:
    """Class numbers 0..C-1 of queries (Q,) and gallery (G,), of integers or strings of any size;
    the second is the first if there is no gallery.

    ValueError for floats, mixed kinds, or a wrong shape.

    >>> label_codes([2**62, 7, 2**62 + 1])[0]
    array([1, 0, 2])
    """
    sides = same_kind(*(side for side in (labels, gallery_labels) if side is not None))
    codes: Counts = np.unique(np.concatenate(sides), return_inverse=True)[1].astype(np.int64)
    return codes[: sides[0].size], codes[codes.size - sides[-1].size :]


def same_kind(*sides: ArrayLike) -> list[NDArray[Any]]:
    """Labels of several sides that compare exactly: integers of any size, or texts."""
    labels = [_labels(side) for side in sides]
    if len({side.dtype.kind in "US" for side in labels}) > 1:
        raise LikenessError("some labels are integers and others texts; write all the same way")
    if {side.dtype.kind for side in labels} == {"i", "u"}:  # numpy would join them as floats
        return [side.astype(object) for side in labels]
    return labels


def _labels(labels: ArrayLike) -> NDArray[Any]:
    values = np.asarray(labels)
    if values.dtype == object and all(isinstance(label, str) for label in values.flat):
        values = values.astype(np.str_)
    exact = values.dtype.kind in "iuUS" or (
        values.dtype == object and all(isinstance(label, int) for label in values.flat)
    )
    if values.ndim != 1 or not exact:
        raise LikenessError(
            f"labels: {values.dtype} of shape {values.shape}; give one integer or text for each "
            "row, and never floats, which would round identities"
        )
    return values


def check_sizes(codes: Counts, rows: Floats32 | Floats) -> None:
    """Refuses rows of which not each has a label."""
    if codes.size != len(rows):
        raise LikenessError(f"labels: {codes.size} labels for {len(rows)} rows; one each is needed")


def check_rows(name: str, rows: ArrayLike) -> Floats32:
    """(N, D) float32.

    ValueError for a wrong shape, no rows, NaN or infinity (all counted, the first named).
    """
    with np.errstate(over="ignore"):
        values = np.asarray(rows, dtype=np.float32)
    if values.ndim != 2 or not values.size:
        raise LikenessError(
            f"{name}: expected a matrix (N, D) of at least one row, but got shape {values.shape}"
        )
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise LikenessError(
            f"{name}: {bad.size} of {len(values)} rows hold NaN or infinity (first: row "
            f"{int(bad[0])}); extract them again or remove them"
        )
    return values


def prepared(rows: Floats32, order: Counts | slice, similarity: str) -> Floats32:
    """A copy of the rows in the given order, of length 1 for the cosine; zero rows stay zero.

    ValueError if inner products could overflow.
    """
    rows = rows[order] + np.float32(0) if isinstance(order, slice) else rows[order]
    rows += np.float32(0)  # -0.0 becomes 0.0: equal rows are equal bit for bit
    for start in range(0, len(rows), _ROWS):
        part = rows[start : start + _ROWS]
        norms = np.sqrt(np.einsum("nd,nd->n", part, part, dtype=np.float64))
        if similarity == "cosine":
            part[:] = np.divide(part, np.where(norms > 0, norms, 1.0)[:, None])
        elif norms.max() > _LONGEST:
            raise LikenessError(
                f"similarity {similarity!r}: the inner products of rows of norm {norms.max():.3g} "
                "overflow float32; scale the embeddings down"
            )
    return rows


def row_keys(rows: Floats32) -> NDArray[np.uint32]:
    """A number for each row (N, D): rows that are equal bit for bit share it, and few others do."""
    weights = np.random.default_rng(0).integers(1 << 32, size=rows.shape[1], dtype=np.uint32)
    keys: NDArray[np.uint32] = np.einsum("nd,d->n", rows.view(np.uint32), weights | np.uint32(1))
    return keys  # sums modulo 2^32


def _duplicates(rows: Floats32) -> tuple[Counts, Counts]:
    """Rows that repeat another bit for bit, and that other one: their scores must tie, whatever
    order a BLAS kernel adds in.
    """
    bits, keys = rows.view(np.uint32), row_keys(rows)  # equal keys are compared below
    order = np.argsort(keys, kind="stable")
    first = np.append(True, keys[order[1:]] != keys[order[:-1]])
    original = order[np.maximum.accumulate(np.where(first, np.arange(order.size), 0))]
    later, original = order[~first], original[~first]
    same = [
        np.all(bits[later[i : i + _ROWS]] == bits[original[i : i + _ROWS]], axis=1)
        for i in range(0, later.size, _ROWS)
    ]
    equal = np.concatenate(same) if same else np.zeros(0, dtype=np.bool_)
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
) -> Iterator[tuple[Counts, Ranks]]:
    """Query numbers (B,) and their Ranks, block by block; every query once. gallery=None: queries
    are the gallery, each without itself.

    by_position: tied items rank in the order of their rows, as sequential tools do it; every size
    is then 1 and depth the whole gallery.
    drop_first: with by_position and without a gallery, what ranks first is dropped instead of the
    query itself (RDML).
    LikenessError: unknown similarity, inner products beyond float32.
    """
    order = np.argsort(gallery_codes, kind="stable")  # each class becomes a slice
    y = prepared(queries if gallery is None else gallery, order, similarity)
    x = y if gallery is None else prepared(queries, slice(None), similarity)
    numbers = order if gallery is None else np.arange(len(queries))
    begin, end = (
        np.searchsorted(gallery_codes[order], query_codes[numbers], side=side)
        for side in ("left", "right")
    )
    repeated = _duplicates(y)
    num_items = len(y)
    height = max(1, min(len(x), _CELLS // num_items, _RELEVANT // max(1, int((end - begin).max()))))
    buffer = np.empty((height, num_items), dtype=np.float32)
    for start in range(0, len(x), height):
        part = slice(start, min(start + height, len(x)))
        scores = buffer[: part.stop - start]
        if similarity in ("cosine", "dot"):
            # of a matrix with itself, numpy takes the symmetric product at two thirds of the cost
            np.matmul(x[part], y.T, out=scores)
        else:
            scores[:] = matrix(x[part], y, similarity)
        if repeated[0].size:
            scores[:, repeated[0]] = scores[:, repeated[1]]
        own = np.arange(start, part.stop) if gallery is None else None
        if by_position:
            yield (
                numbers[part],
                _ranks_by_position(scores, begin[part], end[part], own, order, drop_first),
            )
        else:
            yield numbers[part], _ranks(scores, begin[part], end[part], own, min(depth, num_items))
        report("searching", part.stop, len(x))


def _ranks(scores: Floats32, begin: Counts, end: Counts, own: Counts | None, depth: int) -> Ranks:
    """Overwrites the scores."""
    num_items = scores.shape[1]
    relevant_scores: list[Floats32] = []
    for row, (b, e) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        mine = scores[row, b:e]
        if own is not None:
            mine[own[row] - b] = np.inf  # sorts last
        relevant_scores.append(np.sort(mine)[: e - b - (own is not None)][::-1])
        mine[:] = -np.inf
    cut = num_items - depth
    if cut:
        scores.partition(cut, axis=1)
    top = scores[:, cut:]
    top.sort(axis=1)

    def at_cut(row: int) -> int:
        return int(np.count_nonzero(scores[row] == top[row, 0]))

    return ranks_among(relevant_scores, top, at_cut if cut else None)


def ranks_among(
    relevant_scores: Sequence[Floats32], top: Floats32, at_cut: Callable[[int], int] | None
) -> Ranks:
    """The ranks of relevant items among the highest of all other items.

    Args:
        relevant_scores: Of each query, from the highest down.
        top: (Q, depth) the highest other scores, ascending.
        at_cut: How many others of a query have the lowest score of `top`, where there may be more
            than it lists.
    """
    depth = top.shape[1]
    higher: list[Counts] = []
    level: list[Counts] = []
    for row, values in enumerate(relevant_scores):
        right = top[row].searchsorted(values, side="right")
        same = right - top[row].searchsorted(values, side="left")
        if at_cut is not None and (lowest := values == top[row, 0]).any():
            same[lowest] = at_cut(row)  # the tie goes on below the cut
        higher.append(depth - right)
        level.append(same)
    relevant = np.array([len(row) for row in relevant_scores], dtype=np.int64)
    values = np.concatenate(relevant_scores)
    query = np.repeat(np.arange(len(relevant)), relevant)
    first = np.flatnonzero(
        np.append(True, (query[1:] != query[:-1]) | (values[1:] != values[:-1]))[: values.size]
    )
    hits = np.diff(np.append(first, values.size))
    before = first - (np.cumsum(relevant) - relevant)[query[first]]
    return Ranks(
        query[first],
        np.concatenate(higher)[first] + before,
        np.concatenate(level)[first] + hits,
        before,
        hits,
        relevant,
        depth,
    )


def _ranks_by_position(
    scores: Floats32,
    begin: Counts,
    end: Counts,
    own: Counts | None,
    order: Counts,
    drop_first: bool,
) -> Ranks:
    """Every relevant item by itself. order: the row of each column, which settles ties."""
    places: list[Counts] = []
    for row, (b, e) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        mine = np.arange(b, e)
        if own is not None and not drop_first:
            scores[row, own[row]] = -np.inf
            mine = mine[mine != own[row]]
        line = scores[row]
        if mine.size > _FEW:
            place = np.empty(line.size, dtype=np.int64)
            place[np.lexsort((order, -line))] = np.arange(line.size)
            place = np.sort(place[mine])
        else:
            counts = [
                np.count_nonzero(line > line[i])
                + np.count_nonzero((line == line[i]) & (order < order[i]))
                for i in mine
            ]
            place = np.sort(np.array(counts, dtype=np.int64))
        places.append(place[place > 0] - 1 if drop_first else place)
    sizes: Counts = np.array([len(place) for place in places], dtype=np.int64)
    query, above = np.repeat(np.arange(len(places)), sizes), np.concatenate(places)
    before = np.arange(query.size) - (np.cumsum(sizes) - sizes)[query]
    ones = np.ones_like(query)
    return Ranks(query, above, ones, before, ones, end - begin - (own is not None), scores.shape[1])


def concatenated(blocks: Sequence[tuple[Counts, Floats]], num_queries: int) -> Floats:
    """Values of blocks (B, ...) put back in the order of the queries (Q, ...)."""
    values = np.empty((num_queries, *blocks[0][1].shape[1:]))
    for numbers, block in blocks:
        values[numbers] = block
    return values
