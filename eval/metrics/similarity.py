"""Similarities of embeddings: for the pairs of a trial list, or all against all.

Higher is closer, always.

Every similarity here is a function of x.y, |x| and |y|, so one matrix product serves all of them.

    cosine
        x.y / (|x||y|), and 0 if either is the zero vector, which has no direction
    dot
        x.y
    simple:B
        x.y - B |x||y|, SimPLE's generalised inner product with angular bias B = cos(theta);
        `simple` alone is B = 0.3
    euclidean
        -|x - y|
    poincare:C
        minus the Poincare distance of curvature C > 0 after expmap0, clipped to the radius (1 -
        1e-3) / sqrt(C) (vMF paper, Eq 2); `poincare` alone is C = 1e-5, the paper's choice, at
        which the distance is 2|x - y|
    vmf_el:ALPHA
        the embedding as a von Mises-Fisher distribution with mean direction x/|x| and concentration
        kappa = ALPHA |x| (ALPHA = 1 if left out): log of the expected likelihood, log C(k_x) + log
        C(k_y) - log C(ALPHA |x + y|) (nivMF paper, Eq 35)
    vmf_b:ALPHA
        log of the Bhattacharyya coefficient, (log C(k_x) + log C(k_y)) / 2 - log C(ALPHA |x + y| /
        2) (Eq 29)
    vmf_kl:ALPHA
        -KL(x || y) = log C(k_y) - log C(k_x) - A(k_x) (k_x - k_y cos), the enrolment side first:
        not symmetric (Eq 39 with its missing factor A)

The zero vector has no similarity to anything, least of all to another one: that a formula is 0
there, or calls two of them equal, means nothing. `score_trials` and `likeness score` warn of such
embeddings, with their number and names.

The first three take their products in float32 (relative error about 1e-7 of |x||y|, for norms from
1e-18 to 1e18); what follows, and the result of `pairs`, is float64. Rounding may put a cosine 1e-7
above 1. The others need differences of nearly equal numbers and take float64 products: twice the
time, and |x - x| may still come out as 1e-8 |x|. log C and A are exact, see
eval/metrics/von_mises_fisher.py, and not the quadratic fits of the code of the paper; nor is its
KL, which has the wrong sign and lacks A.
"""

import warnings
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.metrics.von_mises_fisher import (
    log_normalizer_at_zero,
    log_normalizer_ratio,
    relative,
)
from likeness.eval.progress import report
from likeness.eval.types import Floats, Floats32, Trials, norms_of, unit_rows

# The parameter of a similarity: its default, and the lowest and highest value. That of `simple` is
# the cosine of an angle.
_PARAMETERS = {
    "simple": (0.3, -1.0, 1.0),
    "poincare": (1e-5, 1e-30, 1e30),
    "vmf_el": (1.0, 1e-30, 1e30),
    "vmf_b": (1.0, 1e-30, 1e30),
    "vmf_kl": (1.0, 1e-30, 1e30),
}
ALLOWED = (
    *("cosine", "dot", "euclidean"),
    *_PARAMETERS,
    *(f"{name}:NUMBER" for name in _PARAMETERS),
)

Rows = NDArray[Any]  # (N, D) float32 or float64
Places = NDArray[Any]  # (P,) rows of a side

_CELLS = 75_000_000  # of one float32 product: 300 MB
_BLOCK_CELLS = 1 << 24  # of each product where one is not enough: 64 MB
_BLOCK_TRIALS = 1 << 18
_GATHERED = 1 << 19  # bytes of the rows of one side that are gathered at once, for the cache
# one cell of a matrix product costs about 1/30 of two gathered rows and their dot product
# (measured, D = 256 and 512)
_PRODUCT_GAIN = 30


class _Formula(NamedTuple):
    """of_unit: work on rows scaled to length 1. finish(x.y, sides of x, sides of y) -> similarity,
    element by element; None: x.y is the similarity.

    sides(norms (N,)) -> (S, N): what `finish` needs of each row, worked out once per row and not
    once per pair. precise: float64 products.
    """

    of_unit: bool
    finish: Callable[[Any, Any, Any], Any] | None
    sides: Callable[[Floats], Floats] = lambda norms: norms[None]
    precise: bool = False


def _distance(dot: Any, x: Any, y: Any) -> Any:
    return np.sqrt((x[0] - y[0]) ** 2 + 2 * np.maximum(x[0] * y[0] - dot, 0))


