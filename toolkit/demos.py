"""Several demos at once, each a process of its own, whose lines are shown one demo after the other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from toolkit.printing import say

_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_SECONDS = 10.0
# Each process takes one thread: threads of several processes would wait for each other on the same cores.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def run_all(folders: Mapping[str, Path], *, num_cores: int | None = None) -> None:
    """Run the demo of each modality into its folder, as many at a time as there are cores, and print what each prints.

    Args:
        folders: modality -> folder.
        num_cores: how many demos run at once (default: the cores that this process may use).

    Raises:
        ValueError: a demo failed. The others run to their end first.
        KeyboardInterrupt: Ctrl-C or SIGTERM. No process is left behind.
    """
    names = list(folders)
    at_once = min(len(names), num_cores or _num_cores())
    if at_once > 1:
        say(f"{', '.join(names)}: {at_once} demos run at once, and their lines are shown one demo after the other")
    commands = [[sys.executable, "-m", "toolkit.cli", "demo", "--only", name, "--out", str(folders[name])] for name in names]
    codes = run_commands(commands, at_once, [f"\n{name}: {folders[name]}" for name in names])
    failed = {name: code for name, code in zip(names, codes, strict=True) if code}
    if failed:
        ended = " and ".join(f"{name} with exit code {code}" for name, code in failed.items())
        raise ValueError(f"{len(failed)} of {len(names)} demos failed, {ended}: the lines above say why; start again with another --out")


def run_commands(commands: Sequence[Sequence[str]], at_once: int, titles: Sequence[str]) -> list[int]:
    """Run the commands, at most `at_once` at a time, and return their exit codes.

    What they print comes in the order of the commands: each title, then all lines of its command, as they appear where nothing before is unfinished.
    """
    printed: list[SimpleQueue[str | int]] = [SimpleQueue() for _ in commands]
    running: list[subprocess.Popen[str]] = []
    lock, codes, stopped = threading.Lock(), list[int](), False

    def work(command: Sequence[str], lines: SimpleQueue[str | int]) -> None:
        code = 1
        try:
            with lock:
                if stopped:
                    return
                process = _start(command)
                running.append(process)
            assert process.stdout is not None
            with process.stdout as stream:
                for line in stream:
                    lines.put(line.rstrip("\n"))
            code = process.wait()
        except OSError as error:
            lines.put(str(error))
        finally:
            lines.put(code)

    with _sigterm_interrupts(), ThreadPoolExecutor(at_once) as pool:
        try:
            for command, lines in zip(commands, printed, strict=True):
                pool.submit(work, command, lines)
            for title, lines in zip(titles, printed, strict=True):
                say(title)
                while isinstance(line := lines.get(), str):
                    say(line)
                codes.append(line)
        finally:
            with lock:
                stopped = True
            for process in running:  # those that are still there after Ctrl-C
                process.terminate()
            for process in running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE_SECONDS)
                process.kill()
    return codes


def _start(command: Sequence[str]) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | _ONE_THREAD | {"PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=both, encoding="utf-8", errors="backslashreplace", env=environment)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that it ends the processes too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
