"""What tests/test_writes.py runs: killed.py FOLDER KIND ... writes each kind of file again and
again, in processes that are killed at given calls.

Prints JSON: {kind: [kills, times that the old one was there, times the new one, what else was
there]}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from likeness.eval.formats import embeddings
from likeness.eval.types import Embeddings
from likeness.toolkit.gallery.gallery import open_gallery
from likeness.toolkit.models import checkpoint

NUM_POINTS = 16
CALLS = ("replace", "rename", "fsync", "mkdir", "rmdir", "unlink", "execute", "executemany")
Write = Callable[[Path, int], None]
Read = Callable[[Path], object]


def embedded(version: int, num: int = 40) -> Embeddings:
    """Ids in another order, and of another model, in each version."""
    ids = tuple(f"i{k}" for k in range(num))
    rows = np.arange(num * 4, dtype=np.float32).reshape(num, 4) + 1000 * version
    first = version % num
    return Embeddings(ids[first:] + ids[:first], rows, {"model": str(version)})


def write_table(suffix: str) -> Write:
    def write(folder: Path, version: int) -> None:
        embeddings.write(folder / f"e{suffix}", embedded(version))

    return write


def read_table(name: str, missing: object = None) -> Read:
    def read(folder: Path) -> object:
        try:
            loaded = embeddings.read(folder / name)
        except FileNotFoundError:
            return missing
        return [loaded.ids, loaded.matrix.tolist(), dict(loaded.meta)]

    return read


def write_model(folder: Path, version: int) -> None:
    checkpoint.save(
        folder / "m.safetensors",
        {"a": torch.full((1000,), float(version))},
        {"version": version},
        "t/1",
    )


def read_model(folder: Path) -> object:
    tensors, state = checkpoint.load(folder / "m.safetensors", "t/1")
    assert bool((tensors["a"] == state["version"]).all())
    return state["version"]


def write_gallery(folder: Path, version: int) -> None:
    gallery = open_gallery(folder / "gallery", {"similarity": "cosine"})
    loaded = Embeddings(
        tuple("abcdef"),
        np.arange(24, dtype=np.float32).reshape(6, 4) + version,
        {"similarity": "cosine"},
    )
    (gallery.update if len(gallery) else gallery.enrol)(loaded, list("xxyyzz"))
    gallery.close()


def read_gallery(folder: Path) -> object:
    gallery = open_gallery(folder / "gallery", {"similarity": "cosine"})
    result = [(entry.subject, entry.enrolments, entry.norm) for entry in gallery.entries()]
    gallery.close()
    return result


MADE: dict[str, tuple[Write, Read]] = {
    "npz": (write_table(".npz"), read_table("e.npz")),
    "model": (write_model, read_model),
    "gallery": (write_gallery, read_gallery),
}


class Counter:
    """Counts the calls and returns of this process; kills it at the `last`. marks: those at which
    files are renamed, synchronised or committed.
    """

    def __init__(self, last: int = -1) -> None:
        self.count, self.last, self.marks = 0, last, list[int]()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        self.count += 1
        if event == "c_call" and getattr(argument, "__name__", "") in CALLS:
            self.marks.append(self.count)
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def counted(write: Write, folder: Path, version: int, last: int = -1) -> Counter:
    counter = Counter(last)
    sys.setprofile(counter)
    try:
        write(folder, version)
    finally:
        sys.setprofile(None)
    return counter


def main(root: Path, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    report = {}
    for kind in kinds:
        write, read = MADE[kind]
        folder = root / kind
        folder.mkdir()
        write(folder, 0)
        first = counted(write, folder, 1)
        points = {*np.linspace(1, first.count, NUM_POINTS).astype(int).tolist()}
        marks = first.marks[:: max(1, len(first.marks) // 6)] + first.marks[-3:]
        points |= {mark + k for mark in marks for k in (0, 1)}
        kills, old, new, other = 0, 0, 0, list[str]()
        for number, point in enumerate(sorted(points), 2):
            before = read(folder)
            child = os.fork()
            if not child:
                counted(write, folder, number, point)
                os._exit(0)
            killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
            kills += killed
            try:
                loaded = read(folder)
            except Exception as error:  # told below
                other.append(
                    f"kill at call {point} of {first.count}: {type(error).__name__}: {error}"
                )
                continue
            for part in folder.rglob("*.part"):
                os.utime(part, (0, 0))  # a day later
            write(folder, number)  # goes on or begins anew, whatever was left
            if left := [path.name for path in folder.rglob(".*")]:
                other.append(f"kill at call {point} of {first.count}: the next write leaves {left}")
            whole = read(folder)
            old += loaded == before
            new += loaded == whole
            if loaded not in (before, whole):
                other.append(f"kill at call {point} of {first.count}: neither the old nor the new")
        report[kind] = [kills, old, new, other]
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
