"""Stderr as a terminal or a log: texts, bars below them, and Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from eval.progress import Report
from toolkit.printing import is_terminal, one_line, say, visible


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
        if not all(isinstance(value, str) for value in objects):
            # A bar, drawn by rich itself; or what was written to stdout beside one, which comes as
            # Text and is to be copied as it is.
            if any(isinstance(value, Text) for value in objects):
                options["soft_wrap"] = True
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


class Bars:
    """A bar for each step of long work, below what is printed. They vanish when their steps end."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def draw(self, steps: Sequence[tuple[Report, str]]) -> None:
        """Draw the bars of these steps, each with its report and its text, and no others."""
        if self._progress is None:
            self._progress = _new_progress()
            self._progress.start()
        for what in self._tasks.keys() - {reached.what for reached, _ in steps}:
            self._progress.remove_task(self._tasks.pop(what))
        for reached, text in steps:
            state: Any = {
                "total": reached.total,
                "completed": reached.done,
                "text": _plain(text),
            }
            if reached.what in self._tasks:
                self._progress.update(self._tasks[reached.what], **state)
            else:
                name = _plain(reached.what)
                self._tasks[reached.what] = self._progress.add_task(name, **state)
        self._progress.refresh()

    def remove(self, what: str) -> None:
        """Remove the bar of a step, if there is one."""
        if self._progress is not None and what in self._tasks:
            self._progress.remove_task(self._tasks.pop(what))
            if not self._tasks:
                self.clear()

    def clear(self) -> None:
        """Remove all bars."""
        progress, self._progress = self._progress, None
        self._tasks.clear()
        if progress is not None:
            for task in progress.task_ids:
                progress.remove_task(task)
            progress.stop()


def _new_progress() -> Progress:
    """Bars of rich that nothing but `draw` moves."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[text]}", markup=False),
        console=console,
        transient=True,
        auto_refresh=False,
        # what goes into a file must not be printed above a bar instead
        redirect_stdout=is_terminal(sys.stdout),
    )


def _plain(text: str) -> str:
    """A text that may hold the name of a file, as a bar can show it."""
    return visible(one_line(text))


class Interrupted(Exception):
    """Ctrl-C: the state was saved at `step`."""


def leave_signals_to_parent(_: int = 0) -> None:
    """A reading process goes on at Ctrl-C and SIGTERM, which reach all processes of a group.

    The process that started it saves its work, and then ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


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
