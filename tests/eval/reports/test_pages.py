"""The pages of classification, retrieval and identification: numbers are those of the metrics,
neighbours those of a full ranking, and nothing in them is taken as markup."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats.embeddings import Embeddings, Labelled
from likeness.eval.intervals import per_item
from likeness.eval.intervals.bootstrap import bounds
from likeness.eval.intervals.per_item import PerItem
from likeness.eval.protocols.identification import IdentificationSettings, identify
from likeness.eval.protocols.retrieval import RetrievalSettings, retrieve
from likeness.eval.protocols.searching import SearchEvaluation
from likeness.eval.reports import search
from likeness.eval.reports.items import html
from likeness.eval.reports.media import Media
from likeness.eval.reports.search import nearest
from likeness.eval.results import metric_label

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


def test_the_page_of_a_classifier(tmp_path):
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
    assert f"AUROC of the norm: {per_item.norm_auroc(measured.columns):.3f}" in page
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


def test_the_page_of_a_classifier_without_errors_has_no_examples_of_errors(tmp_path):
    columns = {**classified().columns, "correct": np.ones(60)}
    measured = PerItem(classified().ids, columns, None, "items")
    html(tmp_path / "index.html", measured, {}, command="x", num_resamples=5)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "Every item is classified right." in page
    assert "All are of one kind" in page


def made(num_classes: int = 6, num_each: int = 5, seed: int = 0) -> Embeddings:
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((num_classes, 4)), num_each, axis=0)
    ids = tuple(f"<b>{i // num_each}/{i}" for i in range(len(centres)))
    return Embeddings(ids, centres + 0.6 * rng.standard_normal(centres.shape))


def labelled(rows: Embeddings) -> Labelled:
    return Labelled(rows, [id.split("/")[0] for id in rows.ids])


def page_of(evaluation: SearchEvaluation, path: Path) -> str:
    media = Media(lambda id: np.zeros((8, 8), np.uint8))
    search.write_page(path, evaluation, media=media, command="likeness <command>")
    return path.read_text(encoding="utf-8")


def test_the_nearest_are_those_of_a_full_ranking():
    queries = made()
    unit = queries.matrix / np.linalg.norm(queries.matrix, axis=1, keepdims=True)
    similar = unit @ unit.T
    own, some_classes = labelled(queries), labelled(made(2, 3))
    answers = nearest(own, own, "cosine", 3)
    ranked = np.argsort(-(similar - 9 * np.eye(30)), axis=1)[:, :3]
    assert answers.items.tolist() == ranked.tolist()
    assert answers.right.tolist() == (ranked // 5 == np.arange(30)[:, None] // 5).tolist()
    some = nearest(own, some_classes, "cosine", 2, num_queries=7)
    assert some.queries.size == 7
    assert some.items.shape == (7, 2)
    assert some.mated.tolist() == [row // 5 < 2 for row in some.queries.tolist()]


def test_the_page_of_a_retrieval(tmp_path):
    queries = made()
    retrieved = retrieve(queries, settings=RetrievalSettings(num_resamples=20))
    results, page = retrieved.results, page_of(retrieved, tmp_path / "index.html")
    page = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    recall = next(result.value for result in results if result.metric == "recall@1")
    right, wrong = round(30 * recall), round(30 * (1 - recall))
    assert f"{right} find their own first, and {wrong} do not" in page
    assert f'R@1 (%)</th><td class="n v">{100 * recall:.2f}<' in page
    assert page.count("<img") == len(set(re.findall('data-item="([^"]*)"', page)))
    assert "<b>" not in page
    assert "Wrong, the surest first" in page
    assert "Threshold</th>" not in page  # no metric of a retrieval has one


def test_the_page_of_an_identification(tmp_path):
    queries, gallery = made(seed=0), made(3, 2, seed=0)
    identified = identify(gallery, queries, IdentificationSettings(num_resamples=0))
    page = page_of(identified, tmp_path / "i.html")
    rank_1 = next(result.value for result in identified.results if result.metric == "rank_k(1)")
    assert f"CMC curve. Rank 1: {100 * rank_1:.2f} %." in page
    assert page.count('class="plot"') == 2  # CMC, and TPIR against FPIR
    assert "15 have nothing to find" in page
    assert all(note in page for note in identified.notes if ">" not in note)
    assert "rank-5 left out: the gallery has 3 subjects." in identified.notes
    conventions = page[page.index(">Conventions</h2>") :]
    rules = re.findall(r"<th[^>]*>([^<]*)</th><td[^>]*>([^<]*)<", conventions)
    own = {label: text for label, text in rules if label != "All"}
    assert list(own) == [metric_label(result.metric) for result in identified.results]
    assert "k: 1" in own["rank-1 (%)"]
    assert "a tie for first place is a miss" in own["TPIR (%) at FPIR 0.1"]


@pytest.mark.parametrize("protocol", ["open", "ijb_evals"])
def test_the_tpir_curve_is_drawn_by_the_rule_of_the_table(protocol, tmp_path, monkeypatch):
    queries, gallery = made(), made(3, 2)
    settings = IdentificationSettings(fpirs=1 / 15, ranks=1, num_resamples=0, protocol=protocol)
    identified = identify(gallery, queries, settings)
    curves, draw = [], search.drawn
    monkeypatch.setattr(search, "drawn", lambda *of, alt: curves.append(of) or draw(*of, alt=alt))
    page_of(identified, tmp_path / "i.html")
    _, fpirs, tpirs, *_ = curves[-1]
    assert fpirs[0] == pytest.approx(100 / 15)
    assert tpirs[0] == pytest.approx(100 * identified.results[-1].value)
