"""Files of others that lie where a command writes are never removed or replaced."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.errors import LikenessError
from likeness.eval.formats import embeddings
from likeness.eval.types import Embeddings
from likeness.extraction import join_parts
from likeness.toolkit.data import shards
from tests.scripts import run_command, touch


def test_a_folder_of_pieces_with_another_file_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "voices/ann/1.wav", "e.npz.pieces/thesis.tex")
    words = ("embed", "--model", "likeness:voice", "--items", tmp_path / "voices")
    assert run_command(*words, "--out", tmp_path / "e.npz") == 2
    assert (tmp_path / "e.npz.pieces" / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("source", "out"),
    [("items.left-out.csv", "items.csv"), ("lists/items.txt", "lists"), ("x.scp", "x.ark")],
)
def test_an_input_beside_or_within_the_output_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, out: str
) -> None:
    touch(tmp_path, "ann/1.wav", "ann/2.wav")
    given = tmp_path / source
    given.parent.mkdir(exist_ok=True)
    given.write_text("path,label\nann/1.wav,ann\nann/2.wav,ann\n")
    before = given.read_bytes()
    command = {"items.csv": "check", "lists": "lists", "x.ark": "embed"}[out]
    first = ("--model", "likeness:voice", "--items", given) if command == "embed" else (given,)
    assert run_command(command, *first, "--out", tmp_path / out, "--force") == 2
    assert "is one of the inputs" in capsys.readouterr().err
    assert given.read_bytes() == before


@pytest.mark.parametrize("text", ["xx", "5", '[["a"]]', '{"a": 1}', "[" * 100_000])
def test_a_damaged_part_is_refused(tmp_path: Path, text: str) -> None:
    matrix = np.ones((1, 2), np.float32)
    meta = {"bad": text, "part": "1/1", "list": "0"}
    embeddings.write(tmp_path / "part.npz", Embeddings(("a",), matrix, meta))
    with pytest.raises(LikenessError):
        join_parts([tmp_path / "part.npz"])


@pytest.mark.parametrize(
    "row", ['["a", null, ".wav", "x", 1]', '["a", null, ".wav", 0, -5]', '[1, {}, ".wav", 0, 1]']
)
def test_a_damaged_index_of_a_shard_is_made_anew(tmp_path: Path, row: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in (("ann/1.wav", b"sound"), ("ann/1.cls", b"ann")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    whole = shards.items(tmp_path)
    size = (tmp_path / "a.tar").stat().st_size
    (tmp_path / "a.tar.index").write_text(f'{{"bytes": {size}, "items": [{row}]}}')
    assert list(shards.items(tmp_path)) == list(whole)
