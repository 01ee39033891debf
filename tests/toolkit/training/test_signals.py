"""Signals to a run and its reading processes, as SLURM, `timeout` and a full memory send them."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from likeness.eval.errors import LikenessError
from likeness.toolkit.data.readers import read_beside
from likeness.toolkit.training.loading import killed_workers_named
from tests.toolkit.training.tiny_runs import ROOT, TINY, differing

SHORT = ("schedule.steps=120", "schedule.save_every=1000", "compute.workers=2")
ENDLESS = ("schedule.steps=5000", "schedule.save_every=10000")


def training(
    voices: Path, out: Path, *words: str, before: Sequence[str] = (), **environment: str
) -> subprocess.Popen[str]:
    """`likeness train` as a process group of its own, started by what is to come before."""
    command = [*before, "-m", "likeness", "train", f"{TINY}:arcface", *words]
    own = {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", **environment}
    return subprocess.Popen(
        [sys.executable, *command, "--data", str(voices), "--out", str(out)],
        env=os.environ | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_steps(run: subprocess.Popen[str], out: Path, number: int) -> None:
    log = out / "log.jsonl"
    while not log.is_file() or len(log.read_text().splitlines()) < number:
        assert run.poll() is None, run.communicate()
        time.sleep(0.05)


@pytest.mark.slow  # a run that is ended, resumed and repeated: 50 seconds on a busy machine
def test_sigterm_to_the_whole_group_saves_a_run_that_goes_on_bit_for_bit(voices, tmp_path):
    whole = training(voices, tmp_path / "whole", *SHORT)
    run = training(voices, tmp_path / "out", *SHORT)
    wait_for_steps(run, tmp_path / "out", 3)
    os.killpg(run.pid, signal.SIGTERM)
    output = run.communicate()[0]
    assert run.returncode == 130, output
    assert "DataLoader" not in output
    assert list((tmp_path / "out" / "resume").iterdir())
    again = training(voices, tmp_path / "out", *SHORT, "--resume")
    assert again.wait() == 0, again.communicate()
    assert whole.wait() == 0, whole.communicate()
    one, other = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "out"))
    assert differing(one, other) == []


def two_by_hand(voices: Path, out: Path) -> list[subprocess.Popen[str]]:
    """Two processes of one run that RANK and WORLD_SIZE join, each with a reading process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    joined = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2))
    words = (*ENDLESS, "compute.workers=1")
    return [training(voices, out, *words, **joined, **rank) for rank in ranks]


@pytest.mark.slow  # a run of two processes
def test_a_process_by_hand_whose_peer_was_killed_says_so_and_leaves(voices, tmp_path):
    first, second = two_by_hand(voices, tmp_path / "out")
    wait_for_steps(first, tmp_path / "out", 2)
    second.kill()
    output = first.communicate()[0]
    second.communicate()
    assert first.returncode == 2
    assert "another process of the run died" in output.splitlines()[-1]
    assert "Traceback" not in output


@pytest.mark.slow  # a run of two processes
@pytest.mark.parametrize("told", [(0, 1), (1,)])
def test_signals_to_processes_by_hand_end_the_run_saved(told, voices, tmp_path):
    processes = two_by_hand(voices, tmp_path / "out")
    wait_for_steps(processes[0], tmp_path / "out", 2)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        for rank in told:
            os.killpg(processes[rank].pid, number)
    ends = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [130, 130], ends
    assert list((tmp_path / "out" / "resume").iterdir())
    assert not any("Traceback" in end for end in ends)


@pytest.mark.slow  # torchrun and a run of two processes
def test_torchrun_ends_with_1_after_a_run_was_saved(voices, tmp_path):
    """As docs/how-to/many_machines.md says to those who start jobs again; Ctrl-C of a terminal."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    run = training(voices, tmp_path / "out", *ENDLESS, before=torchrun)
    wait_for_steps(run, tmp_path / "out", 2)
    os.killpg(run.pid, signal.SIGINT)
    output = run.communicate()[0]
    assert run.returncode == 1
    assert "the same command goes on" in output
    assert list((tmp_path / "out" / "resume").iterdir())


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="it finds processes in /proc")
def test_a_killed_reading_process_of_a_run_is_named(voices, tmp_path):
    run = training(voices, tmp_path / "out", *SHORT)
    wait_for_steps(run, tmp_path / "out", 1)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    output = run.communicate()[0]
    assert run.returncode == 2, output
    # multiprocessing's thread may print of the broken connection before
    assert "was killed, probably because memory ran out" in output.splitlines()[-1]


def test_a_broken_connection_to_a_killed_process_is_named_too():
    """PyTorch hears of the process a moment later, by a signal; without one the error stays."""

    def hear(*_: object) -> None:
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    def broken() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError), killed_workers_named():
        raise ConnectionResetError
    before = signal.signal(signal.SIGUSR1, hear)
    try:
        with pytest.raises(LikenessError, match="was killed"), killed_workers_named():
            broken()
    finally:
        signal.signal(signal.SIGUSR1, before)


def _own_ids(number: int, workers: int) -> Iterator[int]:
    while True:
        yield os.getpid()


def test_reading_processes_outlive_sigterm_and_a_killed_one_is_named():
    reader = read_beside(_own_ids, 2)
    first = next(reader)
    os.kill(first, signal.SIGTERM)
    os.kill(first, signal.SIGINT)
    assert [next(reader) for _ in range(6)].count(first) == 3
    os.kill(first, signal.SIGKILL)
    with pytest.raises(LikenessError, match="was killed"):
        deque(reader, maxlen=0)


def _read_for_ever(pids: Any) -> None:
    for pid in read_beside(_own_ids, 2):
        pids.send(pid)


def test_reading_processes_end_with_a_killed_parent():
    receiver, sender = multiprocessing.Pipe(duplex=False)
    parent = multiprocessing.Process(target=_read_for_ever, args=(sender,))
    parent.start()
    pids = {receiver.recv() for _ in range(4)}
    parent.kill()
    parent.join()
    for pid in pids:
        _wait_until(lambda pid=pid: not _is_alive(pid))  # type: ignore[misc]


def _wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One that has ended and waits for its parent, which is that of all processes now.
    status = Path(f"/proc/{pid}/stat")
    return not (status.is_file() and status.read_text().rpartition(")")[2].split()[0] == "Z")
