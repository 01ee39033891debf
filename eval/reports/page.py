"""The frame of every report: one self-contained HTML page, light and dark, readable on a phone,
without script and without network; its tables and plots.

A report is a mapping from headings to HTML fragments, made by plain functions data -> fragment
(eval.reports.scores, eval.reports.embeddings) and put into a page
by `document`. matplotlib is imported only here and only when a page is made; without it the page
says in one sentence how to get the plots.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

NO_PLOTS = (
    "The plots need matplotlib, which is not installed: pip install 'likeness[report]' and make "
    "this report again."
)
GREY = "#8a9099"
COLOURS = (
    "#3987c9",
    "#d9792e",
    "#2f9e77",
    "#b06ab3",
    "#b59a2a",
    "#8a9099",
)  # of middle lightness: they read on white and on black
SOFT = ' class="soft"'
STYLES = ("-", "--", "-.", ":")
# the browser itself then refuses every request and every script, whatever an id or a file might
# hold
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"

CSS = """
:root{color-scheme:light dark;--ink:#1c2024;--soft:#60666d;--rule:#dfe2e6;--paper:#fcfcfb;
--tint:#f3f4f5;--mono:ui-monospace,Menlo,Consolas,monospace}
@media(prefers-color-scheme:dark){:root{--ink:#e3e5e8;--soft:#9aa1a9;--rule:#2f343a;--paper:#14171a;
--tint:#1c2024}}
*{box-sizing:border-box}body{margin:0 auto;padding:2.5rem 1.25rem 4rem;max-width:50rem;
background:var(--paper);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif;
-webkit-text-size-adjust:100%;overflow-wrap:break-word}
h1{font-size:1.65rem;line-height:1.2;letter-spacing:-.015em;font-weight:650;margin:0 0 .35rem}
h2{font-size:1.1rem;font-weight:650;margin:2.75rem 0 .4rem}
h3,summary{font-size:.95rem;font-weight:600;margin:1.4rem 0 .3rem}summary{cursor:pointer}
h4{font-size:.85rem;font-weight:500;color:var(--soft);margin:.6rem 0 .3rem}
p{margin:.3rem 0 .8rem;max-width:42rem}.soft{color:var(--soft);font-size:.9rem}
nav{display:flex;flex-wrap:wrap;gap:.15rem 1.1rem;margin:1rem 0 -1rem;font-size:.85rem}
nav a{color:var(--soft);text-decoration:none}nav a:hover{color:var(--ink)}
.wide{overflow-x:auto;margin:.8rem 0}table{border-collapse:collapse;font-size:.92rem;
font-variant-numeric:tabular-nums lining-nums}
td,th{padding:.34rem .9rem .34rem 0;border-bottom:1px solid var(--rule);vertical-align:baseline;
text-align:left}tr>*:last-child{padding-right:0}
th{font-weight:500;font-size:.85rem;color:var(--soft)}
caption{text-align:left;font-size:.9rem;padding-bottom:.3rem;color:var(--soft)}
tbody th{font-size:.92rem;color:var(--ink);white-space:nowrap}th.s{padding-left:1rem}
.n{text-align:right;white-space:nowrap}
.n.v{font-weight:600;padding-left:1rem;padding-right:.55rem}
.i{color:var(--soft);font-size:.85rem;white-space:nowrap}.t{white-space:nowrap}
.id{font:.82rem/1.45 var(--mono);overflow-wrap:anywhere}
.two{display:grid;gap:0 2.2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}
.two table{width:100%}.two .n{width:1%}.two>*{min-width:0}a{color:inherit}
figure{margin:.8rem 0;max-width:32rem}figcaption{font-size:.85rem;color:var(--soft)}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft)!important;font-family:inherit!important}
.tiles{display:grid;gap:.55rem;grid-template-columns:repeat(auto-fill,minmax(4.2rem,1fr));
margin:.4rem 0 1rem}.tiles.rows{grid-template-columns:1fr}
.tiles figure{margin:0;min-width:0}
.tiles figcaption{font-size:.75rem;line-height:1.35;font-variant-numeric:tabular-nums;
overflow-wrap:anywhere;padding-top:.1rem}
img{display:block;max-width:100%;border-radius:.25rem;background:var(--tint)}
.tiles img{width:100%;aspect-ratio:1;object-fit:cover}img.tiny{image-rendering:pixelated}
tr:has(.pair)>td{vertical-align:top}.pair{display:flex;flex-wrap:wrap;gap:.35rem .6rem;
padding:.15rem 0}
.pair>div{flex:1 1 7rem;min-width:0}.pair img{width:5.5rem;height:5.5rem;object-fit:cover}
.pair:has(audio)>div{flex-basis:100%}audio{display:block;width:100%;max-width:20rem;height:2rem;
margin:.15rem 0}
pre{background:var(--tint);padding:.8rem 1rem;border-radius:.4rem;white-space:pre-wrap;
font:.84rem/1.5 var(--mono);overflow-wrap:anywhere}
@media(max-width:30rem){body{padding-top:1.5rem}table{font-size:.84rem}
tbody th{font-size:.84rem;white-space:normal;min-width:6rem}
td,th{padding-right:.5rem}.n.v,th.s{padding-left:.2rem}}
@media print{nav{display:none}section{break-inside:avoid-page}}
"""


def document(title: str, about: str, sections: Mapping[str, str]) -> str:
    """The whole page. title, about: text, escaped here. sections: heading (text) -> HTML fragment,
    in order; empty fragments are left out.

    The page holds a policy that forbids scripts and requests of any kind: images and sound have to
    be data: URIs.
    """
    shown = {heading: fragment for heading, fragment in sections.items() if fragment}
    anchors = {
        heading: re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-") or f"section-{i}"
        for i, heading in enumerate(shown)
    }
    links = "".join(
        f'<a href="#{anchor}">{escape(heading)}</a>' for heading, anchor in anchors.items()
    )
    body = "\n".join(
        f'<section id="{anchors[heading]}"><h2>{escape(heading)}</h2>{fragment}</section>'
        for heading, fragment in shown.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        'content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><meta name="color-scheme" '
        'content="light dark">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body><h1>{escape(title)}</h1>"
        "<p "
        f'class="soft">{escape(about)}</p>{"" if can_plot() else prose(NO_PLOTS, soft=True)}<nav>'
        f"{links}</nav>\n{body}\n</body></html>\n"
    )


def prose(text: str, *, soft: bool = False) -> str:
    """A paragraph of plain text; soft: of side remarks."""
    return f"<p{SOFT if soft else ''}>{escape(text)}</p>"


def folded(parts: Mapping[str, str]) -> str:
    """Fragments below their headings (text); of several all but the first are folded up until they
    are asked for.
    """
    if len(parts) == 1:
        return "".join(parts.values())
    opened = [" open", *[""] * (len(parts) - 1)]
    return "".join(
        f"<details{state}><summary>{escape(name)}</summary>{one}</details>"
        for state, (name, one) in zip(opened, parts.items(), strict=True)
    )


def rows_of(rows: Iterable[Iterable[str]]) -> str:
    """Rows of finished cells."""
    return "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, kind: str = "") -> str:
    """A table of plain text that scrolls sideways by itself where it is too wide. kind: "id" for
    names and digests, which break anywhere; "t" for cells that never break.
    """
    cells = (
        [
            f'<th scope="row">{escape(first)}</th>',
            *(f'<td class="{kind}">{escape(text)}</td>' for text in rest),
        ]
        for first, *rest in rows
    )
    top = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    return (
        f'<div class="wide"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{rows_of(cells)}</tbody></table></div>"
    )


def inputs_table(inputs: Mapping[str, str]) -> str:
    """Files and their SHA-256."""
    rows = [
        [f'<td class="id">{escape(name)}</td>', f'<td class="id">{escape(digest)}</td>']
        for name, digest in inputs.items()
    ]
    return (
        '<div class="wide"><table><thead><tr><th>Input</th><th>SHA-256</th></tr></thead>'
        f"<tbody>{rows_of(rows)}</tbody></table></div>"
    )


# ---------------------------------------------------------------- plots


def can_plot() -> bool:
    """Whether matplotlib is there."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def drawn(make: Callable[..., Any], *given: Any, alt: str, caption: str = "") -> str:
    """<figure> with the SVG of the matplotlib Figure make(*given); "" without matplotlib. alt: what
    it shows, in words; caption: text below it.
    """
    if not can_plot():
        return ""
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a $ in a name is a $
        image = svg(make(*given), alt)
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{image}{below}</figure>"


def plot(width: float, height: float) -> tuple[Any, Any]:
    """matplotlib Figure of this size in inches and its axes, without a background of their own. 4.5
    inches wide is readable on a phone.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    axes = figure.add_subplot()
    axes.patch.set_alpha(0.0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, labelsize=9, which="both")
    axes.xaxis.label.set(color=GREY, size=10)
    axes.yaxis.label.set(color=GREY, size=10)
    axes.set_axisbelow(True)
    axes.grid(color=GREY, alpha=0.22, linewidth=0.6)
    return figure, axes


def legend(axes: Any, columns: int = 1, size: float = 9) -> None:
    """The legend above the axes, where no curve runs."""
    axes.legend(
        frameon=False,
        fontsize=size,
        labelcolor=GREY,
        loc="lower left",
        bbox_to_anchor=(-0.02, 1.0),
        borderaxespad=0.2,
        ncols=columns,
        columnspacing=1.4,
        handlelength=1.6,
    )


def svg(figure: Any, description: str) -> str:
    """The figure as SVG text to stand in a page; equal figures give equal text."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": description}):
        figure.savefig(
            text,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    svg = re.sub(
        r'<g id="[^"]*"', "<g", text.getvalue()[text.getvalue().index("<svg") :]
    )  # group ids repeat from figure to figure; nothing refers to them
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)
