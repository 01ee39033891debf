"""What a check found as text, as a page, and as a list to train on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from likeness.checking._confounds import size_text
from likeness.checking.check import Checked, Finding
from likeness.eval.errors import LikenessError, shorten
from likeness.eval.formats.column_names import role_of
from likeness.eval.items.item_lists import place_in_list
from likeness.eval.progress import step
from likeness.eval.reports.media import Media, media_of_items
from likeness.eval.reports.page import block, prose, recompute, table, write
from likeness.eval.results import aligned
from likeness.eval.types import counted
from likeness.eval.writing import write_rows

_SHOWN = 3  # groups that a finding names on the terminal, and items of a group
_SHOWN_ON_PAGE = 12, 4
_LONGEST = 300  # characters of an item's name and of what is known of it
_MOST_KINDS = 6  # formats, rates and sizes that a line lists
_SHARES = (0, 5, 25, 50, 75, 95, 100)


def as_text(checked: Checked) -> str:
    """Return the table and the findings in plain sentences."""
    what = {"speaker": "recordings", "face": "faces", "image": "images"}[checked.modality]
    rows = [[f"  {name}", text] for name, text in facts(checked).items()]
    parts = [f"{checked.data}: {what}", *aligned(rows), ""]
    for number, finding in enumerate(checked.findings, 1):
        parts += [f"{number}. {finding.text}", *_examples(finding), f"   {finding.remedy}", ""]
    if not checked.findings:
        parts += ["Nothing looks wrong.", ""]
    parts += [f"Note: {note}" for note in checked.notes]
    return "\n".join(parts).rstrip("\n")


def facts(checked: Checked) -> dict[str, str]:
    """Return what the data are by the headers of the files, line by line: name -> text."""
    seen = zip(checked.items, (each.header for each in checked.files), strict=True)
    # A file of which several items are stretches counts once.
    size_of = {(item.path, item.span): h.num_bytes for item, h in seen if h is not None}
    known = [each.header for each in checked.files if each.header is not None]
    lines = {
        "items": f"{len(checked.items):,}",
        "labels": f"{len(set(checked.items.labels) - {None}):,}",
        "readable": f"{sum(each.problem is None for each in checked.files):,}",
        "bytes": f"{sum(size_of.values()):,}",
        "format": _most(header.format for header in known),
        "rate in Hz": _most(header.rate_hz for header in known),
        "channels": _most(header.channels for header in known),
        "width x height": _most(size_text(h.size) for h in known if h.size is not None),
    }
    if seconds := [header.seconds for header in known if header.seconds is not None]:
        quantiles = zip(_SHARES, np.percentile(seconds, _SHARES), strict=True)
        by_quantile = ", ".join(f"{share} % {value:.2f}" for share, value in quantiles)
        lines["seconds"] = f"{sum(seconds):,.0f} in all; by quantile: {by_quantile}"
    return {name: text for name, text in lines.items() if text}


def _examples(finding: Finding) -> list[str]:
    """The first groups of a finding, a line for each."""
    lines = []
    for group in finding.groups[:_SHOWN]:
        names = [_member(finding, name) for name in group[:_SHOWN]]
        more = f", and {len(group) - _SHOWN:,} more" if len(group) > _SHOWN else ""
        lines.append(f"   - {' = '.join(names)}{more}")
    if len(finding.groups) > _SHOWN:
        lines.append(f"   - ... and {len(finding.groups) - _SHOWN:,} more")
    return lines


def _member(finding: Finding, name: str) -> str:
    """An item or a label with what is known of it, cut where it would fill the screen."""
    detail = finding.details.get(name)
    return shorten(name) + (f" ({shorten(detail, _LONGEST)})" if detail else "")


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
        sections["What is not known"] = Markup("").join(prose(note) for note in checked.notes)
    sections["What could not be shown"] = prose(media.note(), soft=True)
    sections["How to make this page again"] = recompute(command, {})
    count = len(checked.findings)
    about = f"{checked.data}: {counted(len(checked.items), 'item')}, {counted(count, 'finding')}"
    write(folder / "index.html", "Check of a data set", about, sections)


def _section(finding: Finding, media: Media) -> Markup:
    """The sentences of a finding, and its first groups with their pictures or sounds."""
    most, together = _SHOWN_ON_PAGE
    shown = finding.of == "items" and finding.kind not in ("missing", "unreadable", "cut")

    def cell(name: str) -> tuple[str, str, str]:
        detail = shorten(finding.details.get(name, ""), _LONGEST)
        return shorten(name, _LONGEST), detail, media.show(name) if shown else ""

    groups = finding.groups[:most]
    rows = [[[*map(cell, of[:together])], max(0, len(of) - together)] for of in groups]
    more = max(0, len(finding.groups) - most)
    return prose(finding.text) + prose(finding.remedy) + block("findings", rows=rows, more=more)


def left_out_path(out: Path) -> Path:
    """Return the file beside a list that names what was left out of it.

    Example:
        >>> left_out_path(Path("lists/items.csv")).as_posix()
        'lists/items.left-out.csv'
    """
    return out.with_name(f"{out.stem}.left-out.csv")


def write_items_csv(out: Path, checked: Checked) -> None:
    """Write the items that can be trained on, and beside them those that were left out and why.

    Args:
        out: A .csv file, with the columns id, path and label, and start, end and further ones
            where the items have them. One that would be read as another column, such as speaker
            beside label, is called other_speaker. `left_out_path` names the other file, which has
            a column reason too.
        checked: The result of a check.

    Raises:
        LikenessError: Nothing is left, or items lie in tar shards.
    """
    items = checked.items
    if items.has("offset"):
        raise LikenessError(f"--out {out}: a list names files, and these items lie in tar shards")
    if all(checked.left_out):
        raise LikenessError(f"--out {out}: none of {len(items)} items can be trained on")
    columns: dict[str, list[Any]] = {
        "id": items.ids,
        "path": [place_in_list(item.path, out.parent) for item in items],
        "label": items.labels,
    }
    for name in ("start", "end") if items.has("start") else ():
        times: Any = items.column(name)
        columns[name] = [None if np.isnan(time) else time for time in times]
    for name in items.further:
        is_own = role_of(name) in (None, name)
        columns[name if is_own else f"other_{name}"] = list(items.column(name))
    rows = list(zip(*columns.values(), checked.left_out, strict=True))
    write_rows(left_out_path(out), [*columns, "reason"], [row for row in rows if row[-1]])
    write_rows(out, list(columns), [row[:-1] for row in rows if not row[-1]])


def _most(values: Iterable[object]) -> str:
    """The most common values and how often each is there."""
    counts = Counter(str(value) for value in values if value is not None).most_common()
    listed = [f"{value} ({count:,})" for value, count in counts[:_MOST_KINDS]]
    more = len(counts) - _MOST_KINDS
    return ", ".join([*listed, f"and {more:,} more"] if more > 0 else listed)
