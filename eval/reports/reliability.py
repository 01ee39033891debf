"""Whether scores and confidences are what they claim: stated against observed log-likelihood
ratios, and the confidence of a classifier against its share of right answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike
from scipy.special import log_expit, logsumexp

from eval.classification import ece, equal_mass
from eval.reports.blocks import prose
from eval.reports.drawing import (
    COLOURS,
    MARKERS,
    columns,
    diagonal,
    drawn,
    legend,
    plot,
    shortened,
    style_of,
)
from eval.types import Floats, Scores

_SQUARE = 400  # pixels


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
        height=_SQUARE + 20 * len(scores),
        width=_SQUARE,
        tips={"stated": "@x{0.00}", "observed": "@y{0.00}", "95 %": "@low{0.00} to @high{0.00}"},
        x_range=(-limit, limit),
        y_range=(-limit, limit),
    )
    diagonal(figure)
    for i, (name, ratios) in enumerate(points.items()):
        style = style_of(i)
        source = columns(
            x=ratios.stated,
            y=ratios.observed,
            low=ratios.observed - ratios.half_width,
            high=ratios.observed + ratios.half_width,
        )
        label = shortened(name)
        figure.line("x", "y", source=source, legend_label=label, name=name, **style)
        figure.scatter(
            "x",
            "y",
            source=source,
            size=6,
            marker=MARKERS[i % len(MARKERS)],
            color=style["line_color"],
            legend_label=label,
            name=name,
        )
        figure.segment(
            "x", "low", "x", "high", source=source, line_color=style["line_color"], name=name
        )
    legend(figure)
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
        LikenessError: as eval.classification.ece.
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
    low = 10 * float(np.floor(10 * min(mean.min(), share.min())))
    figure = plot(
        "Mean confidence of a bin (%)",
        "Right answers (%)",
        height=_SQUARE,
        width=_SQUARE,
        tips={"confidence (%)": "@x{0.0}", "right (%)": "@y{0.0}"},
        x_range=(low, 100.5),
        y_range=(low, 100.5),
    )
    diagonal(figure)
    source = columns(x=100 * mean, y=100 * share)
    figure.line("x", "y", source=source, name="confidence", **style_of(0))
    figure.scatter("x", "y", source=source, size=6, color=COLOURS[0], name="confidence")
    return figure
