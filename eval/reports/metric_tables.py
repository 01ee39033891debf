"""The tables of verification results in a report: metrics, differences, groups, conventions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from eval.groups import Grouped, blocks, notes
from eval.paired import Paired
from eval.paired import notes as paired_notes
from eval.paired import rows as paired_rows
from eval.reports.page import EMPTY, MINUS, block, headed, joined, prose, table
from eval.results import (
    NO_INTERVAL,
    Result,
    by_system,
    ends_text,
    metric_label,
    metric_text,
    threshold_text,
)

_DASH = "\u2013"


def sizes(results: Sequence[Result], systems: Sequence[str]) -> str:
    """How many trials of how many subjects the systems were measured on, as text."""
    counts = [
        next(result.counts for result in results if result.system == system) for system in systems
    ]
    sizes = {
        f"{c['targets']:,} target and {c['nontargets']:,} nontarget trials"
        + (f" of {c['subjects']:,} subjects" if c["subjects"] is not None else "")
        for c in counts
    }
    return sizes.pop() if len(sizes) == 1 else "different trial lists"


def metric_table(results: Sequence[Result]) -> Markup:
    """A row for each metric: of each system the value, its interval and its threshold."""
    systems, metrics, by_cell = by_system(results)
    rows = []
    for metric in metrics:
        cells = []
        for result in (by_cell.get((metric, system)) for system in systems):
            value = _DASH if result is None else metric_text(metric, result.value)
            threshold = "" if result is None else threshold_text(result).replace("-", MINUS)
            cells.append((value, "" if result is None else _interval(result), threshold))
        rows.append((metric_label(metric), cells))
    return block("metrics", systems=systems, rows=rows)


def _interval(result: Result) -> str:
    noted = "interval_note" in result.conventions
    if result.interval is None:
        return NO_INTERVAL if noted else ""
    return _DASH.join(ends_text(result.metric, result.interval)) + (" *" if noted else "")


def differences(paired: Paired | None) -> Markup:
    """The paired differences to the reference, and what they are; empty without any."""
    if paired is None:
        return EMPTY
    head, *body = paired_rows(paired) or [[]]
    shown = table(head, body, kind="t") if body else EMPTY
    return shown + joined(prose(note, soft=True) for note in paired_notes(paired))


def grouped_table(grouped: Grouped) -> Markup:
    """Sizes and rates of the groups, then what they are."""
    tables = [
        headed(caption.removeprefix(f"{grouped.system}: "), table(head, rows, kind="t"))
        for caption, head, rows in blocks(grouped)
    ]
    return joined(tables) + joined(prose(note, soft=True) for note in notes(grouped))


def conventions_table(results: Sequence[Result]) -> Markup:
    """What all results share first, then each metric's own switches."""
    shared = {
        key: value
        for key, value in results[0].conventions.items()
        if all(result.conventions.get(key) == value for result in results)
    }
    everywhere = {"protocol": results[0].protocol, **shared}
    lines: dict[tuple[str, str], list[str]] = {("All", _listed(everywhere)): []}
    for result in results:
        own = {key: value for key, value in result.conventions.items() if key not in shared}
        lines.setdefault((metric_label(result.metric), _listed(own)), []).append(result.system)
    num_systems = len({result.system for result in results})
    rows = []
    for (label, text), systems in lines.items():
        only = f" ({', '.join(systems)})" if systems and len(systems) < num_systems else ""
        if text:
            rows.append((label + only, text))
    return block("conventions", rows=rows)


def _listed(conventions: Mapping[str, object]) -> str:
    return "; ".join(f"{key}: {value}" for key, value in conventions.items())
