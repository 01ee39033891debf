"""The search of a gallery: the k best of many scores, block by block, and the rows whose inner
products order as a similarity does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eval.similarity import pairs
from eval.types import Floats32

PRODUCTS = ("cosine", "dot", "simple")  # similarities whose order is that of an inner product


def top(
    scores: Callable[[int, int], Floats32], num_rows: int, width: int, k: int
) -> tuple[Floats32, NDArray[np.int64]]:
    """The k highest scores of each query and their rows, (Q, k), descending; ties: the lower row. k
    <= num_rows, k <= width.

    scores(begin, end) -> (Q, end - begin), the same array again if it likes. Past the first block
    only what exceeds a query's k-th best is looked at: one comparison for each score, and about k
    log(num_rows / width) survivors.
    """
    first = scores(0, min(width, num_rows))
    places: NDArray[np.int64]
    num_queries, held = first.shape
    places = (
        np.argpartition(first, held - k, axis=1)[:, held - k :].astype(np.int64)
        if k < held
        else np.tile(np.arange(held), (num_queries, 1))
    )
    values = np.take_along_axis(first, places, axis=1)
    places[values == values.min(axis=1, keepdims=True)] = (
        num_rows  # of those that tie at the end, the lower rows are to stay
    )
    for one in range(num_queries):
        tied = np.flatnonzero(places[one] == num_rows)
        places[one, tied] = np.flatnonzero(first[one] == values[one, tied[0]])[: tied.size]
    sorting = np.lexsort((places, -values), axis=1)
    values, places = (
        np.take_along_axis(values, sorting, axis=1),
        np.take_along_axis(places, sorting, axis=1),
    )
    above = np.empty((num_queries, width), dtype=np.bool_)
    for begin in range(width, num_rows, width):
        block = scores(begin, min(begin + width, num_rows))
        mask = above if block.shape[1] == width else np.empty(block.shape, dtype=np.bool_)
        found = np.flatnonzero(np.greater(block, values[:, -1:], out=mask))
        if not found.size:
            continue
        query, column = np.divmod(found, block.shape[1])
        touched = np.unique(query)
        owner = np.concatenate([np.repeat(touched, k), query])
        value = np.concatenate([values[touched].ravel(), block[query, column]])
        place = np.concatenate([places[touched].ravel(), column + begin])
        order = np.lexsort((place, -value, owner))
        best = order[np.searchsorted(owner[order], touched)[:, None] + np.arange(k)]
        values[touched], places[touched] = value[best], place[best]
    return values, places


def angular_bias(similarity: str) -> float:
    """B of `simple:B`, 0 for other similarities. ValueError for an unknown one."""
    crossed = float(
        pairs([[1.0, 0.0]], [[0.0, 1.0]], [0], [0], similarity)[0]
    )  # of two unit vectors at right angles
    return -crossed if similarity.partition(":")[0] == "simple" else 0.0


def as_searched(templates: Floats32, b_theta: float, similarity: str) -> Floats32:
    """Templates (G, D) -> rows whose inner products with those of `as_asked` order as the
    similarity does, if it is one of PRODUCTS; else as they are.

    SimPLE's x.y - B|x||y| is the product of (x, |x|) and (y, -B|y|).
    """
    lengths = np.sqrt(np.einsum("nd,nd->n", templates, templates, dtype=np.float64))[:, None]
    if similarity == "cosine":
        return np.divide(templates, np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return (
        np.hstack([templates, (-b_theta * lengths).astype(np.float32)])
        if similarity.partition(":")[0] == "simple"
        else templates
    )


def as_asked(probes: Floats32, b_theta: float, similarity: str) -> Floats32:
    """Probes (Q, D) for a search in `as_searched`."""
    if similarity.partition(":")[0] == "simple":
        return np.hstack(
            [
                probes,
                np.linalg.norm(probes.astype(np.float64), axis=1, keepdims=True).astype(np.float32),
            ]
        )
    return as_searched(probes, b_theta, similarity)
