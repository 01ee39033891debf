"""The plots of scores: DET and ROC curves, histograms, reliability of log-likelihood ratios and of
confidences.

Each `..._points` function gives the numbers, and each `..._figure` a matplotlib Figure, of which
eval.reports.drawing.drawn makes a block of a report. What is drawn is bounded, whatever the number
of trials: curves are thinned evenly along themselves, and histograms are counts. 10 million trials
need a few copies of their scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike
from scipy.special import log_expit, logsumexp, ndtri

from eval.classification import ece, equal_mass
from eval.reports.blocks import EMPTY, block, prose
from eval.reports.drawing import COLOURS, GREY, drawn, legend, plot, style_of
from eval.types import Floats, Scores
from eval.verification import det, eer, sort_scores

_TICKS = (1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9)
_NUM_POINTS = 1500  # of a curve
_SQUARE = (4.5, 4.6)


def det_figure(scores: Mapping[str, Scores]) -> Any:
    """The DET curves of the systems (Martin et al. 1997) on probit axes, each with its EER point.

    Args:
        scores: name of the system -> its scores.

    Returns:
        A matplotlib Figure.
    """
    figure, axes = plot(4.5, 4.25 + 0.18 * len(scores))
    rates = {name: eer(system.targets, system.nontargets) for name, system in scores.items()}
    high = 0.5 if max(rates.values()) < 0.3 else 0.92
    lows = np.full(2, 0.02)  # the axes begin where the first curve does
    for i, (name, system) in enumerate(scores.items()):
        curve = det(system.targets, system.nontargets)
        shown = (curve.far <= high) & (curve.frr <= high)
        if shown.any():
            lows = np.minimum(lows, (0.7 * curve.far[shown].min(), 0.7 * curve.frr[shown].min()))
        x, y = _thinned(curve.far_deviate, curve.frr_deviate)
        label = f"{name}, EER {100 * rates[name]:.2f} %" + (
            "" if x.size else " (no overlap, no curve)"
        )
        axes.plot(x, y, label=label, **style_of(i))
        if 0 < rates[name] < 1:
            axes.plot(*[ndtri(rates[name])] * 2, "o", color=COLOURS[i % len(COLOURS)], markersize=5)
    axes.axline((0, 0), slope=1, color=GREY, linewidth=0.7, alpha=0.6)
    for axis, low in ((axes.xaxis, lows[0]), (axes.yaxis, lows[1])):
        ticks = _probit_ticks(low, high)
        axis.set_ticks(ndtri(ticks), [f"{100 * rate:g}" for rate in ticks])
    axes.set(
        xlim=ndtri([lows[0], high]),
        ylim=ndtri([lows[1], high]),
        xlabel="False accept rate (%)",
        ylabel="False reject rate (%)",
    )
    legend(axes)
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
        A matplotlib Figure.
    """
    figure, axes = plot(4.5, 4.25 + 0.18 * len(scores))
    low, bottom = 0.5, 1.0
    for i, (name, system) in enumerate(scores.items()):
        far, tar = roc_points(system)
        begin = max(far[1], 1e-6)
        low = min(low, begin)
        bottom = min(bottom, tar[np.searchsorted(far, begin, side="right") - 1])
        axes.step(
            100 * np.maximum(far, begin / 10), 100 * tar, where="post", label=name, **style_of(i)
        )
    axes.set_xscale("log")
    decades = [10.0**k for k in range(-4, 3)]
    axes.set_xticks(decades, [f"{decade:g}" for decade in decades])
    floor = min(10 * np.floor(10 * bottom), 90)
    axes.set(
        xlim=(100 * low, 100),
        ylim=(floor, 100 + 0.02 * (100 - floor)),
        xlabel="False accept rate (%)",
        ylabel="True accept rate (%)",
    )
    axes.minorticks_off()
    legend(axes)
    return figure


