"""Several processes of `likeness serve` at one address, which share a gallery in a database.

The first process starts the others by fork, before it has loaded anything, and only looks after
them: it starts one anew that has crashed, and ends all when it is asked to end. They end by
themselves when it is gone. Each has a socket of its own at the same port (SO_REUSEPORT), between
which the system divides connections.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from tempfile import mkdtemp
from types import FrameType
from typing import Any

from eval.cores import num_threads

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # of prometheus_client, where processes count together
_GRACE_SECONDS = 15.0  # for answers that are being written, when the server ends


@dataclass(frozen=True)
class Worker:
    """What one of several processes is given.

    Attributes:
        listener: Its socket, which listens already.
        token: For enrolling and removing, where nobody named one.
        speaks: Whether it says what is served: the first one does, at its first start.
        report: To be called when it can answer.
    """

    listener: socket.socket
    token: str
    speaks: bool
    report: Callable[[], None]


def start(listeners: Sequence[socket.socket], warn: Callable[[str], object]) -> Worker:
    """Start a process for each socket. It returns in each of them, and never in this one.

    The others are started when the first can answer, so that what cannot be served is said once.

    Args:
        listeners: Of the same address, see `Address.listen`.
        warn: Gets a sentence when a process has crashed.

    Raises:
        SystemExit: All have ended. The code is 0, or that of a process that ended before it could
            answer.
        ValueError: This system has no fork.
    """
    if not hasattr(os, "fork"):
        raise ValueError("this system has no fork; start the server with --workers 1")
    folder = mkdtemp(prefix="likeness-")
    os.environ[METRICS_FOLDER] = folder
    parent = _Parent(listeners, warn)
    worker: Worker | None = None
    try:
        worker = parent.run()
    finally:
        if worker is None:
            shutil.rmtree(folder, ignore_errors=True)
    if worker is not None:
        return worker
    raise SystemExit(parent.code)


class _Parent:
    """The process that starts the others. `code` is what it ends with."""

    def __init__(self, listeners: Sequence[socket.socket], warn: Callable[[str], object]):
        self.code = 0
        self._warn = warn
        self._listeners = listeners
        self._token = secrets.token_urlsafe(24)
        self._running: dict[int, int] = {}  # process -> number of its socket
        self._ending = False
        # Nobody writes here. Who reads learns that this process is gone.
        self._until_gone, self._kept_open = os.pipe()

    def run(self) -> Worker | None:
        """Start the processes and look after them. In each of them it returns what it is given."""
        signals = (signal.SIGINT, signal.SIGTERM)
        handlers = {number: signal.signal(number, self._end) for number in signals}
        for number in range(len(self._listeners)):
            worker = self._fork(number, handlers, speaks=number == 0)
            if worker is not None or self._ending:
                break
        while worker is None and self._running:
            process, status = os.wait()
            place = self._running.pop(process, None)
            _forget_gauges(process)
            if place is not None and not self._ending:
                self._warn(f"a process of the server ended ({_how(status)}) and is started anew")
                worker = self._fork(place, handlers, speaks=False)
        return worker

    def _fork(
        self, number: int, handlers: Mapping[signal.Signals, Any], *, speaks: bool
    ) -> Worker | None:
        """Start a process, and wait until it can answer. In it this returns what it is given."""
        can_answer, report = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        process = os.fork()
        if process:
            os.close(report)
            self._running[process] = number
            ready = os.read(can_answer, 1)
            os.close(can_answer)
            if not ready and not self._ending:
                self.code = _code(os.waitpid(process, 0)[1]) or 1
                del self._running[process]
                self._end()
            return None
        for signal_number, handler in handlers.items():
            signal.signal(signal_number, handler)
        # Read by torch and by ONNX Runtime, which are not loaded yet. With more threads than cores
        # the threads of the processes wait for each other, and a request takes ten times as long.
        os.environ["OMP_NUM_THREADS"] = str(max(1, num_threads() // len(self._listeners)))
        os.close(can_answer)
        os.close(self._kept_open)
        for other, listener in enumerate(self._listeners):
            if other != number:
                listener.close()
        threading.Thread(target=_end_with, args=(self._until_gone,), daemon=True).start()

        def tell() -> None:
            os.write(report, b"+")
            os.close(report)

        return Worker(self._listeners[number], self._token, speaks, tell)

    def _end(self, *_: int | FrameType | None) -> None:
        """Ask all processes to end, and end those that do not."""
        if self._ending:
            return
        self._ending = True
        self._signal(signal.SIGTERM)
        threading.Thread(target=self._insist, daemon=True).start()

    def _insist(self) -> None:
        time.sleep(_GRACE_SECONDS)
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


def _end_with(until_gone: int) -> None:
    """Ask this process to end when the first one has gone."""
    os.read(until_gone, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _forget_gauges(process: int) -> None:
    """A process that is gone works on no uploads."""
    from prometheus_client import multiprocess

    multiprocess.mark_process_dead(process)  # type: ignore[no-untyped-call]


def _code(status: int) -> int:
    return os.waitstatus_to_exitcode(status) if not os.WIFSIGNALED(status) else 1


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"code {os.waitstatus_to_exitcode(status)}"
