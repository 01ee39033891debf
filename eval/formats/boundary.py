"""Native parsers of foreign files, each in a process of its own.

A crash, a hang or a memory bomb there becomes one sentence here. Nothing within Python can guard
against a parser in C or C++ that aborts, loops or allocates what a file claims. A `Process` runs
one of our own functions under limits of memory and processor time. It sends back plain arrays: a
small JSON header and raw bytes over a socket, never a pickle. It may be asked many times; an ONNX
model runs in one that stays.

Processes are forks of a starter. There is one lean Python per program (no torch, none of the
start-up code of site packages, no threads), which imports numpy and what a reader needs and never
sees a byte of a file. The first process costs what that takes to start, 0.2 s. Later ones take 10
ms.

Windows has no fork and no such limits. The functions run in this very process there, without
protection.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from eval.errors import LikenessError

Array = NDArray[Any]
Answer = tuple[Any, list[Array]]  # what a function returns: a small JSON value, and arrays

_MAX_HEADER = 1 << 22  # bytes of JSON
_MAX_ARRAYS = 64
_MAX_NDIM = 8
_TYPES = {
    np.dtype(name).str: np.dtype(name)
    for name in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?")
}
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from eval.formats.boundary import "
    "_serve; _serve()"
)
_START_SECONDS = 60.0  # enough on a machine that is very busy
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        LikenessError,
        FileNotFoundError,
        IsADirectoryError,
        PermissionError,
        ImportError,
        OSError,
    )
}
# With these settings no numeric library starts threads, which would count against the limits of the
# process. HDF5 loads no plug-ins, and Arrow takes memory as malloc does.
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "HDF5_PLUGIN_PRELOAD": "::",
}


FORKS = hasattr(os, "fork")  # false on Windows


class Ended(ValueError):
    """The process was ended by an earlier question and did not see this one."""


class Limits(NamedTuple):
    """What one answer may cost.

    Attributes:
        seconds: Processor time of all threads together. By the clock it may take ten times that,
            and half a minute.
        memory: Bytes beside those that the process has already.
        answer: Bytes of the arrays that come back.
    """

    seconds: float
    memory: int
    answer: int


class Process:
    """A child process that runs functions of ours on files of others.

    It ends with the object, or with this process.

    Args:
        preload: Packages to import before it starts. They are imported once for all: later
            processes have them too.

    Raises:
        OSError: No process can be started.

    Example:
        >>> limits = Limits(seconds=5.0, memory=1 << 28, answer=1 << 20)
        >>> with Process() as process:
        ...     process.ask(json.loads, "[1, 2", about="list.json", limits=limits)
        Traceback (most recent call last):
        ...
        ValueError: Expecting ',' delimiter: line 1 column 6 (char 5)
    """

    def __init__(self, *preload: str) -> None:
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._close: weakref.finalize[..., Process]
        if not FORKS:
            self._close = weakref.finalize(self, int)
            return
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._starter, self._pid = _start(theirs, preload)
        self._close = weakref.finalize(
            self, _end, self._socket, self._starter, self._pid, self._owner
        )

    @property
    def usable(self) -> bool:
        """Whether it may be asked.

        That is so if it met no limit, and if this very process started it, not the one that this
        was forked from.
        """
        return self._close.alive and self._owner == os.getpid()

    def ask(
        self,
        function: Callable[..., Answer],
        *arguments: Any,
        arrays: Sequence[Array] = (),
        about: object,
        limits: Limits,
    ) -> Answer:
        """Runs function(*arguments, *arrays) in the process.

        Args:
            function: A function of a module, which returns a JSON value and a list of arrays.
            arguments: JSON values.
            arrays: Arrays of numbers, which follow the arguments.
            about: The file, with which every refusal begins.
            limits: What the answer may cost.

        Returns:
            The JSON value and the arrays.

        Raises:
            LikenessError: The function raised it; or the process died or met a limit, and is of no
                further use.
            Ended: It was of no further use before, perhaps because of a question of another thread.
            OSError: The function raised it.
            ImportError: The function raised it.
        """
        if not FORKS:
            return _ask_here(function, [*arguments, *arrays], about)
        request = {
            "call": [function.__module__, function.__qualname__],
            "arguments": arguments,
            "seconds": limits.seconds,
            "memory": limits.memory,
        }
        with self._lock:
            if not self.usable:
                raise Ended(f"{about}: the process that would read it has ended; try again")
            answer, results = self._exchange(request, arrays, about, limits)
        if isinstance(answer, dict) and "value" in answer:
            return answer["value"], results
        raise _refusal(answer if isinstance(answer, dict) else {}, about, limits)

    def _exchange(
        self, request: dict[str, Any], arrays: Sequence[Array], about: object, limits: Limits
    ) -> Answer:
        """Sends a request and receives the answer, within the limits."""
        clock = 30.0 + 10.0 * limits.seconds
        end = time.monotonic() + clock
        try:
            _send(self._socket, request, arrays, end)
            return _receive(self._socket, end, limits.answer)
        except TimeoutError:
            self.close()
            raise LikenessError(
                f"{about}: reading it was stopped after {clock:.0f} s; it is damaged or hostile"
            ) from None
        except _Damaged as error:
            self.close()
            raise LikenessError(
                f"{about}: the answer of the reading process is damaged ({error}); the file is "
                "damaged or hostile"
            ) from None
        except OSError:
            raise LikenessError(
                f"{about}: {self._fate(limits)}; it is damaged or hostile"
            ) from None
        except BaseException:
            self.close()  # the rest of an answer would be taken for the next one
            raise

    def _fate(self, limits: Limits) -> str:
        """Why the process died, as a part of a sentence."""
        code = int(self._close() or 0)
        if code == -signal.SIGXCPU:
            return f"reading it takes more than {limits.seconds:.0f} s of processor time"
        if code < 0:
            return f"its parser crashed (signal {-code})"
        return f"its parser ended (exit code {code})"

    def close(self) -> None:
        """Ends the process."""
        self._close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ask_once(
    function: Callable[..., Answer],
    *arguments: Any,
    preload: Sequence[str] = (),
    about: object,
    limits: Limits,
) -> Answer:
    """Asks a process that is started for this question alone; see `Process.ask`.

    Args:
        function: As for `Process.ask`.
        arguments: As for `Process.ask`.
        preload: As for `Process`.
        about: As for `Process.ask`.
        limits: As for `Process.ask`.

    Returns:
        As `Process.ask`, which also lists what is raised.
    """
    with Process(*preload) as process:
        return process.ask(function, *arguments, about=about, limits=limits)


def _ask_here(function: Callable[..., Answer], arguments: Sequence[Any], about: object) -> Answer:
    """Runs a function in this process, where the system has no fork."""
    try:
        return function(*arguments)
    except tuple(_KINDS.values()):
        raise
    except Exception as error:
        raise LikenessError(
            f"{about}: it cannot be read ({type(error).__name__}: {str(error)[:200]}); it is "
            "damaged or of another kind"
        ) from None


def _refusal(answer: dict[str, Any], about: object, limits: Limits) -> Exception:
    """The exception for what the function raised in the process."""
    kind, text = str(answer.get("error", "")), str(answer.get("text", ""))
    if kind == "MemoryError":
        return LikenessError(
            f"{about}: reading it takes more than {limits.memory >> 20} MiB; it is damaged or "
            "hostile"
        )
    if kind in _KINDS:
        return _KINDS[kind](text)
    return LikenessError(
        f"{about}: it cannot be read ({kind}: {text[:200]}); it is damaged, or of another kind"
    )


class _Starter:
    """A lean Python without threads, of which every Process is a fork.

    The first Process costs what Python and its packages take to start, and later ones 10 ms.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._holder = 0  # the thread that has the lock
        self._left: list[int] = []  # the processes that the next order has to end
        with theirs:
            # The folder of this package comes first, because sys.path lacks it where the package
            # is an editable installation.
            paths = json.dumps(
                [str(Path(__file__).parents[2]), *(os.path.abspath(path) for path in sys.path)]
            )
            # -S saves the time of what site packages run when Python starts. In a session of its
            # own, the child does not get an interrupt by the keyboard, which is for us alone.
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _START, paths],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,
            )

    def order(self, command: str, value: Any, theirs: socket.socket | None = None) -> int:
        """Gives an order and returns its result.

        The order "start" starts a process on the socket `theirs`, after importing the packages of
        `value`. Its result is the number of the process. The order "end" ends the process `value`.
        Its result is the status that wait gives.
        """
        if self._holder == threading.get_ident():
            # The garbage collector ends a process in the middle of another order.
            self._left.append(value)
            return -signal.SIGKILL
        with self._lock:
            self._holder = threading.get_ident()
            try:
                number = self._exchange(command, value, theirs)
                while self._left:
                    self._exchange("end", self._left.pop(), None)
                return number
            except BaseException:
                # What is still under way would be taken for the answer to the next order.
                self.close()
                raise
            finally:
                self._holder = 0

    def _exchange(self, command: str, value: Any, theirs: socket.socket | None) -> int:
        """Sends one order and receives its result."""
        end = time.monotonic() + _START_SECONDS
        _send(self._socket, {"command": command, "value": value}, (), end)
        if theirs is not None:
            socket.send_fds(self._socket, [b"+"], [theirs.fileno()])
        return int(_receive(self._socket, end, 0)[0]["value"])

    def close(self) -> None:
        """Ends the starter."""
        self._socket.close()
        self._child.kill()
        self._child.wait()

    def leave(self) -> None:
        """Gives up the starter in a process that was forked off, to which it does not belong."""
        self._socket.close()


