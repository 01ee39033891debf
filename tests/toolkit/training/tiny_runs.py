"""Runs of the tiny recipe, what they leave, and steps that do something else as well."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from likeness.recipe import Recipe, Schedule, Step, fit, step
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.training import recipe as recipes
from likeness.toolkit.training.run import Run, latest

ROOT = Path(__file__).parents[3]
TINY = ROOT / "tests" / "tiny.py"
CPU = torch.device("cpu")


load = cache(recipes.load)


def recipe(variant: str = "arcface", *overrides: str, **changes: Any) -> Recipe:
    changed = replace(load(f"{TINY}:{variant}")[0], **changes)
    return recipes.override(changed, list(overrides))


def short(variant: str = "arcface", steps: int = 6, **changes: Any) -> Recipe:
    """A recipe that is saved every two steps, and not measured."""
    schedule = Schedule(steps=steps, save_every=2)
    return recipe(variant, **{"schedule": schedule, "measure": None, **changes})


def needs_peft() -> None:
    if find_spec("peft") is None:
        pytest.skip("peft is not installed")


def step_of(out: Path) -> int:
    """The step of a run's last checkpoint."""
    newest = latest(out)
    return int(newest[1]["step"])


def state_of(out: Path) -> dict[str, Tensor]:
    """Every tensor of a run's last checkpoint, the states of generators included."""
    files = sorted(latest(out)[0].glob("*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def differing(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    """The names of the tensors that are not equal bit for bit."""
    assert a.keys() == b.keys()
    return [name for name in a if not torch.equal(a[name], b[name])]


def same(a: Path, b: Path) -> bool:
    """Whether the states of two runs are equal bit for bit."""
    return not differing(state_of(a), state_of(b))


def watching(what: Callable[[Run, Batch], object]) -> Step:
    """Steps before each of which `what` is called."""

    def watched(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        what(run, batch)
        return step(run, batch, recipe)

    return watched


def before(where: int, what: Callable[[Run, Batch], object]) -> Step:
    """Steps that call `what` before the one with the number `where`."""
    return watching(lambda run, batch: what(run, batch) if run.step == where else None)


def raising_at(where: int, error: BaseException) -> Step:
    """Steps of which the one with the number `where` raises."""

    def raises(run: Run, batch: Batch) -> None:
        raise error

    return before(where, raises)


def cut_and_resumed(recipe: Recipe, *, at: int, data: Path, out: Path) -> None:
    """Train, stop before the step `at`, and go on to the end."""
    with pytest.raises(RuntimeError, match="power cut"):
        fit(recipe, data=data, out=out, step=raising_at(at, RuntimeError("power cut")))
    fit(recipe, data=data, out=out, resume=True)


def asked(request: pytest.FixtureRequest, parameter: str) -> set[str]:
    """The values of a parameter in the tests of the requesting file that are run."""
    items = [item for item in request.session.items if item.path == request.path]
    params = [item.callspec.params for item in items if hasattr(item, "callspec")]
    return {each[parameter] for each in params if parameter in each}


def torchrun(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes that know each other."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, "--nproc-per-node", "2", str(script), *map(str, arguments)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
