"""The map of embeddings: a plane of a report to explore.

What is shown is bounded, whatever the number of items. A click on a point of the map, or its name
in the field above it, tells what it is, its neighbours and its worst trials (templates/page.js).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray

from eval.reports.blocks import block, prose
from eval.reports.drawing import columns, drawn, legend, plot
from eval.reports.points import DISC, NUM_NAMED, bare, chosen, looks, unit
from eval.types import Embeddings, Floats, Scores, Trials

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
    seed: int = 0,
) -> Markup:
    """A plane map of unit embeddings, with the classes in colours and shapes.

    It is PCA at first; t-SNE (van der Maaten & Hinton 2008, scikit-learn) can be chosen, and UMAP
    (McInnes et al. 2018) where umap-learn is installed.

    Args:
        embeddings: N of them.
        labels: id -> class; None if unknown.
        trials: of which those with the worst scores are told of each point.
        num_points: items in all, as evenly over the classes as they allow.
        num_classes: classes, drawn at random; those of a single item only where there is room.
        seed: of the draw.

    Returns:
        HTML.
    """
    rows, classes = chosen(embeddings.ids, labels, num_points, num_classes, seed)
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
    planes = {name: make(matrix, seed) for name, make in _projections().items()}
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
    told = "its neighbours and its worst trials" if trials else "and its neighbours"
    return block("explored", figure=figure, points=points, names=list(planes), told=told)


def _map_figure(
    points: Floats, ids: Sequence[str], classes: Sequence[str], norms: ArrayLike
) -> Any:
    from bokeh.models import TapTool

    tips = {"item": "@id", "norm": "@norm{0.000}"} | ({"class": "@label"} if any(classes) else {})
    figure = plot("", "", height=480, width=640, tips=tips)
    figure.add_tools(TapTool())
    names = sorted(set(classes))
    look = looks(names)
    source = columns(
        x=points[:, 0],
        y=points[:, 1],
        id=list(ids),
        label=list(classes),
        norm=np.asarray(norms),
        colour=[look[name][0] for name in classes],
        marker=[look[name][1] for name in classes],
    )
    source.tags = [{"map": True}]
    named = 1 < len(names) <= NUM_NAMED
    figure.scatter(
        "x",
        "y",
        source=source,
        size=7,
        color="colour",
        marker="marker",
        alpha=DISC,
        nonselection_alpha=0.18,
        name="items",
        **({"legend_group": "label"} if named else {}),
    )
    bare(figure)
    if named:
        legend(figure, columns=4)
        figure.legend.click_policy = "none"
    return figure


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
    directions = unit(matrix)
    found = []
    for start in range(0, len(directions), 1024):
        block_of = directions[start : start + 1024] @ directions.T
        block_of[np.arange(len(block_of)), start + np.arange(len(block_of))] = -np.inf
        count = min(num, len(directions) - 1)
        found.append(np.argsort(-block_of, axis=1, kind="stable")[:, :count])
    return np.concatenate(found)


def _worst(ids: Sequence[str], evaluated: Evaluated) -> dict[str, list[Any]]:
    """Of each item the target trials of lowest and the nontarget trials of highest score.

    Returns:
        Number of the item -> [other id, score, whether it is a target trial], the worst first of
        each kind.
    """
    trials, scores = evaluated
    number = {id: i for i, id in enumerate(ids)}
    worst: dict[str, list[Any]] = {}
    sides = (
        (trials.enrol_ids, trials.enrol, trials.probe_ids, trials.probe),
        (trials.probe_ids, trials.probe, trials.enrol_ids, trials.enrol),
    )
    for of_kind, sign in ((scores.target, 1), (~scores.target, -1)):
        place = np.flatnonzero(of_kind)
        place = place[np.argsort(sign * scores.values[place], kind="stable")]
        kept: dict[int, list[Any]] = {}
        for own_ids, own, other_ids, other in sides:
            numbers = np.array([number.get(id, -1) for id in own_ids], dtype=np.int64)
            of_trial = numbers[own[place]]
            order = np.argsort(of_trial, kind="stable")
            starts = np.searchsorted(of_trial[order], np.arange(len(ids)))
            ends = np.searchsorted(of_trial[order], np.arange(len(ids)), side="right")
            for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
                for k in place[order[start : min(end, start + _NUM_WORST)]].tolist():
                    entry = [other_ids[other[k]], round(float(scores.values[k]), 4)]
                    kept.setdefault(i, []).append([*entry, bool(scores.target[k])])
        for i, entries in kept.items():
            entries.sort(key=lambda entry: sign * entry[1])
            distinct = {entry[0]: entry for entry in reversed(entries)}
            few = sorted(distinct.values(), key=lambda entry: sign * entry[1])[:_NUM_WORST]
            worst.setdefault(str(i), []).extend(few)
    return worst


def _projections() -> dict[str, Callable[[ArrayLike, int], Floats]]:
    """Name -> how the plane is made, of what is installed."""
    made = {"PCA": principal_plane, "t-SNE": lambda matrix, seed: plane(matrix, seed=seed)}
    try:
        import umap  # noqa: F401
    except ImportError:
        return made
    return made | {"UMAP": _umap_plane}


def principal_plane(matrix: ArrayLike, seed: int = 0) -> Floats:
    """The first two principal components of the directions of embeddings.

    Args:
        matrix: (N, D).
        seed: not used; the result is exact.

    Returns:
        (N, 2).
    """
    directions = unit(matrix)
    centred = directions - directions.mean(axis=0)
    if len(centred) < centred.shape[1]:  # such as pixels: the smaller of the two products
        squares, sides = np.linalg.eigh(centred @ centred.T)
        found = (sides * np.sqrt(np.maximum(squares, 0)))[:, ::-1][:, :2]
    else:
        _, axes = np.linalg.eigh(centred.T @ centred)
        found = centred @ axes[:, ::-1][:, :2]
    return np.column_stack([found, np.zeros((len(found), 2 - found.shape[1]))])


def _umap_plane(matrix: ArrayLike, seed: int) -> Floats:
    from umap import UMAP

    made = UMAP(metric="cosine", random_state=seed, n_jobs=1).fit_transform(unit(matrix))
    return np.asarray(made, dtype=np.float64)


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

    directions = unit(matrix)
    if directions.shape[1] < 2 or np.ptp(directions, axis=0).max() < 1e-9:  # a line, or one point
        return np.column_stack([directions[:, 0], np.zeros(len(directions))])
    reduced = PCA(
        min(50, len(directions) - 1, directions.shape[1]), random_state=seed
    ).fit_transform(directions)
    points = TSNE(
        2, init="pca", perplexity=min(30.0, len(reduced) / 4), random_state=seed
    ).fit_transform(reduced)
    return np.asarray(points, dtype=np.float64)
