"""What a run shows and hears: its progress, and Ctrl-C."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn

from toolkit.printing import is_terminal, one_line, say, visible

T = TypeVar("T")


class _Stderr(Console):
    """Stderr, with progress bars where it is a terminal.

    Text is printed as it is: never wrapped, cut or read as markup.
    """

    @property
    def is_terminal(self) -> bool:
        """Whether stderr itself is one: rich alone would take FORCE_COLOR's word for it, and cut a
        bar's lines in a log.
        """
        return is_terminal(cast(TextIO, self.file))

    def print(self, *objects: Any, **options: Any) -> None:
        """Print texts with a line end. Beside a running progress bar they go above it."""
        if not all(isinstance(value, str) for value in objects):  # a bar, drawn by rich itself
            super().print(*objects, **options)
        elif self.is_terminal:
            super().print(
                *map(visible, objects), soft_wrap=True, markup=False, highlight=False, emoji=False
            )
        else:
            say(" ".join(objects), error=True)

    def print_line(self, text: str) -> None:
        """Print a text in which the name of a file may hold a line end, on one line."""
        self.print(one_line(text))


# names of files may hold [..] and :..:, which rich reads as its own
console = _Stderr(stderr=True, markup=False, highlight=False, emoji=False)


def bar(*columns: str | ProgressColumn, show: bool = True, transient: bool = True) -> Progress:
    """A progress bar on stderr, which shows nothing where stderr is no terminal. columns: rich's,
    by default its own choice.
    """
    return Progress(
        *columns, console=console, transient=transient, disable=not (show and console.is_terminal)
    )


def track(values: Sequence[T], what: str, *, show: bool = True) -> Iterator[T]:
    """Go through `values` beside a progress bar named `what`; see bar()."""
    with bar(show=show) as progress:
        yield from progress.track(values, description=what)


class Interrupted(Exception):
    """Ctrl-C: the state was saved at `step`."""


class Bar:
    """Progress with loss, rate and time left; one line per tenth of the run where the output is no
    terminal.
    """

    def __init__(self, steps: int, start: int, *, quiet: bool = False):
        self.steps, self.quiet = steps, quiet
        columns = (
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}  lr {task.fields[rate]:.2e}"),
        )
        self.progress = bar(*columns, TimeRemainingColumn(), show=not quiet, transient=False)
        self.task = self.progress.add_task(
            "train", total=steps, completed=start, loss=math.nan, rate=0.0
        )

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def show(self, done: int, loss: float, rate: float) -> None:
        self.progress.update(self.task, completed=done, loss=loss, rate=rate)
        if not console.is_terminal and (done % max(1, self.steps // 10) == 0 or done == self.steps):
            self.note(f"step {done}/{self.steps}  loss {loss:.4f}  lr {rate:.2e}")

    def note(self, text: str) -> None:
        if not self.quiet:
            self.progress.console.print(text)


def ignore_ctrl_c(_: int) -> None:
    """A reading process leaves Ctrl-C to the main one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM only sets a flag, so that the step ends and is saved; the second
    interrupts at once (the last checkpoint stays whole).
    """
    asked = False

    def ask(number: int, _: object) -> None:
        nonlocal asked
        asked = True
        what = (
            "Ctrl-C"
            if number == signal.SIGINT
            else "SIGTERM (another process of the run ended, or the machine is wanted)"
        )
        console.print(f"{what}: finishing this step and saving; press Ctrl-C again to stop at once")
        for again in (signal.SIGINT, signal.SIGTERM):
            signal.signal(again, signal.default_int_handler)

    before = []
    try:
        before = [
            (number, signal.signal(number, ask)) for number in (signal.SIGINT, signal.SIGTERM)
        ]
    except ValueError:  # not in the main thread: somebody else owns the signals
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        for number, handler in before:
            signal.signal(number, handler)
