"""How the figures of reports are drawn; histograms, and the course of a training.

Bokeh draws them, whose script the page holds, so that a figure can be zoomed, hovered over and
moved by the threshold slider without network. Bokeh is slow to import, so that only the functions
that make figures do it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from likeness.eval.errors import shorten
from likeness.eval.intervals.uncertainty import RiskCoverage
from likeness.eval.metrics.classification import auroc
from likeness.eval.metrics.groups import Grouped
from likeness.eval.metrics.verification import det, eer
from likeness.eval.reports.page import EMPTY, block, prose, source
from likeness.eval.results import metric_label
from likeness.eval.types import Floats, Scores

GREY = "#8a9099"
# Colours of middle lightness: they read on white and on black.
COLOURS = ("#3987c9", "#d9792e", "#2f9e77", "#b06ab3", "#b59a2a", "#8a9099")
MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "star")
DASHES = ("solid", "dashed", "dotdash", "dotted")
WIDTH = 520  # pixels that a figure takes where there is room
Log = Sequence[Mapping[str, Any]]
"""The entries of a log.jsonl."""
_LOGGED = {"loss": "Loss", "lr": "Learning rate", "norm": "Norm of the embeddings"}
_NUM_POINTS = 1500  # of a curve
# On a telephone, a long name ends in dots.
_NARROW_LABELS = (
    ".bk-label {max-width: calc(100vw - 130px); overflow: hidden; text-overflow: ellipsis}"
)
_MOST_LETTERS = 44  # of a name in a legend


def drawn(make: Callable[..., Any], *values: Any, alt: str, caption: str = "") -> Markup:
    """A figure of the page.

    Args:
        make: makes a Bokeh figure of `values`.
        values: its arguments.
        alt: what the figure shows, in words, for those who cannot see it.
        caption: text below the figure.

    Returns:
        HTML.
    """
    from bokeh.embed import json_item

    figure = make(*values)
    item = _numbered(json_item(figure, theme=_theme()), {})
    return block("figure", item=item, alt=alt, caption=caption, height=figure.height)


@cache
def _theme() -> Any:
    """How all figures look, in templates/figures.json: no background of their own, grey axes."""
    from bokeh.themes import Theme

    return Theme(json=json.loads(source("figures.json")))


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

    more |= {"x_axis_label": x_label or None, "y_axis_label": y_label or None}
    # Nothing is active at first, so that a finger on the figure scrolls the page.
    more |= {"tools": "box_zoom,wheel_zoom,pan,reset", "active_drag": None, "active_scroll": None}
    made = figure(height=height, max_width=width, **more)
    if tips:
        made.add_tools(HoverTool(tooltips=list(tips.items()), visible=False))  # always on
    return made


def columns(**values: ArrayLike | Sequence[str]) -> Any:
    """A Bokeh ColumnDataSource."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource(values)


def line(
    figure: Any,
    i: int,
    name: str,
    *,
    label: str = "",
    dots: int = 0,
    steps: bool = False,
    **values: ArrayLike,
) -> Any:
    """Draw the i-th line of a figure.

    Args:
        figure: a Bokeh figure.
        i: gives the line its colour and dashes.
        name: what hovering calls it.
        label: of its entry in the legend, if it has one.
        dots: size of the dots at its points; 0 for none.
        steps: whether the line keeps its value until the next point.
        values: the columns `x` and `y` of its points, and others that hovering shows.

    Returns:
        The Bokeh ColumnDataSource of the points.
    """
    source = columns(**values)
    shared = {"source": source, "name": name, "color": COLOURS[i % len(COLOURS)]}
    shared |= {"legend_label": label} if label else {}
    style = {"line_dash": DASHES[i % len(DASHES)], "line_width": 1.8}
    draw = partial(figure.step, mode="after") if steps else figure.line
    draw("x", "y", **shared, **style)
    if dots:
        figure.scatter("x", "y", size=dots, **shared)
    return source


def legend(figure: Any, columns: int = 1) -> None:
    """Put the legend above the axes, where no curve runs; a click on an entry hides its line."""
    for each in figure.legend:
        each.ncols = columns
        each.click_policy = "hide"
        each.stylesheets = [_NARROW_LABELS]
        figure.center.remove(each)
        figure.add_layout(each, "above")