_starter: _Starter | None = None
_starting = threading.Lock()


def _start(theirs: socket.socket, preload: Sequence[str]) -> tuple[_Starter, int]:
    """Starts a process on a socket. Returns the starter and the number of the process."""
    global _starter
    with _starting:
        for attempt in (1, 2):  # a starter that somebody ended is replaced
            starter = _starter = _starter or _Starter()
            try:
                return starter, starter.order("start", list(preload), theirs)
            except (OSError, _Damaged) as error:
                starter.close()
                _starter = None
                if attempt == 2:
                    raise OSError(
                        "no process for reading files of others can be started "
                        f"({type(error).__name__}: {error}); is there memory left?"
                    ) from None
    raise AssertionError


def _forked() -> None:
    """Gives up the starter after a fork of this process."""
    global _starter, _starting
    if _starter:
        _starter.leave()
    _starter, _starting = None, threading.Lock()


if FORKS:
    os.register_at_fork(after_in_child=_forked)


def _end(ours: socket.socket, starter: _Starter, pid: int, owner: int) -> int:
    """Ends a process and returns its exit code as subprocess does: minus the number of a signal."""
    ours.close()
    if os.getpid() != owner:
        return 0  # a process that was forked off closes its copy of the socket, and no more
    try:
        return os.waitstatus_to_exitcode(starter.order("end", pid))
    except (OSError, _Damaged):
        return 0  # the starter has gone; its processes end when they see that our side is closed


