"""After a kill at any moment the same line works, and gives the bytes of an undisturbed run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from likeness.commands._outputs import OUTPUTS
from tests.likeness.commands.test_contract import COMMANDS
from tests.scripts import ROOT, program

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
LINES = ROOT / "tests" / "killed_commands.py"
# These are killed elsewhere, or run the others.
ELSEWHERE = {
    "demo": "trains, embeds, scores and evaluates as the commands do",
    "reproduce": "runs the command lines of others, each in a process of its own",
    "prepare": "tests/likeness/prepare: nothing half-written lies under a final name",
    "gallery remove": "a transaction of SQLite: tests/test_writes.py",
}


def killed(world: Path, folder: Path, moments: int, *names: str) -> Any:
    """What killed_commands.py prints of these commands, which work on a copy of the world."""
    shutil.copytree(world, folder / "world")
    (folder / "lines").mkdir()
    ended = program("-P", LINES, folder / "world", folder / "lines", moments, *names, cwd=ROOT)
    return json.loads(ended.stdout.splitlines()[-1])


def names() -> list[str]:
    from tests.killed_commands import LINES

    return list(LINES)


def test_every_command_that_writes_is_killed() -> None:
    written = {
        name
        for name, command in COMMANDS.items()
        if OUTPUTS & {option.lstrip("-") for option in {*command.sources, *command.own}}
    }
    lines = {name.partition(",")[0] for name in names()}
    assert written | ELSEWHERE.keys() <= lines | ELSEWHERE.keys()
    assert not lines & ELSEWHERE.keys()


def test_a_few_commands_are_killed_a_few_times(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    results = killed(
        request.getfixturevalue("_world"), tmp_path, 10, "embed, pieces", "score", "lists"
    )
    for kills, wrong in results.values():
        assert kills
        assert not wrong


@pytest.mark.slow  # some minutes
@pytest.mark.timeout(1800)
def test_every_command_is_killed_at_fifty_moments(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    results = killed(request.getfixturevalue("_world"), tmp_path, 50, *names())
    assert all(kills for kills, _ in results.values())
    assert {name: wrong for name, (_, wrong) in results.items() if wrong} == {}
