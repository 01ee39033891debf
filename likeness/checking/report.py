"""What a check found as text, as JSON, and as lists to train on."""

from __future__ import annotations

import csv
import json
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.errors import LikenessError
from eval.formats.provenance import likeness_version
from eval.formats.writing import atomic_path
from likeness.checking.check import Checked, Finding, duration_quantiles
from toolkit.data.inspection import Header

SCHEMA = "likeness.check/1"
_SHOWN = 3  # groups that a finding names on the terminal
_MOST_KINDS = 6  # formats, rates and sizes that a line lists
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


def facts(checked: Checked) -> dict[str, str]:
    """Return what the data are, line by line: name -> text.

    Args:
        checked: The result of a check.
    """
    headers = _headers(checked)
    known = [header for header in headers if header is not None]
    labels = {name for name in checked.items.labels if name is not None}
    of_files = ""
    if checked.items.stretches is not None:
        of_files = f" in {len({item.path for item in checked.items}):,} files"
    lines = {
        "items": f"{len(checked.items):,}{of_files}",
        "labels": f"{len(labels):,}" if labels else "none",
        "readable": f"{sum(problem is None for problem in _problems(checked)):,}",
        "bytes": _bytes(_num_bytes(checked)),
        "format": _most(header.format for header in known),
    }
    rates = [f"{header.rate_hz:,} Hz" for header in known if header.rate_hz is not None]
    if rates:
        lines["rate"] = _most(rates)
        lines["channels"] = _most(str(header.channels) for header in known)
        seconds = sum(header.seconds or 0.0 for header in known)
        lines["duration"] = f"{_hours(seconds)} in all; seconds by quantile: " + ", ".join(
            f"{share} {value:.2f}" for share, value in duration_quantiles(headers).items()
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
    if finding.pattern:
        return []
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


def next_step(checked: Checked, out: Path | None) -> str:
    """Return the command that comes next: to train on the written list, or to write one."""
    pattern = next((finding.pattern for finding in checked.findings if finding.pattern), "")
    if pattern:
        return "check again with: " + shlex.join(
            ["likeness", "check", checked.data, "--label", pattern]
        )
    if out is None:
        return ""
    recipe = f"{checked.modality}/folders"
    return "train on it with: " + shlex.join(
        ["likeness", "train", recipe, "--data", str(out), "--out", f"runs/{out.stem}"]
    )


def as_json(checked: Checked) -> dict[str, Any]:
    """Return everything that was found, with all names."""
    headers = _headers(checked)
    known = [header for header in headers if header is not None]
    labels = {name for name in checked.items.labels if name is not None}
    return {
        "schema": SCHEMA,
        "likeness": likeness_version(),
        "data": checked.data,
        "modality": checked.modality,
        "num_items": len(checked.items),
        "num_labels": len(labels),
        "num_left_out": sum(map(bool, checked.left_out)),
        "decoded": checked.files.was_decoded,
        "files": {
            "bytes": _num_bytes(checked),
            "formats": _counts(header.format for header in known),
            "rates_hz": _counts(h.rate_hz for h in known if h.rate_hz is not None),
            "channels": _counts(h.channels for h in known if h.channels is not None),
            "sizes": _counts(f"{h.size[1]}x{h.size[0]}" for h in known if h.size is not None),
            "seconds": sum(header.seconds or 0.0 for header in known),
            "seconds_by_quantile": duration_quantiles(headers),
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
    with atomic_path(path) as temporary:
        text = json.dumps(as_json(checked), indent=1, allow_nan=False)
        temporary.write_text(text + "\n", encoding="utf-8")


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
    kept = [row for row, reason in enumerate(checked.left_out) if not reason]
    if items.spans is not None:
        raise LikenessError(
            f"--out {out}: the items lie in tar shards, and a list names files only"
        )
    if not kept:
        raise LikenessError(
            f"--out {out}: none of {len(items)} items can be trained on; nothing was written"
        )
    timed = items.stretches is not None
    head = ["id", "path", "label", *(("start", "end") if timed else ()), *items.further]
    further = [list(items.column(name)) for name in items.further]
    rows = [
        [
            item.id,
            _place(item.path, out.parent),
            item.label or "",
            *(_times(item.stretch) if timed else ()),
            *(str(values[row] or "") for values in further),
        ]
        for row, item in enumerate(items)
    ]
    dropped = [row for row, reason in enumerate(checked.left_out) if reason]
    _write_csv(
        left_out_path(out),
        [*head, "reason"],
        [[*rows[row], checked.left_out[row]] for row in dropped],
    )
    _write_csv(out, head, [rows[row] for row in kept])


def _write_csv(path: Path, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)


def _place(path: Path, folder: Path) -> str:
    """A path as a list in this folder has it: relative if the file lies below the folder."""
    absolute, base = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    if absolute.is_relative_to(base):
        return absolute.relative_to(base).as_posix()
    return absolute.as_posix()


def _times(stretch: tuple[float, float] | None) -> list[str]:
    if stretch is None:
        return ["", ""]
    return [repr(stretch[0]), "" if stretch[1] == float("inf") else repr(stretch[1])]


def _headers(checked: Checked) -> list[Header | None]:
    """The headers of the items that are checked, without those of the test data."""
    return checked.files.headers[: len(checked.items)]


def _num_bytes(checked: Checked) -> int:
    """The size of what was read. A file of which several items are stretches counts once."""
    headers = enumerate(_headers(checked))
    known = [(row, header.num_bytes) for row, header in headers if header is not None]
    if checked.items.stretches is None:
        return sum(size for _, size in known)
    paths = [item.path for item in checked.items]
    return sum({paths[row]: size for row, size in known}.values())


def _problems(checked: Checked) -> Sequence[object]:
    return checked.files.problems[: len(checked.items)]


def _counts(values: Any) -> dict[str, int]:
    return {str(value): count for value, count in Counter(values).most_common()}


def _most(values: Any) -> str:
    """The most common values and how often each is there."""
    counts = _counts(values)
    listed = [f"{value} ({count:,})" for value, count in list(counts.items())[:_MOST_KINDS]]
    more = len(counts) - _MOST_KINDS
    return ", ".join(listed) + (f", and {more:,} more" if more > 0 else "") if listed else "none"


def _bytes(number: int) -> str:
    for unit, name in _UNITS:
        if number >= unit:
            return f"{number / unit:.1f} {name}"
    return f"{number} bytes"


def _hours(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 36_000 else f"{seconds / 60:.0f} min"
