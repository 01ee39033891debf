"""The demos, one and all at the same time, and the commands that a demo and `train` tell."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from likeness.modalities import synthetic_glyphs
from likeness.toolkit.signals import Interrupted, ended_by_signals
from likeness.training import demo
from tests.likeness.service.serving import started
from tests.scripts import printed, run_command
from tests.tiny import QUICK


def test_a_demo_that_is_stopped_says_so(tmp_path, monkeypatch, capsys):
    def stop(_: Path) -> None:
        raise Interrupted("stopped after step 3 of 10")

    monkeypatch.setattr("runpy.run_path", lambda _: {"main": stop})
    assert run_command("demo", "--only", "speaker", "--out", tmp_path / "demo") == 130
    assert "the demo was stopped" in capsys.readouterr().err


PRINTS = "import os; print('first of {0}'); print('second of {0}', os.environ['OMP_NUM_THREADS'])"
# Each waits for the first, so that both run at the same time.
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
    monkeypatch.setattr(demo, "overview", lambda folders, out: (out / "index.html", ""))
    demo.run_all({name: folder / name for name in programs}, folder)


def test_lines_come_demo_by_demo_and_one_failure_stops_no_other(tmp_path, monkeypatch, capfd):
    with pytest.raises(ValueError, match=r"1 of 2 demos failed, face"):
        run(tmp_path, monkeypatch, face=FAILS, image=PRINTS.format("image"))
    face, image = capfd.readouterr().out.split("\nimage:\n")
    assert "no recording is there" in face
    assert image.split("\n")[:2] == ["first of image", "second of image 1"]


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_ends_all_of_them(name, tmp_path, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    programs = {"face": PAUSES.format("face", "nothing"), "image": PAUSES.format("image", name)}
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        run(tmp_path, monkeypatch, **programs)
    for stopped in ("face", "image"):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"{stopped}.pid").read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_last_lines_have_one_number_for_each_system(tmp_path):
    pairs = [
        (f"a{i}/{a}", f"a{j}/{b}", i == j) for i in "xyz" for j in "xyz" for a, b in ("12", "34")
    ]
    (tmp_path / "face" / "scores").mkdir(parents=True)
    for system, sign in (("likeness", 1), ("pixels", -1)):
        lines = [f"{a} {b} {sign * target} {int(target)}\n" for a, b, target in pairs]
        (tmp_path / "face" / "scores" / f"face-{system}.txt").write_text("".join(lines))
    page, lines = demo.overview({"face": tmp_path / "face"}, tmp_path)
    assert re.fullmatch(r"  face +Likeness 0\.0 %.* +pixels alone 100\.0 %.*", lines)
    assert "../face/report/index.html" in page.read_text(encoding="utf-8")


def commands_of(output: str) -> list[list[str]]:
    """The commands below "next:", as a shell reads them."""
    lines = output.splitlines()
    return [shlex.split(line) for line in lines[lines.index("next:") + 1 :]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: paths are printed as they were given."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_verifier_is_evaluated_and_embeds_all_the_data(place, voices):
    data = place / "my voices"
    data.symlink_to(voices)
    places = ("--data", "my voices", "--out", "a run")
    output = printed("train", "speaker/folders", *QUICK[:2], *places)
    evaluate, embed, serve = commands_of(output)
    assert [command[1] for command in (evaluate, embed, serve)] == ["evaluate", "embed", "serve"]
    printed(*evaluate[1:])
    assert (place / "a run" / "evaluation" / "index.html").is_file()
    assert "32 embeddings" in printed(*embed[1:])
    # 2 speakers of 4 recordings have 16 nontarget trials, which measure no FAR of 1 % or 10 %
    assert serve[2:] == ["--model", "a run", "--far", "eer"]
    assert (place / "a run" / "thresholds.json").is_file()


@pytest.mark.slow  # trains on images, and starts a server
def test_every_command_runs_as_it_is_printed(place):
    synthetic_glyphs.write_glyphs(Path("glyphs"), num_alphabets=1, num_characters=8, num_drawers=5)
    words = ("train", "image/folders", "schedule.steps=2", "--data", "glyphs", "--out", "run")
    commands = commands_of(printed(*words))
    assert len(commands) == 3
    for command in commands:
        assert command[0] == "likeness"
        if command[1] == "serve":
            with started(place / "server", *command[2:]) as (address, _):
                assert address.startswith("http://")
        else:
            printed(*command[1:])
