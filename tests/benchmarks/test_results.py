"""The jobs of benchmarks/results.py: they are kept when they succeed, and what fails is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "results.py"
STARTER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import results
results.JOBS = {
    "well": ["-c 'print(1)'", "-c 'print(2)'"],
    "badly": ["-c 'print(3)'", "-c 'raise SystemExit(5)'", "-c 'print(4)'"],
    "paths": ["-c 'import sys; print(sys.argv[1:])' {data} {out}/x"],
}
results.main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STARTER, str(SCRIPT.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_what_succeeds_is_kept_and_what_fails_is_named(tmp_path: Path) -> None:
    data, out = tmp_path / "some data", tmp_path / "out"
    done = run("--data", str(data), "--out", str(out))
    assert done.returncode == 1
    assert done.stderr.strip() == "failed: badly"
    assert (out / "well.md").read_text() == "1\n2\n"
    assert not (out / "badly.md").exists()
    assert (out / "badly.md.part").read_text() == "3\n"
    assert (out / "paths.md").read_text() == f"{[str(data), str(out / 'paths' / 'x')]}\n"

    (out / "well.md").write_text("kept")
    assert run("--data", str(data), "--out", str(out)).returncode == 1
    assert (out / "well.md").read_text() == "kept"
