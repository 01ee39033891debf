"""`likeness train --check`: what a training takes, without one."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from likeness.eval.types import Trials
from likeness.modalities import synthetic
from likeness.modalities.face import validation
from likeness.recipe_files import located
from likeness.toolkit.training.recipe import load
from likeness.training import with_bandwidth
from tests import tiny
from tests.scripts import run_command


def test_it_says_what_training_takes_and_keeps_nothing(
    voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "mine.py"
    recipe.write_text("from tests.tiny import RECIPES as RECIPES\n", encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    command = ["train", f"{recipe}:arcface", "schedule.steps=7200", "--data", voices, "--check"]
    assert run_command(*command) == 0
    text = capsys.readouterr().out
    planned = tiny.BASE.items(voices)
    assert f"{len(planned)} items of" in text
    assert re.search(r"memory: \d+\.\d GiB", text)
    seconds = re.search(r"a step: ([\d.]+) s", text)
    total = re.search(r"all 7,200 steps: ([\d.]+) (hours|minutes)", text)
    assert seconds is not None
    assert total is not None
    hours = float(total[1]) / (1 if total[2] == "hours" else 60)
    assert hours == pytest.approx(2 * float(seconds[1]), rel=0.1)
    assert [path for path in sorted(tmp_path.iterdir()) if path.suffix != ""] == before


@pytest.mark.parametrize("rate_hz", [8_000, 16_000])
def test_a_model_takes_narrow_recordings_where_it_is_trained_on_them(
    rate_hz: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic.write_voices(
        tmp_path / "voices", num_speakers=6, num_utterances=2, seconds=(0.6, 0.7), rate_hz=rate_hz
    )
    recipe, _ = load(located("speaker/folders"))
    is_kept = with_bandwidth(recipe, tmp_path / "voices") is recipe
    assert is_kept == (rate_hz == 16_000)
    assert ("above 4.5 kHz" in capsys.readouterr().err) == (rate_hz == 8_000)


def test_a_training_needs_a_place(voices: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("train", "speaker/folders", "--data", voices) == 2
    assert "--out" in capsys.readouterr().err


def test_sets_of_another_size_are_odd() -> None:
    ids = tuple(f"{name}/{k}" for name in ("lfw", "mine") for k in range(4))
    trials = Trials(
        ids, ids, np.array([0, 2, 4]), np.array([1, 3, 5]), np.array([True, False, True])
    )
    assert validation.odd_sizes(trials) == ["lfw has 2 pairs here, and 6,000 as it was published"]
