"""A comparison as JSON, aligned text, Markdown, LaTeX (booktabs), and as one self-contained HTML
page with curves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from eval.comparison import LEVEL, Cell, Comparison, Run, verdict
from eval.formats.files import atomic_path
from eval.reports.page import COLOURS, STYLES, document, drawn, legend, plot, prose
from eval.reports.page import table as html_table
from eval.reports.scores import trade_off
from eval.results import (
    NO_INTERVAL,
    aligned,
    ends_text,
    metric_label,
    metric_text,
    signed_ends,
    signed_text,
)
from eval.types import Scores

SCHEMA = "likeness.comparison/1"
Logs = Mapping[
    tuple[str, int], Sequence[Mapping[str, Any]]
]  # (variant, seed) -> the entries of its log.jsonl


def write(
    out: Path,
    comparison: Comparison,
    logs: Logs,
    *,
    command: str,
    version: str,
    scores: Mapping[str, Scores] | None = None,
) -> None:
    """Write comparison.json, table.txt, table.md, table.tex and report/index.html into folder
    `out`, each whole or not at all; scores: see `html`.
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
    """JSON text of schema "likeness.comparison/1": everything in the tables, every run with the
    SHA-256 of its scores, every tuning trial.
    """
    conventions = {
        "level": LEVEL,
        "interval": _OPTIMISTIC
        if _over(comparison) == "trials"
        else f"percentile bootstrap over {_over(comparison)}, of the mean over seeds",
        "seed_interval": "Student's t over seeds of the differences of equal seeds, the test "
        "subjects fixed",
        "p": "two-sided, from the resampled differences: 2 (k + 1) / (R + 1)",
        "p_holm": f"Holm 1979 over the {comparison.num_comparisons} comparisons",
        "seed": 0,
    }
    document = {
        "schema": SCHEMA,
        "version": version,
        "command": command,
        "conventions": conventions,
        "num_comparisons": comparison.num_comparisons,
    }
    return (
        json.dumps(
            _finite(document | asdict(comparison)), indent=2, ensure_ascii=False, allow_nan=False
        )
        + "\n"
    )


