"""The page of a classification or retrieval test: metrics with intervals, calibration, norms of
right and wrong answers, the space, the surest mistakes.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

import numpy as np

from eval import per_item
from eval.bootstrap import Drawn, bounds
from eval.formats.files import atomic_path
from eval.per_item import Metric, PerItem
from eval.reports.embeddings import embedding_map, norm_grid, norms_by_correct, space_3d
from eval.reports.media import Media
from eval.reports.page import document, folded, prose, rows_of, table
from eval.reports.scores import reliability
from eval.results import NO_INTERVAL, ends_text
from eval.types import Embeddings

_LEVEL = 0.95
_NUM_MISTAKES = 12


def html(
    path: Path,
    measured: PerItem,
    metrics: Mapping[str, Metric],
    *,
    command: str,
    version: str,
    num_resamples: int = 1000,
) -> None:
    """Write one self-contained page; nothing is fetched, now or when it is read. command: makes the
    page again.

    What `measured` has of embeddings, names of classes and media is shown; a map of the space, as
    it is in three dimensions, else by t-SNE.
    """
    media = Media(measured.show or (lambda _: None))
    embeddings = (
        None
        if measured.embeddings is None
        else Embeddings(measured.ids, measured.embeddings.astype(np.float32), {})
    )
    classes = measured.classes
    columns = measured.columns
    right = columns.get("correct", columns.get("recall@1"))
    norms = columns.get("norm")
    known = (
        None if right is None else ~np.isnan(right) & np.isin(right, (0.0, 1.0))
    )  # lone queries, and ties that are half right, are left out
    labels = (
        {
            id: classes[int(number)]
            for id, number in zip(measured.ids, columns["label"], strict=True)
        }
        if classes and "label" in columns
        else None
    )
    sections = {
        "Results": _metrics(measured, metrics, num_resamples),
        "Calibration": _calibration(measured),
        "Norms": ""
        if norms is None or right is None or known is None or not known.any()
        else norms_by_correct(norms[known], right[known].astype(np.bool_)),
        "Lowest and highest norms": "" if norms is None else norm_grid(measured.ids, norms, media),
        "The space of the embeddings": ""
        if embeddings is None
        else (space_3d if embeddings.matrix.shape[1] == 3 else embedding_map)(embeddings, labels),
        "The surest mistakes": _mistakes(measured, classes, media),
        "How to recompute": f"<pre>{escape(command)}</pre>"
        + prose(f"Likeness {version}.", soft=True),
    }
    about = f"{len(measured.ids):,} test items"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_text(
            document(
                "Classification report" if "correct" in columns else "Retrieval report",
                about,
                sections,
            ),
            encoding="utf-8",
        )


def _metrics(measured: PerItem, metrics: Mapping[str, Metric], num_resamples: int) -> str:
    drawn = per_item.resample(metrics, measured, num_resamples=num_resamples)
    rows = []
    reasons: dict[str, list[str]] = {}
    over = measured.over if measured.groups is not None else "items"
    for name, metric in metrics.items():
        found = bounds(drawn[name], _LEVEL, Drawn(measured.num_groups, over))
        ends = (
            NO_INTERVAL
            if found.ends is None
            else " to ".join(ends_text("", found.ends)) + (" *" if found.note else "")
        )
        rows.append([name, f"{metric(measured.columns):.4f}", ends])
        if found.note:
            reasons.setdefault(found.note, []).append(name)
    told = (
        f"Intervals: {100 * _LEVEL:g} % bootstrap over {measured.num_groups:,} {over}, "
        f"{num_resamples:,} resamples. The model is fixed."
    )
    noted = "".join(
        prose(f"{', '.join(names)}: {note}.", soft=True) for note, names in reasons.items()
    )
    return table(["", "value", "interval"], rows) + prose(told, soft=True) + noted


def _calibration(measured: PerItem) -> str:
    columns = measured.columns
    if "confidence" not in columns or "correct" not in columns:
        return ""
    parts = {"As predicted": reliability(columns["confidence"], columns["correct"])}
    if "scaled_confidence" in columns:
        temperature = float(columns["temperature"][0]) if "temperature" in columns else float("nan")
        parts[f"After temperature scaling, temperature {temperature:.3f}"] = reliability(
            columns["scaled_confidence"], columns["correct"]
        )
    return folded(parts)


def _mistakes(measured: PerItem, classes: tuple[str, ...], media: Media) -> str:
    """The wrong predictions of highest confidence."""
    columns = measured.columns
    if not {"correct", "confidence", "label", "predicted"} <= set(columns):
        return ""
    wrong = np.flatnonzero(columns["correct"] == 0)
    if not wrong.size:
        return prose("Every item is classified right.")

    def name(number: float) -> str:
        return escape(classes[int(number)] if classes else str(int(number)))

    rows = []
    for i in wrong[np.argsort(-columns["confidence"][wrong], kind="stable")][
        :_NUM_MISTAKES
    ].tolist():
        shown = media.show(measured.ids[i])
        cells = [
            shown or escape(measured.ids[i]),
            name(columns["label"][i]),
            name(columns["predicted"][i]),
            f"{columns['confidence'][i]:.4f}",
        ]
        rows.append([f"<td>{one}</td>" for one in cells])
    head = "".join(f"<th>{one}</th>" for one in ("item", "is", "taken for", "confidence"))
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows_of(rows)}</tbody></table></div>{prose(media.note(), soft=True)}"
    )
