"""Claims on pieces, in a folder and in a bucket of an S3 server: nobody gets what another has, and
what a dead worker had is taken over. Time passes by making files older.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.aged import age
from toolkit.parallel import claims
from toolkit.parallel.claims import Bucket, Claim, Folder, Place, Worker

Older = Callable[[str, float], None]


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        return claims.open_place(str(tmp_path / "pieces"))
    request.getfixturevalue("store")
    return claims.open_place("s3://voices/some/run")


@pytest.fixture
def older(place: Place, request: pytest.FixtureRequest) -> Older:
    store = None if isinstance(place, Folder) else request.getfixturevalue("store")
    return lambda name, seconds: age(place, name, seconds, store)


def worker(place: Place, name: str, lease_seconds: float = 600) -> Worker:
    return Worker(place, name, lease_seconds)


def test_of_many_who_make_a_file_at_once_one_succeeds(place: Place) -> None:
    names = [f"file-{number % 5}" for number in range(40)]
    contents = [str(number).encode() for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(place.create, names, contents))
    assert sum(made) == 5
    for name in set(names):
        assert place.read(name, 10) in [
            content
            for content, other, success in zip(contents, names, made, strict=True)
            if success and other == name
        ]
    assert place.names() == set(names)


def test_files_are_replaced_and_removed(place: Place) -> None:
    place.write("a", b"first")
    place.write("a", b"second")
    assert place.read("a", 6) == b"second"
    with pytest.raises(ValueError, match="over 5 bytes"):
        place.read("a", 5)
    place.remove("a")
    place.remove("a")
    assert place.names() == set()
    with pytest.raises(FileNotFoundError):
        place.read("a", 5)


def test_workers_share_all_pieces_and_then_get_none(place: Place) -> None:
    ann, bob = worker(place, "ann"), worker(place, "bob")
    taken = [claim for _ in range(3) for claim in (ann.take(5), bob.take(5))]
    assert sorted(claim.piece for claim in taken if claim) == [0, 1, 2, 3, 4]
    assert taken[5] is None
    assert {claims.holder(place, claim) for claim in taken if claim} == {"ann", "bob"}
    place.write(claims.piece_name(3), b"")
    found = claims.survey(place, 5)
    assert found.done == {3}
    assert sorted(found.claims) == [0, 1, 2, 4]


def test_a_piece_goes_to_others_when_its_lease_has_passed(place: Place, older: Older) -> None:
    ann, bob = worker(place, "ann"), worker(place, "bob")
    assert ann.take(1) == Claim(0, 1)
    older("claim-000000.1", 590)
    assert bob.take(1) is None
    older("claim-000000.1", 20)
    assert bob.take(1) == Claim(0, 2)
    assert ann.take(1) is None  # bob lives
    place.write("claim-000000.1", b"{}")  # ann was only slow, and its sign of life is too late
    older("claim-000000.2", 1000)
    assert ann.take(1) == Claim(0, 3)


def test_who_waits_for_many_asks_the_store_for_the_time_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = worker(place, "ann"), worker(place, "bob")
    assert all(ann.take(9) for _ in range(9))
    written: list[str] = []
    write = type(place).write

    def counted(self: Place, name: str, content: bytes) -> None:
        written.append(name)
        write(self, name, content)  # type: ignore[arg-type]

    monkeypatch.setattr(type(place), "write", counted)
    assert bob.take(9) is None
    assert written == ["worker-bob"]


def test_the_lease_is_that_of_the_owner(place: Place, older: Older) -> None:
    patient, hasty = worker(place, "patient", 600), worker(place, "hasty", 10)
    assert patient.take(2) is not None
    assert hasty.take(2) is not None
    for piece in (0, 1):
        older(f"claim-{piece:06d}.1", 60)
    taken = [patient.take(2), hasty.take(2)]
    assert [claim.attempt for claim in taken if claim] == [2]
    assert taken[0] is not None
    assert claims.holder(place, Claim(taken[0].piece, 1)) == "hasty"


def test_signs_of_life_are_written_and_a_failure_gives_the_piece_back(
    place: Place, older: Older
) -> None:
    quick = worker(place, "quick", 0.2)
    claim = quick.take(1)
    assert claim is not None
    older(claim.name, 1000)
    before = place.written_at(claim.name)

    def work() -> None:
        with quick.holding(claim):
            while place.written_at(claim.name) == before:
                time.sleep(0.01)  # a lease of 0.2 s has a sign of life each 0.05 s
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert claim.name not in place.names()
    assert worker(place, "other").take(1) == claim


def test_who_works_is_written_down_until_it_ends(place: Place) -> None:
    with claims.working(place, 600) as ours:
        assert place.names() == {f"worker-{ours.name}"}
    assert place.names() == set()


@pytest.mark.parametrize(
    ("text", "kind", "match"),
    [
        ("s3://voices", ValueError, "no place inside a bucket"),
        ("sftp://host/folder", ValueError, "sftp"),
        ("s3://ann:his-secret@voices/run", ValueError, "password"),
        ("FILE", NotADirectoryError, "no folder"),
    ],
)
def test_other_places_are_refused(
    tmp_path: Path, text: str, kind: type[Exception], match: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(kind, match=match) as refused:
        claims.open_place(text.replace("FILE", str(tmp_path / "file")))
    assert "his-secret" not in str(refused.value)


def test_a_store_that_makes_what_is_there_is_refused() -> None:
    """The memory of fsspec asks first and writes then; here it does not even ask."""
    fsspec = pytest.importorskip("fsspec")

    class Careless(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
        def pipe_file(self, path: str, value: bytes, mode: str = "", **kwargs: Any) -> None:
            super().pipe_file(path, value, **kwargs)

    with (
        pytest.raises(ValueError, match="If-None-Match"),
        claims.working(Bucket("memory://careless", Careless(), "/careless"), 600),
    ):
        pass


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links")

    monkeypatch.setattr("os.link", refuse)
    place = claims.open_place(str(tmp_path))
    assert [place.create("a", b"1"), place.create("a", b"2")] == [True, False]
    assert place.read("a", 1) == b"1"


def test_a_full_disk_leaves_no_half_file_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def refuse(*_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        raise PermissionError("no links")

    monkeypatch.setattr("os.link", refuse)
    try:
        with pytest.raises(OSError, match="too large"):
            Folder(tmp_path).create("plan.json", b"x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_claims_of_others_and_of_other_clocks_keep_nobody_from_the_work(tmp_path: Path) -> None:
    place = Folder(tmp_path)
    place.create("claim-000007.1", b"{}")  # of a longer list
    for number, lease in enumerate(("NaN", "Infinity", "60")):
        place.create(f"claim-{number:06d}.1", b'{"lease_seconds": %s}' % lease.encode())
    for number in (0, 1, 7):
        age(place, f"claim-{number:06d}.1", 1000, None)
    age(place, "claim-000002.1", -1000, None)  # the store's clock was put back
    ann = worker(place, "ann")
    assert [ann.take(3) for _ in range(4)] == [Claim(0, 2), Claim(1, 2), Claim(2, 2), None]
    assert sorted(claims.survey(place, 3).claims) == [0, 1, 2]
