"""Text is printed as it is, and long work is shown."""

import io
import multiprocessing
import os
import sys

import numpy as np
import pytest

from likeness.cli import main
from likeness.eval.progress import Report, report, reported_to, step, track
from likeness.toolkit import console
from likeness.toolkit.console import Steps, argument_parser, say, shown
from likeness.toolkit.data.reading import Bad
from likeness.toolkit.training.log import BadItems

LONG = " ".join(f"word{number}" for number in range(60)) + " a\ttab"  # some 400 characters
HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\u2028g\x7f"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


# FORCE_COLOR is set by many CI services, whose logs are files
@pytest.mark.parametrize("forced", ["", "1"])
def test_lines_stay_whole_where_there_is_no_terminal(forced, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", forced)
    say(LONG)
    say(LONG, error=True)
    assert capsys.readouterr() == (f"{LONG}\n", f"{LONG}\n")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "with intervals resampled over subjects." in capsys.readouterr().out
    parser = argument_parser(LONG)
    parser.add_argument("--data", help=LONG, required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert f"--data DATA  {' '.join(LONG.split())}\n" in capsys.readouterr().out


def test_names_of_files_do_not_steer_the_terminal_and_can_be_encoded(capsys, monkeypatch):
    say(f"{HOSTILE}\tz")
    bad = BadItems(0.9)
    # rich reads these as a style, the end of one that never began, and an emoji
    for name in (f"{HOSTILE}\nskipped b", "a[bold].wav", "b[/red].wav", "c:dog:.wav"):
        bad.count([Bad(name, "[no] sound")], 10)
    out, err = capsys.readouterr()
    whole = r"a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\u2028g\x7f"
    assert out == f"{whole}\tz\n"
    names = [rf"{whole}\nskipped b", "a[bold].wav", "b[/red].wav", "c:dog:.wav"]
    assert err.splitlines() == [f"skipped {name}: [no] sound" for name in names]
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("κ \udcff")
    assert raw.getvalue() == b"\\u03ba \\udcff\n"


def test_a_reader_that_has_gone_ends_the_printing_not_the_work(tmp_path, monkeypatch, capfd):
    (tmp_path / "s.txt").write_text("a1 b1 0.5 1\na2 b2 0.1 0\n")
    more = ["--resamples", 0, "--json", tmp_path / "r.json"]
    for arguments in (["evaluate", tmp_path / "s.txt", *more], ["--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        with monkeypatch.context() as patched, os.fdopen(writer, "w") as stream:
            patched.setattr(sys, "stdout", stream)
            with pytest.raises(SystemExit) as ended:
                main([str(argument) for argument in arguments])
        assert ended.value.code == 0
        assert capfd.readouterr().err == ""
    assert (tmp_path / "r.json").is_file()


class Log:
    """Steps whose time is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps = Steps(clock=lambda: self.now)

    def tell(self, now: float, report: Report) -> None:
        self.now = now
        self.steps(report)


def test_a_log_gets_a_line_after_three_seconds_one_every_ten_and_one_at_the_end(capsys):
    log = Log()
    for now, done in ((0, 900), (2, 910), (3, 920), (12, 940), (13, 950), (16, 1_000)):
        log.tell(now, Report("training", done, 1_000, "steps", "loss 0.5"))
    assert capsys.readouterr().err.splitlines() == [
        "training: 920 of 1,000 steps, loss 0.5, 12 s left",
        "training: 950 of 1,000 steps, loss 0.5, 13 s left",
        "training: 100 steps in 16 s",
    ]


def test_numbers_of_numpy_are_shown_like_those_of_python(capsys):
    log = Log()
    with reported_to(log.steps):
        for log.now, done in enumerate(np.arange(10)):
            report("searching", done, np.int64(9))
    shown = capsys.readouterr().err.splitlines()
    assert (shown[0], shown[-1]) == ("searching: 3 of 9, 6 s left", "searching: 9 in 9 s")


def test_a_step_that_nobody_can_count_is_shown_with_its_time_if_it_is_long(capsys):
    log = Log()
    for start, end in ((0, 1), (10, 13)):
        log.tell(start, Report("loading", 0, None))
        log.tell(end, Report("loading", 0, 0))
    log.tell(20, Report("fetching", 0, None, "bytes"))
    log.tell(23, Report("fetching", 2_000_000, None, "bytes"))
    expected = ["loading: 3 s", "fetching: 2 MB, 3 s so far"]
    assert capsys.readouterr().err.splitlines() == expected


def test_a_step_that_is_left_by_an_exception_ends(monkeypatch, capsys):
    log = Log()
    monkeypatch.delenv("LIKENESS_PROGRESS", raising=False)
    monkeypatch.setattr(console, "Steps", lambda **_: log.steps)

    def divide() -> None:
        for value in track([1, 0, 2], "dividing"):
            log.now += 3.0
            1 / value

    with pytest.raises(ZeroDivisionError), shown():
        divide()
    assert capsys.readouterr().err == "dividing: 1 of 3, 6 s left\ndividing: 1 in 6 s\n"


@pytest.mark.parametrize(("name", "value"), [("RANK", "1"), ("LIKENESS_PROGRESS", "0")])
def test_others_than_the_first_process_and_who_wants_none_show_nothing(name, value, monkeypatch):
    monkeypatch.delenv("LIKENESS_PROGRESS", raising=False)
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(console, "Steps", None)  # which cannot be made
    with shown(), step("loading the model"):
        pass
    monkeypatch.delenv(name)
    with pytest.raises(TypeError), shown():
        pass


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_is_forked_does_not_write_for_its_parent(capfd):
    log = Log()
    log.tell(0, Report("embedding", 0, 10))
    told = (5, Report("embedding", 10, 10))
    child = multiprocessing.get_context("fork").Process(target=log.tell, args=told)
    child.start()
    child.join()
    assert (child.exitcode, capfd.readouterr().err) == (0, "")


def test_a_line_on_a_terminal_makes_way_for_what_is_printed_and_vanishes(monkeypatch):
    screen, now = Screen(), 0.0
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    steps = Steps(clock=lambda: now, draws=True)
    steps(Report("reading a\x1b[2J\nb", 0, 10))
    assert screen.getvalue() == ""
    now = 3.0
    steps(Report("reading a\x1b[2J\nb", 4, 10))
    clear, drawn = "\r\x1b[2K", r"reading a\x1b[2J\nb: 4 of 10, 4 s left"[:39]
    assert screen.getvalue() == f"{clear}{drawn}"
    say(LONG, error=True)
    now = 4.0
    steps(Report("reading a\x1b[2J\nb", 4, 10))
    steps(Report("reading a\x1b[2J\nb", 10, 10))
    say("later", error=True)
    said = screen.getvalue().split(clear)
    again = drawn.replace(", 4", ", 6")
    assert said == ["", drawn, f"{LONG}\n", again, "later\n"]
