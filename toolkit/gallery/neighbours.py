"""Approximate neighbours by FAISS, and how far the recall that they give is from the exact one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.errors import LikenessError
from eval.progress import step, tracked
from eval.protocols.retrieval import Conventions
from eval.ranks import label_codes, prepared
from eval.tiles import TILE, Rows, as_rows, scorer
from eval.types import Floats, Floats32

KINDS = ("ivf", "hnsw")
EFFORT = 64  # the lists that a search visits, or the candidates of HNSW
_ADDED = 1 << 14  # rows that the index takes at a time
_SEARCHED = 1 << 12  # queries at a time
_TRAINED = 64  # vectors for each inverted list

Numbers = NDArray[np.int64]


def approximate_recall(
    kind: str, *, sample: int = 1000, seed: int = 0, advance: Callable[[int, int], object]
) -> Callable[..., tuple[dict[str, Floats], Conventions, dict[str, Conventions]]]:
    """Returns what `eval.protocols.retrieval.Search` takes as `approximate`.

    Args:
        kind: "ivf" for inverted lists, "hnsw" for a graph of neighbours.
        sample: So many queries, drawn at random, are searched exactly too.
        seed: Of the draw.
        advance: Is told how many queries are done, and how many there are.

    Raises:
        LikenessError: The kind is unknown. The package FAISS is missing; the message names the
            extra to install.
    """
    if kind not in KINDS:
        raise LikenessError(f"approximate search {kind!r}: choose one of {', '.join(KINDS)}")
    try:
        import faiss
    except ImportError:
        raise LikenessError(
            "an approximate search needs FAISS; run `pip install 'likeness[search]'`"
        ) from None

    def recall(
        queries: ArrayLike,
        labels: ArrayLike,
        gallery: ArrayLike | None,
        gallery_labels: ArrayLike | None,
        ks: Sequence[int],
        similarity: str,
    ) -> tuple[dict[str, Floats], Conventions, dict[str, Conventions]]:
        if similarity not in ("cosine", "dot"):
            raise LikenessError(
                f"similarity {similarity!r}: an approximate search compares by cosine or dot; "
                "search exactly by the others"
            )
        x = as_rows(queries)
        y = x if gallery is None else as_rows(gallery)
        if x.shape[1] != y.shape[1]:
            raise LikenessError(
                f"similarity: embeddings of {x.shape[1]} and gallery of {y.shape[1]} dims; "
                "embeddings of two models do not compare"
            )
        codes, of_gallery = label_codes(labels, gallery_labels)
        alone = gallery is None
        most = min(max(ks) + alone, y.shape[0])
        index, text = _index(faiss, kind, y, similarity)
        neighbours = np.empty((codes.size, most), dtype=np.int64)
        for start in range(0, codes.size, _SEARCHED):
            part = slice(start, start + _SEARCHED)
            neighbours[part] = index.search(prepared(x[part], slice(None), similarity), most)[1]
            advance(min(start + _SEARCHED, codes.size), codes.size)
        drawn = np.random.default_rng(seed).permutation(codes.size)[:sample]
        drawn.sort()
        exact = _exact(prepared(x[drawn], slice(None), similarity), y, most, similarity)
        relevant = np.bincount(of_gallery, minlength=int(codes.max()) + 1)[codes] - alone
        everything = np.arange(codes.size)
        values: dict[str, Floats] = {"relevant": relevant.astype(np.float64)}
        of_metric: dict[str, Conventions] = {}
        counted = relevant[drawn] > 0
        for k in ks:
            name = f"recall@{k}"
            hits = _hits(neighbours, everything, codes, of_gallery, k, alone)
            values[name] = np.where(relevant > 0, hits, np.nan)
            exactly = _hits(exact, drawn, codes[drawn], of_gallery, k, alone)
            of_metric[name] = {
                "on_sample": float(hits[drawn][counted].mean()) if counted.any() else 0.0,
                "exact_on_sample": float(exactly[counted].mean()) if counted.any() else 0.0,
            }
        conventions: Conventions = {"approximate": text, "sample": int(np.count_nonzero(counted))}
        return values, conventions | {"ties": "in the order of the index"}, of_metric

    return recall


@step("building the index")
def _index(faiss: Any, kind: str, rows: Rows, similarity: str) -> tuple[Any, str]:
    """An index of the rows, and its description."""
    num_rows, dim = rows.shape
    lists = max(1, min(round(4 * math.sqrt(num_rows)), num_rows // 39))
    name = f"IVF{lists},Flat" if kind == "ivf" else "HNSW32"
    index = faiss.index_factory(dim, name, faiss.METRIC_INNER_PRODUCT)
    if kind == "ivf":
        index.cp.niter, index.cp.max_points_per_centroid = 8, _TRAINED
        drawn = np.random.default_rng(0).permutation(num_rows)[: _TRAINED * lists]
        drawn.sort()
        index.train(prepared(rows[drawn], slice(None), similarity))
        index.nprobe = min(EFFORT, lists)
    else:
        index.hnsw.efSearch = EFFORT
    for start in range(0, num_rows, _ADDED):
        index.add(prepared(rows[start : start + _ADDED], slice(None), similarity))
    setting = f"nprobe {index.nprobe}" if kind == "ivf" else f"efSearch {EFFORT}"
    return index, f"FAISS {name}, {setting}"


def _exact(queries: Floats32, rows: Rows, most: int, similarity: str) -> Numbers:
    """The numbers (Q, most) of the nearest rows, from the nearest on."""
    scores: Floats32 = np.empty((len(queries), 0), dtype=np.float32)
    numbers: Numbers = np.empty((len(queries), 0), dtype=np.int64)
    for start in tracked(range(0, rows.shape[0], TILE), "searching exactly"):
        tile = prepared(rows[start : start + TILE], slice(None), similarity)
        new = scorer(tile, np.zeros(len(tile), dtype=np.bool_), "dot")(queries)
        kept = np.argpartition(-new, min(most, len(tile)) - 1, axis=1)[:, :most]
        scores = np.concatenate([scores, np.take_along_axis(new, kept, axis=1)], axis=1)
        numbers = np.concatenate([numbers, kept + start], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :most]
        scores = np.take_along_axis(scores, order, axis=1)
        numbers = np.take_along_axis(numbers, order, axis=1)
    return numbers


def _hits(
    neighbours: Numbers, queries: Numbers, codes: Numbers, of_gallery: Numbers, k: int, alone: bool
) -> Floats:
    """(Q,) 1 where one of the first k neighbours, the query itself left out, is of its class."""
    right = (of_gallery[neighbours] == codes[:, None]) & (neighbours >= 0)
    if alone:
        itself = neighbours == queries[:, None]
        place = np.cumsum(~itself, axis=1)  # from 1, among the others
        right &= ~itself & (place <= k)
    hits: Floats = right[:, : None if alone else k].any(axis=1).astype(np.float64)
    return hits
