"""What is kept of a file is known by it: a file that changed, was replaced or repaired since is
read again, whatever its size and its time are.
"""

import ast
import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile

from likeness.data import Item, rows, shards
from likeness.embedding import extraction
from likeness.eval.formats import embeddings
from likeness.modalities.face import align, ijb
from likeness.modalities.image import _packed, small_sets
from likeness.models.run import load_model
from likeness.toolkit import sources
from likeness.toolkit.data.images import encode
from likeness.toolkit.sources import digest_of_sources, source_of
from tests.modalities.face.test_face_align import scene, tiny_detector
from tests.scripts import ROOT
from tests.sounds import chatter
from tests.toolkit.data.test_shards import tar

ROOMS = ("eval", "toolkit", "modalities", "recipes", "likeness")
# These are read once in a process, and say so.
READ_ONCE = {"listing", "_detector_of", "_distributions"}
# What was made of other files is refused there, as test_papers.py and test_compare.py try.
REFUSING = {"likeness/training/papers.py", "toolkit/training/compare.py"}


class Cache(NamedTuple):
    """Something that is kept of files.

    Attributes:
        write: Writes version 0 or 1 of a source into a folder; both have as many bytes.
        read: What a user gets of the source, after it was read before.
    """

    write: Callable[[Path, int], Path]
    read: Callable[[Path, Path], Any]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def write_wave(folder: Path, version: int) -> Path:
    wave = chatter(1.0, seed=version)
    soundfile.write(folder / "b.wav", wave, 16_000)
    return folder / "b.wav"


def embedded(folder: Path, world: Path) -> Any:
    """The embeddings of three files, whose pieces stay."""
    for name in "ac":
        shutil.copy2(world / "a.wav", folder / f"{name}.wav")
    items = [Item(name, folder / f"{name}.wav") for name in "abc"]
    model = load_model(world / "runs" / "voices")
    made, bad = extraction.extract(model, items, folder / "e.npz", piece_items=2, batch_size=1)
    return made.ids, made.matrix.tolist(), [each.id for each in bad]


def write_shard(folder: Path, version: int) -> Path:
    return tar(folder / "a.tar", [("1.wav", b"sound"), ("1.cls", (b"ann", b"bob")[version])])


def write_photograph(folder: Path, version: int) -> Path:
    (folder / "photos").mkdir(exist_ok=True)
    pictures = [encode(scene(*cells)) for cells in (((2, 2), (6, 6)), ((4, 4),))]
    longest = max(map(len, pictures))
    return written(folder / "photos" / "a.png", pictures[version].ljust(longest, b"\0"))


def aligned(folder: Path, world: Path) -> Any:
    detector = tiny_detector(folder / "d.onnx")
    made = align.align_folder(folder / "photos", folder / "crops", detector=detector, choose="all")
    return [path.read_bytes() for path in sorted((folder / "crops").glob("*.png"))], made.several


def write_compressed(folder: Path, version: int) -> Path:
    return written(folder / "a.gz", gzip.compress(b"%d" % version, mtime=0))


def write_vectors(folder: Path, version: int) -> Path:
    made = embeddings.Embeddings(("a/1",), np.full((1, 4), 1 + version, np.float32), {"model": "m"})
    embeddings.write_embeddings(folder / "e.npz", made)
    return folder / "e.npz"


def write_landmarks(folder: Path, version: int) -> Path:
    return written(folder / "l.txt", b"a.jpg " + b"%d " % version * 10 + b"1\n")


def write_ink(folder: Path, version: int) -> Path:
    drawn = np.full((2, small_sets._ROW_BYTES), version, np.uint8)
    np.savez(folder / "ink.npz", ink_packed=drawn)
    return folder / "ink.npz"


def read_landmarks(folder: Path, _: Path) -> Any:
    return ijb._kept(str(folder / "l.txt"), source_of(folder / "l.txt"))["a.jpg"].sum()


def read_ink(folder: Path, _: Path) -> Any:
    return int(small_sets._ink(folder / "ink.npz", source_of(folder / "ink.npz")).sum())


def read_stretch(folder: Path, _: Path) -> Any:
    return _packed.stretch(Item("a", folder / "a.gz"))


def read_rows(folder: Path, _: Path) -> Any:
    return rows._table(folder / "e.npz").matrix.tolist()


# By the files that keep something.
PIECES, CROPS = "likeness/embedding/extraction.py", "modalities/face/align.py"
CACHES = {
    PIECES: Cache(write_wave, embedded),
    CROPS: Cache(write_photograph, aligned),
    "toolkit/data/shards.py": Cache(write_shard, lambda folder, _: shards.items(folder)[0].label),
    "modalities/image/_packed.py": Cache(write_compressed, read_stretch),
    "modalities/embedding/rows.py": Cache(write_vectors, read_rows),
    "modalities/face/ijb.py": Cache(write_landmarks, read_landmarks),
    "modalities/image/small_sets.py": Cache(write_ink, read_ink),
}


