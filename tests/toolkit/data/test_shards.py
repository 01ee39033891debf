"""Shards: packing, reading and resuming, exchange with WebDataset, and damaged archives."""

import gzip
import io
import json
import os
import shutil
import tarfile
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import likeness
from likeness.data import Item, audio, folders, shards
from likeness.eval.errors import LikenessError
from likeness.modalities.synthetic import write_voices
from likeness.toolkit.models.parts import describe
from likeness.toolkit.sources import source_of

Members = list[tuple[str, bytes]]


@pytest.fixture(scope="module")
def packed(voices, tmp_path_factory):
    """The 32 voices in several shards. Read only: copy it to change it."""
    folder = tmp_path_factory.mktemp("packed")
    shards.write(folders.scan(voices), folder, shard_bytes=100_000)
    return folder


def tar(path: Path, members: Members, **settings: int) -> Path:
    with tarfile.open(path, "w", **settings) as archive:  # type: ignore[call-overload]
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            archive.addfile(info, io.BytesIO(content))
    return path


def shard_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.tar")}


def content(item: Item) -> bytes:
    with item.open() as file:
        return file.read()


def test_packed_items_are_the_items(voices, packed):
    originals = {item.id: item for item in folders.scan(voices)}
    items = shards.items(packed)
    assert len({item.path for item in items}) > 4
    assert all(path.stat().st_size <= 100_000 + tarfile.RECORDSIZE for path in packed.glob("*.tar"))
    assert {item.id for item in items} == originals.keys()
    assert [item.id for item in items] != sorted(originals)  # shuffled
    for entry in items:
        own = originals[entry.id]
        assert (entry.label, entry.suffix, content(entry)) == (own.label, ".flac", content(own))
        np.testing.assert_array_equal(audio.read(entry), audio.read(own))
    numbers = shards.shard_numbers(items)
    assert [item.path.name for item in items] == [f"shard-{number:06d}.tar" for number in numbers]
    describe(partial(shards.items, suffixes=(".flac",)))  # a recipe can name it


def test_the_index_says_what_a_scan_finds(packed, tmp_path):
    with_index = shards.items(packed)
    for path in packed.glob("*.tar"):
        shutil.copy(path, tmp_path)
    scanned = shards.items(tmp_path)
    assert [item._replace(path=packed / item.path.name) for item in scanned] == with_index
    assert shard_bytes(tmp_path) == shard_bytes(packed)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in packed.iterdir()}
    for name, numbers in (("shard-000001.tar", "1"), ("shard-00000[01].tar", "01")):
        chosen = [item for item in scanned if item.path.stem[-1] in numbers]
        assert shards.items(str(tmp_path / name)) == chosen


def test_packing_is_a_pure_function_and_whole_or_absent(voices, packed, tmp_path, monkeypatch):
    originals, out = folders.scan(voices), tmp_path / "packed"
    with monkeypatch.context() as patched:
        calls = iter(range(20))
        patched.setattr(shards, "_content", lambda item: next(calls) and item.path.read_bytes())
        with pytest.raises(TypeError):
            shards.write(originals, out, shard_bytes=100_000)
        assert not list(tmp_path.iterdir())  # nothing half-written to be seen
    shards.write(originals, out, shard_bytes=100_000)
    assert shard_bytes(out) == shard_bytes(packed)
    with pytest.raises(ValueError, match="a new folder"):
        shards.write(originals, out, shard_bytes=100_000)
    # from spans, into one shard
    (again,) = shards.write(shards.items(out), tmp_path / "again")
    contents = {item.id: content(item) for item in originals}
    assert {item.id: content(item) for item in shards.items(again)} == contents


