"""Nothing is wrapped or cut where the output is no terminal, whatever the width is said to be, and
nothing prints past toolkit.printing and toolkit.console.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from eval.progress import Report
from likeness.cli import main
from toolkit.console import console
from toolkit.data.reading import Bad
from toolkit.printing import argument_parser, is_terminal, say
from toolkit.showing import Steps
from toolkit.training.log import BadItems

LONG = " ".join(f"word{number}" for number in range(60)) + " a\ttab"  # some 400 characters
WIDTHS = pytest.mark.parametrize("columns", ["40", "400"])


@WIDTHS
# FORCE_COLOR is set by many CI services, whose logs are files
@pytest.mark.parametrize("forced", ["", "1"])
def test_lines_stay_whole_where_there_is_no_terminal(
    columns: str, forced: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FORCE_COLOR", forced)
    # what a Console that is made under this width holds
    monkeypatch.setattr(console, "_width", int(columns))
    say(LONG)
    console.print(LONG)
    bad = BadItems(0.9)
    bad.count([Bad("name", LONG)], 10)
    now = 0.0
    steps = Steps(clock=lambda: now)
    steps(Report(LONG, 0, None))
    now = 3.0
    steps.look()
    out, err = capfd.readouterr()
    assert out == f"{LONG}\n"
    assert err == f"{LONG}\nskipped name: {LONG}\n{LONG}: 3 s so far\n"


HOSTILE = "a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\u2028g\x7f"


def test_names_of_files_do_not_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    say(f"{HOSTILE}\tz")
    console.print(HOSTILE)
    BadItems(0.9).count([Bad(f"{HOSTILE}\nskipped b", "no\nsuch file")], 10)
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setattr(console, "_file", shown)  # rich itself lets escapes pass
    console.print(HOSTILE)
    out, err = capfd.readouterr()
    whole = r"a\x1b[2Jb\x1b]0;title\x07c\rd\x9b31me\u202ef\u2028g\x7f"
    assert out == f"{whole}\tz\n"
    assert err == f"{whole}\nskipped {whole}\\nskipped b: no\\nsuch file\n"
    assert shown.getvalue() == f"{whole}\n"


@WIDTHS
def test_help_and_usage_are_whole_where_there_is_no_terminal(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    seen = []
    for arguments in (["--help"], ["score", "--help"], ["score"], ["score", f"--{'nothing' * 20}"]):
        with pytest.raises(SystemExit):
            main(arguments)
        seen.append("".join(capsys.readouterr()))
    assert "with intervals resampled over subjects." in seen[0], "evaluate's summary is whole"
    assert "log-likelihood ratios." in next(
        line for line in seen[1].splitlines() if line.lstrip().startswith("--calibration")
    )
    assert "..." not in seen[0].replace("[ARGS]...", "")
    assert all(
        len([line for line in text.splitlines() if line.startswith("Error: ")]) == 1
        for text in seen[2:]
    )
    parser = argument_parser(LONG)
    parser.add_argument("--data", help=LONG, required=True)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    assert f"--data DATA  {' '.join(LONG.split())}\n" in capsys.readouterr().out


@WIDTHS
def test_tables_are_whole_where_there_is_no_terminal(
    columns: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "system" * 30
    (tmp_path / f"{name}.txt").write_text(
        "".join(f"a{i}/1 {'ab'[i % 2]}{i}/2 {i % 7 / 7} {1 - i % 2}\n" for i in range(40))
    )
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", str(tmp_path / f"{name}.txt"), "--resamples", "20"])
    assert not ended.value.code
    rows = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert rows
    assert all(len(line) > len(name) + 10 for line in rows)


def test_at_a_terminal_text_is_not_cut_either(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(console, "_width", 40)
    assert is_terminal(screen)
    console.print(f"[bold] {LONG.expandtabs(8)}")
    assert f"[bold] {LONG.expandtabs(8)}\n" in screen.getvalue()


def test_what_a_stream_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    say("κ \udcff")
    assert raw.getvalue() == b"\\u03ba \\udcff\n"


def test_a_reader_that_has_gone_ends_the_printing_not_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.txt").write_text(
        "".join(f"a{i}/1 {'ab'[i % 2]}{i}/2 {i % 7 / 7} {1 - i % 2}\n" for i in range(40))
    )
    for arguments in (
        ["evaluate", tmp_path / "s.txt", "--resamples", 0, "--json", tmp_path / "r.json"],
        ["--help"],
    ):
        reader, writer = os.pipe()
        os.close(reader)
        with monkeypatch.context() as patched, os.fdopen(writer, "w") as stream:
            patched.setattr(sys, "stdout", stream)
            with pytest.raises(SystemExit) as ended:
                main([str(argument) for argument in arguments])
        assert ended.value.code == 0
        assert capfd.readouterr().err == ""
    assert (tmp_path / "r.json").is_file()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_is_full_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.txt").write_text(
        "".join(f"a{i}/1 {'ab'[i % 2]}{i}/2 {i % 7 / 7} {1 - i % 2}\n" for i in range(40))
    )
    with open("/dev/full", "w") as stream, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stream)
        with pytest.raises(SystemExit) as ended:
            main(["evaluate", str(tmp_path / "s.txt"), "--resamples", "0"])
        stream.flush()  # what Python does at its end
    assert ended.value.code == 2
    assert "No space left" in capfd.readouterr().err
