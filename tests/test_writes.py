"""A full disk leaves the old file; a command that was killed at any moment works by the same line,
and gives the bytes of an undisturbed run.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from likeness.commands._outputs import OUTPUTS
from tests.likeness.commands.test_contract import COMMANDS
from tests.scripts import ROOT, program

WRITERS = (".npz", ".ark", ".parquet", "scores", "model", "resume", "log", "gallery")


@pytest.fixture(scope="module")
def on_a_full_disk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What became of each writer that is asked for."""
    pytest.importorskip("resource")
    items = [item for item in request.session.items if request.fixturename in item.fixturenames]
    kinds = [item.callspec.params["kind"] for item in items]
    script = Path(__file__).with_name("writers.py")
    ended = program("-P", script, tmp_path_factory.mktemp("disk"), *kinds)
    assert "Traceback" not in ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_the_old_file_and_is_reported(kind, on_a_full_disk):
    exception, message, old_is_there, left = on_a_full_disk[kind]
    assert exception == "OSError"
    assert "make room" in message
    assert "\n" not in message
    assert old_is_there
    assert left == []


LINES = ROOT / "tests" / "killed_commands.py"
# These are killed elsewhere, or run the others.
ELSEWHERE = {
    "demo": "trains, embeds, scores and evaluates as the commands do",
    "reproduce": "runs the command lines of others, each in a process of its own",
    "gallery remove": "a transaction of SQLite, as gallery enrol",
}


def commands_killed(world: Path, folder: Path, moments: int, *names: str) -> Any:
    """What killed_commands.py prints of these commands, which work on a copy of the world."""
    shutil.copytree(world, folder / "world")
    (folder / "lines").mkdir()
    ended = program("-P", LINES, folder / "world", folder / "lines", moments, *names, cwd=ROOT)
    return json.loads(ended.stdout.splitlines()[-1])


def names() -> list[str]:
    from tests.killed_commands import LINES

    return list(LINES)


def test_every_command_that_writes_is_killed():
    options = {name: {*command.sources, *command.own} for name, command in COMMANDS.items()}
    written = {n for n, of in options.items() if OUTPUTS & {option.lstrip("-") for option in of}}
    lines = {name.partition(",")[0] for name in names()}
    assert written | ELSEWHERE.keys() <= lines | ELSEWHERE.keys()
    assert not lines & ELSEWHERE.keys()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("moments", "commands"),
    [
        (10, ("embed, pieces", "score", "lists", "gallery enrol", "prepare")),
        pytest.param(50, (), marks=pytest.mark.slow),
    ],
)
def test_a_command_that_was_killed_works_by_the_same_line(moments, commands, request, tmp_path):
    """For some minutes, all commands at fifty moments."""
    world = request.getfixturevalue("_world")
    results = commands_killed(world, tmp_path, moments, *(commands or names()))
    assert all(kills for kills, _ in results.values())
    assert {name: wrong for name, (_, wrong) in results.items() if wrong} == {}
