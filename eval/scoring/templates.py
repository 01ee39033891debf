"""Templates: several embeddings of one subject pooled into one.

Faces of a template (IJB), utterances of an enrolled speaker.

A template is a weighted sum of its items' rows x. The weights, where the template has n items, m
media (videos, photos; one still is a medium of its own), and k items of x's medium:

    mean
        1/n                 raw rows: a long row counts more in the direction, and the norm stays
        that of one item
    norm_weighted
        1                   the sum of raw rows, each direction weighted by its norm: von
        Mises-Fisher natural parameters add
    ijb
        1/k                 mean over each medium, then sum over the media: a video counts as much
        as a photo (insightface, IJB-B/C)
    ijb_mean
        1/(k m)             the same, but mean over the media: for similarities that look at the
        norm (OpenSphere's SimPLE)

Cosine does not see the factor between the first two, nor between the last two; dot, simple and vMF
similarities do.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.cores import keep_freed_memory
from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.types import Floats, Floats32, check_choice

Method = Literal["mean", "norm_weighted", "ijb", "ijb_mean"]

_FEW = 1000  # rows
_BLOCK = 1 << 19  # cells that are float64 at a time: 4 MB, which stay in the cache


def pool(
    embeddings: Embeddings,
    template_of: ArrayLike,
    media_of: ArrayLike | None = None,
    *,
    items: ArrayLike | None = None,
    method: Method = "mean",
    weights: ArrayLike | None = None,
) -> Embeddings:
    """One embedding per template; its ids are the template names as text, in order of first
    occurrence.

    template_of: (R,) names (text or integers), one per row of `embeddings`, or, where an item
    serves several templates or none, one per entry of `items`, (R,) ids or row numbers. media_of:
    (R,) names, distinct within a template only; needed by the ijb methods. weights: (R,) factors >=
    0 of the rows (detector scores, durations). Sums are float64; memory: the result and about
    100 MB. The meta goes on.
    LikenessError: lengths that differ, unknown method, ijb without media, items without embedding.

    >>> faces = Embeddings(("a", "b", "c"), np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 4.0]]))
    >>> pool(faces, ["t", "t", "t"], ["video", "video", "photo"], method="ijb").matrix
    array([[1., 5.]], dtype=float32)
    """
    check_choice("method", method, get_args(Method))
    rows = _rows(embeddings, items)
    names, template = _numbered("template_of", template_of, rows.size)
    factor = _factors(template, media_of, method, weights)
    pooled = _sums(embeddings.matrix, rows, template, factor, len(names))
    return Embeddings(names, pooled.astype(np.float32), embeddings.meta)


def _factors(
    template: NDArray[Any], media_of: ArrayLike | None, method: Method, weights: ArrayLike | None
) -> Floats:
    """(R,) the weight of each row in its template. template: (R,) numbers."""
    factor = np.ones(template.size) if weights is None else np.asarray(weights, dtype=np.float64)
    if method == "mean":
        factor = factor / np.bincount(template)[template]
    elif method in ("ijb", "ijb_mean"):
        if media_of is None:
            raise LikenessError(f"pool: method {method!r} needs media_of; give the media")
        _, media = _numbered("media_of", media_of, template.size)
        num_media = media.max(initial=0) + 1
        pairs, medium = np.unique(template * np.int64(num_media) + media, return_inverse=True)
        factor = factor / np.bincount(medium)[medium]
        if method == "ijb_mean":
            factor = factor / np.bincount(pairs // num_media)[template]
    return factor


def _sums(
    matrix: Floats32, rows: NDArray[Any], group: NDArray[Any], factor: Floats, num_groups: int
) -> Floats:
    """(num_groups, D) sums of factor * matrix[rows] over each group, in float64: a sparse product
    for each block of the sorted groups. Few rows are added one by one, to the same sums.
    """
    sums = np.zeros((num_groups, matrix.shape[1]))
    # scipy.sparse takes a tenth of a second to import, and a small image does without scipy
    if rows.size <= _FEW or find_spec("scipy") is None:
        np.add.at(sums, group, factor[:, None] * matrix[rows])
        return sums
    from scipy.sparse import csr_array

    keep_freed_memory()
    order = np.argsort(group, kind="stable")
    in_place = bool((order[1:] > order[:-1]).all()) and bool((rows[1:] == rows[:-1] + 1).all())
    step = max(1, _BLOCK // matrix.shape[1])
    for start in range(0, order.size, step):
        part = order[start : start + step]
        groups = group[part]
        firsts = np.flatnonzero(np.append(True, groups[1:] != groups[:-1]))
        first = rows[part[0]]
        taken = matrix[first : first + part.size] if in_place else matrix[rows[part]]
        weights = csr_array(
            (factor[part], np.arange(part.size), np.append(firsts, part.size)),
            shape=(firsts.size, part.size),
        )
        # a group may go on in the next block
        sums[groups[firsts]] += weights @ taken.astype(np.float64)
    return sums


def _rows(embeddings: Embeddings, items: ArrayLike | None) -> NDArray[Any]:
    if items is None:
        return np.arange(len(embeddings.ids))
    named = np.asarray(items)
    if named.dtype.kind in "iu" or not named.size:
        return named.astype(np.int64)
    return embeddings.rows(named.tolist())


def _numbered(name: str, labels: ArrayLike, count: int) -> tuple[tuple[str, ...], NDArray[Any]]:
    """The distinct labels as text by first occurrence, and (R,) their numbers."""
    named = np.asarray(labels)
    if named.shape != (count,):
        raise LikenessError(f"pool: {name} must be ({count},) names, but has shape {named.shape}")
    known, first, places = np.unique(named, return_index=True, return_inverse=True)
    by_occurrence = np.argsort(first)
    return tuple(map(str, known[by_occurrence].tolist())), np.argsort(by_occurrence)[places]


def enrol(embeddings: Embeddings, models: Mapping[str, Sequence[str]], **how: Any) -> Embeddings:
    """The models' embeddings, pooled from their items as by `pool`, whose keywords `how` are.

    Their ids are the models.

    LikenessError: An item has no embedding.

    >>> utterances = Embeddings(("u1", "u2", "u3"), np.array([[2.0], [4.0], [9.0]]))
    >>> enrol(utterances, {"ann": ["u1", "u2"], "bob": ["u3", "u1"]}).matrix.ravel().tolist()
    [3.0, 5.5]
    """
    items = [item for listed in models.values() for item in listed]
    template_of = [model for model, listed in models.items() for _ in listed]
    return pool(embeddings, template_of, items=items, **how)
