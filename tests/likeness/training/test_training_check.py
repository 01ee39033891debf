"""`likeness train --check`: what a training takes, without one."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from likeness.eval.types import Trials
from likeness.modalities.face import validation
from tests import tiny
from tests.scripts import printed, refused


@pytest.mark.parametrize("memory", [r"\d+\.\d GiB", "not measured on this system"])
def test_it_says_what_training_takes_and_keeps_nothing(
    memory: str, voices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory.startswith("not"):
        monkeypatch.setattr("likeness.training.prepare.sys", SimpleNamespace(platform="win32"))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recipe = tmp_path / "mine.py"
    recipe.write_text("from tests.tiny import RECIPES as RECIPES\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    command = ["train", f"{recipe}:arcface", "schedule.steps=7200", "--data", voices, "--check"]
    text = printed(*command)
    planned = tiny.BASE.items(voices)
    assert f"{len(planned)} items of" in text
    assert re.search(f"memory: {memory}\n", text)
    seconds = re.search(r"a step: ([\d.]+) s", text)
    total = re.search(r"all 7,200 steps: ([\d.]+) (hours|minutes)", text)
    assert seconds is not None
    assert total is not None
    hours = float(total[1]) / (1 if total[2] == "hours" else 60)
    assert hours == pytest.approx(2 * float(seconds[1]), rel=0.1)
    assert [path for path in sorted(tmp_path.iterdir()) if path.suffix != ""] == before


def test_a_training_needs_a_place(voices: Path) -> None:
    assert "--out" in refused("train", "speaker/folders", "--data", voices)


def test_sets_of_another_size_are_odd() -> None:
    ids = tuple(f"{name}/{k}" for name in ("lfw", "mine") for k in range(4))
    trials = Trials(
        ids, ids, np.array([0, 2, 4]), np.array([1, 3, 5]), np.array([True, False, True])
    )
    assert validation.odd_sizes(trials) == ["lfw has 2 pairs here, and 6,000 as it was published"]
