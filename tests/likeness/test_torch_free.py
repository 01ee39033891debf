"""A model in ONNX form is used without torch: in a process that can import neither torch nor what
else the extras train and face bring, the commands give what torch gives here.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import likeness
from likeness.data import folders, write_trials
from likeness.eval.errors import install_line
from likeness.eval.formats.embeddings import read_embeddings
from likeness.modalities.face import images
from likeness.modalities.synthetic import write_voices
from likeness.modalities.synthetic_faces import write_faces
from likeness.toolkit.backbones.image_resnet import SmallCNN
from likeness.toolkit.data.pixels import ADAFACE
from tests import tiny
from tests.tiny_yunet import tiny_yunet

ROOT = Path(__file__).parents[2]
VOICE = ROOT / "likeness" / "voice"  # the model that comes along, in torch
WITHOUT = """
import contextlib, importlib, io, json, pkgutil, sys

WITHOUT = ("torch", "torchaudio", "speechbrain", "insightface", "albumentations", "cv2", "requests")


class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in WITHOUT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Nowhere())


def run(*arguments):
    from likeness.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*arguments])
        except SystemExit as ended:
            code = ended.code
    return code or 0, out.getvalue(), err.getvalue()


for line in sys.stdin:
    given = []
    exec(json.loads(line), globals())
    print(json.dumps(given), file=sys.__stdout__, flush=True)
"""


@pytest.fixture(scope="module")
def without_torch(world: Path) -> Iterator[Callable[[str], Any]]:
    """Gives what a text puts into `given`, in a process without torch."""
    command, search = [sys.executable, "-c", WITHOUT], {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=world, env=search, **pipes) as process:

        def ask(code: str) -> Any:
            print(json.dumps(code), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield ask


@pytest.fixture(scope="module")
def world(module_path: Path) -> Path:
    """voice.onnx, which is the model that comes along, and face.onnx; what they are tried on."""
    write_voices(module_path / "voices", num_speakers=4, num_utterances=2, seconds=(2.0, 2.5))
    write_trials(module_path / "trials.txt", folders.trials(module_path / "voices", split="all")[1])
    (module_path / "voice.onnx").write_bytes((VOICE / "model.onnx").read_bytes())
    write_faces(module_path / "faces", num_subjects=2, num_shots=2, size=32)
    face = min((module_path / "faces").rglob("*.png"))
    Image.open(face).save(face.with_suffix(".jpg"))
    parts = {"backbone": partial(SmallCNN, dim=8, image_size=32), "frontend": ADAFACE}
    read = partial(images.read, size=(32, 32))
    recipe = replace(tiny.BASE, modality="face", **parts, read=read)
    likeness.load(tiny.untrained(module_path / "run", recipe)).export(module_path / "face.onnx")
    return module_path


def test_files_are_compared_embedded_enrolled_and_searched(world, without_torch):
    first, second = (str(path) for path in sorted((world / "voices").rglob("*.flac"))[1:3])
    code = f"""
given.append(run("verify", {first!r}, {second!r}, "--json", "v.json"))
items = ["--model", "voice.onnx", "--items", "voices", "--out"]
given.append(run("embed", *items, "onnx.npz", "--workers", "2"))
given.append(run("embed", *items, "crops.npz", "--crops", "2"))
model = ["--gallery", "people", "--model", "voice.onnx"]
given.append(run("gallery", "enrol", "voices", *model))
given.append(run("gallery", "search", {first!r}, *model, "--k", "1"))
given.append(run("score", "--trials", "trials.txt", "--embeddings", "onnx.npz", "--out", "s.txt"))
given.append(run("evaluate", "s.txt", "--far", "0.5", "--save-to", "voice.onnx"))
given.append(run("verify", {first!r}, {second!r}, "--model", "voice.onnx", "--far", "0.5"))
given.append(run("identify", "--gallery", "onnx.npz", "--probes", "onnx.npz", "--fpir", "0.5"))
given.append([name for name in WITHOUT if name in sys.modules])
"""
    *ended, imported = without_torch(code)
    assert not imported
    failed = [(code, err) for code, _, err in ended if code]
    assert not failed
    assert Path(first).parent.name in ended[4][1]  # its own enrolment is nearest
    in_torch = likeness.load(VOICE)
    of_torch, of_onnx = in_torch.embed(world / "voices"), read_embeddings(world / "onnx.npz")
    assert of_onnx.ids == of_torch.ids
    np.testing.assert_allclose(of_onnx.matrix, of_torch.matrix, rtol=1e-4, atol=1e-4)
    expected, stated = in_torch.verify(first, second), json.loads((world / "v.json").read_text())
    assert stated["score"] == pytest.approx(expected.score, rel=1e-4)
    assert stated["probability"] == pytest.approx(expected.probability, rel=1e-3)


def test_images_are_embedded_and_flipped(world, without_torch):
    words = ("embed", "--model", "face.onnx", "--items", "faces", "--out", "both.npz")
    ((ended, _, err),) = without_torch(f"given.append(run(*{words!r}, '--flip', 'concat'))")
    assert ended == 0, err
    both = read_embeddings(world / "both.npz").matrix
    expected = likeness.load(world / "run").embed(world / "faces", flip="concat").matrix
    np.testing.assert_allclose(both, expected, rtol=1e-3, atol=1e-5)


def test_the_service_answers(world, without_torch):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    first, second = (str(path) for path in sorted((world / "voices").rglob("*.flac"))[:2])
    code = f"""
import likeness
from likeness.service._app import make_app
from likeness.service._work import Service
from starlette.testclient import TestClient

rules = dict(token="0123456789abcdef", hosts=(), origins=(), local=True)
app = make_app(Service(likeness.load("voice.onnx").comparer()), **rules)
files = [("first", open({first!r}, "rb").read()), ("second", open({second!r}, "rb").read())]
answer = TestClient(app, base_url="http://127.0.0.1").post("/verify", files=files)
given += [answer.status_code, answer.json()["score"]]
given.append([name for name in WITHOUT if name in sys.modules])
"""
    status, score, imported = without_torch(code)
    assert status == 200
    assert not imported
    expected = likeness.load(world / "voice.onnx").verify(first, second).score
    assert score == pytest.approx(expected, abs=1e-6)


def test_what_needs_an_extra_names_it_in_one_sentence(world, without_torch):
    tiny_yunet(world / "yunet.onnx")
    recordings = sorted(map(str, (world / "voices").rglob("*.flac")))[:2]
    photographs = sorted(map(str, (world / "faces").rglob("*.png")))[:2]
    for extra, *words in (
        ("train", "verify", *recordings, "--model", "speechbrain:somewhere"),
        ("train", "train", "speaker/folders", "--data", "voices", "--out", "run"),
        ("train", "export", "likeness:voice", "--out", "again.onnx"),
        ("face", "verify", *photographs, "--model", "face.onnx", "--detector", "yunet.onnx"),
    ):
        ((ended, _, err),) = without_torch(f"given.append(run(*{words!r}))")
        assert ended == 2
        (line,) = [line for line in err.splitlines() if line.startswith("likeness: ")]
        assert install_line(extra) in line