_PLAIN = {
    "cosine": _Formula(True, None),
    "dot": _Formula(False, None),
    "euclidean": _Formula(False, lambda *of: -_distance(*of), precise=True),
}


def check_similarity(similarity: str) -> None:
    """Refuses a name that is no similarity.

    Raises:
        LikenessError: The name is unknown or its parameter is out of range.

    >>> check_similarity("simple:0.3")
    >>> check_similarity("cosin")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    likeness.LikenessError: unknown similarity 'cosin'; did you mean 'cosine'? allowed: ...
    """
    _formula(str(similarity), 2)


def _formula(similarity: str, dim: int) -> _Formula:
    name, colon, text = similarity.partition(":")
    if similarity in _PLAIN:
        return _PLAIN[similarity]
    if name in _PARAMETERS:
        default, low, high = _PARAMETERS[name]
        try:
            value = float(text) if colon else default
        except ValueError:
            value = np.nan
        if not low <= value <= high:
            raise LikenessError(f"{similarity!r}: give a number from {low:g} to {high:g}")
        if name == "simple":
            return _Formula(False, lambda dot, x, y: dot - value * (x[0] * y[0]))
        return _poincare(np.sqrt(value)) if name == "poincare" else _vmf(name, value, dim)
    close = get_close_matches(similarity.lower(), ALLOWED, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise LikenessError(f"unknown similarity {similarity!r}; {hint}allowed: {', '.join(ALLOWED)}")


def _poincare(root: float) -> _Formula:
    """root = sqrt(C).

    With r = sqrt(C) |expmap0(x)| = tanh(sqrt(C)|x|): distance = 2/sqrt(C) asinh(|r_x - r_y| /
    sqrt((1 - r_x^2)(1 - r_y^2))).
    """

    def sides(norms: Floats) -> Floats:
        radius = np.minimum(np.tanh(root * norms), 1 - 1e-3)
        return np.stack(
            [
                radius,
                1 / np.sqrt((1 - radius) * (1 + radius)),
                radius / np.where(norms > 0, norms, 1.0),
            ]
        )

    def finish(dot: Any, x: Any, y: Any) -> Any:
        apart = (x[0] - y[0]) ** 2 + 2 * np.maximum(x[0] * y[0] - x[2] * y[2] * dot, 0)
        return (-2 / root) * np.arcsinh(np.sqrt(apart) * (x[1] * y[1]))

    return _Formula(False, finish, sides, precise=True)


def _vmf(kernel: str, alpha: float, dim: int) -> _Formula:
    """Sides: kappa, log C(kappa) - log C(0), and A(kappa) / kappa where the kernel needs it."""
    at_zero = log_normalizer_at_zero(dim)

    def sides(norms: Floats) -> Floats:
        kappa = alpha * norms
        return np.stack(
            [
                kappa,
                log_normalizer_ratio(kappa, dim),
                *([relative(kappa, dim)[1]] if kernel == "vmf_kl" else []),
            ]
        )

    def finish(dot: Any, x: Any, y: Any) -> Any:
        dot = (alpha * alpha) * dot
        if kernel == "vmf_kl":
            return y[1] - x[1] - x[2] * (x[0] * x[0] - dot)
        length = np.sqrt((x[0] - y[0]) ** 2 + 2 * np.maximum(x[0] * y[0] + dot, 0))
        if kernel == "vmf_b":
            return (x[1] + y[1]) / 2 - log_normalizer_ratio(length / 2, dim)
        return x[1] + y[1] - log_normalizer_ratio(length, dim) + at_zero

    return _Formula(False, finish, sides, precise=True)


def pairs(
    enrol: ArrayLike, probe: ArrayLike, i: ArrayLike, j: ArrayLike, similarity: str = "cosine"
) -> Floats:
    """Similarity of enrol[i[p]] and probe[j[p]] for each trial p.

    enrol: (N, D) raw rows. probe: (M, D). i, j: (P,) integers. Returns (P,) float64.
    Needs at most about 300 MB beside the inputs, a float32 copy of the rows that occur (float64 for
    euclidean, poincare and vmf_*), and the result.
    LikenessError: D differs, unknown similarity.

    >>> pairs([[3, 4], [0, 2]], [[1, 0]], [0, 1, 0], [0, 0, 0], "dot")
    array([3., 0., 3.])
    """
    x, y = _matrices(enrol, probe)
    formula = _formula(similarity, x.shape[1])
    i, j = _indices(i), _indices(j)
    x, i = _occurring(x, i)
    y, j = _occurring(y, j)
    formula, x, y, sides_x, sides_y = _prepared(formula, x, y)
    cheap = len(x) * len(y) <= _PRODUCT_GAIN * i.size
    values = np.empty(i.size, dtype=np.float64)
    done = 0
    report("scoring", done, i.size)
    for part, dots in _product_then_gather(x, y, i, j) if cheap else _gather_then_dot(x, y, i, j):
        values[part] = (
            dots
            if formula.finish is None
            else formula.finish(
                dots.astype(np.float64, copy=False), sides_x[:, i[part]], sides_y[:, j[part]]
            )
        )
        done += dots.size
        report("scoring", done, i.size)
    return values


def matrix(a: ArrayLike, b: ArrayLike, similarity: str = "cosine") -> Floats32:
    """Similarity of every row of `a` to every row of `b`. a: (N, D) raw. b: (M, D).

    Returns (N, M) float32. Errors as for `pairs`.

    >>> matrix([[3, 4], [0, 0]], [[0, 2], [2, 0]])
    array([[0.8, 0.6],
           [0. , 0. ]], dtype=float32)
    """
    x, y = _matrices(a, b)
    formula = _formula(similarity, x.shape[1])
    return _all_against_all(*_prepared(formula, x, y))


def make_scorer(b: ArrayLike, similarity: str = "cosine") -> Callable[[ArrayLike], Floats32]:
    """`matrix` of many `a` against the same `b`, which is prepared only once.

    >>> make_scorer([[0, 2], [2, 0]])([[3, 4]])
    array([[0.8, 0.6]], dtype=float32)
    """
    y = np.asarray(b)
    formula = _formula(similarity, y.shape[1])
    y, sides_y = _side(formula, y)

    def scores(a: ArrayLike) -> Floats32:
        x, sides_x = _side(formula, _matrices(a, b)[0])
        return _all_against_all(formula, x, y, sides_x, sides_y)

    return scores


def single(a: ArrayLike, b: ArrayLike, similarity: str = "cosine") -> Floats32:
    """Similarity of rows of `a` to rows of `b`, broadcast against each other: (..., D), (..., D).

    Every score is a product of two rows by itself, so it depends on nothing else. In `matrix` the
    last digit may depend on where a row stands. Returns (...) float32.

    >>> single([[3, 4], [0, 2]], [[1, 0], [0, 1]], "dot")
    array([3., 2.], dtype=float32)
    """
    x, y = np.asarray(a), np.asarray(b)
    flat = _matrices(*(rows.reshape(-1, rows.shape[-1]) for rows in (x, y)))
    formula, *made = _prepared(_formula(similarity, x.shape[-1]), *flat)
    left, right = made[0].reshape(x.shape), made[1].reshape(y.shape)
    dots = np.vecdot(left, right)
    if formula.finish is not None:
        sides = [
            side.reshape(-1, *rows.shape[:-1]) for side, rows in zip(made[2:], (x, y), strict=True)
        ]
        dots = formula.finish(dots.astype(np.float64), *sides)
    values: Floats32 = dots.astype(np.float32)
    return values


def _all_against_all(
    formula: _Formula, x: Rows, y: Rows, sides_x: Floats, sides_y: Floats
) -> Floats32:
    """(N, M) from what `_prepared` returns."""
    if formula.finish is None:
        return (x @ y.T).astype(np.float32, copy=False)
    values = np.empty((len(x), len(y)), dtype=np.float32) if formula.precise else x @ y.T
    rows = max(1, _BLOCK_TRIALS // max(1, len(y)))
    for start in range(0, len(x), rows):  # float64 in blocks, so that only the result is (N, M)
        part = slice(start, start + rows)
        dots = x[part] @ y.T if formula.precise else values[part].astype(np.float64)
        values[part] = formula.finish(dots, sides_x[:, part, None], sides_y[:, None, :])
    return values


def score_trials(
    trials: Trials, enrol: Embeddings, probe: Embeddings | None = None, similarity: str = "cosine"
) -> Floats:
    """Scores (P,) of the trials, from the embeddings of the enrolment ids and of the probe ids (the
    same ones if `probe` is None).

    LikenessError: An id has no embedding; and as for `pairs`. Warns of embeddings that are zero
    vectors.
    """
    probe = enrol if probe is None else probe
    rows, columns = enrol.rows(trials.enrol_ids), probe.rows(trials.probe_ids)
    warn_of_zeros((enrol, rows), (probe, columns))
    return pairs(enrol.matrix, probe.matrix, rows[trials.enrol], columns[trials.probe], similarity)


def warn_of_zeros(*sides: tuple[Embeddings, Places]) -> None:
    """Warn of zero vectors among the embeddings: (embeddings, the numbers of the rows that are
    used) of each side; all counted, the first named.
    """
    zeros: dict[str, None] = {}
    for embeddings, rows in sides:
        maybe = rows[embeddings.matrix[rows, 0] == 0]  # few, so that no copy of the matrix is made
        zeros |= {
            embeddings.ids[row]: None
            for row in maybe[~embeddings.matrix[maybe].any(axis=1)].tolist()
        }
    if zeros:
        text = f"{len(zeros)} embeddings, such as {next(iter(zeros))!r}, are zero vectors"
        warnings.warn(f"{text}: embed them again, or leave their trials out", stacklevel=3)


def _product_then_gather(x: Rows, y: Rows, i: Places, j: Places) -> Iterator[tuple[Any, Rows]]:
    """Which trials, and their dot products: bands of rows of x @ y.T, and each trial picks its
    cell.
    """
    whole = len(x) * len(y) * x.itemsize <= 4 * _CELLS
    height = len(x) if whole else max(1, _BLOCK_CELLS // len(y))
    if whole or bool((i[1:] >= i[:-1]).all()):
        order = None
        bounds = (
            np.searchsorted(i, np.arange(0, len(x) + height, height))
            if not whole
            else np.array([0, i.size])
        )
    else:
        # 16 bits: numpy sorts them by radix. At most _PRODUCT_GAIN * P / _BLOCK_CELLS bands, or as
        # many as rows of over 16 M columns
        band = (i // height).astype(np.uint16)
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


def _gather_then_dot(x: Rows, y: Rows, i: Places, j: Places) -> Iterator[tuple[Any, Rows]]:
    """Which trials, and their dot products: for few trials over many rows."""
    step = max(1, (1 << 20) // x.shape[1])
    inner = max(1, _GATHERED // (x.shape[1] * x.itemsize))
    for start in range(0, i.size, step):
        part = slice(start, min(start + step, i.size))
        dots = np.empty(part.stop - start, dtype=x.dtype)
        for at in range(start, part.stop, inner):
            rows = slice(at, min(at + inner, part.stop))
            np.vecdot(x[i[rows]], y[j[rows]], out=dots[at - start : rows.stop - start])
        yield part, dots


def _matrices(a: ArrayLike, b: ArrayLike) -> tuple[Rows, Rows]:
    """Both as they are; _prepared converts them."""
    x, y = np.asarray(a), np.asarray(b)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1] or x.shape[1] < 1:
        shapes = f"shapes {x.shape} and {y.shape}"
        raise LikenessError(f"similarity: {shapes}; give (N, D) and (M, D) with one D")
    return x, y


def _side(formula: _Formula, rows: Rows) -> tuple[Rows, Floats]:
    """The rows in the precision that the formula needs and of length 1 if it says so, and what it
    needs (S, N) of each of them.
    """
    rows = rows.astype(np.float64 if formula.precise else np.float32, copy=False)
    norms = norms_of(rows)
    sides = norms[None] if formula.finish is None else formula.sides(norms)
    return (unit_rows(rows, norms) if formula.of_unit else rows), sides


def _prepared(formula: _Formula, x: Rows, y: Rows) -> tuple[_Formula, Rows, Rows, Floats, Floats]:
    """Both as `_side` makes them, and their sides."""
    left, sides_x = _side(formula, x)
    right, sides_y = (left, sides_x) if x is y else _side(formula, y)
    return formula, left, right, sides_x, sides_y


def _indices(index: ArrayLike) -> Places:
    """As int32 or int64: others overflow, or do not mix with int64, when cells are counted."""
    index = np.asarray(index)
    return index if index.dtype in (np.int32, np.int64) else index.astype(np.int64)


def _occurring(rows: Rows, index: Places) -> tuple[Rows, Places]:
    """The rows that occur in `index`, and the index into these."""
    occurs = np.zeros(len(rows), dtype=np.bool_)
    occurs[index] = True
    if occurs.all():
        return rows, index
    return rows[occurs], (np.cumsum(occurs, dtype=np.int32) - 1)[index]
