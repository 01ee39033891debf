"""Every command ends at signals, however many come and in which order: with one sentence, with exit
code 130, and with nothing left of what it began.
"""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.likeness.commands.test_contract import COMMANDS
from tests.scripts import ROOT, touch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
# What is typed for each command, which waits where it first touches one of these files or folders.
WORDS = {
    "align": "touched --detector touched/yunet.onnx --out touched-out",
    "bench": "--model likeness:voice --trials touched/trials.txt --root touched",
    "check": "touched",
    "compare": "tests/tiny.py --data touched --out touched-out",
    "demo": "--only image --out touched-out",
    "embed": "--model likeness:voice --items touched --out touched-out.npz",
    "evaluate": "touched/scores.txt",
    "export": "touched/model.safetensors --out touched-out.onnx",
    "fit calibration": "--trials touched/trials.txt --embeddings touched/e.npz --out touched.json",
    "fit fusion": "touched/scores.txt touched/trials.txt --out touched.json",
    "fit plda": "touched/e.npz --labels touched/labels.txt --out touched.json",
    "gallery check": "--gallery touched-people --threshold 0.5",
    "gallery cluster": "touched --model likeness:voice --threshold 0.5 --out touched.csv",
    "gallery enrol": "touched --model likeness:voice --gallery touched-people",
    "gallery list": "--gallery touched-people",
    "gallery remove": "ann --gallery touched-people",
    "gallery search": "touched --model likeness:voice --gallery touched-people",
    "identify": "--gallery touched/e.npz --probes touched/e.npz",
    "lists": "touched --split all --out touched-out",
    "prepare": "fsdd --data touched-out",
    "recipes": "--copy speaker/folders touched-out.py",
    "reproduce": "vmf/1 --data touched --out touched-out",
    "retrieve": "--embeddings touched/e.npz --labels touched/labels.txt",
    "score": "--trials touched/trials.txt --embeddings touched/e.npz --out touched-out.txt",
    "serve": "--port 0",
    "threshold": "--model likeness:voice --unlabelled touched --out touched.json",
    "train": "tests/tiny.py:arcface --data touched --out touched-out",
    "verify": "--pairs touched/pairs.csv --out touched-out.csv",
}
ORDERS = (
    ("SIGINT", "SIGTERM"),
    ("SIGTERM", "SIGTERM"),
    ("SIGHUP", "SIGINT", "SIGINT"),
    ("SIGTERM", "SIGINT", "SIGTERM", "SIGHUP"),
)
FEW = ("evaluate", "gallery enrol", "serve")


def test_every_command_is_here():
    assert WORDS.keys() == COMMANDS.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in WORDS]
)
def test_a_command_ends_at_signals(name, tmp_path):
    touch(tmp_path, *(f"touched/{who}/{n}.wav" for who in ("ann", "bob") for n in (1, 2)))
    touch(tmp_path / "touched", "labels.txt", "pairs.csv", "scores.txt", "trials.txt")
    touch(tmp_path / "touched", "e.npz", "model.safetensors", "yunet.onnx")
    touch(tmp_path / "touched-people", "gallery.sqlite")
    before = sorted(tmp_path.rglob("*"))
    words = [*name.split(), *shlex.split(WORDS[name].replace("tests/", f"{ROOT}/tests/"))]
    command = [sys.executable, Path(__file__).with_name("at_work.py"), *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    how = {"cwd": tmp_path, "env": environment, "start_new_session": True}
    process = subprocess.Popen(command, **streams, **how)
    try:
        # prepare says what it fetches before it touches the disk
        assert "at work\n" in iter(process.stdout.readline, ""), process.stderr.read()
        for order in ORDERS[list(WORDS).index(name) % len(ORDERS)]:
            os.killpg(process.pid, getattr(signal, order))
        _, errors = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "stopped" in errors.splitlines()[-1]
    assert sorted(tmp_path.rglob("*")) == before
