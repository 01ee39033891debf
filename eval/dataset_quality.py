"""What a set of embeddings is like: groups of unknown items, labels that are likely wrong, items
that are nearly the same, and how diverse the embeddings are.

Of diversity the nivMF paper (supplement L) has words and no equations: "we follow [57] and evaluate
the uniformity of the sorted spectral value distribution of all training image embeddings to measure
the number of significant directions of variances in feature space. The latter is simply computed as
the variance (i.e. diversity) of intraclass distances for each class-cluster. For both cases, we
specifically care about relative changes". Both are to rise (its Table 5).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.errors import LikenessError
from eval.progress import report, step
from eval.ranks import Counts, check_rows, check_sizes, label_codes
from eval.similarity import matrix
from eval.types import Floats, Floats32, check_choice, check_counts

Method = Literal["agglomerative", "hdbscan"]
MAX_ITEMS = 10_000  # whose scores and distances take 3 GB at most
_BLOCK = 2**22  # similarities that are computed at once
_MAX_PAIRS = 1_000_000
_SMALLEST = 1e-7  # singular values below this share of the sum are rounding


@step("clustering")
def cluster(
    rows: ArrayLike,
    *,
    similarity: str = "cosine",
    threshold: float | None = None,
    num_clusters: int | None = None,
    method: Method = "agglomerative",
    min_size: int = 2,
) -> Counts:
    """Group embeddings that are alike.

    "agglomerative" joins the two clusters with the highest mean similarity of their members
    (average linkage) until no mean reaches the threshold, or so many clusters are left. "hdbscan"
    (Campello et al. 2013, scikit-learn's) finds dense groups without a threshold, and leaves out
    what belongs to none.

    Args:
        rows: Raw embeddings (N, D).
        similarity: A name of `eval.similarity` that is symmetric.
        threshold: Two clusters are joined if the mean score of their members is at least this.
        num_clusters: How many clusters there are, in place of a threshold.
        method: How the clusters are found.
        min_size: The fewest items of a cluster, for "hdbscan".

    Returns:
        The cluster of each item (N,): 1 for the largest one, then in falling order of size; of
        equal sizes that of the earlier item first. 0 stands for none.

    Raises:
        LikenessError: A threshold and a number are given or neither, one of them beside "hdbscan",
            there are fewer than 2 or more than 10,000 rows, or a number is outside its range.

    Example:
        >>> cluster([[1, 0], [0, 1], [2, 0.1], [3, 0]], threshold=0.9).tolist()
        [1, 2, 1, 1]
    """
    values = np.asarray(rows, dtype=np.float32)
    check_choice("method", method, get_args(Method))
    if not 2 <= len(values) <= MAX_ITEMS:
        raise LikenessError(
            f"{len(values):,} items cannot be grouped, because each is compared with every other; "
            f"give 2 to {MAX_ITEMS:,}"
        )
    name, size, least = ("num_clusters", num_clusters, 1)
    if method == "hdbscan":
        name, size, least = ("min_size", min_size, 2)
    if size is not None:
        check_counts(name, [size], least=least)
        if size > len(values):
            raise LikenessError(f"{name} {size}: there are {len(values)} items only")
    if method == "hdbscan":
        if threshold is not None or num_clusters is not None:
            raise LikenessError(
                "hdbscan takes neither a threshold nor a number of clusters, but finds both; leave "
                "them out"
            )
        return _by_size(_hdbscan(_distances(values, similarity)[0], min_size))
    if (threshold is None) == (num_clusters is None):
        raise LikenessError(
            "agglomerative clustering needs a threshold or num_clusters, one of them"
        )
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, needed here only

    distances, nearest = _distances(values, similarity)
    tree = linkage(distances, method="average")
    if threshold is not None:
        cut = fcluster(tree, nearest - threshold, criterion="distance")
        return _by_size(np.asarray(cut, dtype=np.int64))
    return _by_size(_cut_into(tree, num_clusters or 1))


class Fit(NamedTuple):
    """How well items (N,) sit in their clusters.

    Attributes:
        own: The mean score with the other items of the cluster; NaN for an item alone.
        other: The highest mean score with all items of another cluster; NaN where there is none.
        nearest: The number of that cluster; 0 where there is none.
    """

    own: NDArray[np.float64]
    other: NDArray[np.float64]
    nearest: Counts


@step("looking at the clusters")
def fit_of(rows: ArrayLike, clusters: Counts, *, similarity: str = "cosine") -> Fit:
    """How well each item sits in its cluster, by the mean scores with the items of each cluster.

    Args:
        rows: Raw embeddings (N, D).
        clusters: Of each item (N,), as `cluster` gives them; 0 stands for none.
        similarity: A name of `eval.similarity`.

    Example:
        >>> fit = fit_of([[1, 0], [1, 0], [0, 1]], np.array([1, 1, 2]))
        >>> fit.own.tolist(), fit.nearest.tolist()
        ([1.0, 1.0, nan], [2, 2, 1])
    """
    values = np.asarray(rows, dtype=np.float32)
    scores = matrix(values, values, similarity).astype(np.float64)
    count = int(clusters.max(initial=0))
    member = clusters[:, None] == np.arange(1, count + 1)
    sizes = member.sum(axis=0)
    sums = scores @ member
    own_row = np.arange(len(values)), np.maximum(clusters, 1) - 1
    inside = clusters > 0
    others = sums / np.maximum(sizes, 1)
    alone = np.full(len(values), np.nan)
    if not count:
        return Fit(alone, alone.copy(), np.zeros(len(values), dtype=np.int64))
    company = inside & (sizes[own_row[1]] > 1)
    without_self = sums[own_row] - np.diagonal(scores)
    own = np.where(company, without_self / np.maximum(sizes[own_row[1]] - 1, 1), np.nan)
    others[member] = -np.inf
    best = others.max(axis=1)
    there = np.isfinite(best)
    return Fit(
        own,
        np.where(there, best, np.nan),
        np.where(there, others.argmax(axis=1) + 1, 0).astype(np.int64),
    )


def _distances(values: NDArray[np.float32], similarity: str) -> tuple[NDArray[np.float64], float]:
    """The distances of all pairs, as scipy.cluster.hierarchy takes them, and the score of
    distance 0: a distance is this minus the mean score of both directions.
    """
    scores = matrix(values, values, similarity)
    num = len(scores)
    distances = np.empty(num * (num - 1) // 2)
    place = 0
    for i in range(num - 1):  # the pairs of one item at a time, so that the scores are there once
        one_way = scores[i, i + 1 :].astype(np.float64)
        distances[place : place + num - 1 - i] = (one_way + scores[i + 1 :, i]) / 2
        place += num - 1 - i
    nearest = max(1.0 if similarity == "cosine" else -np.inf, float(distances.max()))
    return np.maximum(np.subtract(nearest, distances, out=distances), 0.0, out=distances), nearest


def _cut_into(tree: NDArray[np.float64], num_clusters: int) -> Counts:
    """Exactly so many clusters, also where several joins are at one distance."""
    size = len(tree) + 1
    parent = np.arange(2 * size - 1)
    for number, (left, right) in enumerate(tree[: size - num_clusters, :2].astype(np.int64)):
        parent[[left, right]] = size + number
    for node in range(len(parent) - 1, -1, -1):
        parent[node] = parent[parent[node]]
    return parent[:size]


def _hdbscan(distances: NDArray[np.float64], min_size: int) -> Counts:
    from scipy.spatial.distance import squareform  # slow to import, needed here only
    from sklearn.cluster import HDBSCAN

    clusterer = HDBSCAN(min_cluster_size=min_size, metric="precomputed", copy=False)
    return np.asarray(clusterer.fit(squareform(distances)).labels_, dtype=np.int64)


def _by_size(labels: Counts) -> Counts:
    """The clusters numbered from 1 by size, then by their first item; negative labels become 0."""
    names, first, inverse, counts = np.unique(
        labels, return_index=True, return_inverse=True, return_counts=True
    )
    order = [i for i in np.lexsort((first, -counts)) if names[i] >= 0]
    numbers = np.zeros(len(names), dtype=np.int64)
    numbers[order] = np.arange(1, len(order) + 1)
    return numbers[inverse]


@dataclass(frozen=True)
class Suspects:
    """Items that look like another class than their own, the surest first.

    Attributes:
        rows: (S,) the rows of the items.
        looks_like: (S,) the number of the class that each looks like.
        own: (S,) the cosine to the mean of its own class without itself.
        other: (S,) the cosine to the mean of the class that it looks like.
    """

    rows: NDArray[np.int64]
    looks_like: NDArray[np.int64]
    own: Floats
    other: Floats


def suspects(unit: Floats32, numbers: NDArray[np.int64]) -> Suspects:
    """Finds the items whose label is likely wrong.

    An item is named where it is nearer to the mean of another class than to that of its own class
    without itself, and as near to the other as that class's own items are on average. The second
    condition is the threshold of each class of confident learning (Northcutt, Jiang & Chuang 2021,
    equation 2), with cosines in place of probabilities. The means are those by which face and voice
    data are cleaned (for one centre per class: Deng et al. 2020, Sub-center ArcFace, section 3.4).

    Args:
        unit: (N, D) embeddings of length 1.
        numbers: (N,) the class of each, from 0.

    Returns:
        The suspects, in the order of how much nearer the other class is. Items that are alone in
        their class are none.

    Example:
        >>> unit = np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 1]]
        >>> suspects(unit, np.array([0, 0, 0, 1, 1, 1, 0])).rows.tolist()
        [6]
    """
    num_classes = int(numbers.max(initial=-1)) + 1
    counts = np.bincount(numbers, minlength=num_classes)
    sums = np.zeros((num_classes, unit.shape[1]), dtype=np.float64)
    np.add.at(sums, numbers, unit)
    without = sums[numbers] - unit
    own = (without * unit).sum(axis=1) / np.maximum(np.linalg.norm(without, axis=1), 1e-12)
    own[counts[numbers] < 2] = np.nan
    means = (sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)).astype(
        np.float32
    )
    several = ~np.isnan(own)
    least = np.full(num_classes, np.inf)  # of a class of one item nobody knows how near is near
    total = np.bincount(numbers[several], own[several], minlength=num_classes)
    known = counts >= 2
    least[known] = total[known] / counts[known]
    other, looks_like = np.full(len(unit), -np.inf), np.full(len(unit), -1, dtype=np.int64)
    height = max(1, _BLOCK // max(1, num_classes))
    for start in range(0, len(unit), height):
        rows = np.arange(start, min(start + height, len(unit)))
        similar = (unit[rows] @ means.T).astype(np.float64)
        similar[similar < least] = -np.inf
        similar[np.arange(len(rows)), numbers[rows]] = -np.inf
        looks_like[rows] = similar.argmax(axis=1)
        other[rows] = similar.max(axis=1)
        report("comparing with the classes", int(rows[-1]) + 1, len(unit))
    suspicious = np.flatnonzero(other > own)
    suspicious = suspicious[np.argsort(own[suspicious] - other[suspicious], kind="stable")]
    return Suspects(suspicious, looks_like[suspicious], own[suspicious], other[suspicious])


def near_pairs(unit: Floats32, least: float) -> NDArray[np.int64]:
    """Finds the pairs of items whose cosine is at least this.

    Args:
        unit: (N, D) embeddings of length 1.
        least: The lowest cosine.

    Returns:
        (P, 2) rows, the first smaller than the second, in their order; at most a million.

    Example:
        >>> near_pairs(np.eye(3, dtype=np.float32)[[0, 1, 0]], 0.9).tolist()
        [[0, 2]]
    """
    pairs, count = [], 0
    height = max(1, _BLOCK // max(1, len(unit)))
    for start in range(0, len(unit), height):
        stop = min(start + height, len(unit))
        similar = unit[start:stop] @ unit[start:].T
        first, second = np.nonzero(similar >= least)
        later = second > first
        pairs.append(np.stack([first[later], second[later]], axis=1) + start)
        count += int(later.sum())
        report("comparing all pairs", stop, len(unit))
        if count >= _MAX_PAIRS:
            break
    return np.concatenate(pairs)[:_MAX_PAIRS] if pairs else np.empty((0, 2), np.int64)


def spectral_decay(embeddings: ArrayLike) -> float:
    """rho = KL(uniform || s / sum s) of the sorted singular values s of the rows, nats; low = many
    directions of variance (Roth et al. 2020, [57], Sec. 5).

    embeddings: (N, D) raw; scaled to length 1 here, as retrieval is by cosine, and not centred, as
    in [57], whose code takes D - 1 values of a randomised SVD; this is all of min(N, D), exact.
    Values below 1e-7 of their sum count as 1e-7, so that a collapsed space scores a large number
    and not infinity.
    LikenessError: shapes, NaN, only zero vectors.

    >>> round(spectral_decay([[1, 0], [0, 1]]), 6), round(spectral_decay([[1, 0], [1, 0]]), 1)
    (0.0, 7.4)
    """
    values = np.linalg.svd(_unit(embeddings), compute_uv=False)
    if not values.sum() > 0:
        raise LikenessError(
            "embeddings: every row is the zero vector, which has no direction of variance"
        )
    share = np.maximum(values / values.sum(), _SMALLEST)
    return max(0.0, float(-np.log(share * values.size).mean()))


def feature_diversity(embeddings: ArrayLike) -> float:
    """exp(-rho) in (0, 1], rho = `spectral_decay`: 1 if all directions carry the same variance. Our
    reading of "uniformity": higher is more diverse, as in Table 5, where [57]'s rho falls. It is
    the geometric over the arithmetic mean of the singular values. Arguments and errors: of
    `spectral_decay`.
    """
    return float(np.exp(-spectral_decay(embeddings)))


def cluster_diversity(embeddings: ArrayLike, labels: ArrayLike) -> float:
    """Mean over classes of the variance of the distances between the items of one class.

    embeddings: (N, D) raw. labels: (N,) integers or strings. Our reading: cosine distances 1 - cos
    (the paper retrieves by cosine), each pair once, population variance within the class, classes
    weighted equally; classes of one item have no pair and those of two no variance but 0, so only
    classes of three or more count. LikenessError: shapes, NaN, no such class.

    >>> round(cluster_diversity([[1, 0], [1, 0], [0, 1]], [7, 7, 7]), 6)
    0.222222
    """
    rows = _unit(embeddings)
    codes, _ = label_codes(labels)
    check_sizes(codes, rows)
    order = np.argsort(codes, kind="stable")
    variances = []
    for members in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        if members.size >= 3:
            similar = rows[members] @ rows[members].T
            variances.append(similar[np.triu_indices(members.size, 1)].var())
    if not variances:
        raise LikenessError(
            f"cluster diversity: none of the {np.unique(codes).size} classes has three items; a "
            "variance of distances needs three"
        )
    return float(np.mean(variances))


def _unit(embeddings: ArrayLike) -> Floats:
    """(N, D) float64 rows of length 1; zero rows stay zero."""
    rows = check_rows("embeddings", embeddings).astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: Floats = rows / np.where(norms > 0, norms, 1.0)
    return unit
