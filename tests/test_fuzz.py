"""Every reader of files from elsewhere, fed with damaged and hostile ones: it reads them or says
ValueError; nothing runs, no memory is taken on a file's word.

A case makes one valid file with the project's own writer where there is one. What is fuzzed is its
payload: the file, or what lies inside its checksums (a .gz, a .zip member, a safetensors header),
so that changes get past these.
LIKENESS_FUZZ_EXAMPLES=5000 pytest tests/test_fuzz.py -k NAME searches for long;
tests/fuzz_long.py feeds every reader 100,000 files under watch.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import re
import shutil
import struct
import sys
import tarfile
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat
from torch import nn

from eval import per_item
from eval.calibration import Calibration, load_calibration
from eval.formats import embeddings, subjects, trials
from eval.protocols import ijb_files
from eval.reports import media as report_media
from eval.scoring import plda, templates
from eval.types import Embeddings, Trials
from likeness.models import insightface as backends_insightface
from likeness.models import onnx as exported_models
from likeness.models import speechbrain as backends_speechbrain
from likeness.models.run import load_model
from likeness.prepare import archives
from modalities.face import folders as face_folders
from modalities.face import ijb, pairs, pickled, recordio, recordio_writer
from modalities.face import images as face_images
from modalities.image import cars, cifar, cub, lists, mnist, omniglot, sop
from modalities.speaker import audio, cnceleb, folders, long, noise, voxceleb
from modalities.speaker import lists as speaker_lists
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.external import External
from toolkit.backbones.resnet import ResNet34
from toolkit.backbones.weights import read_weights
from toolkit.data import images as decoded
from toolkit.data import shards
from toolkit.data.item_lists import read_items
from toolkit.data.items import Item
from toolkit.data.pixels import PixelScale
from toolkit.losses.margin import ArcFace
from toolkit.models import checkpoint
from toolkit.models import onnx as onnx_models
from toolkit.models.embedder import TorchEmbedder
from toolkit.training.recipe import Recipe

EXAMPLES = int(os.environ.get("LIKENESS_FUZZ_EXAMPLES", "40"))


class Case(NamedTuple):
    """make() -> the payload; place(folder, payload) writes the file or files and says what to read;
    read(path) reads. json: the payload is JSON text.

    needs: the package without which it is skipped. apart: it is read in a process of
    eval.formats.boundary, so that fewer examples have to do; fuzz_long.py reads without one.
    """

    make: Callable[[], bytes]
    place: Callable[[Path, bytes], Path]
    read: Callable[[Path], object]
    json: bool = False
    needs: str = ""
    apart: bool = False


# Mutations
# --------------------------------------------------------------------------------------------------

_HUGE = [
    *(
        struct.pack(kind, value)
        for kind, value in (
            ("<I", 2**32 - 1),
            (">I", 2**31 - 1),
            ("<q", 2**62),
            (">q", -1),
            ("<i", 2**30),
            (">H", 2**16 - 1),
        )
    ),
    *(
        b"99999999999999999",
        b"-1",
        b"9" * 5000,
        b"1e999",
        b"nan",
        b"\0" * 512,
        b"\n" * 9,
        b"[" * 3000,
        b'"',
        b"\xff\xfe",
        b"(",
        b"|",
        b"/" * 300,
        b"a" * 300,
    ),
]
_WHERE = st.integers(0, 2**20)
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("set"), _WHERE, st.binary(min_size=1, max_size=8)),
        st.tuples(st.just("set"), _WHERE, st.sampled_from(_HUGE)),
        st.tuples(
            st.just("insert"),
            _WHERE,
            st.one_of(st.binary(min_size=1, max_size=16), st.sampled_from(_HUGE)),
        ),
        st.tuples(st.just("flip"), _WHERE, st.integers(0, 7)),
        st.tuples(st.just("cut"), _WHERE, st.just(0)),
        st.tuples(st.just("drop"), _WHERE, st.integers(1, 600)),
        st.tuples(st.just("repeat"), _WHERE, st.integers(1, 600)),
    ),
    min_size=1,
    max_size=5,
)
_LEAVES = [
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.sampled_from([10**400, 10**9, -1]),
    st.floats(),
    st.text(max_size=5),
]
_JSON = st.recursive(
    st.one_of(_LEAVES),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


def changed(payload: bytes, changes: list[tuple[str, int, Any]]) -> bytes:
    for kind, where, what in changes:
        at = where % (len(payload) + 1)
        if kind == "set":
            payload = payload[:at] + what + payload[at + len(what) :]
        elif kind == "insert":
            payload = payload[:at] + what + payload[at:]
        elif kind == "flip":
            payload = (
                payload[:at] + bytes([payload[at] ^ 1 << what]) + payload[at + 1 :]
                if at < len(payload)
                else payload
            )
        elif kind == "cut":
            payload = payload[:at]
        elif kind == "drop":
            payload = payload[:at] + payload[at + what :]
        else:
            payload = payload[:at] + payload[at : at + what] * 3 + payload[at + what :]
    return payload


def replaced(text: bytes, where: int, value: object) -> bytes:
    """One node of a JSON document, the where-th of them, is another value."""
    document = [json.loads(text)]
    nodes: list[tuple[Any, Any]] = []

    def walk(holder: Any) -> None:
        for key in range(len(holder)) if isinstance(holder, list) else list(holder):
            nodes.append((holder, key))
            if isinstance(holder[key], list | dict):
                walk(holder[key])

    walk(document)
    holder, key = nodes[where % len(nodes)]
    holder[key] = value
    return json.dumps(document[0]).encode()


# Valid files
# --------------------------------------------------------------------------------------------------

IDS = ("ann/1", "ann/2", "bob/1", "bob/2")
_ROWS: Any = [[0, 0, 2, 1], [1, 2, 3, 3], [True, False, True, False]]
LISTED = Trials(IDS, IDS, *_ROWS)
EMBEDDED = Embeddings(IDS, np.arange(12, dtype=np.float32).reshape(4, 3), {"similarity": "cosine"})


def plain(name: str, folder: Path, payload: bytes) -> Path:
    path = folder / name
    path.write_bytes(payload)
    return path


def zipped(name: str, folder: Path, payload: bytes) -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(payload, 1))
    return path


def written(write: Callable[[Path], object], name: str) -> bytes:
    """What a writer writes under this name."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        write(Path(folder) / name)
        return (Path(folder) / name).read_bytes()


def member(archive: Callable[[], bytes], wanted: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive())) as contents:
        return contents.read(next(text for text in contents.namelist() if text.endswith(wanted)))


def put_member(
    archive: Callable[[], bytes], wanted: str, name: str, folder: Path, payload: bytes
) -> Path:
    """The archive with the payload in place of a member, checksums and all."""
    with (
        zipfile.ZipFile(io.BytesIO(archive())) as contents,
        zipfile.ZipFile(folder / name, "w") as other,
    ):
        for entry in contents.namelist():
            other.writestr(entry, payload if entry.endswith(wanted) else contents.read(entry))
    return folder / name


