"""The one place that prints: texts, and how far long work is.

Text goes out as it is, whatever the width, the encoding or the reader: nothing is wrapped or cut.
Control characters are written as their escapes: the names of files are the work of others, and must
not clear a screen, change its colours or turn a line around.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from likeness.eval.progress import Report, current_listener, reported_to

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

    A control character, or one that the stream cannot encode, is written as its escape. On a
    terminal it takes the place of the line that says how far the work is. A reader that has gone
    (`likeness evaluate ... | head`) ends the printing, not the work: whatever is still to be
    written to files is written.
    """
    stream = sys.stderr if error else sys.stdout
    text = visible(text)
    if stream is None:  # pythonw on Windows has no streams
        return
    if _lines and is_terminal(stream):
        text = f"{_lines.pop()}{text}"
    try:
        try:
            stream.write(f"{text}\n")
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            stream.write(f"{text.encode(encoding, 'backslashreplace').decode(encoding)}\n")
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError as full:
        if full.errno == errno.EIO and stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
            silence(stream)  # the terminal was closed
            return
        # Without this Python's flush at the end would fail again, with a text of its own.
        silence(stream)
        raise OSError(full.errno, full.strerror, stream.name) from None


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


def help_columns() -> int:
    """The width that help and usage are laid out to: at most the terminal's, and at most 80.

    Without a terminal it is so wide that nothing is wrapped or cut.
    """
    is_read_here = is_terminal(sys.stdout) and is_terminal(sys.stderr)
    return min(shutil.get_terminal_size().columns, 80) - 2 if is_read_here else _UNLIMITED


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


SWITCH = "LIKENESS_PROGRESS"  # of the environment: 0 shows nothing
_SHOWN_AFTER = 3.0  # seconds of a step
_LINE_EVERY = 10.0  # seconds; on a terminal
_DRAWN_EVERY = 0.1
_CLEAR = "\r\x1b[2K"  # what clears a line of a terminal
_lines: list[str] = []  # what clears the line on the terminal that is drawn now, if there is one


@contextmanager
def shown(show: bool = True) -> Iterator[None]:
    """Show how far the work of the block is, if nobody else does so already.

    It is shown on stderr: as a line that changes on a terminal, and as lines elsewhere, such as in
    a log. Only the first of several processes shows anything (RANK of torchrun), and none does
    where the environment has LIKENESS_PROGRESS=0.

    Args:
        show: False shows nothing new.

    Example:
        >>> from likeness.eval.progress import track
        >>> with shown():
        ...     squares = [value**2 for value in track(range(3), "squaring")]
    """
    is_quiet = os.environ.get(SWITCH) == "0" or os.environ.get("RANK", "0") != "0"
    if not show or is_quiet or current_listener() is not None:
        yield
        return
    draws = is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")
    try:
        with reported_to(Steps(draws=draws)):
            yield
    finally:
        _clear()


class Steps:
    """Shows the steps of which it hears that take longer than three seconds.

    In a log a step has a line after three seconds, one every ten seconds, and one at its end. On a
    terminal there is one line, of the step that reported last, which vanishes with it. It is
    written when the work reports, so no thread is needed, and no process is forked while one draws.

    Args:
        clock: Gives the time in seconds.
        draws: Whether a line of a terminal is drawn.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, draws: bool = False) -> None:
        self._clock, self._draws = clock, draws
        self._began: dict[str, tuple[float, int]] = {}  # when, and how much was done then
        self._wrote: dict[str, float] = {}  # when a step was shown last
        self._process = os.getpid()

    def __call__(self, reached: Report) -> None:
        """Take a report."""
        if os.getpid() != self._process:  # this process was forked from the one that shows
            return
        now, what = self._clock(), reached.what
        began, first = self._began.setdefault(what, (now, reached.done))
        if reached.is_end:
            del self._began[what]
            self._wrote.pop(what, None)
            if self._draws:
                _clear()
            elif now - began >= _SHOWN_AFTER:
                done = reached.done - first
                amount = f"{_amount(done, reached.unit)} in " if done > 0 else ""
                _write(f"{what}: {amount}{duration(now - began)}")
            return
        # On a terminal, a short step within a long one is shown too.
        since = min(began for began, _ in self._began.values()) if self._draws else began
        every = _DRAWN_EVERY if self._draws else _LINE_EVERY
        wrote = self._wrote.get(what)
        if now - (since if wrote is None else wrote) >= (_SHOWN_AFTER if wrote is None else every):
            self._wrote[what] = now
            line = f"{what}: {_text(reached, first, now - began)}"
            if self._draws:
                _draw(line)
            else:
                _write(line)


def _draw(line: str) -> None:
    """Draw a line on the terminal, in place of the one before; the last column stays free."""
    line = visible(one_line(line))[: shutil.get_terminal_size().columns - 1]
    sys.stderr.write(f"{_CLEAR}{line}")
    sys.stderr.flush()
    _lines[:] = [_CLEAR]


def _clear() -> None:
    """Remove the line from the terminal."""
    if _lines:
        sys.stderr.write(_lines.pop())
        sys.stderr.flush()


def _text(reached: Report, first: int, spent: float) -> str:
    """How far a step is: "1,200 of 12,000, 3 min 20 s left"."""
    done, total = reached.done, reached.total
    parts = [reached.note] if reached.note else []
    if total is not None:
        begin = f"{done / 1e6:,.0f}" if reached.unit == "bytes" else f"{done:,}"
        parts.insert(0, f"{begin} of {_amount(total, reached.unit)}")
    elif done:
        parts.insert(0, _amount(done, reached.unit))
    if total is not None and done > first:
        left = spent * (total - done) / (done - first)
        return ", ".join([*parts, f"{duration(left)} left"])
    return ", ".join([*parts, f"{duration(spent)} so far"])


def _amount(number: int, unit: str) -> str:
    """A number with what it counts.

    >>> _amount(1200, "steps"), _amount(2_500_000, "bytes")
    ('1,200 steps', '2 MB')
    """
    if unit == "bytes":
        return f"{number / 1e6:,.0f} MB"
    return f"{number:,} {unit}".rstrip()


def duration(seconds: float) -> str:
    """A length of time in the two units that say enough.

    >>> duration(3.4), duration(200), duration(7500)
    ('3 s', '3 min 20 s', '2 h 5 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def _write(line: str) -> None:
    say(one_line(line), error=True)
