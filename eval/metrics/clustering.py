"""Grouping unknown items by their embeddings: how many subjects are there, and which is whose?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings, embeddings_of
from likeness.eval.formats.files import File
from likeness.eval.formats.subjects import Names, names_of
from likeness.eval.intervals.subjects import labels_of
from likeness.eval.metrics.cleaning import fit_of
from likeness.eval.metrics.ranks import Counts
from likeness.eval.metrics.retrieval import nmi_of
from likeness.eval.metrics.similarity import matrix as score_matrix
from likeness.eval.option import Option
from likeness.eval.progress import step
from likeness.eval.types import Floats32, check_choice, check_counts
from likeness.eval.writing import write_rows

Method = Literal["agglomerative", "hdbscan"]
MAX_ITEMS = 10_000  # whose scores and distances take 3 GB at most


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters of N items.

    Attributes:
        embeddings: What was grouped.
        numbers: The cluster of each item (N,), from 1 by size; 0 stands for none.
        similarity: How embeddings were compared.
        how: How the clusters were found, as a sentence.
    """

    embeddings: Embeddings
    numbers: Counts
    similarity: str
    how: str

    def __len__(self) -> int:
        """How many clusters there are."""
        return int(self.numbers.max(initial=0))

    def __repr__(self) -> str:
        return f"<{len(self)} clusters of {len(self.embeddings)} items>"

    def agreement(self, labels: Names | None = None) -> dict[str, float]:
        """Say how well the clusters agree with labels that are known: purity, NMI and BCubed.

        Args:
            labels: The label of each id, as an `id label` list or a mapping. By default the first
                folder of the ids.

        Raises:
            LikenessError: Ids have no label.

        Example:
            >>> import likeness
            >>> embeddings = likeness.load("runs/voices").embed("voices")
            >>> grouped = likeness.cluster(embeddings, num_clusters=4)
            >>> sorted(grouped.agreement())
            ['bcubed_f1', 'bcubed_precision', 'bcubed_recall', 'nmi', 'purity']
        """
        known = labels_of("clusters", self.embeddings.ids, names_of(labels), "label")
        return agreement(known, self.numbers)

    def save(self, path: File) -> None:
        """Write a table of text with the columns id and cluster, whole or not at all.

        Args:
            path: The file; it ends in .csv or .tsv.
        """
        rows = list(zip(self.embeddings.ids, self.numbers.tolist(), strict=True))
        write_rows(Path(path), ["id", "cluster"], rows)

    def report(
        self,
        folder: File,
        *,
        media: File | Mapping[str, Path] | None = None,
        command: str = "likeness.cluster(...) in Python",
    ) -> Path:
        """Write a self-contained page that shows every cluster.

        Args:
            folder: Where `index.html` is written; it is made if it does not exist.
            media: Folder of the recordings or images that the ids name, a list `id path`, or a
                mapping from ids to files. The page then shows them.
            command: Makes the page again.

        Returns:
            The path of the page.
        """
        from likeness.eval.reports.media import media_of
        from likeness.eval.reports.search import clustering

        inside = self.numbers > 0
        fit = fit_of(self.embeddings.unit()[inside], self.numbers[inside] - 1)
        return clustering(
            Path(folder),
            self.embeddings.ids,
            self.numbers,
            fit,
            how=self.how,
            command=command,
            media=media_of(media),
        )


def cluster(
    embeddings: File | Embeddings,
    *,
    threshold: Annotated[float | None, Option(is_typed=False)] = None,
    num_clusters: Annotated[int | None, Option(least=1)] = None,
    method: Method = "agglomerative",
    source: Annotated[str, Option(is_typed=False)] = "",
) -> Clusters:
    """Group items that are alike: how many subjects are there, and which item is whose?

    "agglomerative" joins the two clusters with the highest mean score of their members (average
    linkage) until no mean reaches the threshold, or so many clusters are left. "hdbscan" (Campello
    et al. 2013) finds dense groups by itself, and leaves out what belongs to none.

    Args:
        embeddings: N items, at most 10,000, or a file of them. Their meta names the similarity,
            which is symmetric; cosine where it names none.
        threshold: Two clusters are joined if the mean score of their members is at least this,
            such as `model.thresholds.at(0.01).value`.
        num_clusters: How many clusters there are, in place of a threshold.
        method: agglomerative joins by average linkage; hdbscan needs neither threshold nor number,
            and leaves out what belongs to no dense group.
        source: Where the threshold comes from, as the page will say it.

    Returns:
        The clusters, the largest first, then by their first item.

    Raises:
        LikenessError: The file does not exist. Not one of threshold and number is given, or one
            beside "hdbscan"; there are fewer than 2 or more than 10,000 items, or a number is
            outside its range.

    Example:
        >>> items = Embeddings(("a", "b", "c", "d"), [[1, 0], [0, 1], [2, 0.1], [3, 0]])
        >>> cluster(items, threshold=0.9).numbers.tolist()
        [1, 2, 1, 1]
    """
    items = embeddings_of(embeddings)
    check_choice("method", method, get_args(Method))
    if not 2 <= len(items) <= MAX_ITEMS:
        raise LikenessError(f"{len(items):,} items cannot be grouped; give 2 to {MAX_ITEMS:,}")
    num_limits = (threshold is not None) + (num_clusters is not None)
    if num_limits != (method == "agglomerative"):
        needs = "agglomerative needs one of threshold and num_clusters, and hdbscan none"
        raise LikenessError(f"{method} with {num_limits} limits: {needs}")
    if num_clusters is not None:
        check_counts("num_clusters", [num_clusters])
        if num_clusters > len(items):
            raise LikenessError(f"num_clusters {num_clusters}: there are {len(items)} items only")
    similarity = items.meta.get("similarity") or "cosine"
    if method == "hdbscan":
        how = f"They were found by HDBSCAN with at least 2 items in each, by {similarity}."
    elif threshold is not None:
        how = (
            f"They were found by average linkage, cut at a mean score ({similarity}) of "
            f"{threshold:.4g}" + (f": {source}." if source else ".")
        )
    else:
        how = f"They were found by average linkage ({similarity}), cut into {num_clusters}."
    labels = _labels(items.matrix, similarity, threshold, num_clusters)
    return Clusters(items, _by_size(labels), similarity, how)


@step("clustering")
def _labels(
    matrix: Floats32, similarity: str, threshold: float | None, num_clusters: int | None
) -> Counts:
    """The cluster of each row of a matrix (N, D), by HDBSCAN without threshold and number."""
    distances, nearest = _distances(matrix, similarity)
    if threshold is None and num_clusters is None:
        return _hdbscan(distances)
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import, needed here only

    tree = linkage(distances, method="average")
    if threshold is None:
        return _cut_into(tree, num_clusters or 1)
    cut = fcluster(tree, nearest - threshold, criterion="distance")
    return np.asarray(cut, dtype=np.int64)


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
    scores = score_matrix(values, values, similarity)
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