def histogram_edges(values: Floats, num_bins: int) -> Floats:
    """Edges of bins of equal width over the values, also where these are nearly equal.

    numpy.histogram_bin_edges raises an error for values that differ by a few rounding errors.

    Args:
        values: (N,).
        num_bins: how many bins.

    Returns:
        (num_bins + 1,) rising numbers.

    >>> bool(np.all(np.diff(histogram_edges(np.array([1.0, 1.0 + 2**-52]), 72)) > 0))
    True
    """
    low, high = float(values.min()), float(values.max())
    least = max(1e-6 * max(abs(low), abs(high)), float(np.finfo(np.float32).tiny))
    if high - low < least:
        low, high = low - least, high + least
    return np.linspace(low, high, num_bins + 1)


def histogram(
    x_label: str, y_label: str, edges: Floats, values: Mapping[str, Floats], tips: Mapping[str, str]
) -> Any:
    """A figure of how two classes are distributed; each adds up to 100 %. The first is hatched.

    Args:
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        edges: (B + 1,) of the bins.
        values: name -> the values of a class.
        tips: what hovering shows, see `plot`.
    """
    ends = float(edges[0]), float(edges[-1])
    figure = plot(x_label, y_label, height=280, tips=tips, x_range=ends)
    figure.y_range.start = 0
    looks = ((COLOURS[1], "/"), (COLOURS[0], None))
    for (name, of_class), (colour, hatch) in zip(values.items(), looks, strict=True):
        number = np.histogram(of_class, edges)[0]
        top = 100 * number / max(of_class.size, 1)
        source = columns(left=edges[:-1], right=edges[1:], top=top, number=number)
        style: dict[str, Any] = dict.fromkeys(("fill_color", "line_color", "hatch_color"), colour)
        style |= {"fill_alpha": 0.3, "hatch_pattern": hatch, "hatch_alpha": 0.5}
        figure.quad("left", "right", "top", 0, source=source, legend_label=name, name=name, **style)
    figure.xgrid.grid_line_color = None
    legend(figure, columns=2)
    return figure


def logged(log: Log, key: str) -> tuple[Floats, Floats]:
    """The steps and values of an entry of a log, at most 1,500 of them.

    >>> logged([{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": 1.5}], "loss")
    (array([1., 3.]), array([2. , 1.5]))
    """
    points = [
        (entry["step"], entry[key])
        for entry in log
        if isinstance(entry.get(key), (int, float)) and "step" in entry
    ]
    steps, values = np.array(points, dtype=np.float64).reshape(-1, 2).T
    kept = np.unique(np.linspace(0, len(points) - 1, min(len(points), _NUM_POINTS)).astype(int))
    return steps[kept], values[kept]


def training_curves(log: Log, metrics: Sequence[str] = ()) -> Markup:
    """A figure for each entry of a log that has at least two values.

    Args:
        log: of one training.
        metrics: what the training measured in between, beside the loss, the rate and the norms.

    Returns:
        HTML, which is empty where there is nothing to draw.
    """
    figures = []
    for key, label in (_LOGGED | {metric: metric_label(metric) for metric in metrics}).items():
        points = logged(log, key)
        if points[0].size > 1:
            lines = [(0, label, "", points)]
            figures.append(drawn(course_figure, label, lines, alt=f"{label} by step"))
    return block("two", parts=figures) if figures else EMPTY


def course_figure(label: str, lines: Sequence[tuple[int, str, str, tuple[Floats, Floats]]]) -> Any:
    """What a training measured against its steps.

    Args:
        label: of the values, which are shown in percent if it says so.
        lines: the number that gives a line its colour, its name, its entry in the legend, and its
            points as `logged` gives them.

    Returns:
        A Bokeh figure.
    """
    tips = {"of": "$name", "step": "@x", label: "@y{0.0000}"}
    figure = plot("Step", label, height=280, tips=tips)
    scale = 100.0 if "(%)" in label else 1.0
    for number, name, entry, (x, y) in lines:
        line(figure, number, name, label=entry, x=x, y=scale * y)
    legend(figure)
    return figure


# ---------------------------------------------------------------- curves of scores

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)


def marked(model: Any, mark: str, system: str) -> Any:
    """The model, which the threshold slider of a system moves from now on (templates/threshold.js).

    Args:
        model: a Span or a BoxAnnotation on an axis of scores, or a ColumnDataSource of one point.
        mark: "threshold" on an axis of scores; "det" on the axes of the DET curve.
        system: name of the system.
    """
    model.tags = [{"mark": mark, "system": system}]
    return model


