"""The blocks of a report's page: paragraphs, tables, figures, tiles.

All markup stands in templates/*.html. Jinja2 escapes every value that is written there; only what
a block made itself (`Markup`) is taken as it is. So a name such as `<img src=x onerror=...>` is
text wherever it appears.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

EMPTY = Markup("")


@cache
def environment() -> Environment:
    """The templates of this package. Each is compiled when it is first used, and then kept."""
    made = Environment(
        loader=PackageLoader("eval.reports"),
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
    loader = environment().loader
    assert loader is not None
    return loader.get_source(environment(), name)[0]


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


def prose(text: str, *, soft: bool = False) -> Markup:
    """A paragraph of plain text. A soft one is grey and small, for side remarks."""
    return block("prose", text=text, soft=soft)


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
    texts: Sequence[str] = (),
) -> Markup:
    """A table of plain text, which scrolls sideways by itself where it is too wide.

    Args:
        head: the texts of the first row.
        rows: the texts of the others; the first cell of each is its heading.
        kind: "id" for names and digests, which may break anywhere; "t" for cells that never break;
            "n" for numbers.
        caption: what the table is, above it.
        sortable: whether a click on a heading sorts the rows, and a field filters them.
        texts: of a table of numbers, the headings of the columns that hold words.
    """
    content = [list(row) for row in rows]
    return block(
        "table",
        head=list(head),
        rows=content,
        kind=kind,
        caption=caption,
        sortable=sortable,
        texts=list(texts),
    )


def joined(parts: Iterable[Markup]) -> Markup:
    """Fragments, one after the other."""
    return EMPTY.join(parts)
