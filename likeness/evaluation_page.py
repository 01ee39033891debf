"""The page that an evaluation of score files writes, and what it shows beside the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eval.errors import LikenessError
from eval.types import Embeddings, Trials
from eval.uncertainty import sides_with
from likeness.scored_items import embeddings_by_system

if TYPE_CHECKING:
    from eval.reports.media import Media


@dataclass(frozen=True)
class Page:
    """The page that an evaluation writes, and the files of what it shows beside the results.

    Attributes:
        folder: Where `index.html` is written.
        embeddings: What was scored, one file for all score files or one for each: the page then has
            error-versus-reject by their norms, norm grids and a map.
        media: What `likeness.media.media_of` takes: the page shows the images or recordings of the
            hardest trials and of the norm grids.
        command: The command line, which the page repeats.
    """

    folder: Path
    embeddings: Sequence[Path] = ()
    media: Path | None = None
    command: str = ""


def page_of(
    folder: Path | None,
    embeddings: Sequence[Path] = (),
    media: Path | None = None,
    command: str = "",
) -> Page | None:
    """The page that was asked for, or None without a folder.

    Raises:
        LikenessError: There is no folder for what only a page shows.
    """
    if folder is not None:
        return Page(folder, embeddings, media, command)
    if embeddings or media:
        raise LikenessError(
            "embeddings and media are shown in the report; name a folder for it with --report"
        )
    return None


@dataclass(frozen=True, eq=False)
class PageContents:
    """What a page shows beside the results, read from its files.

    Attributes:
        embeddings: System -> the embeddings that were scored; empty where none are shown.
        media: The media by id, or None.
        files: What was read, for the record.
    """

    embeddings: Mapping[str, Embeddings]
    media: Media | None
    files: Sequence[Path]

    @classmethod
    def read(cls, page: Page | None, systems: Sequence[str]) -> PageContents:
        """Read the files of the page. One embedding file serves all systems."""
        if page is None:
            return cls({}, None, [])
        from likeness.media import media_of  # slow to import, needed for pages only

        media = media_of(page.media) if page.media else None
        files = [*page.embeddings, *([page.media] if page.media and page.media.is_file() else [])]
        return cls(embeddings_by_system(page.embeddings, systems), media, files)

    def refuse_absent(self, system: str, listed: Trials) -> None:
        """Refuse trials of items without an embedding, before the long work.

        Raises:
            LikenessError: There are such trials.
        """
        if self.embeddings:
            sides_with(listed, frozenset(self.embeddings[system].ids))
