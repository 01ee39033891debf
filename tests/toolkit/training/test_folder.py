"""A run that ended before its first checkpoint is in nobody's way; every other run is protected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from likeness.toolkit.models import checkpoint
from likeness.toolkit.models.embed import Diverged
from likeness.toolkit.models.parts import describe
from likeness.toolkit.training import lock
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.log import read_log
from likeness.toolkit.training.recipe import Optim, Recipe, Schedule
from likeness.toolkit.training.run import Run, check_folder
from likeness.toolkit.training.train import Step, fit, step
from tests.toolkit.training.steps import raising_at

TINY = Path(__file__).parents[2] / "tiny.py"
SENTENCE = "ended before its first checkpoint"


def recipe(**changes: Any) -> Recipe:
    made = recipes.load(f"{TINY}:arcface")[0]
    return replace(made, **{"schedule": Schedule(steps=4), "measure": None, **changes})


def contents(folder: Path) -> dict[str, bytes]:
    """What is in a folder, but for its lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != lock.NAME
    }


def diverging(run: Run, batch: Any, recipe: Recipe) -> Tensor:
    return step(run, batch, recipe) * float("nan")


FAILURES: dict[str, tuple[type[BaseException], Step]] = {
    "a late mistake": (TypeError, raising_at(2, TypeError("a mistake"))),
    "Ctrl-C twice": (KeyboardInterrupt, raising_at(1, KeyboardInterrupt())),
    "NaN": (Diverged, diverging),
}


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("resume", [False, True])
def test_the_corrected_command_begins_where_a_run_failed_before_its_first_checkpoint(
    failure: str, resume: bool, voices: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, (kind, steps) = tmp_path / "run", FAILURES[failure]
    with pytest.raises(kind):
        fit(recipe(seed=3), data=voices, out=out, step=steps)
    assert sorted(contents(out)) == ["log.jsonl", "recipe.json"]
    with (out / "log.jsonl").open("a") as log:  # of step 0 too: nothing of it may stay
        log.write('{"step": 0, "of": "the run that failed"}\nand what is no JSON')
    capsys.readouterr()
    corrected = recipe(optim=Optim(lr=0.01))
    fit(corrected, data=voices, out=out, resume=resume)
    assert capsys.readouterr().err.count(SENTENCE) == 1
    entries = read_log(out)
    assert [entry["step"] for entry in entries] == [1, 2, 3, 4]
    assert not any("of" in entry or "error" in entry for entry in entries)
    assert json.loads((out / "recipe.json").read_text())["optim"]["lr"] == 0.01
    fit(corrected, data=voices, out=tmp_path / "alone")
    assert contents(out)["last.safetensors"] == contents(tmp_path / "alone")["last.safetensors"]


@pytest.mark.parametrize("name", ["best.safetensors", "resume", None])
def test_a_run_with_any_checkpoint_is_protected(name: str | None, tmp_path: Path) -> None:
    """Also where only one of its files is there."""
    description = describe(recipe())
    (tmp_path / "recipe.json").write_text(json.dumps(description))
    if name == "resume":
        (tmp_path / "resume" / "000000002").mkdir(parents=True)
        (tmp_path / "resume" / "000000002" / "state.json").write_text("{}")
    else:
        (tmp_path / (name or checkpoint.LAST)).touch()
    with pytest.raises(ValueError, match="already holds a run; add --resume"):
        check_folder(tmp_path, description, resume=False)
    with pytest.raises(ValueError, match=r"another recipe .*seed"):
        check_folder(tmp_path, description | {"seed": 7}, resume=True)
    check_folder(tmp_path, description, resume=True)


def test_a_folder_called_resume_that_no_run_made_is_left_alone(
    voices: Path, tmp_path: Path
) -> None:
    own = tmp_path / "resume" / "2025" / "cv.tex"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    with pytest.raises(ValueError, match="made by no run"):
        fit(recipe(), data=voices, out=tmp_path)
    assert own.read_text() == "mine"


def test_a_recipe_that_no_run_made_is_left_alone(voices: Path, tmp_path: Path) -> None:
    own = tmp_path / "recipe.json"
    own.write_text('{"flour": 500}')
    with pytest.raises(ValueError, match="made by no run"):
        fit(recipe(), data=voices, out=tmp_path)
    assert own.read_text() == '{"flour": 500}'
