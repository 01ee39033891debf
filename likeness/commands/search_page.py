"""The page that `likeness retrieve` and `likeness identify` write with --report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval.errors import LikenessError

if TYPE_CHECKING:
    from eval.protocols.identification import Identified
    from eval.protocols.retrieval import Retrieved

Files = tuple[Path | None, Path | None]
"""A file of embeddings and its list of labels, where there are such."""


@dataclass(frozen=True)
class SearchPage:
    """A page to write.

    Attributes:
        folder: Where `index.html` is written.
        media: What `likeness.media.media_of` takes, for the images or recordings of the ids.
        command: The command line, which the page repeats.
    """

    folder: Path
    media: Path | None
    command: str

    def write(self, measured: Identified | Retrieved, queries: Files, gallery: Files) -> None:
        """Write the page.

        Args:
            measured: What was measured.
            queries: What was searched for.
            gallery: What was searched in, of galleries apart the first; without a file the queries
                themselves.
        """
        from eval.formats import embeddings
        from eval.formats.provenance import sha256
        from eval.formats.subjects import read_mapping
        from likeness.searching import SearchEvaluation

        sides = [
            (embeddings.read(file), read_mapping(labels) if labels else None) if file else None
            for file, labels in (queries, gallery)
        ]
        assert sides[0] is not None
        files = dict.fromkeys(path for path in (*queries, *gallery) if path)
        SearchEvaluation(measured, sides[0], sides[1]).report(
            self.folder,
            media=self.media,
            command=self.command,
            inputs={str(path): sha256(path) for path in files},
        )


def search_page(folder: Path | None, media: Path | None, command: str) -> SearchPage | None:
    """The page that was asked for, or None without a folder.

    Raises:
        LikenessError: There is no folder for what only a page shows.
    """
    if folder is not None:
        return SearchPage(folder, media, command)
    if media is not None:
        raise LikenessError("media are shown in the report; name a folder for it with --report")
    return None
