"""Processes that read items beside this one, for models that run in torch and for those that do
not.
"""

import multiprocessing
import pickle
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from likeness.eval.errors import LikenessError
from likeness.toolkit.signals import leave_signals_to_parent

T = TypeVar("T")
KILLED = (
    "a process that reads items was killed, probably because memory ran out; take fewer {}, or "
    "smaller batches"
)


def read_beside(share: Callable[[int, int], Iterator[T]], workers: int) -> Generator[T]:
    """Yield what several processes yield, one value of each in turn.

    A process reads its next value while the last one waits to be taken, and no further. All of them
    have ended when the iterator is exhausted or closed.

    Args:
        share: share(number, workers) yields the values of process `number`, which counts from 0. It
            and the values can be pickled.
        workers: The number of processes, at least 1.

    Raises:
        Exception: What `share` raised in a process; a note has its traceback there.
        LikenessError: A process was killed.
    """
    running = []
    try:
        for number in range(workers):
            receiver, sender = multiprocessing.Pipe(duplex=False)
            arguments = (share, number, workers, sender)
            process = multiprocessing.Process(target=_work, args=arguments, daemon=True)
            process.start()
            sender.close()  # so that the end of the process is the end of the pipe
            running.append((process, receiver))
        active = list(running)
        while active:
            for process, receiver in list(active):
                try:
                    message = receiver.recv()
                except EOFError:
                    raise LikenessError(KILLED.format("--workers")) from None
                if isinstance(message, Exception):
                    raise message
                if message:
                    yield message[0]
                else:
                    process.join()
                    active.remove((process, receiver))
    finally:
        for process, receiver in running:
            process.kill()  # it leaves SIGTERM to this process
            process.join()
            receiver.close()


def _work(
    share: Callable[[int, int], Iterator[Any]], number: int, workers: int, sender: Any
) -> None:
    """Send (value,) for every value, then (); or the exception."""
    leave_signals_to_parent()
    if "torch" in sys.modules:  # the threads of a forked torch hang, and others want the cores
        sys.modules["torch"].set_num_threads(1)
    with suppress(BrokenPipeError):  # nobody takes the values any more
        try:
            for value in share(number, workers):
                sender.send((value,))
            sender.send(())
        except Exception as error:
            text = f"In a process that reads items:\n{traceback.format_exc()}"
            error.add_note(text)
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:  # a type that is not known there, or takes other arguments
                error = RuntimeError(text)
            sender.send(error)
