"""Every reader of files from elsewhere, fed with damaged ones: it reads them or refuses them in one
sentence, nothing in them runs, and no memory is taken on a file's word.

LIKENESS_FUZZ_EXAMPLES=5000 pytest tests/test_fuzz.py -k NAME searches for long.
"""

import gzip
import io
import os
import pickle
import random
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image
from safetensors.torch import save_file

from likeness import Embeddings, Fusion, Item, LikenessError, Trials, load_fusion
from likeness.eval.formats import embeddings, trials
from likeness.eval.items.item_lists import read_items
from likeness.eval.protocols.ijb import meta_files
from likeness.eval.scoring import plda
from likeness.modalities.face import _bins, recordio
from likeness.modalities.speaker import audio
from likeness.models.run import load_model
from likeness.toolkit.backbones.weights import read_weights
from likeness.toolkit.data import images, shards
from likeness.toolkit.models.onnx import Session
from tests import tiny
from tests.modalities.face import bin_file
from tests.scripts import loaded
from tests.sounds import chatter
from tests.tiny_yunet import tiny_yunet

RECORDS = loaded(Path(__file__).with_name("recordio_writer.py"))
EXAMPLES = int(os.environ.get("LIKENESS_FUZZ_EXAMPLES", "40"))
IDS = ("ann/1", "ann/2", "bob/1", "bob/2")
LISTED = Trials(IDS, IDS, [0, 0, 2, 1], [1, 2, 3, 3], [True, False, True, False])  # type: ignore
EMBEDDED = Embeddings(IDS, np.arange(12, dtype=np.float32).reshape(4, 3), {"similarity": "cosine"})
STATE = {"conv.weight": torch.zeros(2, 3), "conv.bias": torch.ones(2)}
HUGE = [struct.pack("<I", 2**32 - 1), struct.pack("<q", 2**62), struct.pack(">q", -1)]
HUGE += [b"99999999999999999", b"-1", b"nan", b"\xff\xfe\x00"]


