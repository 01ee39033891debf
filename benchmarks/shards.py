"""Measures what reading from tar shards costs: items per second, as bytes and as waves.

    python benchmarks/shards.py --data FOLDER [--out DIR] [--copies 20] [--repeats 5]

Measures: FOLDER holds SPEAKER/*.flac, for example ../shared/data/an4/wav. It is packed `copies`
    times over, with other ids, so that a pass takes a while. The median of the wall-clock seconds
    of interleaved repeats counts. All comes from the page cache of one process: this is the cost of
    the code, not of a disk. `window` reads in the order of Sampling(open_shards=4), `shuffled` in
    that of a plain shuffle.
Peer: webdataset, which can only go front to back.
Limits: the same files in folders; Python's tarfile, front to back.
Needs: `pip install "webdataset>=1,<2"`; without it that row is missing.
Takes: two minutes of one core and 0.6 GB of disk with 20 copies of AN4.
Gives: one table, which no page of docs holds: run it when the reader of shards changes.
"""

from __future__ import annotations

import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from performance import is_installed, parser_of, row, table

from modalities import folders
from modalities.speaker import audio
from toolkit.data import shards
from toolkit.data.items import Item
from toolkit.data.sampling import Sampling, epoch_batches


class Reading(NamedTuple):
    """A row of the table: a way to read some items."""

    count: int  # of items
    kind: str  # "bytes" or "waves": rates are compared within a kind
    work: Callable[[], int]


def read_bytes(items: Sequence[Item]) -> int:
    """Read every item's bytes; returns how many there are."""
    total = 0
    for item in items:
        with item.open() as file:
            total += len(file.read())
    return total


def read_waves(items: Sequence[Item]) -> int:
    """Decode every item; returns the number of samples."""
    return sum(len(audio.read(item)) for item in items)


def bare_tarfile(paths: Sequence[Path]) -> int:
    """Read all members of all archives with tarfile; returns the bytes of the recordings."""
    total = 0
    for path in paths:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                content = file.read()
                total += len(content) if member.name.endswith(".flac") else 0
    return total


def by_webdataset(paths: Sequence[Path]) -> int:
    """Read all samples of all archives with webdataset; returns the bytes of the recordings."""
    dataset = import_module("webdataset").WebDataset
    return sum(
        len(sample["flac"]) for sample in dataset([str(path) for path in paths], shardshuffle=False)
    )


def seconds_of(work: Callable[[], object]) -> float:
    """The wall-clock seconds of one run."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def pack(files: Sequence[Item], out: Path) -> list[Path]:
    """Pack the files into shards, print what packing and listing cost; returns the shards."""
    started = time.perf_counter()
    paths = shards.write(files, out, shard_bytes=2**24)
    packing = time.perf_counter() - started
    for path in paths:
        path.with_name(f"{path.name}.index").unlink()
    scanning = seconds_of(lambda: shards.items(out))  # writes the index again
    listing = seconds_of(lambda: shards.items(out))
    size = sum(path.stat().st_size for path in paths)
    print(
        f"{len(files)} items in {len(paths)} shards, {size / 1e6:.0f} MB; packed at "
        f"{len(files) / packing:,.0f}, scanned at {len(files) / scanning:,.0f},"
    )
    print(f"listed from the index at {len(files) / listing:,.0f} items per second\n")
    return paths


def readings(files: Sequence[Item], paths: Sequence[Path], out: Path) -> dict[str, Reading]:
    """The rows of the table by their names."""
    packed = shards.items(out)
    labels, numbers = np.zeros(len(packed), dtype=np.int64), shards.shard_numbers(packed)
    windowed, shuffled = (
        [packed[i] for i in epoch_batches(labels, sampling, seed=0, epoch=0, shards=numbers)[:, 0]]
        for sampling in (Sampling(1, open_shards=4), Sampling(1))
    )
    shuffled_files = [files[i] for i in epoch_batches(labels, Sampling(1), seed=0, epoch=0)[:, 0]]
    count, few = len(files), max(1, len(files) // 8)
    works: dict[str, tuple[int, Callable[[], int]]] = {
        "bytes, files in folders, shuffled": (count, partial(read_bytes, shuffled_files)),
        "bytes, shards, shuffled": (count, partial(read_bytes, shuffled)),
        "bytes, shards, window": (count, partial(read_bytes, windowed)),
        "bytes, bare tarfile, front to back": (count, partial(bare_tarfile, paths)),
        "waves, files in folders, shuffled": (few, partial(read_waves, shuffled_files[:few])),
        "waves, shards, window": (few, partial(read_waves, windowed[:few])),
    }
    if is_installed("webdataset", "webdataset"):
        works["bytes, webdataset, front to back"] = (count, partial(by_webdataset, paths))
    return {
        name: Reading(number, name.partition(",")[0], work)
        for name, (number, work) in works.items()
    }


def measure(data: Path, out: Path, copies: int, repeats: int) -> None:
    """Pack the folder, read it in every way, and print the table."""
    originals = [item for item in folders.scan(data) if item.suffix == ".flac"]
    if not originals:
        raise SystemExit(f"{data}: it holds no SPEAKER/*.flac; name a folder that does")
    files = [item._replace(id=f"{copy}/{item.id}") for copy in range(copies) for item in originals]
    rows = readings(files, pack(files, out), out)
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeats + 1):  # the first pass warms the cache
        for name, reading in rows.items():
            seconds[name].append(seconds_of(reading.work))
    rates = {name: rows[name].count / median(seconds[name][1:]) for name in rows}
    table("what", "items per second", "to files in folders")
    for name, reading in rows.items():
        in_folders = rates[f"{reading.kind}, files in folders, shuffled"]
        row(name, f"{rates[name]:,.0f}", f"{rates[name] / in_folders:.2f}")


def main() -> None:
    """Measure in a temporary folder, which is removed."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="holds SPEAKER/*.flac")
    parser.add_argument("--out", type=Path, help="where the temporary folder is made")
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.out) as temporary:
        measure(arguments.data, Path(temporary), arguments.copies, arguments.repeats)


if __name__ == "__main__":
    main()
