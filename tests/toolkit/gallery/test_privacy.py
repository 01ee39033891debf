"""What a gallery keeps of people, media too, and that it goes with them."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likeness.eval.formats.embeddings import Embeddings
from likeness.toolkit.gallery import media
from likeness.toolkit.gallery.gallery import Gallery, open_gallery
from likeness.toolkit.gallery.sqlite import FILE

META = {"model": "m", "similarity": "cosine"}


def tables(people: Gallery) -> Path:
    """The folder with the files of the tables, which are those on the disk from now on."""
    connection = people._store._connection
    with connection.alone() as cursor:
        cursor.execute("CHECKPOINT")
    return Path(connection._url.rpartition("host=")[2], "data", "base")


@pytest.fixture
def people(request, tmp_path):
    """An empty gallery, in a folder that others may enter or where the test asks for it."""
    os.chmod(tmp_path, 0o755)
    place = str(tmp_path)
    if getattr(request, "param", "folder") == "postgresql":
        place = f"{request.getfixturevalue('database')}#removed"
    gallery = open_gallery(place, META)
    yield gallery
    gallery.close()


def embedded(rows: Any) -> Embeddings:
    return Embeddings(tuple(map(str, range(len(rows)))), np.asarray(rows, np.float32), META)


def traces(name: str, row: Any) -> list[bytes]:
    """What a store may write of a person: the name, and the embedding, raw or of length 1."""
    unit = row / np.linalg.norm(row.astype(np.float64))
    # A page may end within.
    vectors = [vector[:8].astype("<f4").tobytes() for vector in (row, unit)]
    return [name.encode(), *vectors]


def found(folder: Path, forms: list[bytes]) -> set[str]:
    """The files below the folder with one of these in them."""
    there = set()
    for path in folder.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        if any(form in content for form in forms):
            there.add(path.name)
    return there


@pytest.mark.parametrize("value", ["NULL", "7", "'text'", "x'00'"])
def test_a_damaged_enrolment_is_named_as_such(people, tmp_path, value):
    people.enrol(embedded(np.eye(3)), ["ann", "bob", "eve"])
    people.close()
    unchecked = "SET sql = replace(sql, 'embedding BLOB NOT NULL', 'embedding')"
    for change in (
        f"PRAGMA writable_schema=ON; UPDATE sqlite_master {unchecked}",
        f"UPDATE enrolment SET embedding = {value} WHERE subject = 'bob'",
    ):
        with closing(sqlite3.connect(tmp_path / FILE)) as database:
            database.executescript(change)
    with pytest.raises(OSError, match="damaged"):
        open_gallery(str(tmp_path))


def test_media_that_went_before_a_failure_are_told(people, tmp_path, monkeypatch):
    rows = np.eye(2, dtype=np.float32)
    people.enrol(embedded(rows), ["ann", "bob"])
    media.keep(tmp_path, "ann", rows[0], b"picture", ".jpg")

    def full(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    for change in ("remove", "write"):
        monkeypatch.setattr(people._store, change, full)
    with pytest.raises(OSError, match="are erased already"):
        people.remove(["ann"])
    with pytest.raises(OSError, match=r"full$"):  # nothing was kept of bob
        people.update(embedded(rows[1:]), ["bob"])


@pytest.mark.parametrize("people", ["folder", "postgresql"], indirect=True)
def test_who_is_removed_or_replaced_is_in_no_file(people, tmp_path):
    """Names in no order, so that pages of the database are divided and moved."""

    def there(forms: list[bytes]) -> set[str]:
        return found(tmp_path if people.folder else tables(people), forms)

    rng = np.random.default_rng(2)
    rows = rng.normal(size=(3000, 24)).astype(np.float32)
    names = [f"person-{number}-{'x' * (number % 90)}" for number in rng.permutation(3000)]
    for start in range(0, 3000, 1000):
        part = slice(start, start + 1000)
        people.enrol(embedded(rows[part]), names[part])
    assert there(traces(names[4], rows[4]))
    if people.folder:
        media.keep(people.folder, names[4], rows[4], b"picture of four", ".jpg")
    people.remove([names[4]])  # one alone
    assert there([*traces(names[4], rows[4]), b"picture of four"]) == set()
    gone = list(range(0, 3000, 3))
    people.remove([names[i] for i in gone if i != 4])
    people.update(embedded(rows[:1] + 1), [names[5]])
    forms = [form for i in [4, *gone[:60]] for form in traces(names[i], rows[i])]
    forms += traces(names[5], rows[5])[1:]
    assert there(forms) == set()
    people.close()
    assert there(forms) == set()
    assert there(traces(names[7], rows[7]))


@pytest.mark.parametrize("people", ["folder", "postgresql"], indirect=True)
def test_what_a_kill_left_of_somebody_goes_at_the_next_start(people, tmp_path):
    def there() -> set[str]:
        return found(tmp_path if people.folder else tables(people), traces("person-3.", rows[3]))

    rows = np.random.default_rng(3).normal(size=(400, 24)).astype(np.float32)
    people.enrol(embedded(rows), [f"person-{i}." for i in range(400)])
    store, place = people._store, str(tmp_path)
    if people.folder:
        store._db.execute("PRAGMA secure_delete=OFF")
    else:
        place = f"{store._connection._url}#removed"
    store.remove(["person-3."])  # and nothing is erased any more
    people.close()
    assert there()
    opened = open_gallery(place)
    assert opened.meta == META
    opened.close()
    assert there() == set()
    open_gallery(place).close()


def test_only_the_owner_reads_the_files_in_a_folder_that_was_there(people, tmp_path):
    def open_to_others() -> list[str]:
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert paths
        return [path.name for path in paths if path.stat().st_mode & 0o077]

    before = os.umask(0)  # the most generous
    try:
        rows = np.random.default_rng(2).normal(size=(120, 8)).astype(np.float32)
        people.enrol(embedded(rows), [f"s{i}" for i in range(120)])
        if people.folder:
            media.keep(people.folder, "s1", rows[1], b"picture", ".jpg")
        if (database := getattr(people._store, "_db", None)) is not None:
            database.execute("BEGIN IMMEDIATE")
            database.execute("DELETE FROM enrolment")
            assert (tmp_path / "gallery.sqlite-journal").stat().st_size
        assert open_to_others() == []
        people.close()
        assert open_to_others() == []
        if people.folder:  # a file that others could read is closed
            (tmp_path / "gallery.sqlite").chmod(0o644)
            open_gallery(tmp_path).close()
            assert open_to_others() == []
    finally:
        os.umask(before)


ROWS = np.eye(4, dtype=np.float32)


def people_of(*rows: int) -> Embeddings:
    return Embeddings(tuple(map(str, rows)), ROWS[list(rows)], META)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / media.FOLDER).rglob("*") if path.is_file())


def test_a_medium_belongs_to_its_enrolment_and_goes_with_its_subject(tmp_path):
    store = open_gallery(tmp_path, META)
    assert store.folder == tmp_path  # in which a server keeps media
    store.enrol(people_of(0, 1, 2), ["Ann", "Ann", "Bob"])
    assert media.keep(tmp_path, "Ann", ROWS[1], b"second", ".jpg")
    assert media.keep(tmp_path, "Bob", ROWS[2], b"bob", ".flac")
    rows = store.enrolments("Ann")
    assert (rows == ROWS[:2]).all()
    first, second = media.kept(tmp_path, "Ann", rows)
    assert first is None
    assert second.path.read_bytes() == b"second"
    store.remove(["Ann"])
    (left,) = files(tmp_path)
    assert left.read_bytes() == b"bob"
    store.update(people_of(3), ["Bob"])  # other enrolments in place of the old
    assert files(tmp_path) == []
    store.enrol(people_of(0), ["Ann"])
    media.keep(tmp_path, "Ann", ROWS[0], b"Ann", ".jpg")
    with pytest.raises(ValueError, match="2 subjects for 1"):
        store.update(people_of(0), ["Ann", "Ann"])
    assert [path.read_bytes() for path in files(tmp_path)] == [b"Ann"]
    store.close()


def test_what_is_kept_has_bounds(tmp_path, monkeypatch):
    assert not media.keep(tmp_path, "Ann", ROWS[0], bytes(media.MAX_BYTES + 1), ".jpg")
    monkeypatch.setattr(media, "MAX_TOTAL", 10)
    assert media.keep(tmp_path, "Ann", ROWS[0], bytes(6), ".jpg")
    assert not media.keep(tmp_path, "Bob", ROWS[1], bytes(6), ".jpg")
    monkeypatch.setattr(media, "MAX_OF_SUBJECT", 1)
    assert not media.keep(tmp_path, "Ann", ROWS[1], bytes(1), ".jpg")
    assert len(files(tmp_path)) == 1


def test_what_a_killed_writer_left_is_overwritten_before_it_is_removed(tmp_path):
    media.keep(tmp_path, "../../Ann\0", ROWS[0], b"picture", ".jpg")
    (kept,) = files(tmp_path)  # names lead nowhere else
    left = kept.parent / f".{kept.name}.0123456789ab.part" / kept.name
    left.parent.mkdir()
    left.write_bytes(b"half of")
    second = tmp_path / "the same file by another name"
    second.hardlink_to(left)
    media.erase(tmp_path, ["../../Ann\0"])
    assert second.read_bytes() == bytes(7)
    assert list((tmp_path / media.FOLDER).iterdir()) == []