def test_webdataset_reads_what_we_write_and_we_read_what_it_writes(packed, tmp_path):
    wds = pytest.importorskip("webdataset")
    ours, paths = shards.items(packed), [str(path) for path in sorted(packed.glob("*.tar"))]
    read = list(wds.WebDataset(paths, shardshuffle=False))
    expected = [({"id": item.id, "label": item.label}, content(item)) for item in ours]
    assert [(json.loads(record["json"]), record["flac"]) for record in read] == expected
    labels = {"cls": "7", "txt": "7", "json": {"label": "7"}}
    with wds.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for entry, (kind, label) in zip(ours, labels.items(), strict=False):
            writer.write({"__key__": f"clip/{kind}", "flac": content(entry), kind: label})
    found = [(item.id, item.label, item.suffix, content(item)) for item in shards.items(tmp_path)]
    pairs = zip(labels, ours, strict=False)
    assert found == [(f"clip/{kind}", "7", ".flac", content(entry)) for kind, entry in pairs]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_shards_by_others(tmp_path, format):
    long = "é" * 60 if format != tarfile.USTAR_FORMAT else "e"
    members: Members = [
        ("id1/", b""),
        ("id1/x/01.wav.spk", b"id1\n"),  # WeSpeaker: keys that end in .wav
        ("id1/x/01.wav.wav", b"one"),
        ("id1/x/02.wav.spk", b"id1"),
        ("id1/x/02.wav.wav", b"two"),
        (f"{long}/pair.left.jpg", b"left"),  # webdataset: one label for two members
        (f"{long}/pair.right.JPG", b"right"),
        (f"{long}/pair.cls", b"12"),
        ("./cap.txt", b"a caption\nof two lines"),
        ("cap.jpg", b"cap"),
        ("cap.json", b'{"label": 3, "id": "the cap", "deep": [[]]}'),
        ("._cap.jpg", b"what macOS adds"),
        ("README", b"no suffix"),
    ]
    tar(tmp_path / "a.tar", members, format=format)
    found = [(item.id, item.label, item.suffix, content(item)) for item in shards.items(tmp_path)]
    assert found == [
        ("id1/x/01.wav", "id1", ".wav", b"one"),
        ("id1/x/02.wav", "id1", ".wav", b"two"),
        (f"{long}/pair.left", "12", ".jpg", b"left"),
        (f"{long}/pair.right", "12", ".jpg", b"right"),
        ("the cap", "3", ".jpg", b"cap"),
    ]
    assert shards.items(tmp_path, suffixes=(".wav",)).ids == ["id1/x/01.wav", "id1/x/02.wav"]


def test_labels_without_a_file_are_counted(tmp_path):
    tar(tmp_path / "a.tar", [("1.jpg", b"a"), ("1.spk", b"0"), ("2.spk", b"1"), ("a.txt", b"b\nc")])
    for _ in range(2):  # by a scan, then by the index
        with pytest.warns(UserWarning, match=r"left out: 1 \('2.spk'\)"):
            assert shards.items(tmp_path).ids == ["1"]


def test_labels_may_be_missing_and_repeated_ids_are_refused(tmp_path):
    members = [("1.jpg", b"a"), ("1.cls", b"0"), ("1.npy", b"b"), ("2.jpg", b"c")]
    tar(tmp_path / "a.tar", [*members, ("2.txt", b"\xff"), ("3.jpg", b"d")])
    with pytest.raises(ValueError, match=r"twice|repeated"):
        shards.items(tmp_path)
    assert [item.label for item in shards.items(tmp_path, suffixes=(".jpg",))] == ["0", None, None]
    shutil.copy(tmp_path / "a.tar", tmp_path / "b.tar")
    with pytest.raises(ValueError, match=r"twice|repeated"):
        shards.items(tmp_path, suffixes=(".jpg",))
    with pytest.raises(ValueError, match=r"without .wav members"):
        shards.items(tmp_path, suffixes=(".wav",))


