"""likeness.evaluate, identify and retrieve on files: their numbers against the functions of
likeness.eval.metrics, and the page of `evaluate --report`: which embeddings belong to which scores,
what is refused before the long work, what it can be redone from.
"""

import hashlib
import html
import json
import shlex
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import likeness
from likeness import Embeddings, IdentificationSettings, Trials, VerificationSettings, identify
from likeness.eval.formats import embeddings
from likeness.eval.formats.provenance import sha256
from likeness.eval.formats.trials import write_scores
from likeness.eval.intervals.bootstrap import effective_number, t_interval
from likeness.eval.metrics.identification import rank_k, search_embeddings, tpir, tpir_at_fpir
from likeness.eval.protocols.retrieval import RetrievalSettings, class_bounds
from likeness.eval.scoring.origin import Origin, write_origin
from likeness.metrics import matrix, retrieval_metrics
from tests.scripts import printed, refused, touch

FAST = VerificationSettings(num_resamples=0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    ids = tuple(f"s{i // 3}/{i}" for i in range(12))
    rng = np.random.default_rng(0)
    a, b = np.triu_indices(12, 1)
    trials = Trials(ids, ids, a, b, a // 3 == b // 3)
    for name in ("x", "y"):
        write_scores(tmp_path / f"{name}.txt", trials, trials.target + rng.standard_normal(66))
        rows = rng.standard_normal((13, 4))
        Embeddings((*ids, "unused"), rows).save(tmp_path / f"{name}.npz")
    touch(tmp_path / "faces", *(f"{id}.png" for id in ids))
    for path in sorted((tmp_path / "faces").rglob("*.png")):
        Image.fromarray(rng.integers(0, 255, (20, 20), dtype=np.uint8)).save(path)
    return tmp_path


def test_the_command_writes_the_page_with_what_it_was_made_of(folder):
    media, out = folder / "faces", ("--report", folder / "out", "--resamples", 20)
    inputs = ("--embeddings", folder / "x.npz", "--media", media)
    assert "EER" in printed("evaluate", folder / "x.txt", *inputs, *out)
    page = (folder / "out" / "index.html").read_text()
    assert hashlib.sha256((folder / "x.npz").read_bytes()).hexdigest() in page
    assert shlex.join(["--media", str(media)]) in html.unescape(page)
    assert page.count("<img") >= 12
    assert "unused" not in page  # items outside the trials
    assert "12 of 12 items, from 4 of 4 classes" in page
    written = sorted(path.name for path in (folder / "out").iterdir())
    assert written == ["index.html", "report.json"]


def test_one_file_serves_all_systems_or_each_has_its_own(folder):
    scores = [folder / "x.txt", folder / "y.txt"]
    for inputs, maps in (([folder / "x.npz"], 1), ([folder / "x.npz", folder / "y.npz"], 2)):
        likeness.evaluate(scores, FAST, embeddings=inputs).report(folder / "out")
        assert (folder / "out" / "index.html").read_text().count("Map of the embeddings") == maps


@pytest.mark.parametrize("measure", [likeness.evaluate, likeness.retrieve, likeness.bench])
def test_a_digest_is_that_of_what_was_read(measure, folder, example):
    source, out = folder / ("x.txt" if measure is likeness.evaluate else "few.npz"), folder / "o"
    Embeddings(("a/1", "a/2", "b/1", "b/2"), np.eye(4)).save(folder / "few.npz")
    given = (source,)
    if measure is likeness.bench:
        source = folder / "trials.txt"
        source.write_bytes((example / "trials.txt").read_bytes())
        measure = partial(measure, root=example / "voices", num_resamples=0)
        given = ([example / "runs/voices"], source)
    before, results = sha256(source), [measure(*given) for _ in range(3)]

    def digest(number: int) -> str:
        results[number].save(out)
        return json.loads(out.read_text())["inputs"][str(source)]

    assert digest(0) == before
    source.write_text("others")
    assert digest(1).startswith("unknown: ")
    source.unlink()
    assert digest(2).startswith("unknown: ")
    assert digest(0) == before


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--save-to", "nowhere"), "no place"),
        (("--save-to", "t.json", "--guarantee", "95"), "0.95"),
        (("--save-to", "t.json", "--report", "out", "--embeddings", "few.npz"), "has no embedding"),
    ],
)
def test_what_cannot_be_written_leaves_nothing(folder, options, word, monkeypatch):
    monkeypatch.chdir(folder)
    Embeddings(("s0/0",), np.ones((1, 4))).save("few.npz")
    write_origin("x.txt", Origin("cosine", {"model": "one"}))
    assert word in refused("evaluate", "x.txt", *options, "--json", "r.json")
    assert not any(Path(name).exists() for name in ("t.json", "r.json", "out"))


