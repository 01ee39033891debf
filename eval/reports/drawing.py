"""How the plots of reports are drawn: matplotlib figures as SVG, which reads on white and on black.

matplotlib is imported only here, and only when a page is made. Without it there are no plots, and
the page says how to get them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from eval.reports.blocks import EMPTY, block

GREY = "#8a9099"
# Colours of middle lightness: they read on white and on black.
COLOURS = ("#3987c9", "#d9792e", "#2f9e77", "#b06ab3", "#b59a2a", "#8a9099")
STYLES = ("-", "--", "-.", ":")


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def drawn(make: Callable[..., Any], *values: Any, alt: str, caption: str = "") -> Markup:
    """A figure of the page.

    Args:
        make: makes a matplotlib Figure of `values`.
        values: its arguments.
        alt: what the figure shows, in words, for those who cannot see it.
        caption: text below the figure.

    Returns:
        HTML, which is empty without matplotlib.
    """
    if not can_plot():
        return EMPTY
    from matplotlib import rc_context

    with rc_context({"text.parse_math": False}):  # a $ in a name is a $
        picture = svg(make(*values), alt)
    return block("figure", svg=picture, alt=alt, caption=caption)


def plot(width: float, height: float) -> tuple[Any, Any]:
    """A matplotlib Figure and its axes, without a background of their own.

    Args:
        width: in inches; 4.5 is readable on a phone.
        height: in inches.
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


def style_of(i: int) -> dict[str, Any]:
    """Colour, dashes and width of the i-th line of a plot."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "linestyle": STYLES[i % len(STYLES)],
        "linewidth": 1.6,
    }


def legend(axes: Any, columns: int = 1, size: float = 9) -> None:
    """Put the legend above the axes, where no curve runs."""
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


def svg(figure: Any, salt: str) -> str:
    """The figure as an SVG element.

    Equal figures with an equal `salt` give equal text, so that a report made again is the same.
    """
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        figure.savefig(
            file,
            format="svg",
            transparent=True,
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    text = file.getvalue()
    text = text[text.index("<svg") :]
    # The ids of groups repeat from figure to figure, and nothing refers to them.
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
