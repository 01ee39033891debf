"""How commands of long work end at Ctrl-C and at SIGTERM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from toolkit.console import say


@contextmanager
def stoppable(sentence: str = "") -> Iterator[None]:
    """Ctrl-C in training ends the command with exit code 130 and one sentence on stderr.

    Args:
        sentence: What is printed; by default what the run says of itself.
    """
    from toolkit.console import Interrupted

    try:
        yield
    except Interrupted as stopped:
        say(sentence or str(stopped), error=True)
        raise typer.Exit(130) from None


@contextmanager
def ending_at_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM ends the command as an exception does, with exit code 143.

    A machine that is taken away says so by SIGTERM a while before. What the work holds is then
    given back.
    """

    def end(number: int, frame: FrameType | None) -> None:
        say("stopped by SIGTERM", error=True)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
