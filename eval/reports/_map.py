"""The map of a report: a plane of embeddings to explore.

What is shown is bounded, whatever the number of items. A click on a point of the plane, or its name
in the field above it, shows what it is and its neighbours (templates/map.js).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.reports.figures import COLOURS, MARKERS, columns, drawn, legend, plot
from likeness.eval.reports.page import block, prose
from likeness.eval.types import Floats, counted, norms_of, unit_rows

_NUM_NAMED = 12  # classes that a legend can hold
_MOST_LETTERS = 14  # of a class in it
_DISC = 0.9  # opacity of a point
_NUM_NEIGHBOURS = 5


def embedding_map(
    embeddings: Embeddings, labels: Mapping[str, str] | None = None, *, num_points: int = 2000
) -> Markup:
    """A plane map of unit embeddings, with the classes in colours and shapes.

    It is made by t-SNE (van der Maaten & Hinton 2008, scikit-learn).

    Args:
        embeddings: N of them.
        labels: id -> class; None if unknown.
        num_points: items in all, drawn at random, of one class for each four of them at most.

    Returns:
        HTML.
    """
    rows, classes = _chosen(embeddings.ids, labels, num_points)
    if rows.size < 8:
        return prose(f"{counted(rows.size, 'item')}: too few for a map.", soft=True)
    text = f"{rows.size:,} of {len(embeddings.ids):,} items"
    if labels:
        num_labels = len({labels[id] for id in embeddings.ids if id in labels})
        text += f", from {len(set(classes)):,} of {num_labels:,} classes"
    text += "; on it neighbours are near, but gaps between groups and their sizes mean nothing."
    norms, ids = embeddings.norms[rows], [embeddings.ids[i] for i in rows]
    matrix = embeddings.matrix[rows].astype(np.float64)
    directions = unit_rows(matrix, norms_of(matrix))
    alt = "Map of the embeddings"
    figure = drawn(_map_figure, plane(directions), ids, classes, norms, alt=alt, caption=text)
    points = {
        "ids": ids,
        "classes": classes,
        "norms": [f"{norm:.4g}" for norm in norms],
        "neighbours": neighbours(directions).tolist(),
    }
    return block("explored", figure=figure, points=points)


def _map_figure(
    points: Floats, ids: Sequence[str], classes: Sequence[str], norms: ArrayLike
) -> Any:
    """Points in the colours and shapes of their classes, without axes and grid, whose numbers mean
    nothing on a map.
    """
    from bokeh.models import TapTool

    tips = {"item": "@id", "norm": "@norm{0.000}"} | ({"class": "@label"} if any(classes) else {})
    figure = plot("", "", height=480, width=640, tips=tips)
    figure.add_tools(TapTool())
    names = sorted(set(classes))
    look = _looks(names)
    short = {name: _shortened(name) for name in names}
    named = 1 < len(set(short.values())) == len(names) <= _NUM_NAMED
    x, y = points.T
    source = columns(x=x, y=y, id=list(ids), norm=np.asarray(norms), label=list(classes))
    source.add([look[name][0] for name in classes], "colour")
    source.add([look[name][1] for name in classes], "marker")
    source.add([short[name] for name in classes], "short")
    source.tags = [{"map": True}]
    look_of_points = {"size": 7, "color": "colour", "marker": "marker", "alpha": _DISC}
    if named:
        look_of_points["legend_group"] = "short"
    figure.scatter("x", "y", source=source, name="items", nonselection_alpha=0.18, **look_of_points)
    figure.axis.visible = False
    figure.grid.visible = False
    if named:
        # As many as a phone has room for.
        legend(figure, columns=min(4, 44 // (4 + max(map(len, short.values())))))
        figure.legend.click_policy = "none"
    return figure


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:5]}…{name[5 - _MOST_LETTERS :]}"


def neighbours(directions: Floats, num: int = _NUM_NEIGHBOURS) -> NDArray[np.int64]:
    """The nearest items of each by cosine similarity, itself left out.

    Args:
        directions: (N, D) of length 1.
        num: how many, at most N - 1.

    Returns:
        (N, num) row numbers, the nearest first.

    >>> neighbours(np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), 1).tolist()
    [[2], [2], [0]]
    """
    similarities = directions @ directions.T
    np.fill_diagonal(similarities, -np.inf)
    count = min(num, len(directions) - 1)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :count]


def plane(directions: Floats) -> Floats:
    """A map of embeddings by their directions.

    It is made by PCA to min(50, N - 1, D) dimensions, then by t-SNE of perplexity min(30, N / 4).

    Args:
        directions: (N, D) of length 1, N >= 8.

    Returns:
        (N, 2).
    """
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    size, dim = directions.shape
    if dim < 2 or np.ptp(directions, axis=0).max() < 1e-9:  # a line, or one point
        return np.column_stack([directions[:, 0], np.zeros(size)])
    reduced = PCA(min(50, size - 1, dim), random_state=0).fit_transform(directions)
    tsne = TSNE(2, init="pca", perplexity=min(30.0, size / 4), random_state=0)
    return np.asarray(tsne.fit_transform(reduced), dtype=np.float64)


def _chosen(
    ids: Sequence[str], labels: Mapping[str, str] | None, num_points: int
) -> tuple[NDArray[np.int64], list[str]]:
    """Rows of the items to show, and their classes ("" without labels).

    Args:
        ids: of all items.
        labels: id -> class; items without one are left out. None where no classes are known.
        num_points: items in all, drawn at random, of a quarter as many classes at most; those of a
            single item come last.
    """
    rng = np.random.default_rng(0)
    if labels is None:
        return np.sort(rng.permutation(len(ids))[:num_points]), [""] * min(len(ids), num_points)
    sizes = Counter(labels[id] for id in ids if id in labels)
    shuffled: list[str] = rng.permutation(sorted(sizes)).tolist()
    kept = set(sorted(shuffled, key=lambda name: sizes[name] == 1)[: num_points // 4])
    rows = rng.permutation([i for i, id in enumerate(ids) if labels.get(id) in kept])
    rows = np.sort(rows[:num_points]).astype(np.int64)
    return rows, [labels[ids[i]] for i in rows]


def _looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each class: neighbours in the order differ in both."""
    number = len(COLOURS)
    return {
        name: (COLOURS[i % number], MARKERS[(i + i // number) % len(MARKERS)])
        for i, name in enumerate(names)
    }
