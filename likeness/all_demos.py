"""All demos at once, each a process of its own, whose lines are shown one demo after the other."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from eval import cores
from eval.errors import LikenessError
from likeness.errors import one_sentence
from toolkit.console import Interrupted, say


class Job(NamedTuple):
    """A recipes/*/demo.py, the modality that it shows, and the folder for what it makes."""

    name: str
    script: Path
    folder: Path


def run_all(jobs: list[Job], *, num_cores: int | None = None) -> None:
    """Run each demo into its folder, without a page of its own, and print what each prints.

    With two cores or more all run at the same time, each on one thread.

    Args:
        jobs: what to run, in the order in which the output appears.
        num_cores: the cores to use (default: those that this process may use).

    Raises:
        LikenessError: a demo failed. The others have run to their end.
        KeyboardInterrupt: Ctrl-C or SIGTERM. No process is left behind.
    """
    failed = {}
    running: list[subprocess.Popen[str]] = []
    together = (num_cores or cores.num_cores()) > 1
    if together:
        say(
            f"{len(jobs)} demos run at the same time: {', '.join(job.name for job in jobs)}; "
            "their lines are shown one demo after the other"
        )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        if together:
            running += map(_start, jobs)
        for number, job in enumerate(jobs):
            if not together:
                running.append(_start(job))
            process = running[number]
            assert process.stdout is not None
            say(f"\n{job.name}: {job.folder}")
            for line in process.stdout:
                say(line.rstrip("\n"))
            if process.wait():
                failed[job.name] = process.returncode
    finally:
        for process in running:  # after Ctrl-C those that are still there
            process.kill()
            process.wait()
        signal.signal(signal.SIGTERM, before)
    if failed:
        codes = " and ".join(f"{name} with exit code {code}" for name, code in failed.items())
        raise LikenessError(
            f"{len(failed)} of {len(jobs)} demos failed, {codes}; the lines above say why; start "
            "again with another --out"
        )


def _start(job: Job) -> subprocess.Popen[str]:
    """Start the demo in a new process, whose output is read here."""
    return subprocess.Popen(
        [sys.executable, "-m", "likeness.all_demos", str(job.script), str(job.folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="backslashreplace",
    )


def main(script: str, folder: str) -> None:
    """In the new process: run the demo."""
    with one_sentence("likeness"):
        try:
            runpy.run_path(script)["main"](Path(folder), page=False)
        except Interrupted:
            sys.exit(130)


if __name__ == "__main__":
    main(*sys.argv[1:])
