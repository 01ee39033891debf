"""Whatever is killed while it writes leaves the old file or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import program


def told_by(how: str, folder: Path, request: pytest.FixtureRequest) -> Any:
    """What writers.py prints of all the kinds that tests of the fixture ask for."""
    items = [item for item in request.session.items if request.fixturename in item.fixturenames]
    kinds = [item.callspec.params["kind"] for item in items]
    script = Path(__file__).with_name("writers.py")
    ended = program("-P", script, how, folder, *kinds)
    assert "Traceback" not in ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What kills left of each writer."""
    return told_by("killed", tmp_path_factory.mktemp("killed"), request)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("kind", [".npz", "model", "gallery"])
def test_a_kill_leaves_the_old_file_or_the_new_file(kind: str, killed: Any) -> None:
    """Processes that replace a file are killed at some 20 of their calls, those around the renames
    among them; what is there is then read.
    """
    kills, old, new, other = killed[kind]
    assert kills >= 15
    assert not other
    assert old  # kills came before the end ...
    assert new  # ... and after the rename


WRITERS = (".npz", ".ark", ".parquet", "scores", "model", "resume", "log", "gallery")


@pytest.fixture(scope="module")
def on_a_full_disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each writer."""
    pytest.importorskip("resource")
    return told_by("full", tmp_path_factory.mktemp("disk"), request)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_is_reported(kind: str, on_a_full_disk: Any) -> None:
    exception, message, old_is_there, left = on_a_full_disk[kind]
    assert exception == "OSError"
    assert "make room" in message
    assert "\n" not in message
    assert old_is_there
    assert left == []
