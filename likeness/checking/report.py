"""What a check found as text, as JSON, as a page, and as a list to train on."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from eval.errors import LikenessError
from eval.formats.provenance import likeness_version
from eval.formats.writing import atomic_path
from eval.progress import step
from eval.reports.media import Media
from eval.reports.page import block, joined, prose, recompute, table, write
from likeness.checking.check import Checked, Finding
from likeness.files import media_of_items, table_text
from toolkit.data.inspection import Header

SCHEMA = "likeness.check/1"
_SHOWN = 3  # groups that a finding names on the terminal, and items of a group
_SHOWN_ON_PAGE = 12, 4
_MOST_KINDS = 6  # formats, rates and sizes that a line lists
_SHARES = (0, 5, 25, 50, 75, 95, 100)
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"), (1, "bytes"))


def facts(checked: Checked) -> dict[str, str]:
    """Return what the data are, line by line: name -> text.

    Args:
        checked: The result of a check.
    """
    known = _headers(checked)
    of_files = ""
    if checked.items.stretches is not None:
        of_files = f" in {len({item.path for item in checked.items}):,} files"
    lines = {
        "items": f"{len(checked.items):,}{of_files}",
        "labels": f"{_num_labels(checked):,}",
        "readable": f"{checked.files.problems.count(None):,}",
        "bytes": _bytes(_num_bytes(checked)),
        "format": _most(header.format for header in known),
    }
    if any(header.rate_hz is not None for header in known):
        lines["rate"] = _most(f"{header.rate_hz:,} Hz" for header in known)
        lines["channels"] = _most(header.channels for header in known)
        seconds = sum(header.seconds or 0.0 for header in known)
        lines["duration"] = f"{_hours(seconds)} in all; seconds by quantile: " + ", ".join(
            f"{share} {value:.2f}" for share, value in _duration_quantiles(known).items()
        )
    sizes = [f"{h.size[1]} x {h.size[0]}" for h in known if h.size is not None]
    if sizes:
        lines["width x height"] = _most(sizes)
    return lines


def as_text(checked: Checked) -> str:
    """Return the table and the findings in plain sentences."""
    lines = facts(checked)
    width = max(map(len, lines))
    what = {"speaker": "recordings", "face": "faces", "image": "images"}[checked.modality]
    parts = [f"{checked.data}: {what}", *(f"  {k:<{width}}  {v}" for k, v in lines.items()), ""]
    for number, finding in enumerate(checked.findings, 1):
        parts += [f"{number}. {finding.text}", *_examples(finding), f"   {finding.remedy}", ""]
    if not checked.findings:
        parts += ["Nothing looks wrong.", ""]
    parts += [f"Note: {note}" for note in checked.notes]
    return "\n".join(parts).rstrip("\n")


def _examples(finding: Finding) -> list[str]:
    """The first groups of a finding, a line for each."""
    lines = []
    for group in finding.groups[:_SHOWN]:
        names = [
            f"{name} ({finding.details[name]})" if name in finding.details else name
            for name in group[:_SHOWN]
        ]
        more = f", and {len(group) - _SHOWN:,} more" if len(group) > _SHOWN else ""
        lines.append(f"   - {' = '.join(names)}{more}")
    if len(finding.groups) > _SHOWN:
        lines.append(f"   - ... and {len(finding.groups) - _SHOWN:,} more")
    return lines


def as_json(checked: Checked) -> dict[str, Any]:
    """Return everything that was found, with all names."""
    known = _headers(checked)
    return {
        "schema": SCHEMA,
        "likeness": likeness_version(),
        "data": checked.data,
        "modality": checked.modality,
        "num_items": len(checked.items),
        "num_labels": _num_labels(checked),
        "num_left_out": sum(map(bool, checked.left_out)),
        "decoded": checked.files.was_decoded,
        "files": {
            "bytes": _num_bytes(checked),
            "formats": _counts(header.format for header in known),
            "rates_hz": _counts(header.rate_hz for header in known),
            "channels": _counts(header.channels for header in known),
            "sizes": _counts(f"{h.size[1]}x{h.size[0]}" for h in known if h.size is not None),
            "seconds": sum(header.seconds or 0.0 for header in known),
            "seconds_by_quantile": _duration_quantiles(known),
        },
        "findings": [
            {
                "kind": finding.kind,
                "count": finding.count,
                "text": finding.text,
                "remedy": finding.remedy,
                "of": "items" if finding.are_items else "labels",
                "groups": [list(group) for group in finding.groups],
                "details": dict(finding.details),
                **({"label": finding.pattern} if finding.pattern else {}),
            }
            for finding in checked.findings
        ],
        "notes": list(checked.notes),
    }


def write_json(path: Path, checked: Checked) -> None:
    """Write everything that was found as JSON, whole or not at all."""
    _write(path, json.dumps(as_json(checked), indent=1, allow_nan=False) + "\n")


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
    most, together = _SHOWN_ON_PAGE
    shown = finding.are_items and finding.kind not in ("missing", "unreadable", "cut")
    rows = [
        [
            [
                (name, finding.details.get(name, ""), media.show(name) if shown else "")
                for name in group[:together]
            ],
            max(0, len(group) - together),
        ]
        for group in finding.groups[:most]
    ]
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
            where the items have them. `left_out_path` names the other file, which has a column
            reason too.
        checked: The result of a check.

    Raises:
        LikenessError: Nothing is left, or items lie in tar shards.
    """
    items = checked.items
    if items.spans is not None:
        raise LikenessError(
            f"--out {out}: the items lie in tar shards, and a list names files only"
        )
    if all(checked.left_out):
        raise LikenessError(
            f"--out {out}: none of {len(items)} items can be trained on; nothing was written"
        )
    timed = items.stretches is not None
    head = ["id", "path", "label", *(("start", "end") if timed else ()), *items.further]
    further = [list(items.column(name)) for name in items.further]
    kept, dropped = [], []
    for row, (item, reason) in enumerate(zip(items, checked.left_out, strict=True)):
        values = [
            item.id,
            _path_in_list(item.path, out.parent),
            item.label,
            *(_times(item.stretch) if timed else ()),
            *(column[row] for column in further),
        ]
        if reason:
            dropped.append([*values, reason])
        else:
            kept.append(values)
    _write(left_out_path(out), table_text([*head, "reason"], dropped, ","))
    _write(out, table_text(head, kept, ","))


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")


