"""An .ark and its meta are of one version: the meta of another archive is an error."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from likeness.eval import writing
from likeness.eval.formats import _kaldi
from likeness.eval.formats.embeddings import Embeddings, read_embeddings, write_embeddings

OLD = Embeddings(
    ("a", "b"),
    np.array([[1, 0], [1, 1]], dtype=np.float32),
    {"similarity": "simple:0.3", "model": "old"},
)
NEW = Embeddings(
    ("b", "a"), np.array([[0, 2], [2, 3]], dtype=np.float32), {"similarity": "dot", "model": "new"}
)


def known(path: Path) -> str:
    """The model of what a file holds, when ids, vectors and meta are all of one version."""
    loaded = read_embeddings(path)
    whole = {"old": OLD, "new": NEW}[loaded.meta.get("model", "unknown")]
    assert loaded.ids == whole.ids
    assert np.array_equal(loaded.matrix, whole.matrix)
    assert loaded.meta == whole.meta
    return loaded.meta["model"]


@pytest.mark.parametrize("last", range(5))
def test_a_stop_at_any_rename_leaves_no_vectors_of_another_similarity(tmp_path, monkeypatch, last):
    """The four calls by which names change: a writer may end before or after any of them."""
    path = tmp_path / "e.ark"
    write_embeddings(path, OLD)
    calls = 0

    def counted(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal calls
            if calls == last:
                raise KeyboardInterrupt
            calls += 1
            real(*arguments)

        return call

    monkeypatch.setattr(_kaldi, "move", counted(writing.move))
    monkeypatch.setattr(_kaldi, "remove", counted(writing.remove))
    if last < 4:
        with pytest.raises(KeyboardInterrupt):
            write_embeddings(path, NEW)
    else:
        write_embeddings(path, NEW)
    if last == 2:  # the meta is new, and the archive is not
        with pytest.raises(ValueError, match="belongs to another"):
            read_embeddings(path)
    else:
        assert known(path) == ("old" if last < 2 else "new")
    if last in (0, 4):
        assert known(tmp_path / "e.scp") == known(path)
    else:
        assert not (tmp_path / "e.scp").exists()
    monkeypatch.undo()
    write_embeddings(path, OLD)
    assert known(path) == known(tmp_path / "e.scp") == "old"


def test_an_index_elsewhere_takes_the_meta_of_its_archives(tmp_path: Path) -> None:
    """What utils/filter_scp.pl and cat make of our .scp files."""
    (tmp_path / "sub").mkdir()
    write_embeddings(tmp_path / "e.ark", OLD)
    write_embeddings(tmp_path / "f.ark", NEW)
    lines = (tmp_path / "e.scp").read_text().splitlines(keepends=True)
    (tmp_path / "sub" / "some.scp").write_text(lines[1])
    assert read_embeddings(tmp_path / "sub" / "some.scp").meta == OLD.meta
    (tmp_path / "both.scp").write_text(lines[0] + (tmp_path / "f.scp").read_text().splitlines()[0])
    with pytest.raises(ValueError, match="2 different metas"):
        read_embeddings(tmp_path / "both.scp")
