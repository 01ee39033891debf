"""What tests/test_writes.py runs: full_disk.py FOLDER KIND ... writes each kind of file twice, the
second time with a limit of its size.

The system refuses what goes beyond the limit as it refuses what a full disk has no room for. Prints
JSON: {kind: [exception type, message, whether the old one is there, names left behind]}.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from likeness.eval.formats import embeddings, trials
from likeness.eval.types import Embeddings, Trials
from likeness.toolkit.data import shards
from likeness.toolkit.data.items import Item
from likeness.toolkit.gallery.gallery import open_gallery
from likeness.toolkit.models import checkpoint
from likeness.toolkit.training.log import Log, read_log
from likeness.toolkit.training.run import Plateau, Run, latest, read, save_run

LIMIT = 3_000  # bytes
Write = Callable[[Path, int], None]
Read = Callable[[Path], object]


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def embedded(version: int) -> Embeddings:
    """64 kB of embeddings in version 0, 256 kB in version 1."""
    num = 128 << 2 * version
    return Embeddings(
        tuple(f"i{k}" for k in range(num)),
        np.full((num, 128), version, np.float32),
        {"model": str(version)},
    )


def listed(num: int) -> Trials:
    return Trials(
        ("a",),
        tuple(f"p{k}" for k in range(num)),
        [0] * num,
        range(num),
        [True, False] * (num // 2),
    )  # type: ignore[arg-type]


def table(name: str) -> tuple[Write, Read]:
    def read_back(folder: Path) -> object:
        loaded = embeddings.read(folder / name)
        return [len(loaded.ids), loaded.matrix[0, 0].item(), dict(loaded.meta)]

    return lambda folder, version: embeddings.write(folder / name, embedded(version)), read_back


def text(name: str, write: Callable[[Path, int], object]) -> tuple[Write, Read]:
    def write_to(folder: Path, version: int) -> None:
        write(folder / name, version)

    return write_to, lambda folder: (folder / name).read_bytes().hex()


def write_scores(path: Path, version: int) -> None:
    values = np.random.default_rng(0).standard_normal(20_000)
    trials.write_scores(path, listed(20_000), values + version)


def write_model(path: Path, version: int) -> None:
    checkpoint.save(path, {"a": torch.full((40_000,), float(version))}, {"version": version}, "t/1")


class State(Run):
    """A run of one tensor, without a network."""

    def __init__(self, version: int) -> None:
        self.step, self.plateau, self.init = version, Plateau(), {}
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.kept = {"a": torch.full((40_000,), float(version))}

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.kept


def write_resume(folder: Path, version: int) -> None:
    save_run(folder, State(version), ["x"], "y")


def read_resume(folder: Path) -> object:
    newest = latest(folder)
    contents = {"a": torch.zeros(40_000)}
    read(newest[0], contents)
    return [newest[1]["step"], contents["a"].unique().tolist()]


def write_log(folder: Path, version: int) -> None:
    with Log(folder, step=100, loggers=()) as log:
        log.write(version, note="x" * (10 if not version else 50_000))


def write_gallery(folder: Path, version: int) -> None:
    gallery = open_gallery(folder / "gallery", {"similarity": "cosine"})
    loaded = embedded(version)
    loaded = Embeddings(loaded.ids, loaded.matrix + 1, {"similarity": "cosine"})
    try:
        gallery.enrol(loaded, [f"{version} {item_id}" for item_id in loaded.ids])
    finally:
        gallery.close()


def read_gallery(folder: Path) -> object:
    gallery = open_gallery(folder / "gallery", {"similarity": "cosine"})
    try:
        return sorted(entry.subject for entry in gallery.entries())
    finally:
        gallery.close()


def items(folder: Path, version: int) -> list[Item]:
    path = folder.parent / f"{folder.name}.wav"
    path.write_bytes(bytes(50_000))
    return [Item(f"i{k}", path, "a") for k in range(1 + 2 * version)]


def write_shards(folder: Path, packed: list[Item], version: int) -> None:
    shards.write(packed[: 1 + 2 * version], folder / f"v{version}", shard_bytes=60_000)


def read_shards(folder: Path) -> object:
    return sorted(item.id for item in shards.items(folder / "v0"))


def kinds(folder: Path) -> dict[str, tuple[Write, Read]]:
    packed = items(folder, 1)
    return {
        **{suffix: table(f"e{suffix}") for suffix in (".npz", ".ark", ".parquet")},
        "scores": text("s.txt", write_scores),
        "model": text("m.safetensors", write_model),
        "resume": (write_resume, read_resume),
        "log": (write_log, lambda folder: [entry["step"] for entry in read_log(folder)]),
        "gallery": (write_gallery, read_gallery),
        "shards": (lambda folder, version: write_shards(folder, packed, version), read_shards),
    }


def names(folder: Path) -> list[str]:
    """Hidden things that were left, and how many others."""
    return sorted(
        path.name for path in folder.rglob("*") if path.name.startswith(".") or "part" in path.name
    )


def main(root: Path, chosen: list[str]) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then the system answers with an error instead
    result: dict[str, list[object]] = {}
    for number, kind in enumerate(chosen):
        folder = root / str(number)
        folder.mkdir()
        write, read_back = kinds(folder)[kind]
        write(folder, 0)
        before = read_back(folder)
        raised = ["", ""]
        try:
            with limited(LIMIT):
                write(folder, 1)
        except BaseException as error:
            raised = [
                next(
                    part.__name__ for part in type(error).__mro__ if part.__module__ == "builtins"
                ),
                str(error),
            ]
        result[kind] = [*raised, read_back(folder) == before, names(folder)]
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
