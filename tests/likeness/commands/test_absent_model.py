"""A MODEL that does not exist is refused before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMANDS = (
    ["verify", "a.wav", "a.wav", "--model", "nothing"],
    ["embed", "--items", "list.txt", "--out", "out.npz", "--model", "nothing"],
    ["export", "nothing", "out.onnx"],
    ["serve", "--model", "nothing", "--port", "0"],
)
# What could not be written is refused as early.
COMMANDS_WITHOUT_A_FOLDER = (
    ["verify", "a.wav", "a.wav", "--json", "nowhere/v.json"],
    ["export", "likeness:voice", "nowhere/m.onnx"],
)
CODE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from likeness.cli import main
for command in json.loads(sys.argv[2]):
    try:
        main(command)
    except SystemExit as stopped:
        print(command[0], stopped.code, "torch" in sys.modules)
"""


def run(commands: Sequence[list[str]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands one after the other, beside a file that none of them should read."""
    (folder / "a.wav").write_bytes(b"no recording, and nobody should look")
    return subprocess.run(
        [sys.executable, "-c", CODE, str(ROOT), json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )


def test_no_command_imports_torch_for_a_model_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.wav\n")
    ended = run(COMMANDS, tmp_path)
    assert ended.stdout.splitlines() == [f"{command[0]} 2 False" for command in COMMANDS]
    assert ended.stderr.count("'nothing'") == len(COMMANDS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.wav", "list.txt"]


def test_no_command_imports_torch_for_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    ended = run(COMMANDS_WITHOUT_A_FOLDER, tmp_path)
    assert ended.stdout.splitlines() == [
        f"{command[0]} 2 False" for command in COMMANDS_WITHOUT_A_FOLDER
    ]
    assert ended.stderr.count("there is no folder nowhere; make it first") == 2
