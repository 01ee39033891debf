"""Demos that run at the same time: their lines stay in order, a failure is told, and a signal
leaves no process behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from likeness import demo

PRINTS = "import os; print('first of {0}'); print('second of {0}', os.environ['OMP_NUM_THREADS'])"
# The first ends only after the last has: were they not run at the same time, it would wait for
# ever.
WAITS = "import pathlib; pathlib.Path('pipe').read_text(); print('waited')"
ENDS = "import pathlib; pathlib.Path('pipe').write_text(''); print('ended')"
PAUSES = """
import os, pathlib, signal, time
pathlib.Path("{0}.pid").write_text(str(os.getpid()))
while not (pathlib.Path("face.pid").exists() and pathlib.Path("face.pid").read_text()):
    time.sleep(0.01)
if hasattr(signal, "{1}"):
    os.kill(os.getppid(), getattr(signal, "{1}"))
signal.pause()
"""
FAILS = "raise ValueError('no recording is there')"


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    monkeypatch.chdir(folder)
    start = subprocess.Popen
    monkeypatch.setattr(
        "subprocess.Popen",
        lambda words, **more: start([sys.executable, "-c", programs[words[5]]], **more),
    )
    monkeypatch.setattr(demo, "summary", lambda folders: "")
    monkeypatch.setattr(demo, "overview", lambda folders, out: out / "report" / "index.html")
    demo.run_all({name: folder / name for name in programs}, folder)


def test_lines_come_demo_by_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, monkeypatch, face=PRINTS.format("face"), image=PRINTS.format("image"))
    lines = [line for line in capfd.readouterr().out.splitlines() if line]
    assert lines[1:7] == [
        line
        for name in ("face", "image")
        for line in (f"{name}:", f"first of {name}", f"second of {name} 1")
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of Unix")
def test_they_run_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    run(tmp_path, monkeypatch, face=WAITS, image=ENDS)
    out = capfd.readouterr().out
    assert 0 < out.index("waited") < out.index("ended")


def test_one_failure_is_reported_and_the_others_run_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=r"1 of 2 demos failed, face"):
        run(tmp_path, monkeypatch, face=FAILS, image=PRINTS.format("image"))
    out = capfd.readouterr().out
    assert "no recording is there" in out
    assert "second of image" in out


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_of_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run(
            tmp_path,
            monkeypatch,
            face=PAUSES.format("face", "nothing"),
            image=PAUSES.format("image", name),
        )
    for stopped in ("face", "image"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"{stopped}.pid").read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_last_lines_have_one_number_for_each_system(tmp_path: Path) -> None:
    systems = (("face-likeness", 0.0878, [0.06, 0.1159]), ("face-pixels", 0.4033, None))
    results = [
        {"system": system, "metric": metric, "value": value, "interval": ends}
        for system, value, ends in systems
        for metric in ("eer", "min_dcf(0.01)")
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"results": results}), encoding="utf-8")
    assert demo.summary({"face": tmp_path}).splitlines()[2:] == [
        "  face      Likeness 8.8 % [6.0, 11.6]     pixels alone 40.3 %"
    ]
