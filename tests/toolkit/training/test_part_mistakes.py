"""Mistakes in the classes and functions of a recipe: one sentence names the class, or the file and
its line, and what to do.
"""

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
FIRST = len(NETS.splitlines()) + 1  # the line of what comes after it
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


def method(body: str, base: str, arguments: str = "self, x, lengths=None") -> str:
    """A class whose forward has its one statement in its third line."""
    return f"class Bad({base}):\n    def forward({arguments}):\n        {body}\n"


def init(statement: str, base: str = "nn.Module", arguments: str = "self, *sizes") -> str:
    """A class whose __init__ has a statement in its fourth line."""
    return (
        f"class Bad({base}):\n    def __init__({arguments}):\n        super().__init__()\n"
        f"        {statement}\n"
    )


LOSS = "self, z, y, z_key=None"
BACKBONE, FRONTEND, OF_LOSS = "'backbone': nets.Bad", "'frontend': nets.Bad", "'loss': nets.Bad"
READ = "'read': nets.bad"
EXTERNAL = "'backbone': partial(External, network={}, input_shape=(20, 10))"
# What is changed, the class, and a part of the sentence that names class or line and the remedy.
BEFORE: dict[str, tuple[str, str, str]] = {
    "an instance": ("'backbone': nets.Net(10)", "", "backbone is an instance of mistaken_nets.Net"),
    "an instance in a partial": ("'loss': partial(nets.Loss(4, 6))", "", "the class itself, Loss"),
    "an instance within": (EXTERNAL.format("nets.Net(10)"), "", "backbone.network is an instance"),
    "a name": ("'frontend': 'Front'", "", "frontend is 'Front'; give a class"),
    "no dim": (BACKBONE, init("pass"), "states no dim, the size of its embeddings"),
    "a dim that is no number": (BACKBONE, init("self.dim = '4'"), "states dim as '4'"),
    "no dim of a front-end": (FRONTEND, init("pass"), "mistaken_nets.Bad states no dim"),
    "a constructor with a mistake": (BACKBONE, init("gone"), f"line {FIRST + 3}: NameError"),
    "a constructor that refuses": (
        BACKBONE,
        init("raise ValueError('in_dim has to be 7')"),
        f"mistaken_nets.py, line {FIRST + 3}: in_dim has to be 7",
    ),
    "a constructor of more": (
        BACKBONE,
        init("self.dim = 4", arguments="self, in_dim, width"),
        "mistaken_nets.Bad is called with the dimensions of the front-end",
    ),
    "a constructor of none": (OF_LOSS, init("pass", arguments="self"), "by functools.partial"),
    "a loss of torch": ("'loss': nets.nn.CrossEntropyLoss", "", "CrossEntropyLoss is called with"),
    "a function": (
        OF_LOSS,
        "def Bad(dim, num_classes):\n    return 7\n",
        "nets.Bad makes a int",
    ),
    "a forward without lengths": (
        BACKBONE,
        method("return self.fc(x.mean(1))", "Net", "self, x"),
        "mistaken_nets.Bad.forward is called with (features, lengths)",
    ),
    "a loss without keys": (OF_LOSS, method("return z", "Loss", "self, z, y"), "(z, y, z_key)"),
    "a network without its arguments": (EXTERNAL.format("nets.Net"), "", "by functools.partial"),
    "a network with a mistake": (
        EXTERNAL.format("nets.Bad"),
        init("gone"),
        f"correct its class or function (mistaken_nets.py, line {FIRST + 3})",
    ),
    "a reading of None": (
        READ,
        "def bad(item):\n    pass\n",
        "nets.bad gives None",
    ),
    "a reading of a list": (READ, "def bad(item):\n    return [0.0]\n", "nets.bad gives a list"),
    "a reading of text": (READ, "def bad(item):\n    return np.array(['a'])\n", "of <U1"),
    "a reading with a mistake": (
        READ,
        "def bad(item):\n    gone\n",
        f"line {FIRST + 1}: NameError",
    ),
    "a view of None": (
        "'augment': nets.bad",
        "def bad(x, a, b):\n    pass\n",
        "nets.bad gives None",
    ),
    "a view of one argument": ("'augment': nets.read", "", "called with (input, rng, batch_rng)"),
}
# The same, which the first step shows.
IN_A_STEP: dict[str, tuple[str, str, str]] = {
    "a forward with a mistake": (
        BACKBONE,
        method("return self.fc(x)", "Net").replace("(x)", "(x.mean(2))"),
        f"mistaken_nets.py, line {FIRST + 2}: RuntimeError: mat1",
    ),
    "a forward that refuses": (
        BACKBONE,
        method("raise ValueError('too short')", "Net"),
        f"mistaken_nets.py, line {FIRST + 2}: too short",
    ),
    "no pooling": (BACKBONE, method("return self.fc(x)", "Net"), "must return embeddings (4, 4)"),
    "another dim": (BACKBONE, init("self.dim = 7", "Net").replace("__()", "__(10)"), "(4, 7)"),
    "several outputs": (BACKBONE, method("return x, x", "Net"), "gives a tuple of 2: a tensor"),
    "features alone": (FRONTEND, method("return x", "Front"), "return features, lengths"),
    "a front-end that errs": (
        FRONTEND,
        method("gone", "Front"),
        f"line {FIRST + 2}: NameError",
    ),
    "features of another size": (FRONTEND, init("self.dim = 7", "Front"), "line 15: RuntimeError"),
    "a loss of several numbers": (
        OF_LOSS,
        method("return z[:, 0]", "Loss", LOSS),
        "a tensor (4,)",
    ),
    "a loss of Python": (
        OF_LOSS,
        method("return 0.5", "Loss", LOSS),
        "gives a float",
    ),
    "a loss without gradient": (
        OF_LOSS,
        method("return z.detach().mean()", "Loss", LOSS),
        "mistaken_nets.Bad gives a number without a gradient",
    ),
    "a loss with a mistake": (
        OF_LOSS,
        method("gone", "Loss", LOSS),
        f"line {FIRST + 2}: NameError",
    ),
}


@pytest.mark.filterwarnings("ignore:size_average")  # of torch's CrossEntropyLoss
@pytest.mark.parametrize("mistake", [*BEFORE, *IN_A_STEP])
def test_a_mistake_is_one_sentence(
    mistake: str, folder: Path, voices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed, text, keyword = (BEFORE | IN_A_STEP)[mistake]
    line = train(changed, text, voices, capsys)
    assert keyword in line
    assert "defect" not in line
    assert (folder / "run").exists() == (mistake in IN_A_STEP)
    assert train("", "", voices, capsys).startswith("step 1/1")  # and the corrected command trains


def test_readings_of_tensors_train(
    folder: Path, voices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    as_arrays = train("", "", voices, capsys)
    (folder / "run").rename(folder / "first")
    text = "def bad(item):\n    return torch.from_numpy(audio.read(item))\n"
    assert train(READ, text, voices, capsys) == as_arrays
