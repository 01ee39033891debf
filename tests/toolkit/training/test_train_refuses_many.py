"""What one of several processes finds, all of them refuse together: none waits for another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from likeness.models.run import load_model

ROOT = Path(__file__).parents[3]


@pytest.mark.slow  # two processes; test_train_many.py has such a refusal as well
def test_all_processes_refuse_what_one_of_them_finds(voices: Path, tmp_path: Path) -> None:
    shutil.copytree(voices, tmp_path / "data")
    script = Path(__file__).with_name("ranks_refuse.py")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        str(tmp_path / "data"),
        str(tmp_path),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ends = [(tmp_path / f"{rank}.txt").read_text().splitlines() for rank in range(2)]
    for statistics, unread, locked, unreadable in ends:
        assert unread.startswith(("unread: ValueError", "unread: LikenessError"))
        assert statistics.startswith("statistics: Diverged: step 3: ")
        assert "holds NaN or infinity" in statistics
        assert unreadable.startswith("unreadable: LikenessError: ")
        assert locked.startswith("locked: ")
    assert "another process has refused" in ends[0][1]
    assert "this machine has no such file" in ends[1][1]
    assert "another process has refused" in ends[0][3]
    assert "the held-out item" in ends[1][3]
    assert "Busy" in ends[0][2]
    assert "another process has refused" in ends[1][2]
    assert load_model(tmp_path / "statistics").step == 2
    for name in ("unread", "locked", "unreadable"):
        assert not (tmp_path / name).exists()
