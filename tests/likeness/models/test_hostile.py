"""Known attacks by files from elsewhere: each ends as one ValueError, and nothing outside is
touched.
"""

from __future__ import annotations

import io
import os
import sqlite3
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eval.types import Embeddings
from likeness.models import speechbrain
from likeness.models.run import load_model
from likeness.prepare.archives import unpack
from toolkit.gallery.exact import ExactGallery
from toolkit.gallery.store import FILE
from toolkit.models import checkpoint


def test_a_tar_whose_links_are_too_long_to_resolve_writes_nothing_outside(tmp_path: Path) -> None:
    """CVE-2025-4517: beyond PATH_MAX, os.path.realpath stops resolving, and tarfile's data filter
    believes that a link stays inside.
    """
    buffer, folder, steps = io.BytesIO(), "d" * 247, "abcdefghijklmnop"
    with tarfile.open(fileobj=buffer, mode="w") as tar:

        def add(
            name: str, kind: bytes = tarfile.SYMTYPE, link: str = "", content: bytes = b""
        ) -> None:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, link, len(content)
            tar.addfile(member, io.BytesIO(content))

        path = ""
        for step in steps:
            add(os.path.join(path, folder), tarfile.DIRTYPE)
            add(os.path.join(path, step), link=folder)
            path = os.path.join(path, folder)
        long = os.path.join("/".join(steps), "l" * 254)
        add(long, link="../" * len(steps))
        add("escape", link=f"{long}/../outside")
        add("escape/written", tarfile.REGTYPE, content=b"x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "a.tar").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="link"):
        unpack("a.tar", [tmp_path / "a.tar"], tmp_path / "into")
    assert not (tmp_path / "into").exists()
    assert list((tmp_path / "outside").iterdir()) == []


def header_of(size: int) -> bytes:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, size
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


@pytest.mark.parametrize("size", [2**33, -512])
def test_a_name_of_any_length_takes_no_memory(size: int, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(header_of(size))
    with pytest.raises(ValueError, match=r"a\.tar"):
        unpack("a.tar", [tmp_path / "a.tar"], tmp_path / "into")


@pytest.fixture
def gallery(tmp_path: Path) -> Path:
    made = ExactGallery(tmp_path, {"similarity": "cosine"})
    made.enrol(
        Embeddings(("a", "b"), np.eye(2, dtype=np.float32), {"similarity": "cosine"}),
        ["ann", "bob"],
    )
    made.close()
    return tmp_path


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE "
         "meta", "CREATE VIEW meta AS WITH RECURSIVE n(key) AS (SELECT 1 UNION ALL SELECT key + 1 "
                 "FROM n) SELECT key, '' AS value FROM n"],
        ["CREATE TABLE kept AS SELECT * FROM enrolment",
         "CREATE TRIGGER back AFTER DELETE ON enrolment BEGIN INSERT INTO enrolment SELECT * FROM "
         "kept WHERE id = old.id; END"],
        ["CREATE TRIGGER back AFTER DELETE ON enrolment BEGIN INSERT INTO enrolment VALUES "
         "(old.id, old.subject, old.embedding); END"],
        ["DROP INDEX by_subject"],
        ["DROP INDEX by_subject", "CREATE INDEX by_subject ON enrolment (subject COLLATE NOCASE)"],
        ["PRAGMA journal_mode=WAL"],
        ["UPDATE enrolment SET subject = CAST(x'fffe41' AS TEXT)"],
        ["UPDATE enrolment SET embedding = x'ffff7f7fffff7f7f'"],
    ],
)  # fmt: skip
def test_a_gallery_of_other_tables_is_not_opened(statements: list[str], gallery: Path) -> None:
    db = sqlite3.connect(gallery / FILE)
    for statement in statements:
        db.execute(statement)
    db.commit()
    db.close()
    with pytest.raises(ValueError, match="gallery"):
        ExactGallery(gallery)


def test_a_journal_of_a_gallery_removes_no_other_file(gallery: Path) -> None:
    """SQLite plays a journal back that a kill left, and then removes the file that it names as that
    of a transaction over several files.
    """
    victim = gallery / "victim"
    victim.write_bytes(b"nothing")
    name, magic, page, sector = str(victim).encode(), bytes.fromhex("d9d505f920a163d7"), 4096, 512
    size = (gallery / FILE).stat().st_size // page
    head = (magic + struct.pack(">5I", 0, 1, size, sector, page)).ljust(sector, b"\0")
    tail = (
        struct.pack(">I", 2**30 // page + 1)
        + name
        + struct.pack(">II", len(name), sum(name))
        + magic
    )
    (gallery / f"{FILE}-journal").write_bytes(head + tail)
    with pytest.raises(ValueError, match="journal"):
        ExactGallery(gallery)
    assert victim.exists()


HOSTILE_YAML = {
    "aliases": "a0: &a0 [x]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)),
    "merges": "b0: &b0 {x: 1}\n"
    + "".join(f"b{i}: &b{i}\n  <<: [{','.join([f'*b{i - 1}'] * 10)}]\n" for i in range(1, 10)),
    "depth": "[" * 5000,
    "number": "a: 1" + ":1" * 20_000 + ".5",
    "date": "a: 9999-99-99",
    "size": "a: 1" + ":1" * 100_000,
    "bytes": "a: \xff",
}


@pytest.mark.parametrize("kind", HOSTILE_YAML)
def test_settings_of_any_depth_and_size_are_refused(kind: str, tmp_path: Path) -> None:
    """Ten aliases in a list, ten of that in another, ...: going through them, or merging them,
    takes for ever.
    """
    (tmp_path / "hyperparams.yaml").write_text(HOSTILE_YAML[kind], encoding="latin-1")
    with pytest.raises(ValueError, match=r"hyperparams\.yaml: (no YAML|.*over)"):
        speechbrain.read_settings(tmp_path / "hyperparams.yaml")


@pytest.mark.parametrize("depth", [40, 300])
def test_parts_inside_parts_of_any_depth_are_refused(depth: int, tmp_path: Path) -> None:
    """Each level would be a call of a call, until Python's stack ends."""
    part: dict[str, Any] = {"call": "toolkit.backbones.small.SmallCNN", "args": {"dim": 4}}
    head = {"call": "toolkit.backbones.head.Head", "args": {}}
    for _ in range(depth):
        part = {"call": "toolkit.models.joined.Joined", "args": {"network": part, "head": head}}
    description = {
        "modality": "image",
        "frontend": {"call": "toolkit.data.pixels.PixelScale", "args": {}},
        "backbone": part,
        "read": {"call": "modalities.image.images.read", "args": {}},
        "features": "raw",
        "similarity": "cosine",
        "step": 1,
    }
    file = tmp_path / "deep.safetensors"
    checkpoint.save(file, {"x": torch.zeros(3)}, description, checkpoint.FORMAT)
    with pytest.raises(ValueError, match="levels"):
        load_model(file)
