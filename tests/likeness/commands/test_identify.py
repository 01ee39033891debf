"""likeness identify: files in, table and JSON out; every number against the functions of
likeness.eval.identification, and faces of ORL by their pixels.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

import likeness
from likeness.eval.bootstrap import effective_number, t_interval
from likeness.eval.formats import embeddings
from likeness.eval.identification import rank_k, search_embeddings, tpir, tpir_at_fpir
from likeness.eval.protocols.identification import IdentificationSettings
from likeness.eval.similarity import matrix
from likeness.eval.types import Embeddings
from likeness.eval.verification import eer


@pytest.fixture
def files(tmp_path):
    """g1: subjects 0-19, g2: 20-39, two templates each; probes: all 40 and ten strangers, three
    each.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((50, 16))

    def write(name, subjects, count):
        ids = tuple(f"s{subject}/{name}{i}" for subject in subjects for i in range(count))
        rows = np.array(
            [
                centres[subject] + 0.9 * rng.standard_normal(16)
                for subject in subjects
                for _ in range(count)
            ]
        )
        embeddings.write(
            tmp_path / f"{name}.npz", Embeddings(ids, rows, {"similarity": "simple:0.3"})
        )
        return embeddings.read(tmp_path / f"{name}.npz")

    return (
        tmp_path,
        write("g1", range(20), 2),
        write("g2", range(20, 40), 2),
        write("p", range(50), 3),
        write("m", range(40), 3),
    )


def subjects(one):
    return np.array([name.split("/")[0] for name in one.ids])


def table_of(*arguments, json_file=None, **options):
    """The table of likeness.identify, whose results are saved."""
    evaluation = likeness.identify(*arguments, **options)
    if json_file:
        evaluation.save(json_file)
    return evaluation.table()


def results(path):
    document = json.loads(path.read_text())
    assert document["schema"] == "likeness.results/1"
    return {result["metric"]: result for result in document["results"]}, document


def test_one_gallery_open_set(files):
    folder, g1, _, p, _ = files
    text = table_of(folder / "g1.npz", folder / "p.npz", json_file=folder / "out.json")
    record, document = results(folder / "out.json")
    scores, names, who = matrix(p.matrix, g1.matrix, "simple:0.3"), subjects(g1), subjects(p)
    mated = np.isin(who, names)
    for k in (1, 5, 10):
        assert record[f"rank_k({k})"]["value"] == pytest.approx(
            rank_k(scores[mated], names, who[mated], k), abs=1e-12
        )
    for fpir in (0.01, 0.1):
        result = record[f"tpir_at_fpir({fpir:g})"]
        assert result["value"] == pytest.approx(tpir_at_fpir(scores, names, who, fpir), abs=1e-12)
        assert result["threshold"] == pytest.approx(
            tpir(
                search_embeddings(p.matrix, g1.matrix, names, who, similarity="simple:0.3"), fpir
            ).threshold
        )
        assert result["conventions"]["rule"].startswith("open set")
        low, high = result["interval"]
        assert 0 <= low <= result["value"] <= high <= 1
    result = record["rank_k(1)"]
    assert result["counts"] == {
        "probes": 150,
        "mated_probes": 60,
        "gallery_templates": 40,
        "gallery_subjects": 20,
        "subjects": 50,
    }
    assert (result["protocol"], result["conventions"]["similarity"]) == (
        "identification 1:N, open set",
        "simple:0.3",
    )
    assert (
        document["inputs"][str(folder / "p.npz")]
        == hashlib.sha256((folder / "p.npz").read_bytes()).hexdigest()
    )
    assert f"{100 * result['value']:.2f}" in text


def test_intervals_are_draws_of_probe_subjects(files):
    folder, g1, _, p, _ = files
    table_of(
        folder / "g1.npz",
        folder / "p.npz",
        IdentificationSettings(num_resamples=60, ranks=(1,), fpirs=(0.1,)),
        json_file=folder / "out.json",
    )
    document, _ = results(folder / "out.json")
    scores, names, who = matrix(p.matrix, g1.matrix, "simple:0.3"), subjects(g1), subjects(p)
    known, number = np.unique(who, return_inverse=True)
    rng, draws = np.random.default_rng(0), []
    for _ in range(60):
        c = np.bincount(rng.integers(known.size, size=known.size), minlength=known.size)
        rows = np.repeat(np.arange(who.size), c[number])
        mated = rows[np.isin(who[rows], names)]
        draws.append(
            (
                rank_k(scores[mated], names, who[mated], 1),
                tpir_at_fpir(scores[rows], names, who[rows], 0.1),
            )
        )
    has_mate = np.isin(who, names)
    of_kinds = [np.unique(who[kind], return_counts=True)[1] for kind in (has_mate, ~has_mate)]
    for i, metric in enumerate(("rank_k(1)", "tpir_at_fpir(0.1)")):
        fewer = of_kinds[0] if i == 0 else min(of_kinds, key=len)
        values = np.array([draw[i] for draw in draws])
        ends = t_interval(values, document[metric]["value"], 0.95, effective_number(fewer))
        assert document[metric]["interval"] == pytest.approx(ends, abs=1e-12)