@cache
def table(suffix: str) -> bytes:
    return written(partial(_write_table, EMBEDDED), f"e{suffix}")


def _write_table(held: Embeddings, path: Path) -> None:
    embeddings.write(path, held)


@cache
def listed(suffix: str) -> bytes:
    return written(lambda path: trials.write_scores(path, LISTED, np.arange(4.0)), f"t{suffix}")


def scp() -> bytes:
    return b"ann/1 e.ark:6\nann/2 e.ark:34\n"


def place_scp(folder: Path, payload: bytes) -> Path:
    plain("e.ark", folder, table(".ark"))
    return plain("e.scp", folder, payload)


def measured(path: Path) -> None:
    per_item.write(
        path,
        per_item.PerItem(
            IDS,
            {"correct": np.array([1.0, 0.0, 1.0, 1.0])},
            np.array([0, 0, 1, 1], dtype=np.int32),
            "classes",
        ),
    )


@cache
def per_items() -> bytes:
    return written(measured, "t.npz")


JPEG = b"\xff\xd8" + bytes(60)


def images(folder: Path) -> list[Item]:
    return [
        Item(item_id, plain(f"{number}.jpg", folder, JPEG + bytes([number])), item_id[:3])
        for number, item_id in enumerate(IDS)
    ]


@cache
def record(suffix: str) -> bytes:
    return written(
        lambda path: recordio_writer.write(images(path.parent), path.parent, name="t"), f"t{suffix}"
    )


def place_record(suffix: str, folder: Path, payload: bytes) -> Path:
    for first in (".rec", ".idx"):
        plain(f"t{first}", folder, payload if first == suffix else record(first))
    return folder / "t.rec"


def place_lone_record(folder: Path, payload: bytes) -> Path:
    return plain("lone.rec", folder, payload)


def read_record(path: Path) -> None:
    for item in recordio.items(path):
        with item.open() as file:
            loaded = file.read()
        if item.suffix == recordio.RECORD_SUFFIX:
            recordio.join_parts(loaded)


def verification() -> bytes:
    return written(lambda path: pickled.write(images(path.parent), LISTED, path), "v.bin")


CIFAR_NAMES = b"".join(b"class_%d\n" % i for i in range(10))
CIFAR_BATCH = bytes([0, *bytes(3072), 1, *bytes(3072)])


def place_cifar(folder: Path, payload: bytes) -> Path:
    where = folder / "cifar-10-batches-bin"
    where.mkdir(exist_ok=True)
    plain("batches.meta.txt", where, CIFAR_NAMES)
    plain("test_batch.bin", where, payload)
    return folder


def place_cifar_names(folder: Path, payload: bytes) -> Path:
    place_cifar(folder, CIFAR_BATCH)
    plain("batches.meta.txt", folder / "cifar-10-batches-bin", payload)
    return folder


def cifar_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in (("batches.meta.txt", CIFAR_NAMES), ("test_batch.bin", CIFAR_BATCH)):
            contents = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            contents.size = len(content)
            tar.addfile(contents, io.BytesIO(content))
    return buffer.getvalue()


def idx(kind: str) -> bytes:
    return (
        struct.pack(">II", 0x801, 3) + bytes([1, 2, 3])
        if kind == "labels-idx1"
        else struct.pack(">IIII", 0x803, 3, 2, 2) + bytes(12)
    )


def place_mnist(fuzzed: str, compressed: bool, folder: Path, payload: bytes) -> Path:
    for kind in ("images-idx3", "labels-idx1"):
        loaded = payload if kind == fuzzed else idx(kind)
        (zipped if compressed else plain)(
            f"train-{kind}-ubyte{'.gz' if compressed else ''}", folder, loaded
        )
    return folder


@cache
def omniglot_archive() -> bytes:
    buffer = io.BytesIO()
    classes = np.array([f"alphabet{i:02d}/character01" for i in range(21)])
    np.savez(
        buffer,
        ink_packed=np.zeros((21, 1379), np.uint8),
        label=np.arange(21),
        class_name=classes,
        name=np.array([f"{i:04d}_01" for i in range(21)]),
    )
    return buffer.getvalue()


def read_omniglot(path: Path) -> object:
    omniglot._ink.cache_clear()
    return omniglot.items(path.parent)


FACES = b"a.jpg 1 1\nb.jpg 1 2\nc.jpg 2 1\n"
POINTS = b"".join(
    b"%c.jpg 38.2 51.6 73.5 51.5 56.0 71.7 41.5 92.3 70.7 92.2 0.9\n" % value for value in b"abc"
)
SIDE = b"TEMPLATE_ID,SUBJECT_ID,FILENAME\n1,7,img/1.jpg\n1,7,img/2.jpg\n2,9,img/3.jpg\n"
KNOWN_FACES = ijb_files.Faces(("a.jpg", "b.jpg", "c.jpg"), np.array([1, 1, 2]), np.array([1, 2, 1]))
LFW = b"2\t1\nann\t1\t2\nann\t1\tbob\t2\nbob\t1\t2\nbob\t1\tann\t2\n"
TWO_LINES = b"".join(
    f"{name}_{i}.jpg {label}\n".encode()
    for label in (1, 0)
    for name in ("ann", "bob")
    for i in range(2)
)
WHITENED = plda.Plda(np.zeros(2), np.eye(2), np.zeros(2), np.eye(2), np.ones(2))


def read_lfw(path: Path) -> object:
    return pairs.find_images(pairs.read_lfw(path).trials, path.parent)


@cache
def model_file() -> bytes:
    recipe = Recipe(
        modality="speaker",
        frontend=partial(KaldiFbank, num_mels=16),
        backbone=partial(ResNet34, dim=4, width=2, blocks=(1, 1, 1, 1)),
        loss=partial(ArcFace),
        items=partial(folders.items),
        read=audio.read,
        measure=None,
    )
    frontend = recipe.frontend()
    embedder = TorchEmbedder(frontend, recipe.backbone(frontend.dim))
    return written(
        lambda path: checkpoint.save_model(
            path, embedder, recipe, similarity="cosine", step=1, metrics={}
        ),
        "m.safetensors",
    )


@cache
def foreign_file() -> bytes:
    """A model whose network is of another package, which the reader trusts."""
    recipe = Recipe(
        modality="face",
        frontend=PixelScale,
        backbone=partial(
            External,
            network=partial(nn.Conv2d, in_channels=1, out_channels=3, kernel_size=4),
            input_shape=(1, 4, 4),
        ),
        loss=partial(ArcFace),
        items=partial(folders.items),
        read=face_images.read,
        measure=None,
    )
    embedder = TorchEmbedder(recipe.frontend(), recipe.backbone(1))
    return written(
        lambda path: checkpoint.save_model(
            path, embedder, recipe, similarity="cosine", step=1, metrics={}
        ),
        "m.safetensors",
    )


