"""Measures time and memory of ten million items and trials, and a million templates.

    python benchmarks/scale.py
        measures everything
    python benchmarks/scale.py items lists --most 1e4
        measures two parts at a smaller size

Measures: CPU seconds and the peak of the memory of a fresh process of one thread for each row.
    items: synthetic data sets of N items are listed in each way that there is. No images are read.
    lists: `likeness score`, and `likeness evaluate` with 1,000 resamples, on synthetic trials
    between 20,000 items of 500 subjects with embeddings of 192 dims, as text.
    search: `likeness identify` and `likeness retrieve` from files to the table, 512 dimensions,
    2,000 probes, without intervals, for galleries of up to a million.
Limits: pyarrow's reader of CSV with dictionary columns, the gather of both rows of each trial with
    their products, one np.sort of the scores, the bare product of probes and gallery in blocks;
    each in a fresh process that imports nothing else.
Needs: 8 GB of memory and 4 GB in the temporary folder. No data.
Takes: half an hour of one core on a quiet machine.
Gives: the table "Scale" of docs/reference/performance.md.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from performance import Cost, cost, parser_of, row, table

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.formats.trials import write_scores, write_trials
from likeness.eval.items.item_lists import read_items
from likeness.eval.metrics.similarity import score_trials
from likeness.eval.types import Trials
from likeness.modalities import folders
from likeness.toolkit.data import shards
from likeness.toolkit.sources import source_of

SPEAKERS = 5_994  # of the items
SUBJECTS, ITEMS_OF_SUBJECT = 500, 40  # of the lists
PROBES, PER_CLASS = 2_000, 10  # of the searches
MOST = dict.fromkeys(("tree", "identify", "retrieve"), 1_000_000)
LIKENESS = [sys.executable, "-m", "likeness"]
LIMITS = {
    "limit read": "import sys, pyarrow as pa; from pyarrow import csv; "
    "ids = pa.dictionary(pa.int32(), pa.string()); "
    "csv.read_csv(sys.argv[1] + '/t.txt', csv.ReadOptions(column_names=list('epl')), "
    "csv.ParseOptions(delimiter=' '), "
    "csv.ConvertOptions(column_types=dict(e=ids, p=ids, l=pa.int8())))",
    "limit products": "import sys, numpy as np; "
    "m = np.load(sys.argv[1] + '/e.npz')['matrix']; t = np.load(sys.argv[1] + '/limits.npz'); "
    "e, p = t['enrol'], t['probe']; "
    "[np.vecdot(m[e[k:k + 682]], m[p[k:k + 682]]) for k in range(0, e.size, 682)]",
    "limit sort": "import sys, numpy as np; np.load(sys.argv[1] + '/limits.npz')['score'].sort()",
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
    "items of indexes of tar shards": ("shards", ()),
    "items of a folder tree": ("tree", ()),
    "score, text": ("score", ("limit read", "limit products")),
    "evaluate, 1,000 resamples, text": ("evaluate", ("limit read", "limit sort")),
    "identify, 2,000 probes x 512": ("identify", ("product",)),
    "retrieve, 2,000 probes x 512": ("retrieve", ("product",)),
}


def measured(name: str, command: Sequence[str]) -> tuple[str, Cost]:
    """The name, and what a command takes in a fresh process."""
    spent = cost(command)
    print(name, spent, file=sys.stderr, flush=True)  # what is measured is worth keeping
    return name, spent


def make_csv(folder: Path, n: int) -> None:
    """Write a list of items like those of VoxCeleb2."""
    with (folder / "items.csv").open("w") as file:
        file.write("id,path,label\n")
        for i in range(n):
            label = f"id{i * SPEAKERS // n:05d}"
            id = f"{label}/{i // 7:011d}/{i % 7:05d}.wav"
            file.write(f"{id},data/{id},{label}\n")


def make_tree(folder: Path, n: int) -> None:
    """Make a tree of empty files, 100 in each folder."""
    for i in range(n):
        if i % 100 == 0:
            inner = folder / f"{i // 1000:05d}" / f"{i // 100:07d}"
            inner.mkdir(parents=True)
        (inner / f"{i:08d}.jpg").touch()


def make_shards(folder: Path, n: int) -> None:
    """Write the indexes of shards of 10,000 items, beside files of holes."""
    for number, start in enumerate(range(0, n, 10_000)):
        numbers = range(min(10_000, n - start))
        names = [(f"{start + i:09d}", f"{(start + i) // 20:07d}") for i in numbers]
        rows = [[*names[i], ".jpg", 512 + 1024 * i, 512] for i in numbers]
        shard = folder / f"shard-{number:06d}.tar"
        with shard.open("wb") as file:
            file.truncate(512 + 1024 * len(rows) + 1024)
        text = json.dumps({"source": source_of(shard), "items": rows, "lone": []})
        shard.with_name(f"{shard.name}.index").write_text(text)


# Name: what makes the input of n items in a folder, and the work that is measured there.
Work = Callable[[Path], object]
WORKS: dict[str, tuple[Callable[[Path, int], object], Work]] = {
    "csv": (make_csv, lambda folder: read_items(folder / "items.csv")),
    "tree": (make_tree, lambda folder: folders.scan(folder, modality="image")),
    "shards": (make_shards, shards.items),
}


def items(most: int) -> Iterator[tuple[str, Cost]]:
    """Each way to list items, with the start of the process."""
    for name, (make, _) in WORKS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder), min(most, MOST.get(name, most)))
            yield measured(name, [sys.executable, __file__, "--list", name, folder])


def write_lists(folder: Path, size: int) -> None:
    """Write embeddings, and trials and their scores as text."""
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
    embedded.save(folder / "e.npz")
    values = score_trials(trials, embedded)
    np.savez(folder / "limits.npz", enrol=enrol, probe=probe, score=values)
    write_trials(folder / "t.txt", trials)
    write_scores(folder / "s.txt", trials, values)


def lists(most: int) -> Iterator[tuple[str, Cost]]:
    """Scoring and evaluating, and their limits."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_lists(folder, most)
        files = [f"--trials={folder}/t.txt", f"--embeddings={folder}/e.npz"]
        yield measured("score", [*LIKENESS, "score", *files, f"--out={folder}/o.txt"])
        yield measured("evaluate", [*LIKENESS, "evaluate", f"{folder}/s.txt"])
        for title, code in LIMITS.items():
            yield measured(title, [sys.executable, "-c", code, name])


