"""The one place that prints: text goes out as it is, whatever the width, the encoding or the reader.

Nothing here wraps or cuts a line. `toolkit.console` adds progress bars where the output is a terminal. tests/test_prints.py finds what prints elsewhere.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import argparse

_UNLIMITED = 100_000  # columns: more than any line of help holds


def say(text: str, *, error: bool = False) -> None:
    """Print `text` and a line end, unwrapped and uncut, to stdout, or with error=True to stderr.

    A character that the stream cannot encode is written as its escape. A reader that has gone (`likeness evaluate ... | head`) ends the printing,
    not the work: whatever is still to be written to files is written.
    """
    stream = sys.stderr if error else sys.stdout
    if stream is None:  # pythonw on Windows has no streams
        return
    try:
        try:
            stream.write(f"{text}\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(f"{text.encode(encoding, 'backslashreplace').decode(encoding)}\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError:  # a full disk: without this Python's flush at the end would fail again, with a text of its own
        silence(stream)
        raise


def silence(stream: TextIO) -> None:
    """Lead a stream whose reader has gone to nowhere, so that neither later prints nor Python's flush at the end fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person's terminal shows the stream. FORCE_COLOR and the like, which CI sets for logs, make no terminal of a file."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def help_columns() -> int | None:
    """The width that help and usage are laid out to: None, the terminal's, or without a terminal so many columns that nothing is wrapped or cut."""
    return None if is_terminal(sys.stdout) and is_terminal(sys.stderr) else _UNLIMITED


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """An argparse parser for a recipe that runs as a script; its help keeps the description's lines and is laid out by help_columns()."""
    import argparse

    return argparse.ArgumentParser(description=description, formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=help_columns()))
