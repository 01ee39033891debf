"""The page of a classification or retrieval test: metrics with intervals, norms of right and wrong
answers, the map of the embeddings, the surest mistakes.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from markupsafe import Markup

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.intervals import per_item
from likeness.eval.intervals.bootstrap import bounds
from likeness.eval.intervals.per_item import Metric, PerItem
from likeness.eval.progress import step
from likeness.eval.reports._map import embedding_map
from likeness.eval.reports.figures import Log, norms_by_correct, training_curves
from likeness.eval.reports.media import Media
from likeness.eval.reports.page import EMPTY, block, prose, recompute, table, write
from likeness.eval.results import bracketed, reasons

_LEVEL = 0.95
_NUM_MISTAKES = 12


@step("drawing the page")
def html(
    path: Path,
    measured: PerItem,
    metrics: Mapping[str, Metric],
    *,
    command: str,
    num_resamples: int = 1000,
    log: Log = (),
) -> None:
    """Write one self-contained page. No network is used, now or when it is read.

    The page shows the embeddings, the names of the classes and the media where `measured` has
    them.

    Args:
        path: of the page; its folder is made.
        measured: the values of each test item.
        metrics: name -> the metric, which is computed here and resampled.
        command: makes the page again.
        num_resamples: of the intervals.
        log: the entries of the training's log.jsonl, for its curves.
    """
    media = Media(measured.show or (lambda _: None))
    columns = measured.columns
    sections = {
        "Results": _metrics(measured, metrics, num_resamples),
        "Training": training_curves(log, list(metrics)),
        "Norms": _norms(measured),
        "Embedding map": _map(measured),
        "The surest mistakes": _mistakes(measured, media),
        "How to recompute": recompute(command, {}),
    }
    title = "Classification report" if "correct" in columns else "Retrieval report"
    write(path, title, f"{len(measured.ids):,} test items", sections)


def _metrics(measured: PerItem, metrics: Mapping[str, Metric], num_resamples: int) -> Markup:
    resampled = per_item.resample(metrics, measured, num_resamples=num_resamples)
    rows, noted = [], []
    for name, metric in metrics.items():
        value = metric(measured.columns)
        ends, note = bounds(resampled[name], value, _LEVEL, measured.drawn)
        rows.append([name, f"{value:.4f}", bracketed("", ends, note)])
        noted.append((name, ends, note))
    text = (
        f"Intervals: {100 * _LEVEL:g} % bootstrap over {measured.drawn.number:,} "
        f"{measured.drawn.what}, {num_resamples:,} resamples. The model is fixed."
    )
    return table(["", "value", "interval"], rows) + block("lines", texts=[text, *reasons(noted)])


def _norms(measured: PerItem) -> Markup:
    """The norms of right and wrong answers, without lone queries and ties that are half right."""
    columns = measured.columns
    right, norms = columns.get("correct", columns.get("recall@1")), columns.get("norm")
    if norms is None or right is None:
        return EMPTY
    known = ~np.isnan(right) & np.isin(right, (0.0, 1.0))
    return norms_by_correct(norms[known], right[known].astype(np.bool_)) if known.any() else EMPTY


def _map(measured: PerItem) -> Markup:
    if measured.embeddings is None:
        return EMPTY
    embeddings = Embeddings(measured.ids, measured.embeddings.astype(np.float32), {})
    numbers, classes = measured.columns.get("label"), measured.classes
    if not classes or numbers is None:
        return embedding_map(embeddings)
    names = [classes[int(number)] for number in numbers]
    return embedding_map(embeddings, dict(zip(measured.ids, names, strict=True)))


def _mistakes(measured: PerItem, media: Media) -> Markup:
    """The wrong predictions of highest confidence."""
    columns, classes = measured.columns, measured.classes
    if not {"correct", "confidence", "label", "predicted"} <= set(columns):
        return EMPTY
    wrong = np.flatnonzero(columns["correct"] == 0)
    if not wrong.size:
        return prose("Every item is classified right.")

    def name(number: float) -> str:
        return classes[int(number)] if classes else str(int(number))

    surest = wrong[np.argsort(-columns["confidence"][wrong], kind="stable")][:_NUM_MISTAKES]
    rows = []
    for i in surest.tolist():
        classes_of = name(columns["label"][i]), name(columns["predicted"][i])
        shown = media.show(measured.ids[i]) or measured.ids[i]
        rows.append((shown, *classes_of, f"{columns['confidence'][i]:.4f}"))
    head = ["Item", "Is", "Taken for", "Confidence"]
    return table(head, rows) + prose(media.note(), soft=True)
