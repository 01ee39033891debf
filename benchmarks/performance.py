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

Tables are printed by the command of each section, some with more columns; `make bench` runs all
with their defaults. CPU time, the least of repeated runs (of losses: the median); ours, the peer
and the bare limit in one run. The ratios are what travels to another machine. What is not in a
table was not measured.
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
