"""Small pictures and sounds beside a gallery: kept with their enrolment, and gone with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likeness.eval.types import Embeddings
from likeness.toolkit.gallery import media
from likeness.toolkit.gallery.gallery import Gallery, NotEnrolled, open_gallery

META = {"model": "m", "similarity": "cosine"}
ROWS = np.eye(4, dtype=np.float32)


def people(*rows: int) -> Embeddings:
    return Embeddings(tuple(map(str, rows)), ROWS[list(rows)], META)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / media.FOLDER).rglob("*") if path.is_file())


@pytest.fixture(params=["", "faiss:"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Gallery:
    if request.param:
        pytest.importorskip("faiss")
    return open_gallery(f"{request.param}{tmp_path}", META)


def test_a_medium_belongs_to_its_enrolment_and_goes_with_its_subject(
    store: Gallery, tmp_path: Path
) -> None:
    assert store.folder == tmp_path  # in which a server keeps media
    store.enrol(people(0, 1, 2), ["Ann", "Ann", "Bob"])
    assert media.keep(tmp_path, "Ann", ROWS[1], b"second", ".jpg")
    assert media.keep(tmp_path, "Bob", ROWS[2], b"bob", ".flac")
    rows = store.enrolments("Ann")
    assert (rows == ROWS[:2]).all()
    first, second = media.kept(tmp_path, "Ann", rows)
    assert first is None
    assert second is not None
    assert second.path.read_bytes() == b"second"
    store.remove(["Ann"])
    (left,) = files(tmp_path)
    assert left.read_bytes() == b"bob"
    store.update(people(3), ["Bob"])  # other enrolments in place of the old
    assert files(tmp_path) == []
    with pytest.raises(NotEnrolled):
        store.enrolments("Ann")
    store.close()


def test_a_replacement_that_is_refused_costs_no_media(store: Gallery, tmp_path: Path) -> None:
    store.enrol(people(0), ["Ann"])
    media.keep(tmp_path, "Ann", ROWS[0], b"Ann", ".jpg")
    of_another = Embeddings(("x",), ROWS[:1], {**META, "model": "another"})
    with pytest.raises(ValueError, match="another"):
        store.update(of_another, ["Ann"])
    with pytest.raises(ValueError, match="2 subjects for 1"):
        store.update(people(0), ["Ann", "Ann"])
    assert [path.read_bytes() for path in files(tmp_path)] == [b"Ann"]
    store.close()


def test_what_is_kept_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not media.keep(tmp_path, "Ann", ROWS[0], bytes(media.MAX_BYTES + 1), ".jpg")
    monkeypatch.setattr(media, "MAX_TOTAL", 10)
    assert media.keep(tmp_path, "Ann", ROWS[0], bytes(6), ".jpg")
    assert not media.keep(tmp_path, "Bob", ROWS[1], bytes(6), ".jpg")
    monkeypatch.setattr(media, "MAX_OF_SUBJECT", 1)
    assert not media.keep(tmp_path, "Ann", ROWS[1], bytes(1), ".jpg")
    assert len(files(tmp_path)) == 1


def test_names_lead_nowhere_else(tmp_path: Path) -> None:
    media.keep(tmp_path / "people", "../../secret.jpg\0", ROWS[0], b"picture", ".jpg")
    (kept,) = files(tmp_path / "people")
    assert kept.is_relative_to(tmp_path / "people" / media.FOLDER)


def test_what_a_killed_writer_left_is_overwritten_before_it_is_removed(tmp_path: Path) -> None:
    media.keep(tmp_path, "Ann", ROWS[0], b"picture", ".jpg")
    (kept,) = files(tmp_path)
    left = kept.parent / f".{kept.name}.0123456789ab.part" / kept.name
    left.parent.mkdir()
    left.write_bytes(b"half of")
    second = tmp_path / "the same file by another name"
    second.hardlink_to(left)
    media.erase(tmp_path, ["Ann"])
    assert second.read_bytes() == bytes(7)
    assert list((tmp_path / media.FOLDER).iterdir()) == []