def _path_in_list(path: Path, folder: Path) -> str:
    """A path as a list in this folder has it: relative if the file lies below the folder."""
    absolute, base = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    if absolute.is_relative_to(base):
        return absolute.relative_to(base).as_posix()
    return absolute.as_posix()


def _times(stretch: tuple[float, float] | None) -> Sequence[float | None]:
    if stretch is None:
        return [None, None]
    return [stretch[0], None if stretch[1] == float("inf") else stretch[1]]


def _headers(checked: Checked) -> list[Header]:
    """The headers that could be read."""
    return [header for header in checked.files.headers if header is not None]


def _num_labels(checked: Checked) -> int:
    return len(set(checked.items.labels) - {None})


def _num_bytes(checked: Checked) -> int:
    """The size of what was read. A file of which several items are stretches counts once."""
    seen = zip(checked.items, checked.files.headers, strict=True)
    size_of = {(item.path, item.span): h.num_bytes for item, h in seen if h is not None}
    return sum(size_of.values())


def _duration_quantiles(known: Sequence[Header]) -> dict[str, float]:
    """The quantiles of the durations in seconds; nothing where there are none."""
    seconds = [header.seconds for header in known if header.seconds is not None]
    if not seconds:
        return {}
    values = np.percentile(seconds, _SHARES).tolist()
    return {f"{share} %": value for share, value in zip(_SHARES, values, strict=True)}


def _counts(values: Iterable[object]) -> dict[str, int]:
    known = (str(value) for value in values if value is not None)
    return dict(Counter(known).most_common())


def _most(values: Iterable[object]) -> str:
    """The most common values and how often each is there."""
    counts = _counts(values)
    listed = [f"{value} ({count:,})" for value, count in list(counts.items())[:_MOST_KINDS]]
    more = len(counts) - _MOST_KINDS
    return ", ".join([*listed, f"and {more:,} more"] if more > 0 else listed) or "none"


def _bytes(number: int) -> str:
    unit, name = next((pair for pair in _UNITS if number >= pair[0]), _UNITS[-1])
    return f"{number / unit:.1f} {name}"


def _hours(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 36_000 else f"{seconds / 60:.0f} min"