class _Damaged(Exception):
    """Bytes that are not a message."""


def _send(
    to: socket.socket, header: dict[str, Any], arrays: Sequence[Array], end: float | None = None
) -> None:
    """Sends a header and its arrays."""
    whole = [np.asarray(array, array.dtype.newbyteorder("="), order="C") for array in arrays]
    text = json.dumps(
        {**header, "arrays": [[array.dtype.str, list(array.shape)] for array in whole]}
    ).encode()
    parts: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    parts += [array.reshape(-1).view(np.uint8).data for array in whole if array.size]
    for part in parts:
        to.settimeout(None if end is None else max(0.001, end - time.monotonic()))
        to.sendall(part)


def _receive(where: socket.socket, end: float | None = None, limit: int | None = None) -> Answer:
    """Receives a header and its arrays.

    Raises _Damaged for what no sender of ours sends, before memory is taken for it.
    """
    size = int.from_bytes(_exactly(where, 8, end), "little")
    if size > _MAX_HEADER:
        raise _Damaged(f"a header of {size} bytes")
    try:
        header = json.loads(_exactly(where, size, end))
        stated = [(_TYPES[name], tuple(map(int, shape))) for name, shape in header.pop("arrays")]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _Damaged(f"a header that cannot be read: {type(error).__name__}") from None
    total = sum(dtype.itemsize * math.prod(shape) for dtype, shape in stated)
    if len(stated) > _MAX_ARRAYS or any(
        len(shape) > _MAX_NDIM or min(shape, default=0) < 0 for _, shape in stated
    ):
        raise _Damaged("arrays of impossible shapes")
    if limit is not None and total > limit:
        raise _Damaged(f"{total} bytes, where at most {limit} are allowed")
    arrays = []
    for dtype, shape in stated:
        array: Array = np.empty(shape, dtype)
        _fill(where, array.reshape(-1).view(np.uint8).data if array.size else memoryview(b""), end)
        arrays.append(array)
    return header, arrays