def modules() -> dict[str, ast.Module]:
    """The product's files, parsed."""
    paths = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    real = [path for path in paths if not any(up.is_symlink() for up in path.parents)]
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_bytes()) for path in real}


def test_every_module_that_keeps_something_of_a_file_is_here():
    nodes = [(name, node) for name, tree in modules().items() for node in ast.walk(tree)]
    imports = [(name, node.names) for name, node in nodes if isinstance(node, ast.ImportFrom)]
    asked = {"source_of", "digest_of_sources"}
    keeping = {name for name, names in imports if asked & {each.name for each in names}}
    assert keeping - REFUSING == CACHES.keys()


def test_what_a_process_keeps_of_a_path_is_kept_of_its_source():
    without = []
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef):
                continue
            decorators = " ".join(map(ast.unparse, node.decorator_list))
            arguments = [argument.arg for argument in node.args.args]
            if "cache" not in decorators or "cached_property" in decorators:
                continue
            if {"path", "file", "folder", "where"} & {*arguments} and "source" not in arguments:
                without.append((name, node.name))
    assert {function for _, function in without} <= READ_ONCE, without


@pytest.mark.parametrize("name", CACHES)
@pytest.mark.parametrize("how", ["changed", "touched", "with its old time", "renamed over"])
def test_a_source_that_changed_is_read_again(name, how, request, tmp_path):
    world = request.getfixturevalue("_world")
    cache, folder, fresh = CACHES[name], tmp_path / "kept", tmp_path / "fresh"
    folder.mkdir()
    fresh.mkdir()
    source = cache.write(folder, 0)
    before = cache.read(folder, world)
    assert cache.read(folder, world) == before
    stat = source.stat()
    if how == "touched":
        os.utime(source, ns=(0, 0))
        assert cache.read(folder, world) == before
        return
    if how == "renamed over":
        beside = tmp_path / "beside"
        beside.mkdir()
        os.utime(cache.write(beside, 1), ns=(stat.st_atime_ns, stat.st_mtime_ns))
        os.replace(beside / source.relative_to(folder), source)
    else:
        cache.write(folder, 1)
    if how == "with its old time":
        os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert source.stat().st_size == stat.st_size
    cache.write(fresh, 1)
    after = cache.read(folder, world)
    assert after == cache.read(fresh, world)
    assert after != before


@pytest.mark.parametrize(("most", "is_of_content"), [(5, True), (4, False)])
def test_small_files_are_known_by_content_and_large_ones_by_time(
    most, is_of_content, tmp_path, monkeypatch
):
    monkeypatch.setattr(sources, "_MOST_DIGESTED", most)
    file = written(tmp_path / "a.wav", b"sound")
    before = digest_of_sources([file, tmp_path / "gone.wav"])
    os.utime(file, (1, 1))
    assert (digest_of_sources([file]) == before) is is_of_content
    written(file, b"noise")
    assert digest_of_sources([file]) != before


@pytest.mark.parametrize("name", [PIECES, CROPS])
def test_what_failed_is_tried_again(name, request, tmp_path, capfd):
    world = request.getfixturevalue("_world")
    cache = CACHES[name]
    source = cache.write(tmp_path, 0)
    whole = cache.read(tmp_path, world)
    source.write_bytes(b"spoilt")
    assert cache.read(tmp_path, world) != whole
    cache.write(tmp_path, 0)
    assert cache.read(tmp_path, world) == whole
    if name == PIECES:
        assert capfd.readouterr().err.count("1 items of these pieces changed") == 2


def test_a_crop_of_a_photograph_that_is_gone_stays_and_is_counted(tmp_path):
    write_photograph(tmp_path, 1)
    shutil.copy(tmp_path / "photos" / "a.png", tmp_path / "photos" / "b.png")
    detector = tiny_detector(tmp_path / "d.onnx")
    photos, crops = tmp_path / "photos", tmp_path / "crops"
    align.align_folder(photos, crops, detector=detector)
    (photos / "b.png").unlink()
    made = align.align_folder(photos, crops, detector=detector)
    assert made.gone == ["b.png"]
    assert (crops / "b.png").exists()
    with pytest.raises(ValueError, match="crops of another"):
        align.align_folder(photos, crops, detector=detector, size=(112, 96))
    (crops / "sources.jsonl").unlink()
    with pytest.raises(ValueError, match="made by no"):
        align.align_folder(photos, crops, detector=detector)
