"""The benchmark of a GPU: it sees a difference, and all sections run on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.scripts import loaded

ROOT = Path(__file__).parents[2]


def test_a_difference_is_seen() -> None:
    """Otherwise the comparison of a CPU with itself would prove nothing."""

    class Wrong(torch.nn.Module):
        """A loss that gives one percent more from its second call on, as a device might."""

        def __init__(self, called: list[int]) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8))
            self.called = called

        def __deepcopy__(self, memo: object) -> Wrong:
            self.called.append(1)
            return Wrong(self.called)

        def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return ((z @ self.weight) ** 2).mean() * (1.01 if len(self.called) > 2 else 1.0)

    torch.manual_seed(0)
    z, y = torch.randn(16, 8), torch.arange(16)
    value, of_z, of_weight, half, remark = loaded(ROOT / "benchmarks" / "gpu.py").loss_cells(
        Wrong([]), z, y, z.device
    )
    assert value == pytest.approx(0.01, rel=1e-3)
    assert of_z == pytest.approx(0.01, rel=1e-3)
    assert of_weight == pytest.approx(0.01, rel=1e-3)
    assert half == pytest.approx(0.01, rel=0.5)
    assert remark == ""


@pytest.mark.slow  # all sections, with processes of their own
def test_all_sections_run_on_a_cpu(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "gpu.py", "--small"],
        check=True,
        cwd=tmp_path,  # so that nothing is imported from the folder of the clone by chance
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    tables = [section.split("\n| ")[1:] for section in done.stdout.split("\n### ")[1:]]
    assert len(tables) == 4
    assert all(len(rows) > 1 for rows in tables)  # columns and rows
    assert "failed: " not in done.stdout
    values = [row.split(" | ")[1] for row in tables[0][1:]]
    assert set(values) == {"0"}  # the CPU beside itself