def model_state(file: Callable[[], bytes] = model_file) -> bytes:
    raw = file()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    return str(header["__metadata__"]["state"]).encode()


def place_state(folder: Path, payload: bytes, file: Callable[[], bytes] = model_file) -> Path:
    raw = file()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header["__metadata__"]["state"] = payload.decode("utf-8", "replace")
    text = json.dumps(header).encode()
    return plain("m.safetensors", folder, len(text).to_bytes(8, "little") + text + raw[end:])


def header_of(raw: bytes) -> bytes:
    return raw[8 : 8 + int.from_bytes(raw[:8], "little")]


def place_header(raw: Callable[[], bytes], folder: Path, payload: bytes) -> Path:
    return plain(
        "m.safetensors",
        folder,
        len(payload).to_bytes(8, "little") + payload + raw()[8 + len(header_of(raw())) :],
    )


STATE = {"conv.weight": torch.zeros(2, 3), "conv.bias": torch.ones(2)}


@cache
def state_dict(kind: str) -> bytes:
    if kind == "safetensors":
        return written(lambda path: save_file(STATE, path), "w.safetensors")
    return written(
        lambda path: torch.save(STATE, path, _use_new_zipfile_serialization=kind == "zip"), "w.pt"
    )


@cache
def tar_shard(name: str) -> bytes:
    return written(lambda path: shards.write(images(path.parent), path.parent, name="t"), name)


def place_index(folder: Path, payload: bytes) -> Path:
    plain("t-000000.tar", folder, tar_shard("t-000000.tar"))
    plain("t-000000.tar.index", folder, payload)
    return folder / "t-000000.tar"


def read_shard(path: Path) -> object:
    items = shards.items(path, labelled=False)
    path.with_name(f"{path.name}.index").unlink(missing_ok=True)
    return items


@cache
def onnx_model() -> bytes:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", kind, ["batch", 4])],
        [helper.make_tensor_value_info("z", kind, ["batch", 2])],
        [helper.make_tensor("w", kind, [4, 2], [0.5] * 8)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    stated = {
        "format": onnx_models.FORMAT,
        "modality": "speaker",
        "similarity": "cosine",
        "digest": "d",
        "dim": 2,
        "shape": [4],
    }
    stated["read"] = {"call": "modalities.speaker.audio.read", "args": {}}
    helper.set_model_props(model, {onnx_models.KEY: json.dumps(stated)})
    return bytes(model.SerializeToString())


def onnx_description() -> bytes:
    onnx = pytest.importorskip("onnx")
    return str(onnx.ModelProto.FromString(onnx_model()).metadata_props[0].value).encode()


def place_onnx_description(folder: Path, payload: bytes) -> Path:
    onnx = pytest.importorskip("onnx")
    model = onnx.ModelProto.FromString(onnx_model())
    model.metadata_props[0].value = payload.decode("utf-8", "replace")
    return plain("m.onnx", folder, model.SerializeToString())


def read_by(*reads: Callable[[Path], object]) -> Callable[[Path], None]:
    """Read by each of them; what the last of those that refused it said is raised after all."""

    def read(path: Path) -> None:
        refusal: Exception | None = None
        for entry in reads:
            try:
                entry(path)
            except (ValueError, FileNotFoundError) as error:
                refusal = error
        if refusal is not None:
            raise refusal

    return read


@cache
def image(kind: str, mode: str = "RGB", **how: Any) -> bytes:
    rng = np.random.default_rng(0)
    grey = mode in ("L", "I;16")
    pixels = rng.integers(
        0,
        2**16 if mode == "I;16" else 2**8,
        (12, 16) if grey else (12, 16, 3),
        dtype=np.uint16 if mode == "I;16" else np.uint8,
    )
    buffer, drawn = io.BytesIO(), Image.fromarray(pixels)
    drawn = drawn if grey or mode == "RGB" else drawn.convert(mode)
    drawn.save(buffer, kind, **how)
    return buffer.getvalue()


def turned_jpeg() -> bytes:
    message = Image.Exif()
    message[0x112] = 6  # the orientation
    return image("JPEG", exif=message.tobytes(), progressive=True)


def place_png(folder: Path, payload: bytes) -> Path:
    """The checksums of its chunks are made anew."""
    loaded, start = bytearray(payload), 8
    while (end := start + 8 + int.from_bytes(loaded[start : start + 4], "big")) + 4 <= len(loaded):
        loaded[end : end + 4] = zlib.crc32(loaded[start + 4 : end]).to_bytes(4, "big")
        start = end + 4
    return plain("i.png", folder, bytes(loaded))


def check_pixels(path: Path) -> None:
    """What the service asks before it decodes an upload."""
    decoded.check_size(path.read_bytes(), path.name, 10_000)


read_image = read_by(
    check_pixels,
    lambda path: decoded.decode_bytes(decoded.file_bytes(Item("a/1", path, "a")), path.name),
    report_media.thumbnail,
)


@cache
def sound(kind: str, subtype: str) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, 0.5 * np.sin(np.arange(900) / 5), 8000, format=kind, subtype=subtype)
    return buffer.getvalue()


@cache
def _crc_table(width: int, polynomial: int) -> list[int]:
    table = []
    for byte in range(256):
        register = byte << (width - 8)
        for _ in range(8):
            register = register << 1 ^ (polynomial | 1 << width if register >> (width - 1) else 0)
        table.append(register)
    return table


