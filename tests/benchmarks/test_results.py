"""The jobs of benchmarks/results.py: they are kept when they succeed, and go on after a stop."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "results.py"
STARTER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import results
results.JOBS = {
    "well": ["-c 'print(1)'", "-c 'print(2)'"],
    "badly": ["-c 'print(3)'", "-c 'raise SystemExit(5)'", "-c 'print(4)'"],
    "paths": ["-c 'import sys; print(sys.argv[1:])' {data} {out}/x"],
}
results.main()
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", STARTER, str(SCRIPT.parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_what_succeeds_is_kept_and_what_fails_is_named(tmp_path: Path) -> None:
    data, out = tmp_path / "some data", tmp_path / "out"
    done = run("--data", str(data), "--out", str(out), "--wait")
    assert done.returncode == 1
    assert done.stderr.strip() == "failed: badly"
    assert (out / "well.md").read_text() == "1\n2\n"
    assert not (out / "badly.md").exists()
    assert (out / "badly.md.part").read_text() == "3\n"
    assert (out / "paths.md").read_text() == f"{[str(data), str(out / 'paths' / 'x')]}\n"

    (out / "well.md").write_text("kept")
    assert run("--data", str(data), "--out", str(out), "--wait").returncode == 1
    assert (out / "well.md").read_text() == "kept"
    status = run("--out", str(out), "--status").stdout.split("\n")
    assert status[0].split(maxsplit=1) == ["well", f"done: {out / 'well.md'}"]
    assert status[1].split(maxsplit=1) == ["badly", f"not finished: {out / 'badly.log'}"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "nothing"], "there is no job 'nothing'; the jobs are well, badly, paths"),
        ([], "--data is missing"),
    ],
)
def test_wrong_input_is_refused(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = run("--out", str(tmp_path), *arguments)
    assert done.returncode == 2
    assert said in done.stderr


LOCKED = """
import signal, sys
# Also where the tests ignore them, as under nohup.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
sys.path.insert(0, sys.argv.pop(1))
import results
held = (
    "import fcntl, pathlib, sys, time; file = open(sys.argv[1], 'w'); "
    "fcntl.flock(file, fcntl.LOCK_EX); pathlib.Path(sys.argv[1] + '.held').touch(); time.sleep(600)"
)
results.JOBS = {name: ['-c "' + held + '" {out}'] for name in ("a", "b")}
results.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_no_job_outlives_the_process_that_began_it(tmp_path: Path, number: signal.Signals) -> None:
    """Each job holds a lock for as long as it lives."""
    command = [sys.executable, "-c", LOCKED, str(SCRIPT.parent), "--out", str(tmp_path)]
    measuring = subprocess.Popen([*command, "--data", str(tmp_path), "--wait"], cwd=ROOT)
    while not all((tmp_path / f"{name}.held").exists() for name in ("a", "b")):
        assert measuring.poll() is None
        time.sleep(0.05)
    measuring.send_signal(number)
    assert measuring.wait() != 0
    for name in ("a", "b"):
        with (tmp_path / name).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError where it lives on


def test_a_job_that_is_named_twice_runs_once(tmp_path: Path) -> None:
    done = run("--data", str(tmp_path), "--out", str(tmp_path), "--wait", "--only", "well,well")
    assert done.returncode == 0
    assert done.stdout.count("well: exit status 0") == 1


def test_a_stop_ends_what_runs_and_begins_nothing_else(tmp_path: Path) -> None:
    """Jobs that never end by themselves: both that run are ended, the third does not begin."""
    starter = STARTER.replace("results.main()", "") + (
        "results.JOBS = {name: ['-c \"import pathlib, sys, time; "
        "pathlib.Path(sys.argv[1]).write_text(str(1)); time.sleep(600)\" {out}.began']"
        " for name in ('a', 'b', 'c', 'd')}\nresults.main()\n"
    )
    command = [sys.executable, "-c", starter, str(SCRIPT.parent), "--out", str(tmp_path)]
    asked = [*command, "--data", str(tmp_path), "--only", "a,b,c", "--wait"]
    measuring = subprocess.Popen(asked, cwd=ROOT)
    while not all((tmp_path / f"{name}.began").exists() for name in ("a", "b")):
        assert measuring.poll() is None
    status = subprocess.run([*command, "--status"], capture_output=True, text=True, cwd=ROOT)
    assert [line.split()[1] for line in status.stdout.splitlines()] == [
        "running,",
        "running,",
        "waiting",
        "not",
    ]
    subprocess.run([*command, "--stop"], check=True, capture_output=True, cwd=ROOT)
    assert measuring.wait() == 143
    assert not (tmp_path / "c.began").exists()
    assert not list(tmp_path.glob("*.md"))
