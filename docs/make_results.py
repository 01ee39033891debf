"""Writes the pages of what was measured, docs/reference/{results,performance,claims}.md, each from
the .toml file of its name.

python docs/make_results.py
"""

from __future__ import annotations

import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent / "reference"
PAGES = ("results", "performance", "claims")


def page(name: str) -> str:
    """Return a page."""
    data = tomllib.loads((REFERENCE / f"{name}.toml").read_text(encoding="utf-8"))
    shared = {key: data[key] for key in ("columns", "by_data", "usual_machine") if key in data}
    sections = [_section(shared | table) for table in data["table"]]
    return "\n\n".join([data["head"].strip(), *sections]) + "\n"


def _section(table: dict[str, Any]) -> str:
    """Return a table below its heading, what it shows, how it was measured and the command."""
    machine = table.get("machine")
    other = machine if machine != table.get("usual_machine") else None
    origin = ", ".join(filter(None, (table.get("date"), other)))
    gone = "" if table.get("command") or not origin else "No script remains."
    measured = " ".join(filter(None, (table.get("what"), origin and f"{origin}.", gone)))
    parts = [f"{'#' * table.get('level', 2)} {table['title']}\n{_filled(table['shows'])}"]
    parts += [_filled(measured)] if measured else []
    parts += [f"```\n{table['command']}\n```"] if table.get("command") else []
    if table.get("rows"):
        shape = _by_data if table.get("by_data") else _markdown
        parts += [shape(table["columns"], table["rows"])]
    return "\n\n".join(parts)


def _by_data(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows of a claim as a table with a column for each data set."""
    data = list(dict.fromkeys(row[0] for row in rows))
    cells = {(row[1], row[0]): f"{row[2]} {row[3]} {row[-1]}" for row in rows}
    lines = [
        [compared, *(cells.get((compared, each), "") for each in data)]
        for compared in dict.fromkeys(row[1] for row in rows)
    ]
    return _markdown([columns[1], *data], lines)


def _markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(columns)}", *lines[1:]])


def _filled(text: str) -> str:
    """Return a paragraph in lines of at most 100 columns."""
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    for each in PAGES:
        (REFERENCE / f"{each}.md").write_text(page(each), encoding="utf-8")