def test_a_quality_is_measured_by_norm_or_from_a_list(folder, monkeypatch):
    monkeypatch.chdir(folder)
    norms = embeddings.read_embeddings(Path("x.npz"))
    lines = [f"{id} {norm!r}\n" for id, norm in zip(norms.ids, norms.norms.tolist(), strict=True)]
    Path("q.txt").write_text("".join(lines))
    evaluate = partial(likeness.evaluate, ["x.txt", "y.txt"], FAST)
    by_norm, by_list = evaluate(quality="norm", embeddings=norms), evaluate(quality="q.txt")
    assert "AUROC of the quality" in str(by_norm)
    values = [[result.value for result in found.results] for found in (by_norm, by_list)]
    assert values[0] == values[1]
    by_list.save("r.json")
    assert "q.txt" in json.loads(Path("r.json").read_text())["inputs"]
    Path("q.txt").write_text("id quality\ns0/0 1.5\ns0/1 nan\n")
    for quality, word in (("q.txt", "finite number"), ("norm", "embeddings that were scored")):
        with pytest.raises(ValueError, match=word):
            evaluate(quality=quality)


@pytest.fixture
def people(tmp_path):
    """g1: subjects 0-19, g2: 20-39, two templates each; probes: all 40 and ten strangers, three
    each.
    """
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((50, 16))

    def write(name, subjects, count):
        ids = tuple(f"s{subject}/{name}{i}" for subject in subjects for i in range(count))
        centre = centres[np.repeat(subjects, count)]
        rows = centre + 0.9 * rng.standard_normal(centre.shape)
        Embeddings(ids, rows, {"similarity": "simple:0.3"}).save(tmp_path / f"{name}.npz")
        return embeddings.read_embeddings(tmp_path / f"{name}.npz")

    listed = {"g1": (range(20), 2), "g2": (range(20, 40), 2), "p": (range(50), 3)}
    return [write(name, *each) for name, each in {**listed, "m": (range(40), 3)}.items()]


def subjects(one):
    return np.array([name.split("/")[0] for name in one.ids])


def by_metric(evaluation):
    return {result.metric: result for result in evaluation.results}


def test_one_gallery_open_set(people, tmp_path):
    g1, _, p, _ = people
    evaluation = likeness.identify(tmp_path / "g1.npz", tmp_path / "p.npz")
    record = by_metric(evaluation)
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


def test_intervals_are_draws_of_probe_subjects(people):
    g1, _, p, _ = people
    settings = IdentificationSettings(num_resamples=60, ranks=(1,), fpirs=(0.1,))
    record = by_metric(likeness.identify(g1, p, settings))
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


def test_galleries_apart_and_merged(people):
    g1, g2, _, m = people
    names, who = [subjects(g1), subjects(g2)], subjects(m)
    scores = [matrix(m.matrix, gallery.matrix, "cosine") for gallery in (g1, g2)]

    def both(protocol):
        settings = IdentificationSettings(similarity="cosine", protocol=protocol, num_resamples=50)
        return by_metric(identify([g1, g2], m, settings))

    apart = both(IdentificationSettings().protocol)
    for fpir in (0.01, 0.1):
        each = [tpir_at_fpir(s, n, who, fpir) for s, n in zip(scores, names, strict=True)]
        result = apart[f"tpir_at_fpir({fpir:g})"]
        assert result.value == pytest.approx(np.mean(each), abs=1e-12)
        # Each gallery has probes of 20 subjects without a mate, though each probe has one in some.
        assert result.interval is not None
        assert "interval_note" not in result.conventions
    hits = []
    for s, n in zip(scores, names, strict=True):
        mated = np.isin(who, n)
        hits.append(rank_k(s[mated], n, who[mated], 5) * mated.sum())
    assert apart["rank_k(5)"].value == pytest.approx(sum(hits) / who.size, abs=1e-12)
    assert apart["rank_k(5)"].protocol.endswith("galleries apart")
    merged = np.concatenate(scores, axis=1), np.concatenate(names), who, 0.1
    expected = tpir_at_fpir(*merged, protocol="closed")
    assert both("closed")["tpir_at_fpir(0.1)"].value == pytest.approx(expected, abs=1e-12)


