"""Shows how far long work is: bars where stderr is a terminal, and lines elsewhere.

What is shown is what work reports (eval.progress). A step that ends within two seconds shows
nothing. On a terminal a longer one has a bar. Elsewhere, such as in a log, it has a first line
after two seconds, then one every ten seconds, and one when it ends. Nothing is ever written to
stdout.

A thread looks at the clock, so that a step shows itself too if its first item takes long.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eval.progress import Report, current_listener, report, reported_to
from toolkit.printing import is_terminal, one_line, say

if TYPE_CHECKING:
    from toolkit.console import Bars

SWITCH = "LIKENESS_PROGRESS"  # of the environment: 0 shows nothing
_SHOWN_AFTER = 2.0  # seconds of a step
_LINE_EVERY = 10.0  # seconds
_LOOKED_AT_EVERY = 0.5  # seconds

# The thread writes under this lock alone. Who forks takes it, so that no process begins with a
# stream or a bar that the thread was about to let go of.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


@contextmanager
def shown(show: bool = True, *, whole: str = "") -> Iterator[None]:
    """Shows how far the work of the block is, if nobody else in this process does so already.

    Only the first of several processes shows anything (RANK of torchrun), and none does where the
    environment has LIKENESS_PROGRESS=0.

    Args:
        show: False shows nothing new.
        whole: What the whole block is called, which is shown while it reports no step.

    Example:
        >>> from eval.progress import tracked
        >>> with shown():
        ...     squares = [value**2 for value in tracked(range(3), "squaring")]
    """
    before = current_listener()
    is_heard = before is not None and not (isinstance(before, Steps) and before.is_of_parent)
    if not show or is_heard or os.environ.get(SWITCH) == "0" or os.environ.get("RANK", "0") != "0":
        yield
        return
    has_bars = is_terminal(sys.stderr) and os.environ.get("TERM") not in ("dumb", "unknown")
    steps = Steps(bars=_bars if has_bars else None)
    with steps.looked_at(), reported_to(steps):
        if whole:
            report(whole, 0, None)
        yield


@contextmanager
def hidden() -> Iterator[None]:
    """Shows nothing of the work of the block, and no step that began before it."""
    listener = current_listener()
    with ExitStack() as stack:
        if isinstance(listener, Steps):
            stack.enter_context(listener.hidden())
        stack.enter_context(reported_to(None))
        yield


@dataclass
class _Step:
    """A step that has begun and not ended.

    Attributes:
        report: How far it is.
        began: The time of its first report.
        first: How much was done then, as in a run that is resumed.
        is_shown: Whether it has been shown.
    """

    report: Report
    began: float
    first: int
    is_shown: bool = False


class Steps:
    """The listener that shows: steps that have begun, of which those that take long are shown.

    Args:
        clock: Gives the time in seconds.
        write: Takes a line.
        bars: Makes what draws bars, which are then drawn instead of lines. It is called when the
            first step is to be shown.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] | None = None,
        bars: Callable[[], Bars] | None = None,
    ):
        self._clock, self._write, self._new_bars = clock, write or _write, bars
        self._bars: Bars | None = None
        self._steps: dict[str, _Step] = {}  # the outermost first
        self._wrote = clock()  # when the last line was written
        self._process, self._is_hidden = os.getpid(), False

    @property
    def is_of_parent(self) -> bool:
        """Whether this listens in another process, from which this one was forked."""
        return os.getpid() != self._process

    def __call__(self, reached: Report) -> None:
        """Takes a report."""
        if self.is_of_parent:
            return
        with _lock:
            step = self._steps.get(reached.what)
            if not reached.is_end:
                if step is None:
                    self._steps[reached.what] = _Step(reached, self._clock(), reached.done)
                else:
                    step.report = reached
            elif step is not None:
                del self._steps[reached.what]
                if step.is_shown and not self._is_hidden:
                    step.report = reached
                    self._end(step)

    def look(self) -> None:
        """Shows what is to be shown at this time."""
        with _lock:
            now = self._clock()
            old = [step for step in self._steps.values() if now - step.began >= _SHOWN_AFTER]
            if self._is_hidden or not old:
                return
            innermost = old[-1]
            if self._new_bars is not None:
                self._bars = self._bars or self._new_bars()
                drawn = [step for step in old if step is innermost or step.report.total is not None]
                for step in drawn:
                    step.is_shown = True
                self._bars.draw([(step.report, _text(step, now)) for step in drawn])
            elif now - self._wrote >= (_LINE_EVERY if innermost.is_shown else _SHOWN_AFTER):
                innermost.is_shown, self._wrote = True, now
                self._write(f"{innermost.report.what}: {_text(innermost, now)}")

    def _end(self, step: _Step) -> None:
        """Ends what was shown of a step."""
        now = self._clock()
        if self._bars is not None:
            self._bars.remove(step.report.what)
        else:
            self._wrote = now
            spent = duration(now - step.began)
            done = step.report.done - step.first
            text = f"{_amount(done, step.report.unit)} in {spent}" if done else spent
            self._write(f"{step.report.what}: {text}")

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """A thread looks at the clock within the block."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(_LOOKED_AT_EVERY):
                try:
                    self.look()
                except OSError:  # a full disk: the work goes on, and says so where it matters
                    return

        thread = threading.Thread(target=look, daemon=True, name="likeness-progress")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            with _lock:  # the thread writes nothing after this
                self._is_hidden = True
                if self._bars is not None and not self.is_of_parent:
                    self._bars.clear()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Nothing is shown within the block."""
        with _lock:
            self._is_hidden = True
            if self._bars is not None:
                self._bars.clear()
        try:
            yield
        finally:
            with _lock:
                self._is_hidden = False


def _text(step: _Step, now: float) -> str:
    """How far a step is: "1,200 of 12,000, 3 min 20 s left"."""
    reached, spent = step.report, now - step.began
    done, total = reached.done, reached.total
    parts = []
    if total is not None:
        begin = f"{done / 1e6:,.0f}" if reached.unit == "bytes" else f"{done:,}"
        parts = [f"{begin} of {_amount(total, reached.unit)}"]
    elif done:
        parts = [_amount(done, reached.unit)]
    parts += [reached.note] if reached.note else []
    if total is not None and done > step.first:
        left = spent * (total - done) / (done - step.first)
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


def _bars() -> Bars:
    from toolkit.console import Bars  # slow to import, needed for long work only

    return Bars()


def _write(line: str) -> None:
    say(one_line(line), error=True)
