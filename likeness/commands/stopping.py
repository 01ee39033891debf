"""How commands of long work end at Ctrl-C and at SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from toolkit.printing import say


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
