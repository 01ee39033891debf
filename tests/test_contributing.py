"""CONTRIBUTING.md says in five lines how to add a data set and a backbone. Here both are added to a
copy of the repository, as the lines say, and the repository's own checks pass on them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("eval", "toolkit", "modalities", "likeness", "recipes", "tests", "docs", "pyproject.toml")

ITEMS = '''"""Birdsong: DATA/birdsong/{bird}_{number}.wav."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from eval.types import Trials
from modalities.speaker.folds import Split, check_split
from toolkit.data.items import Item
from toolkit.data.pairs import draw_pairs


def items(data: str | Path, *, split: Split = "train") -> list[Item]:
    """Items of the first birds ("train"), of the last two ("test") or of all."""
    check_split(split)
    files = sorted(Path(data, "birdsong").glob("*_*.wav"))
    if not files:
        raise FileNotFoundError(f"{data}: no birdsong/BIRD_NUMBER.wav")
    every = [Item(path.name, path, path.stem.partition("_")[0]) for path in files]
    last = set(sorted({str(item.label) for item in every})[-2:])
    return [item for item in every if split == "all" or (item.label in last) == (split == "test")]


def trials(data: str | Path, *, split: Split = "test") -> tuple[list[Item], Trials]:
    """Items of a split, and trials among them."""
    chosen = items(data, split=split)
    return chosen, draw_pairs(chosen, 100, np.random.default_rng(0))
'''
SOURCE = """
[birdsong]
about = "Birdsong: 4 birds, 12 recordings"
licence = "none"
page = "https://birdsong.invalid/"

[[birdsong.archives]]
makes = "birdsong"
urls = ["https://birdsong.invalid/birdsong.zip"]

[[birdsong.counts]]
folder = "birdsong"
matching = '\\.wav$'
number = 12
"""
RECIPE = '''"""Who sings? Four birds, two of them to test.

    likeness train speaker/birdsong --data DATA --out runs/birdsong

Expected numbers: none.
"""

from functools import partial

from eval.verification import eer
from modalities.speaker import audio, birdsong
from modalities.speaker.features import KaldiFbank
from toolkit.backbones.statistics import OrderStatistics
from toolkit.losses.margin import ArcFace
from toolkit.training.recipe import Recipe, Verification

RECIPES = {
    "arcface": Recipe(
        modality="speaker",
        frontend=partial(KaldiFbank, num_mels=40),
        backbone=partial(OrderStatistics, dim=16),
        loss=partial(ArcFace, margin=0.2, scale=16.0),
        items=partial(birdsong.items, split="train"),
        read=audio.read,
        measure=Verification(
            trials=partial(birdsong.trials, split="test"), metrics={"eer": eer}
        ),
    )
}
'''
TESTS = '''"""The birdsong that the miniature holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from modalities import synthetic
from modalities.speaker import birdsong


def miniature(folder: Path) -> None:
    (folder / "birdsong").mkdir()
    for bird in range(4):
        for number in range(3):
            wave = synthetic.voice(bird, number, seconds=(0.5, 0.5))
            soundfile.write(folder / "birdsong" / f"{'abcd'[bird]}_{number}.wav", wave, 16_000)


@pytest.mark.parametrize(("split", "birds"), [("train", "ab"), ("test", "cd"), ("all", "abcd")])
def test_splits(split: birdsong.Split, birds: str, tmp_path: Path) -> None:
    miniature(tmp_path)
    items = birdsong.items(tmp_path, split=split)
    assert [item.label for item in items] == [bird for bird in birds for _ in range(3)]
'''
BACKBONE = '''"""The mean of the frames, and a linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from toolkit.backbones.pooling import frame_mask


class MeanOfFrames(nn.Module):
    """(B, T, in_dim) features -> (B, dim) raw embeddings."""

    pads_exactly = True

    def __init__(self, in_dim: int, *, dim: int = 256):
        super().__init__()
        self.in_dim, self.dim = in_dim, dim
        self.linear = nn.Linear(in_dim, dim)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """lengths: (B,) relative; None means that every row is full."""
        if lengths is None:
            lengths = torch.ones(len(features))
        mask = frame_mask(lengths, features.shape[1])[:, :, None].to(features.dtype)
        mean = torch.where(mask > 0, features, 0).sum(dim=1) / mask.sum(dim=1)
        return torch.as_tensor(self.linear(mean))
