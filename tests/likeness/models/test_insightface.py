"""InsightFace's files and packs: the embeddings of its own code, from crops and from photographs,
with small networks made here.
"""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from likeness import Item, Model
from likeness.eval.formats import embeddings
from likeness.eval.formats.provenance import sha256
from likeness.modalities.face import align, images
from likeness.models import _insightface as insight
from likeness.models import load
from likeness.toolkit.data.images import as_channels, encode
from tests.scripts import run_command
from tests.tiny_yunet import pooled, save_onnx

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"
CPU = ["CPUExecutionProvider"]
HEADS = {"plain": [], "mxnet": ["_minusscalar0", "_mulscalar0"], "half": ["Sub_0", "Conv_1"]}
NAMES = ["Sub_1", "_minus", "Mul", "_mulscalar0", "Conv_0", "/Sub", "node_Mul_3", "sub", "_mu"]


def recognizer(path, head=(), *, size=112, batch="batch", dim=6, seed=0, dtype=TensorProto.FLOAT):
    """A network (B, 3, size, size) -> (B, dim) whose first nodes bear these names; those called Sub
    and Mul scale the pixels, as MXNet's networks do.
    """
    rng, cells = np.random.default_rng(seed), size // 8
    lines, at = [], "data"
    if dtype != TensorProto.FLOAT:
        lines, at = ["floats = Cast <to = 1> (data)"], "floats"
    for k, name in enumerate(head):
        kind, more = ("Mul", ", factor") if "ul" in name else ("Identity", "")
        if "Sub" in name or "minus" in name:
            kind, more = "Sub", ", mean"
        lines.append(f"h{k} = {kind} ({at}{more})")
        at = f"h{k}"
    weights = {"mean": np.array(127.5, np.float32), "factor": np.array(1 / 128, np.float32)}
    weights["matrix"] = rng.normal(0, 0.1, (3 * cells * cells, dim)).astype(np.float32)
    kind = "float" if dtype == TensorProto.FLOAT else "uint8"
    inputs = f"{kind}[{batch},3,{size},{size}] data"
    nodes = [*lines, *pooled(at)]
    save_onnx(path, inputs, [f"float[{batch},{dim}] embedding"], nodes, weights)
    model = onnx.load(str(path))
    for node, name in zip(model.graph.node, head, strict=False):
        node.name = name
    onnx.save(model, str(path))
    return path


def detector(path: Path) -> Path:
    """SCRFD's nine outputs of 64 x 64: a face of 4 x 4 cells around every bright red cell of 8 x 8
    pixels, found at stride 8 only.
    """
    points = [-1, -1, 1, -1, 0, 0.1, -0.8, 1, 0.8, 1]
    # "never" is the second anchor of each cell.
    weights = {"first": np.array(0), "column": np.array([-1, 1]), "never": -np.ones((64, 1), "f4")}
    lines = [pooled("input")[0], "red = Gather <axis = 1> (cells, first)"]
    lines += ["one = Reshape (red, column)", "both = Concat <axis = 1> (one, never)"]
    lines.append("score128 = Reshape (both, column)")
    outputs = []
    for kind, row in (("score", [-1.0]), ("box", [2.0] * 4), ("points", points)):
        for count in (128, 32, 8):
            name = f"{kind}{count}"
            outputs.append(f"float[{count},{len(row)}] {name}")
            if name != "score128":
                weights[f"{name}_held"] = np.tile(np.array(row, np.float32), (count, 1))
                lines.append(f"{name} = Identity ({name}_held)")
    return save_onnx(path, "float[1,3,64,64] input", outputs, lines, weights)


