"""What `likeness compare` writes: a comparison as JSON, as aligned text, Markdown and LaTeX
(booktabs), and as one self-contained HTML page with curves.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from likeness.eval.errors import likeness_version, shorten
from likeness.eval.intervals.comparison import LEVEL, Cell, Comparison, Run, difference_rows
from likeness.eval.progress import step
from likeness.eval.reports.figures import course_figure, drawn, logged
from likeness.eval.reports.page import EMPTY, block, document, prose
from likeness.eval.reports.page import table as table_block
from likeness.eval.results import aligned, bracketed, metric_label, metric_text, reasons
from likeness.eval.types import counted
from likeness.eval.writing import write_text

SCHEMA = "likeness.comparison/1"
# (variant, seed) -> the entries of its log.jsonl
Logs = Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]
_OPTIMISTIC = "bootstrap over trials, of the mean over seeds: optimistic, trials share subjects"


def write(out: Path, comparison: Comparison, logs: Logs, *, command: str) -> None:
    """Write comparison.json, table.txt, table.md, table.tex and report/index.html.

    Each file is written whole or not at all.

    Args:
        out: the folder, which exists.
        comparison: what is written.
        logs: of the runs, for the curves.
        command: makes the comparison again.
    """
    (out / "report").mkdir(exist_ok=True)
    texts = {
        "comparison.json": to_json(comparison, command=command),
        "table.txt": table(comparison),
        "table.md": markdown(comparison),
        "table.tex": latex(comparison),
        "report/index.html": html(comparison, logs, command=command),
    }
    for name, text in texts.items():
        write_text(out / name, text)


def to_json(comparison: Comparison, *, command: str) -> str:
    """JSON text of schema "likeness.comparison/1".

    It has everything in the tables, every run with the SHA-256 of its scores, and every tuning
    trial.
    """
    over = resampled_units(comparison)
    intervals = f"bootstrap over {over}, of the mean over seeds"
    conventions = {
        "level": LEVEL,
        "interval": _OPTIMISTIC if over == "trials" else intervals,
        "seed_interval": "Student's t over seeds of the differences of equal seeds, the test "
        "subjects fixed",
        "p": "two-sided, the level at which `interval` touches 0; seed_p that of `seed_interval`",
        "p_holm": "the larger of p and seed_p, after Holm 1979 over the "
        f"{comparison.num_comparisons} comparisons",
        "seed": 0,
    }
    head: dict[str, Any] = {"schema": SCHEMA, "version": likeness_version(), "command": command}
    head |= {"conventions": conventions, "num_comparisons": comparison.num_comparisons}
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


@step("drawing the page")
def html(comparison: Comparison, logs: Logs, *, command: str) -> str:
    """One self-contained page: tables, notes, curves of the loss and the metrics, how to recompute.

    Args:
        comparison: what is shown.
        logs: of the runs.
        command: makes the comparison again.
    """
    tables = _tables(comparison)
    head, *rows = ([text.replace(" [", "\n[") for text in row] for row in tables[0])
    sections = {"Results": prose(caution(comparison)) + table_block(head, rows, kind="t")}
    for differences in tables[1:]:
        heading = f"Differences to {comparison.reference}"
        sections[heading] = table_block(differences[0], differences[1:])
    rows = [[run.folder, run.scores or f"failed: {run.failed}"] for run in comparison.runs]
    runs = table_block(["run", "scores, SHA-256"], rows, kind="id")
    sections |= {
        "What the numbers are": block("lines", texts=notes(comparison)),
        "Curves of the training": _curves(comparison, logs),
        "Recompute": block("command", text=command) + runs,
    }
    return document(
        "Comparison of " + ", ".join(comparison.variants),
        f"{len(comparison.runs)} runs. Likeness {likeness_version()}.",
        sections,
    )


def _curves(comparison: Comparison, logs: Logs) -> Markup:
    """The loss of each variant and the metrics of all against the step, a line for each seed."""
    everyone = list(comparison.variants)
    figures = [(f"Loss of {variant}", "loss", [variant]) for variant in everyone]
    figures += [(metric_label(metric), metric, everyone) for metric in comparison.metrics]
    shown = []
    for label, key, variants in figures:
        lines = [
            (everyone.index(variant), f"{variant}, seed {seed}", shorten(variant, 44), points)
            for (variant, seed), log in logs.items()
            if variant in variants and (points := logged(log, key))[0].size > 1
        ]
        if lines:
            shown.append(drawn(course_figure, label, lines, alt=f"{label} by step"))
    text = (
        "A line per seed. Different losses have different scales: only the shapes compare. Metrics "
        "that were measured at the end only have no curve; schedule.eval_every=N gives one."
    )
    return prose(text, soft=True) + block("two", parts=shown) if shown else EMPTY


# ---------------------------------------------------------------- text


def table(comparison: Comparison) -> str:
    """Aligned text for a terminal.

    First what puts variants at a disadvantage; then a row for each variant, with the mean, standard
    error and interval of each metric and the cost; then the differences; then what the numbers are.
    """
    parts = [*map(aligned, _tables(comparison)), notes(comparison)]
    texts = [caution(comparison), *map("\n".join, parts)]
    return "\n\n".join(filter(None, texts)) + "\n"


def markdown(comparison: Comparison) -> str:
    """The same tables and notes in Markdown."""
    tables = map(markdown_table, _tables(comparison))
    listed = "\n".join(f"- {_plain(note)}" for note in notes(comparison))
    return "\n\n".join(filter(None, [_plain(caution(comparison)), *tables, listed])) + "\n"


def latex(comparison: Comparison) -> str:
    """The same tables in LaTeX, with the notes as comments. Needs \\usepackage{booktabs}."""
    texts = filter(None, [caution(comparison), *notes(comparison)])
    remarks = [f"% {line}" for line in " ".join(texts).splitlines()]
    return "\n".join([*remarks, *map(tabular, _tables(comparison))])


def caution(comparison: Comparison) -> str:
    """What puts variants at a disadvantage, which stands above the table; "" for nothing."""
    variants, tuned = comparison.variants, comparison.tuned or {}
    untuned = [name for name in variants if name not in tuned]
    if len(variants) < 2 or not untuned:
        return ""
    if not tuned:
        text = "No variant was tuned, so a difference may come from settings that suit one of them"
        return f"{text}: --tune N first searches the settings of each."
    return f"Not tuned: {', '.join(untuned)}, which puts them at a disadvantage."


def notes(comparison: Comparison) -> list[str]:
    """What the numbers are and what may not be concluded from them, a sentence or two each."""
    c = comparison
    texts = [*_notes_on_intervals(c), *_interval_notes(c)]
    texts.append(f"The variants differ in {', '.join(c.varied) or 'nothing'}.")
    if c.allowed:
        allowed = ", ".join(c.allowed)
        texts.append(f"As allowed, they differ in {allowed} too, and not in methods alone.")
    if c.watched:
        texts.append(f"Checkpoints were picked by {c.watched} on these trials, which flatters all.")
    texts += _tuning_notes(c)
    return texts + [f"Failed: {run.variant} seed {run.seed}: {run.failed}" for run in c.failed]


def _notes_on_intervals(c: Comparison) -> list[str]:
    """What was resampled, and what the differences and p-values are."""
    resampled, over = resampled_units(c), f"trials, hence optimistic ({c.subjects_from})"
    if resampled != "trials":
        source = "; ".join(filter(None, [f"{c.counts.get(resampled) or 0:,}", c.subjects_from]))
        over = f"{resampled} ({source})"
    texts = [
        f"Mean over {counted(len(c.seeds), 'seed')} ± standard error over seeds [{100 * LEVEL:g} % "
        f"bootstrap of that mean over {over}, {c.num_resamples:,} resamples]; {_tested_on(c)}."
    ]
    if c.differences:
        picked = "; picked as the best on these trials, which flatters it: name one by --reference"
        texts.append(
            f"Differences are to {c.reference}{picked if c.picked else ''}. "
            f"Over {resampled}: models fixed, the same resampled {resampled} for all variants. "
            f"Over seeds: {resampled} fixed, Student's t of the differences of equal seeds. "
            "p: the level at which the interval before it touches 0. Distinguishable: both "
            "intervals exclude 0."
        )
    if c.num_comparisons:
        texts.append(
            f"{counted(c.num_comparisons, 'comparison')}: of so many, up to "
            f"{(1 - LEVEL) * c.num_comparisons:.2g} would seem distinguishable by chance alone; "
            "p (Holm), of the larger p of both intervals, holds for all at once where it is below "
            f"{1 - LEVEL:.2g}."
        )
    return texts


def _tuning_notes(c: Comparison) -> list[str]:
    return [
        f"{name}: tuned on validation classes ({len(search.trials)} trials, "
        f"{metric_label(search.metric)} {metric_text(search.metric, search.score)} there): "
        + ", ".join(
            f"{field}={value:.4g}" if isinstance(value, float) else f"{field}={value}"
            for field, value in search.chosen.items()
        )
        for name, search in (c.tuned or {}).items()
    ]


def resampled_units(comparison: Comparison) -> str:
    """What the intervals resample: subjects, classes or items, else trials."""
    counts = comparison.counts
    if counts.get("subjects", 0) is None:
        return "trials"
    named = (kind for kind in ("subjects", "classes") if kind in counts)
    return next(named, "items" if counts else "subjects")


def _tested_on(comparison: Comparison) -> str:
    counts = comparison.counts
    if "items" in counts:
        return f"{counts['items']:,} test items"
    targets, nontargets = counts.get("targets") or 0, counts.get("nontargets") or 0
    return f"{targets:,} target and {nontargets:,} nontarget trials"


def main_rows(comparison: Comparison) -> list[list[str]]:
    """The head and a row for each variant: its metrics and its cost."""
    cells = {(cell.variant, cell.metric): cell for cell in comparison.cells}
    labels = [metric_label(metric) for metric in comparison.metrics]
    rows = [["", "seeds", *labels, "seconds", "items/s"]]
    for variant in comparison.variants:
        runs = [run for run in comparison.runs if run.variant == variant]
        finished = [run for run in runs if not run.failed]
        otherwise = "-" if finished else "failed"
        of_metrics = (cells.get((variant, metric)) for metric in comparison.metrics)
        texts = [_cell_text(cell, otherwise) for cell in of_metrics]
        cost = _mean(finished, "seconds", "{:,.1f}"), _mean(finished, "items_per_second", "{:,.0f}")
        rows.append([variant, f"{len(finished)} of {len(runs)}", *texts, *cost])
    return rows


def _tables(comparison: Comparison) -> list[list[list[str]]]:
    """The tables: the variants, and where there are any, the differences to the reference."""
    over, differences = resampled_units(comparison), comparison.differences
    rows = difference_rows(comparison.reference, over, differences, seeds=True)
    return [main_rows(comparison), *([rows] if rows else [])]


def _cell_text(cell: Cell | None, otherwise: str) -> str:
    if cell is None:
        return otherwise
    text = metric_text(cell.metric, cell.mean)
    if cell.standard_error is not None:
        text += f" ± {metric_text(cell.metric, cell.standard_error)}"
    return f"{text} {bracketed(cell.metric, cell.interval, cell.interval_note)}".rstrip()


def _interval_notes(comparison: Comparison) -> list[str]:
    """Why intervals are missing or marked, a sentence for each reason."""
    noted, over_seeds = [], []
    for cell in comparison.cells:
        name = f"{cell.variant}, {metric_label(cell.metric)}"
        noted.append((name, cell.interval, cell.interval_note))
        if (each := cell.difference) is not None:
            noted.append((f"difference of {name}", each.interval, each.interval_note))
            over_seeds.append((f"{name}, over seeds", each.seed_interval, each.seed_note))
    return [*reasons(noted), *(f"Over seeds: {text}" for text in reasons(over_seeds))]


def _mean(runs: Sequence[Run], name: str, shown: str) -> str:
    values = [getattr(run, name) for run in runs if getattr(run, name) is not None]
    return shown.format(float(np.mean(values))) if values else "-"


def tabular(rows: Sequence[Sequence[str]]) -> str:
    """The head and the rows of a table in LaTeX. Needs \\usepackage{booktabs}."""
    head, *body = (" & ".join(map(_tex, row)) + r" \\" for row in rows)
    columns = "l" + "r" * (len(rows[0]) - 1)
    begin, end = rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", end, ""])


def _plain(text: str) -> str:
    one_line = text.replace("|", r"\|").replace("\n", " ")
    # A star that begins a line would begin a list.
    return "\\" + one_line if one_line.startswith("* ") else one_line


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The head and the rows of a table in Markdown."""
    head, *body = (f"| {' | '.join(map(_plain, row))} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


_TEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "<": "$<$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _tex(text: str) -> str:
    """The text, escaped. Signed numbers are mathematics, so that their minus is printed as one."""
    escaped = "".join(_TEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.])([+-]\d[\d.]*)", r"$\1$", escaped)
