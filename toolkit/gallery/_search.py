"""The search of a gallery: the k best of many scores, and rows for similarities that are products.

The scores come block by block. The rows are such that their inner products order as a similarity
does.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from likeness.eval.metrics.similarity import pairs
from likeness.eval.types import Floats32

PRODUCTS = ("cosine", "dot", "simple")


def is_product(similarity: str) -> bool:
    """Returns whether the order by a similarity is that of an inner product."""
    return similarity.partition(":")[0] in PRODUCTS


def top(
    scores: Callable[[int, int], Floats32], num_rows: int, width: int, k: int
) -> tuple[Floats32, NDArray[np.int64]]:
    """Finds the k highest scores of each query.

    Past the first rows, only the scores that exceed the k-th best score of their query are looked
    at. That costs one comparison for each score, and about k log(num_rows / k) scores remain.

    Args:
        scores: scores(begin, end) gives the scores (Q, end - begin) of the rows begin to end - 1.
            It may return the same array each time.
        num_rows: The number of rows.
        width: The number of rows in a block at most.
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
    values = scores(0, k)
    places = np.argsort(-values, axis=1, kind="stable")
    values = np.take_along_axis(values, places, axis=1)
    begin = k
    while begin < num_rows:
        # The blocks grow, so that few of a block are better than the best of those before it.
        end = min(begin + min(begin, width), num_rows)
        block = scores(begin, end)
        query, column = np.divmod(np.flatnonzero(block > values[:, -1:]), end - begin)
        touched = np.unique(query)
        owner = np.concatenate([np.repeat(touched, k), query])
        value = np.concatenate([values[touched].ravel(), block[query, column]])
        place = np.concatenate([places[touched].ravel(), column + begin])
        order = np.lexsort((place, -value, owner))
        best = order[np.searchsorted(owner[order], touched)[:, None] + np.arange(k)]
        values[touched], places[touched] = value[best], place[best]
        begin = end
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
    no products leave the templates as they are.

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
    if similarity.partition(":")[0] == "simple":
        return np.hstack([templates, (-b_theta * lengths).astype(np.float32)])
    return templates


def as_asked(probes: Floats32, b_theta: float, similarity: str) -> Floats32:
    """Turns probes (Q, D) into rows for a search among those of `as_searched`."""
    if similarity.partition(":")[0] == "simple":
        lengths = np.linalg.norm(probes.astype(np.float64), axis=1, keepdims=True)
        return np.hstack([probes, lengths.astype(np.float32)])
    return as_searched(probes, b_theta, similarity)
