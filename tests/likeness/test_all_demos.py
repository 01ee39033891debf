"""Demos that run at the same time: their lines stay in order, a failure is told, Ctrl-C leaves no
process behind.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from likeness.cli import main
from likeness.demo import run_all, summary

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of Unix")

WRITES = """
import os, pathlib, sys
out = pathlib.Path(sys.argv[1])
out.mkdir(parents=True)
(out / "threads").write_text(os.environ["OMP_NUM_THREADS"])
print("first of", out.name)
print("second of", out.name, file=sys.stderr)
"""
# The first ends only after the last has: were they not run at the same time, it would wait for
# ever.
PIPE = "import pathlib, sys\npipe = pathlib.Path(sys.argv[1]).parent / 'pipe'\n"
WAITS = PIPE + "pipe.read_text()\nprint('waited')\n"
ENDS = PIPE + "pipe.write_text('')\nprint('ended')\n"
FAILS = "raise ValueError('no recording is there')\n"
NOTES = """
import os, pathlib, signal, sys, time
out = pathlib.Path(sys.argv[1])
out.with_suffix(".pid").write_text(str(os.getpid()))
"""
WAITS_LONG = NOTES + "signal.pause()\n"
INTERRUPTS = (
    NOTES
    + """
other = out.with_name("face.pid")
while not (other.exists() and other.read_text()):
    time.sleep(0.01)
os.kill(os.getppid(), signal.{})
signal.pause()
"""
)


def demos(folder: Path, **texts: str) -> dict[str, list[str]]:
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return {name: [str(folder / f"{name}.py"), str(folder / name)] for name in texts}


def test_lines_come_demo_by_demo(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run_all(demos(tmp_path, face=WRITES, image=WRITES))
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines[1:] == [
        line
        for name in ("face", "image")
        for line in (f"{name}:", f"first of {name}", f"second of {name}")
    ]
    assert (tmp_path / "image" / "threads").read_text() == "1"


def test_they_run_at_the_same_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    run_all(demos(tmp_path, face=WAITS, image=ENDS))
    out = capfd.readouterr().out
    assert 0 < out.index("waited") < out.index("ended")


def test_one_failure_is_reported_and_the_others_run_to_their_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"1 of 2 demos failed, face"):
        run_all(demos(tmp_path, face=FAILS, image=WRITES))
    out = capfd.readouterr().out
    assert "no recording is there" in out
    assert "second of image" in out


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_of_them(name: str, tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run_all(demos(tmp_path, face=WAITS_LONG, image=INTERRUPTS.format(name)))
    for demo in ("face", "image"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"{demo}.pid").read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_command_says_that_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("likeness.demo.run_all", stop)
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--out", str(tmp_path)])
    assert ended.value.code == 130
    assert "was stopped" in capsys.readouterr().err


def test_the_last_lines_have_one_number_for_each_system(tmp_path: Path) -> None:
    systems = (("face-likeness", 0.0878, [0.06, 0.1159]), ("face-pixels", 0.4033, None))
    results = [
        {"system": system, "metric": metric, "value": value, "interval": ends}
        for system, value, ends in systems
        for metric in ("eer", "min_dcf(0.01)")
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"results": results}), encoding="utf-8")
    assert summary({"face": tmp_path}).splitlines()[2:] == [
        "  face      Likeness 8.8 % [6.0, 11.6]     pixels alone 40.3 %"
    ]
