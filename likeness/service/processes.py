"""Several processes of `likeness serve` at one address, which share a gallery in a database.

The first process starts the others by fork, before it has loaded anything, and only looks after
them: it starts one anew that has crashed, after a pause, and ends all when it is asked to end. They
end by themselves when it is gone. Each listens by a socket of its own at the same port
(SO_REUSEPORT), between which the system divides connections.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from tempfile import mkdtemp
from types import FrameType
from typing import Any

from eval.cores import num_threads
from eval.errors import LikenessError
from likeness.service.address import Address

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # of prometheus_client, where processes count together
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a process is started anew
LASTED_SECONDS = 60.0  # a process that answered for so long begins with the first pause again
_GRACE_SECONDS = 15.0  # for answers that are being written, when the server ends
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Worker:
    """What one of several processes is given.

    Attributes:
        listen: To be called when it can answer; gives the socket that gets its connections.
        token: For enrolling and removing, where nobody named one.
        speaks: Whether it says what is served: the first one does, at its first start.
        report: To be called when it listens.
    """

    listen: Callable[[], socket.socket]
    token: str
    speaks: bool
    report: Callable[[], None]


def start(address: Address, number: int, warn: Callable[[str], object]) -> Worker:
    """Start processes. It returns in each of them, and never in this one.

    The others are started when the first can answer, so that what cannot be served is said once.

    Args:
        address: Where they listen.
        number: How many there are.
        warn: Gets a sentence when a process has crashed.

    Raises:
        SystemExit: All have ended. The code is 0, or that of the first process if it ended before
            it could answer.
        OSError: The address cannot be bound.
        LikenessError: This system has no fork, or no sockets that share a port.
    """
    if not hasattr(os, "fork"):
        raise LikenessError("this system has no fork; start the server with --workers 1")
    with address.reserve() as kept:
        folder = mkdtemp(prefix="likeness-")
        os.environ[METRICS_FOLDER] = folder
        parent = _Parent(address, kept, number, warn)
        worker: Worker | None = None
        try:
            worker = parent.run()
        finally:
            if worker is None:
                shutil.rmtree(folder, ignore_errors=True)
    if worker is not None:
        return worker
    raise SystemExit(parent.code)


@dataclass
class _Place:
    """A process that there is to be.

    Attributes:
        process: Its number; 0 while there is none.
        life: A pipe that the process keeps open as long as it lives, and into which it writes when
            it can answer.
        answers_since: By the clock `time.monotonic`; infinite before.
        due: When it is to be started, by that clock.
        pause: The seconds that pass before it is started, should it crash; 0 for the first pause.
    """

    due: float
    process: int = 0
    life: int = -1
    answers_since: float = math.inf
    pause: float = 0.0


class _Parent:
    """The process that starts the others. `code` is what it ends with."""

    def __init__(
        self, address: Address, kept: socket.socket, number: int, warn: Callable[[str], object]
    ):
        self.code = 0
        self._address, self._kept, self._warn = address, kept, warn
        self._places = [_Place(due=0.0), *(_Place(due=math.inf) for _ in range(number - 1))]
        self._any_answered = False
        self._token = secrets.token_urlsafe(24)
        self._ending = False
        self._next_signal, self._kill_at = signal.SIGTERM, -math.inf
        # Nobody writes here. Who reads learns that this process is gone.
        self._until_gone, self._kept_open = os.pipe()
        self._woken, self._wake = os.pipe()  # ends a wait when a signal comes

    def run(self) -> Worker | None:
        """Start the processes and look after them. In each of them it returns what it is given."""
        handlers = {number: signal.signal(number, self._asked_to_end) for number in _SIGNALS}
        while not self._ending or self._living():
            if self._ending:
                self._end()
            else:
                for place in self._places:
                    if not place.process and place.due <= time.monotonic():
                        worker = self._start(place, handlers)
                        if worker is not None:
                            return worker
            self._wait()
        return None

    def _start(self, place: _Place, handlers: Mapping[signal.Signals, Any]) -> Worker | None:
        """Start a process. In it this returns what it is given."""
        life, alive = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes while there are two processes is handled by each in its own way.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(life)
            os.close(alive)
            if not self._any_answered:
                raise
            self._postpone(place, f"a process of the server cannot be started ({error})")
            return None
        if process:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.close(alive)
            place.process, place.life, place.answers_since = process, life, math.inf
            return None
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        for other in (life, self._kept_open, self._woken, self._wake):
            os.close(other)
        # Read by torch and by ONNX Runtime, which are not loaded yet. With more threads than cores
        # the threads of the processes wait for each other, and a request takes ten times as long.
        os.environ["OMP_NUM_THREADS"] = str(max(1, num_threads() // len(self._places)))
        threading.Thread(target=_end_with, args=(self._until_gone,), daemon=True).start()
        address, port = self._address, self._kept.getsockname()[1]
        return Worker(
            lambda: address.listen_at(port),
            self._token,
            speaks=place is self._places[0] and not self._any_answered,
            report=lambda: _write(alive),
        )

    def _wait(self) -> None:
        """Wait until a process answers or is gone, one is to be started, or a signal comes."""
        living = {place.life: place for place in self._living()}
        if self._ending:
            until = self._kill_at
        else:
            until = min(
                (place.due for place in self._places if not place.process), default=math.inf
            )
        seconds = None if until == math.inf else max(0.0, until - time.monotonic())
        ready = select.select([self._woken, *living], [], [], seconds)[0]
        for pipe in ready:
            said = os.read(pipe, 1)
            if pipe == self._woken:
                continue
            if said:
                self._answers(living[pipe])
            else:
                self._is_gone(living[pipe])

    def _answers(self, place: _Place) -> None:
        place.answers_since = time.monotonic()
        if not self._any_answered:
            self._any_answered = True
            for other in self._places:
                other.due = 0.0

    def _is_gone(self, place: _Place) -> None:
        """Say so, and when the process is started anew."""
        os.close(place.life)
        status = os.waitpid(place.process, 0)[1]
        _forget_gauges(place.process)
        place.process = 0
        if self._ending:
            return
        if not self._any_answered:
            self.code, self._ending = _code(status) or 1, True
            return
        lasted = time.monotonic() - place.answers_since
        if lasted >= LASTED_SECONDS:
            place.pause = 0.0
        when = "" if lasted >= 0 else " before it could answer"
        self._postpone(place, f"a process of the server ended{when} ({_how(status)})")

    def _postpone(self, place: _Place, why: str) -> None:
        """Start a process after a pause, which doubles from one time to the next."""
        place.pause = place.pause or FIRST_PAUSE
        self._warn(f"{why}; it is started anew in {place.pause:g} s")
        place.due = time.monotonic() + place.pause
        place.pause = min(2 * place.pause, LONGEST_PAUSE)

    def _living(self) -> list[_Place]:
        return [place for place in self._places if place.process]

    def _asked_to_end(self, *_: int | FrameType | None) -> None:
        self._ending = True
        os.write(self._wake, b"!")

    def _end(self) -> None:
        """Ask all processes to end, and later end those that do not."""
        if time.monotonic() < self._kill_at:
            return
        for place in self._living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(place.process, self._next_signal)
        is_asked = self._next_signal == signal.SIGTERM
        self._kill_at = time.monotonic() + _GRACE_SECONDS if is_asked else math.inf
        self._next_signal = signal.SIGKILL


def _write(pipe: int) -> None:
    """Tell that this process can answer. The pipe stays open as long as the process lives."""
    os.write(pipe, b"+")


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
