"""`likeness embed --ray` on two Ray nodes of this machine, one of which is killed on the way."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch

from likeness import Item, LikenessError
from likeness.embedding import _ray as ray_embedding
from likeness.eval.formats import embeddings
from tests.sounds import chatter

pytest.importorskip("ray", reason="the extra ray")
ROOT = Path(__file__).parents[3]
RAY = Path(sys.executable).with_name("ray")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
ENVIRONMENT |= {"CUDA_VISIBLE_DEVICES": "", "RAY_USAGE_STATS_ENABLED": "0"}
ENVIRONMENT["RAY_AUTH_MODE"] = "disabled"  # tokens in the home folder would be of other clusters
# Where MARKS names a file, each input adds a byte to it.
OWN = """
import os, time

import likeness
from torch import nn


class Waves(nn.Module):
    def __init__(self, dim: int = 8) -> None:
        super().__init__()
        self.frames = nn.Conv1d(1, dim, 400, stride=160)

    def forward(self, waves):
        if "MARKS" in os.environ:
            with open(os.environ["MARKS"], "a") as file:
                file.write("x")
            time.sleep(0.003)
        return self.frames(waves[:, None]).square().mean(dim=2)


MODEL = likeness.Network(modality="speaker", network=Waves, weights="own.pt", rate_hz=16_000)
"""


def start_node(folder: Path, marks: Path, *options: str) -> subprocess.Popen[bytes]:
    """One machine of a cluster, which has one core, as a process group of its own."""
    command = [RAY, "start", "--block", "--num-cpus", "1", "--object-store-memory", str(100 << 20)]
    with (folder / "log.txt").open("a") as log:
        how: dict[str, Any] = {"stdout": log, "stderr": log, "start_new_session": True}
        own = {**ENVIRONMENT, "MARKS": str(marks)}
        return subprocess.Popen([*command, *options], env=own, **how)


def kill(node: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)
    node.wait()


def wait_until(is_so: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    while not is_so():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, in which the sockets of Ray can lie."""
    path = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def embed(folder: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "likeness", "embed", "--model", "own.py", "--trust", "own.py"]
    command += ["--items", "items.txt", "--batch-size", "1", "--out", str(out), *options]
    return subprocess.Popen(command, env=ENVIRONMENT, cwd=folder, stderr=PIPE, text=True)


@pytest.mark.slow  # two nodes of Ray start, and that one of them is gone is noticed after a while
def test_a_cluster_gives_what_one_process_gives_though_a_machine_is_killed(tmp_path, folder):
    (tmp_path / "own.py").write_text(OWN)
    torch.manual_seed(0)
    weights = torch.nn.Conv1d(1, 8, 400, stride=160).state_dict()
    torch.save({f"frames.{name}": value for name, value in weights.items()}, tmp_path / "own.pt")
    for number in range(8):
        wave = chatter(1 + number / 32, seed=number)
        soundfile.write(tmp_path / f"{number}.wav", wave, 16_000)
    (tmp_path / "8.wav").write_bytes(b"no audio")
    lines = [f"{number:04d} {number % 8 if number != 700 else 8}.wav" for number in range(1200)]
    (tmp_path / "items.txt").write_text("\n".join(lines))
    plain = embed(tmp_path, tmp_path / "plain.npz")
    nodes, marks = [], folder / "second"
    try:
        options = ("--head", "--port=0", "--include-dashboard=false", f"--temp-dir={folder}")
        nodes.append(start_node(folder, folder / "first", *options))
        address = folder / "ray_current_cluster"
        wait_until(lambda: address.is_file() and bool(address.read_text()), nodes[0])
        nodes.append(start_node(folder, marks, f"--address={address.read_text()}"))
        wait_until(lambda: (folder / "log.txt").read_text().count("runtime started") == 2, nodes[1])
        assert "unreadable" in plain.communicate()[1]
        out = tmp_path / "out.npz"
        work = embed(tmp_path, out, "--ray", address.read_text())
        # Its first 256 inputs are a finished task, and the next ones are not.
        wait_until(lambda: marks.is_file() and marks.stat().st_size > 300, work)
        assert not out.exists()
        kill(nodes[1])
        stderr = work.communicate()[1]
        assert work.returncode == 0, stderr
        assert "skipped 0700: " in stderr
    finally:
        for node in nodes:
            kill(node)
    whole, made = map(embeddings.read_embeddings, (tmp_path / "plain.npz", out))
    assert made.ids == whole.ids
    assert np.array_equal(made.matrix, whole.matrix)
    assert dict(made.meta) == dict(whole.meta)
    left = ["out.npz", "out.npz.skipped.txt", "plain.npz", "plain.npz.skipped.txt"]
    assert sorted(path.name for path in tmp_path.glob("*.npz*")) == left


def test_a_cluster_that_is_not_there_is_named(tmp_path):
    with pytest.raises(LikenessError, match="no Ray cluster"):
        ray_embedding.embed(Mock(), [Item("a", tmp_path)], "127.0.0.1:1")
