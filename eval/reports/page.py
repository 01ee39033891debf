"""The page of every report: one self-contained HTML file, light and dark, readable on a phone,
without network; and the blocks that it is made of: paragraphs, tables, figures, tiles.

A report is a mapping from headings to blocks. All markup stands in templates/*.html. Jinja2 escapes
every value that is written there; only what a block made itself (`Markup`) is taken as it is. So a
name such as `<img src=x onerror=...>` is text wherever it appears.

The scripts of a page are BokehJS, which draws the figures, and SCRIPTS of templates/. The page
reads without them too: they add figures, and moving, sorting, enlarging and saving.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from likeness.eval.errors import likeness_version
from likeness.eval.results import (
    Result,
    bracketed,
    by_system,
    metric_label,
    metric_text,
    threshold_text,
)
from likeness.eval.writing import write_text

EMPTY = Markup("")
MINUS = "\u2212"
# The script of a page, in files by subject, in the order in which they run.
SCRIPTS = ("basics.js", "figures.js", "threshold.js", "tables.js", "media.js", "map.js", "start.js")


@cache
def environment() -> Environment:
    """The templates of this package. Each is compiled when it is first used, and then kept."""
    made = Environment(
        loader=PackageLoader("likeness.eval.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Bokeh reads a figure in the order in which it was written; no spaces between.
    made.policies["json.dumps_kwargs"] = {"sort_keys": False, "separators": (",", ":")}
    return made


def source(name: str) -> str:
    """The text of a file of templates/ as it is, such as a script."""
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


def block(name: str, /, **values: Any) -> Markup:
    """Fill in a block.

    Args:
        name: the name of a macro in templates/blocks.html.
        values: the macro's arguments; all but `Markup` are escaped.

    Returns:
        HTML.

    >>> block("prose", text="a < b", soft=False)
    Markup('<p>a &lt; b</p>')
    """
    macro = getattr(environment().get_template("blocks.html").module, name)
    return Markup(macro(**values))


def number(value: float, digits: int = 4) -> str:
    """A number with a true minus sign, nothing for NaN."""
    return "" if np.isnan(value) else f"{value:.{digits}f}".replace("-", MINUS)


def listed(conventions: Mapping[str, object]) -> str:
    """Conventions as text."""
    return "; ".join(f"{key}: {value}" for key, value in conventions.items())


def prose(text: str, *, soft: bool = False) -> Markup:
    """A paragraph of plain text, none without text. A soft one is grey and small."""
    return block("prose", text=text, soft=soft) if text else EMPTY


def headed(heading: str, part: Markup) -> Markup:
    """A fragment under its heading, if there is any."""
    return block("headed", heading=heading, part=part) if part else EMPTY


def folded(parts: Mapping[str, Markup]) -> Markup:
    """Fragments under their headings, of which only the first is open.

    A single fragment stands without its heading.
    """
    return block("folded", parts=dict(parts))


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    kind: str = "",
    caption: str = "",
    sortable: bool = False,
) -> Markup:
    """A table of plain text, which scrolls sideways by itself where it is too wide.

    Args:
        head: the texts of the first row.
        rows: the texts of the others; the first cell of each is its heading.
        kind: "id" for names and digests, which may break anywhere; "t" for cells that never break;
            "n" for numbers.
        caption: what the table is, above it.
        sortable: whether a click on a heading sorts the rows, and a field filters them.
    """
    values = {"head": list(head), "rows": [list(row) for row in rows]}
    return block("table", kind=kind, caption=caption, sortable=sortable, **values)


def metric_table(results: Sequence[Result]) -> Markup:
    """A row for each metric: of each system the value, its interval and any threshold."""
    systems, metrics, by_cell = by_system(results)
    rows = []
    for metric in metrics:
        cells = []
        for result in (by_cell.get((metric, system)) for system in systems):
            if result is None:
                cells.append(("\u2013", "", ""))
                continue
            ends = bracketed(metric, result.interval, result.conventions.get("interval_note"))
            threshold = threshold_text(result.threshold).replace("-", MINUS)
            cells.append((metric_text(metric, result.value), ends, threshold))
        rows.append((metric_label(metric), cells))
    thresholds = any(result.threshold is not None for result in results)
    return block("metrics", systems=systems, rows=rows, thresholds=thresholds)


def conventions_table(results: Sequence[Result]) -> Markup:
    """What all results share first, then each metric's own switches."""
    shared = {
        key: value
        for key, value in results[0].conventions.items()
        if all(result.conventions.get(key) == value for result in results)
    }
    lines = {("All", listed({"protocol": results[0].protocol, **shared})): dict[str, None]()}
    for result in results:
        own = {key: value for key, value in result.conventions.items() if key not in shared}
        line = metric_label(result.metric), listed(own)
        lines.setdefault(line, {})[result.system] = None
    num_systems = len({result.system for result in results})
    rows = []
    for (label, text), systems in lines.items():
        only = f" ({', '.join(systems)})" if systems and len(systems) < num_systems else ""
        if text:
            rows.append((label + only, text))
    return prose("Each number above depends on these choices.") + table([], rows)


@cache
def script() -> str:
    """The JavaScript that draws the figures: BokehJS, as its Python package brings it along."""
    from bokeh.resources import Resources

    text = Resources(mode="inline", components=["bokeh"], minified=True).js_raw[0]
    return str(text).replace("\r\n", "\n")  # as browsers read it, who compare its digest


def document(title: str, about: str, sections: Mapping[str, Markup]) -> str:
    """The text of the whole page.

    The page holds a policy that forbids requests of any kind, and scripts other than its own two.
    Images and sound have to be data: URIs.

    Args:
        title: text.
        about: text below the title.
        sections: heading (text) -> its blocks, in order. A section without any is left out, and
            what no block made is escaped.
    """
    shown = {heading: fragment for heading, fragment in sections.items() if fragment}
    anchors = [
        re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or f"section-{i}"
        for i, heading in enumerate(shown)
    ]
    # In a block, which keeps its names from those of BokehJS.
    scripts = ['"use strict";\n{\n' + "\n".join(map(source, SCRIPTS)) + "}\n"]
    if any('class="plot"' in fragment for fragment in shown.values()):
        scripts.insert(0, script())
    digests = [b64encode(sha256(text.encode()).digest()).decode() for text in scripts]
    values: dict[str, Any] = {"title": title, "about": about, "scripts": scripts}
    values["sections"] = list(zip(anchors, shown.keys(), shown.values(), strict=True))
    values["policy"] = " ".join(f"'sha256-{digest}'" for digest in digests)
    return environment().get_template("page.html").render(values)


def recompute(command: str, inputs: Mapping[str, str]) -> Markup:
    """How to make the results again: the command, and file -> SHA-256 of what it read."""
    shown = table(["Input", "SHA-256"], inputs.items(), kind="id") if inputs else EMPTY
    return block("command", text=command) + shown


def write(path: Path, title: str, about: str, sections: Mapping[str, Markup]) -> Path:
    """Write the page (see `document`), with the version below its title; its folder is made."""
    text = document(title, f"{about}. Likeness {likeness_version()}.", sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path
