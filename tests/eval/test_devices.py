"""Links to devices and pipes among files from elsewhere: no reader waits for ever or fills the
memory.
"""

import json
import os
from pathlib import Path

import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings
from likeness.eval.formats.files import bounded
from likeness.eval.items.item_lists import read_items
from likeness.eval.items.items import Item
from likeness.eval.metrics.calibration import Fusion, load_fusion
from likeness.eval.protocols import lfw
from likeness.eval.scoring.plda import load_plda
from likeness.toolkit.data.images import BadImage, file_bytes

pytestmark = pytest.mark.skipif(
    not hasattr(os, "mkfifo") or not Path("/dev/zero").exists(), reason="no pipes or devices here"
)


@pytest.mark.parametrize("name", ["a.npz", "a.ark", "a.scp", "a.parquet", "a.png"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_embeddings_and_items_are_read_of_files_only(name, kind, tmp_path):
    path = tmp_path / name
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    with pytest.raises(LikenessError):
        Item("a", path).open() if name == "a.png" else embeddings.read_embeddings(path)
    if name == "a.png":
        with pytest.raises(BadImage, match="pipe"):
            file_bytes(Item("a", path))


@pytest.mark.parametrize("read", [load_fusion, load_plda, lfw.read_pairs, read_items])
def test_a_small_text_is_read_up_to_its_bound(read, tmp_path):
    (tmp_path / "a.json").symlink_to("/dev/zero")
    with pytest.raises(LikenessError):
        read(tmp_path / "a.json")


def test_a_calibration_comes_through_a_pipe(tmp_path):
    """As a shell's <(...) gives it; a pipe states no size."""
    Fusion((2.0,), 1.0).save(tmp_path / "c.json")
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "c.json").read_bytes())
    os.close(writing)
    try:
        assert load_fusion(f"/dev/fd/{reading}") == load_fusion(tmp_path / "c.json")
    finally:
        os.close(reading)


def test_bounded_takes_as_much_as_is_allowed(tmp_path):
    path = tmp_path / "a"
    path.write_text(json.dumps("x" * 8))
    assert bounded(path, 10) == path.read_bytes()
    with pytest.raises(LikenessError):
        bounded(path, 9)
