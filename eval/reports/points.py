"""Which items a map shows, and how their classes look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.reports.drawing import COLOURS, MARKERS
from eval.types import Floats

NUM_NAMED = 12  # classes that a legend can hold
DISC = 0.9  # opacity of a point


def chosen(
    ids: Sequence[str],
    labels: Mapping[str, str] | None,
    num_points: int,
    num_classes: int,
    seed: int,
) -> tuple[NDArray[np.int64], list[str]]:
    """Rows of the items to show, and their classes ("" without labels).

    Args:
        ids: of all items.
        labels: id -> class; items without one are left out. None where no classes are known.
        num_points: items in all, as evenly over the classes as they allow.
        num_classes: classes at most, drawn at random; those of a single item come last.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
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


def looks(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and shape of each class: neighbours in the order differ in both."""
    colours = _palette(min(len(names), 3 * len(COLOURS)))
    return {
        name: (colours[i % len(colours)], MARKERS[i % len(MARKERS)]) for i, name in enumerate(names)
    }


def _palette(num: int) -> list[str]:
    """Colours of middle lightness.

    They lie evenly around the circle where the few of eval.reports.drawing do not suffice.
    """
    from colorsys import hls_to_rgb

    if num < len(COLOURS):
        return list(COLOURS[: max(num, 1)])
    shades = [hls_to_rgb(i / num, (0.45, 0.6)[i % 2], 0.55) for i in range(num)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in shade) for shade in shades]


def bare(figure: Any) -> None:
    """Leave out axes and grid, whose numbers mean nothing on a map."""
    figure.axis.visible = False
    figure.grid.visible = False


def unit(matrix: ArrayLike) -> Floats:
    """The rows at length 1; those of length 0 stay as they are."""
    values = np.asarray(matrix, dtype=np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit: Floats = values / np.maximum(lengths, 1e-12)
    return unit
