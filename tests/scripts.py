"""What many tests run or write: the command line in this process, empty files, and scripts of docs/
and examples/ as modules.
"""

import importlib.util
import io
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest

from likeness.cli import main

ROOT = Path(__file__).parents[1]


def run_command(*arguments: object) -> int:
    """Run `likeness` with these arguments in this process; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def printed(*arguments: object) -> str:
    """What a command that succeeds writes to its output."""
    output = io.StringIO()
    with redirect_stdout(output):
        assert run_command(*arguments) == 0
    return output.getvalue()


def refused(*arguments: object) -> str:
    """What a command says that ends with exit code 2; a defect would show its traceback."""
    output = io.StringIO()
    with redirect_stderr(output):
        assert run_command(*arguments) == 2
    assert "Traceback" not in output.getvalue()
    return output.getvalue()


def program(
    *words: object, code: int = 0, cwd: Path | None = None, text: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, which has one thread and finds Likeness.

    Args:
        words: What follows `python`.
        code: The exit code that it has to end with.
        cwd: Its folder.
        text: What it reads from its input.
        environment: Further variables.
    """
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, *map(str, words)]
    ended = subprocess.run(
        command, cwd=cwd, env=os.environ | own, input=text, capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stderr[-3000:]
    return ended


def touch(root: Path, *names: str) -> Path:
    """Make empty files below a folder, which is returned."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def loaded(path: Path, name: str = "") -> ModuleType:
    """Run a file as a module, which is not entered into sys.modules.

    Args:
        path: The file. What lies in its folder can be imported by it, as when it is a program.
        name: The module's name, by default that of the file.
    """
    spec = importlib.util.spec_from_file_location(name or path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        spec.loader.exec_module(module)
    return module


def run_script(path: Path, *arguments: object) -> None:
    """Run a file as a program, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(path), *map(str, arguments)])
        # Python puts the folder of a script first, where it finds what its recipes share.
        patch.syspath_prepend(str(path.resolve().parent))
        patch.delitem(sys.modules, "_shared", raising=False)
        runpy.run_path(str(path), run_name="__main__")
        sys.modules.pop("_shared", None)  # monkeypatch would bring it back
