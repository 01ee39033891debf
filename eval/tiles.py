"""A large gallery in tiles: scores of probes against so many rows of it at a time.

A tile and a block of probes are small enough for the cache of a processor, whatever the size of the
gallery, and their borders never depend on the memory or on the number of processes: so do the last
digits of the scores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eval.similarity import against, single
from eval.types import Bools, Floats32

TILE = 1 << 14  # rows of the gallery
CELLS = 1 << 23  # scores held at once: 32 MB in float32
PART_CELLS = 1 << 32  # scores of a part that is finished and kept: a minute of a core
_ROWS = 4096  # checked at a time

Counts = NDArray[np.int64]


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
    num_rows, dim = rows.shape
    weights = np.random.default_rng(0).integers(1 << 32, size=dim, dtype=np.uint32) | np.uint32(1)
    keys = np.empty(num_rows, dtype=np.uint32)
    for start in range(0, num_rows, _ROWS):
        # Adding 0 makes -0 equal to 0 in its bits too.
        bits = (prepare(rows[start : start + _ROWS]) + np.float32(0)).view(np.uint32)
        keys[start : start + _ROWS] = np.einsum("nd,d->n", bits, weights)  # modulo 2^32
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
