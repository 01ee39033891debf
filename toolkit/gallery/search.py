"""The search of a gallery: the k best of many scores, and rows for similarities that are products.

The scores come block by block. The rows are such that their inner products order as a similarity
does.
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
    """Finds the k highest scores of each query.

    Past the first block, only the scores that exceed the k-th best score of their query are looked
    at. That costs one comparison for each score, and about k log(num_rows / width) scores remain.

    Args:
        scores: scores(begin, end) gives the scores (Q, end - begin) of the rows begin to end - 1.
            It may return the same array each time.
        num_rows: The number of rows.
        width: The number of rows in a block, at least k.
        k: How many rows are searched for, at most num_rows.

    Returns:
        The scores and their rows, both (Q, k), from the best on. Of equal scores the lower row
        comes first.

    Example:
        >>> table = np.array([[0.1, 0.9, 0.5, 0.7]], dtype=np.float32)
        >>> values, rows = top(lambda begin, end: table[:, begin:end], 4, 2, 2)
        >>> rows
        array([[1, 3]])
    """
    first = scores(0, min(width, num_rows))
    places: NDArray[np.int64]
    num_queries, num_first = first.shape
    if k < num_first:
        lowest = num_first - k
        places = np.argpartition(first, lowest, axis=1)[:, lowest:].astype(np.int64)
    else:
        places = np.tile(np.arange(num_first), (num_queries, 1))
    values = np.take_along_axis(first, places, axis=1)
    # Of the rows that tie for the k-th place, the lower ones are to stay.
    places[values == values.min(axis=1, keepdims=True)] = num_rows
    for query_number in range(num_queries):
        tied = np.flatnonzero(places[query_number] == num_rows)
        lowest_score = values[query_number, tied[0]]
        candidates = np.flatnonzero(first[query_number] == lowest_score)
        places[query_number, tied] = candidates[: tied.size]
    sorting = np.lexsort((places, -values), axis=1)
    values = np.take_along_axis(values, sorting, axis=1)
    places = np.take_along_axis(places, sorting, axis=1)
    above = np.empty((num_queries, width), dtype=np.bool_)
    for begin in range(width, num_rows, width):
        block = scores(begin, min(begin + width, num_rows))
        mask = above if block.shape[1] == width else np.empty(block.shape, dtype=np.bool_)
        better = np.flatnonzero(np.greater(block, values[:, -1:], out=mask))
        if not better.size:
            continue
        query, column = np.divmod(better, block.shape[1])
        touched = np.unique(query)
        owner = np.concatenate([np.repeat(touched, k), query])
        value = np.concatenate([values[touched].ravel(), block[query, column]])
        place = np.concatenate([places[touched].ravel(), column + begin])
        order = np.lexsort((place, -value, owner))
        best = order[np.searchsorted(owner[order], touched)[:, None] + np.arange(k)]
        values[touched], places[touched] = value[best], place[best]
    return values, places


def angular_bias(similarity: str) -> float:
    """Returns B of `simple:B`, and 0 for other similarities. Raises ValueError for an unknown one.

    Example:
        >>> angular_bias("simple:0.5"), angular_bias("cosine")
        (0.5, 0.0)
    """
    # SimPLE scores two unit vectors at right angles with -B.
    crossed = float(pairs([[1.0, 0.0]], [[0.0, 1.0]], [0], [0], similarity)[0])
    return -crossed if similarity.partition(":")[0] == "simple" else 0.0


def as_searched(templates: Floats32, b_theta: float, similarity: str) -> Floats32:
    """Turns templates into rows whose inner products with `as_asked` order as the similarity does.

    SimPLE's x.y - B|x||y| is the inner product of (x, |x|) and (y, -B|y|). Similarities that are
    not in PRODUCTS leave the templates as they are.

    Args:
        templates: Raw templates (G, D).
        b_theta: B of SimPLE, from `angular_bias`.
        similarity: The name of the similarity.

    Returns:
        The rows (G, D), or (G, D + 1) for SimPLE.
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
    """Turns probes (Q, D) into rows for a search among those of `as_searched`."""
    if similarity.partition(":")[0] == "simple":
        lengths = np.linalg.norm(probes.astype(np.float64), axis=1, keepdims=True)
        return np.hstack([probes, lengths.astype(np.float32)])
    return as_searched(probes, b_theta, similarity)
