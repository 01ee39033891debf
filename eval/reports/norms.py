"""Blocks of a report that are made of the norms of embeddings: grids of the lowest and highest
norms, norms of right and wrong answers.

Each function turns data into HTML for eval.reports.page.document. What it shows is bounded,
whatever the number of items. The norm as a measure of quality: vMF paper (Figs 1, 3 and Table 1),
nivMF paper (Figs 6, 9, 10).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from eval.classification import auroc, equal_mass
from eval.errors import LikenessError
from eval.reports.blocks import block, prose
from eval.reports.drawing import COLOURS, GREY, columns, drawn, plot, style_of
from eval.reports.media import Media
from eval.reports.plots import histogram, histogram_edges
from eval.types import Bools, Floats

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

    Raises:
        LikenessError: the shapes differ, there are no items, or a norm is NaN or infinite.
    """
    values = _finite("norms", norms, len(ids))
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

    Raises:
        LikenessError: the shapes differ, there are no items, a norm is NaN or infinite, or
            `correct` is no array of booleans.
    """
    right = np.asarray(correct)
    values = _finite("norms", norms, right.size)
    if right.dtype.kind not in "biu" or not np.isin(right, (0, 1)).all():
        raise LikenessError(
            f"correct: {right.dtype} of shape {right.shape}; give one boolean for each of the "
            f"{values.size} norms"
        )
    right = right.astype(np.bool_)
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
    values = _finite("norms", norms, np.size(correct))
    _, mean, share = equal_mass(values, np.asarray(correct, dtype=np.float64), num_bins)
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
    from bokeh.models import Span

    figure = plot(
        "Norm", "Right answers (%)", height=280, tips={"norm": "@x{0.000}", "right (%)": "@y{0.0}"}
    )
    mean, share = accuracy_by_norm(norms, right, num_bins=num_bins)
    source = columns(x=mean, y=100 * share)
    figure.line("x", "y", source=source, name="of about this norm", **style_of(2))
    figure.scatter("x", "y", source=source, size=6, color=COLOURS[2], name="of about this norm")
    everything = 100 * float(right.mean())
    figure.add_layout(
        Span(location=everything, dimension="width", line_color=GREY, line_dash="dashed")
    )
    return figure


def _finite(name: str, values: ArrayLike, size: int) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    bad = np.count_nonzero(~np.isfinite(numbers))
    if numbers.shape != (size,) or not size or bad:
        raise LikenessError(
            f"{name}: expected ({size},) finite numbers, at least 1, but {bad} of shape "
            f"{numbers.shape} are NaN or infinite"
        )
    return numbers
