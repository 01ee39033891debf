"""Identify, retrieve, cluster: embeddings are searched or grouped, of files or in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Annotated, Literal

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.subjects import labels_of
from likeness.eval.formats.values import (
    File,
    Names,
    digests_of,
    embeddings_of,
    files_in,
    names_of,
    quality_of,
)
from likeness.eval.formats.writing import write_rows
from likeness.eval.metrics.cleaning import fit_of
from likeness.eval.metrics.clustering import Method, agreement
from likeness.eval.metrics.clustering import cluster as cluster_rows
from likeness.eval.metrics.ranks import Counts
from likeness.eval.option import Option
from likeness.eval.protocols.identification import IdentificationSettings, Identified
from likeness.eval.protocols.identification import identify as identify_values
from likeness.eval.protocols.retrieval import RetrievalSettings, Retrieved
from likeness.eval.protocols.retrieval import retrieve as retrieve_values
from likeness.eval.results import Result, write_json

Side = tuple[Embeddings, Mapping[str, str] | None]
"""Embeddings, and the label of each id; None for the first folder of the ids."""


@dataclass(frozen=True, eq=False)
class SearchEvaluation:
    """What `identify` or `retrieve` measured. Print it to see the table.

    Attributes:
        measured: the results.
        queries: what was searched for.
        gallery: what was searched in; None where the queries search each other.
        files: what was read, for the record.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> page = likeness.retrieve(embeddings).report("search", media="voices")
        >>> page.name, page.stat().st_size > 10_000
        ('index.html', True)
    """

    measured: Identified | Retrieved
    queries: Side
    gallery: Side | None
    files: Sequence[Path] = ()

    def __str__(self) -> str:
        return str(self.measured)

    def __repr__(self) -> str:
        return repr(self.measured)

    @property
    def results(self) -> list[Result]:
        """Every metric with its interval, threshold, counts and conventions."""
        return self.measured.results

    def table(self) -> str:
        """The results as aligned text."""
        return self.measured.table()

    def save(self, path: File) -> None:
        """Write the results as JSON, as docs/reference/formats.md describes it."""
        write_json(Path(path), self.results, digests_of(self.files))

    def report(self, folder: File, *, media: File | None = None, command: str = "") -> Path:
        """Write a self-contained page: results, curves, and queries with their nearest items.

        Args:
            folder: where `index.html` is written; it is made if it does not exist.
            media: folder of the recordings or images that the ids name, a list `id path`, or a
                table, Kaldi folder or .rttm file. The page then shows them.
            command: makes the page again.

        Returns:
            The path of the page.
        """
        from likeness.eval.reports import search
        from likeness.eval.reports.media import media_of

        kind = "subject" if isinstance(self.measured, Identified) else "label"
        labels = labels_of("queries", self.queries[0].ids, self.queries[1], kind)
        gallery, of_gallery = None, labels
        if self.gallery is not None:
            gallery = self.gallery[0]
            of_gallery = labels_of("gallery", gallery.ids, self.gallery[1], kind)
        sides = search.Sides(
            self.queries[0],
            labels,
            gallery,
            of_gallery,
            str(self.results[0].conventions["similarity"]),
            media_of(media),
            command or f"likeness.{'identify' if kind == 'subject' else 'retrieve'}(...) in Python",
            digests_of(self.files),
        )
        page = Path(folder) / "index.html"
        if isinstance(self.measured, Identified):
            search.write_page(page, self.results, sides, searched=self.measured.searched)
        else:
            search.write_page(page, self.results, sides, rated=self.measured.answers)
        return page


def identify(
    gallery: Annotated[File | Embeddings, Option(path="file")],
    probes: Annotated[File | Embeddings, Option(path="file")],
    settings: IdentificationSettings | None = None,
    *,
    gallery_subjects: Annotated[Names | None, Option(path="file")] = None,
    probe_subjects: Annotated[Names | None, Option(path="file")] = None,
) -> SearchEvaluation:
    """Search every probe in a gallery: rank-K and open-set TPIR@FPIR.

    Args:
        gallery: the embeddings to search in.
        probes: the embeddings to search for.
        settings: what is measured and by which rule.
        gallery_subjects: lines `id subject`, or a mapping (default: the first folder of the ids).
        probe_subjects: lines `id subject`, or a mapping (default: the first folder of the ids).

    Returns:
        The results; print them to see the table. `.report(folder)` writes a page.

    Raises:
        LikenessError: a file does not exist. Ids have no subject, or no probe has a mate.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.identify(embeddings, embeddings).results[0].metric
        'rank_k(1)'
    """
    searched, queries = embeddings_of(gallery), embeddings_of(probes)
    of_gallery = names_of(gallery_subjects)
    of_probes = names_of(probe_subjects)
    measured = identify_values(
        [searched],
        queries,
        settings or IdentificationSettings(),
        gallery_subjects=of_gallery,
        probe_subjects=of_probes,
    )
    files = files_in(gallery, probes, gallery_subjects, probe_subjects)
    return SearchEvaluation(measured, (queries, of_probes), (searched, of_gallery), files)


def retrieve(
    embeddings: Annotated[File | Embeddings, Option(path="file")],
    labels: Annotated[Names | None, Option(path="file")] = None,
    settings: RetrievalSettings | None = None,
    *,
    gallery: Annotated[File | Embeddings | None, Option(path="file")] = None,
    gallery_labels: Annotated[Names | None, Option(path="file")] = None,
    quality: Annotated[
        Literal["norm"] | File | Mapping[str, float] | None, Option(metavar="norm|FILE")
    ] = None,
) -> SearchEvaluation:
    """Search every item among all others: recall@K, R-precision and MAP@R.

    Args:
        embeddings: the embeddings of the queries, each of which searches all others, or the
            gallery.
        labels: lines `id label`, or a mapping (default: the first folder of the ids).
        settings: what is measured and by which rule.
        gallery: the embeddings to search in, instead of the queries themselves.
        gallery_labels: the same of the gallery (default: those of the queries).
        quality: as in `likeness.eval.protocols.evaluation.evaluate`.

    Returns:
        The results; print them to see the table. `.report(folder)` writes a page.

    Raises:
        LikenessError: a file does not exist. Ids have no class, or no query has a relevant item.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> likeness.retrieve(embeddings).results[0].metric
        'recall@1'
    """
    if gallery is None and gallery_labels is not None:
        raise LikenessError("gallery labels without a gallery; give its embeddings too")
    queries, of_queries = embeddings_of(embeddings), names_of(labels)
    searched = None if gallery is None else embeddings_of(gallery)
    of_gallery = names_of(gallery_labels)
    settings = settings or RetrievalSettings()
    if quality is not None:
        settings = replace(settings, quality=quality_of(quality))
    measured = retrieve_values(
        queries,
        of_queries,
        settings,
        gallery=searched,
        gallery_labels=of_gallery,
        system="queries" if isinstance(embeddings, Embeddings) else Path(embeddings).stem,
        labels_from=Path(labels).name if isinstance(labels, str | PathLike) else "",
    )
    labelled = None if searched is None else (searched, of_gallery or of_queries)
    files = files_in(embeddings, labels, gallery, gallery_labels, quality)
    return SearchEvaluation(measured, (queries, of_queries), labelled, files)


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

    Args:
        embeddings: N items, at most 10,000, or a file of them.
        threshold: Two clusters are joined if the mean score of their members is at least this,
            such as `model.thresholds.at(0.01).value`.
        num_clusters: How many clusters there are, in place of a threshold.
        method: agglomerative joins by average linkage; hdbscan needs neither threshold nor number,
            and leaves out what belongs to no dense group.
        source: Where the threshold comes from, as the page will say it.

    Returns:
        The clusters, the largest first.

    Raises:
        LikenessError: The file does not exist. As `likeness.eval.metrics.clustering.cluster`.

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
    )
    if method == "hdbscan":
        how = f"They were found by HDBSCAN with at least 2 items in each, by {similarity}."
    elif threshold is not None:
        how = (
            f"They were found by average linkage, cut at a mean score ({similarity}) of "
            f"{threshold:.4g}" + (f": {source}." if source else ".")
        )
    else:
        how = f"They were found by average linkage ({similarity}), cut into {num_clusters}."
    return Clusters(stored, numbers, similarity, how)
