"""Tables of files that are wrong, or made to harm."""

from __future__ import annotations

import io
import os
from pathlib import Path
from threading import Thread

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from likeness.files import media_of
from likeness.inputs import items_of


@pytest.mark.parametrize("missing", [pandas.NA, pandas.NaT, np.nan, None, ""])
def test_a_missing_id_is_the_path(missing: object, tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    table = pandas.DataFrame({"id": [missing], "path": ["a.wav"], "label": [pandas.NA]})
    with items_of(table, modality="speaker", root=tmp_path) as items:
        assert [(item.id, item.label) for item in items] == [("a.wav", None)]


def test_a_missing_path_is_refused() -> None:
    table = pandas.DataFrame({"path": [pandas.NA, "a.wav"], "label": ["ann", "bob"]})
    with (
        pytest.raises(ValueError, match="no path"),
        items_of(table, modality="speaker"),
    ):
        pass


def test_an_open_file_that_gives_little_at_a_time_is_read_to_its_end() -> None:
    """A pipe gives what it has; a wave that is cut short would be embedded as if it were whole."""
    content = b"RIFF" + bytes(range(256)) * 1_000
    reader, writer = os.pipe()

    def send() -> None:
        with open(writer, "wb") as file:
            file.write(content)

    thread = Thread(target=send)
    thread.start()
    with (
        open(reader, "rb", buffering=0) as pipe,
        items_of({"a": pipe, "b": io.BytesIO(content)}, modality="speaker") as items,
    ):
        assert [item.path.read_bytes() for item in items] == [content, content]
    thread.join()


def test_bfloat16_is_read() -> None:
    wave = torch.linspace(-1, 1, 2_000).bfloat16()
    with items_of(wave, modality="speaker", rate_hz=16_000) as items:
        assert items[0].path.stat().st_size > 4 * 2_000


def test_a_list_says_where_its_items_lie(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a b.png")
    (tmp_path / "list.tsv").write_text("# items\none\ta b.png\tann\ntwo\tgone.png\tbob\n")
    media = media_of(tmp_path / "list.tsv")
    assert '<img alt="one" class="tiny" src="data:image/png;base64,' in media.show("one")
    assert media.show("two") == media.show("three") == ""
    assert "gone.png" in media.note()
    (tmp_path / "bad.txt").write_text("a b c d\n")
    with pytest.raises(ValueError, match="4 fields"):
        media_of(tmp_path / "bad.txt")
