"""Galleries: every store gives what a plain loop gives, changes are kept or undone whole, strangers
and other models are refused.
"""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eval.similarity import pairs
from eval.types import Embeddings
from tests.disk_calls import recorded
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.faiss import FaissGallery
from toolkit.gallery.lance import LanceGallery
from toolkit.gallery.open import open_gallery, recall
from toolkit.gallery.search import top
from toolkit.gallery.store import FILE

META = {"model": "a" * 64, "modality": "speaker", "similarity": "cosine"}
ROOT = Path(__file__).parents[3]


def embeddings(matrix: Any, meta: dict[str, str] = META) -> Embeddings:
    rows = np.asarray(matrix, dtype=np.float32)
    return Embeddings(tuple(f"u{i}" for i in range(len(rows))), rows, meta)


def exact(folder: Path | None, **how: Any) -> ExactGallery:
    return ExactGallery(folder, META, **how)


def faiss(folder: Path | None, **how: Any) -> FaissGallery:
    pytest.importorskip("faiss")
    return FaissGallery(folder, META, **how)


def lance(folder: Path, **how: Any) -> LanceGallery:
    pytest.importorskip("lancedb")
    return LanceGallery(folder, META, **how)


stores = pytest.mark.parametrize("store", [exact, faiss, lance])