def photograph(path, *faces, seed=0, size=(128, 128)):
    """Dark and mottled, with a red cell (column, row) of 16 x 16 pixels for every face."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 120, (12, 12, 3), dtype=np.uint8)
    shown = cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_CUBIC)
    for column, row in faces:
        cell = shown[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        cell[:] = (255, 30, int(rng.integers(0, 255)))
    path.write_bytes(encode(np.asarray(shown, np.uint8)))
    return path


def bgr(path: Path) -> np.ndarray:
    return np.asarray(cv2.imread(str(path)))


def theirs(path: Path) -> Any:
    from insightface.model_zoo import get_model

    return get_model(str(path), providers=CPU)


@pytest.fixture(scope="module")
def crops(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("crops")
    return [photograph(folder / f"{k}.png", (3, 3), seed=k, size=(112, 112)) for k in range(3)]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Like buffalo_l: two landmark networks, a detector, gender and age, recognition; and a second
    recognition network, which is passed over.
    """
    folder = tmp_path_factory.mktemp("packs") / "tiny_l"
    folder.mkdir()
    for name, size, dim in (("1k3d68", 192, 3309), ("2d106det", 192, 212), ("genderage", 96, 3)):
        recognizer(folder / f"{name}.onnx", size=size, dim=dim)
    detector(folder / "det_tiny.onnx")
    recognizer(folder / "w600k_r1.onnx", seed=1)
    recognizer(folder / "z_other.onnx", seed=2)
    return folder


@pytest.mark.parametrize(
    ("file", "is_own"),
    [
        *[("w600k_r50.onnx", True), ("buffalo_l/recognition.onnx", True)],
        *[("antelopev2/glintr100.onnx", True), ("ms1mv3_arcface_r50_fp16/backbone.pth", True)],
        *[("own/face.onnx", False), ("buffalo.onnx", False)],
    ],
)
def test_the_licence_is_said_of_insightfaces_own_files(file, is_own):
    pixels = insight.Pixels((112, 112), 127.5, 127.5)
    text = insight.Pack(Path("models") / file, pixels).text()
    assert ("non-commercial research only" in text) == is_own
    assert text.startswith(str(Path("models") / file))


@pytest.mark.parametrize(("name", "batch"), [*((name, "batch") for name in HEADS), ("plain", 1)])
def test_embeddings_of_aligned_crops_are_insightfaces(name, batch, crops, tmp_path, capsys):
    file = recognizer(tmp_path / "r.onnx", HEADS[name], batch=batch)
    (tmp_path / "list.txt").write_text("".join(f"{crop.stem}\t{crop}\n" for crop in crops))
    words = ("embed", "--model", f"insightface:{file}", "--items", tmp_path / "list.txt")
    assert run_command(*words, "--out", tmp_path / "e.npz") == 0
    loaded = embeddings.read_embeddings(tmp_path / "e.npz")
    model = theirs(file)
    expected = np.concatenate([model.get_feat(bgr(crop)) for crop in crops])
    np.testing.assert_allclose(loaded.matrix, expected, atol=1e-6 * np.abs(expected).max())
    assert dict(loaded.meta) == {"model": sha256(file), "modality": "face", "similarity": "cosine"}
    scale = (model.input_mean, model.input_std)
    assert insight.read_pixels(file) == ((112, 112), *scale, False)
    assert scale == ((0.0, 1.0) if name == "mxnet" else (127.5, 127.5))
    assert "non-commercial" not in capsys.readouterr().err  # r.onnx is of nobody in particular
    other = np.concatenate([model.get_feat(bgr(crop)[..., ::-1].copy()) for crop in crops])
    assert np.abs(other - expected).max() > 1e-3  # the order of colours is not left to chance


@settings(max_examples=30)
@given(st.lists(st.sampled_from(NAMES), max_size=len(NAMES), unique=True))
def test_the_scale_is_guessed_from_names_as_arcface_onnx_does(tmp_path_factory, names):
    file = recognizer(tmp_path_factory.mktemp("heads") / "r.onnx", names)
    model = theirs(file)
    assert insight.read_pixels(file)[1:3] == (model.input_mean, model.input_std)


def test_files_of_a_pack_are_told_apart_as_model_zoo_does(pack, tmp_path):
    sizes = (104, 112, 120, 128, 160)
    others = [recognizer(tmp_path / f"{size}.onnx", size=size) for size in sizes]
    names = {name: name for name in ("recognition", "detection")}
    for file in (*pack.glob("*.onnx"), *others):
        model = theirs(file)
        expected = "unknown" if model is None else names.get(model.taskname, "another network")
        assert insight.kind(onnx.load(str(file)).graph) == expected, file
    result = insight.find(str(pack))
    recognition, found = pack / "w600k_r1.onnx", pack / "det_tiny.onnx"
    assert (result.recognition, result.detector, result.stated) == (recognition, found, False)
    assert load.find_detector(f"insightface:{pack}") == found
    assert load.find_detector(f"insightface:{recognition}") is None  # one file: aligned crops
    assert load.find_detector("runs/face") is None
    assert load.load_named(f"insightface:{pack}").digest == sha256(recognition)


