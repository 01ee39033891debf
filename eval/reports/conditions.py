"""What `likeness bench` measured: as text, as JSON and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from likeness.eval.formats.files import File
from likeness.eval.formats.provenance import digests_of
from likeness.eval.intervals import paired
from likeness.eval.progress import step
from likeness.eval.reports.page import block, recompute, table, write
from likeness.eval.results import (
    Result,
    aligned,
    interval_text,
    metric_label,
    metric_text,
    write_json,
)

METRICS = ("eer", "far", "frr")


@dataclass(frozen=True, eq=False)
class Bench:
    """What `bench` measured.

    Attributes:
        results: Of each condition and model: "eer", "far" and "frr" where they can be, and
            "refused", the share of the recordings or pictures that the model refused. Their
            conventions say the condition and the groups, as in "mp3, room flat / studio".
        paired: The differences to the first model, on the trials that all models scored. Its
            systems are called "model, condition".
        notes: What was done and at which thresholds, a sentence each.
        files: What was read.
    """

    results: Sequence[Result]
    paired: paired.Paired
    notes: Sequence[str]
    files: Sequence[Path]

    def __str__(self) -> str:
        tables = [aligned(rows) for rows in (self.rows(), paired.rows(self.paired)) if rows]
        return "\n\n".join(map("\n".join, [*tables, self.sentences()]))

    def rows(self) -> list[list[str]]:
        """The head and a row of text for each condition and model."""
        cells: dict[tuple[str, str], dict[str, Result]] = {}
        for each in self.results:
            key = str(each.conventions["condition"]), each.system
            cells.setdefault(key, {})[each.metric] = each
        head = ["condition", "model", *map(metric_label, METRICS), "trials", "refused"]
        rows = [head]
        for key, cell in cells.items():
            counts = cell["refused"].counts
            num = (counts["targets"] or 0) + (counts["nontargets"] or 0)
            texts = {
                metric: f"{metric_text(metric, of.value)} {interval_text(of)}".rstrip()
                for metric, of in cell.items()
            }
            rates = (texts.get(metric, "-") for metric in METRICS)
            refused = f"{counts['refused']:,} of {counts['items']:,}"
            rows.append([*key, *rates, f"{num:,}", refused])
        return rows

    def sentences(self) -> list[str]:
        """What the numbers are, a sentence or two each."""
        return [
            *self.notes,
            "A trial of which a model refused a side is not scored. Intervals: 95 % bootstrap over "
            "subjects; none of fewer than 5. A star marks those of fewer than 20 subjects, "
            "and exact bounds where no error was seen.",
            *paired.notes(self.paired)[:1],
        ]

    def save(self, path: File) -> None:
        """Write all results and differences to a JSON file, in the schema of results."""
        inputs = digests_of(self.files)
        write_json(Path(path), self.results, inputs, **paired.to_json(self.paired))

    @step("drawing the page")
    def report(self, folder: File, *, command: str = "likeness.bench(...) in Python") -> Path:
        """Write a self-contained page, folder/index.html, and return its path.

        Args:
            folder: Made if it does not exist.
            command: Makes the page again.
        """
        head, *rows = self.rows()
        sections = {"Results": table(head, rows, kind="t", sortable=True)}
        if differences := paired.rows(self.paired):
            heading = f"Differences to {self.paired.reference}"
            sections[heading] = table(differences[0], differences[1:], kind="t", sortable=True)
        sections["What the numbers are"] = block("lines", texts=self.sentences())
        sections["How to make this page again"] = recompute(command, digests_of(self.files))
        models = dict.fromkeys(of.system for of in self.results)
        about = f"{', '.join(models)}: {len(rows) // len(models)} conditions"
        return write(Path(folder) / "index.html", "Models under conditions", about, sections)
