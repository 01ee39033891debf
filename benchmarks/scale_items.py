"""Lists synthetic data sets of N items in each way that there is; scale.py starts it.

    python benchmarks/scale_items.py csv 10000 FOLDER

Measures: nothing itself. Nothing but lists is read: no images and no sound. scale.py makes the
    input of a work in FOLDER, and measures the process that works on it.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from likeness.modalities import folders
from likeness.modalities.face import recordio
from likeness.toolkit.data import shards
from likeness.toolkit.data.item_lists import read_items
from likeness.toolkit.data.items import Item, Items, check_unique, fingerprint, label_numbers
from likeness.toolkit.data.sampling import Sampling, epoch_batches

SPEAKERS = 5_994


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
        size = 512 + 1024 * len(rows) + 1024
        with shard.open("wb") as file:
            file.truncate(size)
        text = json.dumps({"bytes": size, "items": rows})
        shard.with_name(f"{shard.name}.index").write_text(text)


def make_records(folder: Path, n: int) -> None:
    """Write a .rec file whose images have 20 bytes, and its index."""
    with (folder / "train.rec").open("wb") as rec, (folder / "train.idx").open("w") as idx:
        for i in range(n):
            rec.write(struct.pack("<IIIfQQ", 0xCED7230A, 44, 0, i // 20, i, 0) + b"\xff" * 20)
            idx.write(f"{i}\t{52 * i}\n")


def plan(folder: Path, n: int) -> None:
    """Do what a plan and one epoch do with the items of a list."""
    items = read_items(folder / "items.csv")
    check_unique(items, "items")
    labels = label_numbers(items)[1]
    fingerprint(items)
    epoch_batches(labels, Sampling(128), seed=0, epoch=0)


Work = Callable[[Path, int], object]
# Name: what makes the input in a folder, and the work that is measured.
WORKS: dict[str, tuple[Work, Work]] = {
    "generator": (
        make_nothing,
        lambda folder, n: Items.of(Item(id, Path(path), label) for id, path, label in generated(n)),
    ),
    "csv": (make_csv, lambda folder, n: read_items(folder / "items.csv")),
    "tree": (make_tree, lambda folder, n: folders.scan(folder, modality="image")),
    "shards": (make_shards, lambda folder, n: shards.items(folder)),
    "records": (make_records, lambda folder, n: recordio.items(folder / "train.rec")),
    "planned": (make_csv, plan),
}


if __name__ == "__main__":
    WORKS[sys.argv[1]][1](Path(sys.argv[3]), int(sys.argv[2]))
