"""Many mutations of real files for every reader of tests/test_fuzz.py, for hours.

The readers run in a worker process that is watched for crashes, time and memory.

    python tests/fuzz_long.py FOLDER [--count 100000] [--only NAME ...]
        run, or go on where the last run of FOLDER stopped
    python tests/fuzz_long.py FOLDER --report
        how far it is, and what failed

Readers that work behind eval.formats.boundary run here without it, so that a hundred thousand files
do not need as many processes. Where one crashes, hangs or takes too much, the same file is read
again through the boundary: it has to end as one ValueError in 10 s ("contained"). FOLDER/failures
holds the input of everything else. Mutation number I of a reader is always the same.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import test_fuzz  # noqa: E402

from eval.formats import boundary, tables  # noqa: E402
from toolkit.models import onnx  # noqa: E402

APART = boundary.Process
USERS = (boundary, tables, onnx)  # the modules that start one by this name

SECONDS, MEMORY, CHUNK = 10.0, 1 << 30, 2_000
THROUGH = 300  # of each reader behind the boundary, the first so many are read through it


class Here:
    """eval.formats.boundary.Process without a process."""

    usable = True

    def __init__(self, *_: str) -> None:
        pass

    def ask(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        arrays: Any = (),
        about: object = "",
        limits: Any = None,
    ) -> Any:
        return boundary._ask_here(function, [*arguments, *arrays], about)

    def close(self) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def use(process: Any) -> None:
    """Let the readers behind the boundary start this kind of process."""
    for module in USERS:
        module.Process = process  # type: ignore[attr-defined]


def payload_of(name: str, number: int, valid: bytes) -> bytes:
    rng = random.Random(zlib.crc32(f"{name} {number}".encode()))
    case = test_fuzz.CASES[name]
    if case.json and rng.random() < 0.5:
        leaf = rng.choice(
            [
                None,
                True,
                1e-300,
                1e9,
                1e300,
                float("nan"),
                -1,
                0,
                10**9,
                10**400,
                "x",
                "",
                "9" * 400,
                [],
                {},
                [[]],
                {"call": "a.b", "args": {}},
            ]
        )
        return test_fuzz.replaced(valid, rng.randrange(1 << 20), leaf)
    changes: list[tuple[str, int, Any]] = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        kind = rng.choice(
            ("flip", "flip", "set", "set", "huge", "insert", "cut", "drop", "repeat", "splice")
        )
        where = rng.randrange(len(valid) + 1)
        if kind == "flip":
            changes.append(("flip", where, rng.randrange(8)))
        elif kind in ("set", "insert"):
            changes.append((kind, where, rng.randbytes(rng.randint(1, 8))))
        elif kind == "huge":
            changes.append((rng.choice(("set", "insert")), where, rng.choice(test_fuzz._HUGE)))
        elif kind == "splice":
            start = rng.randrange(len(valid) + 1)
            changes.append(
                (
                    rng.choice(("set", "insert")),
                    where,
                    valid[start : start + rng.randint(1, 200)] or b"\0",
                )
            )
        else:
            changes.append((kind, where, 0 if kind == "cut" else rng.randint(1, 600)))
    return test_fuzz.changed(valid, changes)


def read(name: str, payload: bytes, folder: Path) -> str:
    """What was wrong, "" if the file was read or refused."""
    case = test_fuzz.CASES[name]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.read(case.place(folder, payload))
    except (ValueError, FileNotFoundError):
        pass
    except BaseException:
        return traceback.format_exc()[-1500:]
    return ""


def work(name: str, start: int, end: int, place: mmap.mmap, out: Path) -> None:
    """In the worker. place: the number of the mutation and the time at which it began."""
    native = test_fuzz.CASES[name].apart
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if Path("/dev/shm").is_dir() else None
    ) as folder:
        valid = test_fuzz.CASES[name].make()
        read(name, valid, Path(folder))  # imports, whose memory is not the file's
        peak = base = _peak()
        for number in range(start, end):
            use(Here if native and number >= THROUGH else APART)
            place[:64] = (
                json.dumps([number, int(time.monotonic()), time.process_time()]).encode().ljust(64)
            )
            loaded = read(name, payload_of(name, number, valid), Path(folder))
            peak, before = _peak(), peak
            if not loaded and peak > max(before, base + MEMORY):
                loaded = "memory over 1 GiB"
            if loaded:
                with out.open("a") as file:
                    file.write(json.dumps([number, loaded]) + "\n")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def hangs(pid: int, began: float, used_before: float) -> bool:
    """Whether a reading has taken too long: by the processor time that it used, since others use
    the machine too.

    A reading that waits without using the processor is given sixty times as long.
    """
    waited = time.monotonic() - began
    if waited < SECONDS:
        return False
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") - used_before
    return used > SECONDS or waited > 60 * SECONDS


def chunk(name: str, start: int, end: int, folder: Path) -> tuple[int, list[tuple[int, str]]]:
    """Run one worker; return the first mutation that it did not finish, and the failures."""
    place, out = mmap.mmap(-1, 64), folder / "found.jsonl"
    out.unlink(missing_ok=True)
    place[:64] = json.dumps([start, int(time.monotonic()), 0.0]).encode().ljust(64)
    pid = os.fork()
    if not pid:
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))
            work(name, start, end, place, out)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(77)
    status, killed = None, False
    while status is None:
        time.sleep(0.2)
        done, code = os.waitpid(pid, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
        elif not killed and hangs(pid, *json.loads(place[:64].decode())[1:]):
            os.kill(pid, signal.SIGKILL)
            killed = True
    loaded = (
        [tuple(json.loads(line)) for line in out.read_text().splitlines()] if out.is_file() else []
    )
    if status == 0:
        return end, loaded
    number = json.loads(place[:64].decode())[0]
    return number + 1, [*loaded, (number, "hang" if killed else f"crash, status {status}")]


def contained(name: str, number: int, folder: Path) -> bool:
    """Keep the input, unless the boundary makes one ValueError of it, in time.

    In a process of its own: packages that start threads do not survive a fork.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    code = 1
    try:
        payload = payload_of(name, number, test_fuzz.CASES[name].make())
        if test_fuzz.CASES[name].apart:
            use(APART)
            with tempfile.TemporaryDirectory() as place:
                # the boundary ends what takes long
                code = 1 if read(name, payload, Path(place)) else 0
        if code:
            (folder / "failures" / f"{name.replace(' ', '_')}-{number}.bin").write_bytes(payload)
    finally:
        os._exit(code)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--report", action="store_true")
    inputs = parser.parse_args()
    (inputs.folder / "failures").mkdir(parents=True, exist_ok=True)
    state_file = inputs.folder / "state.json"
    state: dict[str, Any] = json.loads(state_file.read_text()) if state_file.is_file() else {}
    names = inputs.only or list(test_fuzz.CASES)
    if inputs.report:
        for name in names:
            print(name, state.get(name, {"done": 0}))
        return
    while any(state.get(name, {}).get("done", 0) < inputs.count for name in names):
        for name in names:
            mine = state.setdefault(name, {"done": 0, "contained": 0, "failed": 0})
            end = min(mine["done"] + CHUNK, inputs.count)
            while mine["done"] < end:  # a crash ends a worker
                done, result = chunk(name, mine["done"], end, inputs.folder)
                for number, what in result:
                    if contained(name, number, inputs.folder):
                        mine["contained"] += 1
                        continue
                    mine["failed"] += 1
                    print("FAILED", name, number, what, flush=True)
                mine["done"] = done
                temporary = state_file.with_suffix(".new")
                temporary.write_text(json.dumps(state, indent=1))
                os.replace(temporary, state_file)
                print(f"{time.strftime('%H:%M:%S')} {name} {mine}", flush=True)


if __name__ == "__main__":
    main()
