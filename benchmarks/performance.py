"""Runs the benchmarks in turn and writes their tables into docs/reference/performance.md.

    python benchmarks/performance.py
        runs all of them (`make bench`)
    python benchmarks/performance.py eval_scoring
        runs only this script; the tables of the others stay as they are

Measures: nothing itself. Every script measures our code, a peer and a bare limit in one run, and
    what counts is their ratio. What the scripts share stands here: how they take times, how they
    start a process of one thread, and how they print a table.
Needs: what the scripts need. `make bench` installs pytorch-metric-learning, which most of them have
    as their peer, and AN4 is read from ../shared/data.
Takes: about an hour of one core; the losses alone take ten minutes.
Gives: every section of docs/reference/performance.md. A section is the line with its command, which
    begins with "`", then the rows of its tables, then remarks that were written by hand. The
    remarks stay. So does what stands before the first section, whose table "In two minutes" repeats
    numbers of the sections: after a new measurement correct it by hand.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "reference" / "performance.md"
SCRIPTS = [
    *sorted(path.stem for path in HERE.glob("eval_*.py")),
    "face",
    "image",
    "losses",
    "precision",
    "scale",
    "speaker",
    "start_up",
    "stores",
    "train",
    "use",
    "use_serve",
]


# ---------------------------------------------------------------- what the scripts share


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """A parser of arguments whose help begins with the script's docstring, line by line."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def sizes_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser for a script that measures growing sizes, up to --most."""
    parser = parser_of(doc)
    parser.add_argument("--most", type=float, default=1e7, help="the largest size")
    return parser


def sizes(most: float) -> Iterator[int]:
    """10,000 and its tenfolds, up to `most`."""
    size = 10_000
    while size <= most:
        yield size
        size *= 10


def row(*cells: object) -> None:
    """Print a row of a Markdown table at once, so that a long run shows what it has."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def table(*headings: str) -> None:
    """Print the first two lines of a Markdown table."""
    row(*headings)
    print(f"|{'---|' * len(headings)}", flush=True)


def least_cpu_seconds(work: Callable[[], Any], repeats: int) -> tuple[float, Any]:
    """Run the work several times; returns the least CPU seconds and what the last run returned."""
    least, result = float("inf"), None
    for _ in range(repeats):
        started = time.process_time()
        result = work()
        least = min(least, time.process_time() - started)
    return least, result


def results_in_turn(
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


def in_turn(
    works: Sequence[Callable[[], Any]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.process_time,
) -> list[float]:
    """The least CPU seconds of every work; see results_in_turn."""
    return [seconds for seconds, _ in results_in_turn(works, repeats, clock=clock)]


def environment() -> dict[str, str]:
    """The environment of a process that imports from this clone."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path}


def environment_of_one_thread() -> dict[str, str]:
    """The environment of a process that imports from this clone and computes with one thread."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return environment() | threads


def json_of_process(script: str, *arguments: str) -> Any:
    """Run a script again in a fresh process of one thread; returns the JSON of its last line."""
    process = subprocess.run(
        [sys.executable, script, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=environment_of_one_thread(),
    )
    return json.loads(process.stdout.splitlines()[-1])


def warn_of_many_threads() -> None:
    """Say on standard error that OMP_NUM_THREADS has to be 1, where it is not."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print(
            "Set OMP_NUM_THREADS=1 before Python starts: the CPU time of many threads is not "
            "comparable.",
            file=sys.stderr,
        )


def is_installed(module: str, package: str) -> bool:
    """Whether a peer can be imported; where it cannot, say so in one sentence on standard error."""
    if importlib.util.find_spec(module) is not None:
        return True
    print(
        f"{package} is not installed, so it is left out: `pip install {package}` adds it.",
        file=sys.stderr,
    )
    return False


# ---------------------------------------------------------------- the page


def machine() -> str:
    """The machine's shape in one line."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = re.sub(r"\((R|TM)\)| (Processor|CPU)\b", "", names[0] if names else platform.processor())
    return f"{os.cpu_count()} cores ({name}), Python {platform.python_version()}"


def parts() -> tuple[str, dict[str, str]]:
    """What stands before the sections, and the sections by the name of their script."""
    head, *texts = re.split(r"\n## (?=[a-z_]+\n)", PAGE.read_text(encoding="utf-8"))
    by_name = {text.partition("\n")[0]: text.partition("\n")[2].strip() for text in texts}
    return head, by_name


def section(script: str, printed: str, before: str) -> str:
    """The text of a script's section.

    Args:
        script: Its name without ".py".
        printed: What it printed. Rows and the empty lines between two tables are taken from it.
        before: The section as it was, of which the remarks stay.

    Returns:
        The line with the command of today, the tables, and the remarks.
    """
    rows = "\n".join(line for line in printed.splitlines() if line.startswith("|") or not line)
    by_hand = "\n".join(line for line in before.splitlines() if not line.startswith(("|", "`")))
    remarks = [text.strip("\n") for text in re.split(r"\n{2,}", by_hand) if text.strip()]
    command = (
        f"`python benchmarks/{script}.py`, {date.today().isoformat()}, {machine()}, one thread."
    )
    return "\n\n".join([command, re.sub(r"\n{3,}", "\n\n", rows).strip(), *remarks])


def main() -> None:
    """Run the scripts that the command names, and write the page after each of them."""
    parser = parser_of(__doc__)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(SCRIPTS)}")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.scripts) - set(SCRIPTS))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; choose of {', '.join(SCRIPTS)}")
    head, texts = parts()
    for script in arguments.scripts or SCRIPTS:
        process = subprocess.run(
            [sys.executable, str(HERE / f"{script}.py")],
            env=environment_of_one_thread(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(process.stdout, flush=True)
        texts[script] = section(script, process.stdout, texts.get(script, ""))
        PAGE.write_text(
            head + "".join(f"\n## {name}\n\n{text}\n" for name, text in sorted(texts.items())),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