def write_side(path: Path, size: int, num_subjects: int, seed: int) -> None:
    """Write embeddings around drawn centres; ids are SUBJECT/NUMBER."""
    codes = np.arange(size) % num_subjects
    centres = np.random.default_rng(0).standard_normal((num_subjects, 512), dtype=np.float32)
    rows = np.random.default_rng(seed).standard_normal((size, 512), dtype=np.float32)
    for start in range(0, size, 1 << 14):
        part = slice(start, start + (1 << 14))
        rows[part] = 1.5 * rows[part] + centres[codes[part]]
    ids = tuple(f"{code}/{seed}-{k}" for k, code in enumerate(codes.tolist()))
    Embeddings(ids, rows, {"similarity": "cosine"}).save(path)


def search(most: int) -> Iterator[tuple[str, Cost]]:
    """Identification, retrieval and the bare product."""
    n = min(most, MOST["identify"])
    with tempfile.TemporaryDirectory() as name:
        gallery, probes = Path(name) / "gallery.npz", Path(name) / "probes.npz"
        for task, num_subjects in (("identify", n), ("retrieve", n // PER_CLASS)):
            write_side(gallery, n, num_subjects, 1)
            write_side(probes, PROBES, num_subjects, 2)
            side = "--probes" if task == "identify" else "--embeddings"
            files = [side, str(probes), "--gallery", str(gallery), "--resamples", "0"]
            yield measured(task, [*LIKENESS, task, *files])
        yield measured("product", [sys.executable, "-c", PRODUCT, str(n)])


PARTS = {"items": items, "lists": lists, "search": search}


def main() -> None:
    """Measure the parts that the command names, and print a row for the largest size of each."""
    parser = parser_of(__doc__, ("most", 1e7, "the largest size"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--list", nargs=2, help="run one of the works of items in a folder")
    arguments = parser.parse_args()
    if arguments.list:
        name, folder = arguments.list
        WORKS[name][1](Path(folder))
        return
    most = int(arguments.most)
    spent = dict(pair for part in arguments.parts or PARTS for pair in PARTS[part](most))
    table("work", "n", "CPU s", "limit, CPU s", "peak MB")
    for title, (name, limits) in ROWS.items():
        if name in spent:
            n = min(most, MOST.get(name, most))
            least = sum(spent[limit].cpu_seconds for limit in limits)
            times = (f"{spent[name].cpu_seconds:.3g}", f"{least:.3g}" if limits else "")
            row(title, f"{n:,}", *times, f"{spent[name].megabytes:,.0f}")


if __name__ == "__main__":
    main()
