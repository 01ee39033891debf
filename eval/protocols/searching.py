"""What `identify` and `retrieve` measured: results, a table, a file and a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from likeness.eval.formats.embeddings import Labelled
from likeness.eval.formats.files import File
from likeness.eval.intervals.uncertainty import Answers
from likeness.eval.metrics.identification import Protocol, Searched
from likeness.eval.protocols.arguments import State, digests_of
from likeness.eval.results import Result, table, write_results


@dataclass(frozen=True, eq=False)
class SearchEvaluation:
    """What `identify` or `retrieve` measured. Print it to see the table.

    Attributes:
        results: every metric with its interval, threshold, counts and conventions.
        notes: what stands below the table, one sentence each.
        queries: what was searched for.
        galleries: what was searched in; none where the queries search each other.
        searched: of an identification, the search in each gallery, for curves.
        protocol: the rule of its TPIR.
        answers: of a retrieval, the quality and the risk of each query; None where no quality was
            asked for.
        files: what was read, and in which state, for the record.

    Example:
        >>> import likeness
        >>> embeddings = likeness.load("runs/voices").embed("voices")
        >>> page = likeness.retrieve(embeddings).report("search", media="voices")
        >>> page.name, page.stat().st_size > 10_000
        ('index.html', True)
    """

    results: list[Result]
    notes: Sequence[str]
    queries: Labelled
    galleries: Sequence[Labelled] = ()
    searched: Sequence[Searched] = ()
    protocol: Protocol = "open"
    answers: Answers | None = None
    files: Mapping[Path, State] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.table().rstrip("\n")

    def table(self) -> str:
        """Aligned text: a row per metric with its interval, the counts, the notes."""
        return table(self.results, self.notes)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The SHA-256 of each file that was read, by its path."""
        return digests_of(self.files)

    def save(self, path: File) -> None:
        """Write the results as JSON, as docs/reference/formats.md describes it."""
        write_results(Path(path), self.results, self.inputs)

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
        from likeness.eval.reports.media import media_of
        from likeness.eval.reports.search import write_page

        if not command:
            function = "identify" if self.searched else "retrieve"
            command = f"likeness.{function}(...) in Python"
        page = Path(folder) / "index.html"
        write_page(page, self, media=media_of(media), command=command)
        return page
