"""Similarities of embeddings: for the pairs of a trial list, or all against all. Higher is closer, always.

Every similarity here is a function of x.y, |x| and |y|, so one matrix product serves all of them. The products are taken in float32
(relative error about 1e-7 of |x||y|); what follows, and the result of `pairs`, is float64. Rounding may put a cosine 1e-7 above 1.

    cosine         x.y / (|x||y|), and 0 if either is the zero vector
    dot            x.y
    simple:B       x.y - B |x||y|, SimPLE's generalised inner product with angular bias B = cos(theta); `simple` alone is B = 0.3
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.types import Embeddings, Floats, Floats32, Trials, name_first

ALLOWED = ("cosine", "dot", "simple", "simple:B_THETA")

_CELLS = 75_000_000  # of one float32 product: 300 MB
_BLOCK_CELLS = 1 << 24  # of each product where one is not enough: 64 MB
_BLOCK_TRIALS = 1 << 18
_PRODUCT_GAIN = 30  # one cell of a matrix product costs about 1/30 of two gathered rows and their dot product (measured, D = 256 and 512)


class _Formula(NamedTuple):
    """of_unit: work on rows scaled to length 1. finish(x.y, |x|, |y|) -> similarity, element by element; None: x.y is the similarity."""

    of_unit: bool
    finish: Callable[[Any, Any, Any], Any] | None


def _formula(similarity: str) -> _Formula:
    name, colon, text = similarity.partition(":")
    if similarity == "cosine":
        return _Formula(True, None)
    if similarity == "dot":
        return _Formula(False, None)
    if name == "simple":
        b_theta = _parameter(similarity, text) if colon else 0.3
        if not -1 <= b_theta <= 1:
            raise ValueError(f"similarity {similarity!r}: B_THETA is the cosine of an angle and must lie in [-1, 1]; the paper uses 0.3")
        return _Formula(False, lambda dot, norm_x, norm_y: dot - b_theta * (norm_x * norm_y))
    close = get_close_matches(similarity.lower(), ALLOWED, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"unknown similarity {similarity!r}; {hint}allowed: {', '.join(ALLOWED)}")


def _parameter(similarity: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"similarity {similarity!r}: {text!r} is not a number; write e.g. 'simple:0.3'") from None


def pairs(enrol: ArrayLike, probe: ArrayLike, i: ArrayLike, j: ArrayLike, similarity: str = "cosine") -> Floats:
    """Similarity of enrol[i[p]] and probe[j[p]] for each trial p.

    enrol: (N, D) raw rows. probe: (M, D). i, j: (P,) integers. Returns (P,) float64.
    Needs at most about 300 MB beside the inputs, a float32 copy of the rows that occur, and the result.
    ValueError: D differs, i and j differ in length or point outside, unknown similarity.

    >>> pairs([[3, 4], [0, 2]], [[1, 0]], [0, 1, 0], [0, 0, 0], "dot")
    array([3., 0., 3.])
    """
    formula = _formula(similarity)
    x, y = _matrices(enrol, probe)
    i, j = _indices("i", i, len(x)), _indices("j", j, len(y))
    if i.size != j.size:
        raise ValueError(f"pairs: i has {i.size} and j has {j.size} entries; they must pair up")
    x, i = _occurring(x, i)
    y, j = _occurring(y, j)
    norms_x, norms_y = _norms(x), _norms(y)
    if formula.of_unit:
        x, y = _unit(x, norms_x), _unit(y, norms_y)
    cheap = len(x) * len(y) <= _PRODUCT_GAIN * i.size
    values = np.empty(i.size, dtype=np.float64)
    for part, dots in _product_then_gather(x, y, i, j) if cheap else _gather_then_dot(x, y, i, j):
        values[part] = dots if formula.finish is None else formula.finish(dots.astype(np.float64), norms_x[i[part]], norms_y[j[part]])
    return values


def matrix(a: ArrayLike, b: ArrayLike, similarity: str = "cosine") -> Floats32:
    """Similarity of every row of `a` to every row of `b`. a: (N, D) raw. b: (M, D). Returns (N, M) float32. Errors as for `pairs`.

    >>> matrix([[3, 4], [0, 0]], [[0, 2], [2, 0]])
    array([[0.8, 0.6],
           [0. , 0. ]], dtype=float32)
    """
    formula = _formula(similarity)
    x, y = _matrices(a, b)
    norms_x, norms_y = _norms(x), _norms(y)
    if formula.of_unit:
        x, y = _unit(x, norms_x), _unit(y, norms_y)
    values: Floats32 = x @ y.T
    if formula.finish is not None:
        rows = max(1, _BLOCK_TRIALS // max(1, len(y)))
        for start in range(0, len(x), rows):  # float64 in blocks, so that only the result is (N, M)
            part = slice(start, start + rows)
            values[part] = formula.finish(values[part].astype(np.float64), norms_x[part, None], norms_y)
    return values


def score_trials(trials: Trials, enrol: Embeddings, probe: Embeddings | None = None, similarity: str = "cosine") -> Floats:
    """Scores (P,) of the trials, from the embeddings of the enrolment ids and of the probe ids (the same ones if `probe` is None).

    KeyError if ids of either side have no embedding: all counted, the first named. ValueError as for `pairs`.
    """
    probe = enrol if probe is None else probe
    texts = []
    for side, wanted, held in (("enrolment", trials.enrol_ids, enrol), ("probe", trials.probe_ids, probe)):
        known = set(held.ids)
        missing = [one for one in wanted if one not in known]
        if missing:
            texts.append(f"{len(missing)} of {len(wanted)} {side} ids ({name_first(missing)})")
    if texts:
        example = name_first(enrol.ids[:2])
        raise KeyError(f"no embedding for {' and '.join(texts)}; embed these items too, or check that the ids are written as in the embeddings ({example})")
    rows, columns = enrol.rows(trials.enrol_ids), probe.rows(trials.probe_ids)
    return pairs(enrol.matrix, probe.matrix, rows[trials.enrol], columns[trials.probe], similarity)


def _product_then_gather(x: Floats32, y: Floats32, i: NDArray[Any], j: NDArray[Any]) -> Iterator[tuple[Any, Floats32]]:
    """Which trials, and their dot products: bands of rows of x @ y.T, and each trial picks its cell."""
    whole = len(x) * len(y) <= _CELLS
    height = len(x) if whole else max(1, _BLOCK_CELLS // len(y))
    if whole or bool((i[1:] >= i[:-1]).all()):
        order = None
        bounds = np.searchsorted(i, np.arange(0, len(x) + height, height)) if not whole else np.array([0, i.size])
    else:
        band = (i // height).astype(
            np.uint16
        )  # 16 bits: numpy sorts them by radix. At most _PRODUCT_GAIN * P / _BLOCK_CELLS bands, or as many as rows of over 16 M columns
        order = np.argsort(band, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(np.bincount(band))))
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        if begin == end:
            continue
        top = number * height
        cells = (x[top : top + height] @ y.T).ravel()
        for start in range(begin, end, _BLOCK_TRIALS):
            span = slice(start, min(start + _BLOCK_TRIALS, end))
            part = span if order is None else order[span]
            flat = i[part].astype(np.int64)
            flat -= top
            flat *= len(y)
            flat += j[part]
            yield part, cells.take(flat)


def _gather_then_dot(x: Floats32, y: Floats32, i: NDArray[Any], j: NDArray[Any]) -> Iterator[tuple[Any, Floats32]]:
    """Which trials, and their dot products: for few trials over many rows."""
    step = max(1, (1 << 20) // x.shape[1])  # two blocks of 4 MB, to stay in the cache
    for start in range(0, i.size, step):
        part = slice(start, start + step)
        yield part, np.vecdot(x[i[part]], y[j[part]])


def _matrices(a: ArrayLike, b: ArrayLike) -> tuple[Floats32, Floats32]:
    x, y = np.asarray(a, dtype=np.float32), np.asarray(b, dtype=np.float32)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or x.shape[1] < 1:
        raise ValueError(f"similarity: shapes {x.shape} and {y.shape} must be (N, D) and (M, D) with one D; embeddings of two models do not compare")
    return x, y


def _indices(name: str, index: ArrayLike, num_rows: int) -> NDArray[Any]:
    index = np.asarray(index)
    if index.size == 0:
        index = index.astype(np.int64)
    if index.ndim != 1 or index.dtype.kind not in "iu" or (index.size and (index.min() < 0 or index.max() >= num_rows)):
        raise ValueError(f"pairs: {name} must be (P,) integers from 0 to {num_rows - 1}, but got {index.dtype} of shape {index.shape}")
    return index


def _occurring(rows: Floats32, index: NDArray[Any]) -> tuple[Floats32, NDArray[Any]]:
    """The rows that occur in `index`, and the index into these."""
    occurs = np.zeros(len(rows), dtype=np.bool_)
    occurs[index] = True
    if occurs.all():
        return rows, index
    return rows[occurs], (np.cumsum(occurs, dtype=np.int32) - 1)[index]


def _norms(rows: Floats32) -> Floats:
    """(N,) norms, summed in float64: no float32 embedding over- or underflows."""
    norms: Floats = np.sqrt(np.einsum("nd,nd->n", rows, rows, dtype=np.float64))
    return norms


def _unit(rows: Floats32, norms: Floats) -> Floats32:
    """Rows of length 1, whatever their norm; zero rows stay zero."""
    unit: Floats32 = np.divide(rows, np.where(norms > 0, norms, 1.0)[:, None]).astype(np.float32)
    return unit
