"""Measures time and memory from ten thousand to ten million items, trials and templates.

    python benchmarks/scale.py
        measures everything
    python benchmarks/scale.py items lists --most 1e6
        measures two parts, up to a million

Measures: CPU seconds and the peak of the memory of a fresh process of one thread for each row and
    each of the sizes 10,000, 100,000 and so on. The table has the largest size.
    items: scale_items.py lists synthetic data sets of N items in each way that there is.
    lists: `likeness score`, `likeness evaluate --resamples 0` and `likeness evaluate` with 1,000
    resamples on synthetic trials between 20,000 items of 500 subjects with embeddings of 192 dims,
    as text and .parquet.
    search: `likeness identify` and `likeness retrieve` from files to the table, 512 dimensions,
    2,000 probes, without intervals, for galleries of up to a million.
Limits: pyarrow's reader of CSV with dictionary columns, the gather of both rows of each trial with
    their products, one np.sort of the scores, the bare product of probes and gallery in blocks;
    each in a fresh process that imports nothing else.
Needs: 8 GB of memory and 4 GB in the temporary folder. No data.
Takes: half an hour of one core on a quiet machine.
Gives: the table of section scale of docs/reference/performance.md. An exponent of 1 means that ten
    times as many items take ten times as long; n log n has 1.07 at a million, and n^2 has 2.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scale_items
from performance import HERE, cost, parser_of, row, table

from likeness.eval.formats import embeddings
from likeness.eval.formats.trials import write_scores, write_trials
from likeness.eval.similarity import score_trials
from likeness.eval.types import Embeddings, Trials

SUBJECTS, ITEMS_OF_SUBJECT = 500, 40  # of the lists
PROBES, PER_CLASS = 2_000, 10  # of the searches
MOST_FILES = MOST_TEMPLATES = 1_000_000
SUFFIXES = (".txt", ".parquet")
LIKENESS = [sys.executable, "-m", "likeness"]
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
PRODUCT = """
import sys, numpy as np
size, rng = int(sys.argv[1]), np.random.default_rng(0)
tile, probes = (rng.random((n, 512), dtype=np.float32) for n in (1 << 14, 2_000))
out = np.empty((512, 1 << 14), dtype=np.float32)
for start in range(0, size, 1 << 14):
    width = min(1 << 14, size - start)
    for first in range(0, 2_000, 512):
        x = probes[first : first + 512]
        np.matmul(x, tile[:width].T, out=out[: len(x), :width])
