"""Measures what docs/reference/results.md reports, one job after another.

    python benchmarks/results.py --data ../shared/data --out runs/results
        (`make results`) runs what is missing
    python benchmarks/results.py --data ../shared/data --out runs/results --only an4,orl
        two of the jobs

Measures: nothing itself. Every job has the commands of tables of docs/reference/results.md; voxsrc
    has those of docs/explanation/comparing.md. What they print is OUT/NAME.md when they have
    succeeded, and what they say on the way is OUT/NAME.log. A job whose NAME.md is there is not run
    again; delete the file to repeat it. A job that was interrupted goes on where it was, because
    every script leaves its runs in a folder and trains what is missing.
Needs: what the scripts need, and the data sets in the folder of --data. A job whose data or package
    is missing fails, and the others go on.
Takes: a day of one core.
Gives: the numbers of docs/reference/results.toml, which are copied from these files by hand.
"""

import shlex
import subprocess
import sys
from pathlib import Path

from performance import ROOT, environment, parser_of

# Name: commands, one after the other, without the interpreter. {data} is the folder of the data
# sets, {out} the job's own folder.
JOBS: dict[str, list[str]] = {
    "an4": ["benchmarks/people.py an4 --data {data} --out {out}"],
    "speechocean": ["benchmarks/people.py speechocean --data {data} --out {out}"],
    "corpora": [
        "benchmarks/corpora.py --data {data} --out {out}",
        "benchmarks/small_voice.py --data {data} --out {out}",
        "-m likeness compare head_losses --seeds 3 --tune 5 --reference softmax "
        "--data {out}/estimated/an4+librispeech-to-speechocean.npz --out {out}/head-losses",
    ],
    "orl": ["benchmarks/people.py orl --data {data} --out {out}"],
    "voxsrc": [
        "-m likeness evaluate {data}/protocols/voxsrc23_val/scores.txt.gz "
        "--trials {data}/protocols/voxsrc23_val/trials.txt.gz --p-target 0.05 --p-target 0.01 "
        "--p-target 0.001",
        "benchmarks/scorers.py --data {data}",
    ],
    "mnist": [
        "-m likeness compare image/vmf:mnist --variants standard,hyperbolic,cosine,arcface,vmf "
        "--seeds 3 --reference standard --data {data} --out {out}",
    ],
    "omniglot": [
        "-m likeness compare image/omniglot --seeds 3 --reference softmax "
        "--data {data} --out {out}",
        "benchmarks/omniglot_peers.py --data {data} --seeds 3 --out {out}/peers",
    ],
    "omniglot-losses": [
        "-m likeness compare image/omniglot_losses --seeds 3 --tune 5 --reference softmax "
        "--data {data} --out {out}",
    ],
}


def main() -> None:
    """Run the jobs that are not done; the exit status is 1 where one of them fails."""
    only = ("only", ",".join(JOBS), "names of jobs, with commas")
    arguments = parser_of(__doc__, "data", "out", only).parse_args()
    out: Path = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    missing = [name for name in arguments.only.split(",") if not (out / f"{name}.md").exists()]
    failed = [name for name in missing if not run(name, arguments.data.resolve(), out)]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def run(name: str, data: Path, out: Path) -> bool:
    """Run one job; says whether all of its commands succeeded."""
    print(name, flush=True)
    unfinished = out / f"{name}.md.part"
    with unfinished.open("wb") as page, (out / f"{name}.log").open("ab") as log:
        for command in JOBS[name]:
            words = [word.format(data=data, out=out / name) for word in shlex.split(command)]
            where = {"cwd": ROOT, "env": environment(), "stdout": page, "stderr": log}
            if code := subprocess.run([sys.executable, *words], **where).returncode:
                print(f"{name}: exit status {code}", flush=True)
                return False
    unfinished.replace(out / f"{name}.md")
    return True


if __name__ == "__main__":
    main()
