"""How far long work is, for whoever shows it.

Nothing is shown here. Work reports what it does, and whoever listens may draw a bar. A listener
that raises, as Ctrl-C does, ends the work, and files that are being written stay as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def reported_to(listener: Listener) -> Iterator[None]:
    """Lets a function hear how far the work of the block is.

    Args:
        listener: Called as listener(what, done, total), many times for each step of the work; the
            last time done is total.

    Example:
        >>> with reported_to(lambda what, done, total: print(what, done, "of", total)):
        ...     report("scoring", 3, 10)
        scoring 3 of 10
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(what: str, done: int, total: int) -> None:
    """Says how far a step of the work is.

    Args:
        what: The step, such as "scoring".
        done: How much of it is done.
        total: How much there is.
    """
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)