@stores
@pytest.mark.parametrize("similarity", ["cosine", "dot", "simple:0.4"])
@pytest.mark.parametrize("pooling", ["mean", "norm_weighted"])
def test_a_store_finds_what_a_loop_finds(
    store: Callable[..., Any], similarity: str, pooling: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    rows, subjects = (
        rng.normal(size=(60, 7)) * rng.uniform(0.5, 3, size=(60, 1)),
        [f"s{i % 23}" for i in range(60)],
    )
    gallery = store(tmp_path, similarity=similarity, pooling=pooling)
    gallery.enrol(embeddings(rows[:40]), subjects[:40])
    gallery.enrol(embeddings(rows[40:]), subjects[40:])  # more of the same subjects
    gallery.update(embeddings(rows[:2] * 2), ["s5", "s5"])
    gallery.remove(["s7", "s0"])
    mine = {
        subject: [rows[i] for i in range(60) if subjects[i] == subject]
        for subject in subjects
        if subject not in ("s7", "s0")
    } | {"s5": [rows[0] * 2, rows[1] * 2]}
    templates = {
        name: sum(some) / (len(some) if pooling == "mean" else 1) for name, some in mine.items()
    }
    probes = rng.normal(size=(9, 7))
    for probe, result in zip(probes, gallery.search(embeddings(probes), k=4), strict=True):
        norms = {name: float(np.linalg.norm(row)) for name, row in templates.items()}
        size = float(np.linalg.norm(probe))
        scores = {
            name: row @ probe / (norms[name] * size)
            if similarity == "cosine"
            else row @ probe - (0.4 * norms[name] * size if "simple" in similarity else 0)
            for name, row in templates.items()
        }
        best = sorted(scores, key=lambda one: -scores[one])[:4]
        assert [entry.subject for entry in result] == best
        assert [match.score for match in result] == pytest.approx(
            [scores[value] for value in best], rel=1e-5, abs=1e-5
        )
        assert [entry.norm for entry in result] == pytest.approx(
            [norms[value] for value in best], rel=1e-5
        )
    counts = {entry.subject: entry.enrolments for entry in gallery.entries()}
    assert counts == {name: len(some) for name, some in mine.items()}
    gallery.close()
    again = store(tmp_path)  # from the disk, which says similarity and pooling
    assert again.similarity == similarity
    assert len(again) == len(templates)
    again.close()


@stores
def test_what_is_on_disk_comes_back(store: Callable[..., Any], tmp_path: Path) -> None:
    rows = np.random.default_rng(1).normal(size=(5, 4))
    gallery = store(tmp_path / "g", pooling="norm_weighted")
    assert gallery.search(embeddings(rows[:2])) == [(), ()]
    gallery.enrol(embeddings(rows), ["ann", "bob", "o'neil", "ann", "日本 x"])
    before = gallery.search(embeddings(rows), k=9)
    gallery.close()
    again = open_gallery(tmp_path / "g", META)
    assert len(again) == 4
    for mine, theirs in zip(again.search(embeddings(rows), k=9), before, strict=True):
        assert [entry.subject for entry in mine] == [entry.subject for entry in theirs]
        assert [match.score for match in mine] == pytest.approx([match.score for match in theirs])
    again.remove(["o'neil"])
    with pytest.raises(ValueError, match="eve"):
        again.remove(["ann", "eve", "o'neil"])
    assert {entry.subject for entry in again.entries()} == {"ann", "bob", "日本 x"}
    again.close()
    assert type(open_gallery(tmp_path / "g")).__name__ == (
        "LanceGallery" if store is lance else "ExactGallery"
    )


@stores
def test_strangers_and_other_models_are_refused(store: Callable[..., Any], tmp_path: Path) -> None:
    gallery = store(tmp_path)
    gallery.enrol(embeddings([[1, 0], [0, 1]]), ["ann", "bob"])
    probes = embeddings([[1, 0.1], [-1, -1]])
    assert [
        [entry.subject for entry in match] for match in gallery.search(probes, threshold=0.5)
    ] == [
        ["ann"],
        [],
    ]
    score = gallery.search(probes)[0][0].score
    assert len(gallery.search(probes, threshold=score)[0]) == 1  # accept if score >= threshold
    for other, message in (
        (
            META | {"model": "b" * 64},
            "are of model bbbbbbbbbbbbbbbb, but the gallery is of model aaaaaaaaaaaaaaaa",
        ),
        ({}, "do not say which"),
    ):
        for name, arguments in (("search", ()), ("enrol", (["eve"],)), ("update", (["ann"],))):
            with pytest.raises(ValueError, match=message):
                getattr(gallery, name)(embeddings([[1, 0]], other), *arguments)
    with pytest.raises(ValueError, match="3 dimensions, but the gallery has 2"):
        gallery.search(embeddings([[1, 0, 0]]))
    with pytest.raises(ValueError, match="k = 0"):
        gallery.search(probes, k=0)
    for name in ("", " ann", "a\nb", "x" * 257):
        with pytest.raises(ValueError, match="1 subjects have unusable names"):
            gallery.enrol(embeddings([[1, 0], [1, 0]]), ["ok", name])
    with pytest.raises(ValueError, match="1 subjects for 2"):
        gallery.enrol(probes, ["ann"])
    with pytest.raises(ValueError, match="not enrolled"):
        gallery.update(embeddings([[1, 0]]), ["eve"])
    assert len(gallery) == 2
    gallery.close()
    with pytest.raises(ValueError, match=r"was made with model 'a.*and not 'b"):
        type(gallery)(tmp_path, META | {"model": "b" * 64})
    with pytest.raises(ValueError, match="unknown similarity"):
        type(gallery)(tmp_path / "new", {"similarity": "cosin"})


@stores
def test_the_same_model_with_other_settings_is_refused_both_ways(
    store: Callable[..., Any], tmp_path: Path
) -> None:
    """Crops, flips and detectors change what a model gives, whether gallery or probe had them."""
    crops = META | {"crops": "3 x 4 s, mean"}
    plain, cropped = (
        store(tmp_path / "plain"),
        type(store(tmp_path / "other"))(tmp_path / "cropped", crops),
    )
    for gallery, mine, other in ((plain, META, crops), (cropped, crops, META)):
        gallery.enrol(embeddings([[1, 0]], mine), ["ann"])
        assert gallery.search(embeddings([[1, 0]], mine))[0][0].subject == "ann"
        for name, arguments in (("search", ()), ("enrol", (["eve"],)), ("update", (["ann"],))):
            with pytest.raises(ValueError, match=r"crops .* and not "):
                getattr(gallery, name)(embeddings([[1, 0]], other), *arguments)
        gallery.close()
    for folder, meta in (("plain", crops), ("cropped", META)):
        with pytest.raises(ValueError, match=r"was made with crops .* and not "):
            open_gallery(tmp_path / folder, meta)
    assert len(open_gallery(tmp_path / "cropped")) == 1  # who says nothing takes what it says


def test_a_table_that_was_begun_and_never_finished_is_no_obstacle(tmp_path: Path) -> None:
    """A kill in the very first write leaves a folder with data and no version."""
    (tmp_path / "gallery.lance" / "data").mkdir(parents=True)
    (tmp_path / "gallery.lance" / "data" / "0.lance").write_bytes(b"half")
    gallery = lance(tmp_path)
    assert len(gallery) == 0
    gallery.enrol(embeddings([[1, 0], [0, 1]]), ["ann", "bob"])
    again = lance(tmp_path)
    assert [match.subject for match in again.search(embeddings([[0, 1]]), k=1)[0]] == ["bob"]


def test_a_reader_that_was_there_first_sees_the_first_enrolment(tmp_path: Path) -> None:
    reader, counter, stranger = (
        lance(tmp_path),
        lance(tmp_path),
        type(lance(tmp_path))(tmp_path, META | {"model": "b" * 64}),
    )
    assert (len(reader), reader.entries(), reader.search(embeddings([[1, 0]]))) == (0, [], [()])
    lance(tmp_path, pooling="norm_weighted").enrol(
        embeddings([[1, 0], [2, 0], [0, 1]]), ["ann", "ann", "bob"]
    )
    assert reader.search(embeddings([[0, 1]]), k=1)[0][0].subject == "bob"
    # pooled as the table says: by the norms, a sum
    assert {(entry.subject, entry.norm) for entry in reader.entries()} == {
        ("ann", 3.0),
        ("bob", 1.0),
    }
    assert (len(counter), counter.dim, counter.meta) == (2, 2, META)
    for _ in range(2):  # also when it is asked again
        with pytest.raises(ValueError, match=r"was made with model 'a.*and not 'b"):
            stranger.search(embeddings([[1, 0]], META | {"model": "b" * 64}))
    with pytest.raises(ValueError, match="3 dimensions, but the gallery has 2"):
        type(reader)(tmp_path, META).enrol(embeddings([[1, 0, 0]]), ["eve"])


@settings(max_examples=60)
@given(
    st.integers(1, 4).flatmap(
        lambda queries: st.tuples(
            st.just(queries), st.lists(st.integers(-3, 3), min_size=queries, max_size=queries * 40)
        )
    ),
    st.integers(1, 12),
    st.integers(1, 9),
)
def test_partial_selection_is_a_stable_sort(
    drawn: tuple[int, list[int]], k: int, width: int
) -> None:
    queries, numbers = drawn
    scores = np.array(numbers[: len(numbers) // queries * queries], dtype=np.float32).reshape(
        queries, -1
    )
    k = min(k, scores.shape[1])
    values, places = top(lambda begin, end: scores[:, begin:end], scores.shape[1], max(width, k), k)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("similarity", ["cosine", "simple", "euclidean", "vmf_kl"])
def test_many_blocks_against_all_pairs(similarity: str) -> None:
    rng = np.random.default_rng(2)
    rows, probes = (
        rng.normal(size=(9_000, 5)).astype(np.float32),
        rng.normal(size=(300, 5)).astype(np.float32),
    )
    rows[5_000:5_010] = rows[17]  # ties
    gallery = ExactGallery(None, META, similarity=similarity)
    gallery.enrol(embeddings(rows), [f"{i}" for i in range(9_000)])
    matches = gallery.search(embeddings(probes), k=12)
    for query in range(0, 300, 60):
        scores = pairs(rows, probes, np.arange(9_000), np.full(9_000, query), similarity)
        assert [match.score for match in matches[query]] == pytest.approx(
            np.sort(scores)[::-1][:12].tolist(), rel=1e-5, abs=1e-6
        )
    if similarity == "cosine":
        tied = gallery.search(embeddings(rows[17:18]), k=5)[0]
        assert [entry.subject for entry in tied] == ["17", "5000", "5001", "5002", "5003"]


@pytest.mark.parametrize("store", [exact, lance])
def test_removed_rows_leave_the_disk(store: Callable[..., Any], tmp_path: Path) -> None:
    rows = np.random.default_rng(3).normal(size=(4, 64)).astype(np.float32)
    gallery = store(tmp_path / "g")
    gallery.enrol(embeddings(rows), ["ann", "bob", "cy", "dot"])
    gallery.remove(["bob"])
    gallery.update(embeddings(rows[3:] + 1), ["dot"])
    contents = b"".join(path.read_bytes() for path in (tmp_path / "g").rglob("*") if path.is_file())
    assert rows[0].tobytes() in contents
    assert rows[1].tobytes() not in contents
    assert rows[3].tobytes() not in contents
    assert (tmp_path / "g").stat().st_mode & 0o077 == 0
    gallery.close()


def test_what_is_enrolled_is_on_the_disk_before_the_answer(tmp_path: Path) -> None:
    """SQLite synchronises inside of its library, so that its settings are all that a test sees."""
    gallery = exact(tmp_path / "g")
    names = ("synchronous", "secure_delete", "journal_mode", "locking_mode")
    assert [gallery._store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in names] == [
        2,
        1,
        "truncate",
        "exclusive",
    ]
    gallery.close()


def test_what_lancedb_writes_is_on_the_disk_before_older_versions_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = np.random.default_rng(3).normal(size=(4, 8)).astype(np.float32)
    gallery = lance(tmp_path)
    calls = recorded(monkeypatch, tmp_path)
    changes: list[Callable[[], None]] = [
        lambda: gallery.enrol(embeddings(rows), ["ann", "bob", "cy", "dot"]),  # makes the table
        lambda: gallery.enrol(embeddings(rows[:1]), ["eve"]),
        lambda: gallery.update(embeddings(rows[3:] + 1), ["dot"]),
        lambda: gallery.remove(["bob"]),
    ]
    left: set[str] = set()
    for change in changes:
        change()
        before, left = (
            left,
            {
                path.relative_to(tmp_path).as_posix()
                for path in tmp_path.rglob("*.*")
                if path.suffix in (".lance", ".manifest", ".arrow")
            },
        )
        assert left - before
        assert {f"fsync {name}" for name in left - before} <= {
            call.replace("new ", "") for call in calls
        }
    assert sum(name.endswith(".manifest") for name in left) == 1


def test_one_process_holds_a_folder(tmp_path: Path) -> None:
    gallery = exact(tmp_path)
    with pytest.raises(ValueError, match="used by another process"):
        exact(tmp_path)
    gallery.close()
    exact(tmp_path).close()


def test_a_gallery_that_is_refused_is_not_locked(tmp_path: Path) -> None:
    ExactGallery(tmp_path, META).close()
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE meta SET value = 'cosinf' WHERE key = 'meta.similarity'")
    with pytest.raises(ValueError, match="cosinf") as refused:
        ExactGallery(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE, timeout=0)) as db:
        db.execute("BEGIN EXCLUSIVE")
    del refused  # it kept what was refused alive


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    gallery = exact(tmp_path)
    gallery.enrol(embeddings(np.eye(8)), [f"s{i}" for i in range(8)])
    gallery.close()
    whole = (tmp_path / FILE).read_bytes()
    rng = np.random.default_rng(4)
    for _ in range(60):
        broken = bytearray(whole)
        for place in rng.integers(0, len(whole), size=40):
            broken[place] = rng.integers(256)
        (tmp_path / FILE).write_bytes(
            bytes(broken[: rng.integers(1, len(whole))] if rng.random() < 0.3 else broken)
        )
        with suppress(ValueError, OSError):
            ExactGallery(tmp_path).close()
    broken = bytearray(whole)
    broken[47] = 99  # the version of the format
    (tmp_path / FILE).write_bytes(broken)
    with pytest.raises(ValueError, match="restore a copy"):
        ExactGallery(tmp_path)
    (tmp_path / FILE).unlink()
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("CREATE TABLE mail (text)")
    db.close()
    with pytest.raises(ValueError, match="gallery of Likeness"):
        ExactGallery(tmp_path)
    with pytest.raises(ValueError, match="no gallery"):
        ExactGallery(tmp_path / "nothing")


@pytest.mark.parametrize(("part", "cut"), [("data/*.lance", True), ("_versions/*.manifest", False)])
def test_a_damaged_lance_table_is_refused(part: str, cut: bool, tmp_path: Path) -> None:
    """LanceDB raises RuntimeError, or its Rust panics: one ValueError that names the folder."""
    lance(tmp_path / "g").enrol(embeddings(np.eye(3)), ["ann", "bob", "zoe"])
    for path in (tmp_path / "g" / "gallery.lance").glob(part):
        path.write_bytes(b"\xff" * 4 + (b"" if cut else path.read_bytes()[4:]))
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "g"))):
        open_gallery(tmp_path / "g").search(embeddings(np.eye(3)))