def _finite(value: Any) -> Any:
    """NaN and infinity, which JSON cannot hold, as null."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def table(comparison: Comparison) -> str:
    """Aligned text: a row per variant with mean, standard error and interval of each metric and the
    cost; the differences; what the numbers are.
    """
    blocks = [
        "\n".join(lines)
        for lines in (
            aligned(_main_rows(comparison)),
            aligned(_difference_rows(comparison)),
            notes(comparison),
        )
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def markdown(comparison: Comparison) -> str:
    """The same as Markdown tables."""
    tables = [
        _piped(rows) for rows in (_main_rows(comparison), _difference_rows(comparison)) if rows
    ]
    return (
        "\n\n".join([*tables, "\n".join(f"- {_plain(note)}" for note in notes(comparison))]) + "\n"
    )


def latex(comparison: Comparison) -> str:
    """Two booktabs tables; the notes are comments. Needs \\usepackage{booktabs}."""
    lines = [f"% {line}" for line in " ".join(notes(comparison)).splitlines()]
    for rows in (_main_rows(comparison), _difference_rows(comparison)):
        if rows:
            head, *body = ([_tex(text) for text in row] for row in rows)
            lines += [
                rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
                r"\toprule",
                " & ".join(head) + r" \\",
                r"\midrule",
            ]
            lines += [" & ".join(row) + r" \\" for row in body] + [
                r"\bottomrule",
                r"\end{tabular}",
                "",
            ]
    return "\n".join(lines)


def notes(comparison: Comparison) -> list[str]:
    """What the numbers are and what may not be concluded from them, a sentence or two each."""
    c, counts = comparison, comparison.counts
    over = f"trials, hence optimistic ({c.subjects_from})"
    if (drawn := _over(c)) != "trials":
        over = (
            f"{drawn} "
            f"({counts.get(drawn) or 0:,}{'; ' if c.subjects_from else ''}{c.subjects_from})"
        )
    said = [
        f"Mean over {_count(len(c.seeds), 'seed')} ± standard error over seeds [{100 * LEVEL:g} % "
        f"bootstrap of that mean over {over}, "
        f"{c.num_resamples:,} resamples]; {_tested_on(c)}."
    ]
    if any(one.difference is not None for one in c.cells):
        picked = (
            "; it was picked as the best on these trials, which flatters it: --reference names one "
            "beforehand"
            if c.picked
            else ""
        )
        said.append(
            f"Differences are to {c.reference}{picked}. Over {_over(c)}: models fixed, the same "
            f"resampled {_over(c)} for all variants. "
            f"Over seeds: {_over(c)} fixed, Student's t of the differences of equal seeds. "
            f"Distinguishable: the interval over {_over(c)} excludes 0."
        )
    if c.num_comparisons:
        said.append(
            f"{_count(c.num_comparisons, 'comparison')}: of so many, "
            f"{(1 - LEVEL) * c.num_comparisons:.2g} would seem distinguishable by chance alone; "
            "p (Holm) below 0.05 holds for all at once."
        )
    said += _interval_notes(c)
    said.append(f"The variants differ in {', '.join(c.varied) or 'nothing'}.")
    if c.allowed:
        said.append(
            f"As allowed, they differ in {', '.join(c.allowed)} too: this is no comparison of "
            "methods alone."
        )
    if c.watched:
        said.append(
            f"Checkpoints were picked by {c.watched} on these very trials, which flatters every "
            "variant."
        )
    said += [
        f"{name}: tuned on validation classes ({len(one.trials)} trials, "
        f"{metric_label(one.metric)} {metric_text(one.metric, one.score)} there): "
        + ", ".join(
            f"{field}={value:.4g}" if isinstance(value, float) else f"{field}={value}"
            for field, value in one.chosen.items()
        )
        for name, one in (c.tuned or {}).items()
    ]
    untuned = [name for name in c.variants if c.tuned and name not in c.tuned]
    if untuned:
        said.append(f"Not tuned: {', '.join(untuned)}, which puts them at a disadvantage.")
    return said + [f"Failed: {one.variant} seed {one.seed}: {one.failed}" for one in c.failed]


def _over(comparison: Comparison) -> str:
    """What the interval draws: subjects, classes or items; trials where subjects are unknown."""
    counts = comparison.counts
    return (
        "trials"
        if counts.get("subjects", 0) is None
        else next(
            (one for one in ("subjects", "classes") if one in counts),
            "items" if counts else "subjects",
        )
    )


def _tested_on(comparison: Comparison) -> str:
    counts = comparison.counts
    if "items" in counts:
        return f"{counts['items']:,} test items"
    targets, nontargets = counts.get("targets") or 0, counts.get("nontargets") or 0
    return f"{targets:,} target and {nontargets:,} nontarget trials"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_OPTIMISTIC = (
    "percentile bootstrap over trials, of the mean over seeds: optimistic, trials share subjects"
)


def _main_rows(comparison: Comparison) -> list[list[str]]:
    cells = {(one.variant, one.metric): one for one in comparison.cells}
    rows = [
        [
            "",
            "seeds",
            *(metric_label(metric) for metric in comparison.metrics),
            "seconds",
            "items/s",
        ]
    ]
    for variant in comparison.variants:
        runs = [one for one in comparison.runs if one.variant == variant]
        finished = [one for one in runs if not one.failed]
        row = [variant, f"{len(finished)} of {len(runs)}"]
        row += [
            _cell_text(cells.get((variant, metric)), "-" if finished else "failed")
            for metric in comparison.metrics
        ]
        rows.append(
            [
                *row,
                _mean(finished, "seconds", "{:,.1f}"),
                _mean(finished, "items_per_second", "{:,.0f}"),
            ]
        )
    return rows


def _difference_rows(comparison: Comparison) -> list[list[str]]:
    over = f"over {_over(comparison)}"
    rows = [
        [
            f"minus {comparison.reference}",
            "metric",
            "difference",
            over,
            "over seeds",
            "p",
            "p (Holm)",
            "distinguishable",
        ]
    ]
    for cell in comparison.cells:
        if (one := cell.difference) is not None:
            ends = [
                signed_ends(cell.metric, one.interval, one.interval_note),
                signed_ends(cell.metric, one.seed_interval),
            ]
            chances = ["-" if p is None else f"{p:.3f}" for p in (one.p, one.p_holm)]
            rows.append(
                [
                    cell.variant,
                    metric_label(cell.metric),
                    signed_text(cell.metric, one.value),
                    *ends,
                    *chances,
                    verdict(one),
                ]
            )
    return rows if len(rows) > 1 else []


def _cell_text(cell: Cell | None, otherwise: str) -> str:
    if cell is None:
        return otherwise
    error = (
        "" if cell.standard_error is None else f" ± {metric_text(cell.metric, cell.standard_error)}"
    )
    if cell.interval is None:
        ends = f" {NO_INTERVAL}" if cell.interval_note else ""
    else:
        ends = (
            " "
            f"[{', '.join(ends_text(cell.metric, cell.interval))}]"
            f"{' *' if cell.interval_note else ''}"
        )
    return f"{metric_text(cell.metric, cell.mean)}{error}{ends}"


def _interval_notes(comparison: Comparison) -> list[str]:
    """Why intervals are missing or marked, a sentence for each reason."""
    noted = [
        (f"{cell.variant}, {metric_label(cell.metric)}", cell.interval, cell.interval_note)
        for cell in comparison.cells
    ]
    noted += [
        (
            f"difference of {cell.variant}, {metric_label(cell.metric)}",
            one.interval,
            one.interval_note,
        )
        for cell in comparison.cells
        if (one := cell.difference) is not None
    ]
    sentences = []
    for note in dict.fromkeys(one for _, _, one in noted if one):
        concerned = [(name, interval) for name, interval, one in noted if one == note]
        where = (
            "" if len(concerned) == len(noted) else "; ".join(name for name, _ in concerned) + ": "
        )
        star = "* " if concerned[0][1] is not None else ""
        sentences.append(f"{star}{where}{note if where else note[0].upper() + note[1:]}.")
    return sentences


def _mean(runs: Sequence[Run], name: str, shown: str) -> str:
    values = [getattr(one, name) for one in runs if getattr(one, name) is not None]
    return shown.format(float(np.mean(values))) if values else "-"


def _plain(text: str) -> str:
    one_line = text.replace("|", r"\|").replace("\n", " ")
    return (
        "\\" + one_line if one_line.startswith("* ") else one_line
    )  # a star that begins a line would begin a list


def _piped(rows: Sequence[Sequence[str]]) -> str:
    head, *body = (f"| {' | '.join(map(_plain, row))} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


_TEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{one: f"\\{one}" for one in "&%$#_{}"},
}


def _tex(text: str) -> str:
    """Escaped; signed numbers in mathematics, so that their minus is one."""
    escaped = "".join(_TEX.get(one, one) for one in text)
    return re.sub(r"(?<![\w.])([+-]\d[\d.]*)", r"$\1$", escaped)


# ---------------------------------------------------------------- the page


def forest_figure(comparison: Comparison, metric: str) -> Any:
    """matplotlib Figure: a variant's mean (bar), interval over subjects (line) and seeds (dots)."""
    cells = [one for one in comparison.cells if one.metric == metric]
    scale = _scale(metric)
    figure, axes = plot(6.2, 0.7 + 0.34 * len(cells))
    for row, cell in enumerate(cells):
        colour = _colour(comparison, cell.variant)
        if cell.interval is not None:
            axes.plot(
                [scale * end for end in cell.interval], [row, row], color=colour, linewidth=1.6
            )
        axes.plot([scale * cell.mean], [row], "|", color=colour, markersize=13, markeredgewidth=2)
        axes.plot(
            [scale * value for value in cell.values.values()],
            [row] * len(cell.values),
            "o",
            color=colour,
            markersize=4,
            alpha=0.6,
        )
    axes.set_yticks(range(len(cells)), [one.variant for one in cells])
    axes.set(ylim=(len(cells) - 0.4, -0.6), xlabel=metric_label(metric))
    axes.grid(axis="y", visible=False)
    return figure


