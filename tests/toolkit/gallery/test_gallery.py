"""The contract of all stores: what each does with enrolments, searches, wrong input and company."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.eval.errors import LikenessError
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.metrics.similarity import pairs
from likeness.eval.metrics.unlabelled import centre_of, subtract_centre
from likeness.eval.scoring.origin import Origin
from likeness.eval.scoring.thresholds import Threshold, Thresholds
from likeness.toolkit.gallery import faiss, postgres
from likeness.toolkit.gallery._search import top
from likeness.toolkit.gallery.gallery import NotEnrolled, exists, open_gallery, parse_place
from likeness.toolkit.gallery.postgres import mask_passwords
from likeness.toolkit.gallery.sqlite import FILE
from likeness.toolkit.gallery.store import Enrolments, templates_of
from tests.scripts import program

META = {"model": "a" * 64, "modality": "speaker", "similarity": "cosine"}
_numbers = count()
every = pytest.mark.parametrize("kind", ["folder", "faiss", "postgresql"])


@pytest.fixture
def place(request, tmp_path):
    """Gives a new place for a gallery of a kind, which holds {} for a number."""

    def make(kind: str) -> str:
        if kind == "postgresql":
            return f"{request.getfixturevalue('database')}#g{next(_numbers)}_{{}}"
        if kind == "faiss":
            pytest.importorskip("faiss")
        folder = tmp_path / f"{next(_numbers)}-{{}}"
        return str(folder) if kind == "folder" else f"{kind}:{folder}"

    return make


def embedded(rows: Any, meta: dict[str, str] = META) -> Embeddings:
    matrix = np.asarray(rows, dtype=np.float32)
    return Embeddings(tuple(map(str, range(len(matrix)))), matrix, meta)


def subjects(found: list[tuple[Any, ...]]) -> list[list[str]]:
    return [[match.subject for match in matches] for matches in found]


@every
@pytest.mark.parametrize(
    ("similarity", "pooling"),
    [("cosine", "mean"), ("dot", "norm_weighted"), ("simple:0.4", "mean")],
)
def test_a_store_finds_what_a_loop_finds(kind, similarity, pooling, place):
    where = place(kind).format(0)
    assert not exists(where)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 7)) * rng.uniform(0.5, 3, size=(60, 1))
    names = [f"s{i % 23}" for i in range(60)]
    gallery = open_gallery(where, META, similarity=similarity, pooling=pooling)
    assert (len(gallery), gallery.entries(), gallery.search(embedded(rows[:1]))) == (0, [], [()])
    nobody = embedded(np.zeros((0, 7)))
    gallery.enrol(nobody, [])
    gallery.update(nobody, [])
    gallery.remove([])
    assert gallery.search(nobody) == []
    gallery.enrol(embedded(rows[:40]), names[:40])
    gallery.enrol(embedded(rows[40:]), names[40:])  # more of some, whom it has
    gallery.update(embedded(rows[:2] * 2), ["s5", "s5"])
    gallery.remove(["s7", "s0"])
    gallery.close()
    assert exists(where)
    expected = {name: rows[[of == name for of in names]] for name in dict.fromkeys(names)}
    expected["s5"] = rows[:2] * 2
    del expected["s7"], expected["s0"]
    gallery = open_gallery(where)  # which says similarity and pooling
    assert (len(gallery), gallery.similarity) == (21, similarity)
    counts = {entry.subject: entry.enrolments for entry in gallery.entries()}
    assert counts == {name: len(some) for name, some in expected.items()}
    for name, some in expected.items():
        assert (gallery.enrolments(name) == some.astype(np.float32)).all()
    pool = np.mean if pooling == "mean" else np.sum
    templates = {name: pool(some, axis=0) for name, some in expected.items()}
    norms = {name: float(np.linalg.norm(row)) for name, row in templates.items()}
    probes = rng.normal(size=(9, 7))
    for probe, matches in zip(probes, gallery.search(embedded(probes), k=4), strict=True):
        scores = {}
        for name, row in templates.items():
            dot, lengths = row @ probe, norms[name] * float(np.linalg.norm(probe))
            by = {"cosine": dot / lengths, "dot": dot, "simple:0.4": dot - 0.4 * lengths}
            scores[name] = by[similarity]
        found, ours, sizes, _ = zip(*matches, strict=True)
        assert list(found) == sorted(scores, key=lambda name: -scores[name])[:4]
        assert ours == pytest.approx([scores[name] for name in found], rel=1e-5, abs=1e-5)
        assert sizes == pytest.approx([norms[name] for name in found], rel=1e-5)
        (alone,) = gallery.search(embedded(probe[None]), k=4)
        # OpenBLAS up to 0.3.29 gives other last bits in the next call.
        between = (alone[1].score + alone[2].score) / 2
        (least,) = gallery.search(embedded(probe[None]), k=9, threshold=between)
        assert [match.subject for match in least] == [match.subject for match in alone[:2]]
    assert gallery.search(embedded(probes), threshold=1e3) == [()] * 9
    assert len(gallery.search(embedded(probes), k=2**40)[0]) == 21
    gallery.remove(list(expected))
    assert (len(gallery), gallery.search(embedded(probes))) == (0, [()] * 9)
    gallery.close()


@every
def test_a_gallery_of_a_place_subtracts_the_mean_of_what_comes_to_it(kind, place):
    rows = np.random.default_rng(3).normal(1, 1, size=(12, 5))
    centre = centre_of(embedded(rows).unit())
    here = META | {"mean": "lobby 1"}
    points = (Threshold("far", 0.01, None, 0.5),)
    sizes = {"subjects": None, "targets": 0, "nontargets": 0, "unlabelled": 60}
    more = {"points": points, "centre": tuple(centre.tolist()), **sizes}
    thresholds = Thresholds(Origin("cosine", here), "lobby", date="2026-11-29", **more)
    where, new = place(kind).format(0), place(kind).format(1)
    for wrong in ({"meta": {"model": "b" * 64}}, {"meta": META | {"flip": "sum"}}):
        with pytest.raises(LikenessError, match="other settings"):
            open_gallery(new, **wrong, thresholds=thresholds)
    assert not exists(new)
    gallery = open_gallery(where, META, thresholds=thresholds)
    names = [f"s{row // 2}" for row in range(12)]
    gallery.enrol(embedded(rows[:6]), names[:6])
    gallery.close()
    gallery = open_gallery(where, META)  # which says its mean
    assert gallery.thresholds == thresholds
    expected = np.float32(subtract_centre(np.float32(rows), centre))
    gallery.enrol(embedded(expected[6:], here), names[6:])  # from which it is subtracted already
    assert (gallery.everything().rows == expected).all()
    probe = embedded(rows[3:4])
    found = gallery.search(probe, k=9)
    assert found == gallery.search(embedded(expected[3:4], here), k=9)
    for match in found[0]:
        template = expected[[name == match.subject for name in names]].mean(axis=0)
        score = pairs(template[None], expected[3:4], [0], [0], "cosine")[0]
        assert match.score == pytest.approx(score, abs=1e-5)
    with pytest.raises(LikenessError, match="hall"):
        gallery.search(embedded(rows, META | {"mean": "hall 2"}))
    gallery.close()
    with pytest.raises(LikenessError, match="hall"):
        open_gallery(where, META | {"mean": "hall 2"})


@every
@pytest.mark.parametrize("similarity", ["cosine", "simple:0.4"])
def test_items_and_several_templates_are_found_as_a_loop_finds_them(kind, similarity, place):
    """Two separate groups of each subject, so that k-means can only find these."""
    rng = np.random.default_rng(1)
    groups = np.repeat(rng.normal(size=(10, 6)), 3, axis=0) + rng.normal(scale=0.01, size=(30, 6))
    names = [f"s{row // 6}" for row in range(30)]
    shuffled = rng.permutation(30)
    gallery = open_gallery(place(kind).format(0), META, similarity=similarity)
    rows = np.float32(groups[shuffled])
    gallery.enrol(embedded(rows), [names[row] for row in shuffled])
    probes = rng.normal(size=(5, 6)).astype(np.float32)

    def scores(templates: Any) -> np.ndarray:
        table = np.asarray(templates, dtype=np.float32)
        every = np.indices((len(table), len(probes))).reshape(2, -1)
        return pairs(table, probes, *every, similarity).reshape(len(table), -1).T

    by_item = gallery.search(embedded(probes), k=4, by="item")
    single = scores(rows)
    for row, matches in enumerate(by_item):
        best = np.argsort(-single[row])[:4]
        assert [match.item for match in matches] == [str(item) for item in best]
        assert [match.subject for match in matches] == [names[shuffled[item]] for item in best]
        assert [match.score for match in matches] == pytest.approx(single[row][best], rel=1e-5)
    means = scores(groups.astype(np.float32).reshape(10, 3, 6).mean(axis=1)).reshape(5, 5, 2)
    for pool, joined in (("best", means.max(axis=2)), ("mean", means.mean(axis=2))):
        found = gallery.search(embedded(probes), k=2, num_templates=2, pool=pool)
        for row, matches in enumerate(found):
            best = np.argsort(-joined[row])[:2]
            assert [match.subject for match in matches] == [f"s{place}" for place in best]
            expected = pytest.approx(joined[row][best], rel=1e-4, abs=1e-5)
            assert [match.score for match in matches] == expected
    assert gallery.search(embedded(probes), by="item", threshold=1e3) == [()] * 5
    gallery.close()


@every
def test_wrong_input_is_refused_and_changes_nothing(kind, place):
    where = place(kind).format(0)
    for wrong in (None, {"similarity": "cosin"}):
        with pytest.raises(LikenessError):
            open_gallery(where, wrong)
    gallery = open_gallery(where, META)
    gallery.enrol(embedded(np.eye(3)), ["ann", "ann", "Yamada\u3000Taro"])
    before = sorted(gallery.entries())
    other, cropped = META | {"model": "b" * 64}, META | {"crops": "3 x 4 s, mean"}
    for wrong_rows, reason in (
        (embedded(np.eye(3)[:1], other), "this is bbb"),
        (embedded(np.eye(3)[:1], {}), "this is unknown"),
        (embedded(np.eye(3)[:1], cropped), "crops"),
        (embedded(np.ones((1, 4))), "dimensions 3 and not 4"),
    ):
        for change, subject in ((gallery.enrol, "eve"), (gallery.update, "ann")):
            with pytest.raises(LikenessError, match=reason):
                change(wrong_rows, [subject])
        with pytest.raises(LikenessError, match=reason):
            gallery.search(wrong_rows)
    for name in ("", " ann", "a\nb", "a\0b", "x" * 257, "\u202eann"):
        with pytest.raises(LikenessError, match="no usable name"):
            gallery.enrol(embedded(np.eye(3)[:2]), ["eve", name])
        for ask in (gallery.enrolments, lambda name: gallery.remove(["ann", name])):
            with pytest.raises(LikenessError):
                ask(name)
    with pytest.raises(LikenessError, match="1 subjects for 2"):
        gallery.enrol(embedded(np.eye(3)[:2]), ["ann"])
    with pytest.raises(NotEnrolled):
        gallery.update(embedded(np.eye(3)[:2]), ["ann", "eve"])
    with pytest.raises(LikenessError, match="too large"):
        gallery.enrol(embedded(np.full((1, 3), 3e38)), ["eve"])
    assert sorted(gallery.entries()) == before
    gallery.close()
    for meta, reason in ((other, "another model"), (cropped, "other settings")):
        with pytest.raises(LikenessError, match=reason):
            open_gallery(where, meta)
    open_gallery(where, META).close()  # and what was refused holds no lock


SQL = ("o'neil", '"; DROP TABLE enrolment; --', "x' OR '1'='1", "%s %(a)s {} $1 \\")
HOSTILE = (*SQL, "日本 x", "\\.", "../../etc", "x" * 256)


@every
def test_any_printable_name_is_a_name_and_nothing_else(kind, place):
    gallery = open_gallery(place(kind).format(0), META)
    rows = np.random.default_rng(1).normal(size=(len(HOSTILE) + 2, 8))
    gallery.enrol(embedded(rows), [*HOSTILE, "ann", "Zoe\u0308"])
    found = gallery.search(embedded(rows), k=1)
    assert subjects(found) == [[name] for name in (*HOSTILE, "ann", "Zo\u00eb")]
    gallery.enrol(embedded(rows[:-2] * 2), HOSTILE)
    assert {len(gallery.enrolments(name)) for name in HOSTILE} == {2}
    gallery.update(embedded(rows[:-2]), HOSTILE)
    gallery.remove(HOSTILE)
    assert {entry.subject for entry in gallery.entries()} == {"ann", "Zo\u00eb"}
    gallery.close()


@every
def test_a_change_that_fails_within_leaves_the_old(kind, place):
    """The store fails on its way."""
    where = place(kind).format(0)
    gallery = open_gallery(where, META)
    gallery.enrol(embedded(np.eye(3)), ["ann", "ann", "bob"])
    store: Any = gallery._store
    rows = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    templates = templates_of(["bob", "bob"], rows, store.meta)
    with pytest.raises(ValueError, match="zip"):  # when something has been deleted and written
        store.write(Enrolments(["bob"], ["1"], rows), templates, replace=True)
    gallery.close()
    gallery = open_gallery(where)
    assert [entry.enrolments for entry in gallery.entries()] == [2, 1]
    assert gallery.enrolments("bob").tolist() == [[0, 0, 1]]
    gallery.close()


SHARING = """
import sys
import numpy as np
from likeness.eval.formats.embeddings import Embeddings
from likeness.toolkit.gallery.gallery import open_gallery
where, mine = sys.argv[1], int(sys.argv[2])
meta = {"model": "a" * 64, "modality": "speaker", "similarity": "cosine"}
gallery = open_gallery(where, meta)
for turn in range(8):
    rows = np.full((2, 4), 100 * mine + turn + 1, dtype=np.float32)
    gallery.enrol(Embeddings(("0", "1"), rows, meta), ["everybody", f"p{mine}.{turn}"])
    ((match, *_),) = gallery.search(Embeddings(("0",), rows[:1], meta), k=2)
    assert match.score > 0.999
    if turn % 2:
        gallery.remove([f"p{mine}.{turn}"])
