"""The figures of scores: DET and ROC curves, distributions, and log-likelihood ratios as stated and
as observed.

Each `..._points` function gives the numbers, and each `..._figure` a Bokeh figure, of which
eval.reports.figures.drawn makes a block of a report. What is drawn is bounded, whatever the number
of trials: curves are thinned evenly along themselves, and histograms are counts. 10 million trials
need a few copies of their scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from scipy.special import log_expit, logsumexp, ndtr, ndtri

from eval.reports.figures import (
    COLOURS,
    GREY,
    MARKERS,
    SQUARE,
    columns,
    diagonal,
    drawn,
    histogram,
    histogram_edges,
    legend,
    line,
    plot,
    shortened,
)
from eval.reports.page import EMPTY, block, prose
from eval.types import Floats, Scores
from eval.verification import det, eer, sort_scores

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
_NUM_POINTS = 1500  # of a curve


def marked(model: Any, mark: str, system: str) -> Any:
    """The model, which the threshold slider of a system moves from now on (templates/threshold.js).

    Args:
        model: a Span or a BoxAnnotation on an axis of scores, or a ColumnDataSource of one point.
        mark: "threshold" on an axis of scores; "det" or "roc" on the axes of these curves.
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
        line(figure, i, name, label=label, x=x, y=y, far=100 * ndtr(x), frr=100 * ndtr(y))
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
        x = 100 * np.maximum(far, low / 10)
        line(figure, i, name, label=shortened(name), steps=True, x=x, y=100 * tar)
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
        edge = Span(location=threshold, dimension="height", line_width=2)
        edge.line_color, edge.line_dash = GREY, "dashed"
        side = BoxAnnotation(left=threshold, fill_color=GREY, fill_alpha=0.12, line_color=None)
        edge.level = side.level = "overlay"  # painted apart: to move them repaints no bar
        figure.add_layout(marked(side, "threshold", system))
        figure.add_layout(marked(edge, "threshold", system))
    return figure


class Reliability(NamedTuple):
    """Log-likelihood ratios as stated and as observed.

    Each is (K,), in natural logarithms; half_width is that of the observed ones' 95 % intervals.
    """

    stated: Floats
    observed: Floats
    half_width: Floats


def llr_points(scores: Scores, num_bins: int = 12) -> Reliability:
    """What the scores state, taken as log-likelihood ratios, and what is observed.

    The bins have equal mass where both classes weigh the same. Equal scores share a bin, so that
    there may be fewer bins.

    stated is the logit of the bin's mean sigmoid(LLR). observed is
    log((t + .5) / (T + 1)) - log((n + .5) / (N + 1)) of its t target and n nontarget trials; its
    variance is about 1 / (t + .5) + 1 / (n + .5) (Haldane 1956, Anscombe 1956). Both estimate the
    same where P(target | LLR) = sigmoid(LLR) at even odds.
    """
    order = np.argsort(scores.values)
    values, target = scores.values[order], scores.target[order]
    num_targets, num_nontargets = int(target.sum()), int((~target).sum())
    weights = np.where(target, 0.5 / num_targets, 0.5 / num_nontargets)
    last = np.searchsorted(np.cumsum(weights), np.arange(1, num_bins) / num_bins - 1e-12).clip(
        max=values.size - 1
    )
    ends = np.unique(np.append(np.searchsorted(values, values[last], side="right"), values.size))
    stated, observed, half_width = [], [], []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        llr, weight, t = values[begin:end], weights[begin:end], int(target[begin:end].sum())
        n = int(end - begin) - t
        stated.append(logsumexp(log_expit(llr), b=weight) - logsumexp(log_expit(-llr), b=weight))
        observed.append(
            np.log((t + 0.5) / (num_targets + 1)) - np.log((n + 0.5) / (num_nontargets + 1))
        )
        half_width.append(1.96 * np.sqrt(1 / (t + 0.5) + 1 / (n + 0.5)))
    return Reliability(np.array(stated), np.array(observed), np.array(half_width))


def reliability_figure(scores: Mapping[str, Scores]) -> Any:
    """Stated against observed log-likelihood ratios of each system, with 95 % intervals.

    Args:
        scores: name of the system -> its scores, which are log-likelihood ratios.

    Returns:
        A Bokeh figure.
    """
    points = {name: llr_points(system) for name, system in scores.items()}
    limit = 1.1 * max(
        float(np.abs(np.concatenate([ratios.stated, ratios.observed])).max())
        for ratios in points.values()
    )
    limit = min(max(limit, 0.1), 20.0)  # beyond, no list of trials can tell
    figure = plot(
        "Stated log-likelihood ratio",
        "Observed log-likelihood ratio",
        height=SQUARE + 20 * len(scores),
        width=SQUARE,
        tips={"stated": "@x{0.00}", "observed": "@y{0.00}", "95 %": "@low{0.00} to @high{0.00}"},
        x_range=(-limit, limit),
        y_range=(-limit, limit),
    )
    diagonal(figure)
    for i, (name, ratios) in enumerate(points.items()):
        source = line(
            figure,
            i,
            name,
            label=shortened(name),
            dots=6,
            marker=MARKERS[i % len(MARKERS)],
            x=ratios.stated,
            y=ratios.observed,
            low=ratios.observed - ratios.half_width,
            high=ratios.observed + ratios.half_width,
        )
        colour = COLOURS[i % len(COLOURS)]
        figure.segment("x", "low", "x", "high", source=source, line_color=colour, name=name)
    legend(figure)
    return figure