class Case(NamedTuple):
    """A reader: the name of its file, what writes a valid one, and what reads it.

    zipped: the payload is compressed by gzip when the file is placed, so that changes get past the
    checksum. native: a parser in C reads it, which damage may crash; it gets truncated files only.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    zipped: bool = False
    native: bool = False

    def place(self, folder: Path, payload: bytes) -> Path:
        path = folder / self.name
        path.write_bytes(gzip.compress(payload, 1) if self.zipped else payload)
        return path


def content(text: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(text)


def pictures(folder: Path) -> list[Item]:
    made = []
    for number, item_id in enumerate(IDS):
        (folder / f"{number}.jpg").write_bytes(b"\xff\xd8" + bytes(60) + bytes([number]))
        made.append(Item(item_id, folder / f"{number}.jpg", item_id[:3]))
    return made


def write_model(path: Path) -> None:
    (tiny.untrained(path.parent) / "last.safetensors").replace(path)


def read_records(path: Path) -> None:
    """Read a .rec file with the index of the whole one."""
    with TemporaryDirectory() as folder:
        RECORDS.write(pictures(Path(folder)), Path(folder), name="t")
        (Path(folder) / "t.idx").replace(path.with_suffix(".idx"))
    for item in recordio.items(path):
        with item.open() as file:
            read = file.read()
        if item.suffix == recordio.RECORD_SUFFIX:
            recordio.join_parts(read)


def write_image(kind: str, path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, kind)


def write_shard(path: Path) -> None:
    (made,) = shards.write(pictures(path.parent), path.parent / "packed")
    made.rename(path)


def read_image(path: Path) -> None:
    images.decode_bytes(images.file_bytes(Item("a/1", path, "a")), path.name)


def write_sound(path: Path) -> None:
    soundfile.write(path, chatter(0.25, 8000), 8000)


def write_scores(path: Path) -> None:
    trials.write_scores(path, LISTED, np.arange(4.0))


def write_records(path: Path) -> None:
    RECORDS.write(pictures(path.parent), path.parent, name="t")


def write_bin(path: Path) -> None:
    bin_file.write(pictures(path.parent), LISTED, path)


def read_npy(path: Path) -> None:
    path.with_suffix(".txt").write_text("\n".join(IDS))
    embeddings.read_embeddings(path)


PLDA = plda.Plda(np.zeros(2), np.eye(2), np.zeros(2), np.eye(2), np.ones(2))
LEGACY = {"_use_new_zipfile_serialization": False}
CASES = {
    "trials": Case("t.txt", content(b"1 a b\n0 a c\n"), trials.read_trials),
    "trials gz": Case("t.gz", content(b"1 a b\n0 a c\n"), trials.read_trials, zipped=True),
    "scores parquet": Case("s.parquet", write_scores, trials.read_scores, native=True),
    "items": Case("i.csv", content(b"path,label\na.wav,ann\nb.wav,bob\n"), read_items),
    "ark": Case("e.ark", EMBEDDED.save, embeddings.read_embeddings),
    "npz": Case("e.npz", EMBEDDED.save, embeddings.read_embeddings),
    "npy": Case("e.npy", lambda path: np.save(path, np.eye(len(IDS))), read_npy),
    "csv": Case("e.csv", content(b"id,x0,x1\na,.5,1\nb,2,3\n"), embeddings.read_embeddings),
    "parquet": Case("e.parquet", EMBEDDED.save, embeddings.read_embeddings, native=True),
    "calibration": Case("c.json", Fusion((2.0,), -1.0, ("",), (0.5,), ("snr",)).save, load_fusion),
    "plda": Case("p.json", PLDA.save, plda.load_plda),
    "records": Case("t.rec", write_records, read_records),
    "bin": Case("v.bin", write_bin, _bins.items),
    "ijb pairs": Case("f.txt", content(b"1 2 1\n1 3 0\n"), meta_files.read_template_pairs),
    "checkpoint": Case("m.safetensors", write_model, load_model),
    "weights safetensors": Case("w.safetensors", partial(save_file, STATE), read_weights),
    "weights zip": Case("w.pt", partial(torch.save, STATE), read_weights),
    "weights legacy": Case("w.pt", partial(torch.save, STATE, **LEGACY), read_weights, native=True),
    "onnx": Case("m.onnx", tiny_yunet, Session, native=True),
    "shard": Case("t-000000.tar", write_shard, shards.items),
    "png": Case("i.png", partial(write_image, "PNG"), read_image),
    "jpeg": Case("i.jpg", partial(write_image, "JPEG"), read_image),
    "wav": Case("a.wav", write_sound, lambda path: audio.read(Item("a", path))),
    "flac": Case("a.flac", write_sound, lambda path: audio.read(Item("a", path))),
}


@cache
def valid(name: str) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder) / CASES[name].name
        CASES[name].make(path)
        return path.read_bytes()


def read_or_refuse(case: Case, path: Path) -> None:
    with warnings.catch_warnings(), suppress(ValueError, OSError):
        warnings.simplefilter("ignore")
        case.read(path)


def damaged(payload: bytes, native: bool) -> Iterator[bytes]:
    draw = random.Random(0)
    for _ in range(EXAMPLES):
        changed = bytearray(payload)
        for _ in range(0 if native else draw.randint(1, 3)):
            place, end = draw.randrange(len(payload)), draw.randint(1, 8)
            others = [bytes([draw.randrange(256)]), b"", *HUGE, bytes(payload[:end])]
            changed[place : place + draw.choice([0, 1, end])] = draw.choice(others)
        yield bytes(changed[: draw.choice([None, draw.randrange(len(payload))][native:])])


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_read_or_refused(name, tmp_path):
    case = CASES[name]
    case.read(case.place(tmp_path, valid(name)))
    for payload in damaged(valid(name), case.native):
        read_or_refuse(case, case.place(tmp_path, payload))


class Canary:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def in_place_of(archive: bytes, wanted: str, payload: bytes) -> bytes:
    """An archive with a payload in place of its members of a name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as old, zipfile.ZipFile(buffer, "w") as new:
        for entry in old.namelist():
            new.writestr(entry, payload if entry.endswith(wanted) else old.read(entry))
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("name", CASES)
def test_a_pickle_in_any_file_does_not_run(name, protocol, tmp_path):
    """As the whole file, as the pickle of a checkpoint of torch, as arrays, and as Kaldi's."""
    canary = tmp_path / "canary"
    pickled = pickle.dumps(Canary(canary), protocol=protocol)
    payloads = [pickled, b"ann/1 PKL" + pickled, f"ann/1 mkdir {canary} |\n".encode()]
    if zipfile.is_zipfile(io.BytesIO(valid(name))):
        objects = io.BytesIO()
        np.save(objects, np.array([Canary(canary)] * 4, dtype=object), allow_pickle=True)
        payloads.append(in_place_of(valid(name), ".npy", objects.getvalue()))
        payloads.append(in_place_of(valid(name), "data.pkl", pickled))
    for payload in payloads:
        read_or_refuse(CASES[name], CASES[name].place(tmp_path, payload))
        assert not canary.exists()
    pickle.loads(pickled)
    assert canary.exists()


def npy(descr: str, shape: tuple[int, ...]) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


CLAIMS: list[tuple[str, Callable[[], bytes]]] = [
    ("npz", lambda: in_place_of(valid("npz"), "ids.npy", npy("<U0", (10**11,)))),
    ("npz", lambda: in_place_of(valid("npz"), "matrix.npy", npy("<f4", (10**9, 10**3)))),
    ("npy", lambda: npy("<f4", (10**9, 10**3))),
    ("ark", lambda: b"ann/1 \0BFV \4" + struct.pack("<i", 2**31 - 1) + bytes(64)),
    ("bin", lambda: b"\x80\x04\x8e" + struct.pack("<Q", 2**62)),
    ("bin", lambda: b"\x80\x04Nr" + struct.pack("<I", 2**31) + b"."),
    ("bin", lambda: b"\x80\x05\x96" + struct.pack("<Q", 2**40)),
    ("ijb pairs", lambda: b"1" * 3_000_000),
    ("checkpoint", lambda: struct.pack("<Q", 2**62) + b"{}"),
]


@pytest.mark.parametrize("number", range(len(CLAIMS)))
def test_a_size_that_a_file_states_takes_no_memory(number, tmp_path):
    name, make = CLAIMS[number]
    path = CASES[name].place(tmp_path, make())
    tracemalloc.start()
    try:
        with pytest.raises(LikenessError):
            CASES[name].read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
