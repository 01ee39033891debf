"""What a check found as one self-contained page, with pictures and sounds."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from eval.progress import step
from eval.reports.media import Media
from eval.reports.page import block, joined, prose, recompute, table, write
from likeness.checking.check import Checked, Finding
from likeness.checking.report import facts
from likeness.media import media_of_items

_GROUPS = 12  # of a finding that are shown
_TOGETHER = 4  # items of a group that are shown


@step("drawing the page")
def write_page(folder: Path, checked: Checked, *, command: str) -> None:
    """Write folder/index.html: the facts, and each finding with its first items.

    Args:
        folder: Made if it does not exist.
        checked: The result of a check.
        command: Makes the page again.
    """
    media = media_of_items(checked.items)
    sections = {"The data": table(["", ""], facts(checked).items())}
    for number, finding in enumerate(checked.findings, 1):
        heading = f"{number}. {finding.kind.replace('-', ' ').capitalize()}"
        sections[heading] = _section(finding, media)
    if not checked.findings:
        sections["Findings"] = prose("Nothing looks wrong.")
    if checked.notes:
        sections["What is not known"] = joined(prose(note) for note in checked.notes)
    sections["What could not be shown"] = prose(media.note(), soft=True)
    sections["How to make this page again"] = recompute(command, {})
    count = len(checked.findings)
    about = f"{checked.data}: {len(checked.items):,} items, {count} finding{'s' * (count != 1)}"
    write(folder / "index.html", "Check of a data set", about, sections)


def _section(finding: Finding, media: Media) -> Markup:
    """The sentences of a finding, and its first groups with their pictures or sounds."""
    text = prose(finding.text) + prose(finding.remedy)
    groups = finding.groups[:_GROUPS]
    if not groups:
        return text
    rows = [
        [
            [
                (name, finding.details.get(name, ""), media.show(name) if shown else "")
                for name in group[:_TOGETHER]
            ],
            max(0, len(group) - _TOGETHER),
        ]
        for group in groups
        for shown in [finding.are_items and finding.kind not in ("missing", "unreadable", "cut")]
    ]
    return text + block("findings", rows=rows, more=len(finding.groups) - len(groups))
