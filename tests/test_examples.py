"""Every example runs as a program of its own and writes what it promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow  # a process that imports torch and draws
def test_vmf_figures(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(ROOT / "examples" / "vmf_figures.py"),
        "--out",
        str(tmp_path / "figures"),
        "--points",
        "12",
    ]
    subprocess.run(
        command,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "MPLCONFIGDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    written = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert written == ["nivmf_fig3.png", "nivmf_fig8.png", "vmf_fig2.png"]
    assert all((tmp_path / "figures" / name).read_bytes()[:4] == b"\x89PNG" for name in written)
