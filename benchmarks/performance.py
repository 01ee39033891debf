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
    remarks stay. So does HEAD, whose table "In two minutes" repeats numbers of the sections: after
    a new measurement correct it by hand, and tests/test_reference.py says where.
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
    "hub",
    "image",
    "losses",
    "precision",
    "report",
    "scale",
    "speaker",
    "start_up",
    "stores",
    "train",
    "use",
    "use_gallery",
    "use_serve",
]


HEAD = """# Performance

This page says what Likeness costs beside other projects, and beside the least that the machine
needs. It is for people who want to know how long a job takes, and for people who change code that
has to stay fast. `make bench` measures everything and writes the tables of the sections.

## In two minutes
Machines with two CPU cores and no GPU were measured; [gpu](#gpu) alone is of a GPU. These numbers
stand in the sections that the last column names, with their commands; the third column follows
from them.

| question | measured | so | where |
|---|---|---|---|
| embed an hour of speech | ResNet34 with 6.6 M parameters, torch, one thread: 4.7 recordings of 3 s a second | 4 minutes | [use](#use), 2026-11-22 |
| the same by the model that comes along | likeness:voice, float32, one thread: 3.7 ms for each of 8 recordings of 3 s | 5 seconds | [precision](#precision), 2026-11-26 |
| embed 10,000 faces | IResNet50, torch, one thread: 6.0 a second; MobileFaceNet: 33.2 | 28 minutes; 5 minutes | [use](#use), 2026-11-22 |
| score trials | 10,000,000 in 7.65 s from text, in 3.70 s from .npz | a million in a second | [scale](#scale), 2026-11-26 |
| evaluate them | 10,000,000 in 4.04 s from text; with 1,000 resamples in 8.68 s | the same | [scale](#scale), 2026-11-26 |
| search a million templates | exact, 256 numbers each, 1 probe: 0.0381 s | 26 searches a second | [use_gallery](#use_gallery), 2026-11-21 |
| start | `likeness --help` 0.19 s, `verify` with an .onnx file 0.55 s, with a run folder 1.72 s of processor time | | [start_up](#start_up), 2026-11-27 |

Training is a matter of the network: the loop itself costs at most 15 % beside it
([train](#train)). What a service answers in a second is in [use_serve](#use_serve).

## How to read this page
Each section has the name of a script in `benchmarks/`. Its tables are what that script prints; some
scripts print more columns. The first line of a section gives the command, the date and the machine.
`make bench` runs all scripts with their defaults, and `python benchmarks/performance.py
eval_scoring` runs one of them. The docstring of each script says what is measured in detail.

- **ours** is Likeness.
- **peer** is another project that does the same work.
- **limit** is the least that the work needs, such as one sort of the scores, one matrix product or
  the bare network.

All three are measured in one run. Times are CPU time, the least of repeated runs; for losses the
median of the runs counts. Lower times are better, and so are lower ratios of times. Where a table
counts items a second, higher is better. Take the ratios to another machine, and not the times. What
is not in a table was not measured.

| section | what it measures |
|---|---|
| [eval_retrieval](#eval_retrieval) | retrieval metrics |
| [eval_scoring](#eval_scoring) | scoring of trials, AS-norm, reading of trial lists |
| [eval_verification](#eval_verification) | EER, minDCF, TAR, bootstrap intervals, identification |
| [face](#face) | alignment and augmentation of faces, RecordIO, the tables of IJB-C |
| [gpu](#gpu) | a GPU beside the CPU: values, training, embedding |
| [hub](#hub) | a network of the Hugging Face hub through `embed` |
| [image](#image) | training views, decoding, steps on MNIST, a test of retrieval |
| [losses](#losses) | every loss, forward and backward |
| [precision](#precision) | float16 and int8: size, speed and the difference of cosines |
| [report](#report) | the page of `likeness evaluate --report` in a browser |
| [scale](#scale) | time and memory from ten thousand to ten million; takes half an hour |
| [speaker](#speaker) | embeddings of recordings, the loader, embeddings to EER |
| [start_up](#start_up) | what a command costs before it does anything, and bytes installed |
| [stores](#stores) | galleries in SQLite, FAISS and PostgreSQL |
| [train](#train) | a training step beside the bare network |
| [use](#use) | torch against ONNX Runtime, and the start of the command line |
| [use_gallery](#use_gallery) | search in a gallery of a million |
| [use_serve](#use_serve) | the REST service under load |
"""  # noqa: E501  rows of a table


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


def sections() -> dict[str, str]:
    """The sections that the page has now, by the name of their script; those of HEAD left out."""
    if not PAGE.exists():
        return {}
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    by_name = {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}
    return {name: text for name, text in by_name.items() if f"\n## {name}\n" not in HEAD}


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
    texts = sections()
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
            HEAD + "".join(f"\n## {name}\n\n{text}\n" for name, text in sorted(texts.items())),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