def _exactly(where: socket.socket, size: int, end: float | None) -> bytes:
    """Reads exactly `size` bytes."""
    content = bytearray(size)
    _fill(where, memoryview(content), end)
    return bytes(content)


def _fill(where: socket.socket, view: memoryview, end: float | None) -> None:
    """Reads until a view is full.

    Raises ConnectionError where the other side has gone, and TimeoutError at the end of its time.
    """
    while len(view):
        where.settimeout(None if end is None else max(0.001, end - time.monotonic()))
        count = where.recv_into(view)
        if not count:
            raise ConnectionError("the other process has ended")
        view = view[count:]


def _serve() -> None:
    """Runs the starter: forks until the parent closes its end, then ends what it has started."""
    import resource

    where = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    running: set[int] = set()
    while True:
        try:
            order = _receive(where)[0]
            if order["command"] == "end":
                # A reader that has ended by itself keeps its status. Any other is ended here.
                pid = int(order["value"])
                status = 0
                if pid in running:
                    os.kill(pid, signal.SIGKILL)
                    running.discard(pid)
                    status = os.waitpid(pid, 0)[1]
            else:
                descriptor = socket.recv_fds(where, 1, 1)[1][0]
                for name in order["value"]:
                    with suppress(ImportError):  # the reader itself reports that it is missing
                        importlib.import_module(name)
                status = os.fork()
                if not status:
                    where.close()
                    _answer(socket.socket(fileno=descriptor))
                os.close(descriptor)
                running.add(status)
            _send(where, {"value": status}, ())
        except ConnectionError:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return


def _answer(where: socket.socket) -> NoReturn:
    """Runs a process: answers until the parent closes its end."""
    try:
        while True:
            request, arrays = _receive(where)
            try:
                function: Any = importlib.import_module(request["call"][0])
                for name in request["call"][1].split("."):
                    function = getattr(function, name)
                _limit(request["seconds"], request["memory"])
                value, results = function(*request["arguments"], *arrays)
                answer = {"value": value}
            except MemoryError:
                answer, results = {"error": "MemoryError", "text": ""}, []
            except BaseException as error:  # a panic of Rust is not an Exception
                names = [kind.__name__ for kind in type(error).__mro__]
                known = next((name for name in names if name in _KINDS), names[0])
                answer, results = {"error": known, "text": str(error)[:4000]}, []
            _limit(None, None)
            _send(where, answer, results)
    except ConnectionError:
        pass
    finally:
        os._exit(0)


def _limit(seconds: float | None, memory: int | None) -> None:
    """Allows so much processor time and memory beyond what is used so far, or without limit."""
    import resource

    cpu, data = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    if seconds is not None and memory is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = math.ceil(used.ru_utime + used.ru_stime + seconds)
        data = _private_bytes() + memory
    for which, soft in ((resource.RLIMIT_CPU, cpu), (resource.RLIMIT_DATA, data)):
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            soft = hard if soft == resource.RLIM_INFINITY else min(soft, hard)
        resource.setrlimit(which, (soft, hard))


def _private_bytes() -> int:
    """The bytes that count for RLIMIT_DATA: memory that is private and writable."""
    import resource

    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[5]) * resource.getpagesize()
    except OSError:  # other systems than Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
