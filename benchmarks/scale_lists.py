"""Measures time and memory of scoring and evaluating lists of ten thousand to ten million trials.

    OMP_NUM_THREADS=1 python benchmarks/scale_lists.py [--most 1e7]

Measures: `likeness score`, `likeness evaluate --resamples 0` and `likeness evaluate` with 1,000
    resamples on synthetic trials between 20,000 items of 500 subjects with embeddings of 192 dims,
    as text, .parquet and .npz; each in a fresh process. CPU seconds and the peak of its memory.
Peers: none.
Limits: pyarrow's reader of CSV with dictionary columns, the gather of both rows of each trial with
    their products, one np.sort of the scores; each in a fresh process that imports nothing else.
Needs: pyarrow. No data.
Takes: ten minutes of one core, and 3 GB of disk in the folder for temporary files.
Gives: lines `name,n,seconds,peak_mb`, from which scale.py makes a table and a picture.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from performance import sizes, sizes_parser, warn_of_many_threads

from eval.formats import embeddings
from eval.formats.trials import write_scores, write_trials
from eval.similarity import score_trials
from eval.types import Embeddings, Trials

SUBJECTS, ITEMS_OF_SUBJECT, DIM = 500, 40, 192
SUFFIXES = (".txt", ".parquet", ".npz")
# A process begins with the peak of the one that it was started by, so that one has to be small.
_LAUNCH = """
import os, sys
pid = os.posix_spawn(
    sys.argv[1], sys.argv[1:], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)]
)
_, status, used = os.wait4(pid, 0)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)
sys.exit(bool(status))
"""
LIMITS = {
    "limit read": "import sys, pyarrow as pa; from pyarrow import csv; "
    "ids = pa.dictionary(pa.int32(), pa.string()); "
    "csv.read_csv(sys.argv[1] + '/t.txt', csv.ReadOptions(column_names=list('epl')), "
    "csv.ParseOptions(delimiter=' '), "
    "csv.ConvertOptions(column_types=dict(e=ids, p=ids, l=pa.int8())))",
    "limit products": "import sys, numpy as np; "
    "m = np.load(sys.argv[1] + '/e.npz')['matrix']; t = np.load(sys.argv[1] + '/t.npz'); "
    "e, p = t['enrol'], t['probe']; "
    "[np.vecdot(m[e[k:k + 682]], m[p[k:k + 682]]) for k in range(0, e.size, 682)]",
    "limit sort": "import sys, numpy as np; np.load(sys.argv[1] + '/s.npz')['score'].sort()",
}


def inputs(folder: Path, size: int) -> None:
    """Writes the embeddings, and the trials and their scores in every format."""
    rng = np.random.default_rng(0)
    of_item = np.repeat(np.arange(SUBJECTS), ITEMS_OF_SUBJECT)
    ids = tuple(f"id{subject:05d}/clip{k:05d}" for k, subject in enumerate(of_item))
    rows = rng.standard_normal((SUBJECTS, DIM))[of_item]
    rows += 3.5 * rng.standard_normal((of_item.size, DIM))
    embedded = Embeddings(ids, rows)
    enrol, probe = rng.integers(of_item.size, size=(2, size), dtype=np.int32)
    same = rng.random(size) < 0.1
    probe[same] = (
        enrol[same] // ITEMS_OF_SUBJECT * ITEMS_OF_SUBJECT + probe[same] % ITEMS_OF_SUBJECT
    )
    trials = Trials(ids, ids, enrol, probe, of_item[enrol] == of_item[probe])
    embeddings.write(folder / "e.npz", embedded)
    values = score_trials(trials, embedded)
    for suffix in SUFFIXES:
        write_trials(folder / f"t{suffix}", trials)
        write_scores(folder / f"s{suffix}", trials, values)


def measured(command: list[str]) -> tuple[float, float]:
    """CPU seconds and the peak of the memory (MB) of a fresh process and its children."""
    lean = [sys.executable, "-I", "-S", "-c", _LAUNCH, *command]
    answer = subprocess.run(lean, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed: {answer.stderr[-500:]}")
    seconds, peak = answer.stdout.splitlines()[-1].split()
    return float(seconds), float(peak)


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The name of each measurement and its command."""
    likeness = [sys.executable, "-m", "likeness"]
    for suffix in SUFFIXES:
        files = f"--trials {folder}/t{suffix} --embeddings {folder}/e.npz --out {folder}/o{suffix}"
        yield f"score {suffix}", [*likeness, "score", *files.split()]
        evaluate = [*likeness, "evaluate", f"{folder}/s{suffix}"]
        yield f"evaluate {suffix}", [*evaluate, "--resamples", "0"]
        yield f"evaluate with intervals {suffix}", evaluate
    for name, code in LIMITS.items():
        yield name, [sys.executable, "-c", code, str(folder)]


def measure(counts: Iterable[int]) -> Iterator[str]:
    """The line of each measurement."""
    for size in counts:
        with tempfile.TemporaryDirectory() as folder:
            inputs(Path(folder), size)
            for name, command in commands(Path(folder)):
                seconds, peak = measured(command)
                yield f"{name},{size},{seconds:.2f},{peak:.0f}"


def main() -> None:
    """Prints the lines."""
    options = sizes_parser(__doc__).parse_args()
    warn_of_many_threads()
    for line in measure(sizes(options.most)):
        print(line, flush=True)


if __name__ == "__main__":
    main()
