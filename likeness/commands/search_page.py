"""The page that `likeness retrieve` and `likeness identify` write with --report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eval.protocols.identification import Identified
    from eval.protocols.retrieval import Retrieved
    from eval.reports.search import Sides
    from eval.results import Result

Side = tuple[Path | None, Path | None]
"""A file of embeddings and its list of labels, where there are such."""


@dataclass(frozen=True)
class SearchPage:
    """A page to write.

    Attributes:
        folder: Where `index.html` is written.
        media: Folder of the images or recordings that the ids name, or a list `id path`.
        command: The command line, which the page repeats.
    """

    folder: Path
    media: Path | None
    command: str

    def of_retrieval(self, retrieved: Retrieved, queries: Side, gallery: Side) -> None:
        """Write the page of a retrieval.

        Args:
            retrieved: What was measured.
            queries: What was searched for.
            gallery: What was searched in; without a file the queries themselves.
        """
        from eval.reports import search

        sides = self._sides(retrieved.results[0], queries, gallery, "label")
        search.retrieval(self.folder / "index.html", retrieved.results, sides)

    def of_identification(self, identified: Identified, probes: Side, gallery: Side) -> None:
        """Write the page of an identification.

        Args:
            identified: What was measured.
            probes: What was searched for.
            gallery: What was searched in; of galleries apart the first.
        """
        from eval.reports import search

        sides = self._sides(identified.results[0], probes, gallery, "subject")
        page = self.folder / "index.html"
        search.identification(page, identified.results, sides, identified.searched)

    def _sides(self, result: Result, queries: Side, gallery: Side, kind: str) -> Sides:
        from eval.formats import embeddings
        from eval.formats.provenance import sha256
        from eval.formats.subjects import read_mapping
        from eval.protocols.labels import labels_of
        from eval.reports.media import Media, media_of
        from eval.reports.search import Sides

        assert queries[0] is not None
        own = embeddings.read(queries[0])
        labels = labels_of(
            "queries", own.ids, read_mapping(queries[1]) if queries[1] else None, kind
        )
        searched, of_searched = None, labels
        if gallery[0] is not None:
            searched = embeddings.read(gallery[0])
            mapping = read_mapping(gallery[1]) if gallery[1] else None
            of_searched = labels_of("gallery", searched.ids, mapping, kind)
        files = [path for path in (*queries, *gallery) if path]
        return Sides(
            own,
            labels,
            searched,
            of_searched,
            str(result.conventions["similarity"]),
            media_of(self.media) if self.media else Media(lambda _: None),
            self.command,
            {str(path): sha256(path) for path in dict.fromkeys(files)},
        )


def search_page(folder: Path | None, media: Path | None, command: str) -> SearchPage | None:
    """The page that was asked for, or None without a folder.

    Raises:
        ValueError: There is no folder for what only a page shows.
    """
    if folder is not None:
        return SearchPage(folder, media, command)
    if media is not None:
        raise ValueError("media are shown in the report; name a folder for it with --report")
    return None
