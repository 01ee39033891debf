"""Mistakes in the classes and functions of a recipe are errors of Python, with their line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from likeness.cli import main

NETS = """import numpy as np
import torch
from torch import nn

from modalities.speaker import audio


class Net(nn.Module):
    def __init__(self, in_dim, dim=4):
        super().__init__()
        self.dim = dim
        self.fc = nn.Linear(in_dim, dim)

    def forward(self, x, lengths=None):
        return self.fc(x.mean(1))


class Front(nn.Module):
    def __init__(self):
        super().__init__()
        self.dim = 10

    def forward(self, wave, lengths=None):
        return wave.unfold(1, 10, 10), lengths


class Loss(nn.Module):
    def __init__(self, dim, num_classes):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(num_classes, dim))

    def forward(self, z, y, z_key=None):
        return nn.functional.cross_entropy(z @ self.proxies.T, y)


def read(item):
    return audio.read(item)


"""
RECIPE = """from functools import partial

import mistaken_nets as nets

from modalities import folders
from modalities.speaker.augment import train_view
from toolkit.backbones.external import External
from toolkit.data.sampling import Sampling
from toolkit.training.recipe import Compute, Recipe, Schedule

PARTS = {{
    "frontend": nets.Front,
    "backbone": nets.Net,
    "loss": nets.Loss,
    "read": nets.read,
    "augment": partial(train_view, seconds=(0.2, 0.3)),
}}
RECIPES = {{
    "first": Recipe(
        modality="speaker",
        items=partial(folders.items, split="train"),
        sampling=Sampling(batch_size=4),
        schedule=Schedule(steps=1),
        compute=Compute(threads=1),
        **(PARTS | {{{changed}}}),
    )
}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory; what is imported from it is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("mistaken_nets", "mistaken"):
        sys.modules.pop(name, None)


def train(changed: str, text: str, voices: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says last of a recipe with these parts."""
    Path("mistaken_nets.py").write_text(NETS + text)
    Path("mistaken.py").write_text(RECIPE.format(changed=changed))
    with pytest.raises(SystemExit) as ended:
        main(["train", "mistaken.py", "--data", str(voices), "--out", "run"])
    line = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == (0 if line.startswith("step") else 2)
    return line


MISTAKES: dict[str, tuple[str, str, type[Exception]]] = {
    "a constructor": (
        "'backbone': nets.Bad",
        "class Bad(Net):\n    def __init__(self, *sizes):\n        gone\n",
        NameError,
    ),
    "no pooling": (
        "'backbone': nets.Bad",
        "class Bad(Net):\n    def forward(self, x, lengths=None):\n        return self.fc(x)\n",
        AssertionError,
    ),
    "several numbers of a loss": (
        "'loss': nets.Bad",
        "class Bad(Loss):\n    def forward(self, z, y, z_key=None):\n        return z[:, 0]\n",
        AssertionError,
    ),
    "a reading of None": ("'read': nets.bad", "def bad(item):\n    pass\n", TypeError),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_part_shows_its_traceback(
    mistake: str, folder: Path, voices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, text, error = MISTAKES[mistake]
    with pytest.raises(error):
        train(changed, text, voices, capsys)


def test_readings_of_tensors_train(
    folder: Path, voices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_arrays = train("", "", voices, capsys)
    (folder / "run").rename(folder / "first")
    text = "def bad(item):\n    return torch.from_numpy(audio.read(item))\n"
    assert train("'read': nets.bad", text, voices, capsys) == as_arrays
