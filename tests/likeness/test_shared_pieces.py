"""Many processes embed one list in pieces, some are killed, and the result is that of one process.

The places are a folder, and a bucket of an S3 server. The model is in ONNX form, so that a process
starts quickly.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eval.formats import embeddings as files
from likeness import extract, shared_pieces
from likeness.cli import main
from likeness.commands.options import ending_at_sigterm
from likeness.models.load import load_to_embed
from modalities.speaker import audio, folders
from modalities.speaker.features import KaldiFbank
from tests.aged import age
from toolkit.backbones.resnet import ResNet34
from toolkit.data.items import Item
from toolkit.models import export
from toolkit.models.embedder import TorchEmbedder
from toolkit.models.loaded import Loaded
from toolkit.parallel import claims
from toolkit.parallel.claims import Place

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

ROOT = Path(__file__).parents[2]
# A worker that waits with its first piece until four have one; `killed` is killed then.
WORKER = """
import os, signal, sys, time
from likeness.cli import main
from toolkit.parallel import claims

role, take, taken = sys.argv[1], claims.Worker.take, []


def take_with_others(self, num_pieces):
    claim = take(self, num_pieces)
    if not taken:
        taken.append(claim)
        until = time.monotonic() + 300
        while sum(name.startswith("claim-") for name in self.place.names()) < 4:
            assert time.monotonic() < until, "the other workers did not come"
            time.sleep(0.05)
        if role == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    return claim


claims.Worker.take = take_with_others
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = ResNet34(16, dim=8, width=2, blocks=(1, 1, 1, 1))
    embedder = TorchEmbedder(KaldiFbank(num_mels=16), network).eval()
    path = tmp_path_factory.mktemp("model") / "voice.onnx"
    export.export(Loaded(embedder, audio.read, "speaker", "cosine", "v" * 64, 0), path)
    return path


@pytest.fixture
def items(voices: Path, tmp_path: Path) -> list[Item]:
    broken = tmp_path / "broken.flac"
    broken.write_bytes(b"no audio")
    listed = folders.items(voices, split="all")
    return [*listed[:7], Item("broken", broken, "x"), *listed[7:14]]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return claims.open_place(str(tmp_path / "pieces"))


