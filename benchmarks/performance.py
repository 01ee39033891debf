"""Runs the benchmarks one after the other and writes the rows that they print into
docs/performance.md, whose remarks stay.

    python benchmarks/performance.py
        all of them (make bench): about half an hour of one core
    python benchmarks/performance.py eval_scoring
        only this one; the rows of the others stay as they are

A section is the line with its command, which begins with "`", the rows of its tables, and remarks:
all other lines, written by hand. Every row is measured in one run: ours, the peer where it
installs, and the bare limit; what counts is their ratio.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
SCRIPTS = [
    *sorted(path.stem for path in HERE.glob("eval_*.py")),
    "face",
    "image",
    "losses",
    "speaker",
    "train",
    "use",
    "use_gallery",
    "use_serve",
]


HEAD = """# Performance

This page says what Likeness costs beside other projects, and beside the least that the machine
needs. It is for people who want to know how long a job takes, and for people who change code that
has to stay fast.

Each section has the name of a script in `benchmarks/`. Its tables are what that script prints; some
scripts print more columns. The first line of a section gives the command, the date and the machine.
`make bench` runs all scripts with their defaults and writes the tables into this page.
`python benchmarks/performance.py eval_scoring` runs one of them. The docstring of each script says
what is measured in detail.

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
| [image](#image) | training views, decoding, steps on MNIST, a test of retrieval |
| [losses](#losses) | every loss, forward and backward |
| [speaker](#speaker) | embeddings of recordings, the loader, embeddings to EER |
| [train](#train) | a training step beside the bare network |
| [use](#use) | torch against ONNX Runtime, and the start of the command line |
| [use_gallery](#use_gallery) | search in a gallery of a million |
| [use_serve](#use_serve) | the REST service under load |
"""


def machine() -> str:
    """The machine's shape in one line."""
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.partition(":")[2].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    name = names[0] if names else platform.processor()
    return f"{os.cpu_count()} cores ({name}), Python {platform.python_version()}"


def sections() -> dict[str, str]:
    """What the page holds now: script -> its section."""
    if not PAGE.exists():
        return {}
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}


def section(script: str, printed: str, before: str) -> str:
    """The text of a script's section: its command today, the rows among what it printed, and the
    remarks that were there before.
    """
    rows = "\n".join(
        line for line in printed.splitlines() if line.startswith("|") or not line
    )  # an empty line parts two tables
    by_hand = "\n".join(line for line in before.splitlines() if not line.startswith(("|", "`")))
    remarks = [one.strip("\n") for one in re.split(r"\n{2,}", by_hand) if one.strip()]
    command = (
        f"`python benchmarks/{script}.py`, {date.today().isoformat()}, {machine()}, one thread."
    )
    return "\n\n".join([command, re.sub(r"\n{3,}", "\n\n", rows).strip(), *remarks])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(SCRIPTS)}")
    given = parser.parse_args()
    unknown = sorted(set(given.scripts) - set(SCRIPTS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(SCRIPTS)}")
    made = sections()
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    for script in given.scripts or SCRIPTS:
        done = subprocess.run(
            [sys.executable, str(HERE / f"{script}.py")],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        print(done.stdout, flush=True)
        made[script] = section(script, done.stdout, made.get(script, ""))
        PAGE.write_text(
            HEAD + "".join(f"\n## {name}\n\n{text}\n" for name, text in sorted(made.items())),
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