'''
NETWORK = """

def test_meanframes_is_the_linear_layer_of_the_mean() -> None:
    from toolkit.backbones.meanframes import MeanOfFrames

    backbone, x = MeanOfFrames(3, dim=2), torch.randn(1, 5, 3)
    expected = x[0].mean(dim=0) @ backbone.linear.weight.T + backbone.linear.bias
    torch.testing.assert_close(backbone(x)[0], expected)
"""


def lines(title: str) -> list[str]:
    """The numbered lines below a heading of CONTRIBUTING.md."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d\. (.*(?:\n   .*)*)", section, flags=re.MULTILINE)


def paths(listed: list[str], **names: str) -> set[str]:
    """The files that the lines name first."""
    firsts = {re.match(r"`([\w/.]+)`", line)[1] for line in listed[:4]}  # type: ignore[index]
    for placeholder, name in names.items():
        firsts = {path.replace(placeholder, name) for path in firsts}
    return firsts


def contents(copy: Path) -> dict[str, bytes]:
    """Every file of the copy, but for what running something leaves."""
    left = {"__pycache__", ".pytest_cache", ".hypothesis"}
    return {
        path.relative_to(copy).as_posix(): path.read_bytes()
        for path in copy.rglob("*")
        if path.is_file() and not left & {*path.parts}
    }


def changed(copy: Path, before: dict[str, bytes]) -> set[str]:
    """Files of the copy that are new or differ."""
    return {name for name, text in contents(copy).items() if before.get(name) != text}


def run(command: str, copy: Path) -> str:
    """A command of CONTRIBUTING.md in the copy."""
    words = shlex.split(" ".join(command.split()))
    assert words[0] == "python"
    ended = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the repository, without the golden files."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            # What is compiled already comes along, but no file that another process is writing.
            ignored = shutil.ignore_patterns("golden", "*.pyc.*")
            shutil.copytree(ROOT / part, tmp_path / part, ignore=ignored)
        else:
            shutil.copyfile(ROOT / part, tmp_path / part)
    return tmp_path


def write(copy: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (copy / name).write_text(text, encoding="utf-8")


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("title", ["Add a data set", "Add a backbone"])
def test_there_are_five_lines_and_what_they_name_exists(title: str) -> None:
    listed = lines(title)
    assert len(listed) == 5
    assert all(
        (ROOT / path.replace("MODALITY", "speaker")).exists() or "NAME" in path
        for path in paths(listed)
    )
    assert "python -m pytest" in listed[4]


# two processes that import everything
@pytest.mark.slow
def test_a_data_set_is_added_in_five_lines(copy: Path) -> None:
    listed, before = lines("Add a data set"), contents(copy)
    write(
        copy,
        {
            "modalities/speaker/birdsong.py": ITEMS,
            "recipes/speaker/birdsong.py": RECIPE,
            "tests/modalities/speaker/test_birdsong.py": TESTS,
        },
    )
    catalogue = copy / "likeness" / "prepare" / "catalogue.toml"
    catalogue.write_text(catalogue.read_text(encoding="utf-8") + SOURCE, encoding="utf-8")
    assert changed(copy, before) == paths(listed, NAME="birdsong", MODALITY="speaker")
    command = re.search(r"`(python -m pytest [^`]*)`", listed[4])
    assert command is not None
    named = command[1].replace("NAME", "birdsong").replace("MODALITY", "speaker")
    message = run(named + " -vv", copy)
    passed = {
        line.split("::")[0].split("/")[-1] for line in message.splitlines() if "PASSED" in line
    }
    assert passed >= {"test_layers.py", "test_recipes.py", "test_birdsong.py"}
    assert "test_trains_and_embeds[speaker/birdsong.py:arcface] PASSED" in message
    assert "birdsong" in run("python -m likeness recipes", copy)
    assert "birdsong" in run("python -m likeness prepare", copy)


# as above
@pytest.mark.slow
def test_a_backbone_is_added_in_five_lines(copy: Path) -> None:
    listed, before = lines("Add a backbone"), contents(copy)
    write(copy, {"toolkit/backbones/meanframes.py": BACKBONE})
    contract = copy / "tests" / "toolkit" / "backbones" / "test_contract.py"
    small = "SMALL: dict[str, dict[str, Any]] = {\n"
    replace(contract, small, small + '    "MeanOfFrames": {"dim": 16},\n')
    networks = contract.with_name("test_networks.py")
    networks.write_text(networks.read_text(encoding="utf-8") + NETWORK, encoding="utf-8")
    page = copy / "docs" / "make_backbones.py"
    last = '    Row("OrderStatistics", OrderStatistics,'
    replace(page, last, f'    Row("MeanOfFrames", MeanOfFrames, "-", "-", "a test"),\n{last}')
    module = "from toolkit.backbones.mobileface import"
    ours = "from toolkit.backbones.meanframes import MeanOfFrames"
    replace(page, module, f"{ours}\n{module}")
    names = copy / "likeness" / "backbones.py"
    replace(names, module, f"{ours}\n{module}")
    replace(names, '    "MobileFaceNet",', '    "MeanOfFrames",\n    "MobileFaceNet",')
    run(re.search(r"`(python docs/\S+)`", listed[3])[1], copy)  # type: ignore[index]
    written = paths(listed, NAME="meanframes") | {
        "docs/make_backbones.py",
        "docs/reference/backbones.md",
    }
    assert changed(copy, before) == written
    command = re.search(r"`(python -m pytest [^`]*)`", listed[4])
    assert command is not None
    named = command[1].replace("NAME", "meanframes").replace("Name", "MeanOfFrames")
    message = run(named + " -vv", copy)
    assert message.count("TestContract") >= 5
    assert "test_meanframes_is_the_linear_layer_of_the_mean PASSED" in message
    assert "test_no_backbone_is_left_out PASSED" in message.replace(
        "test_counts_are_the_field_s_and_no_backbone", "test_no_backbone"
    )
