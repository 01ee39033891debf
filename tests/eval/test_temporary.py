"""Temporary folders: gone at the end of their block, and after a kill at the next start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKES = """
import os, signal
from likeness.eval.temporary import folder_of_process, temporary_folder

with temporary_folder() as folder:
    for path in (folder, folder_of_process("sockets")):
        (path / "file").write_text("content")
        print(path, flush=True)
    if {waits}:
        input()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def python(temporary: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["short", "long" * 30])
def test_folders_of_a_killed_process_end_at_the_next_start(name: str, tmp_path: Path) -> None:
    temporary = tmp_path / name
    temporary.mkdir()
    living = python(temporary, MAKES.format(waits=True))
    stay = [Path(living.stdout.readline().rstrip()) for _ in range(2)]
    killed = python(temporary, MAKES.format(waits=False))
    gone = [Path(line) for line in killed.communicate()[0].split()]
    assert killed.returncode == -signal.SIGKILL
    assert all((path / "file").is_file() for path in gone)
    assert len(os.fsencode(gone[1])) < 90
    start = "from likeness.cli import main; main(['--version'])"
    assert python(temporary, start).wait() == 0
    assert not any(path.exists() for path in gone)
    assert all((path / "file").is_file() for path in stay)
    living.communicate("\n")
    assert python(temporary, start).wait() == 0
    assert not any(path.exists() for path in stay)
    assert not list(temporary.iterdir())


def test_folders_end_with_their_block_and_their_process(tmp_path: Path) -> None:
    code = MAKES.format(waits=False).replace("os.kill(os.getpid(), signal.SIGKILL)", "pass")
    done = python(tmp_path, code)
    made = [Path(line) for line in done.communicate()[0].split()]
    assert len(made) == 2
    assert not any(path.exists() for path in made)
