"""Mistakes in a model file: one sentence names the file, its line and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import likeness
from likeness.cli import main
from likeness.eval.errors import LikenessError
from likeness.models.model_file import load

HEAD = """import likeness
import numpy as np
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.fc = nn.Linear(3, dim)

    def forward(self, x):
        return self.fc(x.mean(dim=(2, 3)))


"""
FIRST = len(HEAD.splitlines()) + 1  # the line of what comes after it
SETTINGS = {
    "network=Net()": "give a class",
    "network='Net'": "network is 'Net'",
    "modality='faces'": "speaker, face, image",
    "similarity='cosin'": "cosine",
    "size=112": "(height, width)",
    "size=(100_000, 100_000)": "(height, width)",
    "rate_hz='16k'": "rate_hz is '16k'",
    "mean=(0.5, 0.5)": "three for red, green and blue",
    "std=0": "above 0",
    "std=(1, 1, 0)": "above 0",
    "lengths='count'": "none, relative, counts",
}


def refused(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is said of a model file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    Path("bad_file.py").write_text(HEAD + text)
    with pytest.raises(LikenessError) as caught:
        load(Path("bad_file.py"))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_wrong_setting_is_named(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"modality": "'face'", "network": "Net"}
    stated = {name: value for name, value in stated.items() if not setting.startswith(f"{name}=")}
    settings = ", ".join([*(f"{name}={value}" for name, value in stated.items()), setting])
    text = refused(f"MODEL = likeness.Network({settings})\n", tmp_path, monkeypatch)
    assert SETTINGS[setting] in text


def class_of(body: str, base: str = "Net") -> str:
    return f"class Bad({base}):\n    {body.replace(chr(10), chr(10) + '    ')}\n\n\n"


def model(settings: str, modality: str = "face") -> str:
    return f"MODEL = likeness.Network(modality='{modality}', {settings})\n"


BAD = model("network=Bad")
# What a file holds, and a part of the sentence.
MISTAKES: dict[str, tuple[str, str]] = {
    "a network of no module": (class_of("pass", "list") + BAD, "torch.nn.Module"),
    "a forward of another shape": (
        class_of("def forward(self, x):\n    return self.fc(x)") + BAD,
        "does not take an input",
    ),
    "a forward with a mistake": (
        class_of("def forward(self, x):\n\n    return self.gone(x)") + BAD,
        "no attribute 'gone'",
    ),
    "images for a network of waves": (
        model("network=Net", "speaker"),
        "does not take an input of (16000,)",
    ),
    "no pooling": (
        model("network=nn.Identity"),
        "gives a tensor (2, 3, 112, 112), and embeddings (B, D) are needed; pool",
    ),
    "several outputs": (
        class_of("def forward(self, x):\n    return super().forward(x), x") + BAD,
        "output=0",
    ),
    "no such output": (model("network=Net, output='embedding'"), "output"),
    "NaN": (
        class_of("def forward(self, x):\n    return super().forward(x) / 0") + BAD,
        "another size",
    ),
    "no such weights": (model("network=Net, weights='gone.pt'"), "gone.pt"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_network_that_does_not_fit_is_named(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, keyword = MISTAKES[mistake]
    text = refused(content, tmp_path, monkeypatch)
    assert keyword in text
    assert "input_shape" not in text  # a setting of External, and not of a Network


@pytest.fixture
def crops(tmp_path: Path) -> Path:
    """Two subjects with two crops of 112 x 112 each."""
    rng = np.random.default_rng(0)
    for subject in "ab":
        (tmp_path / "crops" / subject).mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 255, (112, 112, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "crops" / subject / f"{number}.png")
    return tmp_path / "crops"


READINGS = {
    "return np.zeros((112, 112, 3), np.float32)": "read images as (3, H, W)",
    "return np.zeros((112, 112), np.float32)": "read images as (3, H, W)",
}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reading", READINGS)
def test_a_reading_that_gives_no_input_is_named(
    reading: str,
    workers: int,
    crops: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(crops.parent)
    content = f"def own(item):\n    {reading}\n\n\n" + model("network=Net, read=own")
    Path("bad_file.py").write_text(HEAD + content)
    Path("list.txt").write_text("a/0.png\nb/1.png\n")
    command = ["embed", "--model", "bad_file.py", "--items", "list.txt", "--root", "crops"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--workers", str(workers), "--out", "a.npz"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert READINGS[reading] in line
    assert "bad_file." in line
    assert "defect" not in line


def test_a_reading_may_give_tensors_and_other_numbers(
    crops: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    matrices = []
    for kind in ("torch.full((3, 8, 8), 7.0)", "np.full((3, 8, 8), 7)"):
        content = f"def own(item):\n    return {kind}\n\n\n" + model("network=Net, read=own")
        (tmp_path / "bad_file.py").write_text(HEAD + content)
        torch.manual_seed(0)
        matrices.append(likeness.load(tmp_path / "bad_file.py").embed(crops / "a/0.png").matrix)
    np.testing.assert_array_equal(*matrices)
