"""The plots of scores: DET and ROC curves, histograms.

Each `..._points` function gives the numbers, and each `..._figure` a Bokeh figure, of which
eval.reports.drawing.drawn makes a block of a report. What is drawn is bounded, whatever the number
of trials: curves are thinned evenly along themselves, and histograms are counts. 10 million trials
need a few copies of their scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.special import ndtr, ndtri

from eval.reports.blocks import EMPTY, block, prose
from eval.reports.drawing import (
    COLOURS,
    GREY,
    MARKERS,
    columns,
    diagonal,
    drawn,
    legend,
    marked,
    plot,
    shortened,
    style_of,
)
from eval.types import Floats, Scores
from eval.verification import det, eer, sort_scores

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
_NUM_POINTS = 1500  # of a curve


def det_figure(scores: Mapping[str, Scores]) -> Any:
    """The DET curves of the systems (Martin et al. 1997) on probit axes, each with its EER point.

    Args:
        scores: name of the system -> its scores.

    Returns:
        A Bokeh figure.
    """
    rates = {name: eer(system.targets, system.nontargets) for name, system in scores.items()}
    high = 0.5 if max(rates.values()) < 0.3 else 0.92
    curves = {name: det(system.targets, system.nontargets) for name, system in scores.items()}
    lows = np.full(2, 0.02)  # the axes begin where the first curve does
    for curve in curves.values():
        shown = (curve.far <= high) & (curve.frr <= high)
        if shown.any():
            lows = np.minimum(lows, (0.7 * curve.far[shown].min(), 0.7 * curve.frr[shown].min()))
    figure = plot(
        "False accept rate (%)",
        "False reject rate (%)",
        height=400 + 20 * len(scores),
        tips={"system": "$name", "FAR (%)": "@far{0.0000}", "FRR (%)": "@frr{0.00}"},
        x_range=tuple(ndtri([lows[0], high])),
        y_range=tuple(ndtri([lows[1], high])),
    )
    diagonal(figure)
    for i, (name, curve) in enumerate(curves.items()):
        x, y = _thinned(curve.far_deviate, curve.frr_deviate)
        label = f"{shortened(name)}, EER {100 * rates[name]:.2f} %" + (
            "" if x.size else " (no overlap, no curve)"
        )
        points = columns(x=x, y=y, far=100 * ndtr(x), frr=100 * ndtr(y))
        figure.line("x", "y", source=points, legend_label=label, name=name, **style_of(i))
        at = [ndtri(rates[name])] if 0 < rates[name] < 1 else []
        _mark(figure, "det", name, i, (at, at))
    for axis, low in ((figure.xaxis[0], lows[0]), (figure.yaxis[0], lows[1])):
        ticks = _probit_ticks(low, high)
        axis.ticker = [float(ndtri(rate)) for rate in ticks]
        axis.major_label_overrides = {float(ndtri(rate)): f"{100 * rate:g}" for rate in ticks}
    legend(figure)
    return figure


def _mark(figure: Any, mark: str, system: str, i: int, points: Sequence[Sequence[float]]) -> None:
    """The dot of the i-th system that its threshold slider moves along the curve.

    Args:
        figure: of the curves.
        mark: "det" or "roc".
        system: its name.
        i: its number.
        points: the x and the y of the dot; both are empty where there is none.
    """
    x, y = points
    figure.scatter(
        "x",
        "y",
        source=marked(columns(x=np.array(x), y=np.array(y)), mark, system),
        size=9,
        marker=MARKERS[i % len(MARKERS)],
        fill_color=COLOURS[i % len(COLOURS)],
        line_color=GREY,
        name=f"threshold of {system}",
        level="overlay",  # painted apart: to move it repaints no curve
    )


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


def roc_points(scores: Scores) -> tuple[Floats, Floats]:
    """The points of the ROC curve, at rising numbers of accepted nontargets.

    They follow the strict rule of TAR@FAR, so that the curve shows what the table says.

    Returns:
        FAR and TAR, each (K,), K <= 1500.

    >>> scores, labels = np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False])
    >>> far, tar = roc_points(Scores(scores, labels))
    >>> far.tolist(), tar.tolist()
    ([0.0, 0.5, 1.0], [0.5, 1.0, 1.0])
    """
    s = sort_scores(scores.targets, scores.nontargets)
    size = s.nontarget.size
    accepted = np.unique(
        np.append(
            np.arange(min(size, 200)), np.geomspace(1, size, _NUM_POINTS - 200).astype(np.int64)
        )
    )
    limit = s.nontarget[size - 1 - accepted[accepted < size]]  # the (accepted + 1)-th largest
    tar = 1 - np.searchsorted(s.target, limit, side="right") / s.target.size
    return accepted / size, np.append(tar, 1.0) if accepted[-1] == size else tar


def roc_figure(scores: Mapping[str, Scores]) -> Any:
    """The ROC curves of the systems: true accept rate against false accept rate.

    The axis of the latter is logarithmic and begins at one nontarget trial, at least at 1e-6.

    Args:
        scores: name of the system -> its scores.

    Returns:
        A Bokeh figure.
    """
    curves, low, bottom = {}, 0.5, 1.0
    for name, system in scores.items():
        far, tar = curves[name] = roc_points(system)
        begin = max(far[1], 1e-6)
        low = min(low, begin)
        bottom = min(bottom, tar[np.searchsorted(far, begin, side="right") - 1])
    floor = min(10 * np.floor(10 * bottom), 90)
    figure = plot(
        "False accept rate (%)",
        "True accept rate (%)",
        height=400 + 20 * len(scores),
        tips={"system": "$name", "FAR (%)": "@x{0.0000}", "TAR (%)": "@y{0.00}"},
        x_axis_type="log",
        x_range=(100 * low, 100),
        y_range=(floor, 100 + 0.02 * (100 - floor)),
    )
    for i, (name, (far, tar)) in enumerate(curves.items()):
        points = columns(x=100 * np.maximum(far, low / 10), y=100 * tar)
        figure.step(
            "x",
            "y",
            source=points,
            mode="after",
            legend_label=shortened(name),
            name=name,
            **style_of(i),
        )
        rate = eer(scores[name].targets, scores[name].nontargets)
        _mark(figure, "roc", name, i, ([100 * max(rate, low)], [100 * (1 - rate)]))
    decades = [10.0**k for k in range(-4, 3)]
    figure.xaxis[0].ticker = decades
    figure.xaxis[0].major_label_overrides = {decade: f"{decade:g}" for decade in decades}
    legend(figure)
    return figure


def trade_off(scores: Mapping[str, Scores], *, movable: bool = False) -> Markup:
    """DET and ROC curves of the systems, side by side where there is room.

    Args:
        scores: name of the system -> its scores.
        movable: whether the page has a threshold slider, which moves the dots.

    Returns:
        HTML, which is empty without Bokeh.
    """
    rates = {name: eer(system.targets, system.nontargets) for name, system in scores.items()}
    summary = "; ".join(f"{name}: EER {100 * rate:.2f} %" for name, rate in rates.items())
    curves = [
        drawn(det_figure, scores, alt=f"DET curves. {summary}."),
        drawn(roc_figure, scores, alt=f"ROC curves. {summary}."),
    ]
    if not any(curves):
        return EMPTY
    until = " until the slider moves it" if movable else ""
    text = (
        "Both curves show what happens as the threshold moves. First the DET curve: how many "
        "nontarget trials are accepted against how many target trials are rejected. Nearer to the "
        f"lower left is better, and the dot marks the equal error rate{until}. Its axes are normal "
        "deviates, on which Gaussian scores draw a straight line. Then the ROC curve."
    )
    return prose(text) + block("two", parts=curves)


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
    # below that, linspace rounds too much
    room = num_bins * max(
        2 * float(np.spacing(max(abs(low), abs(high)))), float(np.finfo(np.float64).tiny)
    )
    if high - low < room:
        middle, half = low + (high - low) / 2, max(room, 0.5 if high == low else 0.0)
        low, high = middle - half, middle + half
    edges: Floats = np.linspace(low, high, num_bins + 1)
    return edges


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

    edges = histogram_edges(scores.values, 72)
    figure = plot(
        "Score (higher = more similar)",
        "Trials of a class (%)",
        height=280,
        tips={"class": "$name", "scores": "@left to @right", "trials": "@number{0,0}"},
        x_range=(float(edges[0]), float(edges[-1])),
    )
    figure.y_range.start = 0
    histogram(figure, edges, {"nontarget": scores.nontargets, "target": scores.targets})
    if threshold is not None:
        line = Span(
            location=threshold,
            dimension="height",
            line_color=GREY,
            line_dash="dashed",
            line_width=2,
        )
        side = BoxAnnotation(left=threshold, fill_color=GREY, fill_alpha=0.12, line_color=None)
        line.level = side.level = "overlay"  # painted apart: to move them repaints no bar
        figure.add_layout(marked(side, "threshold", system))
        figure.add_layout(marked(line, "threshold", system))
    return figure


def histogram(figure: Any, edges: Floats, values: Mapping[str, Floats]) -> None:
    """Draw how two classes are distributed; each adds up to 100 %. The first is hatched.

    Args:
        figure: a Bokeh figure.
        edges: (B + 1,) of the bins.
        values: name -> the values of a class.
    """
    for (name, of_class), colour, hatch in zip(
        values.items(), (COLOURS[1], COLOURS[0]), ("/", None), strict=True
    ):
        number = np.histogram(of_class, edges)[0]
        top = 100 * number / max(of_class.size, 1)
        figure.quad(
            left="left",
            right="right",
            top="top",
            bottom=0,
            source=columns(left=edges[:-1], right=edges[1:], top=top, number=number),
            fill_color=colour,
            fill_alpha=0.3,
            line_color=colour,
            hatch_pattern=hatch,
            hatch_color=colour,
            hatch_alpha=0.5,
            legend_label=name,
            name=name,
        )
    figure.xgrid.grid_line_color = None
    legend(figure, columns=2)
