"""What reading from tar shards costs: items per second as bytes and as waves, against the same
files in folders, bare tarfile and webdataset, in one run.

    python benchmarks/shards.py --data FOLDER [--out DIR] [--copies 20] [--repeats 5]

FOLDER holds SPEAKER/*.flac, e.g. ../shared/data/an4/wav; it is packed `copies` times over (with
other ids), so that a pass takes a while. Prints Markdown rows: the median over interleaved repeats,
and the ratio to files in folders. All from the page cache of one process: this is the cost of the
code, not of a disk. `window` reads in the order of Sampling(open_shards=4), `shuffled` in that of a
plain shuffle; the peers can only go front to back.
"""

from __future__ import annotations

import argparse
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from modalities.speaker import audio, folders
from toolkit.data import shards
from toolkit.data.batch import Item
from toolkit.data.sampling import Sampling, epoch_batches


def read_bytes(items: Sequence[Item]) -> int:
    total = 0
    for item in items:
        with item.open() as file:
            total += len(file.read())
    return total


def read_waves(items: Sequence[Item]) -> int:
    return sum(len(audio.read(item)) for item in items)


def bare_tarfile(paths: Sequence[Path]) -> int:
    total = 0
    for path in paths:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                total += len(file.read()) if member.name.endswith(".flac") else 0 * len(file.read())
    return total


def by_webdataset(paths: Sequence[Path]) -> int:
    dataset = import_module("webdataset").WebDataset
    return sum(
        len(sample["flac"]) for sample in dataset([str(path) for path in paths], shardshuffle=False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--copies", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.out) as temporary:
        measure(arguments.data, Path(temporary), arguments.copies, arguments.repeats)


def measure(data: Path, out: Path, copies: int, repeats: int) -> None:
    originals = [one for one in folders.scan(data) if one.suffix == ".flac"]
    files = [one._replace(id=f"{copy}/{one.id}") for copy in range(copies) for one in originals]
    started = time.perf_counter()
    paths = shards.write(files, out, shard_bytes=2**24)
    packing = time.perf_counter() - started
    for path in paths:
        path.with_name(f"{path.name}.index").unlink()
    started = time.perf_counter()
    shards.items(out)
    scanning = time.perf_counter() - started
    started = time.perf_counter()
    packed = shards.items(out)
    listing = time.perf_counter() - started
    size = sum(path.stat().st_size for path in paths)
    print(
        f"{len(files)} items in {len(paths)} shards, {size / 1e6:.0f} MB; packed at "
        f"{len(files) / packing:,.0f}, scanned at {len(files) / scanning:,.0f},"
    )
    print(f"listed from the index at {len(files) / listing:,.0f} items per second\n")
    labels, numbers = np.zeros(len(packed), dtype=np.int64), shards.shard_numbers(packed)
    windowed, shuffled = (
        [packed[i] for i in epoch_batches(labels, sampling, seed=0, epoch=0, shards=numbers)[:, 0]]
        for sampling in (Sampling(1, open_shards=4), Sampling(1))
    )
    shuffled_files = [files[i] for i in epoch_batches(labels, Sampling(1), seed=0, epoch=0)[:, 0]]
    few = max(1, len(files) // 8)
    rows: dict[str, tuple[int, str, Callable[[], int]]] = {
        "bytes, files in folders, shuffled": (
            len(files),
            "bytes",
            partial(read_bytes, shuffled_files),
        ),
        "bytes, shards, shuffled": (len(files), "bytes", partial(read_bytes, shuffled)),
        "bytes, shards, window": (len(files), "bytes", partial(read_bytes, windowed)),
        "bytes, bare tarfile, front to back": (len(files), "bytes", partial(bare_tarfile, paths)),
        "waves, files in folders, shuffled": (
            few,
            "waves",
            partial(read_waves, shuffled_files[:few]),
        ),
        "waves, shards, window": (few, "waves", partial(read_waves, windowed[:few])),
    }
    try:
        import_module("webdataset")
        rows["bytes, webdataset, front to back"] = (
            len(files),
            "bytes",
            partial(by_webdataset, paths),
        )
    except ImportError:
        print("webdataset is not installed: its row is missing\n")
    seconds: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeats + 1):
        for name, (_, _, work) in rows.items():
            started = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - started)
    print("| what | items per second | to files in folders |\n|---|---|---|")
    rates = {
        name: count / median(seconds[name][1:]) for name, (count, _, _) in rows.items()
    }  # the first pass warms the cache
    for name, (_, kind, _) in rows.items():
        print(
            f"| {name} | {rates[name]:,.0f} | "
            f"{rates[name] / rates[f'{kind}, files in folders, shuffled']:.2f} |"
        )


if __name__ == "__main__":
    main()
