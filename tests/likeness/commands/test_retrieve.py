"""From embedding and label files to the table and the JSON results."""

import json

import numpy as np
import pytest

import likeness
from likeness.eval.formats import embeddings
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.intervals.bootstrap import effective_number, t_interval
from likeness.eval.metrics.retrieval import retrieval_metrics
from likeness.eval.protocols.retrieval import RetrievalSettings, class_bounds


@pytest.fixture
def files(tmp_path):
    """60 items of 12 classes and a gallery of 24, as embedding and label files."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((12, 8))
    paths = {}
    for name, number in (("items", 60), ("gallery", 24)):
        classes = np.arange(number) % 12
        rows = (centres[classes] + 0.8 * rng.standard_normal((number, 8))).astype(np.float32)
        ids = tuple(f"class{class_:02}/{name}{i}" for i, class_ in enumerate(classes))
        paths[name], paths[f"{name}_labels"] = tmp_path / f"{name}.npz", tmp_path / f"{name}.txt"
        meta = {"similarity": "dot", "model": "a" * 64}
        embeddings.write_embeddings(paths[name], Embeddings(ids, rows, meta))
        lines = [f"{item_id} {item_id.split('/')[0]}\n" for item_id in reversed(ids)]
        paths[f"{name}_labels"].write_text("".join(lines), encoding="utf-8")
    return paths


def retrieved(*arguments, **options):
    """The results of likeness.retrieve by their metrics."""
    return {result.metric: result for result in likeness.retrieve(*arguments, **options).results}


def test_self_retrieval(files, tmp_path):
    evaluation = likeness.retrieve(files["items"], files["items_labels"])
    loaded = embeddings.read_embeddings(files["items"])
    labels = [item_id.split("/")[0] for item_id in loaded.ids]
    expected = retrieval_metrics(loaded.matrix, labels, similarity="dot")
    evaluation.save(tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert set(document["inputs"]) == {str(files["items"]), str(files["items_labels"])}
    for result in evaluation.results:
        assert result.value == pytest.approx(expected[result.metric], abs=1e-12)
        assert result.interval[0] <= result.value <= result.interval[1]
        counts = {"queries": 60, "lone": 0, "gallery": 60, "classes": 12, "subjects": 12}
        assert result.counts == counts
        assert result.conventions["similarity"] == "dot"
    text = evaluation.table()
    assert f"{100 * expected['map@r']:6.2f}" in text
    assert "12 classes (items.txt), 1,000 resamples" in text
    by_ids = likeness.retrieve(files["items"]).table()
    assert text.replace("items.txt", "first path component of the ids") == by_ids


def test_query_and_gallery(files):
    settings = RetrievalSettings(similarity="cosine", ks=(1, 3), num_resamples=0)
    sides = {"gallery": files["gallery"], "gallery_labels": files["gallery_labels"]}
    results = retrieved(files["items"], files["items_labels"], settings, **sides)
    query, gallery = (embeddings.read_embeddings(files[name]) for name in ("items", "gallery"))
    classes, names = ([id.split("/")[0] for id in side.ids] for side in (query, gallery))
    other_side = {"gallery": gallery.matrix, "gallery_labels": names}
    expected = retrieval_metrics(query.matrix, classes, ks=(1, 3), **other_side)
    for metric, result in results.items():
        assert result.value == pytest.approx(expected[metric])
    assert results.keys() == {metric for metric in expected if not metric.startswith("num")}
    assert {result.interval for result in results.values()} == {None}


def test_intervals_against_repeated_queries():
    """The same draws, with every query of a drawn class written out."""
    rng = np.random.default_rng(4)
    codes = np.sort(np.append(np.arange(7), rng.integers(7, size=30)))
    per_query = {"a": rng.random(37), "b": rng.random(37)}
    result = class_bounds(per_query, codes, RetrievalSettings(num_resamples=200, seed=5))
    draws = np.random.default_rng(5).integers(7, size=(200, 7))
    for name, value in per_query.items():
        means = [np.concatenate([value[codes == drawn] for drawn in draw]).mean() for draw in draws]
        number = effective_number(np.bincount(codes))
        ends = t_interval(np.array(means), value.mean(), 0.95, number)
        assert result[name].ends == pytest.approx(ends, abs=1e-12)


def test_lone_queries(files):
    inputs, labels = (files["items"], files["items_labels"]), files["items_labels"]
    lines = labels.read_text(encoding="utf-8").splitlines()
    lines[0] = lines[0].split()[0] + " nobody-else"
    labels.write_text("\n".join(lines), encoding="utf-8")
    results = retrieved(*inputs, RetrievalSettings(num_resamples=10))
    counts = results["recall@1"].counts
    assert (counts["queries"], counts["lone"], counts["classes"]) == (59, 1, 12)


def test_a_quality_of_the_queries(files, tmp_path):
    settings = RetrievalSettings(quality="norm", num_resamples=0)
    evaluation = likeness.retrieve(files["items"], settings=settings)
    by_norm = {result.metric: result for result in evaluation.results}
    assert by_norm["r_auroc"].conventions["quality"] == "norm"
    assert 0 < by_norm["r_auroc"].value < 1
    page = evaluation.report(tmp_path / "page").read_text(encoding="utf-8")
    assert "The norm of a query as a sign of a wrong answer" in page
    items = embeddings.read_embeddings(files["items"])
    norms = dict(zip(items.ids, items.norms.tolist(), strict=True))
    found = retrieved(items, settings=RetrievalSettings(quality=norms, num_resamples=0))
    assert {metric: result.value for metric, result in found.items()} == {
        metric: result.value for metric, result in by_norm.items()
    }
