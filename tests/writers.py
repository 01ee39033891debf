"""What tests/test_writes.py runs: writers.py FOLDER KIND ... writes each kind of file, and once
more with a limit of its size. The system refuses what goes beyond the limit as it refuses what a
full disk has no room for. Prints JSON: {kind: [exception type, message, whether the old one is
there, names left behind]}.
"""

import json
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch

from likeness import Embeddings, Trials, open_gallery
from likeness.eval.formats import embeddings, trials
from likeness.toolkit.models import checkpoint
from likeness.toolkit.training.log import Log, read_log
from likeness.toolkit.training.run import Plateau, Run, latest, read, save_run

LIMIT = 3_000  # bytes
Write = Callable[[Path, int], object]
Read = Callable[[Path], object]


def embedded(version: int, num: int = 64) -> Embeddings:
    """32 kB of embeddings. Ids are in another order, and of another model, in each version."""
    ids, first = tuple(f"i{k}" for k in range(num)), version % num
    rows = np.arange(num * 128, dtype=np.float32).reshape(num, 128) + 1000 * version
    return Embeddings(ids[first:] + ids[:first], rows, {"model": str(version)})


def table(name: str) -> tuple[Write, Read]:
    def read_back(folder: Path) -> object:
        loaded = embeddings.read_embeddings(folder / name)
        return [loaded.ids, loaded.matrix.tolist(), dict(loaded.meta)]

    return lambda folder, version: embedded(version).save(folder / name), read_back


def write_scores(folder: Path, version: int) -> None:
    probes, rows = tuple(f"p{k}" for k in range(20_000)), range(20_000)
    listed = Trials(("a",), probes, [0] * 20_000, rows, [True, False] * 10_000)  # type: ignore
    values = np.random.default_rng(0).standard_normal(20_000)
    trials.write_scores(folder / "s.txt", listed, values + version)


def write_model(folder: Path, version: int) -> None:
    tensors = {"a": torch.full((2_000,), float(version))}
    checkpoint.save(folder / "m.safetensors", tensors, {"version": version}, "t/1")


def read_model(folder: Path) -> object:
    tensors, state, _ = checkpoint.read(folder / "m.safetensors", "t/1")
    assert bool((tensors["a"] == state["version"]).all())
    return state["version"]


class State(Run):
    """A run of one tensor, without a network."""

    def __init__(self, version: int) -> None:
        self.step, self.plateau, self.init = version, Plateau(), {}
        self.scaler = torch.amp.GradScaler("cpu", enabled=False)
        self.kept = {"a": torch.full((40_000,), float(version))}

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.kept


def read_resume(folder: Path) -> object:
    newest = latest(folder)
    contents = {"a": torch.zeros(40_000)}
    read(newest[0], contents)
    return [newest[1]["step"], contents["a"].unique().tolist()]


def write_log(folder: Path, version: int) -> None:
    with Log(folder, step=100, loggers=()) as log:
        log.write(version, note="x" * (10 if not version else 50_000))


def write_gallery(folder: Path, version: int) -> None:
    with closing(open_gallery(folder / "gallery", {"similarity": "cosine"})) as gallery:
        made = embedded(version)
        rows = Embeddings(made.ids, made.matrix + 1, {"similarity": "cosine"})
        write = gallery.update if len(gallery) else gallery.enrol
        write(rows, [f"s{k // 2}" for k in range(len(made.ids))])


def read_gallery(folder: Path) -> object:
    with closing(open_gallery(folder / "gallery", {"similarity": "cosine"})) as gallery:
        return [(entry.subject, entry.enrolments, entry.norm) for entry in gallery.entries()]


KINDS: dict[str, tuple[Write, Read]] = {
    **{suffix: table(f"e{suffix}") for suffix in (".npz", ".ark", ".parquet")},
    "scores": (write_scores, lambda folder: (folder / "s.txt").read_bytes()),
    "model": (write_model, read_model),
    "resume": (lambda folder, n: save_run(folder, State(n), ["x"], "y"), read_resume),
    "log": (write_log, lambda folder: [entry["step"] for entry in read_log(folder)]),
    "gallery": (write_gallery, read_gallery),
}


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def full(folder: Path, write: Write, read_back: Read) -> list[object]:
    """What becomes of a writer on a full disk."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then the system answers with an error instead
    write(folder, 0)
    before, raised = read_back(folder), ["", ""]
    try:
        with limited(LIMIT):
            write(folder, 1)
    except BaseException as error:
        kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins")
        raised = [next(kinds), str(error)]
    paths = [path.name for path in folder.rglob("*")]
    left = sorted(name for name in paths if name.startswith(".") or "part" in name)
    return [*raised, read_back(folder) == before, left]


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = {}
    for number, kind in enumerate(sys.argv[2:]):
        folder = Path(sys.argv[1], str(number))
        folder.mkdir()
        result[kind] = full(folder, *KINDS[kind])
    print(json.dumps(result))
