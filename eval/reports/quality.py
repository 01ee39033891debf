"""The norm of an embedding as the quality of a trial: which sides have one, and error-versus-reject
curves, of which eval.reports.drawing.drawn makes a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from eval.calibration import Curve, by_side, error_versus_reject
from eval.reports.drawing import columns, legend, plot, shortened, style_of
from eval.types import Embeddings, Floats, Ints, Scores, Trials, name_first


def embedded_sides(
    trials: Trials, embeddings: Embeddings
) -> list[tuple[str, tuple[str, ...], Ints]]:
    """The sides of the trials whose ids have embeddings.

    These are both sides, or one where no id of the other has an embedding: it may name models of
    several items.

    Returns:
        The name, the ids and the (P,) indices of each side.

    Raises:
        KeyError: only some ids of a side, or none of both sides, have an embedding.
    """
    embedded, sides = set(embeddings.ids), []
    for name, ids, index in (
        ("enrolment", trials.enrol_ids, trials.enrol),
        ("probe", trials.probe_ids, trials.probe),
    ):
        missing = [id for id in ids if id not in embedded]
        if missing and len(missing) < len(ids):
            raise KeyError(
                f"{len(missing)} of {len(ids)} {name} ids of the trials have no embedding "
                f"({name_first(missing)}); give the file that was scored"
            )
        if not missing:
            sides.append((name, ids, index))
    if not sides:
        raise KeyError(
            f"none of the ids of the trials has an embedding ({name_first(trials.enrol_ids)}); "
            "give the file that was scored"
        )
    return sides


def trial_quality(trials: Trials, embeddings: Embeddings) -> tuple[Floats, str]:
    """The quality of each trial: the lower norm of its sides that have embeddings.

    Returns:
        (P,) norms, and in words what they are.

    Raises:
        KeyError: as embedded_sides.

    >>> e = Embeddings(("a", "b"), np.array([[3.0, 4.0], [0.0, 1.0]]))
    >>> trial_quality(Trials(("a", "b"), ("b",), [0, 1], [0, 0]), e)
    (array([1., 1.]), 'the lower norm of the two sides')
    """
    sides = [
        (name, embeddings.norms[embeddings.rows(ids)], index)
        for name, ids, index in embedded_sides(trials, embeddings)
    ]
    if len(sides) == 2:
        (_, enrol, i), (_, probe, j) = sides
        return by_side(enrol, probe, i, j)[:, 0], "the lower norm of the two sides"
    name, norms, index = sides[0]
    return norms[index].astype(
        np.float64
    ), f"the norm of the {name} side, as the other side's ids have no embedding of their own"


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
