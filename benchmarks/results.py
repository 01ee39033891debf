"""Measures all of docs/reference/results.md, in the background, two jobs at a time.

    python benchmarks/results.py --data ../shared/data --out runs/results
        (`make results`) starts what is missing in the background and returns
    python benchmarks/results.py --out runs/results --status
        says what is done, what runs and what failed
    python benchmarks/results.py --out runs/results --stop
        ends it with all jobs that run; the next start goes on where it was (kill -9 leaves the
        jobs that run behind, and a job whose folder is still written by one fails)
    python benchmarks/results.py --data ../shared/data --out runs/results --only an4,orl --wait
        two of the jobs, and returns when they are done

Measures: nothing itself. Every job has the commands of a section of docs/reference/results.md. What
    they print is OUT/NAME.md when they have succeeded, and what they say on the way is
    OUT/NAME.log. A job whose NAME.md is there is not run again; delete the file to repeat it. A
    job that was interrupted goes on where it was, because every script leaves its runs in a folder
    and trains what is missing.
Peers, limit: those of the scripts.
Needs: what the scripts need, and the data sets in the folder of --data. A job whose data or package
    is missing fails, and the others go on.
Takes: a night of two cores.
Gives: docs/reference/results.md, whose sections were written from these files.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from performance import ROOT, environment_of_one_thread, parser_of

from toolkit.training.lock import Busy, only_writer

# Name: commands, one after the other, without the interpreter. {data} is the folder of the data
# sets, {out} the job's own folder.
JOBS: dict[str, list[str]] = {
    "an4": ["benchmarks/an4.py --data {data} --out {out} --jobs 1"],
    "speechocean": [
        "benchmarks/speechocean.py --data {data} --out {out} --jobs 1",
        "benchmarks/fusion.py --data {data} --scores {out}",
    ],
    "corpora": [
        "benchmarks/corpora.py --data {data} --out {out} --steps 500",
        "benchmarks/small_voice.py --data {data} --out {out}",
        "-m likeness compare head_losses --seeds 3 --tune 5 --reference softmax "
        "--data {out}/estimated/an4+librispeech-to-speechocean.npz --out {out}/head-losses",
    ],
    "orl": [
        "recipes/face/orl.py --data {data} --out {out} --variants estimated,arcface,simple",
    ],
    "fsdd": [
        "recipes/speaker/fsdd.py {data} {out}",
        "benchmarks/voice_peers.py speechbrain --dataset fsdd --seconds .4 --steps 300 "
        "--data {data} --out {out}/speechbrain",
    ],
    "voxsrc": [
        "-m likeness evaluate {data}/protocols/voxsrc23_val/scores.txt.gz "
        "--trials {data}/protocols/voxsrc23_val/trials.txt.gz --p-target 0.05 --p-target 0.01 "
        "--p-target 0.001",
        "benchmarks/scorers.py --data {data} --out {out}",
    ],
    "demo": ["-m likeness demo --out {out}"],
    "mnist": [
        "-m likeness compare image/vmf:mnist --variants standard,hyperbolic,cosine,arcface,vmf "
        "--seeds 3 --reference standard "
        "--data {data} --out {out}",
    ],
    "omniglot": [
        "-m likeness compare image/omniglot --seeds 3 --reference softmax "
        "--data {data} --out {out}",
    ],
    "omniglot-losses": [
        "-m likeness compare image/omniglot_losses --seeds 3 --tune 5 --reference softmax "
        "--data {data} --out {out}",
        "benchmarks/uncertainty.py --data {data} --out {out}",
    ],
    "omniglot-classes": ["benchmarks/classes.py --data {data} --out {out}"],
    "an4-losses": [
        "-m likeness compare speaker/an4 --seeds 3 --tune 5 "
        "--variants softmax,arcface,cosface,simple,vmf,multi_similarity,el_nivmf "
        "schedule.steps=400 schedule.eval_every=100 items.num_folds=3 measure.trials.num_folds=3 "
        "--data {data} --out {out}",
    ],
    "fine-tuning": ["benchmarks/tuning.py --data {data} --out {out}"],
    "pytorch-metric-learning": [
        "benchmarks/omniglot_peers.py --data {data} --seeds 3 --out {out}",
    ],
}
AT_A_TIME = 2


def main() -> None:
    """Start the jobs, or say how they stand."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, required=True, help="folder of runs and results")
    parser.add_argument("--only", default="", help="names of jobs, separated by commas")
    parser.add_argument("--wait", action="store_true", help="do not go into the background")
    parser.add_argument("--status", action="store_true", help="say how the jobs stand")
    parser.add_argument("--stop", action="store_true", help="end the jobs that run")
    arguments = parser.parse_args()
    names = list(dict.fromkeys(name for name in arguments.only.split(",") if name)) or list(JOBS)
    if unknown := [name for name in names if name not in JOBS]:
        parser.error(f"there is no job {unknown[0]!r}; the jobs are {', '.join(JOBS)}")
    out: Path = arguments.out.resolve()
    if arguments.status or arguments.stop:
        if arguments.stop:
            stop(out)
        print_status(names, out)
        return
    if arguments.data is None:
        parser.error("--data is missing: the folder that holds an4/, omniglot/ and the others")
    if not arguments.wait:
        start_in_background(arguments, names, out)
        return
    try:
        with only_writer(out):
            (out / "asked").write_text("\n".join(names), encoding="utf-8")
            (out / "pid").write_text(str(os.getpid()), encoding="utf-8")
            try:
                failed = Jobs(arguments.data.resolve(), out).run_all(names)
            finally:
                (out / "pid").unlink(missing_ok=True)
    except Busy:
        sys.exit(f"{out}: another process measures there; see --status, or end it by --stop")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def start_in_background(arguments: argparse.Namespace, names: Sequence[str], out: Path) -> None:
    """Start this script once more, in a session of its own, and return."""
    if running(out):
        print(f"{out}: it runs already")
        print_status(names, out)
        return
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(__file__).resolve()), "--wait", "--only", ",".join(names)]
    command += ["--data", str(arguments.data.resolve()), "--out", str(out)]
    with (out / "all.log").open("ab") as log:
        subprocess.Popen(  # with a session of its own, it outlives the terminal
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    print(
        f"{len(names)} jobs run in the background, {AT_A_TIME} at a time; what they print goes to "
        f"{out}\nHow they stand: python benchmarks/results.py --out {out} --status"
    )


class Jobs:
    """The jobs of a folder, of which some run.

    Attributes:
        data: The folder of the data sets.
        out: The folder of runs and results.
        active: The processes that run, each the leader of a process group of its own.
        stopping: Whether no other command may begin.
        changing: Held by whoever begins a command or stops all of them.
    """

    def __init__(self, data: Path, out: Path):
        self.data, self.out = data, out
        self.active: set[subprocess.Popen[bytes]] = set()
        self.stopping = False
        self.changing = threading.Lock()

    def run_all(self, names: Sequence[str]) -> list[str]:
        """Run the jobs that are not done; returns the names of those that failed."""
        missing = [name for name in names if not (self.out / f"{name}.md").exists()]
        # The jobs are in sessions of their own, so that the end of this process is not theirs.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
                signal.signal(number, lambda number, _: sys.exit(128 + number))
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            try:
                codes = list(pool.map(self.run, missing))
            except (KeyboardInterrupt, SystemExit):
                with self.changing:
                    self.stopping = True
                    for process in self.active:
                        with suppress(OSError):
                            os.killpg(process.pid, signal.SIGTERM)
                raise
        return [name for name, code in zip(missing, codes, strict=True) if code]

    def run(self, name: str) -> int:
        """Run one job; returns its exit status."""
        if self.stopping:
            return 1
        unfinished = self.out / f"{name}.md.part"
        started, code = time.monotonic(), 0
        # A new file: a job that outlived a killed start may still write into the old one.
        unfinished.unlink(missing_ok=True)
        with unfinished.open("wb") as page, (self.out / f"{name}.log").open("ab") as log:
            for command in JOBS[name]:
                code = code or self.run_command(command, self.out / name, page, log)
        if code == 0:
            unfinished.replace(self.out / f"{name}.md")
        minutes = (time.monotonic() - started) / 60
        print(f"{name}: exit status {code} after {minutes:.0f} minutes", flush=True)
        return code

    def run_command(self, command: str, folder: Path, page: BinaryIO, log: BinaryIO) -> int:
        """Run one command of a job; returns its exit status."""
        words = [word.format(data=self.data, out=folder) for word in shlex.split(command)]
        with self.changing:
            if self.stopping:
                return 1
            process = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env=environment_of_one_thread(),
                stdin=subprocess.DEVNULL,
                stdout=page,
                stderr=log,
                start_new_session=True,
            )
            self.active.add(process)
        code = process.wait()
        with self.changing:
            self.active.discard(process)
        return 1 if self.stopping else code


def running(out: Path) -> bool:
    """Whether a process measures in the folder."""
    if not out.is_dir():
        return False
    try:
        with only_writer(out):
            return False
    except Busy:
        return True


def stop(out: Path) -> None:
    """End the process that measures in the folder, with all jobs that it runs."""
    ended = False
    while running(out):
        with suppress(OSError, ValueError):  # one that has just begun has not said its number yet
            if not ended:
                os.kill(int((out / "pid").read_text(encoding="utf-8")), signal.SIGTERM)
                ended = True
        time.sleep(0.2)


def print_status(names: Sequence[str], out: Path) -> None:
    """Print a line for each job."""
    active = running(out)
    asked: list[str] = []
    if active and (out / "asked").exists():  # it has not said so yet where it has just begun
        asked = (out / "asked").read_text(encoding="utf-8").split()
    for name in names:
        if (out / f"{name}.md").exists():
            state = f"done: {out / f'{name}.md'}"
        elif (out / f"{name}.md.part").exists():
            log = out / f"{name}.log"
            state = (
                f"running, or waiting to go on: {log}" if name in asked else f"not finished: {log}"
            )
        else:
            state = "waiting" if name in asked else "not begun"
        print(f"{name:24s} {state}")


if __name__ == "__main__":
    main()