def test_subject_lists_and_row_order(people, tmp_path):
    g1, _, p, _ = people
    order, moved = np.random.default_rng(1).permutation(len(p.ids)), []
    for name, item, rows in (("g", g1, np.arange(len(g1.ids))[::-1]), ("q", p, order)):
        ids = tuple(f"{name}-{i}" for i in range(len(item.ids)))
        moved.append(Embeddings(ids, item.matrix[rows], item.meta))
        lines = [f"{a} {b}\n" for a, b in zip(ids, subjects(item)[rows], strict=True)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    settings = IdentificationSettings(num_resamples=50)
    lists = {"gallery_subjects": tmp_path / "g.txt", "probe_subjects": tmp_path / "q.txt"}
    by_ids = by_metric(likeness.identify(g1, p, settings))
    by_lists = by_metric(likeness.identify(*moved, settings, **lists))
    for name, result in by_ids.items():
        again = by_lists[name]
        assert (result.value, result.interval) == (again.value, again.interval)


def test_probes_without_strangers_have_no_open_set(people):
    g1, *_ = people
    with pytest.warns(UserWarning, match="40 of 40 searches"):
        evaluation = likeness.identify(g1, g1, IdentificationSettings(num_resamples=0))
    assert by_metric(evaluation).keys() == {f"rank_k({k})" for k in (1, 5, 10)}
    assert any("TPIR left out" in note for note in evaluation.notes)


@pytest.fixture
def classes(tmp_path):
    """60 items of 12 classes and a gallery of 24, as embedding and label files."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((12, 8))
    paths = {}
    for name, number in (("items", 60), ("gallery", 24)):
        numbers = np.arange(number) % 12
        rows = centres[numbers] + 0.8 * rng.standard_normal((number, 8))
        ids = tuple(f"class{class_:02}/{name}{i}" for i, class_ in enumerate(numbers))
        paths[name], paths[f"{name}_labels"] = tmp_path / f"{name}.npz", tmp_path / f"{name}.txt"
        Embeddings(ids, rows, {"similarity": "dot", "model": "a" * 64}).save(paths[name])
        lines = [f"{item_id} {item_id.split('/')[0]}\n" for item_id in reversed(ids)]
        paths[f"{name}_labels"].write_text("".join(lines))
    return paths


def test_self_retrieval(classes, tmp_path):
    evaluation = likeness.retrieve(classes["items"], classes["items_labels"])
    loaded = embeddings.read_embeddings(classes["items"])
    labels = [item_id.split("/")[0] for item_id in loaded.ids]
    expected = retrieval_metrics(loaded.matrix, labels, similarity="dot")
    evaluation.save(tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert set(document["inputs"]) == {str(classes["items"]), str(classes["items_labels"])}
    for result in evaluation.results:
        assert result.value == pytest.approx(expected[result.metric], abs=1e-12)
        assert result.interval[0] <= result.value <= result.interval[1]
        counts = {"queries": 60, "lone": 0, "gallery": 60, "classes": 12, "subjects": 12}
        assert result.counts == counts
        assert result.conventions["similarity"] == "dot"
    text = evaluation.table()
    assert f"{100 * expected['map@r']:6.2f}" in text
    assert "12 classes (items.txt), 1,000 resamples" in text
    by_ids = likeness.retrieve(classes["items"]).table()
    assert text.replace("items.txt", "first path component of the ids") == by_ids


def test_query_and_gallery(classes):
    settings = RetrievalSettings(similarity="cosine", ks=(1, 3), num_resamples=0)
    sides = {"gallery": classes["gallery"], "gallery_labels": classes["gallery_labels"]}
    queries = classes["items"], classes["items_labels"]
    results = by_metric(likeness.retrieve(*queries, settings, **sides))
    query, gallery = (embeddings.read_embeddings(classes[name]) for name in ("items", "gallery"))
    labels, names = ([id.split("/")[0] for id in side.ids] for side in (query, gallery))
    other_side = {"gallery": gallery.matrix, "gallery_labels": names}
    expected = retrieval_metrics(query.matrix, labels, ks=(1, 3), **other_side)
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


def test_lone_queries(classes):
    labels = classes["items_labels"]
    first, _, rest = labels.read_text().partition("\n")
    labels.write_text(f"{first.split()[0]} nobody-else\n{rest}")
    found = likeness.retrieve(classes["items"], labels, RetrievalSettings(num_resamples=10))
    counts = by_metric(found)["recall@1"].counts
    assert (counts["queries"], counts["lone"], counts["classes"]) == (59, 1, 12)


def test_a_quality_of_the_queries(classes, tmp_path):
    settings = RetrievalSettings(quality="norm", num_resamples=0)
    evaluation = likeness.retrieve(classes["items"], settings=settings)
    by_norm = by_metric(evaluation)
    assert by_norm["r_auroc"].conventions["quality"] == "norm"
    assert 0 < by_norm["r_auroc"].value < 1
    page = evaluation.report(tmp_path / "page").read_text(encoding="utf-8")
    assert "The norm of a query as a sign of a wrong answer" in page
    items = embeddings.read_embeddings(classes["items"])
    norms = dict(zip(items.ids, items.norms.tolist(), strict=True))
    settings = RetrievalSettings(quality=norms, num_resamples=0)
    found = by_metric(likeness.retrieve(items, settings=settings))
    assert found.keys() == by_norm.keys()
    assert all(found[metric].value == result.value for metric, result in by_norm.items())
