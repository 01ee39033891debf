"""Inputs: tables, open files, and the ending of a file from its first bytes."""

import io
import os
import tarfile
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pandas
import pytest
import soundfile
import torch
from PIL import Image

import likeness
from likeness import Item, LikenessError
from likeness.eval.items.items import Items
from likeness.eval.items.suffixes import suffix_of
from likeness.models.inputs import items_of


@pytest.mark.parametrize("missing", [pandas.NA, pandas.NaT, np.nan, None, ""])
def test_a_missing_id_is_the_path(missing, tmp_path):
    (tmp_path / "a.wav").touch()
    table = pandas.DataFrame({"id": [missing], "path": ["a.wav"], "label": [pandas.NA]})
    with items_of(table, modality="speaker", root=tmp_path) as items:
        assert [(item.id, item.label) for item in items] == [("a.wav", None)]


def test_a_missing_path_is_refused():
    table = pandas.DataFrame({"path": [pandas.NA, "a.wav"], "label": ["ann", "bob"]})
    with pytest.raises(ValueError, match="no path"), items_of(table, modality="speaker"):
        pass


ROWS = {"path": ["ann_1.wav", "bob_1.wav"], "other": ["bob_1.wav", "ann_1.wav"]}
# Whatever lists the files of ROWS, and which options it obeys.
KINDS: dict[str, tuple[Any, str]] = {
    "folder": ("../flat", "label"),
    "Kaldi folder": ("../kaldi", "label root"),
    "folder of shards": ("../shards", "label"),
    "shard": ("a.tar", "label"),
    "list of shards": ("shards.list", "label root"),
    "list": ("items.txt", "label root"),
    "table": ("items.csv", "label root columns"),
    "RTTM": ("turns.rttm", "label root"),
    "records": ("faces.rec", ""),
    "embeddings": ("e.npz", ""),
    "recording": ("ann_1.wav", ""),
    "table in memory": (pandas.DataFrame(ROWS), "label root columns"),
    "sequence": (ROWS["path"], "label root"),
    "mapping": (dict(zip("ab", ROWS["path"], strict=True)), "label root"),
    "items": ([Item(name, Path(name)) for name in ROWS["path"]], ""),
    "array": (np.ones(1600, np.float32), ""),
}
MODALITIES = {"records": "face", "embeddings": "embedding"}
OPTIONS = {"label": "{label}_*.wav", "root": "../elsewhere", "columns": "path=other"}


@pytest.fixture(scope="module")
def here(module_path: Path) -> Path:
    turn = "SPEAKER {} 1 0 1 <NA> <NA> x <NA> <NA>\n"
    stems = [Path(name).stem for name in ROWS["path"]]
    texts = {
        "here/items.txt": "\n".join(ROWS["path"]),
        "here/items.csv": "path,other\nann_1.wav,bob_1.wav\nbob_1.wav,ann_1.wav\n",
        "here/shards.list": "a.tar\n",
        "here/turns.rttm": "".join(turn.format(stem) for stem in stems),
        "here/faces.rec": "",
        "kaldi/wav.scp": "a ann_1.wav\nb bob_1.wav\n",
    }
    for folder in ("flat", "elsewhere", "here", "kaldi", "shards"):
        (module_path / folder).mkdir()
        with tarfile.open(module_path / folder / "a.tar", "w") as tar:
            for name in ROWS["path"]:
                (module_path / folder / name).write_bytes(b"wave")
                tar.add(module_path / folder / name, name)
    for name in ROWS["path"]:
        (module_path / "shards" / name).unlink()
    for name, text in texts.items():
        (module_path / name).write_text(text)
    return module_path / "here"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_a_listing_is_obeyed_or_refused(kind, option, here, monkeypatch):
    monkeypatch.chdir(here)
    (data, obeyed), modality = KINDS[kind], MODALITIES.get(kind, "speaker")
    stated: Any = {option: OPTIONS[option]}

    def embedded() -> Items:
        with items_of(data, modality=modality, rate_hz=16_000, **stated) as items:
            return Items.of(items)

    listings = [embedded, lambda: likeness.items(data, modality, **stated)]
    for listed in listings[: 1 if modality == "embedding" else 2]:
        if option not in obeyed:
            with pytest.raises(LikenessError):
                listed()
        elif option == "label":
            assert list(listed().labels) == ["ann", "bob"]
        elif option == "root":
            assert {item.path.parent for item in listed()} == {Path("../elsewhere")}
        else:
            assert [item.path.name for item in listed()] == ROWS["other"]


def test_an_open_file_that_gives_little_at_a_time_is_read_to_its_end():
    """A pipe gives what it has; a wave that is cut short would be embedded as if it were whole."""
    content = b"RIFF" + bytes(range(256)) * 1_000
    reader, writer = os.pipe()

    def send() -> None:
        with open(writer, "wb") as file:
            file.write(content)

    thread = Thread(target=send)
    thread.start()
    with open(reader, "rb", buffering=0) as pipe:
        opened = {"a": pipe, "b": io.BytesIO(content)}
        with items_of(opened, modality="speaker") as items:
            assert [item.path.read_bytes() for item in items] == [content, content]
    thread.join()


def test_bfloat16_is_read():
    wave = torch.linspace(-1, 1, 2_000).bfloat16()
    with items_of(wave, modality="speaker", rate_hz=16_000) as items:
        assert items[0].path.stat().st_size > 4 * 2_000


@pytest.mark.parametrize(
    ("suffix", "kind", "subtype"),
    [
        *[(".wav", "WAV", "PCM_16"), (".wav", "RF64", "PCM_16"), (".flac", "FLAC", "PCM_16")],
        *[(".aiff", "AIFF", "PCM_16"), (".sph", "NIST", "PCM_16")],
        *[(".ogg", "OGG", "VORBIS"), (".opus", "OGG", "OPUS"), (".mp3", "MP3", "MPEG_LAYER_III")],
        *[(".png", "PNG", ""), (".bmp", "BMP", ""), (".gif", "GIF", ""), (".jpg", "JPEG", "")],
        *[(".webp", "WEBP", ""), (".tif", "TIFF", ""), (".ppm", "PPM", "")],
    ],
)
def test_a_file_tells_its_ending_by_its_first_bytes(suffix, kind, subtype):
    file = io.BytesIO()
    if subtype:
        soundfile.write(file, np.sin(np.arange(16000) / 9), 16000, format=kind, subtype=subtype)
    else:
        Image.new("RGB", (9, 7)).save(file, format=kind)
    assert suffix_of(file.getvalue()[:64]) == suffix


@pytest.mark.parametrize(
    ("suffix", "content"),
    [
        *[(".heic", b"\0\0\0\x18ftypheic"), (".heic", b"\0\0\0\x18ftypmif1")],
        *[(".m4a", b"\0\0\0\x1cftypM4A "), (".m4a", b"\0\0\0\x1cftypisom")],
        *[(".mov", b"\0\0\0\x14ftypqt  "), (".mov", b"\0\0\0\x08wide")],
        (".webm", b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\x82\x84webm"),
        (".mkv", b"\x1aE\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\x82\x88matroska"),
        *[(".aac", b"\xff\xf1\x60\x40"), (".mp3", b"\xff\xfb\x90\x64")],
    ],
)
def test_what_phones_and_browsers_write_is_known(suffix, content):
    assert suffix_of(content) == suffix


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF1234AVI ", b"FORM1234ILBM", b"\xff\xd8"])
def test_what_is_of_no_known_format(content):
    assert suffix_of(content) == ""
