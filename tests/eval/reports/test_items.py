"""The page of classification and retrieval tests: its numbers are those of the metrics, it shows
what there is, and nothing in it is taken as markup.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np

from likeness.eval import per_item
from likeness.eval.bootstrap import bounds
from likeness.eval.per_item import PerItem
from likeness.eval.reports.items import html

METRICS = {
    "accuracy": partial(per_item.mean, column="correct"),
    "ece": per_item.calibration_error,
    "auroc": per_item.norm_auroc,
}


def classified(num: int = 60, dim: int = 3) -> PerItem:
    rng = np.random.default_rng(0)
    label, predicted = rng.integers(3, size=(2, num)).astype(np.float64)
    predicted[: num // 2] = label[: num // 2]
    columns = {
        "correct": (label == predicted).astype(np.float64),
        "confidence": rng.uniform(0.4, 1.0, num),
        "norm": rng.uniform(1.0, 5.0, num),
        "label": label,
        "predicted": predicted,
    }
    ids = tuple(f"<item> {i}" for i in range(num))
    pixels = {id: rng.integers(256, size=(8, 8), dtype=np.uint8) for id in ids}
    more = {"embeddings": rng.standard_normal((num, dim)), "classes": ("<a>", "b", "c & d")}
    return PerItem(ids, columns, None, "items", **more, show=pixels.get)


def test_the_page_of_a_classifier(tmp_path: Path) -> None:
    measured = classified()
    path = tmp_path / "report" / "index.html"
    html(path, measured, METRICS, command="likeness train a <b>", num_resamples=100)
    page = path.read_text(encoding="utf-8")
    drawn = per_item.resample(METRICS, measured, num_resamples=100)
    for name, metric in METRICS.items():
        value = metric(measured.columns)
        low, high = bounds(drawn[name], value, 0.95, measured.drawn).ends
        row = rf"{name}</th><td[^>]*>{value:.4f}</td><td[^>]*>\[{low:.4f}, {high:.4f}\]<"
        assert re.search(row, page), name
    for heading in ("Norms", "Embedding map", "The surest mistakes"):
        assert f">{heading}</h2>" in page, heading
    page = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "<item>" not in page
    assert "<b>" not in page
    assert "c &amp; d" in page
    assert page.count("data:image/png") == 12
    wrong = np.flatnonzero(measured.columns["correct"] == 0)
    surest = measured.columns["confidence"][wrong].max()
    assert f"{surest:.4f}" in page[page.index(">The surest mistakes</h2>") :]
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert page.count("sha256-") == 2  # of BokehJS and of our own script: no other runs


def test_the_page_of_a_classifier_without_errors_has_no_examples_of_errors(tmp_path: Path) -> None:
    made = classified()
    columns = {**made.columns, "correct": np.ones(60), "predicted": made.columns["label"]}
    measured, metrics = PerItem(made.ids, columns, None, "items"), {"auroc": per_item.norm_auroc}
    html(tmp_path / "index.html", measured, metrics, command="x", num_resamples=5)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Every item is classified right." in page
    assert "nan" in page
