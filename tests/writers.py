"""What tests/test_writes.py runs: writers.py full|killed FOLDER KIND ... writes each kind of file
again.

full: once more, with a limit of its size. The system refuses what goes beyond the limit as it
refuses what a full disk has no room for. Prints JSON: {kind: [exception type, message, whether the
old one is there, names left behind]}.

killed: again and again, in processes that are killed at given calls. Prints JSON: {kind: [kills,
times that the old one was there, times the new one, what else was there]}.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from likeness.eval.formats import embeddings, trials
from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.types import Trials
from likeness.toolkit.gallery.gallery import open_gallery
from likeness.toolkit.models import checkpoint
from likeness.toolkit.training.log import Log, read_log
from likeness.toolkit.training.run import Plateau, Run, latest, read, save_run

LIMIT = 3_000  # bytes
NUM_POINTS = 16
CALLS = ("replace", "rename", "fsync", "mkdir", "rmdir", "unlink", "execute", "executemany")
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

    return lambda folder, version: embeddings.write_embeddings(
        folder / name, embedded(version)
    ), read_back


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


def killed(folder: Path, write: Write, read_back: Read) -> list[object]:
    """What kills leave of a writer."""
    write(folder, 0)
    first = counted(write, folder, 1)
    points = {*np.linspace(1, first.count, NUM_POINTS).astype(int).tolist()}
    marks = first.marks[:: max(1, len(first.marks) // 6)] + first.marks[-3:]
    points |= {mark + k for mark in marks for k in (0, 1)}
    kills, old, new, other = 0, 0, 0, list[str]()
    for number, point in enumerate(sorted(points), 2):
        at = f"kill at call {point} of {first.count}: "
        before = read_back(folder)
        child = os.fork()
        if not child:
            counted(write, folder, number, point)
            os._exit(0)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        try:
            loaded = read_back(folder)
        except Exception as error:  # told below
            other.append(f"{at}{type(error).__name__}: {error}")
            continue
        for part in folder.rglob("*.part"):
            os.utime(part, (0, 0))  # a day later
        write(folder, number)  # goes on or begins anew, whatever was left
        if left := [path.name for path in folder.rglob(".*")]:
            other.append(f"{at}the next write leaves {left}")
        whole = read_back(folder)
        old += loaded == before
        new += loaded == whole
        if loaded not in (before, whole):
            other.append(f"{at}neither the old nor the new")
    return [kills, old, new, other]


def main(how: str, root: Path, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    result = {}
    for number, kind in enumerate(kinds):
        folder = root / str(number)
        folder.mkdir()
        result[kind] = {"full": full, "killed": killed}[how](folder, *KINDS[kind])
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
