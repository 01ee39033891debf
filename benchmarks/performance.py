"""Runs the benchmarks one after the other and writes docs/performance.md from the rows that they print.

    python benchmarks/performance.py                    all of them (make bench): about half an hour of one core
    python benchmarks/performance.py eval_scoring       only this one; the rows of the others stay as they are

Every row is measured in one run: ours, the peer where it installs, and the bare limit; what counts is their ratio.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
SCRIPTS = [*sorted(path.stem for path in HERE.glob("eval_*.py")), "face", "image", "losses", "speaker", "train", "use", "use_gallery", "use_serve"]


def machine() -> str:
    """The machine's shape in one line."""
    info = Path("/proc/cpuinfo")
    names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")] if info.exists() else []
    return f"{os.cpu_count()} cores ({names[0] if names else platform.processor()}), Python {platform.python_version()}"


def sections() -> dict[str, str]:
    """What the page holds now: script -> its section."""
    if not PAGE.exists():
        return {}
    parts = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {part.partition("\n")[0].strip(): part.partition("\n")[2].strip() for part in parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join(SCRIPTS)}")
    given = parser.parse_args()
    unknown = sorted(set(given.scripts) - set(SCRIPTS))
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(SCRIPTS)}")
    made = sections()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    for script in given.scripts or SCRIPTS:
        done = subprocess.run([sys.executable, str(HERE / f"{script}.py")], env=environment, stdout=subprocess.PIPE, text=True, check=True)
        print(done.stdout, flush=True)
        rows = "\n".join(line for line in done.stdout.splitlines() if line.startswith("|") or not line)  # an empty line parts two tables
        made[script] = f"`python benchmarks/{script}.py`, {date.today().isoformat()}, {machine()}, one thread.\n\n{rows.strip()}"
        head = """# Performance

Written by `make bench`. CPU time, the least of repeated runs (of losses: the median); ours, the peer and the bare limit in one run. The ratios are what
travels to another machine. What is not in a table was not measured.
"""
        PAGE.write_text(head + "".join(f"\n## {name}\n\n{text}\n" for name, text in sorted(made.items())), encoding="utf-8")


if __name__ == "__main__":
    main()
