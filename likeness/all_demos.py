"""All demos at once, each a process of its own, whose lines are shown one demo after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from eval import cores
from eval.errors import LikenessError
from toolkit.console import say


def run_all(commands: Mapping[str, Sequence[str]], *, num_cores: int | None = None) -> None:
    """Run each demo, and print what each prints.

    With two cores or more all run at the same time, each on one thread.

    Args:
        commands: Name -> the arguments of Python, in the order in which the output appears.
        num_cores: The cores to use (default: those that this process may use).

    Raises:
        LikenessError: A demo failed. The others have run to their end.
        KeyboardInterrupt: Ctrl-C or SIGTERM. No process is left behind.
    """
    running: dict[str, subprocess.Popen[str]] = {}
    together = (num_cores or cores.num_cores()) > 1
    if together:
        say(
            f"{len(commands)} demos run at the same time: {', '.join(commands)}; their lines are "
            "shown one demo after the other"
        )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if together:
            for name, command in commands.items():
                running[name] = _start(command)
        for name, command in commands.items():
            if name not in running:
                running[name] = _start(command)
            process = running[name]
            assert process.stdout is not None
            say(f"\n{name}:")
            for line in process.stdout:
                say(line.rstrip("\n"))
            process.wait()
    finally:
        for process in running.values():  # after Ctrl-C those that are still there
            process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, before)
    failed = {name: process.returncode for name, process in running.items() if process.returncode}
    if failed:
        codes = " and ".join(f"{name} with exit code {code}" for name, code in failed.items())
        raise LikenessError(
            f"{len(failed)} of {len(commands)} demos failed, {codes}; the lines above say why; "
            "start again with another --out"
        )


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a process on one thread, which imports what this one does; its output is read here."""
    return subprocess.Popen(
        [sys.executable, *command],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
    )