def det_figure(scores: Mapping[str, Scores]) -> Any:
    """The DET curves of the systems (Martin et al. 1997) on probit axes, each with its EER point.

    Args:
        scores: name of the system -> its scores.

    Returns:
        A Bokeh figure.
    """
    from bokeh.models import Slope

    rates = {name: eer(system.targets, system.nontargets) for name, system in scores.items()}
    high = 0.5 if max(rates.values()) < 0.3 else 0.92
    curves = {name: det(system.targets, system.nontargets) for name, system in scores.items()}
    lows = np.full(2, 0.02)  # the axes begin where the first curve or its EER point does
    for name, curve in curves.items():
        if rates[name]:
            lows = np.minimum(lows, 0.7 * rates[name])
        shown = (curve.far <= high) & (curve.frr <= high)
        if shown.any():
            lows = np.minimum(lows, (0.7 * curve.far[shown].min(), 0.7 * curve.frr[shown].min()))
    x_range, y_range = (tuple(ndtri([low, high])) for low in lows)
    axes, height = ("False accept rate (%)", "False reject rate (%)"), 400 + 20 * len(scores)
    tips = {"system": "$name", "FAR (%)": "@far{0.0000}", "FRR (%)": "@frr{0.00}"}
    figure = plot(*axes, height=height, tips=tips, x_range=x_range, y_range=y_range)
    figure.add_layout(Slope(gradient=1, y_intercept=0, line_color=GREY, line_alpha=0.6))
    for i, (name, curve) in enumerate(curves.items()):
        x, y = _thinned(curve.far_deviate, curve.frr_deviate)
        label = f"{shorten(name, _MOST_LETTERS)}, EER {100 * rates[name]:.2f} %" + (
            "" if x.size else " (no overlap, no curve)"
        )
        line(figure, i, name, label=label, x=x, y=y, far=100 * ndtr(x), frr=100 * ndtr(y))
        at = np.array([ndtri(rates[name])] if 0 < rates[name] < 1 else [])
        point = marked(columns(x=at, y=at), "det", name)
        look = {"marker": MARKERS[i % len(MARKERS)], "fill_color": COLOURS[i % len(COLOURS)]}
        look |= {"line_color": GREY, "level": "overlay"}  # painted apart: to move it repaints none
        figure.scatter("x", "y", size=9, source=point, name=f"threshold of {name}", **look)
    for axis, low in ((figure.xaxis[0], lows[0]), (figure.yaxis[0], lows[1])):
        ticks = _probit_ticks(low, high)
        axis.ticker = [float(ndtri(rate)) for rate in ticks]
        axis.major_label_overrides = {float(ndtri(rate)): f"{100 * rate:g}" for rate in ticks}
    legend(figure)
    return figure


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most _NUM_POINTS points of a curve, evenly along the curve and not along the trials."""
    if x.size <= _NUM_POINTS:
        return x, y
    along = np.append(0, np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y))))
    places = np.linspace(0, along[-1], _NUM_POINTS)
    kept = np.unique(np.searchsorted(along, places).clip(max=x.size - 1))
    return x[kept], y[kept]


def _probit_ticks(low: float, high: float) -> list[float]:
    """The rates at the ticks of a probit axis; each leaves room for the one before it."""
    room = 0.06 * (ndtri(high) - ndtri(low))
    ticks: list[float] = []
    for rate in _TICKS:
        if low <= rate <= high and (not ticks or ndtri(rate) - ndtri(ticks[-1]) > room):
            ticks.append(rate)
    return ticks


def histogram_figure(scores: Scores, threshold: float | None, system: str = "") -> Any:
    """How the target and the nontarget scores of one system are distributed.

    Args:
        scores: of the system; each of the two classes adds up to 100 %.
        threshold: where the dashed line stands; None for no line. What lies right of it is
            accepted, and tinted.
        system: its name, by which the threshold slider finds the line.

    Returns:
        A Bokeh figure.
    """
    from bokeh.models import BoxAnnotation, Span

    figure = histogram(
        "Score (higher = more similar)",
        "Trials of a class (%)",
        histogram_edges(scores.values, 72),
        {"nontarget": scores.nontargets, "target": scores.targets},
        {"class": "$name", "scores": "@left to @right", "trials": "@number{0,0}"},
    )
    if threshold is not None:
        look = {"line_color": GREY, "line_dash": "dashed", "line_width": 2}
        for mark in (
            BoxAnnotation(left=threshold, fill_color=GREY, fill_alpha=0.12, line_color=None),
            Span(location=threshold, dimension="height", **look),
        ):
            mark.level = "overlay"  # painted apart: to move it repaints no bar
            figure.add_layout(marked(mark, "threshold", system))
    return figure


def norms_by_correct(norms: ArrayLike, correct: ArrayLike) -> Markup:
    """Histograms of the norms of right and of wrong answers (nivMF paper, Fig. 9), and the AUROC of
    the norm.

    Args:
        norms: (N,).
        correct: (N,) booleans, of predictions, rank-1 retrievals or decisions.

    Returns:
        HTML.
    """
    values, right = np.asarray(norms, dtype=np.float64), np.asarray(correct, dtype=np.bool_)
    text = f"{right.sum():,} of {right.size:,} answers are right ({100 * right.mean():.2f} %)."
    if right.all() or not right.any():
        return prose(f"{text} All are of one kind, so their norms cannot be compared.")
    text += (
        f" AUROC of the norm: {auroc(values, right):.3f} (1: every right answer has a higher norm "
        "than every wrong one; 0.5: the norm says nothing)."
    )
    axes, alt = ("Norm", "Answers of a kind (%)"), "Norms of right and wrong answers"
    parts = {"wrong": values[~right], "right": values[right]}
    tips = {"answers": "$name", "norms": "@left to @right", "number": "@number{0,0}"}
    edges = histogram_edges(values, 36)
    return prose(text) + drawn(histogram, *axes, edges, parts, tips, alt=alt)


_NUM_KEPT = 200  # points of a curve of risk and coverage


def coverage_figure(curves: Mapping[str, RiskCoverage]) -> Any:
    """The risk of the answers that are kept against the share of them.

    The dotted lines stand for leaving answers out by chance.

    Returns:
        A Bokeh figure.
    """
    from bokeh.models import Span

    axes = "Answers kept, highest quality first (%)", "Wrong among the kept (%)"
    tips = {"of": "$name", "kept (%)": "@x{0.0}", "wrong among the kept (%)": "@y{0.00}"}
    figure = plot(*axes, height=300, tips=tips)
    figure.y_range.start = 0
    for i, (name, curve) in enumerate(curves.items()):
        # At low coverage a single answer moves the curve, and a page needs no more points.
        places = np.searchsorted(curve.coverage, np.linspace(0.01, 1, _NUM_KEPT))
        shown = np.unique(places.clip(max=curve.coverage.size - 1))
        x, y = 100 * curve.coverage[shown], 100 * curve.risk[shown]
        line(figure, i, name, label=shorten(name, _MOST_LETTERS), x=x, y=y)
        look = {"line_color": COLOURS[i % len(COLOURS)], "line_dash": "dotted"}
        figure.add_layout(Span(location=100 * float(curve.risk[-1]), dimension="width", **look))
    legend(figure)
    return figure


def tippett_figure(scores: Mapping[str, Scores]) -> Any:
    """The Tippett plot: the share of the trials of a class whose likelihood ratio is at least x.

    Returns:
        A Bokeh figure.
    """
    axes = "Likelihood ratio (power of ten)", "Trials with at least that ratio (%)"
    figure = plot(*axes, height=300, tips={"of": "$name", "ratio": "@x{0.00}", "%": "@y{0.00}"})
    shares = np.linspace(0, 1, _NUM_KEPT)
    for i, (name, of) in enumerate(scores.items()):
        for kind, values in (("targets", of.targets), ("nontargets", of.nontargets)):
            label, logs = f"{shorten(name, _MOST_LETTERS)}, {kind}", np.quantile(values, shares)
            number = 2 * i + (kind != "targets")
            line(figure, number, label, label=label, x=logs / np.log(10), y=100 - 100 * shares)
    legend(figure)
    return figure


def group_figure(grouped: Grouped) -> Any:
    """The EER of each group at a threshold of its own, with its interval."""
    points = [
        (row.group, rate.value, *(rate.interval or (rate.value, rate.value)))
        for row in grouped.groups
        if (rate := row.rates["eer"]).value is not None
    ]
    names, *numbers = zip(*points, strict=True) if points else [()] * 4
    y, low, high = (100 * np.array(each) for each in numbers)
    tips = {"group": "@group", "EER (%)": "@y{0.00}", "from": "@low{0.00}", "to": "@high{0.00}"}
    figure = plot(grouped.by, "EER (%)", height=260, x_range=list(names), tips=tips)
    source = columns(group=list(names), y=y, low=low, high=high)
    figure.segment("group", "low", "group", "high", source=source, color=COLOURS[0], line_width=1.8)
    figure.scatter("group", "y", source=source, size=8, color=COLOURS[0])
    figure.y_range.start = 0
    return figure
