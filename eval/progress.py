"""How far long work is, for whoever shows it.

Nothing is shown here. Work reports what it does, and whoever listens may draw a bar
(likeness.toolkit.console does). A listener that raises, as Ctrl-C does, ends the work, and files
that are being written stay as they were.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """How far a step of the work is.

    Attributes:
        what: The step, such as "scoring".
        done: How much of it is done.
        total: How much there is; None where nobody knows yet. The step ends when this is `done`.
        unit: What is counted, such as "steps"; "bytes" are shown as megabytes.
        note: What else is worth saying, such as a loss.
    """

    what: str
    done: int
    total: int | None
    unit: str = ""
    note: str = ""

    @property
    def is_end(self) -> bool:
        """Whether the step ends with this report."""
        return self.done == self.total


Listener = Callable[[Report], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def reported_to(listener: Listener | None) -> Iterator[None]:
    """Lets a function hear how far the work of the block is.

    Args:
        listener: Called with many reports of each step of the work, of which the last one is its
            end. None: nobody hears.

    Example:
        >>> with reported_to(lambda report: print(report.what, report.done, "of", report.total)):
        ...     report("scoring", 3, 10)
        scoring 3 of 10
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def current_listener() -> Listener | None:
    """Returns who hears of the work that is done now, or None."""
    return _listener.get()


def report(what: str, done: int, total: int | None, *, unit: str = "", note: str = "") -> None:
    """Says how far a step of the work is.

    The first report begins the step, so it should come before the work, with done = 0.

    Args:
        what: The step, such as "scoring".
        done: How much of it is done; numpy's numbers, too, are handed on as Python's.
        total: How much there is; None where nobody knows yet.
        unit: What is counted, such as "steps"; "bytes" are shown as megabytes.
        note: What else is worth saying, such as a loss.
    """
    listener = _listener.get()
    if listener is not None:
        listener(Report(what, int(done), None if total is None else int(total), unit, note))


@contextmanager
def as_part(before: int, total: int) -> Iterator[None]:
    """Reports the step of the block as a part of a longer one.

    Args:
        before: How much of the longer step was done before.
        total: How much there is of it.

    Example:
        >>> with reported_to(lambda report: print(report.done, "of", report.total)):
        ...     with as_part(8, 12):
        ...         report("embedding", 4, 4)
        12 of 12
    """
    listener = _listener.get()
    if listener is None:
        yield
        return
    tell = listener
    with reported_to(lambda part: tell(replace(part, done=before + part.done, total=total))):
        yield


@contextmanager
def step(what: str) -> Iterator[None]:
    """Reports the block as a step of which nobody knows how far it is, such as loading a network.

    Example:
        >>> with reported_to(lambda report: print(report.what, report.is_end)):
        ...     with step("loading the network"):
        ...         pass
        loading the network False
        loading the network True
    """
    report(what, 0, None)
    try:
        yield
    finally:
        report(what, 0, 0)


def track(
    values: Iterable[T], what: str, *, total: int | None = None, unit: str = ""
) -> Iterator[T]:
    """Yields the values, and reports after each of them how many were worked on.

    The step ends with the last value, or where the loop over the values is left.

    Args:
        values: What is gone through.
        what: The step, such as "embedding".
        total: How many values there are; by default their length, where they have one.
        unit: What the values are, such as "folders".

    Example:
        >>> with reported_to(lambda report: print(report.done, "of", report.total)):
        ...     sum(track([4, 5], "adding"))
        0 of 2
        1 of 2
        2 of 2
        9
    """
    if total is None and isinstance(values, Sized):
        total = len(values)
    done = 0
    report(what, done, total, unit=unit)
    try:
        for value in values:
            yield value
            done += 1
            report(what, done, total, unit=unit)
    finally:
        if done != total:
            report(what, done, done, unit=unit)