def trade_off(scores: Mapping[str, Scores]) -> Markup:
    """DET and ROC curves of the systems, side by side where there is room.

    Args:
        scores: name of the system -> its scores.

    Returns:
        HTML, which is empty without matplotlib.
    """
    curves = [
        drawn(det_figure, scores, alt="DET curves"),
        drawn(roc_figure, scores, alt="ROC curves"),
    ]
    if not any(curves):
        return EMPTY
    text = (
        "How many nontargets pass against how many targets are turned away, as the threshold "
        "moves. First the DET curve: nearer to the lower left is better, "
        "the dot marks the equal error rate; axes are normal deviates, on which Gaussian scores "
        "draw a straight line. Then the ROC curve."
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


def histogram_figure(scores: Scores, threshold: float | None) -> Any:
    """How the target and the nontarget scores of one system are distributed.

    Args:
        scores: of the system; each of the two classes adds up to 100 %.
        threshold: where the dashed line stands; None for no line.

    Returns:
        A matplotlib Figure.
    """
    figure, axes = plot(4.5, 2.4)
    edges = histogram_edges(scores.values, 72)
    for label, values, colour in (
        ("nontarget", scores.nontargets, COLOURS[1]),
        ("target", scores.targets, COLOURS[0]),
    ):
        share: Floats = 100 * np.histogram(values, edges)[0] / values.size
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.28)
        axes.stairs(share, edges, color=colour, linewidth=1.3, label=label)
    if threshold is not None:
        axes.axvline(
            threshold,
            color=GREY,
            linewidth=1,
            linestyle="--",
            label=f"EER threshold {threshold:.4g}",
        )
    axes.set(xlabel="Score (higher = more similar)", ylabel="Trials of a class (%)", ylim=(0, None))
    axes.locator_params(axis="x", nbins=6)
    axes.grid(axis="x", visible=False)
    legend(axes, columns=3)
    return figure


# ---------------------------------------------------------------- reliability


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

    Calibrated scores lie on the diagonal.

    Args:
        scores: name of the system -> its scores.

    Returns:
        A matplotlib Figure.
    """
    figure, axes = plot(*_SQUARE)
    points = {name: llr_points(system) for name, system in scores.items()}
    limit = 1.1 * max(
        float(np.abs(np.concatenate([ratios.stated, ratios.observed])).max())
        for ratios in points.values()
    )
    limit = min(limit, 20.0)  # beyond, no list of trials can tell
    for i, (name, ratios) in enumerate(points.items()):
        colour = COLOURS[i % len(COLOURS)]
        axes.errorbar(
            ratios.stated,
            ratios.observed,
            ratios.half_width,
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.2,
            elinewidth=0.8,
            capsize=2,
            label=name,
        )
    axes.axline((0, 0), slope=1, color=GREY, linewidth=0.7, alpha=0.6)
    axes.set(
        xlim=(-limit, limit),
        ylim=(-limit, limit),
        xlabel="Stated log-likelihood ratio",
        ylabel="Observed log-likelihood ratio",
    )
    legend(axes)
    return figure


def reliability(confidence: ArrayLike, correct: ArrayLike, *, num_bins: int = 15) -> Markup:
    """A classifier's confidence against the share of correct answers, with the ECE.

    Where the edge of a bin lies between equal confidences, each of them counts with the mean of
    their answers (classification.equal_mass).

    Args:
        confidence: (N,) in [0, 1].
        correct: (N,) booleans.
        num_bins: bins of equal mass.

    Returns:
        HTML.

    Raises:
        ValueError: as eval.classification.ece.
    """
    values, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    error = ece(values, right, num_bins=num_bins)
    _, mean, share = equal_mass(values, right.astype(np.float64), num_bins)
    text = (
        f"Expected calibration error {100 * error:.2f} % ({num_bins} bins of equal mass). Below "
        "the diagonal the model is surer than it is right."
    )
    return prose(text) + drawn(_confidence_figure, mean, share, alt="Reliability of the confidence")


def _confidence_figure(mean: Floats, share: Floats) -> Any:
    figure, axes = plot(*_SQUARE)
    axes.axline((0, 0), slope=1, color=GREY, linewidth=0.7, alpha=0.6)
    axes.plot(100 * mean, 100 * share, "o-", color=COLOURS[0], markersize=4, linewidth=1.4)
    low = 10 * np.floor(10 * min(mean.min(), share.min()))
    axes.set(
        xlim=(low, 100.5),
        ylim=(low, 100.5),
        xlabel="Mean confidence of a bin (%)",
        ylabel="Right answers (%)",
    )
    return figure
