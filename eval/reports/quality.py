"""The quality of answers in figures, of which eval.reports.drawing.drawn makes a block:
error-versus-reject and risk-coverage curves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from eval.calibration import Curve, error_versus_reject
from eval.reports.drawing import columns, legend, plot, shortened, style_of
from eval.types import Scores
from eval.uncertainty import RiskCoverage

_NUM_POINTS = 200


def reject_curves(
    scores: Mapping[str, Scores], quality: Mapping[str, ArrayLike]
) -> dict[str, Curve]:
    """The EER of the trials that remain as those of lowest quality are rejected, in steps of 5 %.

    Args:
        scores: name of the system -> its scores.
        quality: name of the system -> (P,) quality of its trials.

    Returns:
        Name of the system -> its curve (calibration.error_versus_reject).
    """
    return {
        name: error_versus_reject(scores[name].values, scores[name].target, measure)
        for name, measure in quality.items()
    }


def reject_figure(curves: Mapping[str, Curve]) -> Any:
    """The error that is left against the share of trials rejected.

    The dotted lines stand for rejecting by chance.

    Returns:
        A Bokeh figure.
    """
    from bokeh.models import Span

    figure = plot(
        "Trials rejected, lowest norms first (%)",
        "EER of the rest (%)",
        height=300,
        tips={"system": "$name", "rejected (%)": "@x{0.0}", "EER of the rest (%)": "@y{0.00}"},
    )
    figure.y_range.start = 0
    for i, (name, curve) in enumerate(curves.items()):
        shown = np.isfinite(curve.values)
        style = style_of(i)
        source = columns(x=100 * curve.rejected[shown], y=100 * curve.values[shown])
        label = shortened(name)
        figure.line("x", "y", source=source, legend_label=label, name=name, **style)
        figure.scatter(
            "x",
            "y",
            source=source,
            size=5,
            color=style["line_color"],
            legend_label=label,
            name=name,
        )
        figure.add_layout(
            Span(
                location=100 * float(curve.values[0]),
                dimension="width",
                line_color=style["line_color"],
                line_dash="dotted",
            )
        )
    legend(figure)
    return figure


def coverage_figure(curves: Mapping[str, RiskCoverage]) -> Any:
    """The risk of the answers that are kept against the share of them.

    The dotted lines stand for leaving answers out by chance.

    Returns:
        A Bokeh figure.
    """
    from bokeh.models import Span

    figure = plot(
        "Answers kept, highest quality first (%)",
        "Wrong among the kept (%)",
        height=300,
        tips={"of": "$name", "kept (%)": "@x{0.0}", "wrong among the kept (%)": "@y{0.00}"},
    )
    figure.y_range.start = 0
    for i, (name, curve) in enumerate(curves.items()):
        style = style_of(i)
        # At low coverage a single answer moves the curve, and a page needs no more points.
        shown = np.unique(
            np.searchsorted(curve.coverage, np.linspace(0.01, 1, _NUM_POINTS)).clip(
                max=curve.coverage.size - 1
            )
        )
        source = columns(x=100 * curve.coverage[shown], y=100 * curve.risk[shown])
        figure.line("x", "y", source=source, legend_label=shortened(name), name=name, **style)
        figure.add_layout(
            Span(
                location=100 * float(curve.risk[-1]),
                dimension="width",
                line_color=style["line_color"],
                line_dash="dotted",
            )
        )
    legend(figure)
    return figure