"""
# What a row of the table is called: a measurement, and the measurements that are its limit.
ROWS: dict[str, tuple[str, tuple[str, ...]]] = {
    "items of a CSV": ("csv", ()),
    "items of a RecordIO index": ("records", ()),
    "items of the indexes of tar shards": ("shards", ()),
    "items of a folder tree": ("tree", ()),
    "items one by one": ("generator", ()),
    "CSV, unique ids, labels, digest, an epoch's order": ("planned", ()),
    "score, text": ("score .txt", ("limit read", "limit products")),
    "score, .parquet": ("score .parquet", ("limit products",)),
    "evaluate without intervals, text": ("evaluate .txt", ("limit read", "limit sort")),
    "evaluate without intervals, .parquet": ("evaluate .parquet", ("limit sort",)),
    "evaluate, 1,000 resamples, text": ("intervals .txt", ("limit read", "limit sort")),
    "identify, 2,000 probes x 512": ("identify", ("product",)),
    "retrieve, 2,000 probes x 512": ("retrieve", ("product",)),
}


class Measured(NamedTuple):
    """One measurement: n items in so many CPU seconds, with this peak of memory in MB."""

    name: str
    n: int
    seconds: float
    megabytes: float


def measured(name: str, n: int, command: Sequence[str]) -> Measured:
    """Run a command in a fresh process."""
    spent = cost(command)
    point = Measured(name, n, spent.cpu_seconds, spent.megabytes)
    print(point, file=sys.stderr, flush=True)  # what is measured is worth keeping
    return point


def sizes(most: float) -> Iterator[int]:
    """10,000 and its tenfolds, up to `most`."""
    size = 10_000
    while size <= most:
        yield size
        size *= 10


def items(most: float) -> Iterator[Measured]:
    """Each way to list items, with the start of the process."""
    for name, (make, _) in scale_items.WORKS.items():
        for n in sizes(min(most, MOST_FILES) if name == "tree" else most):
            with tempfile.TemporaryDirectory() as folder:
                make(Path(folder), n)
                script = str(HERE / "scale_items.py")
                yield measured(name, n, [sys.executable, script, name, str(n), folder])


def write_lists(folder: Path, size: int) -> None:
    """Write embeddings, and trials and their scores in every format."""
    rng = np.random.default_rng(0)
    of_item = np.repeat(np.arange(SUBJECTS), ITEMS_OF_SUBJECT)
    ids = tuple(f"id{subject:05d}/clip{k:05d}" for k, subject in enumerate(of_item))
    rows = rng.standard_normal((SUBJECTS, 192))[of_item]
    rows += 3.5 * rng.standard_normal((of_item.size, 192))
    embedded = Embeddings(ids, rows)
    enrol, probe = rng.integers(of_item.size, size=(2, size), dtype=np.int32)
    same = rng.random(size) < 0.1
    subject = enrol[same] // ITEMS_OF_SUBJECT
    probe[same] = subject * ITEMS_OF_SUBJECT + probe[same] % ITEMS_OF_SUBJECT
    trials = Trials(ids, ids, enrol, probe, of_item[enrol] == of_item[probe])
    embeddings.write(folder / "e.npz", embedded)
    values = score_trials(trials, embedded)
    for suffix in SUFFIXES:
        write_trials(folder / f"t{suffix}", trials)
        write_scores(folder / f"s{suffix}", trials, values)


def lists(most: float) -> Iterator[Measured]:
    """Scoring and evaluating, and their limits."""
    for n in sizes(most):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_lists(folder, n)
            for suffix in SUFFIXES:
                files = [f"--trials={folder}/t{suffix}", f"--embeddings={folder}/e.npz"]
                out = f"--out={folder}/o{suffix}"
                yield measured(f"score {suffix}", n, [*LIKENESS, "score", *files, out])
                evaluate = [*LIKENESS, "evaluate", f"{folder}/s{suffix}"]
                yield measured(f"evaluate {suffix}", n, [*evaluate, "--resamples", "0"])
                yield measured(f"intervals {suffix}", n, evaluate)
            for title, code in LIMITS.items():
                yield measured(title, n, [sys.executable, "-c", code, name])


def write_side(path: Path, size: int, num_subjects: int, seed: int) -> None:
    """Write embeddings around drawn centres; ids are SUBJECT/NUMBER."""
    codes = np.arange(size) % num_subjects
    centres = np.random.default_rng(0).standard_normal((num_subjects, 512), dtype=np.float32)
    rows = np.random.default_rng(seed).standard_normal((size, 512), dtype=np.float32)
    for start in range(0, size, 1 << 14):
        part = slice(start, start + (1 << 14))
        rows[part] = 1.5 * rows[part] + centres[codes[part]]
    ids = tuple(f"{code}/{seed}-{k}" for k, code in enumerate(codes.tolist()))
    embeddings.write(path, Embeddings(ids, rows, {"similarity": "cosine"}))


def search(most: float) -> Iterator[Measured]:
    """Identification, retrieval and the bare product for each size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gallery, probes = folder / "gallery.npz", folder / "probes.npz"
        for n in sizes(min(most, MOST_TEMPLATES)):
            for task, num_subjects in (("identify", n), ("retrieve", n // PER_CLASS)):
                write_side(gallery, n, num_subjects, 1)
                write_side(probes, PROBES, num_subjects, 2)
                side = "--probes" if task == "identify" else "--embeddings"
                files = [side, str(probes), "--gallery", str(gallery), "--resamples", "0"]
                yield measured(task, n, [*LIKENESS, task, *files])
            yield measured("product", n, [sys.executable, "-c", PRODUCT, str(n)])


def exponent(points: Sequence[Measured]) -> float:
    """The exponent of the time between the two largest sizes; NaN where it cannot be told.

    What a process needs before it begins counts in small sizes only, so the time of the smallest
    size is taken off the others. That needs three sizes, and a second largest one that takes half
    as long again as the smallest.
    """
    if len(points) < 3 or points[-2].seconds < 1.5 * points[0].seconds:
        return math.nan
    before, last = (point.seconds - points[0].seconds for point in points[-2:])
    return math.log(last / before) / math.log(points[-1].n / points[-2].n)


def text_of(number: float, digits: str = ".3g") -> str:
    """A number with three digits that count, or nothing for NaN and 0."""
    if not number or math.isnan(number):
        return ""
    return f"{number:,.0f}" if number >= 100 else f"{number:{digits}}"


PARTS = {"items": items, "lists": lists, "search": search}


def main() -> None:
    """Measure the parts that the command names, and print a row for the largest size of each."""
    parser = parser_of(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--most", type=float, default=1e7, help="the largest size")
    arguments = parser.parse_args()
    points = [point for part in arguments.parts or PARTS for point in PARTS[part](arguments.most)]
    seconds = {(point.name, point.n): point.seconds for point in points}
    table("work", "n", "CPU s", "limit, CPU s", "ours/limit", "peak MB", "exponent")
    for title, (name, limits) in ROWS.items():
        if own := [point for point in points if point.name == name]:
            last = own[-1]
            least = sum(seconds[limit, last.n] for limit in limits)
            ratio = last.seconds / least if least else math.nan
            numbers = (text_of(last.seconds), text_of(least), text_of(ratio, ".1f"))
            peak = text_of(last.megabytes)
            row(title, f"{last.n:,}", *numbers, peak, text_of(exponent(own), ".2f"))


if __name__ == "__main__":
    main()
