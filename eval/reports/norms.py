"""What norms and confidences are worth, as blocks of a report: grids of the lowest and highest
norms, norms of right and wrong answers, error-versus-reject and risk-coverage curves, and the
confidence of a classifier against its share of right answers.

What is shown is bounded, whatever the number of items. The norm as a measure of quality: vMF paper
(Figs 1, 3 and Table 1), nivMF paper (Figs 6, 9, 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from eval.calibration import Curve, error_versus_reject
from eval.classification import auroc, ece, equal_mass
from eval.reports.figures import (
    COLOURS,
    GREY,
    SQUARE,
    diagonal,
    drawn,
    histogram,
    histogram_edges,
    legend,
    level,
    line,
    plot,
    shortened,
)
from eval.reports.media import Media
from eval.reports.page import block, prose
from eval.types import Bools, Floats, Scores
from eval.uncertainty import RiskCoverage

_NUM_ROWS = 8  # players or names, which take a line each


def norm_grid(ids: Sequence[str], norms: ArrayLike, media: Media, *, num: int = 16) -> Markup:
    """The items of lowest and of highest norm, as images with the norm below.

    Where an item has no image, its player or its name takes a line, of which there are at most 8.

    Args:
        ids: N of them.
        norms: (N,).
        media: shows an item by its id.
        num: items at each end. With fewer than 2 num items each end has half of them. Of equal
            norms the earlier come first.

    Returns:
        HTML.
    """
    values = np.asarray(norms, dtype=np.float64)
    num = max(1, min(num, len(ids) // 2))
    parts = []
    for title, order in (
        ("Lowest norms", np.argsort(values, kind="stable")),
        ("Highest norms", np.argsort(-values, kind="stable")),
    ):
        items: list[dict[str, Any]] = []
        images = True
        for i in order[:num].tolist():
            if not images and len(items) >= _NUM_ROWS:
                break
            shown = media.show(ids[i])
            images &= 'class="shown image"' in shown
            norm = f"{values[i]:#.4g}".rstrip(".")
            items.append({"id": ids[i], "shown": shown, "norm": norm, "named": not images})
        parts.append(block("tiles", heading=title, items=items, rows=not images))
    return block("two", parts=parts)


def norms_by_correct(norms: ArrayLike, correct: ArrayLike, *, num_bins: int = 10) -> Markup:
    """Histograms of the norms of right and of wrong answers (nivMF paper, Fig. 9), the share of
    right answers by norm, and the AUROC of the norm.

    Args:
        norms: (N,).
        correct: (N,) booleans, of predictions, rank-1 retrievals or decisions.
        num_bins: groups by norm of which the share of right answers is drawn.

    Returns:
        HTML.
    """
    values, right = np.asarray(norms, dtype=np.float64), np.asarray(correct, dtype=np.bool_)
    text = f"{right.sum():,} of {right.size:,} answers are right ({100 * right.mean():.2f} %)."
    if right.all() or not right.any():
        return prose(
            text + " All are of one kind, so their norms cannot be set against each other."
        )
    text += (
        f" AUROC of the norm: {auroc(values, right):.3f} (1: every right answer has a higher norm "
        "than every wrong one; 0.5: the norm says nothing)."
    )
    figures = [
        drawn(_norms_figure, values, right, alt="Norms of right and wrong answers"),
        drawn(_accuracy_figure, values, right, num_bins, alt="Accuracy by norm"),
    ]
    return prose(text) + block("two", parts=figures)


def accuracy_by_norm(
    norms: ArrayLike, correct: ArrayLike, *, num_bins: int = 10
) -> tuple[Floats, Floats]:
    """The share of right answers of groups of about equal size, by rising norm.

    The groups are the bins of classification.equal_mass.

    Args:
        norms: (N,).
        correct: (N,) booleans.
        num_bins: how many groups; K = min(N, num_bins).

    Returns:
        (K,) mean norms and (K,) shares.

    >>> accuracy_by_norm([1.0, 1.0, 2.0, 4.0], [False, True, True, True], num_bins=2)
    (array([1., 3.]), array([0.5, 1. ]))
    """
    answers = np.asarray(correct, dtype=np.float64)
    _, mean, share = equal_mass(np.asarray(norms, dtype=np.float64), answers, num_bins)
    return mean, share


def _norms_figure(norms: Floats, right: Bools) -> Any:
    edges = histogram_edges(norms, 36)
    figure = plot(
        "Norm",
        "Answers of a kind (%)",
        height=280,
        tips={"answers": "$name", "norms": "@left to @right", "number": "@number{0,0}"},
    )
    figure.y_range.start = 0
    histogram(figure, edges, {"wrong": norms[~right], "right": norms[right]})
    return figure


def _accuracy_figure(norms: Floats, right: Bools, num_bins: int) -> Any:
    figure = plot(
        "Norm", "Right answers (%)", height=280, tips={"norm": "@x{0.000}", "right (%)": "@y{0.0}"}
    )
    mean, share = accuracy_by_norm(norms, right, num_bins=num_bins)
    line(figure, 2, "of about this norm", dots=6, x=mean, y=100 * share)
    level(figure, 100 * float(right.mean()), GREY, "dashed")
    return figure


_NUM_KEPT = 200


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
    figure = plot(
        "Trials rejected, lowest norms first (%)",
        "EER of the rest (%)",
        height=300,
        tips={"system": "$name", "rejected (%)": "@x{0.0}", "EER of the rest (%)": "@y{0.00}"},
    )
    figure.y_range.start = 0
    for i, (name, curve) in enumerate(curves.items()):
        shown = np.isfinite(curve.values)
        x, y = 100 * curve.rejected[shown], 100 * curve.values[shown]
        line(figure, i, name, label=shortened(name), dots=5, x=x, y=y)
        level(figure, 100 * float(curve.values[0]), COLOURS[i % len(COLOURS)])
    legend(figure)
    return figure


def coverage_figure(curves: Mapping[str, RiskCoverage]) -> Any:
    """The risk of the answers that are kept against the share of them.

    The dotted lines stand for leaving answers out by chance.

    Returns:
        A Bokeh figure.
    """
    figure = plot(
        "Answers kept, highest quality first (%)",
        "Wrong among the kept (%)",
        height=300,
        tips={"of": "$name", "kept (%)": "@x{0.0}", "wrong among the kept (%)": "@y{0.00}"},
    )
    figure.y_range.start = 0
    for i, (name, curve) in enumerate(curves.items()):
        # At low coverage a single answer moves the curve, and a page needs no more points.
        shown = np.unique(
            np.searchsorted(curve.coverage, np.linspace(0.01, 1, _NUM_KEPT)).clip(
                max=curve.coverage.size - 1
            )
        )
        x, y = 100 * curve.coverage[shown], 100 * curve.risk[shown]
        line(figure, i, name, label=shortened(name), x=x, y=y)
        level(figure, 100 * float(curve.risk[-1]), COLOURS[i % len(COLOURS)])
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
        height=SQUARE,
        width=SQUARE,
        tips={"confidence (%)": "@x{0.0}", "right (%)": "@y{0.0}"},
        x_range=(low, 100.5),
        y_range=(low, 100.5),
    )
    diagonal(figure)
    line(figure, 0, "confidence", dots=6, x=100 * mean, y=100 * share)
    return figure
