"""How the figures of reports are drawn: by Bokeh, whose script the page holds, so that a figure can
be zoomed, hovered over and moved by the threshold slider without network.

Bokeh is imported only here and in functions that make figures, and only when a page is made.
Without it there are no figures, and the page says how to get them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from eval.reports.blocks import EMPTY, block

GREY = "#8a9099"
# Colours of middle lightness: they read on white and on black.
COLOURS = ("#3987c9", "#d9792e", "#2f9e77", "#b06ab3", "#b59a2a", "#8a9099")
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "star")
DASHES = ("solid", "dashed", "dotdash", "dotted")
WIDTH = 520  # pixels that a figure takes where there is room
_MOST_LETTERS = 44  # of a name in a legend


def can_plot() -> bool:
    """Whether Bokeh is installed."""
    try:
        import bokeh.plotting  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


@cache
def script() -> str:
    """The JavaScript that draws the figures: BokehJS, as its Python package brings it along."""
    from bokeh.resources import Resources

    text = Resources(mode="inline", components=["bokeh"], minified=True).js_raw[0]
    return str(text).replace("\r\n", "\n")  # as browsers read it, who compare its digest


def drawn(make: Callable[..., Any], *values: Any, alt: str, caption: str = "") -> Markup:
    """A figure of the page.

    Args:
        make: makes a Bokeh figure of `values`.
        values: its arguments.
        alt: what the figure shows, in words, for those who cannot see it.
        caption: text below the figure.

    Returns:
        HTML, which is empty without Bokeh.
    """
    if not can_plot():
        return EMPTY
    from bokeh.embed import json_item

    figure = make(*values)
    item = _numbered(json_item(figure), {})
    return block("figure", item=item, alt=alt, caption=caption, height=figure.height)


def _numbered(value: Any, numbers: dict[str, str]) -> Any:
    """The description of a figure with its models numbered from 1, so that equal figures give equal
    text and a report made again is the same.

    Args:
        value: a part of what Bokeh's json_item gives.
        numbers: id -> its number, of the parts before.
    """
    if isinstance(value, dict):
        return {
            key: numbers.setdefault(part, str(len(numbers) + 1))
            if key in ("id", "root_id") and isinstance(part, str)
            else _numbered(part, numbers)
            for key, part in value.items()
        }
    return [_numbered(part, numbers) for part in value] if isinstance(value, list) else value


def plot(
    x_label: str,
    y_label: str,
    *,
    height: int = 340,
    width: int = WIDTH,
    tips: Mapping[str, str] | None = None,
    **more: Any,
) -> Any:
    """A Bokeh figure without a background of its own, as wide as there is room.

    Args:
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        height: in pixels.
        width: in pixels, at most.
        tips: what hovering shows: text -> column, in the notation of Bokeh's tooltips.
        more: arguments of bokeh.plotting.figure, such as ranges.
    """
    from bokeh.models import HoverTool
    from bokeh.plotting import figure

    made = figure(
        height=height,
        max_width=width,
        sizing_mode="stretch_width",
        # Nothing is active at first, so that a finger on the figure scrolls the page.
        tools="box_zoom,wheel_zoom,pan,reset",
        active_drag=None,
        active_scroll=None,
        toolbar_location="below",
        x_axis_label=x_label or None,
        y_axis_label=y_label or None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        min_border_right=12,
        **more,
    )
    made.toolbar.logo = None
    if tips:
        made.add_tools(HoverTool(tooltips=list(tips.items()), visible=False))  # always on
    made.grid.grid_line_color = GREY
    made.grid.grid_line_alpha = 0.22
    made.axis.axis_line_color = GREY
    made.axis.major_tick_line_color = GREY
    made.axis.minor_tick_line_color = None
    made.axis.axis_label_text_font_style = "normal"
    made.axis.axis_label_text_font_size = "13px"
    made.axis.major_label_text_font_size = "12px"
    return made


def columns(**values: ArrayLike | Sequence[str]) -> Any:
    """A Bokeh ColumnDataSource: numbers in single precision where a screen cannot tell."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({name: _single(each) for name, each in values.items()})


def _single(values: Any) -> Any:
    """The values in single precision where that keeps them apart."""
    array = np.asarray(values)
    if array.dtype.kind != "f" or not array.size:
        return values
    with np.errstate(all="ignore"):
        largest, span = float(np.abs(array).max()), float(np.ptp(array))
        fits = largest < 1e30 and span > 1e-4 * largest
    return array.astype(np.float32) if fits else array


def style_of(i: int) -> dict[str, Any]:
    """Colour, dashes and width of the i-th line of a plot."""
    return {
        "line_color": COLOURS[i % len(COLOURS)],
        "line_dash": DASHES[i % len(DASHES)],
        "line_width": 1.8,
    }


def shortened(name: str) -> str:
    """A name that a legend can hold: of a long one the beginning and the end.

    >>> shortened("a" * 50 + "b")
    'aaaaaaaaaaaaaaaaaaaaa…aaaaaaaaaaaaaaaaaaaab'
    """
    half = _MOST_LETTERS // 2
    return name if len(name) <= _MOST_LETTERS else f"{name[: half - 1]}…{name[-half + 1 :]}"


def legend(figure: Any, columns: int = 1) -> None:
    """Put the legend above the axes, where no curve runs; a click on an entry hides its line."""
    for each in figure.legend:
        each.location = "top_left"
        each.ncols = columns
        each.click_policy = "hide"
        each.border_line_color = None
        each.background_fill_color = None
        each.inactive_fill_color = None
        each.label_text_font_size = "12px"
        each.spacing = each.padding = each.margin = 2
        figure.center.remove(each)
        figure.add_layout(each, "above")


def diagonal(figure: Any) -> None:
    """Draw the line on which both axes are equal."""
    from bokeh.models import Slope

    figure.add_layout(Slope(gradient=1, y_intercept=0, line_color=GREY, line_alpha=0.6))


def marked(model: Any, mark: str, system: str) -> Any:
    """The model, which the threshold slider of a system moves from now on (templates/page.js).

    Args:
        model: a Span or a BoxAnnotation on an axis of scores, or a ColumnDataSource of one point.
        mark: "threshold" on an axis of scores; "det" or "roc" on the axes of these curves.
        system: name of the system.
    """
    model.tags = [{"mark": mark, "system": system}]
    return model
