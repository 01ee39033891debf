"""The one place that prints: text goes out as it is, whatever the width, the encoding or the
reader.

Control characters are written as their escapes: the names of files are the work of others, and must
not clear a screen, change its colours or turn a line around. Nothing here wraps or cuts a line.
`toolkit.showing` adds progress bars where the output is a terminal. tests/test_prints.py finds what
prints elsewhere.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import argparse

_UNLIMITED = 100_000  # columns: more than any line of help holds

# line ends, and marks that turn the order of what follows
_TURNING = (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {
    code: ascii(chr(code))[1:-1]
    for code in (*range(32), *range(127, 160), *_TURNING)
    if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    """The text with its control characters as escapes; line ends and tabs stay.

    >>> visible("a\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return text if text.isprintable() else text.translate(_ESCAPES)


def one_line(text: str) -> str:
    """The text, in which the name of a file may hold a line end, on one line.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    return text.replace("\n", "\\n")


def say(text: str, *, error: bool = False) -> None:
    """Print `text` and a line end, unwrapped and uncut, to stdout, or with error=True to stderr.

    A control character, or one that the stream cannot encode, is written as its escape. A reader
    that has gone (`likeness evaluate ... | head`) ends the printing, not the work: whatever is
    still to be written to files is written.
    """
    stream = sys.stderr if error else sys.stdout
    text = visible(text)
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
    except OSError:
        # a full disk: without this Python's flush at the end would fail again, with a text of its
        # own
        silence(stream)
        raise


def warn(sentence: str) -> None:
    """Print a warning to stderr, on one line."""
    say(one_line(f"warning: {sentence}"), error=True)


def silence(stream: TextIO) -> None:
    """Lead a stream whose reader has gone to nowhere, so that neither later prints nor Python's
    flush at the end fail.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person's terminal shows the stream.

    FORCE_COLOR and the like, which CI sets for logs, make no terminal of a file.
    """
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def help_columns() -> int | None:
    """The width that help and usage are laid out to: None, the terminal's, or without a terminal so
    many columns that nothing is wrapped or cut.
    """
    return None if is_terminal(sys.stdout) and is_terminal(sys.stderr) else _UNLIMITED


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """An argparse parser for a recipe that runs as a script; its help keeps the description's lines
    and is laid out by help_columns().
    """
    import argparse

    return argparse.ArgumentParser(
        description=description,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, width=help_columns()
        ),
    )