def crc(held: bytes, width: int, polynomial: int) -> bytes:
    """The checksum of FLAC and Ogg: not reflected, from 0."""
    table, register = _crc_table(width, polynomial), 0
    for byte in held:
        register = (register << 8) & (1 << width) - 1 ^ table[register >> (width - 8) ^ byte]
    return register.to_bytes(width // 8, "big")


def place_flac(folder: Path, payload: bytes) -> Path:
    """The checksums of its only frame are made anew."""
    loaded, start, last = bytearray(payload), 4, False
    while not last and start + 4 <= len(loaded):
        last = bool(loaded[start] & 0x80)
        start += 4 + int.from_bytes(loaded[start + 1 : start + 4], "big")
    if start + 8 < len(loaded):
        # of what the header states at its end
        size = {6: 1, 7: 2}.get(loaded[start + 2] >> 4, 0) + {12: 1, 13: 2, 14: 2}.get(
            loaded[start + 2] & 15, 0
        )
        # the frame's number, coded like a letter in UTF-8
        leading = next((bit for bit in range(8) if not loaded[start + 4] << bit & 0x80), 8)
        end = start + 4 + max(1, leading) + size
        loaded[end : end + 1] = crc(loaded[start:end], 8, 0x07)
        loaded[-2:] = crc(loaded[start:-2], 16, 0x8005)
    return plain("a.flac", folder, bytes(loaded))


def place_ogg(folder: Path, payload: bytes) -> Path:
    """The checksums of its pages are made anew."""
    loaded, start = bytearray(payload), 0
    while start + 27 <= len(loaded):
        body = start + 27 + loaded[start + 26]
        end = body + sum(loaded[start + 27 : body])
        loaded[start + 22 : start + 26] = bytes(4)
        loaded[start + 22 : start + 26] = crc(loaded[start:end], 32, 0x04C11DB7)[::-1]
        start = end
    return plain("a.ogg", folder, bytes(loaded))


def read_in_shard(path: Path) -> object:
    """As it is read inside a tar shard: from memory."""
    return audio.read(Item("a/1", path, "a", (0, path.stat().st_size), path.suffix))


read_audio = read_by(
    lambda path: audio.read(Item("a/1", path, "a"), max_values=2**24),
    read_in_shard,
    lambda path: sum(len(part) for part in long.read(Item(
        "a/1", path, "a"), chunk_seconds=1.0, max_seconds=3600.0, max_values=2**24)),
    report_media.read_sound,
    lambda path: noise.stretch(path, 16_000, np.random.default_rng(0)),
    noise.impulse_response,
)  # fmt: skip


@cache
def matlab(kind: str) -> bytes:
    if kind == "cars":
        cells: Any = np.array(
            [("car_ims/000001.jpg", 1)], dtype=[("relative_im_path", "O"), ("class", "O")]
        )
        return written(lambda path: savemat(path, {"annotations": cells}), "cars_annos.mat")
    splits = np.empty((2, 1), dtype=object)
    for number in range(2):
        sides = np.array(
            [[{"name": f"{side}_{i}"} for i in range(2)] for side in range(2)], dtype=object
        )
        splits[number, 0] = {"pairs": sides, "labels": np.array([[1, -1]])}
    return written(lambda path: savemat(path, {"splits": splits}), "p.mat")


def place_cars(folder: Path, payload: bytes) -> Path:
    (folder / "car_ims").mkdir(exist_ok=True)
    plain("000001.jpg", folder / "car_ims", JPEG)
    return plain("cars_annos.mat", folder, payload).parent


def place_packed_mat(folder: Path, payload: bytes) -> Path:
    """As version 7 writes it, each variable compressed."""
    packed = zlib.compress(payload, 1)
    return plain(
        "p.mat", folder, matlab("agedb")[:128] + struct.pack("<II", 15, len(packed)) + packed
    )


_WRITES = ("os.mkdir", "os.rename", "os.link", "os.symlink", "os.chmod", "os.utime", "os.truncate")
_writes_into: list[Path] = []  # at most one: the folder outside which nothing may be written


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop whatever would write outside, before it does."""
    if not _writes_into or (event != "open" and event not in _WRITES):
        return
    if event == "open" and (
        not isinstance(arguments[0], str | bytes)
        or not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    ):
        return
    paths = arguments[:2] if event in ("os.rename", "os.link", "os.symlink") else arguments[:1]
    for path in paths:
        if not isinstance(path, int) and not Path(
            os.path.realpath(os.fsdecode(path))
        ).is_relative_to(_writes_into[0]):
            raise AssertionError(f"{event} outside the folder: {path!r}")


@cache
def _start_watching() -> None:
    sys.addaudithook(_watch)


def unpack(path: Path) -> None:
    """Unpack it into a folder outside which nothing is written, and in which there are only files
    and folders afterwards.
    """
    into = path.parent / "unpacked"
    shutil.rmtree(into, ignore_errors=True)
    _start_watching()
    _writes_into[:] = [into.parent.resolve() / into.name]
    try:
        archives.unpack(path.name, [path], into)
    except ValueError:
        assert not into.exists()
        raise
    finally:
        _writes_into.clear()
    assert not any(path.is_symlink() for path in into.rglob("*"))


@cache
def tar_archive(form: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, content in (
            ("a/1.txt", b"one"),
            (f"a/{'long' * (10 if form == tarfile.USTAR_FORMAT else 40)}/2.txt", b"two" * 100),
            ("c/3.txt", b""),
        ):
            contents = tarfile.TarInfo(name)
            contents.size = len(content)
            tar.addfile(contents, io.BytesIO(content))
        end = tar.offset
    return buffer.getvalue()[: end + 1024]  # without the zeros that fill the last record


@cache
def zip_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/1.txt", b"one")
        archive.writestr("a/b/2.txt", b"two" * 100, zipfile.ZIP_DEFLATED)
        archive.writestr("c/3.txt", b"bz" * 50, zipfile.ZIP_BZIP2)
        archive.writestr("c/4.txt", b"xz" * 50, zipfile.ZIP_LZMA)
    return buffer.getvalue()


@cache
def hyperparams() -> bytes:
    return b"""# a speaker model
sample_rate: 16000
n_mels: 16
lin_neurons: 8
compute_features: !new:speechbrain.lobes.features.Fbank
    n_mels: !ref <n_mels>
    sample_rate: !ref <sample_rate>
mean_var_norm: !new:speechbrain.processing.features.InputNormalization
    norm_type: sentence
    std_norm: False
embedding_model: !new:speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN
    input_size: !ref <n_mels>
    channels: [8, 8, 8, 8, 24]
    kernel_sizes: [5, 3, 3, 3, 1]
    dilations: [1, 2, 3, 4, 1]
    attention_channels: 4
    lin_neurons: !ref <lin_neurons>
    groups: [1, 1, 1, 1, 1]
"""


def read_settings(path: Path) -> None:
    """Without the modules that speechbrain leaves, whose attributes raise ImportError when
    hypothesis looks at them.
    """
    try:
        backends_speechbrain.read_settings(path)
    finally:
        for name, module in list(sys.modules.items()):
            if name.startswith("speechbrain.") and type(module).__name__ in (
                "LazyModule",
                "DeprecatedModuleRedirect",
            ):
                del sys.modules[name]


@cache
def face_model() -> bytes:
    """What InsightFace takes for a recognition network by its inputs and nodes, without weights."""
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("Sub", ["data", "mean"], ["x"], name="Sub_0"),
        helper.make_node("Mul", ["x", "scale"], ["y"], name="Mul_0"),
    ]
    nodes.append(helper.make_node("GlobalAveragePool", ["y"], ["z"]))
    sides = [
        helper.make_tensor_value_info("data", kind, ["batch", 3, 112, 112]),
        helper.make_tensor_value_info("z", kind, ["batch", 3, 1, 1]),
    ]
    fixed = [helper.make_tensor(name, kind, [1], [2.0]) for name in ("mean", "scale")]
    model = helper.make_model(
        helper.make_graph(nodes, "g", sides[:1], sides[1:], fixed),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return bytes(model.SerializeToString())


def place_manifest(folder: Path, payload: bytes) -> Path:
    plain("a.onnx", folder, face_model())
    plain("manifest.json", folder, payload)
    return folder


MANIFEST: dict[str, Any] = {
    "manifest_version": 2,
    "model_id": "tiny",
    "license": "MODEL.LICENSE",
    "tasks": {"recognition": {"file": "a.onnx"}},
}
MANIFEST["tasks"]["recognition"]["preprocessing"] = {"mean": 127.5, "std": 127.5}


def place_beside_images(name: str, folder: Path, payload: bytes) -> Path:
    """A list beside what it names."""
    for item_id in IDS:
        (folder / item_id).parent.mkdir(exist_ok=True)
        plain(f"{item_id}.jpg", folder, JPEG)
    return plain(name, folder, payload)


OML = (
    b"label,path,split,is_query,is_gallery\nann,ann/1.jpg,train,,\n"
    b"bob,bob/1.jpg,validation,True,False\nbob,bob/2.jpg,validation,False,True\n"
)
META = (
    b"VoxCeleb1 ID\tVGGFace1 ID\tGender\tNationality\tSet\n"
    b"id10001\tA.J._Buckley\tm\tIreland\tdev\nid10270\tB\tf\tUSA\ttest\n"
)
CFP = {
    "Pair_list_F.txt": b"1 ../a/1.jpg\n2 ../b/1.jpg\n",
    "Pair_list_P.txt": b"1 ../a/2.jpg\n2 ../b/2.jpg\n",
}
CFP |= {
    f"Split/FP/{fold}/{kind}.txt": pair
    for fold in ("01", "02")
    for kind, pair in (("same", b"1,1\n2,2\n"), ("diff", b"1,2\n2,1\n"))
}


def place_cfp(name: str, folder: Path, payload: bytes) -> Path:
    for key, contents in CFP.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        plain(key, folder, payload if key == name else contents)
    return folder


def place_cub(folder: Path, payload: bytes) -> Path:
    (folder / "images" / "001.Bird").mkdir(parents=True, exist_ok=True)
    plain("a.jpg", folder / "images" / "001.Bird", JPEG)
    return plain("images.txt", folder, payload).parent


SOP = b"image_id class_id super_class_id path\n1 1 1 bicycle/1.JPG\n2 2 1 bicycle/2.JPG\n"


def place_sop(folder: Path, payload: bytes) -> Path:
    (folder / "bicycle").mkdir(exist_ok=True)
    plain("1.JPG", folder / "bicycle", JPEG)
    plain("Ebay_train.txt", folder, payload)
    plain("Ebay_test.txt", folder, SOP[:38] + b"3 11319 1 bicycle/3.JPG\n")
    return folder


CELEBS = {
    "dev/dev.lst": b"id00001\n",
    "eval/lists/enroll.lst": b"id00800-enroll enroll/id00800-enroll.wav\n",
}
CELEBS["eval/lists/trials.lst"] = (
    b"id00800-enroll test/id00800-singing-01-001.wav 1\n"
    b"id00800-enroll test/id00801-singing-01-001.wav 0\n"
)
CELEBS["eval/lists/enroll.map"] = b"id00800-enroll id00001/singing-01-002.wav\n"


def place_celebs(name: str, folder: Path, payload: bytes) -> Path:
    recorded = (
        "data/id00001/singing-01-002",
        "eval/enroll/id00800-enroll",
        "eval/test/id00800-singing-01-001",
        "eval/test/id00801-singing-01-001",
    )
    for key, contents in {**CELEBS, **{f"{name}.flac": b"" for name in recorded}}.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        plain(key, folder, payload if key == name else contents)
    return folder


read_celebs = read_by(cnceleb.items, cnceleb.trials, cnceleb.enrolment, cnceleb.check)


CASES = {
    "trials": Case(
        partial(written, lambda path: trials.write_trials(path, LISTED), "t.txt"),
        partial(plain, "t.txt"),
        trials.read_trials,
    ),
    "trials.npz": Case(partial(listed, ".npz"), partial(plain, "t.npz"), trials.read_trials),
    "trials.npz enrol": Case(
        partial(member, partial(listed, ".npz"), "enrol.npy"),
        partial(put_member, partial(listed, ".npz"), "enrol.npy", "t.npz"),
        trials.read_trials,
    ),
    "scores.npz score": Case(
        partial(member, partial(listed, ".npz"), "score.npy"),
        partial(put_member, partial(listed, ".npz"), "score.npy", "t.npz"),
        partial(trials.read_scores, trials=LISTED),
    ),
    "scores.parquet": Case(
        partial(listed, ".parquet"),
        partial(plain, "t.parquet"),
        partial(trials.read_scores, trials=LISTED),
        needs="pyarrow",
        apart=True,
    ),
    "trials.gz": Case(lambda: b"1 a b\n0 a c\n", partial(zipped, "t.gz"), trials.read_trials),
    "trials.gz file": Case(
        lambda: gzip.compress(b"1 a b\n0 a c\n"), partial(plain, "t.gz"), trials.read_trials
    ),
    "scores": Case(
        partial(
            written, lambda path: trials.write_scores(path, LISTED, np.linspace(-1, 1, 4)), "s.txt"
        ),
        partial(plain, "s.txt"),
        partial(trials.read_scores, trials=LISTED),
    ),
    "mapping": Case(
        lambda: b"ann/1 ann\nbob/1 bob\n", partial(plain, "m.txt"), subjects.read_mapping
    ),
    "ark": Case(partial(table, ".ark"), partial(plain, "e.ark"), embeddings.read),
    "ark text": Case(
        lambda: b"ann/1 [ 1 2.5 3e2 ]\nann/2 [ 4 5 6 ]\n", partial(plain, "e.ark"), embeddings.read
    ),
    "scp": Case(scp, place_scp, embeddings.read),
    "npz": Case(partial(table, ".npz"), partial(plain, "e.npz"), embeddings.read),
    "npz ids": Case(
        partial(member, partial(table, ".npz"), "ids.npy"),
        partial(put_member, partial(table, ".npz"), "ids.npy", "e.npz"),
        embeddings.read,
    ),
    "npz matrix": Case(
        partial(member, partial(table, ".npz"), "matrix.npy"),
        partial(put_member, partial(table, ".npz"), "matrix.npy", "e.npz"),
        embeddings.read,
    ),
    "parquet": Case(
        partial(table, ".parquet"),
        partial(plain, "e.parquet"),
        embeddings.read,
        needs="pyarrow",
        apart=True,
    ),
    "h5": Case(
        partial(table, ".h5"), partial(plain, "e.h5"), embeddings.read, needs="h5py", apart=True
    ),
    "per item": Case(per_items, partial(plain, "t.npz"), per_item.read),
    "per item ids": Case(
        partial(member, per_items, "ids.npy"),
        partial(put_member, per_items, "ids.npy", "t.npz"),
        per_item.read,
    ),
    "rec": Case(partial(record, ".rec"), partial(place_record, ".rec"), read_record),
    "idx": Case(partial(record, ".idx"), partial(place_record, ".idx"), read_record),
    "lone rec": Case(partial(record, ".rec"), place_lone_record, read_record),
    "bin": Case(verification, partial(plain, "v.bin"), pickled.items),
    "cifar": Case(
        lambda: CIFAR_BATCH, place_cifar, partial(cifar.items, split="test", whole=False)
    ),
    "cifar names": Case(
        lambda: CIFAR_NAMES, place_cifar_names, partial(cifar.items, split="test", whole=False)
    ),
    "cifar tar.gz": Case(
        cifar_archive,
        lambda folder, payload: zipped("cifar-10-binary.tar.gz", folder, payload).parent,
        partial(cifar.items, split="test", whole=False),
    ),
    "mnist images": Case(
        partial(idx, "images-idx3"), partial(place_mnist, "images-idx3", False), mnist.items
    ),
    "mnist labels": Case(
        partial(idx, "labels-idx1"), partial(place_mnist, "labels-idx1", True), mnist.items
    ),
    "omniglot": Case(omniglot_archive, partial(plain, "images_background.npz"), read_omniglot),
    "omniglot names": Case(
        partial(member, omniglot_archive, "class_name.npy"),
        partial(put_member, omniglot_archive, "class_name.npy", "images_background.npz"),
        read_omniglot,
    ),
    "ijb faces": Case(lambda: FACES, partial(plain, "f.txt"), ijb_files.read_faces),
    "ijb scores": Case(
        lambda: POINTS,
        partial(plain, "f.txt"),
        partial(ijb_files.read_detector_scores, faces=KNOWN_FACES),
    ),
    "ijb landmarks": Case(lambda: POINTS, partial(plain, "f.txt"), ijb.read_landmarks),
    "ijb pairs": Case(
        lambda: b"1 2 1\n2 3 0\n3 4 0\n", partial(plain, "f.txt"), ijb_files.read_template_pairs
    ),
    "ijb side": Case(lambda: SIDE, partial(plain, "f.csv"), ijb_files.read_side),
    "items": Case(
        lambda: b"ann/1\ta.wav\tann\nbob/1\tb.wav\tbob\n", partial(plain, "i.txt"), read_items
    ),
    "lfw": Case(lambda: LFW, partial(plain, "pairs.txt"), read_lfw),
    "two lines": Case(
        lambda: TWO_LINES, partial(plain, "pairs.txt"), partial(pairs.read_two_lines, num_folds=1)
    ),
    "calibration": Case(
        partial(written, Calibration(2.0, -1.0, (0.5,), ("snr",)).save, "c.json"),
        partial(plain, "c.json"),
        load_calibration,
        json=True,
    ),
    "plda": Case(
        partial(written, WHITENED.save, "p.json"),
        partial(plain, "p.json"),
        plda.load_plda,
        json=True,
    ),
    "checkpoint": Case(model_file, partial(plain, "m.safetensors"), load_model),
    "checkpoint header": Case(
        lambda: header_of(model_file()), partial(place_header, model_file), load_model, json=True
    ),
    "checkpoint state": Case(model_state, place_state, load_model, json=True),
    "foreign checkpoint state": Case(
        partial(model_state, foreign_file),
        partial(place_state, file=foreign_file),
        partial(load_model, trust=["torch"]),
        json=True,
    ),
    "tar": Case(partial(tar_shard, "t-000000.tar"), partial(plain, "t-000000.tar"), read_shard),
    "tar index": Case(partial(tar_shard, "t-000000.tar.index"), place_index, read_shard),
    "weights safetensors": Case(
        partial(state_dict, "safetensors"), partial(plain, "w.safetensors"), read_weights
    ),
    "weights zip": Case(partial(state_dict, "zip"), partial(plain, "w.pt"), read_weights),
    "weights pickle": Case(
        partial(member, partial(state_dict, "zip"), "data.pkl"),
        partial(put_member, partial(state_dict, "zip"), "data.pkl", "w.pt"),
        read_weights,
    ),
    "weights legacy": Case(partial(state_dict, "legacy"), partial(plain, "w.pt"), read_weights),
    "onnx": Case(
        onnx_model, partial(plain, "m.onnx"), exported_models.load, needs="onnxruntime", apart=True
    ),
    "onnx description": Case(
        onnx_description,
        place_onnx_description,
        exported_models.load,
        json=True,
        needs="onnxruntime",
        apart=True,
    ),
    **{
        f"image {name}": Case(
            partial(image, *how, **more),
            place_png if how[0] == "PNG" else partial(plain, f"i.{name.split()[0]}"),
            read_image,
        )
        for name, how, more in (
            ("jpeg", ("JPEG",), {}),
            ("jpeg cmyk", ("JPEG", "CMYK"), {}),
            ("png", ("PNG",), {}),
            ("png palette", ("PNG", "P"), {}),
            ("png 16 bits", ("PNG", "I;16"), {}),
            ("webp", ("WEBP",), {}),
            ("webp lossless", ("WEBP", "RGBA"), {"lossless": True}),
            ("bmp", ("BMP",), {}),
            ("bmp palette", ("BMP", "P"), {}),
            ("gif", ("GIF", "P"), {}),
            ("tiff", ("TIFF",), {}),
            ("tiff lzw", ("TIFF",), {"compression": "tiff_lzw"}),
            ("tiff jpeg", ("TIFF",), {"compression": "jpeg"}),
            ("tiff fax", ("TIFF", "1"), {"compression": "group4"}),
            ("ppm", ("PPM",), {}),
        )
    },
    "image jpeg turned": Case(turned_jpeg, partial(plain, "i.jpg"), read_image),
    "image ppm text": Case(
        lambda: b"P3\n# c\n2 2\n255\n" + b"1 2 3 " * 4, partial(plain, "i.ppm"), read_image
    ),
    **{
        f"audio {name}": Case(
            partial(sound, kind, subtype),
            place or partial(plain, f"a.{name.split()[0]}"),
            read_audio,
        )
        for name, kind, subtype, place in (
            ("wav", "WAV", "PCM_16", None),
            ("wav floats", "WAV", "FLOAT", None),
            ("wav adpcm", "WAV", "MS_ADPCM", None),
            ("flac", "FLAC", "PCM_16", place_flac),
            ("mp3", "MP3", "MPEG_LAYER_III", None),
            ("ogg", "OGG", "VORBIS", place_ogg),
            ("opus", "OGG", "OPUS", place_ogg),
            ("aiff", "AIFF", "PCM_16", None),
            ("sph", "NIST", "PCM_16", None),
        )
    },
    "mat": Case(partial(matlab, "agedb"), partial(plain, "p.mat"), pairs.read_agedb, apart=True),
    "mat packed": Case(
        lambda: matlab("agedb")[128:], place_packed_mat, pairs.read_agedb, apart=True
    ),
    "mat cars": Case(
        partial(matlab, "cars"), place_cars, partial(cars.items, whole=False), apart=True
    ),
    "unpack tar": Case(partial(tar_archive, tarfile.USTAR_FORMAT), partial(plain, "a.tar"), unpack),
    "unpack tar gnu": Case(
        partial(tar_archive, tarfile.GNU_FORMAT), partial(zipped, "a.tar.gz"), unpack
    ),
    "unpack tar pax": Case(
        partial(tar_archive, tarfile.PAX_FORMAT), partial(zipped, "a.tgz"), unpack
    ),
    "unpack tar.gz file": Case(
        lambda: gzip.compress(tar_archive(tarfile.USTAR_FORMAT)), partial(plain, "a.tar.gz"), unpack
    ),
    "unpack zip": Case(zip_archive, partial(plain, "a.zip"), unpack),
    "speechbrain": Case(hyperparams, partial(plain, "hyperparams.yaml"), read_settings),
    "insightface": Case(
        face_model,
        partial(plain, "m.onnx"),
        backends_insightface.read_pixels,
        needs="onnx",
        apart=True,
    ),
    "insightface manifest": Case(
        lambda: json.dumps(MANIFEST).encode(),
        place_manifest,
        lambda path: backends_insightface.find(str(path)),
        json=True,
        needs="onnx",
        apart=True,
    ),
    "enrolment": Case(
        lambda: b"m1 ann/1 ann/2\nm2 bob/1\n", partial(plain, "e.txt"), templates.read_enrolment
    ),
    "media": Case(
        lambda: b"ann/1\ta.jpg\tann\nb.jpg\n",
        partial(plain, "m.txt"),
        report_media.media_of_folder_or_list,
    ),
    "face list": Case(
        lambda: b"0 ann/1.jpg\n1 bob/1.jpg\n",
        partial(place_beside_images, "l.txt"),
        lambda path: face_folders.read_list(path, path.parent),
    ),
    "cfp list": Case(
        lambda: CFP["Pair_list_F.txt"], partial(place_cfp, "Pair_list_F.txt"), pairs.read_cfp
    ),
    "cfp fold": Case(
        lambda: CFP["Split/FP/01/same.txt"],
        partial(place_cfp, "Split/FP/01/same.txt"),
        pairs.read_cfp,
    ),
    "oml": Case(lambda: OML, partial(place_beside_images, "df.csv"), lists.oml_retrieval),
    "cub": Case(lambda: b"1 001.Bird/a.jpg\n", place_cub, partial(cub.items, whole=False)),
    "sop": Case(lambda: SOP, place_sop, partial(sop.items, whole=False)),
    "csv": Case(
        lambda: b'path;label;part\nann/1.jpg;ann;"dev"\nbob/1.jpg;bob;dev\n',
        partial(place_beside_images, "items.csv"),
        lambda path: speaker_lists.items(path.parent, split_column="part", split="dev"),
    ),
    "voxceleb": Case(
        lambda: META, partial(plain, "vox1_meta.csv"), lambda path: voxceleb.metadata(path.parent)
    ),
    **{
        f"cnceleb {name.rpartition('/')[2]}": Case(
            partial(CELEBS.__getitem__, name), partial(place_celebs, name), read_celebs
        )
        for name in CELEBS
    },
}
# What they need takes seconds to import, or they are read by code that another case reaches too.
SLOW = re.compile(
    r"speechbrain|insightface manifest|cfp list|cnceleb (enroll|trials).*"
    r"|image (jpeg cmyk|png .*|webp lossless|bmp palette|tiff|tiff jpeg|tiff fax|ppm text)|audio "
    r"(wav .*|opus|sph)|unpack (tar|tar gnu|tar.gz file)"
)
PARAMETERS = [
    pytest.param(name, marks=[pytest.mark.slow] if SLOW.fullmatch(name) else []) for name in CASES
]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_damaged_file_is_read_or_refused(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if case.needs:
        pytest.importorskip(case.needs)
    valid = case.make()
    if name not in ("lfw",):  # whose images are not there
        case.read(case.place(tmp_path, valid))
    changes: Any = st.one_of(_CHANGES, _CHANGES, st.binary(max_size=200))
    if case.json:
        changes = st.one_of(st.tuples(_WHERE, _JSON), changes)

    examples = max(5, EXAMPLES // 8) if case.apart else EXAMPLES

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(change=changes)
    def feed(change: Any) -> None:
        payload = (
            change
            if isinstance(change, bytes)
            else changed(valid, change)
            if isinstance(change, list)
            else replaced(valid, *change)
        )
        path = case.place(tmp_path, payload)
        with warnings.catch_warnings(), suppress(ValueError, FileNotFoundError):
            warnings.simplefilter("ignore")
            case.read(path)

    feed()


# Nothing in a file runs
# --------------------------------------------------------------------------------------------------


class Canary:
    """Its pickle makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def objects(payload: Any) -> bytes:
    """An .npy of pickled objects."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([payload, payload], dtype=object), allow_pickle=True)
    return buffer.getvalue()


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "name",
    [
        parameter
        for parameter in PARAMETERS
        if parameter.values[0] not in ("npz ids", "per item ids", "omniglot names")
    ],
)
def test_a_pickle_in_any_place_does_not_run(name: str, protocol: int, tmp_path: Path) -> None:
    if CASES[name].needs:
        pytest.importorskip(CASES[name].needs)
    canary = tmp_path / "canary"
    payload = pickle.dumps(Canary(canary), protocol=protocol)
    # protocol 0 is lines of text, and a list of items may hold any
    with warnings.catch_warnings(), suppress(ValueError, FileNotFoundError):
        warnings.simplefilter("ignore")
        CASES[name].read(CASES[name].place(tmp_path, payload))
    assert not canary.exists()
    pickle.loads(payload)
    assert canary.exists()


@pytest.mark.parametrize("name", ["npz ids", "per item ids", "omniglot names"])
def test_pickled_objects_in_an_array_do_not_run(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = CASES[name].place(tmp_path, objects(Canary(canary)))
    with pytest.raises(ValueError, match="pickled objects"):
        CASES[name].read(path)
    assert not canary.exists()


def test_kaldiio_ways_to_run_code_are_refused(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    payload = b"ann/1 PKL" + pickle.dumps(Canary(canary))  # kaldiio's own kind of pickled entry
    for name, contents in (
        ("e.ark", payload),
        ("e.scp", f"ann/1 mkdir {canary} |\n".encode()),
        ("f.scp", f"ann/1 | mkdir {canary}\n".encode()),
    ):
        with pytest.raises(ValueError, match="refused"):
            embeddings.read(plain(name, tmp_path, contents))
    assert not canary.exists()


# Memory that a file only claims
# --------------------------------------------------------------------------------------------------


def npy(descr: str, shape: tuple[int, ...], data: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        buffer, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return buffer.getvalue() + data


def opcodes(*parts: bytes) -> bytes:
    return b"\x80\x04" + b"".join(parts)


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


LONG = text(b"x" * 200_000)
ENCODED = opcodes(
    *(b"c_codecs\nencode\nq\x00", LONG, b"q\x01", text(b"latin1"), b"q\x02000]("),
    *(b"h\x00h\x01h\x02\x86R" * 5_000, b"e](", b"\x88" * 2_500, b"e\x86."),
)


FAR = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'


def tar_of(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    contents = tarfile.TarInfo("a.jpg")
    contents.size, contents.type = size, kind
    return contents.tobuf(tarfile.GNU_FORMAT) + bytes(1024)


def compressed_twice() -> bytes:
    import bz2

    return bz2.compress(b"".join([tarfile.TarInfo("././@LongLink").tobuf(), bytes(60_000_000)]), 1)


def long_name(size: int) -> bytes:
    return tar_of(size, tarfile.GNUTYPE_LONGNAME)


CLAIMS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "texts of no bytes": ("npz ids", lambda: npy("<U0", (10**11,))),
    "texts of no bytes in results": ("per item ids", lambda: npy("<U0", (10**11,))),
    "names of no bytes": ("omniglot names", lambda: npy("<U0", (10**11,))),
    "a matrix that is not there": ("npz matrix", lambda: npy("<f4", (10**9, 10**3), bytes(64))),
    "results that are not there": ("per item ids", lambda: npy("<U5", (10**10,), bytes(64))),
    "names that are not there": ("omniglot names", lambda: npy("<U22", (10**9,), bytes(64))),
    "a header of 4 GB": (
        "npz matrix",
        lambda: b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + bytes(64),
    ),
    "a long vector": ("ark", lambda: b"ann/1 \0BFV \4" + struct.pack("<i", 2**20) + bytes(64)),
    "an endless vector": (
        "ark",
        lambda: b"ann/1 \0BFV \4" + struct.pack("<i", 2**31 - 1) + bytes(64),
    ),
    "a long record": (
        "lone rec",
        lambda: struct.pack("<II", recordio.MAGIC, 2**29 - 1) + bytes(64),
    ),
    "an offset beyond": ("idx", lambda: b"1\t999999999999999999\n"),
    "bytes of a pickle": ("bin", lambda: opcodes(b"\x8e" + struct.pack("<Q", 2**62))),
    "a frame of a pickle": ("bin", lambda: opcodes(b"\x95" + struct.pack("<Q", 2**62))),
    "one text encoded often": ("bin", lambda: ENCODED),
    "a memo of a pickle": ("bin", lambda: opcodes(b"Nr" + struct.pack("<I", 2**31) + b".")),
    "labels of no class": ("cifar", lambda: b"\xff" * 3073),
    "names of CIFAR": ("cifar names", lambda: b"a " * 500_000),
    "an archive in an archive": ("cifar tar.gz", compressed_twice),
    "a member of 8 GB": ("cifar tar.gz", lambda: tar_of(2**33)),
    "a name of 8 GB": ("cifar tar.gz", lambda: long_name(2**33)),
    "a member before itself": ("cifar tar.gz", lambda: tar_of(-(2**20))),
    "images of MNIST": (
        "mnist images",
        lambda: struct.pack(">IIII", 0x803, *[2**32 - 1] * 3) + bytes(9),
    ),
    "labels of MNIST": ("mnist labels", lambda: struct.pack(">II", 0x801, 2**32 - 1) + bytes(9)),
    "a line of pairs": ("ijb pairs", lambda: b"1" * 3_000_000),
    "a line of faces": ("ijb faces", lambda: b"1" * 3_000_000),
    "folds of LFW": ("lfw", lambda: b"999999999\t999999999\nann\t1\t2\n"),
    "numbers of PLDA": ("plda", lambda: replaced(CASES["plda"].make(), 5, 10**400)),
    "lists in lists": ("plda", lambda: b"[" * 100_000),
    "a header of a checkpoint": ("checkpoint", lambda: struct.pack("<Q", 2**62) + b"{}"),
    "a tensor of a checkpoint": ("checkpoint header", lambda: FAR),
    "layers of a checkpoint": ("checkpoint state", lambda: sized(dim=10**10)),
    "wide layers of a checkpoint": ("checkpoint state", lambda: sized(width=100_000)),
    "filters of a checkpoint": ("checkpoint state", lambda: sized("frontend", num_mels=10**9)),
    "a member of a shard": ("tar", lambda: tar_of(2**33)),
    "a name in a shard": ("tar", lambda: long_name(2**33)),
    "a member before the shard": ("tar", lambda: tar_of(-(2**20))),
    "rows of an index": (
        "tar index",
        lambda: b'{"likeness_index": 1, "shard": "t", "bytes": 1, "items": 1000000000000}\n',
    ),
    "a bytearray": (
        "weights pickle",
        lambda: opcodes(b"cbuiltins\nbytearray\n(J" + struct.pack("<i", 2**31 - 1) + b"tR."),
    ),
    "a bytearray without archive": (
        "weights legacy",
        lambda: opcodes(b"cbuiltins\nbytearray\n(J" + struct.pack("<i", 2**31 - 1) + b"tR."),
    ),
    "a tensor of weights": ("weights safetensors", lambda: struct.pack("<Q", len(FAR)) + FAR),
}


def sized(part: str = "backbone", **arguments: int) -> bytes:
    state = json.loads(model_state())
    state[part]["args"] |= arguments
    return json.dumps(state).encode()


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_size_that_a_file_states_takes_no_memory(claim: str, tmp_path: Path) -> None:
    name, make = CLAIMS[claim]
    CASES[name].make()  # imports, and keeps what it made
    path = CASES[name].place(tmp_path, make())
    before = resident_peak()
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"\w"):
            CASES[name].read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    assert resident_peak() - before < 300e6  # what C++ allocates is not traced


def resident_peak() -> int:
    """Bytes: the most memory that this process has ever held."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


LONG_NAMES = {
    "lfw": LFW.replace(b"ann", b"a" * 300),
    "scp": b"ann/1 " + b"a" * 300 + b".ark:6\n",
    "face list": b"ann/" + b"a" * 300 + b".jpg\n",
    "cub": b"1 001.Bird/" + b"a" * 300 + b".jpg\n",
    "csv": b"path;label;part\n" + b"a" * 300 + b".jpg;ann;dev\n",
    "cnceleb dev.lst": b"a" * 300,
    "cnceleb enroll.map": b"id00800-enroll " + b"a" * 300 + b"/1.wav\n",
}


@pytest.mark.parametrize("name", LONG_NAMES)
def test_names_that_no_system_has_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"there is no file|not there|not in|is there|do not exist|no folder|no items",
    ):
        CASES[name].read(CASES[name].place(tmp_path, LONG_NAMES[name]))


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("voxceleb", b"a" * 200_000),
        ("oml", b'"' + b"a\n" * 100_000),
        ("csv", b'"' + b"a\n" * 100_000),
    ],
)
def test_fields_longer_than_the_csv_module_takes_are_refused(
    name: str, payload: bytes, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="field limit"):
        CASES[name].read(CASES[name].place(tmp_path, payload))


def test_a_table_that_claims_a_terabyte_is_refused(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file.create_dataset("ids", data=np.array([b"a"]))
        file.create_dataset(
            "matrix", shape=(10**6, 10**6), dtype="f4", chunks=(64, 64), compression="gzip"
        )
    with pytest.raises(ValueError, match="damaged or hostile"):
        embeddings.read(tmp_path / "e.h5")
