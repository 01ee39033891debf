"""What `train` prints last can be copied and runs, for each kind of recipe."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from likeness.modalities import synthetic_glyphs
from tests.scripts import run_command
from tests.tiny import QUICK

TINY = Path(__file__).parents[1] / "tiny.py"


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command prints; it must succeed."""
    capsys.readouterr()
    code = run_command(*arguments)
    output = capsys.readouterr()
    assert not code, output.err
    return output.out


def commands_of(output: str) -> list[list[str]]:
    """The commands below "next:", as a shell reads them."""
    lines = output.splitlines()
    return [shlex.split(line) for line in lines[lines.index("next:") + 1 :]]


def served(command: list[str]) -> str:
    """The first line of a server that is started so, on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "likeness", *command[1:], "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        return process.stdout.readline()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: paths are printed as they were given."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_verifier_is_evaluated_and_embeds_all_the_data(
    place: Path, voices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = place / "my voices"
    data.symlink_to(voices)
    places = ("--data", "my voices", "--out", "a run")
    output = printed(capsys, "train", "speaker/folders", *QUICK[:2], *places)
    evaluate, embed, serve = commands_of(output)
    assert [command[1] for command in (evaluate, embed, serve)] == ["evaluate", "embed", "serve"]
    printed(capsys, *evaluate[1:])
    assert (place / "a run" / "evaluation" / "index.html").is_file()
    assert "32 embeddings" in printed(capsys, *embed[1:])
    # 2 speakers of 4 recordings have 16 nontarget trials, which measure no FAR of 1 % or 10 %
    assert serve[2:] == ["--model", "a run", "--far", "eer"]
    assert (place / "a run" / "thresholds.json").is_file()


@pytest.mark.slow  # trains on images, and starts two servers
@pytest.mark.parametrize("kind", ["trials", "items"])
def test_every_command_runs_as_it_is_printed(
    kind: str, place: Path, voices: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if kind == "trials":
        arguments = [f"{TINY}:simple", "--data", voices]
    else:
        synthetic_glyphs.write_glyphs(
            place / "glyphs", num_alphabets=1, num_characters=8, num_drawers=5
        )
        arguments = ["image/folders", "schedule.steps=2", "--data", "glyphs"]
    commands = commands_of(printed(capsys, "train", *arguments, "--out", "run"))
    assert len(commands) == 3
    for command in commands:
        assert command[0] == "likeness"
        if command[1] == "serve":
            assert re.search("http://", served(command))
        else:
            printed(capsys, *command[1:])
