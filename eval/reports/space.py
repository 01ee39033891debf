"""Embeddings of three dimensions as figures of a report: as they are, and on the unit sphere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike

from eval.errors import LikenessError
from eval.reports.blocks import block
from eval.reports.drawing import GREY, columns, drawn, legend, plot, shortened
from eval.reports.points import DISC, NUM_NAMED, bare, chosen, looks, unit
from eval.types import Embeddings, Floats


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
        LikenessError: the embeddings have not 3 dimensions.
    """
    if embeddings.matrix.shape[1] != 3:
        raise LikenessError(
            f"space_3d: embeddings of {embeddings.matrix.shape[1]} dimensions; this plot is of 3, "
            "embedding_map is of any number"
        )
    rows, classes = chosen(embeddings.ids, labels, num_points, num_points, seed)
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
    points, _ = project(matrix)
    figure = _scatter(points, classes, np.full(len(points), DISC), named=True)
    figure.scatter([0], [0], marker="cross", size=14, color=GREY, name="origin")
    return figure


def _sphere_figure(matrix: Floats, classes: Sequence[str]) -> Any:
    flat, near = project(unit(matrix))
    figure = _scatter(flat, classes, np.where(near >= 0, DISC, 0.15), named=False)
    figure.circle([0], [0], radius=1, fill_color=None, line_color=GREY, name="sphere")
    return figure


def _scatter(points: Floats, classes: Sequence[str], opacity: Floats, *, named: bool) -> Any:
    from bokeh.models import DataRange1d

    figure = plot(
        "",
        "",
        height=440,
        width=440,
        tips={"class": "$name"},
        match_aspect=True,
        x_range=DataRange1d(),
        y_range=DataRange1d(),
    )
    names = sorted(set(classes))
    look = looks(names)
    named &= 1 < len(names) <= NUM_NAMED
    for name in names:
        mine = np.array([label == name for label in classes])
        source = columns(x=points[mine, 0], y=points[mine, 1], opacity=opacity[mine])
        colour, marker = look[name]
        figure.scatter(
            "x",
            "y",
            source=source,
            size=6,
            fill_color=colour,
            fill_alpha="opacity",
            line_color=None,
            marker=marker,
            name=name,
            **({"legend_label": shortened(name)} if named else {}),
        )
    bare(figure)
    if named:
        legend(figure, columns=4)
    return figure
