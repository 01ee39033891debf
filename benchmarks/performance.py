"""Runs the commands of docs/reference/performance.toml, and compares what they measure with it.

    python benchmarks/performance.py
        runs all of them but those that need a GPU (`make bench`)
    python benchmarks/performance.py start_up
        runs the commands in which this word is
    python benchmarks/performance.py start_up --write
        then writes numbers, date and machine into performance.toml, and the page anew

Measures: nothing itself. Every script measures our code, a peer and a bare limit in one run, and
    what counts is their ratio. What the scripts share stands here: how they take times, how they
    start a process of one thread, and how they print a table.
Needs: what the scripts need. `make bench` installs pytorch-metric-learning, a peer of some of them,
    and AN4 is read from ../shared/data.
Takes: about an hour of one core; the losses alone take ten minutes.
Gives: the tables of each script; then each number that is more than a quarter above or below that
    of the same row and column of performance.toml, before and now, and the rows that no script
    measured. Of a table with ratios only these are compared.
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
BARS = ROOT / "docs" / "reference" / "performance.toml"
MOVED = 1.25  # times a bar, or a bar so many times this
RATIO = re.compile(r"ours/|of |x ")  # how the names of columns begin that hold ratios

Clock = Callable[[], float]
Rows = dict[str, dict[str, str]]  # a row's first cell -> column -> cell

FOLDERS = {
    "data": "folder of the data sets",
    "out": "folder of what is trained and measured; what is there is not done again",
}


def parser_of(doc: str | None, *options: str | tuple[Any, ...]) -> argparse.ArgumentParser:
    """A parser of arguments whose help begins with the script's docstring, line by line.

    Args:
        doc: The docstring.
        options: Names of FOLDERS that the command has to give, each by an option of this name; and
            (name, default) or (name, default, help) of options that it may give: False is that of
            a switch, and None that of a path.
    """
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=doc, formatter_class=raw)
    for option in options:
        if isinstance(option, str):
            parser.add_argument(f"--{option}", type=Path, required=True, help=FOLDERS[option])
            continue
        name, default, *explained = option
        kind = Path if default is None else type(default)
        settings = {"action": "store_true"} if default is False else {"type": kind}
        parser.add_argument(f"--{name}", default=default, help="".join(explained), **settings)
    return parser


def row(*cells: object) -> None:
    """Print a row of a Markdown table at once, so that a long run shows what it has."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def table(*headings: str) -> None:
    """Print the first two lines of a Markdown table."""
    row(*headings)
    print(f"|{'---|' * len(headings)}", flush=True)