@pytest.mark.parametrize("kind", ["ExactGallery", "LanceGallery"])
def test_a_kill_leaves_old_or_new(kind: str, tmp_path: Path) -> None:
    """A process that enrols 500 subjects at a time is killed at some moment: every batch is there
    whole or not at all.
    """
    if kind == "LanceGallery":
        pytest.importorskip("lancedb")
    module = "toolkit.gallery.exact" if kind == "ExactGallery" else "toolkit.gallery.lance"
    script = f"""
import sys
import numpy as np
from {module} import {kind}
from eval.types import Embeddings
gallery = {kind}(sys.argv[1], {META!r})
for batch in range(100_000):
    rows = np.full((500, 16), batch + 1, dtype=np.float32)
    group = "s" if batch % 2 else f"b{{batch}}"
    held = Embeddings(tuple(map(str, range(500))), rows, {META!r})
    gallery.enrol(held, [f"{{group}}.{{i}}" for i in range(500)])
    print(batch, flush=True)
"""
    folder = tmp_path / "g"
    for delay in (0.02, 0.11) if kind == "ExactGallery" else (0.05,):
        shutil.rmtree(folder, ignore_errors=True)
        worker = subprocess.Popen(
            [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, cwd=ROOT, text=True
        )
        assert worker.stdout is not None
        for _ in range(3):
            worker.stdout.readline()
        time.sleep(delay)
        worker.send_signal(signal.SIGKILL)
        output = [int(word) for word in worker.stdout.read().split()]
        worker.wait()
        gallery = open_gallery(folder, META)
        counts = [entry.enrolments for entry in gallery.entries()]
        gallery.close()
        shared = [count for count in counts if count > 1] or [1]
        assert len(counts) % 500 == 0
        assert len(set(shared)) == 1  # all of a batch, or none
        batches = sum(counts) // 500
        assert sum(counts) % 500 == 0
        assert batches >= (max(output) + 1 if output else 3)  # what was reported done is there


def test_approximate_search_states_its_recall() -> None:
    pytest.importorskip("faiss")
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(4_000, 16)).astype(np.float32)
    probes = embeddings(rows[:50] + 0.3 * rng.normal(size=(50, 16)))
    coarse, flat = (
        FaissGallery(None, META, index="IVF32,Flat", effort=1),
        FaissGallery(None, META, index="Flat"),
    )
    for gallery in (coarse, flat):
        gallery.enrol(embeddings(rows), [str(i) for i in range(4_000)])
    assert recall(flat, flat.exact, probes) == 1.0
    low = recall(coarse, coarse.exact, probes)
    assert 0.2 < low < 1.0
    coarse.effort = 32
    coarse.remove([str(i) for i in range(100, 1_500)])  # over a fifth: made anew
    assert recall(coarse, coarse.exact, probes) == 1.0
    graph = FaissGallery(None, META, index="HNSW16", effort=128)
    graph.enrol(embeddings(rows), [str(i) for i in range(4_000)])
    assert recall(graph, graph.exact, probes) > 0.9
    graph.remove(["3"])
    graph.update(embeddings(-rows[4:5]), ["4"])
    assert "3" not in {match.subject for match in graph.search(embeddings(rows[3:4]), k=3)[0]}
    assert graph.search(embeddings(-rows[4:5]), k=1)[0][0].subject == "4"
    with pytest.raises(ValueError, match="FAISS does not know it"):
        FaissGallery(None, META, index="Nonsense")
    with pytest.raises(ValueError, match="FAISS searches by"):
        FaissGallery(None, META, similarity="euclidean")
    with pytest.raises(ValueError, match="empty"):
        recall(flat, ExactGallery(None, META), probes)


