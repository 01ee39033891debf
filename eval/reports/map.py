"""The map of a report: a plane of embeddings to explore.

What is shown is bounded, whatever the number of items. A click on a point of the plane, or its name
in the field above it, shows what it is, its neighbours and its worst trials (templates/map.js).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from eval.reports.figures import COLOURS, MARKERS, columns, drawn, legend, plot
from eval.reports.page import block, prose
from eval.types import Embeddings, Floats, Scores, Trials

_NUM_NAMED = 12  # classes that a legend can hold
_DISC = 0.9  # opacity of a point
_NUM_NEIGHBOURS = 5
_NUM_WORST = 2  # trials of each kind of a point

Evaluated = tuple[Trials, Scores]


def embedding_map(
    embeddings: Embeddings,
    labels: Mapping[str, str] | None = None,
    *,
    trials: Evaluated | None = None,
    num_points: int = 2000,
    num_classes: int = 500,
) -> Markup:
    """A plane map of unit embeddings, with the classes in colours and shapes.

    It is PCA at first; t-SNE (van der Maaten & Hinton 2008, scikit-learn) can be chosen, and UMAP
    (McInnes et al. 2018) where umap-learn is installed.

    Args:
        embeddings: N of them.
        labels: id -> class; None if unknown.
        trials: of which those with the worst scores are shown of each point.
        num_points: items in all, as evenly over the classes as they allow.
        num_classes: classes, drawn at random; those of a single item only where there is room.

    Returns:
        HTML.
    """
    rows, classes = _chosen(embeddings.ids, labels, num_points, num_classes)
    if rows.size < 8:
        return prose(f"{rows.size} items: too few for a map.", soft=True)
    text = f"{rows.size:,} of {len(embeddings.ids):,} items"
    if labels:
        num_labels = len({labels[id] for id in embeddings.ids if id in labels})
        text += f", from {len(set(classes)):,} of {num_labels:,} classes"
    text += (
        "; on such a map neighbours are near, but gaps between groups and their sizes mean nothing."
    )
    matrix, ids = embeddings.matrix[rows], [embeddings.ids[i] for i in rows]
    planes = {name: make(matrix) for name, make in _projections().items()}
    first = next(iter(planes.values()))
    norms = embeddings.norms[rows]
    figure = drawn(
        _map_figure, first, ids, classes, norms, alt="Map of the embeddings", caption=text
    )
    points = {
        "planes": {name: points.round(4).T.tolist() for name, points in planes.items()},
        "ids": ids,
        "classes": classes,
        "norms": [f"{norm:.4g}" for norm in norms],
        "neighbours": neighbours(matrix).tolist(),
        "worst": _worst(ids, trials) if trials else {},
    }
    return block(
        "explored", figure=figure, points=points, names=list(planes), has_trials=bool(trials)
    )


def _map_figure(
    points: Floats, ids: Sequence[str], classes: Sequence[str], norms: ArrayLike
) -> Any:
    from bokeh.models import TapTool

    tips = {"item": "@id", "norm": "@norm{0.000}"} | ({"class": "@label"} if any(classes) else {})
    figure = plot("", "", height=480, width=640, tips=tips)
    figure.add_tools(TapTool())
    source = _scatter(figure, points, classes, id=list(ids), norm=np.asarray(norms))
    source.tags = [{"map": True}]
    return figure


def _scatter(
    figure: Any,
    points: Floats,
    classes: Sequence[str],
    **more: Any,
) -> Any:
    """Draw points in the colours and shapes of their classes, without axes and grid, whose numbers
    mean nothing on a map.

    Args:
        figure: a Bokeh figure.
        points: (N, 2).
        classes: N of them.
        more: columns that hovering shows.

    Returns:
        The Bokeh ColumnDataSource of the points.
    """
    names = sorted(set(classes))
    look = _looks(names)
    named = 1 < len(names) <= _NUM_NAMED
    source = columns(
        x=points[:, 0],
        y=points[:, 1],
        label=list(classes),
        colour=[look[name][0] for name in classes],
        marker=[look[name][1] for name in classes],
        **more,
    )
    figure.scatter(
        "x",
        "y",
        source=source,
        size=7,
        color="colour",
        marker="marker",
        alpha=_DISC,
        nonselection_alpha=0.18,
        name="items",
        **({"legend_group": "label"} if named else {}),
    )
    figure.axis.visible = False
    figure.grid.visible = False
    if named:
        legend(figure, columns=4)
        figure.legend.click_policy = "none"
    return source


def neighbours(matrix: ArrayLike, num: int = _NUM_NEIGHBOURS) -> NDArray[np.int64]:
    """The nearest items of each by cosine similarity, itself left out.

    Args:
        matrix: (N, D).
        num: how many, at most N - 1.

    Returns:
        (N, num) row numbers, the nearest first.

    >>> neighbours([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1]], 1).tolist()
    [[2], [2], [0]]
    """
    directions = _unit(matrix)
    similarities = directions @ directions.T
    np.fill_diagonal(similarities, -np.inf)
    count = min(num, len(directions) - 1)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :count]


def _worst(ids: Sequence[str], evaluated: Evaluated) -> dict[str, list[Any]]:
    """Of each item the target trials of lowest and the nontarget trials of highest score.

    Returns:
        Number of the item -> [other id, score, whether it is a target trial], the worst first of
        each kind.
    """
    trials, scores = evaluated
    number = {id: i for i, id in enumerate(ids)}
    shown = [
        np.array([number.get(id, -1) for id in side], dtype=np.int64)
        for side in (trials.enrol_ids, trials.probe_ids)
    ]
    worst: dict[str, list[Any]] = {}
    for of_kind, sign in ((scores.target, 1), (~scores.target, -1)):
        place = np.flatnonzero(of_kind)
        place = place[np.argsort(sign * scores.values[place], kind="stable")]
        # Each trial twice, as one of its enrolled item and one of its probe.
        own = np.stack([shown[0][trials.enrol[place]], shown[1][trials.probe[place]]], axis=1)
        order = np.argsort(own.ravel(), kind="stable")
        starts = np.searchsorted(own.ravel()[order], np.arange(len(ids) + 1))
        for i, (start, end) in enumerate(pairwise(starts.tolist())):
            entries: dict[str, list[Any]] = {}
            for k in order[start : min(end, start + 2 * _NUM_WORST)].tolist():
                trial = place[k // 2]
                enrolled, probe = trials.enrol[trial], trials.probe[trial]
                other = trials.enrol_ids[enrolled] if k % 2 else trials.probe_ids[probe]
                score = round(float(scores.values[trial]), 4)
                entries.setdefault(other, [other, score, bool(scores.target[trial])])
            if entries:
                worst.setdefault(str(i), []).extend(list(entries.values())[:_NUM_WORST])
    return worst


def _projections() -> Mapping[str, Callable[[ArrayLike], Floats]]:
    """Name -> how the plane is made, of what is installed."""
    made = {"PCA": principal_plane, "t-SNE": plane}
    try:
        from umap import UMAP
    except ImportError:
        return made
    umap = UMAP(metric="cosine", random_state=0, n_jobs=1)
    return made | {
        "UMAP": lambda matrix: np.asarray(umap.fit_transform(_unit(matrix)), dtype=np.float64)
    }


def principal_plane(matrix: ArrayLike) -> Floats:
    """The first two principal components of the directions of embeddings.

    Args:
        matrix: (N, D).

    Returns:
        (N, 2).
    """
    from sklearn.decomposition import PCA

    directions = _unit(matrix)
    with np.errstate(invalid="ignore"):  # where no item differs from another
        points = PCA(min(2, *directions.shape), random_state=0).fit_transform(directions)
    return np.column_stack([points, np.zeros((len(points), 2 - points.shape[1]))])


def plane(matrix: ArrayLike) -> Floats:
    """A map of embeddings by their directions.

    It is made by PCA to min(50, N - 1, D) dimensions, then by t-SNE of perplexity min(30, N / 4).

    Args:
        matrix: (N, D), N >= 8.

    Returns:
        (N, 2).
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    directions = _unit(matrix)
    if directions.shape[1] < 2 or np.ptp(directions, axis=0).max() < 1e-9:  # a line, or one point
        return np.column_stack([directions[:, 0], np.zeros(len(directions))])
    reduced = PCA(min(50, len(directions) - 1, directions.shape[1]), random_state=0).fit_transform(
        directions
    )
    points = TSNE(
        2, init="pca", perplexity=min(30.0, len(reduced) / 4), random_state=0
    ).fit_transform(reduced)
    return np.asarray(points, dtype=np.float64)


