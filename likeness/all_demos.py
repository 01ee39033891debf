"""All demos at once, each a process of its own, whose lines are shown one demo after the other."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from eval import cores
from eval.errors import LikenessError
from likeness.errors import one_sentence
from toolkit.console import Interrupted, say

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess  # Windows has none

_PATIENCE_SECONDS = 10.0
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Job(NamedTuple):
    """A recipes/*/demo.py, the modality that it shows, and the folder for what it makes."""

    name: str
    script: Path
    folder: Path


class _Running(NamedTuple):
    job: Job
    process: ForkProcess
    lines: int  # the descriptor from which its output is read


def run_all(jobs: list[Job], *, num_cores: int | None = None) -> None:
    """Run each demo into its folder, without a page of its own, and print what each prints.

    With two cores or more all run at the same time, each on one thread, and what they make is the
    same as one after the other. On one core, and where Python cannot safely fork a process that has
    loaded torch (macOS, Windows), they run one after the other in this process.

    Args:
        jobs: what to run, in the order in which the output appears.
        num_cores: the cores to use (default: those that this process may use).

    Raises:
        LikenessError: a demo failed. The others have run to their end.
        KeyboardInterrupt, Interrupted: Ctrl-C or SIGTERM. No process is left behind.
    """
    mains = {job.name: str(job.script) for job in jobs}
    if sys.platform != "linux" or (num_cores or cores.num_cores()) == 1:
        for job in jobs:
            say(f"\n{job.name}: {job.folder}")
            runpy.run_path(mains[job.name])["main"](job.folder, page=False)
        return
    for script in mains.values():
        runpy.run_path(script)  # imports once what all processes then have
    say(
        f"{len(jobs)} demos run at the same time: {', '.join(mains)}; their lines are shown one "
        "demo after the other"
    )
    failed = {}
    with _sigterm_interrupts():
        running: list[_Running] = []
        try:
            for job in jobs:
                # a signal between start and append would leave a process that nobody knows
                with _signals_wait():
                    running.append(_start(job))
            for demo in running:
                say(f"\n{demo.job.name}: {demo.job.folder}")
                with open(
                    demo.lines, encoding="utf-8", errors="backslashreplace", closefd=False
                ) as lines:
                    for line in lines:
                        say(line.rstrip("\n"))
                demo.process.join()
                if demo.process.exitcode:
                    failed[demo.job.name] = demo.process.exitcode
        finally:
            for demo in running:  # after Ctrl-C those that are still there
                demo.process.terminate()
            for demo in running:
                demo.process.join(_PATIENCE_SECONDS)
                demo.process.kill()
                demo.process.join()
                os.close(demo.lines)
    if failed:
        codes = " and ".join(f"{name} with exit code {code}" for name, code in failed.items())
        raise LikenessError(
            f"{len(failed)} of {len(jobs)} demos failed, {codes}; the lines above say why; start "
            "again with another --out"
        )


def _start(job: Job) -> _Running:
    reader, writer = os.pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(job, writer), daemon=True
    )
    try:
        process.start()
    finally:
        os.close(writer)  # then the reading ends when the process does
    return _Running(job, process, reader)


def _work(job: Job, writer: int) -> None:
    """In the new process: the demo, on one thread, printing into the pipe."""
    for stop in _STOPS:
        signal.signal(stop, signal.default_int_handler)
    for stream in (1, 2):
        os.dup2(writer, stream)
    os.close(writer)
    sys.stdout = sys.stderr = open(  # noqa: SIM115
        1, "w", encoding="utf-8", errors="backslashreplace", closefd=False
    )
    torch.set_num_threads(1)
    with one_sentence("likeness"):
        try:
            runpy.run_path(str(job.script))["main"](job.folder, page=False)
        except Interrupted:
            sys.exit(130)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Signals that stop the program come after the block.

    To mask them is not enough: another thread would take them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    this = os.getpid()

    def note(number: int, _: object) -> None:
        # the process that is started within the block, and has not begun yet
        if os.getpid() != this:
            os._exit(130)
        came.append(number)

    before = [(stop, signal.signal(stop, note)) for stop in _STOPS]
    try:
        yield
    finally:
        for stop, handler in before:
            signal.signal(stop, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that it ends the processes too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
