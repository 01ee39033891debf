"""What tests/test_writes.py runs: killed_commands.py WORLD FOLDER MOMENTS NAME ... kills commands.

Each command runs undisturbed, then MOMENTS times in a process that is killed at a moment drawn from
all that it asks of the system (opening, making, renaming and removing files), half of the moments
from what changes the disk. The same line runs again and again, is killed five times and then left
alone. All processes are forked from this one, so that torch is imported once. Prints JSON: {name:
[kills, what was wrong]}.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import sqlite3
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import likeness.toolkit.training.train  # noqa: F401  # before the first fork
from likeness.cli import main
from likeness.embedding import extraction
from likeness.eval.formats.embeddings import Embeddings, write_embeddings
from likeness.eval.metrics.calibration import Fusion
from likeness.prepare import prepare
from tests.likeness.models.test_joint import in_onnx
from tests.modalities.face.test_face_align import encode, scene, tiny_detector

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree", "sqlite3.connect"}
FEW = "schedule.steps=4 schedule.save_every=1 schedule.eval_every=2 compute.threads=1"
TINY = "tests/tiny.py"
MODEL = "--model {world}/runs/voices"
HEAD = (
    "--data {world}/e.npz --out {world}/runs/head schedule.steps=2 sampling.batch_size=4 "
    "compute.threads=1 items.test_share=0 measure=None"
)
TRIALS = "--trials {world}/trials.txt --embeddings {world}/e.npz"
ALIGN = "{world}/photos --out {out}/crops --detector {world}/d.onnx"
BESIDE = "{world}/m1.onnx --beside {world}/m2.onnx --fusion {world}/f.json"
BENCH = "--trials {world}/trials.txt --root {world}/voices --resamples 0"
# What is typed, by a name that begins with that of the command; `{out}` is an empty folder.
LINES = {
    "check": "{world}/voices --out {out}/items.csv --page {out}/page",
    "lists": "{world}/voices --split all --out {out}/lists",
    "prepare": "tiny --data {out}/data",
    "align": ALIGN,
    "align, all": f"{ALIGN} --faces all",
    "train": f"{TINY}:arcface --data {{world}}/voices --out {{out}}/run {FEW}",
    "compare": f"{TINY} --data {{world}}/voices --out {{out}}/compared --seeds 1 "
    f"--variants arcface {FEW}",
    "embed": f"{MODEL} --items {{world}}/voices --out {{out}}/e.npz",
    "embed, pieces": f"{MODEL} --items {{world}}/items.txt --out {{out}}/e.npz",
    "embed, kaldi": f"{MODEL} --items {{world}}/voices --out {{out}}/e.ark",
    "embed, a part": f"{MODEL} --items {{world}}/voices --part 1/2 --out {{out}}/e.npz",
    "score": f"{TRIALS} --out {{out}}/s.txt",
    "fit plda": "{world}/drawn.npz --lda-dim 0 --out {out}/p.json",
    "fit calibration": f"{TRIALS} --out {{out}}/c.json",
    "fit fusion": "{world}/s.txt {world}/s2.txt --out {out}/f.json",
    "evaluate": "{world}/s.txt --resamples 0 --json {out}/r.json --report {out}/report",
    "bench": f"{MODEL} {BENCH} --json {{out}}/b.json --report {{out}}/report",
    "identify": "--gallery {world}/e.npz --probes {world}/probes.npz --resamples 0 "
    "--json {out}/i.json --report {out}/report",
    "retrieve": "--embeddings {world}/e.npz --resamples 0 --json {out}/r.json "
    "--report {out}/report",
    "verify": f"{{world}}/a.wav {{world}}/b.wav {MODEL} --threshold 0.5 --json {{out}}/v.json",
    "verify, many": f"{MODEL} --pairs {{world}}/trials.txt --root {{world}}/voices "
    "--threshold 0.5 --out {out}/v.csv",
    "gallery enrol": f"{{world}}/voices --gallery {{out}}/people {MODEL}",
    "gallery check": "--gallery {world}/people --threshold 0.5 --out {out}/d.csv",
    "gallery search": f"{{world}}/voices --gallery {{world}}/people {MODEL} --threshold 0.5 "
    "--out {out}/found.csv",
    "gallery cluster": "{world}/e.npz --num-clusters 4 --out {out}/c.csv --report {out}/report",
    "threshold": f"{MODEL} --unlabelled {{world}}/many.txt --out {{out}}/t.json",
    "export": "{world}/runs/voices --out {out}/m.onnx",
    "export, a sum": f"{BESIDE} --out {{out}}/both",
    "export, a sum in a file": f"{BESIDE} --out {{out}}/both.onnx",
    "export, a head": "{world}/runs/voices --head {world}/runs/head --out {out}/adapted",
    "recipes": "--copy speaker/an4 {out}/mine.py",
}
SPEAKERS = prepare.Archive("voices", file="tiny.tar.gz", takes=("voices/*",))
COUNT = prepare.Count(r"\.flac$", 8)
TINY_SET = prepare.Dataset("tiny", "", "", "", (SPEAKERS,), (COUNT,))
CHAIN = 5  # kills, one after the other


def world(folder: Path) -> None:
    """Make what the commands read, beside what the fixture `_world` has."""
    downloads = folder / "before" / "prepare" / "data" / "downloads"
    downloads.mkdir(parents=True)
    with tarfile.open(downloads / "tiny.tar.gz", "w:gz") as archive:
        archive.add(folder / "voices", "voices")
        archive.add(folder / "a.wav", "of no use/a.wav")
    (folder / "photos").mkdir()
    for number, cells in enumerate([((2, 2), (6, 6)), ((4, 4),), ((2, 2), (6, 2), (4, 6))]):
        (folder / "photos" / f"{number}.png").write_bytes(encode(scene(*cells)))
    tiny_detector(folder / "d.onnx")
    voices = sorted((folder / "voices").rglob("*.flac"))
    (folder / "items.txt").write_text("".join(f"{p.parent.name}/{p.stem}x\t{p}\n" for p in voices))
    many = [f"{k}\t{voices[k % 8]}\t{k // 8 / 50}\t{k // 8 / 50 + 0.3}\n" for k in range(50)]
    (folder / "many.txt").write_text("".join(["id\tpath\tstart\tend\n", *many]))
    rows = np.random.default_rng(0).standard_normal((20, 8), dtype=np.float32)
    ids = tuple(f"s{k % 4}/{k}" for k in range(20))
    write_embeddings(folder / "drawn.npz", Embeddings(ids, rows, {"similarity": "cosine"}))
    model = ("--model", folder / "runs/voices")
    for words in (
        ("embed", *model, "--items", folder / "voices", "--out", folder / "e.npz"),
        ("embed", *model, "--items", folder / "items.txt", "--out", folder / "probes.npz"),
        ("score", *(w.format(world=folder) for w in TRIALS.split()), "--out", folder / "s.txt"),
        ("gallery", "enrol", folder / "voices", "--gallery", folder / "people", *model),
        ("train", "head", *(w.format(world=folder) for w in HEAD.split())),
    ):
        with contextlib.suppress(SystemExit):
            main(list(map(str, words)))
    shutil.copy(folder / "s.txt", folder / "s2.txt")
    for number in (1, 2):
        in_onnx(folder / f"m{number}.onnx", number)
    Fusion((1.5, 6.0), -2.0, ("", "")).save(folder / "f.json")
    Fusion((8.0,), -4.0).save(folder / "runs/voices/calibration.json")


class Counter:
    """Counts what this process asks of the system, and kills it there.

    Attributes:
        count: How often it asked.
        marks: When that changed the disk.
    """

    def __init__(self, last: int = -1) -> None:
        self.count, self.last, self.marks, self.is_on = 0, last, list[int](), True

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        self.count += 1
        is_write = event == "open" and arguments[2] and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or is_write:
            self.marks.append(self.count)
        if self.count == self.last:
            os.kill(os.getpid(), signal.SIGKILL)


def ended(words: list[str], last: int = -1) -> tuple[int, str, list[int]]:
    """Run a command in a process of its own: its exit code, what it said, and the moments of what
    it asked (the number of all comes last).
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        code, said, counter = 1, io.StringIO(), Counter(last)
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                sys.addaudithook(counter)
                main(words)
        except SystemExit as exit:
            code = int(exit.code or 0)
        finally:
            counter.is_on = False
            with os.fdopen(writing, "w") as told:
                json.dump([code, said.getvalue(), [*counter.marks, counter.count]], told)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    os.waitpid(child, 0)
    return tuple(json.loads(text)) if text else (-signal.SIGKILL, "", [])


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, and what the files hold."""
    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*"))}


def content(path: Path) -> bytes | None:
    """What a file holds; the header of safetensors has its fields in any order, and SQLite's pages
    tell what was there before.
    """
    if not path.is_file():
        return None
    if path.suffix == ".sqlite":
        with contextlib.closing(sqlite3.connect(path)) as store:
            return "\n".join(store.iterdump()).encode()
    whole = path.read_bytes()
    if path.suffix != ".safetensors":
        return whole
    end = 8 + int.from_bytes(whole[:8], "little")
    return json.dumps(json.loads(whole[8:end]), sort_keys=True).encode() + whole[end:]


def line_of(name: str, folder: Path, world: Path) -> tuple[list[str], Path]:
    """The words of the command of a name, and the folder that it works in, which is empty unless
    the world has what is there before.
    """
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    command = name.partition(",")[0].split()
    if (before := world / "before" / command[0]).is_dir():
        shutil.copytree(before, out, dirs_exist_ok=True)
    return [*command, *(w.format(world=world, out=out) for w in LINES[name].split())], out


def killed(name: str, folder: Path, world: Path, num: int) -> tuple[int, list[str]]:
    """What kills leave of a command: how many there were, and what was wrong after them."""
    wholes = []
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main(line_of(name, folder, world)[0])  # what it imports is there before the forks
    for _ in range(2):
        words, out = line_of(name, folder, world)
        code, said, marks = ended(words)
        assert code == 0, (name, said)
        wholes.append(tree(out))
    whole = wholes[0]
    timed = {path for path in whole if whole[path] != wholes[1].get(path)}  # they tell the time

    def compared(made: dict[str, bytes | None]) -> list[str]:
        paths = sorted((made.keys() | whole.keys()) - timed)
        return [path for path in paths if made.get(path, b"-") != whole.get(path, b"-")]

    rng = np.random.default_rng(0)
    drawn = [*rng.integers(1, marks[-1] + 1, num - num // 2), *rng.choice(marks[:-1], num // 2)]
    kills, wrong = 0, []
    for moments in np.array_split(rng.permutation(drawn), -(-num // CHAIN)):
        words, out = line_of(name, folder, world)
        kills += sum(ended(words, int(moment))[0] == -signal.SIGKILL for moment in moments)
        left = tree(out)
        # The last kill came after all was done.
        is_finished = not compared({path: left[path] for path in left if ".part" not in path})
        code, said, _ = ended(words)
        differ = compared(tree(out))
        if differ or (code and not is_finished):
            wrong.append(f"{moments} of {marks[-1]}: {differ} differ; {code} {said[-300:]}")
    return kills, wrong


if __name__ == "__main__":
    torch.set_num_threads(1)
    # A kill loses nothing that was written; a power cut would.
    os.fsync, os.sync = (lambda handle: None), (lambda: None)
    extraction.extract.__kwdefaults__["piece_items"] = 3
    prepare.catalogue = lambda: [TINY_SET]
    given, root, moments, *names = sys.argv[1:]
    world(Path(given))
    results = {}
    for name in names:
        num = min(int(moments), 10 if name == "export" else 50)  # torch translates for long
        results[name] = killed(name, Path(root), Path(given), num)
    print(json.dumps(results))