"""


@pytest.mark.slow  # three processes
def test_processes_share_postgresql(database):
    where = f"{database}#shared{next(_numbers)}"
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda mine: program("-c", SHARING, where, mine), range(3)))
    gallery = open_gallery(where)
    assert gallery.shared
    left = {entry.subject: entry.enrolments for entry in gallery.entries()}
    own = {f"p{mine}.{turn}": 1 for mine in range(3) for turn in (0, 2, 4, 6)}
    assert left == {"everybody": 24} | own
    # each of the three added exactly what it enrolled, in its own order
    rows = gallery.enrolments("everybody")[:, 0]
    for mine in range(3):
        assert rows[rows // 100 == mine].tolist() == [100 * mine + turn + 1 for turn in range(8)]
    norm = next(entry.norm for entry in gallery.entries() if entry.subject == "everybody")
    assert norm == pytest.approx(2 * rows.mean())
    gallery.close()


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 40), st.integers(1, 12), st.integers(1, 9))
def test_partial_selection_is_a_stable_sort(seed, rows, k, width):
    rng = np.random.default_rng(seed)
    scores = rng.integers(-3, 4, size=(rng.integers(1, 5), rows)).astype(np.float32)
    k = min(k, rows)
    values, places = top(lambda begin, end: scores[:, begin:end], rows, max(width, k), k)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("similarity", ["cosine", "simple", "euclidean", "vmf_kl"])
def test_many_blocks_against_all_pairs(similarity):
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(9_000, 5)).astype(np.float32)
    probes = rng.normal(size=(300, 5)).astype(np.float32)
    rows[5_000:5_010] = rows[17]  # ties
    gallery = open_gallery(None, META, similarity=similarity)
    gallery.enrol(embedded(rows), [f"{i}" for i in range(9_000)])
    matches = gallery.search(embedded(probes), k=12)
    for query in range(0, 300, 60):
        scores = pairs(rows, probes, np.arange(9_000), np.full(9_000, query), similarity)
        best = pytest.approx(np.sort(scores)[::-1][:12].tolist(), rel=1e-5, abs=1e-6)
        assert [match.score for match in matches[query]] == best
    if similarity == "cosine":
        (found,) = subjects(gallery.search(embedded(rows[17:18]), k=5))
        assert found == ["17", "5000", "5001", "5002", "5003"]


@pytest.mark.parametrize("kind", ["faiss", "postgresql"])
def test_an_index_finds_what_the_exact_search_finds(kind, place, monkeypatch):
    for module, name in ((faiss, "SMALL"), (postgres, "INDEXED_FROM")):
        monkeypatch.setattr(module, name, 300)
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40, 12)).repeat(20, axis=0) + rng.normal(size=(800, 12)) / 3
    names = [f"s{i}" for i in range(800)]
    exact, gallery = open_gallery(None, META), open_gallery(place(kind).format(0), META)
    for some in (slice(0, 400), slice(400, 800)):  # the index is made, then rows are added to it
        for each in (exact, gallery):
            each.enrol(embedded(rows[some]), names[some])
        gallery.search(embedded(rows[:1]))
    for each in (exact, gallery):
        each.remove(names[100:120])
        each.search(embedded(rows[:1]))
        each.update(embedded(-rows[5:6]), ["s5"])
        each.enrol(embedded(rows[7:8] * 3), ["s9"])
    store: Any = gallery._store
    if kind == "faiss":
        assert store._index.ntotal == 780
    else:
        with store._connection.transaction() as cursor:
            assert postgres._is_there(cursor, store._schema, "by_vector")
    probes = embedded(rows[::16] + rng.normal(size=(50, 12)) / 4)
    ours, best = (np.array(subjects(each.search(probes, 1))) for each in (gallery, exact))
    assert (ours == best).mean() >= 0.9
    assert subjects(gallery.search(embedded(-rows[5:6]), 1)) == [["s5"]]
    found = subjects(gallery.search(embedded(rows[100:120]), 9))
    assert not {*names[100:120]} & {name for line in found for name in line}
    gallery.close()


@pytest.mark.parametrize("content", ["noise", "cut", "foreign"])
def test_a_file_that_is_no_gallery_is_one_sentence(content, tmp_path):
    file = tmp_path / FILE
    if content == "noise":
        file.write_bytes(b"no database at all, but long enough")
    elif content == "foreign":
        with closing(sqlite3.connect(file)) as db:
            db.execute("CREATE TABLE mail (text)")
    else:
        gallery = open_gallery(tmp_path, META)
        gallery.enrol(embedded(np.eye(80)), [f"s{i}" for i in range(80)])
        gallery.close()
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    before = file.read_bytes()
    with pytest.raises(OSError, match="damaged: restore a copy"):
        open_gallery(tmp_path, META)
    assert file.read_bytes() == before


def test_what_is_enrolled_is_on_the_disk_and_of_one_process(tmp_path):
    """SQLite synchronises inside of its library, so that its settings are all that a test sees."""
    gallery = open_gallery(tmp_path, META)
    store: Any = gallery._store
    names = ("synchronous", "secure_delete", "journal_mode", "locking_mode")
    values = [store._db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
    assert values == [2, 1, "truncate", "exclusive"]
    assert not gallery.shared
    with pytest.raises(ValueError, match="used by another process"):
        open_gallery(tmp_path, META)
    store.close()
    open_gallery(tmp_path, META).close()


ADDRESSES = (
    "postgresql://ann:{}@127.0.0.1:1/db?sslmode=disable&password={}",
    "mysql://ann:{}@127.0.0.1:1/db",
    "postgresql://ann:{}@127.0.0.1:one/db",
)


@pytest.mark.parametrize("word", ["s3c@ret", "s3c/ret", "s3c?ret", "s3c#ret", "s3:c@/"])
@pytest.mark.parametrize("place", ADDRESSES)
def test_no_message_tells_a_password(place, word):
    pytest.importorskip("psycopg")
    where = place.replace("{}", word)
    for ask in (exists, lambda text: open_gallery(text, META)):
        with pytest.raises((ValueError, OSError)) as refused:
            ask(where)
        for part in ("s3", "c@", "ret"):
            assert part not in str(refused.value).replace("secret", "")
    assert "s3" not in mask_passwords(where)


def test_addresses_name_a_store_or_are_refused(place):
    nowhere = ("faiss:", "lance:people", "faiss://host", "postgresql://host/db#A B")
    for where in (*nowhere, "postgresql:people"):
        with pytest.raises(LikenessError, match="no gallery can lie there"):
            open_gallery(where, META)
    where = place("postgresql").format(0)
    with pytest.raises(LikenessError):  # which searches by products alone
        open_gallery(where, META, similarity="euclidean")
    assert not exists(where)
    # all behind the colon
    assert parse_place("faiss:my people#1")[1].place == "my people#1"
    assert parse_place("faiss:http://host")[1].place == "http://host"
    assert parse_place(Path("faiss:people"))[0] == "folder"


def test_a_lost_connection_is_said_and_made_anew(database):
    galleries = [open_gallery(f"{database}#lost{next(_numbers)}", META) for _ in range(2)]
    gallery, other = galleries
    gallery.enrol(embedded(np.eye(2)), ["ann", "bob"])
    stores: list[Any] = [each._store for each in galleries]
    pid = stores[0]._connection._connected().info.backend_pid
    with stores[1]._connection.transaction() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(ConnectionError, match="does not answer"):
        len(gallery)
    assert len(gallery) == 2
    gallery.close()
    other.close()
