"""Training in several real processes (torchrun, gloo) equals training in one, resumes in any number, and ends with a sentence when a process dies."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from toolkit import checkpoint, run, sharding
from toolkit.losses.margin import ArcFace
from toolkit.losses.probabilistic import Joint
from toolkit.losses.triplet import MarginLoss
from toolkit.train import fit

ROOT = Path(__file__).parents[2]
RANKS = Path(__file__).with_name("ranks.py")
_spec = importlib.util.spec_from_file_location("ranks", RANKS)
assert _spec is not None and _spec.loader is not None  # noqa: PT018
ranks: Any = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ranks)


def torchrun(num: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num), str(RANKS), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def difference(one: Path, other: Path) -> float:
    a, b = (load_file(folder / checkpoint.LAST) for folder in (one, other))
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


def test_a_loss_that_indexes_its_classes_itself_is_not_cut() -> None:
    """MarginLoss has no class vectors, but a boundary per class: cut, it would be read by global labels. Alone and as a part of another loss."""
    own = partial(MarginLoss, per_class=True)
    for part in (own, partial(Joint, first=ArcFace, second=own)):
        axes = sharding.class_axes(part, 5)
        assert any(name.endswith("beta") for name in axes)
        with pytest.raises(ValueError, match="'MarginLoss' cannot be sharded by class; leave it whole in every process"):
            sharding.shard(part(5, 4), axes)
    both = partial(Joint, first=ArcFace, second=MarginLoss)  # one boundary for all: nothing of it is cut
    assert sharding.shard(both(5, 4), sharding.class_axes(both, 5)).axes == {"first.proxies": 0}


@pytest.fixture(scope="module")
def alone(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("alone")
    for name, recipe in ranks.VARIANTS.items():
        fit(recipe, data=voices, out=out / name)
    return out


@pytest.fixture(scope="module")
def two(voices: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("two")
    done = torchrun(2, voices, out, "whole", "simple", "memory", "sharded:cut", "whole:seeds")
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize("variant", ["whole", "simple", "memory"])
def test_two_processes_train_as_one(variant: str, alone: Path, two: Path) -> None:
    assert difference(alone / variant, two / variant) < 2e-5
    losses = [[json.loads(line).get("loss") for line in (folder / variant / "log.jsonl").read_text().splitlines()] for folder in (alone, two)]
    assert losses[0][:-1] == pytest.approx(losses[1][:-1], rel=1e-4)
    assert len(losses[0]) == 7
    loss = [_state(folder / variant) for folder in (alone, two)]
    assert loss[0].keys() == loss[1].keys()
    for name in loss[0]:
        loose = name.startswith("optimizer.")  # momentum is a gradient, tens of times larger than the step that it makes
        torch.testing.assert_close(loss[0][name], loss[1][name], atol=1e-3 if loose else 2e-5, rtol=1e-3 if loose else 1e-4)


def _state(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the resume folder, whole."""
    found = run.latest(folder)
    assert found is not None
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(found[0].glob("*.safetensors")):
        tensors |= {name: value for name, value in load_file(file).items() if not name.startswith("random.")}
    return tensors


def test_a_sharded_run_resumes_on_another_number_of_processes(alone: Path, two: Path, voices: Path) -> None:
    found = run.latest(two / "sharded")
    assert found is not None
    assert found[1]["step"] == 3
    shapes = [load_file(file)["loss.proxies"].shape[0] for file in sorted(found[0].glob("*.safetensors"))]
    assert sorted(shapes) == [3, 3]  # of 6 classes
    fit(ranks.VARIANTS["sharded"], data=voices, out=two / "sharded", resume=True)
    assert difference(alone / "sharded", two / "sharded") < 2e-5
    assert difference(alone / "sharded", alone / "whole") < 2e-5
    torch.testing.assert_close(_state(two / "sharded")["loss.proxies"], _state(alone / "whole")["loss.proxies"], atol=2e-5, rtol=1e-4)


def test_processes_with_different_seeds_are_refused(two: Path) -> None:
    for rank in range(2):
        told = (two / f"seeds-{rank}.txt").read_text()
        assert "the processes disagree on 2 of 4 values" in told
        assert "seed is 0 in process 0, but 1 in process 1" in told
    assert not (two / "seeds").exists()


def test_a_process_that_dies_stops_the_others_with_a_sentence(voices: Path, tmp_path: Path) -> None:
    started = time.monotonic()
    done = torchrun(2, voices, tmp_path, "whole:die")
    assert done.returncode != 0
    assert time.monotonic() - started < 60
    told = " ".join(done.stderr.split())
    assert "another process of the run died or does not answer" in told or "SIGTERM (another process of the run ended" in told
    found = run.latest(tmp_path / "die")
    assert found is not None
    assert found[1]["step"] == 3
    fit(ranks.VARIANTS["whole"], data=voices, out=tmp_path / "die", resume=True)
