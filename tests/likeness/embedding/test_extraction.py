"""Long extractions: the same embeddings in the same order from any number of processes, and from
the pieces of a run that was stopped.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from likeness.data import Item, audio, folders
from likeness.embedding import extraction
from likeness.eval.formats import embeddings as files
from likeness.models.run import load_model
from tests.scripts import program, run_command

# Pieces are thousands of items long; this runs the same command with pieces of five.
SCRIPT = (
    "import sys; from likeness import cli; from likeness.embedding import extraction; "
    "extraction.extract.__kwdefaults__['piece_items'] = 5; cli.main(sys.argv[1:])"
)


@pytest.fixture
def items(voices: Path, tmp_path: Path) -> list[Item]:
    broken = tmp_path / "broken.flac"
    broken.write_bytes(b"no audio")
    listed_items = folders.items(voices, split="all")[:13]
    return [*listed_items[:7], Item("broken", broken, "x"), *listed_items[7:]]


def test_pieces_join_in_order_and_go_on_where_they_stopped(run, items, tmp_path, monkeypatch):
    loaded, out = load_model(run), tmp_path / "out.npz"
    whole = extraction.extract(loaded, items, tmp_path / "whole.npz")
    reads: list[str] = []

    def stopping(item: Item) -> np.ndarray:  # type: ignore[type-arg]
        reads.append(item.id)
        if len(reads) == 9:
            raise KeyboardInterrupt
        return audio.read(item)

    counted = replace(loaded, read=stopping)
    with pytest.raises(KeyboardInterrupt):
        extraction.extract(counted, items, out, piece_items=5)
    again = extraction.extract(counted, items, out, piece_items=5)
    assert len(reads) == 9 + 9  # the first five were not read again
    for made in (whole, again):
        assert made[0].ids == tuple(item.id for item in items if item.id != "broken")
        assert [item.id for item in made[1]] == ["broken"]
        assert "broken.flac" in made[1][0].reason
    bound = 1e-5 * np.abs(whole[0].matrix).max()
    np.testing.assert_allclose(again[0].matrix, whole[0].matrix, atol=bound)
    with pytest.raises(ValueError, match=r"items differ\)"):
        extraction.extract(counted, items[1:], out, piece_items=5)
    extraction.remove_pieces(out)
    assert not list(tmp_path.glob("*.pieces/*"))


def test_a_piece_of_unreadable_items_is_empty(run, items, tmp_path):
    model, broken = load_model(run), [items[7]._replace(id=f"b{i}") for i in range(3)]
    made = extraction.extract(model, [*broken, *items[:2]], tmp_path / "out.npz", piece_items=2)
    assert made[0].ids == tuple(item.id for item in items[:2])
    assert [item.id for item in made[1]] == ["b0", "b1", "b2"]
    nothing = extraction.extract(model, broken, tmp_path / "none.npz", piece_items=2)
    assert nothing[0] is None
    assert len(nothing[1]) == 3


@pytest.mark.slow  # three processes that import torch
def test_two_processes_write_the_same_file_as_one(run, items, tmp_path):
    listed = tmp_path / "items.txt"
    listed.write_text("".join(f"{item.id}\t{item.path}\n" for item in items))
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    made = []
    for num in (1, 2):
        out = tmp_path / f"out{num}.npz"
        many = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num)
        command = ("embed", "--model", run, "--items", listed, "--out", out)
        ended = program(*(many if num > 1 else ()), script, *command, CUDA_VISIBLE_DEVICES="")
        assert "13 embeddings of 8 dimensions" in ended.stdout + ended.stderr
        assert not list(tmp_path.glob("*.pieces"))
        made.append(files.read_embeddings(out))
    assert made[0].ids == made[1].ids
    assert np.array_equal(made[0].matrix, made[1].matrix)
    assert made[0].meta == made[1].meta


def test_pieces_without_their_plan_are_not_gone_on_from(run, items, tmp_path):
    """What a kill leaves while the folder of pieces is removed: nobody knows of which model they
    are.
    """
    loaded, out = load_model(run), tmp_path / "out.npz"
    left = tmp_path / "out.npz.pieces"
    left.mkdir()
    piece = files.Embeddings(("other",), np.ones((1, 3), np.float32), {"bad": "[]"})
    files.write_embeddings(left / "000000.npz", piece)
    read_back = extraction.extract(loaded, items[:3], out)
    assert read_back[0].ids == tuple(item.id for item in items[:3])


def test_parts_of_a_job_array_join_to_what_one_run_gives(run, items, tmp_path, capfd):
    listed = tmp_path / "items.txt"
    listed.write_text("".join(f"{item.id}\t{item.path}\n" for item in items))

    def embed(*options: str | Path, ok: bool = True) -> str:
        command = ["embed", *([] if "--join" in options else ["--batch-size", "1"]), *options]
        assert (run_command(*command) == 0) is ok
        return capfd.readouterr().err

    of_model = ("--model", run, "--items", listed)
    embed(*of_model, "--out", tmp_path / "whole.npz")
    whole = files.read_embeddings(tmp_path / "whole.npz")
    # of 15 parts the first has no item, and each other one; that of the ninth is broken
    parts = [tmp_path / f"part{n}.{'ark' if n in (1, 9) else 'npz'}" for n in range(1, 16)]
    for number, part in enumerate(parts, 1):
        embed(*of_model, "--part", f"{number}/15", "--out", part)
    assert "broken" in embed("--join", *reversed(parts), "--out", tmp_path / "joined.npz")
    again = files.read_embeddings(tmp_path / "joined.npz")
    assert again.ids == whole.ids
    assert np.array_equal(again.matrix, whole.matrix)
    assert dict(again.meta) == dict(whole.meta)
    first, third = tmp_path / "1of3.npz", tmp_path / "3of3.npz"
    for number, part in ((1, first), (3, third)):
        embed(*of_model, "--part", f"{number}/3", "--out", part)
    out = tmp_path / "refused.npz"
    for wrong, message in (
        ((first, third), "parts 1, 3 of 3"),
        ((first, parts[1]), "another model, list or number"),
        ((tmp_path / "whole.npz",), "is no part"),
        ((first, third, "--model", run), "--model would change nothing"),
    ):
        assert message in embed("--join", *wrong, "--out", out, ok=False)
    for part in ("0/3", "4/3", "a/b"):
        assert "write I/N" in embed(*of_model, "--part", part, "--out", out, ok=False)
    assert not out.exists()