def in_turn(
    works: Sequence[Callable[[], Any]], repeats: int, *, clock: Clock = time.process_time
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


COMPARED = ("work", "ours, s", "peer, s", "limit, s", "ours/limit", "ours/peer")
COMPARED += ("peak MB, ours; peer",)
Works = tuple[Any, Any, Any]  # ours, the peer's and the limit's
Measure = Callable[[Any, int], tuple[float, float]]


def compared_row(
    title: str, works: Works, repeats: int, *, scale: float = 1, measure: Measure = forked
) -> None:
    """Measure three works, each in a process of its own, and print their row of COMPARED.

    The peer runs once, and does 1/scale of the work. It is None where it is not installed.
    """
    ours, peer, limit = works
    bare, _ = measure(limit, repeats)
    seconds, megabytes = measure(ours, repeats)
    times, ratios = [f"{seconds:.3f}", "-"], [f"{seconds / bare:.2f}", "-"]
    peaks = f"{megabytes:.0f}"
    if peer is not None:
        taken, peer_megabytes = measure(peer, 1)
        times[1], ratios[1] = f"{scale * taken:,.2f}", f"{seconds / (scale * taken):.2g}"
        peaks += f"; {peer_megabytes:.0f}"
    row(title, *times, f"{bare:.3f}", *ratios, peaks)


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
    advice = f"`pip install {package}` adds it"
    print(f"{package} is not installed, so it is left out: {advice}.", file=sys.stderr)
    return False


def machine() -> str:
    """The machine's shape in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = re.sub(r"\((R|TM)\)| (Processor|CPU)\b", "", names[0] if names else platform.processor())
    return f"{os.cpu_count()} cores ({name}), Python {platform.python_version()}"


def cells_of(text: str) -> Rows:
    """The cells of the Markdown tables in a text, by the row's first cell and the column.

    >>> cells_of("| work | s |\\n|---|---|\\n| sort | 1.5 |\\n")
    {'sort': {'s': '1.5'}}
    """
    rows: Rows = {}
    before, columns = list[str](), list[str]()
    for line in text.splitlines():
        cells = line[2:-2].split(" | ") if line.startswith("| ") else []
        if line.startswith("|---"):
            columns = before
        elif cells and columns and len(cells) == len(columns):
            rows.setdefault(cells[0], {}).update(zip(columns[1:], cells[1:], strict=True))
        before = cells
        columns = columns if line.startswith("|") else []
    return rows


def numbers(cells: Iterable[str]) -> list[float]:
    """Those of the cells that are numbers."""
    plain = (cell.replace(",", "") for cell in cells)
    return [float(cell) for cell in plain if re.fullmatch(r"[\d.]+", cell)]


def findings(table: Mapping[str, Any], rows: Rows) -> list[str]:
    """A line for each number of a table that has moved, and for each row that was not measured."""
    names = table["columns"][1:]
    compared = [name for name in names if RATIO.match(name)] or names
    lines = []
    for title, *cells in table["rows"]:
        now = rows.get(title, {})
        for name, cell in zip(names, cells, strict=True):
            values = numbers([cell, now.get(name, "")])
            if name in compared and len(values) == 2 and max(values) > MOVED * min(values):
                lines.append(f"{title}, {name}: {cell} before, {now[name]} now")
        if not now:
            lines.append(f"{title}: not measured")
    return lines


def rewritten(section: str, table: Mapping[str, Any], rows: Rows, where: str) -> str:
    """The text of a table in performance.toml with new numbers, date and machine."""
    for title, *cells in table["rows"]:
        now = rows.get(title, {})
        new = [now.get(name, old) for name, old in zip(table["columns"][1:], cells, strict=True)]
        old_line, new_line = (
            f"    {json.dumps([title, *side], ensure_ascii=False)},\n" for side in (cells, new)
        )
        assert old_line in section, f"performance.toml has no line {old_line}"
        section = section.replace(old_line, new_line)
    for name, value in (("date", str(date.today())), ("machine", where)):
        section = re.sub(rf"^{name} = .*", f"{name} = {json.dumps(value)}", section, flags=re.M)
    return section


def output_of(command: str) -> str:
    """Run a command that begins with python; show what it prints, and return it."""
    words = [sys.executable, *command.split()[1:]]
    lines = []
    how = {"env": environment(), "cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(words, **how) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(f"{command} failed with exit status {process.returncode}")
    return "".join(lines)


def gpu() -> str:
    """The name of the GPU."""
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main() -> None:
    """Run the commands that have one of the words, compare and perhaps write.

    What a command has measured is written before the next one runs, which may fail.
    """
    parser = parser_of(__doc__, ("write", False, "change performance.toml, too"))
    parser.add_argument("words", nargs="*", metavar="WORD", help="of the commands to be run")
    arguments = parser.parse_args()
    text = BARS.read_text(encoding="utf-8")
    bars = tomllib.loads(text)
    head, *sections = text.split("[[table]]")
    found = []
    for number, table in enumerate(bars["table"]):
        printed = ""
        for command in table["command"].strip().splitlines():
            words = arguments.words
            if any(word in command for word in words) if words else "gpu.py" not in command:
                print(f"\n## {table['title']}\n\n`{command}`, {date.today()}, {machine()}.\n")
                try:
                    printed += output_of(command)
                except SystemExit as failed:
                    found.append(str(failed))
        if rows := cells_of(printed):
            found += [f"{table['title']}: {line}" for line in findings(table, rows)]
            usual, here = bars["usual_machine"], machine()
            where = gpu() if "gpu.py" in table["command"] else usual if usual in here else here
            sections[number] = rewritten(sections[number], table, rows, where)
            if arguments.write:
                BARS.write_text("[[table]]".join([head, *sections]), encoding="utf-8")
    print("\n## Moved by more than a quarter, or not measured\n", *found, sep="\n")
    if arguments.write:
        subprocess.run([sys.executable, ROOT / "docs" / "make_results.py"], check=True)


if __name__ == "__main__":
    main()
