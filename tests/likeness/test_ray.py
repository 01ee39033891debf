"""`likeness embed --ray` on two Ray nodes of this machine, one of which is killed on the way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eval.formats import embeddings
from modalities.synthetic import write_voices

pytest.importorskip("ray", reason="pip install 'likeness[ray]'")
ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}


class Node:
    """One machine of a cluster: a process group of `ray start --block`, with one core."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [RAY, "start", "--block", "--num-cpus", "1", "--disable-usage-stats"]
        command += ["--object-store-memory", str(100 << 20), *options]
        self.log = folder / f"{len(list(folder.iterdir()))}.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, env=ENVIRONMENT, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def cluster() -> Iterator[tuple[str, Node]]:
    """The address of a cluster of two nodes, and the second of them."""
    # Ray's sockets lie in this folder, and the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    nodes = []
    try:
        nodes.append(
            Node(folder, "--head", "--port", "0", "--include-dashboard=false", f"--temp-dir={folder}")
        )
        address = folder / "ray_current_cluster"
        _wait(address.is_file, nodes[0])
        nodes.append(Node(folder, "--address", address.read_text().strip()))
        _wait(lambda: "Ray runtime started" in nodes[1].log.read_text(), nodes[1])
        yield address.read_text().strip(), nodes[1]
    finally:
        for node in nodes:
            if node.process.poll() is None:
                node.kill()
        shutil.rmtree(folder, ignore_errors=True)
