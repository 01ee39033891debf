"""Group unknown recordings or images by their embeddings, of files or in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.clustering import Counts, Method, fit_of
from eval.clustering import cluster as cluster_rows
from eval.formats.writing import atomic_path
from eval.types import Embeddings
from likeness.files import File, embeddings_of
from likeness.frames import data_frame
from likeness.row_files import DELIMITERS, check_written, table_text


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

    def to_frame(self) -> Any:
        """Give a pandas DataFrame with the columns id and cluster.

        Raises:
            LikenessError: pandas is not installed.
        """
        return data_frame({"id": list(self.embeddings.ids), "cluster": self.numbers})

    def save(self, path: File) -> None:
        """Write a table of text with the columns id and cluster, whole or not at all.

        Args:
            path: The file; it ends in .csv or .tsv.
        """
        target = Path(path)
        check_written(target, DELIMITERS, "clusters")
        rows = zip(self.embeddings.ids, self.numbers.tolist(), strict=True)
        text = table_text(["id", "cluster"], rows, DELIMITERS[target.suffix.lower()])
        with atomic_path(target) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="")

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
        from eval.reports.clusters import write_page
        from eval.reports.media import Media
        from likeness.media import media_of

        if media is None or isinstance(media, Mapping):
            shown = Media((media or {}).get)
        else:
            shown = media_of(Path(media))
        fit = fit_of(self.embeddings.matrix, self.numbers, similarity=self.similarity)
        return write_page(
            Path(folder),
            self.embeddings.ids,
            self.numbers,
            fit,
            how=self.how,
            command=command,
            media=shown,
        )


def cluster(
    embeddings: File | Embeddings,
    *,
    threshold: float | None = None,
    num_clusters: int | None = None,
    method: Method = "agglomerative",
    min_size: int = 2,
    source: str = "",
) -> Clusters:
    """Group items that are alike: how many subjects are there, and which item is whose?

    Args:
        embeddings: N items, at most 10,000, or a file of them.
        threshold: Two clusters are joined if the mean score of their members is at least this,
            such as `model.thresholds.at(0.01).value`.
        num_clusters: How many clusters there are, in place of a threshold.
        method: "agglomerative", by average linkage; or "hdbscan", which needs neither of both and
            leaves out what belongs to no dense group.
        min_size: The fewest items of a cluster, for "hdbscan".
        source: Where the threshold comes from, as the page will say it.

    Returns:
        The clusters, the largest first.

    Raises:
        LikenessError: The file does not exist. As `eval.clustering.cluster`.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> len(likeness.cluster(embeddings, num_clusters=4))
        4
    """
    stored = embeddings_of(embeddings)
    similarity = stored.meta.get("similarity") or "cosine"
    numbers = cluster_rows(
        stored.matrix,
        similarity=similarity,
        threshold=threshold,
        num_clusters=num_clusters,
        method=method,
        min_size=min_size,
    )
    if method == "hdbscan":
        how = f"They were found by HDBSCAN with at least {min_size} items in each, by {similarity}."
    elif threshold is not None:
        how = (
            f"They were found by average linkage, cut at a mean score ({similarity}) of "
            f"{threshold:.4g}" + (f": {source}." if source else ".")
        )
    else:
        how = f"They were found by average linkage ({similarity}), cut into {num_clusters}."
    return Clusters(stored, numbers, similarity, how)
