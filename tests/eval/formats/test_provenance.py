"""Digests of what was read: of one file that of any tool, of several those of all of them, and none
of a pipe that is read out.
"""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.formats import embeddings
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.provenance import sha256


def test_a_folder_has_that_of_its_names_and_files(tmp_path: Path) -> None:
    (tmp_path / "t" / "sub").mkdir(parents=True)
    for name in ("b", "sub/a"):
        (tmp_path / "t" / name).write_text(name)
    message = "".join(
        f"{name}\0{hashlib.sha256(name.encode()).hexdigest()}\n" for name in ("b", "sub/a")
    )
    assert sha256(tmp_path / "t") == hashlib.sha256(message.encode()).hexdigest()


def test_an_index_has_that_of_all_that_is_read_behind_it(tmp_path: Path) -> None:
    index, digests = tmp_path / "e.scp", []
    for scale, similarity in ((1.0, "cosine"), (2.0, "cosine"), (2.0, "dot"), (1.0, "cosine")):
        embedded = Embeddings(("a", "b"), scale * np.eye(2, 3), {"similarity": similarity})
        embeddings.write_embeddings(tmp_path / "e.ark", embedded)
        digests.append((sha256(index), index.read_text()))
    assert digests[0] == digests[3]
    assert len({digest for digest, _ in digests}) == 3
    assert len({text for _, text in digests}) == 1, "only the archive and its meta changed"
    assert digests[0][0] != hashlib.sha256(index.read_bytes()).hexdigest()
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("e.ark", "e.scp", "e.meta.json"):
        (tmp_path / name).rename(moved / name)
    (moved / "e.scp").write_text("a e.ark:2\nb e.ark:24\n")  # read from beside the index
    before = sha256(moved / "e.scp")
    (moved / "e.ark").write_bytes(b"other")
    assert sha256(moved / "e.scp") != before


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="needs /dev/fd")
def test_a_pipe_says_that_it_has_none() -> None:
    reading, writing = os.pipe()
    os.close(writing)
    try:
        assert sha256(Path(f"/dev/fd/{reading}")) == "unknown: read from a pipe"
    finally:
        os.close(reading)