@pytest.mark.parametrize(
    "index",
    ["PCA8,IVF32,Flat", "IVF32,SQ8,RFlat", "OPQ4_16,IVF32,PQ4x4", "PCA8,HNSW8", "HNSW8,RFlat"],
)
def test_effort_reaches_an_index_behind_a_transform(index: str) -> None:
    faiss_package = pytest.importorskip("faiss")
    rows = np.random.default_rng(6).normal(size=(1_500, 16)).astype(np.float32)
    gallery = FaissGallery(None, META, index=index, effort=29)
    gallery.enrol(embeddings(rows), [str(i) for i in range(len(rows))])
    gallery.search(embeddings(rows[:1]))
    inner = faiss_package.downcast_index(gallery._index)
    while hasattr(inner, "base_index") or isinstance(inner, faiss_package.IndexPreTransform):
        inner = faiss_package.downcast_index(
            inner.base_index if hasattr(inner, "base_index") else inner.index
        )
    assert (inner.hnsw.efSearch if "HNSW" in index else inner.nprobe) == 29


@pytest.mark.parametrize("index", ["PQ7", "PCA32,Flat", "LSH", "IVF700,Flat", "IDMap,Flat"])
def test_an_index_that_does_not_fit_is_a_sentence(index: str) -> None:
    """Of other dimensions, of more lists than templates, or one that wants numbers of its own; and
    it is no better when asked again.
    """
    pytest.importorskip("faiss")
    gallery = FaissGallery(None, META, index=index)
    gallery.enrol(
        embeddings(np.random.default_rng(7).normal(size=(60, 16))), [str(i) for i in range(60)]
    )
    for _ in range(2):
        with pytest.raises(ValueError, match=rf"'{index}'.* 60 templates of 16"):
            gallery.search(embeddings(np.ones((1, 16))))