def run(*arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "likeness", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert not check or not done.returncode, done.stderr
    return done


@pytest.mark.slow  # six processes at each place
@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_fifth_worker_finishes_what_two_killed_ones_of_four_began(
    where: str, model: Path, items: list[Item], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue("store") if where == "bucket" else None
    place = claims.open_place(str(tmp_path / "pieces") if store is None else "s3://voices/run")
    listed, script = tmp_path / "items.txt", tmp_path / "worker.py"
    listed.write_text("".join(f"{item.id}\t{item.path}\n" for item in items))
    script.write_text(WORKER)
    command = ["embed", "--model", model, "--items", listed, "--batch-size", 1]
    run(*command, "--out", tmp_path / "plain.npz")
    shared = [*command, "--pieces", place, "--piece-items", 2]
    running = [
        subprocess.Popen(
            [sys.executable, script, role, *map(str, shared)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for role in ("killed", "lives", "killed", "lives")
    ]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [-9, 0, -9, 0]
    assert "2 are claimed" in said[1] + said[3]
    assert "6 of 8 pieces are there, 2 are claimed" in run("pieces", place).stdout
    out = tmp_path / "joined.npz"
    assert "2 of 8 pieces are missing" in run("pieces", place, "--out", out, check=False).stderr
    orphans = list(claims.survey(place, 8).claims.values())
    for claim in orphans:
        age(place, claim.name, 601, store)
    run(*shared, "--out", out)
    plain, joined = files.read(tmp_path / "plain.npz"), files.read(out)
    assert joined.ids == plain.ids
    assert len(joined.ids) == 14
    assert np.array_equal(joined.matrix, plain.matrix)
    assert joined.meta == plain.meta
    # No piece was made twice but those of the killed.
    names = sorted(name for name in place.names() if name.startswith("claim-"))
    again = sorted(f"claim-{claim.piece:06d}.2" for claim in orphans)
    assert names == sorted([*(f"claim-{piece:06d}.1" for piece in range(8)), *again])
    run("pieces", place, "--out", tmp_path / "later.parquet")
    assert files.read(tmp_path / "later.parquet").ids == plain.ids


def test_pieces_are_those_of_a_plain_run(
    model: Path, items: list[Item], place: Place, tmp_path: Path
) -> None:
    loaded = load_to_embed(str(model))
    plain = extract.extract(loaded, items, tmp_path / "plain.npz", piece_items=4)
    progress = shared_pieces.embed_pieces(loaded, items, place, piece_items=4)
    assert (progress.num_items, progress.num_pieces, progress.missing) == (15, 4, [])
    joined, bad = shared_pieces.join(place)
    assert plain is not None
    assert np.array_equal(joined.matrix, plain[0].matrix)
    assert (joined.ids, joined.meta, bad) == (plain[0].ids, plain[0].meta, plain[1])
    assert [item.id for item in bad] == ["broken"]


def test_other_work_is_refused_before_it_begins(
    model: Path, items: list[Item], place: Place
) -> None:
    loaded = load_to_embed(str(model))

    def never(item: Item) -> np.ndarray:  # type: ignore[type-arg]
        raise AssertionError(item)

    shared_pieces.embed_pieces(loaded, items, place, piece_items=8)
    other = replace(loaded, read=never)
    for changed, listed, size, named in (
        (replace(other, digest="w" * 64), items, 8, r"\(meta, model differ"),
        (other, items[1:], 8, r"\(items, num_items differ"),
        (replace(other, settings={"crops": "2"}), items, 8, r"\(meta, settings differ"),
        (other, items, 7, r"\(piece_items differ"),
    ):
        with pytest.raises(ValueError, match=named):
            shared_pieces.embed_pieces(changed, listed, place, piece_items=size)
    assert not shared_pieces.progress(place).missing


@pytest.mark.parametrize("damage", ["truncated", "flipped", "other piece", "empty"])
def test_a_damaged_piece_is_named_and_made_again(
    damage: str, model: Path, items: list[Item], place: Place
) -> None:
    loaded = load_to_embed(str(model))
    shared_pieces.embed_pieces(loaded, items, place, piece_items=4)
    before, _ = shared_pieces.join(place)
    content = place.read("piece-000002.npz", 1 << 20)
    middle = content.index(np.float32(before.matrix[8, 0]).tobytes())
    place.write(
        "piece-000002.npz",
        {
            "truncated": content[:-40],
            "flipped": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "other piece": place.read("piece-000001.npz", 1 << 20),
            "empty": b"",
        }[damage],
    )
    with pytest.raises(shared_pieces.Damaged, match=r"1 of 4 pieces .*piece-000002"):
        shared_pieces.join(place)
    with pytest.raises(ValueError, match=r"1 of 4 pieces are missing .*piece-000002"):
        shared_pieces.join(place)
    assert not shared_pieces.embed_pieces(loaded, items, place, piece_items=4).missing
    assert np.array_equal(shared_pieces.join(place)[0].matrix, before.matrix)


def test_what_no_worker_made_is_put_away_and_the_piece_made_again(
    model: Path, items: list[Item], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_to_embed(str(model))
    place = claims.open_place(str(tmp_path / "pieces"))
    shared_pieces.embed_pieces(loaded, items, place, piece_items=4)
    too_large, folder = (tmp_path / "pieces" / claims.piece_name(number) for number in (1, 2))
    monkeypatch.setattr(shared_pieces, "MAX_SPAN", 2**20)  # or a gigabyte would be read
    os.truncate(too_large, 2**20 + 1)
    folder.unlink()
    folder.mkdir()
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(shared_pieces.Damaged, match=r"2 of 4 pieces .*over 1048576 bytes"):
        shared_pieces.join(place)
    assert shared_pieces.progress(place).missing == [1, 2]
    assert [path.read_text() for path in tmp_path.rglob("mine.txt")] == ["kept"]
    shared_pieces.embed_pieces(loaded, items, place, piece_items=4)
    assert not shared_pieces.progress(place).missing
    shared_pieces.join(place)


def test_a_piece_of_another_extraction_is_refused_and_stays(
    model: Path, items: list[Item], place: Place, tmp_path: Path
) -> None:
    loaded = load_to_embed(str(model))
    shared_pieces.embed_pieces(loaded, items, place, piece_items=8)
    other = claims.open_place(str(tmp_path / "other"))
    shared_pieces.embed_pieces(replace(loaded, digest="w" * 64), items, other, piece_items=8)
    foreign = other.read("piece-000001.npz", 1 << 20)
    place.write("piece-000001.npz", foreign)
    with pytest.raises(ValueError, match="another extraction"):
        shared_pieces.join(place)
    assert place.read("piece-000001.npz", 1 << 20) == foreign


def test_a_waiting_worker_takes_over_and_one_that_does_not_wait_leaves(
    model: Path, items: list[Item], place: Place
) -> None:
    loaded = load_to_embed(str(model))
    shared_pieces.embed_pieces(loaded, items, place, piece_items=8)
    claims.reopen(place, 1)
    assert claims.Worker(place, "dead", 600).take(2) is not None
    left = shared_pieces.embed_pieces(loaded, items, place, piece_items=8)
    assert (left.missing, left.held) == ([1], {1: "dead"})
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        age(place, "claim-000001.1", 250)

    done = shared_pieces.embed_pieces(loaded, items, place, piece_items=8, waits=True, sleep=sleep)
    assert len(slept) == 3  # 750 seconds are more than the lease of 600
    assert not done.missing


def test_a_worker_that_is_stopped_gives_its_piece_back(
    model: Path, items: list[Item], place: Place
) -> None:
    loaded = load_to_embed(str(model))

    def stopping(item: Item) -> np.ndarray:  # type: ignore[type-arg]
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError(item)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"), ending_at_sigterm():
        shared_pieces.embed_pieces(replace(loaded, read=stopping), items, place, piece_items=8)
    assert place.names() == {"plan.json"}
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_plan_that_is_about_to_be_written_is_waited_for(
    model: Path, items: list[Item], place: Place, tmp_path: Path
) -> None:
    loaded = load_to_embed(str(model))
    other = claims.open_place(str(tmp_path / "other"))
    shared_pieces.embed_pieces(loaded, items, other, piece_items=8)
    plan = other.read("plan.json", 1 << 20)
    slept: list[float] = []

    def written(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            place.write("plan.json", plan)

    place.write("plan.json", b"")
    done = shared_pieces.embed_pieces(loaded, items, place, piece_items=8, sleep=written)
    assert (len(slept), done.missing) == (2, [])
    place.write("plan.json", b"")
    with pytest.raises(ValueError, match="damaged"):
        shared_pieces.embed_pieces(loaded, items, place, piece_items=8, sleep=slept.append)


def test_a_damaged_plan_and_a_place_without_one(place: Place) -> None:
    with pytest.raises(FileNotFoundError, match="no pieces"):
        shared_pieces.progress(place)
    for content in (b"", b"[]", b"{}", b'{"num_items": 0, "piece_items": 1, "meta": {}}'):
        place.write("plan.json", content)
        with pytest.raises(ValueError, match=re.escape("plan.json")):
            shared_pieces.progress(place)


def test_recordings_and_lists_of_a_bucket(
    store: Any, model: Path, voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import s3fs

    local = folders.items(voices, split="all")[:6]
    system = s3fs.S3FileSystem()
    for item in local:
        system.pipe_file(f"voices/data/{item.id}.flac", item.path.read_bytes())
    listed, urls = tmp_path / "items.txt", tmp_path / "urls.csv"
    listed.write_text("".join(f"{item.id} {item.id}.flac\n" for item in local))
    lines = [f"{item.id},s3://voices/data/{item.id}.flac\n" for item in local]
    urls.write_text("id,file\n" + "".join(lines) + "gone,s3://voices/data/gone.flac\n")
    plain = extract.extract(load_to_embed(str(model)), local, tmp_path / "plain.npz")
    assert plain is not None
    with_root = ["--items", listed, "--root", "s3://voices/data", "--out", tmp_path / "root.npz"]
    with_urls = ["--items", urls, "--out", tmp_path / "urls.npz", "--workers", 2]
    for options in (with_root, with_urls):
        with pytest.raises(SystemExit) as ended:
            main(["embed", "--model", str(model), *map(str, options)])
        assert not ended.value.code
    assert "1 unreadable items left out" in capsys.readouterr().out
    for name in ("urls.npz", "root.npz"):
        made = files.read(tmp_path / name)
        assert made.ids == plain[0].ids
        np.testing.assert_allclose(made.matrix, plain[0].matrix, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", ["1e400", "1e300", "10000000", "-1", "[]"])
def test_a_plan_of_absurd_size_is_refused_at_once(number: str, place: Place) -> None:
    plan = '{"num_items": NUMBER, "piece_items": 2, "meta": {}}'.replace("NUMBER", number)
    place.create("plan.json", plan.encode())
    with pytest.raises(ValueError, match=r"plan\.json"):
        shared_pieces.progress(place)
