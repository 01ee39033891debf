"""Measures what data sets of millions of items cost: seconds of CPU and megabytes of memory.

    python benchmarks/scale_items.py [--most 1e7] [--only NAME ...]

Measures: listing synthetic data sets of N items in each way that there is, and what a plan does
    with them. Nothing but lists is read: no images and no sound. Each way runs in a fresh process,
    which makes its input in a temporary folder first.
Peer: none.
Limits: the size of the lists themselves.
Needs: nothing beyond the toolkit.
Takes: ten minutes of one core, and 2 GB of disk in the folder for temporary files.
Gives: lines `name,n,seconds,peak_mb`, from which scale.py makes a table.
"""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from performance import sizes, sizes_parser

from modalities import folders
from modalities.face import recordio
from toolkit.data import shards
from toolkit.data.item_lists import read_items
from toolkit.data.items import Item, Items, check_unique, fingerprint, label_numbers
from toolkit.data.sampling import Sampling, epoch_batches

SPEAKERS = 5_994
_MOST_FILES = 1_000_000  # of a folder tree: these are real files, though empty


def generated(n: int) -> Iterator[tuple[str, str, str]]:
    """Yield the id, the path and the label of n items like those of VoxCeleb2."""
    for i in range(n):
        label = f"id{i * SPEAKERS // n:05d}"
        id = f"{label}/{i // 7:011d}/{i % 7:05d}.wav"
        yield id, f"data/{id}", label


def make_nothing(folder: Path, n: int) -> None:
    """Make no input."""


def make_csv(folder: Path, n: int) -> None:
    """Write a list with a header."""
    with (folder / "items.csv").open("w") as file:
        file.write("id,path,label\n")
        file.writelines(f"{id},{path},{label}\n" for id, path, label in generated(n))


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
        rows = [
            [f"{i:09d}", f"{i // 20:07d}", ".jpg", 512 + 1024 * (i - start), 512]
            for i in range(start, min(n, start + 10_000))
        ]
        shard = folder / f"shard-{number:06d}.tar"
        with shard.open("wb") as file:
            file.truncate(512 + 1024 * len(rows) + 1024)
        header = {
            "likeness_index": 1,
            "shard": shard.name,
            "bytes": shard.stat().st_size,
            "items": len(rows),
        }
        shard.with_name(f"{shard.name}.index").write_text(
            "".join(json.dumps(row) + "\n" for row in (header, *rows))
        )


def make_records(folder: Path, n: int) -> None:
    """Write a .rec file whose images have 20 bytes, and its index."""
    block = 2**16
    with (folder / "train.rec").open("wb") as rec, (folder / "train.idx").open("w") as idx:
        for start in range(0, n, block):
            stop = min(n, start + block)
            rec.write(
                b"".join(
                    struct.pack("<IIIfQQ", 0xCED7230A, 44, 0, i // 20, i, 0) + b"\xff" * 20
                    for i in range(start, stop)
                )
            )
            idx.writelines(f"{i}\t{52 * i}\n" for i in range(start, stop))


def do_nothing(folder: Path, n: int) -> None:
    """Do nothing: what memory the imports alone take."""


def list_generated(folder: Path, n: int) -> Items:
    """Put a generator's items into columns."""
    return Items.of(Item(id, Path(path), label) for id, path, label in generated(n))


def list_csv(folder: Path, n: int) -> Items:
    """Read a list."""
    return read_items(folder / "items.csv")


def list_tree(folder: Path, n: int) -> Items:
    """List a folder tree."""
    return folders.scan(folder, modality="image")


def list_shards(folder: Path, n: int) -> Items:
    """List tar shards by their indexes."""
    return shards.items(folder)


def list_records(folder: Path, n: int) -> Items:
    """List a RecordIO file by its index."""
    return recordio.items(folder / "train.rec")


def plan_csv(folder: Path, n: int) -> None:
    """Do what a plan and one epoch do with the items of a list."""
    items = list_csv(folder, n)
    check_unique(items, "items")
    labels = label_numbers(items)[1]
    fingerprint(items)
    epoch_batches(labels, Sampling(128), seed=0, epoch=0)


Make = Callable[[Path, int], None]
WORKS: dict[str, tuple[Make, Callable[[Path, int], object]]] = {
    "items_imports": (make_nothing, do_nothing),
    "items_of_generator": (make_nothing, list_generated),
    "items_of_csv": (make_csv, list_csv),
    "items_of_tree": (make_tree, list_tree),
    "items_of_shards": (make_shards, list_shards),
    "items_of_records": (make_records, list_records),
    "items_planned": (make_csv, plan_csv),
}


def run(name: str, n: int, folder: Path) -> None:
    """Do one work on the input in a folder, and print its line."""
    began = time.process_time()
    WORKS[name][1](folder, n)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name},{n},{seconds:.2f},{peak:.0f}")


def main() -> None:
    """Measure every work at every size, each in a fresh process."""
    parser = sizes_parser(__doc__)
    parser.add_argument("--only", nargs="+", default=list(WORKS), choices=list(WORKS))
    parser.add_argument("--folder", type=Path, help="the input is there (for a fresh process)")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        run(arguments.only[0], int(arguments.most), arguments.folder)
        return
    for name in arguments.only:
        most = min(arguments.most, _MOST_FILES) if name == "items_of_tree" else arguments.most
        for n in sizes(most):
            with tempfile.TemporaryDirectory() as folder:
                WORKS[name][0](Path(folder), n)
                subprocess.run(
                    [
                        sys.executable,
                        __file__,
                        *f"--only {name} --most {n} --folder".split(),
                        folder,
                    ],
                    check=True,
                )


if __name__ == "__main__":
    main()
