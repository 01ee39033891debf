"""Whatever is killed while it writes leaves the old file or the new one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", ["npz", "model", "gallery"])
def test_a_kill_leaves_the_old_file_or_the_new_file(kind: str, tmp_path: Path) -> None:
    """Processes that replace a file are killed at some 20 of their calls, those around the renames
    among them; what is there is then read.
    """
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("killed.py")),
        str(tmp_path),
        kind,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    output = json.loads(ended.stdout.splitlines()[-1])
    kills, old, new, other = output[kind]
    assert kills >= 15
    assert not other
    assert old  # kills came before the end ...
    assert new  # ... and after the rename


WRITERS = (
    ".npz",
    ".ark",
    ".parquet",
    "scores",
    "model",
    "resume",
    "log",
    "gallery",
    "shards",
)


@pytest.fixture(scope="module")
def on_a_full_disk(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """What became of each writer that is asked for."""
    pytest.importorskip("resource")
    here = [
        item
        for item in request.session.items
        if item.path == request.path and isinstance(item, pytest.Function)
    ]
    asked = [item.callspec.params["kind"] for item in here if "on_a_full_disk" in item.fixturenames]
    command = [
        sys.executable,
        "-P",
        str(Path(__file__).with_name("full_disk.py")),
        str(tmp_path_factory.mktemp("disk")),
        *asked,
    ]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "Traceback" not in ended.stderr
    output: dict[str, list[Any]] = json.loads(ended.stdout.splitlines()[-1])
    return output


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_is_reported(
    kind: str, on_a_full_disk: dict[str, list[Any]]
) -> None:
    exception, message, old_is_there, left = on_a_full_disk[kind]
    assert exception == "OSError"
    assert "make room" in message
    assert "\n" not in message
    assert old_is_there
    assert left == []
