"""likeness.identify on files: its numbers against the functions of
likeness.eval.metrics.identification.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import likeness
from likeness.eval.formats import embeddings
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.provenance import sha256
from likeness.eval.intervals.bootstrap import effective_number, t_interval
from likeness.eval.metrics.identification import rank_k, search_embeddings, tpir, tpir_at_fpir
from likeness.eval.metrics.similarity import matrix
from likeness.eval.protocols.identification import IdentificationSettings, identify


@pytest.fixture
def files(tmp_path):
    """g1: subjects 0-19, g2: 20-39, two templates each; probes: all 40 and ten strangers, three
    each.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((50, 16))

    def write(name, subjects, count):
        ids = tuple(f"s{subject}/{name}{i}" for subject in subjects for i in range(count))
        centre = centres[np.repeat(subjects, count)]
        rows = centre + 0.9 * rng.standard_normal(centre.shape)
        similarity = {"similarity": "simple:0.3"}
        embeddings.write_embeddings(tmp_path / f"{name}.npz", Embeddings(ids, rows, similarity))
        return embeddings.read_embeddings(tmp_path / f"{name}.npz")

    listed = {"g1": (range(20), 2), "g2": (range(20, 40), 2), "p": (range(50), 3)}
    return [write(name, *each) for name, each in {**listed, "m": (range(40), 3)}.items()]


def subjects(one):
    return np.array([name.split("/")[0] for name in one.ids])


def identified(*arguments, **options):
    """The results of likeness.identify by their metrics."""
    return {result.metric: result for result in likeness.identify(*arguments, **options).results}


def test_one_gallery_open_set(files, tmp_path):
    g1, _, p, _ = files
    evaluation = likeness.identify(tmp_path / "g1.npz", tmp_path / "p.npz")
    record = {result.metric: result for result in evaluation.results}
    scores, names, who = matrix(p.matrix, g1.matrix, "simple:0.3"), subjects(g1), subjects(p)
    mated = np.isin(who, names)
    for k in (1, 5, 10):
        expected = rank_k(scores[mated], names, who[mated], k)
        assert record[f"rank_k({k})"].value == pytest.approx(expected, abs=1e-12)
    searched = search_embeddings(p.matrix, g1.matrix, names, who, similarity="simple:0.3")
    for fpir in (0.01, 0.1):
        result = record[f"tpir_at_fpir({fpir:g})"]
        assert result.value == pytest.approx(tpir_at_fpir(scores, names, who, fpir), abs=1e-12)
        assert result.threshold == pytest.approx(tpir(searched, fpir).threshold)
        assert result.conventions["rule"].startswith("open set")
        low, high = result.interval
        assert 0 <= low <= result.value <= high <= 1
    result = record["rank_k(1)"]
    probes = {"probes": 150, "mated_probes": 60, "subjects": 50}
    assert result.counts == {**probes, "gallery_templates": 40, "gallery_subjects": 20}
    assert result.protocol == "identification 1:N, open set"
    assert result.conventions["similarity"] == "simple:0.3"
    assert f"{100 * result.value:.2f}" in evaluation.table()
    evaluation.save(tmp_path / "out.json")
    digests = json.loads((tmp_path / "out.json").read_text())["inputs"]
    assert digests[str(tmp_path / "p.npz")] == sha256(tmp_path / "p.npz")


def test_intervals_are_draws_of_probe_subjects(files):
    g1, _, p, _ = files
    settings = IdentificationSettings(num_resamples=60, ranks=(1,), fpirs=(0.1,))
    record = identified(g1, p, settings)
    scores, names, who = matrix(p.matrix, g1.matrix, "simple:0.3"), subjects(g1), subjects(p)
    known, number = np.unique(who, return_inverse=True)
    rng, draws = np.random.default_rng(0), []
    for _ in range(60):
        c = np.bincount(rng.integers(known.size, size=known.size), minlength=known.size)
        rows = np.repeat(np.arange(who.size), c[number])
        mated = rows[np.isin(who[rows], names)]
        at_rank = rank_k(scores[mated], names, who[mated], 1)
        draws.append((at_rank, tpir_at_fpir(scores[rows], names, who[rows], 0.1)))
    has_mate = np.isin(who, names)
    of_kinds = [np.unique(who[kind], return_counts=True)[1] for kind in (has_mate, ~has_mate)]
    for i, metric in enumerate(("rank_k(1)", "tpir_at_fpir(0.1)")):
        fewer = of_kinds[0] if i == 0 else min(of_kinds, key=len)
        values = np.array([draw[i] for draw in draws])
        ends = t_interval(values, record[metric].value, 0.95, effective_number(fewer))
        assert record[metric].interval == pytest.approx(ends, abs=1e-12)


def test_galleries_apart_and_merged(files):
    g1, g2, _, m = files
    names, who = [subjects(g1), subjects(g2)], subjects(m)
    scores = [matrix(m.matrix, gallery.matrix, "cosine") for gallery in (g1, g2)]

    def both(protocol):
        settings = IdentificationSettings(similarity="cosine", protocol=protocol, num_resamples=50)
        return {one.metric: one for one in identify([g1, g2], m, settings).results}

    apart = both(IdentificationSettings().protocol)
    for fpir in (0.01, 0.1):
        each = [tpir_at_fpir(s, n, who, fpir) for s, n in zip(scores, names, strict=True)]
        assert apart[f"tpir_at_fpir({fpir:g})"].value == pytest.approx(np.mean(each), abs=1e-12)
    hits = [
        rank_k(s[np.isin(who, n)], n, who[np.isin(who, n)], 5) * np.isin(who, n).sum()
        for s, n in zip(scores, names, strict=True)
    ]
    assert apart["rank_k(5)"].value == pytest.approx(sum(hits) / who.size, abs=1e-12)
    assert apart["rank_k(5)"].protocol.endswith("galleries apart")
    merged = np.concatenate(scores, axis=1), np.concatenate(names), who, 0.1
    expected = tpir_at_fpir(*merged, protocol="closed")
    assert both("closed")["tpir_at_fpir(0.1)"].value == pytest.approx(expected, abs=1e-12)


def test_subject_lists_and_row_order(files, tmp_path):
    g1, _, p, _ = files
    order, moved = np.random.default_rng(1).permutation(len(p.ids)), []
    for name, item, rows in (("g", g1, np.arange(len(g1.ids))[::-1]), ("q", p, order)):
        ids = tuple(f"{name}-{i}" for i in range(len(item.ids)))
        moved.append(Embeddings(ids, item.matrix[rows], item.meta))
        lines = [f"{a} {b}\n" for a, b in zip(ids, subjects(item)[rows], strict=True)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    settings = IdentificationSettings(num_resamples=50)
    lists = {"gallery_subjects": tmp_path / "g.txt", "probe_subjects": tmp_path / "q.txt"}
    by_ids = identified(g1, p, settings)
    by_lists = identified(*moved, settings, **lists)
    for name, result in by_ids.items():
        again = by_lists[name]
        assert (result.value, result.interval) == (again.value, again.interval)


def test_probes_without_strangers_have_no_open_set(files):
    g1, *_ = files
    with pytest.warns(UserWarning, match="40 of 40 searches"):
        evaluation = likeness.identify(g1, g1, IdentificationSettings(num_resamples=0))
    assert {result.metric for result in evaluation.results} == {
        "rank_k(1)",
        "rank_k(5)",
        "rank_k(10)",
    }
    assert any("TPIR left out" in note for note in evaluation.notes)
