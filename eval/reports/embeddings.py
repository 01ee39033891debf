"""Blocks of a report that are made of embeddings and their norms: grids of the lowest and highest
norms, norms of right and wrong answers, maps of the space.

Each function turns data into HTML for eval.reports.page.document. What it shows is bounded,
whatever the number of items. The norm as a measure of quality: vMF paper (Figs 1, 3 and Table 1),
nivMF paper (Figs 6, 9, 10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from eval.classification import auroc, equal_mass
from eval.reports.blocks import block, prose
from eval.reports.drawing import COLOURS, GREY, drawn, legend, plot
from eval.reports.media import Media
from eval.reports.plots import histogram_edges
from eval.types import Bools, Embeddings, Floats

_NUM_NAMED = 12  # classes that a legend can hold
_NUM_ROWS = 8  # players or names, which take a line each
_DISC = 0.9  # opacity of a point


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
        ValueError: the shapes differ, there are no items, or a norm is NaN or infinite.
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
            images &= shown.startswith("<img")
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
        ValueError: the shapes differ, there are no items, a norm is NaN or infinite, or `correct`
            is no array of booleans.
    """
    right = np.asarray(correct)
    values = _finite("norms", norms, right.size)
    if right.dtype.kind not in "biu" or not np.isin(right, (0, 1)).all():
        raise ValueError(
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
    figure, axes = plot(4.5, 3.0)
    edges = histogram_edges(norms, 36)
    for label, values, colour in (
        ("wrong", norms[~right], COLOURS[1]),
        ("right", norms[right], COLOURS[0]),
    ):
        share = 100 * np.histogram(values, edges)[0] / values.size
        axes.stairs(share, edges, fill=True, color=colour, alpha=0.28)
        axes.stairs(share, edges, color=colour, linewidth=1.3, label=label)
    axes.set(xlabel="Norm", ylabel="Answers of a kind (%)", ylim=(0, None))
    legend(axes, columns=2)
    return figure


def _accuracy_figure(norms: Floats, right: Bools, num_bins: int) -> Any:
    figure, axes = plot(4.5, 3.0)
    mean, share = accuracy_by_norm(norms, right, num_bins=num_bins)
    axes.axhline(100 * right.mean(), color=GREY, linewidth=0.9, linestyle="--", label="all answers")
    axes.plot(
        mean,
        100 * share,
        "o-",
        color=COLOURS[2],
        markersize=4,
        linewidth=1.4,
        label="answers of about this norm",
    )
    axes.set(xlabel="Norm", ylabel="Right answers (%)")
    legend(axes, columns=2)
    return figure


# ---------------------------------------------------------------- the space


def embedding_map(
    embeddings: Embeddings,
    labels: Mapping[str, str] | None = None,
    *,
    num_points: int = 1000,
    num_classes: int = 20,
    seed: int = 0,
) -> Markup:
    """A plane map of unit embeddings, with the classes in colours.

    It is made by PCA to 50 dimensions at most, then by t-SNE (van der Maaten & Hinton 2008,
    scikit-learn).

    Args:
        embeddings: N of them.
        labels: id -> class; None if unknown.
        num_points: items in all, equally many of each class.
        num_classes: classes of two items or more, drawn at random.
        seed: of the draw.

    Returns:
        HTML.
    """
    rows, classes = _chosen(embeddings.ids, labels, num_points, num_classes, seed)
    if rows.size < 8:
        return prose(f"{rows.size} items: too few for a map.", soft=True)
    text = f"{rows.size:,} of {len(embeddings.ids):,} items"
    if labels:
        num_labels = len({labels[id] for id in embeddings.ids if id in labels})
        text += f", from {len(set(classes))} of {num_labels:,} classes"
    text += (
        "; on such a map neighbours are near, but gaps between groups and their sizes mean nothing."
    )
    return drawn(
        _map_figure, embeddings, rows, classes, seed, alt="Map of the embeddings", caption=text
    )


def _map_figure(
    embeddings: Embeddings, rows: NDArray[np.int64], classes: Sequence[str], seed: int
) -> Any:
    figure, axes = plot(5.0, 4.4)
    _scatter(axes, plane(embeddings.matrix[rows], seed=seed), classes)
    return figure


def plane(matrix: ArrayLike, *, seed: int = 0) -> Floats:
    """A map of embeddings by their directions.

    It is made by PCA to min(50, N - 1, D) dimensions, then by t-SNE of perplexity min(30, N / 4).

    Args:
        matrix: (N, D), N >= 8.
        seed: of both.

    Returns:
        (N, 2).
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    directions = _unit(matrix)
    if directions.shape[1] < 2 or np.ptp(directions, axis=0).max() < 1e-9:  # a line, or one point
        return np.column_stack([directions[:, 0], np.zeros(len(directions))])
    reduced = PCA(
        min(50, len(directions) - 1, directions.shape[1]), random_state=seed
    ).fit_transform(directions)
    points = TSNE(
        2, init="pca", perplexity=min(30.0, len(reduced) / 4), random_state=seed
    ).fit_transform(reduced)
    return np.asarray(points, dtype=np.float64)


def space_3d(
    embeddings: Embeddings,
    labels: Mapping[str, str] | None = None,
    *,
    num_points: int = 2000,
    seed: int = 0,
) -> Markup:
    """Embeddings of 3 dimensions as they are and on the unit sphere (vMF paper, Fig. 4).

    They are seen from (1, 1, 1); points behind the sphere are pale.

    Args:
        embeddings: of 3 dimensions.
        labels: id -> class; None if unknown.
        num_points: items in all, drawn as for `embedding_map`.
        seed: of the draw.

    Returns:
        HTML.

    Raises:
        ValueError: the embeddings have not 3 dimensions.
    """
    if embeddings.matrix.shape[1] != 3:
        raise ValueError(
            f"space_3d: embeddings of {embeddings.matrix.shape[1]} dimensions; this plot is of 3, "
            "embedding_map is of any number"
        )
    rows, classes = _chosen(embeddings.ids, labels, num_points, num_points, seed)
    matrix = embeddings.matrix[rows]
    raw = drawn(
        _space_figure,
        matrix,
        classes,
        alt="Embeddings in three dimensions",
        caption=f"{rows.size:,} of {len(embeddings.ids):,} items, as they are; the cross is the "
        "origin.",
    )
    sphere = drawn(
        _sphere_figure,
        matrix,
        classes,
        alt="Directions of the embeddings",
        caption="Their directions; pale points lie on the far side.",
    )
    return block("two", parts=[raw, sphere])


def project(points: ArrayLike) -> tuple[Floats, Floats]:
    """The orthographic projection as seen from (1, 1, 1), with the third axis upwards.

    Args:
        points: (N, 3).

    Returns:
        (N, 2) places on the plane, and (N,) nearness to the eye.

    >>> flat, near = project([[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    >>> flat.round(3).tolist(), near.round(3).tolist()
    ([[0.0, 0.816], [0.0, 0.0]], [0.577, 1.732])
    """
    values = np.asarray(points, dtype=np.float64)
    right, up, eye = (
        np.array([-1, 1, 0]) / np.sqrt(2),
        np.array([-1, -1, 2]) / np.sqrt(6),
        np.ones(3) / np.sqrt(3),
    )
    return values @ np.stack([right, up], axis=1), values @ eye


def _space_figure(matrix: Floats, classes: Sequence[str]) -> Any:
    figure, axes = plot(4.4, 4.4)
    _scatter(axes, project(matrix)[0], classes)
    axes.plot([0], [0], "+", color=GREY, markersize=10)
    return figure


def _sphere_figure(matrix: Floats, classes: Sequence[str]) -> Any:
    from matplotlib.patches import Circle

    figure, axes = plot(4.4, 4.4)
    flat, near = project(_unit(matrix))
    axes.add_patch(Circle((0, 0), 1, fill=False, color=GREY, linewidth=0.9))
    _scatter(axes, flat, classes, np.where(near >= 0, _DISC, 0.15), named=False)
    axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05))
    return figure


def _scatter(
    axes: Any, points: Floats, classes: Sequence[str], opacity: Any = _DISC, *, named: bool = True
) -> None:
    names = sorted(set(classes))
    number = {name: i for i, name in enumerate(names)}
    palette = _palette(len(names))
    opacity = np.broadcast_to(opacity, len(points))
    for name in names:
        mine = np.array([number[name] == number[label] for label in classes])
        axes.scatter(
            *points[mine].T,
            s=11,
            color=palette[number[name]],
            alpha=opacity[mine],
            linewidths=0,
            label=name,
        )
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[["left", "bottom"]].set_visible(False)
    if named and 1 < len(names) <= _NUM_NAMED:
        legend(axes, columns=4, size=8)


def _palette(num: int) -> list[Any]:
    """Colours of middle lightness.

    They lie evenly around the circle where the few of eval.reports.drawing do not suffice.
    """
    from colorsys import hls_to_rgb

    return (
        list(COLOURS[:num])
        if num < len(COLOURS)
        else [hls_to_rgb(i / num, (0.45, 0.6)[i % 2], 0.55) for i in range(num)]
    )


def _chosen(
    ids: Sequence[str],
    labels: Mapping[str, str] | None,
    num_points: int,
    num_classes: int,
    seed: int,
) -> tuple[NDArray[np.int64], list[str]]:
    """Rows of the items to show, and their classes ("" without labels)."""
    rng = np.random.default_rng(seed)
    if labels is None:
        return np.sort(rng.permutation(len(ids))[:num_points]), [""] * min(len(ids), num_points)
    rows_of: dict[str, list[int]] = {}
    for i, id in enumerate(ids):
        if id in labels:
            rows_of.setdefault(labels[id], []).append(i)
    several = [name for name, rows in rows_of.items() if len(rows) > 1] or list(rows_of)
    kept = [several[i] for i in np.sort(rng.permutation(len(several))[:num_classes])]
    share = max(1, num_points // max(len(kept), 1))
    rows = np.sort(
        np.array(
            [i for name in kept for i in rng.permutation(rows_of[name])[:share]], dtype=np.int64
        )
    )
    return rows, [labels[ids[i]] for i in rows]


def _unit(matrix: ArrayLike) -> Floats:
    values = np.asarray(matrix, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit: Floats = values / np.maximum(lengths, 1e-12)
    return unit


def _finite(name: str, values: ArrayLike, size: int) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    bad = np.count_nonzero(~np.isfinite(numbers))
    if numbers.shape != (size,) or not size or bad:
        raise ValueError(
            f"{name}: expected ({size},) finite numbers, at least 1, but {bad} of shape "
            f"{numbers.shape} are NaN or infinite"
        )
    return numbers
