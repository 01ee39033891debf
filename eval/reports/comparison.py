"""What `likeness compare` writes: a comparison as JSON, as text (eval.reports.text), and as one
self-contained HTML page with curves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from eval.comparison import LEVEL, Comparison
from eval.formats.files import atomic_path
from eval.progress import step
from eval.reports.curves import trade_off
from eval.reports.figures import COLOURS, DASHES, columns, drawn, legend, logged, plot, shortened
from eval.reports.page import EMPTY, block, document, joined, prose
from eval.reports.page import table as table_block
from eval.reports.text import difference_rows, latex, main_rows, markdown, notes, over_what, table
from eval.results import metric_label
from eval.types import Scores

SCHEMA = "likeness.comparison/1"
# (variant, seed) -> the entries of its log.jsonl
Logs = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]
_OPTIMISTIC = "bootstrap over trials, of the mean over seeds: optimistic, trials share subjects"


def write(
    out: Path,
    comparison: Comparison,
    logs: Logs,
    *,
    command: str,
    version: str,
    scores: Mapping[str, Scores] | None = None,
) -> None:
    """Write comparison.json, table.txt, table.md, table.tex and report/index.html.

    Each file is written whole or not at all.

    Args:
        out: the folder, which exists.
        comparison: what is written.
        logs: of the runs, for the curves.
        command: makes the comparison again.
        version: of Likeness.
        scores: see `html`.
    """
    (out / "report").mkdir(exist_ok=True)
    texts = {
        "comparison.json": to_json(comparison, command=command, version=version),
        "table.txt": table(comparison),
        "table.md": markdown(comparison),
        "table.tex": latex(comparison),
        "report/index.html": html(
            comparison, logs, command=command, version=version, scores=scores
        ),
    }
    for name, text in texts.items():
        with atomic_path(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def to_json(comparison: Comparison, *, command: str, version: str) -> str:
    """JSON text of schema "likeness.comparison/1".

    It has everything in the tables, every run with the SHA-256 of its scores, and every tuning
    trial.
    """
    over = over_what(comparison)
    conventions = {
        "level": LEVEL,
        "interval": _OPTIMISTIC
        if over == "trials"
        else f"bootstrap over {over}, of the mean over seeds",
        "seed_interval": "Student's t over seeds of the differences of equal seeds, the test "
        "subjects fixed",
        "p": "two-sided, from the resampled differences: 2 (k + 1) / (R + 1)",
        "p_holm": f"Holm 1979 over the {comparison.num_comparisons} comparisons",
        "seed": 0,
    }
    head = {
        "schema": SCHEMA,
        "version": version,
        "command": command,
        "conventions": conventions,
        "num_comparisons": comparison.num_comparisons,
    }
    content = _json_value(head | asdict(comparison))
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _json_value(value: Any) -> Any:
    """The value, with null in place of NaN and infinity, which JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _json_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(part) for part in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


# ---------------------------------------------------------------- the page


def forest_figure(comparison: Comparison, metric: str) -> Any:
    """The variants' means (bars), intervals over subjects (lines) and seeds (dots).

    Returns:
        A Bokeh figure.
    """
    cells = [cell for cell in comparison.cells if cell.metric == metric]
    scale = _scale(metric)
    names = [cell.variant for cell in cells]
    figure = plot(
        metric_label(metric),
        "",
        height=90 + 34 * len(cells),
        width=640,
        tips={"variant": "$name", "value": "@x{0.0000}"},
        y_range=(len(cells) - 0.4, -0.6),
    )
    for row, cell in enumerate(cells):
        style = {"color": _colour(comparison, cell.variant), "name": cell.variant}
        if cell.interval is not None:
            ends = columns(x=scale * np.array(cell.interval), y=np.full(2, float(row)))
            figure.line("x", "y", source=ends, line_width=2, **style)
        mean = columns(x=np.array([scale * cell.mean]), y=np.array([float(row)]))
        figure.scatter(
            "x", "y", source=mean, marker="dash", angle=np.pi / 2, size=22, line_width=3, **style
        )
        seeds = scale * np.array(list(cell.values.values()), dtype=np.float64)
        dots = columns(x=seeds, y=np.full(seeds.size, float(row)))
        figure.scatter("x", "y", source=dots, size=7, alpha=0.6, **style)
    figure.yaxis.ticker = list(range(len(cells)))
    figure.yaxis.major_label_overrides = {i: shortened(name) for i, name in enumerate(names)}
    figure.ygrid.grid_line_color = None
    return figure


