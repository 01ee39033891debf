"""From embedding and label files to the table and the JSON results."""

import json

import numpy as np
import pytest

import likeness
from likeness.cli import main
from likeness.eval.bootstrap import effective_number, t_interval
from likeness.eval.formats import embeddings
from likeness.eval.protocols.retrieval import RetrievalSettings, class_bounds
from likeness.eval.retrieval import retrieval_metrics
from likeness.eval.types import Embeddings


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
        paths[name] = tmp_path / f"{name}.npz"
        embeddings.write(
            paths[name], Embeddings(ids, rows, {"similarity": "dot", "model": "a" * 64})
        )
        paths[f"{name}_labels"] = tmp_path / f"{name}.txt"
        paths[f"{name}_labels"].write_text(
            "".join(f"{item_id} {item_id.split('/')[0]}\n" for item_id in reversed(ids)),
            encoding="utf-8",
        )
    return paths


def table_of(*arguments, json_file=None, **options):
    """The table of likeness.retrieve, whose results are saved."""
    evaluation = likeness.retrieve(*arguments, **options)
    if json_file:
        evaluation.save(json_file)
    return evaluation.table()


def values(file):
    return {
        result["metric"]: result
        for result in json.loads(file.read_text(encoding="utf-8"))["results"]
    }


def test_self_retrieval(files, tmp_path):
    out = tmp_path / "out.json"
    text = table_of(files["items"], files["items_labels"], json_file=out)
    loaded = embeddings.read(files["items"])
    expected = retrieval_metrics(
        loaded.matrix, [item_id.split("/")[0] for item_id in loaded.ids], similarity="dot"
    )
    document = json.loads(out.read_text(encoding="utf-8"))
    assert document["schema"] == "likeness.results/1"
    assert set(document["inputs"]) == {str(files["items"]), str(files["items_labels"])}
    for metric, result in values(out).items():
        assert result["value"] == pytest.approx(expected[metric], abs=1e-12)
        assert result["interval"][0] <= result["value"] <= result["interval"][1]
        assert result["counts"] == {
            "queries": 60,
            "lone": 0,
            "gallery": 60,
            "classes": 12,
            "subjects": 12,
        }
        assert result["conventions"]["similarity"] == "dot"
    assert f"{100 * expected['map@r']:6.2f}" in text
    assert "MAP@R" in text
    assert "12 classes (items.txt), 1,000 resamples" in text
    assert text == table_of(files["items"], files["items_labels"])
    assert text.replace("items.txt", "first path component of the ids") == table_of(files["items"])


def test_query_and_gallery(files, tmp_path):
    out = tmp_path / "out.json"
    table_of(
        files["items"],
        files["items_labels"],
        RetrievalSettings(similarity="cosine", ks=(1, 3), num_resamples=0),
        gallery=files["gallery"],
        gallery_labels=files["gallery_labels"],
        json_file=out,
    )
    query, gallery = embeddings.read(files["items"]), embeddings.read(files["gallery"])
    classes, gallery_classes = (
        [item_id.split("/")[0] for item_id in side.ids] for side in (query, gallery)
    )
    expected = retrieval_metrics(
        query.matrix, classes, gallery=gallery.matrix, gallery_labels=gallery_classes, ks=(1, 3)
    )
    assert {metric: result["value"] for metric, result in values(out).items()} == {
        k: pytest.approx(v) for k, v in expected.items() if not k.startswith("num")
    }
    assert {result["interval"] for result in values(out).values()} == {None}


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


def test_lone_queries(files, tmp_path):
    lines = files["items_labels"].read_text(encoding="utf-8").splitlines()
    lines[0] = lines[0].split()[0] + " nobody-else"
    files["items_labels"].write_text("\n".join(lines), encoding="utf-8")
    out = tmp_path / "out.json"
    table_of(
        files["items"], files["items_labels"], RetrievalSettings(num_resamples=10), json_file=out
    )
    counts = values(out)["recall@1"]["counts"]
    assert (counts["queries"], counts["lone"], counts["classes"]) == (59, 1, 12)
    value = values(out)["map@r"]["value"]
    table_of(
        files["items"],
        files["items_labels"],
        RetrievalSettings(num_resamples=10, lone="zero"),
        json_file=out,
    )
    assert values(out)["map@r"]["value"] == pytest.approx(value * 59 / 60)
    with pytest.raises(ValueError, match=r"1 of 60 queries .*'class11/items59'"):
        table_of(files["items"], files["items_labels"], RetrievalSettings(lone="error"))


def test_a_quality_of_the_queries(files, tmp_path, capsys):
    out = tmp_path / "out.json"
    arguments = ["retrieve", "--embeddings", str(files["items"]), "--json", str(out)]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--quality", "norm", "--report", str(tmp_path / "page")])
    assert not ended.value.code
    assert "R-AUROC" in capsys.readouterr().out
    by_norm = values(out)
    assert by_norm["r_auroc"]["conventions"]["quality"] == "norm"
    assert 0 < by_norm["e_aurc"]["value"] < by_norm["aurc"]["value"] < 1
    page = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
    assert "The norm of a query as a sign of a wrong answer" in page
    items = embeddings.read(files["items"])
    norms = dict(zip(items.ids, items.norms.tolist(), strict=True))
    found = likeness.retrieve(items, settings=RetrievalSettings(quality=norms, num_resamples=0))
    of = {result.metric: result.value for result in found.results}
    assert of == {metric: result["value"] for metric, result in by_norm.items()}