def test_galleries_apart_and_merged(files):
    folder, g1, g2, _, m = files
    galleries, names, who = (g1, g2), [subjects(g1), subjects(g2)], subjects(m)
    scores = [matrix(m.matrix, embedded.matrix, "cosine") for embedded in galleries]
    table_of(
        folder / "g1.npz",
        folder / "m.npz",
        IdentificationSettings(similarity="cosine", num_resamples=50),
        second_gallery=folder / "g2.npz",
        json_file=folder / "out.json",
    )
    document, _ = results(folder / "out.json")
    for fpir in (0.01, 0.1):
        assert document[f"tpir_at_fpir({fpir:g})"]["value"] == pytest.approx(
            np.mean([tpir_at_fpir(s, n, who, fpir) for s, n in zip(scores, names, strict=True)]),
            abs=1e-12,
        )
    hits = [
        rank_k(s[np.isin(who, n)], n, who[np.isin(who, n)], 5) * np.isin(who, n).sum()
        for s, n in zip(scores, names, strict=True)
    ]
    assert document["rank_k(5)"]["value"] == pytest.approx(sum(hits) / who.size, abs=1e-12)
    assert document["rank_k(5)"]["protocol"].endswith("galleries apart")
    merged = folder / "closed.json"
    table_of(
        folder / "g1.npz",
        folder / "m.npz",
        IdentificationSettings(similarity="cosine", protocol="closed", num_resamples=50),
        second_gallery=folder / "g2.npz",
        json_file=merged,
    )
    document, _ = results(merged)
    assert document["tpir_at_fpir(0.1)"]["value"] == pytest.approx(
        tpir_at_fpir(
            np.concatenate(scores, axis=1), np.concatenate(names), who, 0.1, protocol="closed"
        ),
        abs=1e-12,
    )


def test_subject_lists_and_row_order(files):
    folder, g1, _, p, _ = files
    order = np.random.default_rng(1).permutation(len(p.ids))
    for name, item, rows in (("g", g1, np.arange(len(g1.ids))[::-1]), ("q", p, order)):
        ids = tuple(f"{name}-{i}" for i in range(len(item.ids)))
        embeddings.write(folder / f"{name}.npz", Embeddings(ids, item.matrix[rows], item.meta))
        (folder / f"{name}.txt").write_text(
            "".join(f"{a} {b}\n" for a, b in zip(ids, subjects(item)[rows], strict=True))
        )
    first = table_of(
        folder / "g1.npz",
        folder / "p.npz",
        IdentificationSettings(num_resamples=50),
        json_file=folder / "a.json",
    )
    second = table_of(
        folder / "g.npz",
        folder / "q.npz",
        IdentificationSettings(num_resamples=50),
        gallery_subjects=folder / "g.txt",
        probe_subjects=folder / "q.txt",
        json_file=folder / "b.json",
    )
    a, b = results(folder / "a.json")[0], results(folder / "b.json")[0]
    assert {name: (result["value"], result["interval"]) for name, result in a.items()} == {
        name: (result["value"], result["interval"]) for name, result in b.items()
    }
    assert first.replace("first path component of the ids", "given mapping") == second


def test_a_metric_that_cannot_be_computed_is_left_out_with_a_note(files):
    folder = files[0]
    text = table_of(
        folder / "g1.npz", folder / "g1.npz", IdentificationSettings(ranks=(1, 50), num_resamples=0)
    )
    for words in ("rank-50 left out", "TPIR left out", "40 probes", "rank-1 (%)"):
        assert words in text


def test_orl_faces_by_their_pixels(shared, tmp_path):
    rows, names = [], []
    for folder in sorted((shared / "data" / "orl").glob("s*")):
        for file in sorted(folder.glob("*.pgm")):
            rows.append(
                np.frombuffer(file.read_bytes()[-92 * 112 :], dtype=np.uint8).astype(np.float32)
            )
            names.append(f"{folder.name}/{file.stem}")
    faces, who = np.array(rows), np.array([name.split("/")[0] for name in names])
    faces -= faces.mean(axis=1, keepdims=True)
    i, j = np.triu_indices(len(faces), 1)
    scores = matrix(faces, faces)[i, j]
    assert eer(scores[who[i] == who[j]], scores[who[i] != who[j]]) == pytest.approx(0.16, abs=0.03)
    enrolled = np.array(
        [name.endswith("/1") and int(name[1:].split("/")[0]) <= 15 for name in names]
    )
    for name, chosen in (
        ("g", enrolled),
        ("p", ~np.array([name.endswith("/1") for name in names])),
    ):
        embeddings.write(
            tmp_path / f"{name}.npz", Embeddings(tuple(np.array(names)[chosen]), faces[chosen])
        )
    table_of(
        tmp_path / "g.npz",
        tmp_path / "p.npz",
        IdentificationSettings(num_resamples=100),
        json_file=tmp_path / "o.json",
    )
    document, _ = results(tmp_path / "o.json")
    assert document["rank_k(1)"]["counts"]["mated_probes"] == 135
    assert 0.5 < document["rank_k(1)"]["value"] < document["rank_k(5)"]["value"] <= 1
    assert document["tpir_at_fpir(0.1)"]["value"] < document["rank_k(1)"]["value"]