def curve_figure(
    comparison: Comparison,
    logs: Logs,
    key: str,
    variants: Sequence[str],
    label: str,
    scale: float = 1.0,
) -> Any:
    """An entry of the logs against the step, with a line for each variant and seed.

    Args:
        comparison: gives the variants their colours.
        logs: of the runs.
        key: of the entry.
        variants: those that are drawn.
        label: of the vertical axis.
        scale: the entry is multiplied by it.

    Returns:
        A Bokeh figure.
    """
    figure = plot(
        "Step", label, height=280, tips={"run": "$name", "step": "@x", label: "@y{0.0000}"}
    )
    for variant in variants:
        number = list(comparison.variants).index(variant)
        for (name, seed), log in logs.items():
            points = logged(log, key)
            if name == variant and points[0].size:
                figure.line(
                    "x",
                    "y",
                    source=columns(x=points[0], y=scale * points[1]),
                    line_color=_colour(comparison, variant),
                    line_dash=DASHES[number // len(COLOURS) % len(DASHES)],
                    line_width=1.4,
                    line_alpha=0.8,
                    name=f"{variant}, seed {seed}",
                    **({"legend_label": shortened(variant)} if len(variants) > 1 else {}),
                )
    if len(variants) > 1:
        legend(figure)
    return figure


def _colour(comparison: Comparison, variant: str) -> str:
    return COLOURS[list(comparison.variants).index(variant) % len(COLOURS)]


@step("drawing the page")
def html(
    comparison: Comparison,
    logs: Logs,
    *,
    command: str,
    version: str,
    scores: Mapping[str, Scores] | None = None,
) -> str:
    """One self-contained page: tables, every variant's spread, curves of the loss and the metrics,
    notes, how to recompute. No network, light and dark.

    Args:
        comparison: what is shown.
        logs: of the runs.
        command: makes the comparison again.
        version: of Likeness.
        scores: variant -> the scores of one of its runs, for DET and ROC curves; None where there
            are no trials.
    """
    head, *rows = main_rows(comparison)
    sections = {"Results": table_block(head, rows, kind="t")}
    if differences := difference_rows(comparison):
        sections[f"Differences to {comparison.reference}"] = table_block(
            differences[0], differences[1:]
        )
    sections["What the numbers are"] = block("lines", texts=notes(comparison))
    if scores and (curves := trade_off(scores)):
        sections["Error trade-off"] = prose("Of one run of each variant.") + curves
    sections |= _plots(comparison, logs)
    rows = [[run.folder, run.scores or f"failed: {run.failed}"] for run in comparison.runs]
    sections["Recompute"] = block("command", text=command) + table_block(
        ["run", "scores, SHA-256"], rows, kind="id"
    )
    return document(
        "Comparison of " + ", ".join(comparison.variants),
        f"{len(comparison.runs)} runs. Likeness {version}.",
        sections,
    )


def _plots(comparison: Comparison, logs: Logs) -> dict[str, Markup]:
    measured = [
        metric
        for metric in comparison.metrics
        if any(cell.metric == metric for cell in comparison.cells)
    ]
    spread = joined(
        drawn(forest_figure, comparison, metric, alt=f"Spread of {metric}") for metric in measured
    )
    training = [
        drawn(
            curve_figure,
            comparison,
            logs,
            metric,
            comparison.variants,
            metric_label(metric),
            _scale(metric),
            alt=f"{metric} while training",
        )
        for metric in measured
        if any(sum(metric in entry for entry in log) > 1 for log in logs.values())
    ]
    with_loss = {name for (name, _), log in logs.items() if any("loss" in entry for entry in log)}
    losses = [
        drawn(
            curve_figure,
            comparison,
            logs,
            "loss",
            [variant],
            "Loss",
            alt=f"Loss of {variant}",
            caption=variant,
        )
        for variant in comparison.variants
        if variant in with_loss
    ]
    dots = f"Bar: mean over seeds. Line: interval over {over_what(comparison)}. Dots: the seeds."
    scales = "A line per seed. Different losses have different scales: only the shapes compare."
    return {
        "Spread": prose(dots) + spread if spread else EMPTY,
        "Metrics while training": block("two", parts=training)
        if any(training)
        else prose("Measured at the end only; schedule.eval_every=N gives curves."),
        "Loss": prose(scales) + block("two", parts=losses) if losses else EMPTY,
    }


def _scale(metric: str) -> float:
    return 100.0 if "(%)" in metric_label(metric) else 1.0