def curve_figure(
    comparison: Comparison,
    logs: Logs,
    key: str,
    variants: Sequence[str],
    label: str,
    scale: float = 1.0,
) -> Any:
    """matplotlib Figure: entry `key` of the logs against the step, a line per variant and seed."""
    figure, axes = plot(4.5, 2.6)
    for variant in variants:
        shown = variant
        for (name, _), log in logs.items():
            points = [
                (one["step"], scale * one[key])
                for one in log
                if isinstance(one.get(key), (int, float))
            ]
            if name == variant and points:
                style = STYLES[
                    list(comparison.variants).index(variant) // len(COLOURS) % len(STYLES)
                ]
                axes.plot(
                    *zip(*points, strict=True),
                    color=_colour(comparison, variant),
                    linestyle=style,
                    linewidth=1.1,
                    alpha=0.75,
                    label=shown,
                )
                shown = "_" + variant  # one entry of the legend for all seeds
    axes.set(xlabel="Step", ylabel=label)
    if len(variants) > 1:
        legend(axes, columns=3, size=8)
    return figure


def _colour(comparison: Comparison, variant: str) -> str:
    return COLOURS[list(comparison.variants).index(variant) % len(COLOURS)]


def html(
    comparison: Comparison,
    logs: Logs,
    *,
    command: str,
    version: str,
    scores: Mapping[str, Scores] | None = None,
) -> str:
    """One self-contained page: tables, every variant's spread, loss and metric curves, notes, how
    to recompute. No network, light and dark.

    scores: variant -> the scores of one of its runs, for DET and ROC curves; None of what is not
    measured on trials.
    """
    head, *rows = _main_rows(comparison)
    sections = {"Results": html_table(head, rows, kind="t")}
    if differences := _difference_rows(comparison):
        sections[f"Differences to {comparison.reference}"] = html_table(
            differences[0], differences[1:]
        )
    sections["What the numbers are"] = (
        f'<p class="soft">{"<br>".join(map(escape, notes(comparison)))}</p>'
    )
    if scores and (curves := trade_off(scores)):
        sections["Error trade-off"] = prose("Of one run of each variant.") + curves
    sections |= _plots(comparison, logs)
    rows = [[one.folder, one.scores or f"failed: {one.failed}"] for one in comparison.runs]
    sections["Recompute"] = f"<pre>{escape(command)}</pre>" + html_table(
        ["run", "scores, SHA-256"], rows, kind="id"
    )
    return document(
        "Comparison of " + ", ".join(comparison.variants),
        f"{len(comparison.runs)} runs. Likeness {version}.",
        sections,
    )


def _plots(comparison: Comparison, logs: Logs) -> dict[str, str]:
    measured = [
        metric
        for metric in comparison.metrics
        if any(one.metric == metric for one in comparison.cells)
    ]
    curves = [
        metric
        for metric in measured
        if any(sum(metric in entry for entry in log) > 1 for log in logs.values())
    ]
    spread = "".join(
        drawn(forest_figure, comparison, metric, alt=f"Spread of {metric}") for metric in measured
    )
    training = "".join(
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
        for metric in curves
    )
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
        if any(
            any("loss" in entry for entry in log)
            for (name, _), log in logs.items()
            if name == variant
        )
    ]
    return {
        "Spread": prose(
            f"Bar: mean over seeds. Line: interval over {_over(comparison)}. Dots: the seeds."
        )
        + spread
        if spread
        else "",
        "Metrics while training": training
        or prose("Measured at the end only; schedule.eval_every=N gives curves."),
        "Loss": prose(
            "A line per seed. Different losses have different scales: only the shapes compare."
        )
        + f'<div class="two">{"".join(losses)}</div>'
        if losses
        else "",
    }


def _scale(metric: str) -> float:
    return 100.0 if "(%)" in metric_label(metric) else 1.0
