"""How a training went: what its log holds against the step, as figures of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from eval.reports.blocks import EMPTY, block
from eval.reports.drawing import columns, drawn, plot, style_of
from eval.results import metric_label
from eval.types import Floats

Log = Sequence[Mapping[str, Any]]
"""The entries of a log.jsonl."""
_SHOWN = {"loss": "Loss", "lr": "Learning rate", "norm": "Norm of the embeddings"}
_NUM_POINTS = 1500  # of a curve


def logged(log: Log, key: str) -> tuple[Floats, Floats]:
    """The steps and values of an entry of a log, at most 1,500 of them.

    >>> logged([{"step": 1, "loss": 2.0}, {"step": 2}, {"step": 3, "loss": 1.5}], "loss")
    (array([1., 3.]), array([2. , 1.5]))
    """
    points = [
        (entry["step"], entry[key])
        for entry in log
        if isinstance(entry.get(key), (int, float)) and "step" in entry
    ]
    values = np.array(points, dtype=np.float64).reshape(-1, 2)
    kept = np.unique(np.linspace(0, max(len(values) - 1, 0), _NUM_POINTS).astype(np.int64))
    return (values[kept, 0], values[kept, 1]) if len(values) else (values[:, 0], values[:, 1])


def curves(log: Log, metrics: Sequence[str] = ()) -> Markup:
    """A figure for each entry of a log that has at least two values.

    Args:
        log: of one training.
        metrics: what the training measured in between, beside the loss, the rate and the norms.

    Returns:
        HTML, which is empty where there is nothing to draw.
    """
    shown = _SHOWN | {metric: metric_label(metric) for metric in metrics}
    figures = []
    for key, label in shown.items():
        steps, values = logged(log, key)
        if steps.size > 1:
            scale = 100.0 if "(%)" in label else 1.0
            figures.append(drawn(_figure, steps, scale * values, label, alt=f"{label} by step"))
    return block("two", parts=figures) if any(figures) else EMPTY


def _figure(steps: Floats, values: Floats, label: str) -> Any:
    figure = plot("Step", label, height=260, tips={"step": "@x", label: "@y{0.0000}"})
    figure.line("x", "y", source=columns(x=steps, y=values), name=label, **style_of(0))
    return figure