def test_a_file_that_is_no_recognition_model_is_refused(pack, tmp_path):
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    recognizer(tmp_path / "outer" / "inner" / "r.onnx")
    (tmp_path / "only").mkdir()
    (tmp_path / "stated").mkdir()
    (tmp_path / "stated" / "manifest.json").write_text("{}")
    detector(tmp_path / "only" / "det.onnx")
    recognizer(tmp_path / "r.onnx")
    recognizer(tmp_path / "u8.onnx", dtype=TensorProto.UINT8)
    for source, says in [
        ("buffalo_l", "nothing is downloaded"),
        (tmp_path / "outer", "inner folder"),
        (tmp_path / "only", "det.onnx: detection"),
        (tmp_path / "stated", "manifest.json is not read"),
        (pack / "det_tiny.onnx", "detection; inputs .* 9 outputs"),
        (tmp_path / "u8.onnx", "floats are needed"),
    ]:
        with pytest.raises(ValueError, match=says):
            load.load_named(f"insightface:{source}")
    with pytest.raises(ValueError, match=r"insightface:FILE\.onnx"):
        load.load_named(str(tmp_path / "r.onnx"))


def test_a_photograph_gives_what_face_analysis_gives(pack, tmp_path, capsys):
    """Detection, choice, alignment, pixels and network together, with one face, with several, and
    in a picture that is not square.
    """
    from insightface.app import FaceAnalysis

    app = FaceAnalysis(str(pack), allowed_modules=["detection", "recognition"], providers=CPU)
    app.prepare(-1)
    shots = [
        photograph(tmp_path / "one.png", (4, 3)),
        photograph(tmp_path / "three [b].png", (2, 2), (4, 4), (6, 2), seed=1),
        photograph(tmp_path / "wide.png", (3, 2), seed=2, size=(96, 128)),
    ]
    name = f"insightface:{pack}"
    loaded = load.add_detector(load.load_named(name), load.find_detector(name))
    expected = []
    for shot in shots:
        best, _ = app.det_model.detect(bgr(shot), max_num=1)
        faces = app.get(bgr(shot))
        (row,) = (face.embedding for face in faces if np.array_equal(face.bbox, best[0, :4]))
        expected.append(row)
    capsys.readouterr()
    for shot, row in zip(shots, expected, strict=True):
        got = Model(loaded).verify(shots[0], shot)
        norms = [float(np.linalg.norm(value)) for value in (expected[0], row)]
        assert got.norms == pytest.approx(norms, rel=1e-5)
        assert got.score == pytest.approx(float(expected[0] @ row / np.prod(norms)), abs=1e-5)
    said = f"{shots[1]}: 3 faces; the largest near the centre was taken\n"
    assert capsys.readouterr().err == said
    (row,) = Model(loaded).verify_pairs([shots[:2]]).rows
    assert row.note == said.strip()
    digest = sha256(pack / "det_tiny.onnx")[:16]
    assert loaded.meta["faces"] == f"central, aligned to 112 x 112, detector {digest}"


def test_a_detector_serves_face_models_only_and_keeps_their_size(pack, tmp_path):
    model = load.load_named(f"insightface:{recognizer(tmp_path / 'r.onnx', size=224)}")
    item, found = Item("a", photograph(tmp_path / "a.png", (3, 3))), pack / "det_tiny.onnx"
    loaded = load.add_detector(model, found).read(item)
    yunet = align.load_detector(found)
    (expected,), _ = align.align_faces(yunet, images.decode(item), size=(224, 224))
    assert np.array_equal(np.asarray(loaded), as_channels(expected))
    assert load.add_detector(model, None) is model

    for size in ((160, 160), (112, 128)):
        with pytest.raises(ValueError, match="align: "):
            load.add_detector(replace(model, read=partial(images.read, size=size)), found)
    with pytest.raises(ValueError, match="modality 'speaker'"):
        load.add_detector(replace(model, modality="speaker"), found)
