"""Runs the benchmarks in turn and prints the sections of docs/reference/performance.md.

    python benchmarks/performance.py
        runs all of them (`make bench`)
    python benchmarks/performance.py eval_scoring
        runs only this script

Measures: nothing itself. Every script measures our code, a peer and a bare limit in one run, and
    what counts is their ratio. What the scripts share stands here: how they take times, how they
    start a process of one thread, and how they print a table.
Needs: what the scripts need. `make bench` installs pytorch-metric-learning, a peer of some of them,
    and AN4 is read from ../shared/data.
Takes: about an hour of one core; the losses alone take ten minutes.
Gives: a heading for each script, the line with its command, the date and the machine, and its
    tables. The numbers are copied by hand into docs/reference/performance.toml, from which
    docs/make_results.py makes the page.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
SCRIPTS = [
    *sorted(path.stem for path in HERE.glob("eval_*.py")),
    *("losses", "scale", "speaker", "start_up", "train", "use", "use_serve"),
]


FOLDERS = {
    "data": "folder of the data sets",
    "out": "folder of what is trained and measured; what is there is not done again",
}


def parser_of(doc: str | None, *options: str | tuple[Any, ...]) -> argparse.ArgumentParser:
    """A parser of arguments whose help begins with the script's docstring, line by line.

    Args:
        doc: The docstring.
        options: Names of FOLDERS that the command has to give, each by an option of this name; and
            (name, default) or (name, default, help) of options that it may give.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in options:
        if isinstance(option, str):
            parser.add_argument(f"--{option}", type=Path, required=True, help=FOLDERS[option])
        else:
            name, default, *explained = option
            parser.add_argument(
                f"--{name}", type=type(default), default=default, help="".join(explained)
            )
    return parser


def row(*cells: object) -> None:
    """Print a row of a Markdown table at once, so that a long run shows what it has."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def table(*headings: str) -> None:
    """Print the first two lines of a Markdown table."""
    row(*headings)
    print(f"|{'---|' * len(headings)}", flush=True)


def in_turn(
    works: Sequence[Callable[[], Any]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.process_time,
) -> list[tuple[float, Any]]:
    """The least CPU seconds of every work, and what it returned first.

    The first run of each warms up and is not timed. Then the works take turns, so that a busy
    moment of the machine does not hurt one of them only.

    Args:
        works: What is timed.
        repeats: How often each of them is timed.
        clock: Seconds that pass. CPU seconds are of this process only, so what works in a process
            of its own needs time.perf_counter and a quiet machine.
    """
    seconds: list[list[float]] = [[] for _ in works]
    results = [work() for work in works]
    for _ in range(repeats):
        for work, own_seconds in zip(works, seconds, strict=True):
            started = clock()
            work()
            own_seconds.append(clock() - started)
    return list(zip(map(min, seconds), results, strict=True))


def environment(*, one_thread: bool = True) -> dict[str, str]:
    """The environment of a process that imports from this clone and computes with one thread."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # as of what pip installs
    return os.environ | {"PYTHONPATH": path} | compiled | (threads if one_thread else {})


def forked(work: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """The least CPU seconds of several runs in a forked process, and the MB by which it grows.

    What the work takes is in memory already, so that neither is counted.
    """
    receive, send = get_context("fork").Pipe(duplex=False)

    def run() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        seconds = float("inf")
        for _ in range(repeats):
            started = time.process_time()
            work()
            seconds = min(seconds, time.process_time() - started)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        send.send((seconds, grown / 1024))

    process = get_context("fork").Process(target=run)
    process.start()
    send.close()
    seconds, megabytes = receive.recv()
    process.join()
    return seconds, megabytes


COMPARED = ("work", "ours", "peer", "limit", "ours/limit", "ours/peer", "peak MB, ours; peer")


def compared_row(
    title: str,
    ours: Any,
    peer: Any,
    limit: Any,
    repeats: int,
    *,
    scale: float = 1,
    measure: Callable[[Any, int], tuple[float, float]] = forked,
) -> None:
    """Measure three works, each in a process of its own, and print their row of COMPARED.

    The peer runs once, and does 1/scale of the work. It is None where it is not installed.
    """
    bare, _ = measure(limit, repeats)
    seconds, megabytes = measure(ours, repeats)
    times, ratios = [f"{seconds:.3f} s", "-"], [f"{seconds / bare:.2f}", "-"]
    peaks = f"{megabytes:.0f}"
    if peer is not None:
        taken, peer_megabytes = measure(peer, 1)
        times[1], ratios[1] = f"{scale * taken:,.2f} s", f"{seconds / (scale * taken):.2g}"
        peaks += f"; {peer_megabytes:.0f}"
    row(title, *times, f"{bare:.3f} s", *ratios, peaks)


class Cost(NamedTuple):
    """What a process took."""

    cpu_seconds: float
    wall_seconds: float
    megabytes: float  # of the largest of its processes


# A process begins with the peak of the one that it was started by, so that one has to be small.
_LAUNCH = """
import os, sys, time
started = time.perf_counter()
pid = os.posix_spawn(
    sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)]
)
_, status, used = os.wait4(pid, 0)
print(used.ru_utime + used.ru_stime, time.perf_counter() - started, used.ru_maxrss / 1000)
sys.exit(bool(status))
"""


def cost(command: Sequence[str], folder: Path = ROOT) -> Cost:
    """Run a command in a fresh process of one thread, and wait for all that it starts."""
    lean = [sys.executable, "-I", "-S", "-c", _LAUNCH, *command]
    done = subprocess.run(lean, capture_output=True, text=True, env=environment(), cwd=folder)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed: {done.stderr[-500:]}")
    return Cost(*map(float, done.stdout.split()))


def is_installed(module: str, package: str) -> bool:
    """Whether a peer can be imported; where it cannot, say so in one sentence on standard error."""
    if importlib.util.find_spec(module) is not None:
        return True
    print(
        f"{package} is not installed, so it is left out: `pip install {package}` adds it.",
        file=sys.stderr,
    )
    return False


def machine() -> str:
    """The machine's shape in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = re.sub(r"\((R|TM)\)| (Processor|CPU)\b", "", names[0] if names else platform.processor())
    return f"{os.cpu_count()} cores ({name}), Python {platform.python_version()}"


def main() -> None:
    """Run the scripts that the command names, and print their sections."""
    parser = parser_of(__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", default=SCRIPTS)
    for script in parser.parse_args().scripts:
        command = f"`python benchmarks/{script}.py`"
        print(f"\n## {script}\n\n{command}, {date.today()}, {machine()}, one thread.\n", flush=True)
        subprocess.run([sys.executable, HERE / f"{script}.py"], env=environment(), check=True)


if __name__ == "__main__":
    main()
