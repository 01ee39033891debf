"""Long work is shown: lines in a log at their times, bars on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import threading

import pytest

from eval.progress import Report, report, reported_to, step, tracked
from toolkit import console
from toolkit.showing import Steps, hidden, shown


class Log:
    """Steps in a log, whose time is moved by hand."""

    def __init__(self) -> None:
        self.now, self.lines = 0.0, list[str]()
        self.steps = Steps(clock=lambda: self.now, write=self.lines.append)

    def wait(self, seconds: int) -> list[str]:
        """The lines that are written while time passes."""
        before = len(self.lines)
        for _ in range(2 * seconds):
            self.now += 0.5
            self.steps.look()
        return self.lines[before:]


def test_a_log_gets_a_line_after_two_seconds_one_every_ten_and_one_at_the_end() -> None:
    log = Log()
    log.steps(Report("embedding", 0, 12_000))
    assert log.wait(1) == []
    assert log.wait(1) == ["embedding: 0 of 12,000, 2 s so far"]
    log.steps(Report("embedding", 1_200, 12_000))
    assert log.wait(9) == []
    assert log.wait(1) == ["embedding: 1,200 of 12,000, 1 min 48 s left"]  # 12 s for a tenth
    assert len(log.wait(100)) == 10
    log.steps(Report("embedding", 12_000, 12_000))
    assert log.lines[12:] == ["embedding: 12,000 in 1 min 52 s"]
    assert log.wait(30) == []


def test_a_step_of_less_than_two_seconds_shows_nothing() -> None:
    log = Log()
    for _ in range(10):
        log.steps(Report("reading", 0, 5))
        log.wait(1)
        log.steps(Report("reading", 5, 5))
    assert log.lines == []


def test_the_time_left_is_that_of_what_this_run_did() -> None:
    log = Log()
    log.steps(Report("training", 900, 1_000, "steps"))
    log.now = 10.0
    log.steps(Report("training", 950, 1_000, "steps", "loss 0.5000"))
    log.steps.look()
    assert log.lines == ["training: 950 of 1,000 steps, loss 0.5000, 10 s left"]


def test_bytes_are_megabytes_and_what_nobody_can_count_has_its_time() -> None:
    log = Log()
    log.steps(Report("fetching a", 2_000_000, None, "bytes"))
    assert log.wait(2) == ["fetching a: 2 MB, 2 s so far"]
    log.steps(Report("fetching a", 3_000_000, 9_000_000, "bytes"))
    assert log.wait(10) == ["fetching a: 3 of 9 MB, 1 min 12 s left"]


def test_the_innermost_long_step_is_shown_and_the_outer_one_between_two() -> None:
    log = Log()
    log.steps(Report("likeness embed", 0, None))
    assert log.wait(3) == ["likeness embed: 2 s so far"]
    log.steps(Report("loading the model", 0, None))
    assert log.wait(3) == ["loading the model: 2 s so far"]
    log.steps(Report("loading the model", 0, 0))
    assert log.lines[2:] == ["loading the model: 3 s"]
    assert log.wait(20) == ["likeness embed: 16 s so far", "likeness embed: 26 s so far"]


def test_a_step_that_is_left_by_an_exception_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.delenv("LIKENESS_PROGRESS", raising=False)
    monkeypatch.setattr("toolkit.showing.Steps", lambda **_: log.steps)

    def divide() -> None:
        for value in tracked([1, 0, 2], "dividing"):
            log.now += 3.0
            log.steps.look()
            1 / value

    with shown(), pytest.raises(ZeroDivisionError):
        divide()
    assert log.lines == ["dividing: 0 of 3, 3 s so far", "dividing: 1 in 6 s"]


def test_a_step_shows_itself_though_nothing_moves() -> None:
    seconds, written, lines = iter(range(10**6)), threading.Event(), []

    def write(line: str) -> None:
        lines.append(line)
        written.set()

    steps = Steps(clock=lambda: float(next(seconds)), write=write)
    steps(Report("loading the model", 0, None))
    with steps.looked_at():
        assert written.wait(60)
    assert lines[0].startswith("loading the model: ")
    num_lines = len(lines)
    steps.look()  # its block is over
    assert len(lines) == num_lines


@pytest.mark.parametrize(("name", "value"), [("RANK", "1"), ("LIKENESS_PROGRESS", "0")])
def test_others_than_the_first_process_and_who_wants_none_show_nothing(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIKENESS_PROGRESS", raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr("toolkit.showing.Steps", None)  # which cannot be made
    with shown(), step("loading the model"):
        pass
    monkeypatch.delenv(name)
    with pytest.raises(TypeError), shown():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_does_not_write_for_its_parent() -> None:
    log = Log()
    log.steps(Report("embedding", 0, 10))
    log.now = 5.0

    def work() -> None:
        log.steps(Report("embedding", 10, 10))
        sys.exit(len(log.lines))

    log.steps.look()
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == 1  # the parent's line, and none for the end
    assert log.steps.is_of_parent is False


def test_what_is_hidden_shows_nothing_though_its_command_runs_on() -> None:
    log = Log()
    with reported_to(log.steps):
        report("likeness serve", 0, None)
        with hidden():
            report("embedding", 0, 10)
            assert log.wait(30) == []
        assert log.wait(5) == ["likeness serve: 30 s so far"]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """A stderr that takes itself for a terminal of 120 columns."""
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(console.console, "_file", terminal)
    monkeypatch.setattr(console.console, "_width", 120)
    monkeypatch.setattr(console.console, "_height", 30)
    monkeypatch.setattr(console.console, "_environ", {"TERM": "xterm"})
    monkeypatch.setattr(console.console, "is_interactive", True)
    return terminal


def test_a_long_line_of_stdout_is_not_wrapped_beside_a_bar(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "is_terminal", lambda stream: True)
    bars, row = console.Bars(), "a.wav,b c.wav," * 20
    bars.draw([(Report("embedding", 1, 2), "1 of 2")])
    print(row)
    bars.clear()
    assert f"{row}\n" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_bars_are_below_what_is_printed_and_vanish(
    terminal: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    steps = Steps(clock=lambda: now, bars=console.Bars)
    steps(Report("reading a\x1b[2J\nb", 0, 10))
    now = 1.0
    steps.look()
    assert terminal.getvalue() == ""
    now = 2.0
    steps(Report("reading a\x1b[2J\nb", 4, 10))
    steps.look()
    drawn = terminal.getvalue()
    assert r"reading a\x1b[2J\nb" in drawn
    assert "4 of 10, 3 s left" in drawn
    print("a row for a file")
    console.console.print("a line")
    assert "a line\n" in terminal.getvalue()
    steps(Report("reading a\x1b[2J\nb", 10, 10))
    num_written = len(terminal.getvalue())
    console.console.print("later")
    assert terminal.getvalue()[num_written:] == "later\n"
    assert "a row" not in terminal.getvalue()
    assert capsys.readouterr() == ("a row for a file\n", "")
