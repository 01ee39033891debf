"""Ctrl-C, SIGTERM and the end of a terminal: how they end what runs, in any number and order.

A handler runs between any two instructions of the main thread, perhaps within a lock or another
handler. So it only sets variables, writes to a file descriptor, raises, or leaves the process.
Signals within a second are one: `timeout`, torchrun and terminals send them to a process and to
its group.
"""

import _thread
import atexit
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

STOPPED = 130  # the exit code of what a signal ended
AGAIN_SECONDS = 1.0  # after which another signal is a wish of its own
_NAMES = {
    "SIGINT": "Ctrl-C",
    "SIGTERM": "SIGTERM",
    "SIGHUP": "SIGHUP (the terminal was closed)",
    "SIGBREAK": "Ctrl-Break",  # Windows, also where the terminal was closed
}
ENDING = {getattr(signal, name): what for name, what in _NAMES.items() if hasattr(signal, name)}


class Interrupted(Exception):
    """A signal stopped the work, and the state was saved; says what goes on with it."""


def is_ignored(number: int) -> bool:
    """Whether the process was started to outlive the end of its terminal, as by `nohup`.

    Ctrl-C is never ignored, though a shell asks so for what it starts in its background.
    """
    hang_up = getattr(signal, "SIGHUP", None)
    return number == hang_up and signal.getsignal(number) == signal.SIG_IGN


@contextmanager
def ended_by_signals(*, for_good: bool = False) -> Iterator[None]:
    """The first signal within the block raises KeyboardInterrupt, with what it was.

    More of them do not disturb what ends by it; after a second one leaves the process at once.
    Where Python drops the exception, as in what is called after a fork, the signal comes again.

    Args:
        for_good: The process ends after the block. Another signal then leaves it at once.
    """
    began: float | None = None
    came, is_over = 0, False

    def end(number: int) -> None:
        nonlocal began, came
        if is_over or _is_later(began):
            os._exit(STOPPED)
        if began is None:
            began, came = time.monotonic(), number
            raise KeyboardInterrupt(ENDING[signal.Signals(number)])

    def raise_again(dropped: "sys.UnraisableHookArgs") -> None:
        nonlocal began
        if not isinstance(dropped.exc_value, KeyboardInterrupt):
            hook(dropped)
        elif began is not None:
            began = None
            _thread.start_new_thread(_send_later, (came,))  # takes no lock

    with _handled(end, for_good=for_good):
        hook, sys.unraisablehook = sys.unraisablehook, raise_again
        try:
            yield
        finally:
            is_over = True
            if not for_good:
                sys.unraisablehook = hook


def _send_later(number: int) -> None:
    time.sleep(0.05)
    os.kill(os.getpid(), number)


@contextmanager
def held() -> Iterator[None]:
    """A signal within the block comes at its end: what the block starts is known to who ends it."""
    came: list[int] = []
    try:
        with _handled(came.append):
            yield
    finally:
        for number in came:
            signal.raise_signal(number)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """A signal within the block only sets the flag that is yielded, so that a step ends and is
    saved. Ctrl-C after a second interrupts at once (the last checkpoint stays whole).
    """
    began: float | None = None
    outer = signal.getsignal(signal.SIGINT)

    def ask(number: int) -> None:
        nonlocal began
        if began is None:
            began = time.monotonic()
            text = "finishing this step and saving; press Ctrl-C again to stop at once"
            with suppress(OSError):  # the stream's own lock may be held
                os.write(2, f"{ENDING[signal.Signals(number)]}: {text}\n".encode())
        elif number == signal.SIGINT and _is_later(began):
            if not callable(outer):
                raise KeyboardInterrupt
            outer(number, None)

    with _handled(ask):
        yield lambda: began is not None


def _is_later(began: float | None) -> bool:
    return began is not None and time.monotonic() - began > AGAIN_SECONDS


@contextmanager
def _handled(handle: Callable[[int], None], *, for_good: bool = False) -> Iterator[None]:
    """Hand all signals that end to a function; those of processes that this one forks do nothing.

    Outside of the main thread somebody else owns the signals, and nothing is done.
    """
    own = os.getpid()

    def call(number: int, _: object) -> None:
        if os.getpid() == own:
            handle(number)

    before = {}
    with suppress(ValueError):
        for number in ENDING:
            if not is_ignored(number):
                before[number] = signal.signal(number, call)
    try:
        yield
    finally:
        for number, handler in () if for_good else before.items():
            signal.signal(number, handler)


def leave_signals_to_parent(_: int = 0) -> None:
    """This process goes on at signals, which reach all of a group, and ends with its parent.

    The process that started it saves its work, and then ends this one.
    """
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, which a SIGKILL lets tell nobody."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def is_one_of_several() -> bool:
    """Whether this process is in a group with others (torchrun), which it has not left."""
    group = sys.modules.get("torch.distributed")
    return group is not None and group.is_available() and bool(group.is_initialized())


def leave(code: object) -> NoReturn:
    """Leave the process, without waiting for its threads; what it registered for its end is done.

    The threads of a group wait for ever for a process that is gone, and others finish their work.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    os._exit(code if isinstance(code, int) else 1)


@contextmanager
def handlers_stay() -> Iterator[None]:
    """Take back the handlers that a library sets within the block."""
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    with suppress(ValueError, TypeError):  # not in the main thread, or not set by Python
        for number, handler in before.items():
            signal.signal(number, handler)