def _chosen(
    ids: Sequence[str],
    labels: Mapping[str, str] | None,
    num_points: int,
    num_classes: int,
) -> tuple[NDArray[np.int64], list[str]]:
    """Rows of the items to show, and their classes ("" without labels).

    Args:
        ids: of all items.
        labels: id -> class; items without one are left out. None where no classes are known.
        num_points: items in all, as evenly over the classes as they allow.
        num_classes: classes at most, drawn at random; those of a single item come last.
    """
    rng = np.random.default_rng(0)
    if labels is None:
        return np.sort(rng.permutation(len(ids))[:num_points]), [""] * min(len(ids), num_points)
    rows_of: dict[str, list[int]] = {}
    for i, id in enumerate(ids):
        if id in labels:
            rows_of.setdefault(labels[id], []).append(i)
    names = list(rows_of)
    drawn = rng.permutation(len(names))
    alone = np.array([len(rows_of[names[i]]) == 1 for i in drawn], dtype=np.bool_)
    drawn = drawn[np.argsort(alone, kind="stable")]  # those of one item only where there is room
    kept = [names[i] for i in np.sort(drawn[:num_classes])]
    # As many of each as can be: what small classes leave over goes to the others.
    sizes = np.array([len(rows_of[name]) for name in kept], dtype=np.int64)
    share = 1
    while np.minimum(sizes, share + 1).sum() <= num_points and share < sizes.max(initial=0):
        share += 1
    rows = np.sort(
        np.array(
            [i for name in kept for i in rng.permutation(rows_of[name])[:share]], dtype=np.int64
        )
    )
    return rows, [labels[ids[i]] for i in rows]


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each class: neighbours in the order differ in both."""
    number = len(COLOURS)
    return {
        name: (COLOURS[i % number], MARKERS[(i + i // number) % len(MARKERS)])
        for i, name in enumerate(names)
    }


def _unit(matrix: ArrayLike) -> Floats:
    """The rows at length 1; those of length 0 stay as they are."""
    values = np.asarray(matrix, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.maximum(lengths, 1e-12))