@pytest.mark.parametrize(
    "text", ["[]", "{}", "x", '{"source": 1, "items": []}', '{"source": SOURCE, "items": [["a"]]}']
)
def test_an_index_that_is_damaged_is_made_anew(tmp_path, text):
    shard = tar(tmp_path / "a.tar", [("1.jpg", b"a"), ("1.cls", b"0")])
    items, index = shards.items(tmp_path), tmp_path / "a.tar.index"
    made = index.read_text()
    index.write_text(text.replace("SOURCE", json.dumps(source_of(shard))))
    assert shards.items(shard) == items
    assert index.read_text() == made


def header_of(**fields: object) -> bytes:
    info = tarfile.TarInfo("x.wav")
    for name, value in fields.items():
        setattr(info, name, value)
    return info.tobuf(tarfile.GNU_FORMAT)


END = bytes(1024)
LABELLED = header_of(name="x.cls", size=1) + b"0".ljust(512, b"\0")


@pytest.mark.parametrize(
    ("archive", "word"),
    [
        (header_of(type=tarfile.SYMTYPE, linkname="/etc/passwd") + END, "link"),
        (header_of(type=tarfile.FIFOTYPE) + header_of(type=tarfile.CHRTYPE) + END, "device"),
        (header_of(size=10**9) + bytes(512) + END, "unexpected end|no end"),
        (header_of(size=-512) + bytes(512) + END, "tar archive"),
        (header_of(type=tarfile.XHDTYPE, size=2**33) + bytes(2048), "header of 8589934592 bytes"),
        (header_of() + LABELLED, "no end of archive"),
        (header_of() + LABELLED + END + header_of() + END, "joined"),
        (b"text" * 300, "tar archive"),
        (gzip.compress(header_of() + END), "compressed"),
    ],
)
def test_hostile_archives_are_refused(tmp_path, archive, word):
    (tmp_path / "a.tar").write_bytes(archive)
    with pytest.raises(ValueError, match=word):
        shards.items(tmp_path)
    assert not list(tmp_path.glob("*.index"))


def test_what_lists_items_takes_shards_as_it_takes_files(voices, packed):
    listed = packed.parent / "shard.list"
    names = [f"{path.relative_to(packed.parent).as_posix()}\n" for path in packed.glob("*.tar")]
    listed.write_text("".join(names))
    elsewhere = packed / "shard.list"
    elsewhere.write_text("".join(names))
    ids = {item.id for item in folders.scan(voices)}
    for data in (packed, listed):
        assert {item.id for item in shards.or_files(data, suffixes=[".flac"])} == ids
        assert likeness.check(data).items.ids == shards.items(data).ids
        assert set(likeness.items(data).ids) == ids
    with pytest.raises(LikenessError, match="--root"):
        shards.items(elsewhere)
    assert set(likeness.items(elsewhere, root=packed.parent).ids) == ids
    elsewhere.unlink()


def test_a_model_embeds_shards_as_it_embeds_files(tmp_path):
    write_voices(tmp_path / "voices", num_speakers=1, num_utterances=2)
    (shard,) = shards.write(folders.scan(tmp_path / "voices"), tmp_path / "shards")
    model = likeness.load("likeness:voice")
    files = model.embed(tmp_path / "voices")
    for data in (shard, shard.parent):
        packed = model.embed(data)
        assert (packed.matrix == files.matrix[files.rows(packed.ids)]).all()


def test_an_archive_beside_files_hides_none(voices, packed, tmp_path):
    shutil.copytree(voices, tmp_path / "voices")
    shutil.copy(next(packed.glob("*.tar")), tmp_path / "voices")
    assert len(shards.or_files(tmp_path / "voices", suffixes=[".flac"])) == 32
    assert len(folders.scan(tmp_path / "voices")) == 32


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_list_that_names_pipes_or_folders_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.tar")
    for name in ("a.tar", "."):
        (tmp_path / "shard.list").write_text(f"{name}\n")
        with pytest.raises(ValueError, match="1 of 1 shards do not exist"):
            shards.items(tmp_path / "shard.list")
