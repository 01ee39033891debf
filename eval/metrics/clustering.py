"""Grouping unknown items by their embeddings: how many subjects are there, and which is whose?"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.retrieval import nmi_of
from likeness.eval.metrics.similarity import matrix
from likeness.eval.progress import step
from likeness.eval.types import check_choice, check_counts

Method = Literal["agglomerative", "hdbscan"]
MAX_ITEMS = 10_000  # whose scores and distances take 3 GB at most


@step("clustering")
def cluster(
    rows: ArrayLike,
    *,
    similarity: str = "cosine",
    threshold: float | None = None,
    num_clusters: int | None = None,
    method: Method = "agglomerative",
) -> Counts:
    """Group embeddings that are alike.

    "agglomerative" joins the two clusters with the highest mean similarity of their members
    (average linkage) until no mean reaches the threshold, or so many clusters are left. "hdbscan"
    (Campello et al. 2013) finds dense groups by itself, and leaves out what belongs to none.

    Args:
        rows: Raw embeddings (N, D).
        similarity: A name of `likeness.eval.metrics.similarity` that is symmetric.
        threshold: The least mean score of the members of two clusters that are joined.
        num_clusters: How many clusters there are, in place of a threshold.
        method: How the clusters are found.

    Returns:
        (N,) the cluster of each item: 1 for the largest one, then by size and first item; 0 stands
        for none.

    Raises:
        LikenessError: Not one of threshold and number is given, or one beside "hdbscan"; there are
            fewer than 2 or more than 10,000 rows, or a number is outside its range.

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
    given = (threshold is not None) + (num_clusters is not None)
    if given != (method == "agglomerative"):
        raise LikenessError(
            f"{given} of threshold and num_clusters are given; agglomerative clustering needs one "
            "of them, and hdbscan finds both"
        )
    if num_clusters is not None:
        check_counts("num_clusters", [num_clusters])
        if num_clusters > len(values):
            raise LikenessError(f"num_clusters {num_clusters}: there are {len(values)} items only")
    if method == "hdbscan":
        return _by_size(_hdbscan(_distances(values, similarity)[0]))
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, needed here only

    distances, nearest = _distances(values, similarity)
    tree = linkage(distances, method="average")
    if threshold is not None:
        cut = fcluster(tree, nearest - threshold, criterion="distance")
        return _by_size(np.asarray(cut, dtype=np.int64))
    return _by_size(_cut_into(tree, num_clusters or 1))


def agreement(labels: Sequence[str], clusters: Counts) -> dict[str, float]:
    """Say how well clusters agree with labels that are known; 1 is best.

    Args:
        labels: The label of each item, N texts.
        clusters: The cluster of each (N,); each item of cluster 0 is a cluster of its own.

    Returns:
        purity, the share of items whose cluster has most items of their label; nmi, see
        `likeness.eval.metrics.retrieval.nmi_of`; and bcubed_precision, bcubed_recall and bcubed_f1
        (Bagga and Baldwin 1998): of each item, the share of its cluster that has its label, the
        share of its label that is in its cluster, and the harmonic mean of both means.

    Example:
        >>> agreement(["a", "a", "b"], np.array([1, 1, 1]))["purity"]
        0.6666666666666666
    """
    _, label = np.unique(np.array(labels, dtype=str), return_inverse=True)
    alone = clusters.max(initial=0) + 1 + np.arange(len(clusters))
    _, cluster = np.unique(np.where(clusters == 0, alone, clusters), return_inverse=True)
    from scipy.sparse import coo_array  # slow to import, needed here only

    table = coo_array((np.ones(len(label)), (cluster, label))).tocsr()
    both = np.asarray(table[cluster, label]).ravel()
    precision = float((both / np.bincount(cluster)[cluster]).mean())
    recall = float((both / np.bincount(label)[label]).mean())
    return {
        "purity": float(table.max(axis=1).sum() / len(label)),
        "nmi": nmi_of(label, cluster),
        "bcubed_precision": precision,
        "bcubed_recall": recall,
        "bcubed_f1": 2 * precision * recall / (precision + recall),
    }


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


def _hdbscan(distances: NDArray[np.float64]) -> Counts:
    from scipy.spatial.distance import squareform  # slow to import, needed here only
    from sklearn.cluster import HDBSCAN

    clusterer = HDBSCAN(min_cluster_size=2, metric="precomputed", copy=False)
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
