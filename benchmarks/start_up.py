"""Measures what a command costs before it does anything: processor time and memory from its start
to its end.

    python benchmarks/start_up.py [--repeats 5] [--installed]

Measures: the least processor seconds (user and system) of several runs, with all processes that the
    command starts, and the memory of the largest of these. `verify` compares two recordings of 3 s
    with an untrained ResNet of 2 channels, as a run folder in torch and as an .onnx file, so that
    nearly all of the time is importing; `likeness:voice` is the model that comes with Likeness.
    With --installed, a fresh virtual environment gets requirements/runtime.txt and Likeness by
    `pip install --no-deps`, and then requirements/serve.txt; its packages are counted in bytes
    (apart from pip and setuptools), and `verify` runs there, too.
Peer: none.
Limit: processes that only import what the command cannot do without: numpy, onnx, ONNX Runtime and
    soundfile in ONNX form, torch for a run folder.
Needs: `pip install likeness[export]`, and Linux. --installed needs a package registry.
Takes: two minutes, and two more with --installed.
Gives: the tables of section start_up of docs/reference/performance.md.
"""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from performance import ROOT, parser_of, row, table
from use_serve import prepare

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes that are left behind become ours


class Cost(NamedTuple):
    """Processor seconds, and bytes of the largest process."""

    seconds: float
    peak: int


def write_models(folder: str) -> None:
    """Write run.safetensors, model.onnx, a.wav and b.wav; in a process of its own, with torch."""
    import likeness

    path, _ = prepare(Path(folder), "tiny")
    likeness.load(path).export(Path(folder) / "model.onnx")


def cost(command: list[str], folder: Path) -> Cost:
    """Run a command once, in a process of ours that waits for all processes it starts."""
    receiver, sender = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=_measure, args=(command, folder, sender))
    process.start()
    measured: Cost | str = receiver.recv()
    process.join()
    if isinstance(measured, str):
        raise RuntimeError(f"{' '.join(command)}: {measured}")
    return measured


def _measure(command: list[str], folder: Path, sender: Any) -> None:
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)} if command[0] == sys.executable else None
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
    sender.send(done.stderr[-500:] if done.returncode else made)


def print_costs(commands: dict[str, list[str]], folder: Path, repeats: int) -> None:
    """Print a row for each command, which are run in turn."""
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(repeats):
        for name, command in commands.items():
            costs[name].append(cost(command, folder))
    table("process", "processor seconds", "MB of the largest process")
    for name, several in costs.items():
        seconds, peak = min(one.seconds for one in several), max(one.peak for one in several)
        row(name, f"{seconds:.2f}", f"{peak / 1e6:.0f}")


def size_of(environment: Path) -> int:
    """The bytes of an environment's packages, apart from pip and setuptools."""
    (packages,) = environment.glob("lib/python*/site-packages")
    tools = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    return sum(
        path.lstat().st_size
        for top in packages.iterdir()
        if top.name.partition("-")[0] not in tools
        for path in (top.rglob("*") if top.is_dir() else [top])
    )


def print_sizes(folder: Path, repeats: int) -> None:
    """Install into a fresh environment, print what it holds, and compare two recordings there."""
    environment, source = folder / "venv", folder / "source"
    pip = [str(environment / "bin" / "pip"), "install", "--quiet"]
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    # the build writes beside its sources
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
    table("installed", "MB")
    subprocess.run([*pip, "-r", source / "requirements" / "runtime.txt"], check=True)
    row("requirements/runtime.txt", f"{size_of(environment) / 1e6:.0f}")
    subprocess.run([*pip, "--no-deps", source], check=True)
    row("and Likeness by --no-deps", f"{size_of(environment) / 1e6:.0f}")
    likeness = str(environment / "bin" / "likeness")
    verify = {"`verify` there, model.onnx": [likeness, *VERIFY, "--model", "model.onnx"]}
    subprocess.run([*pip, "-r", source / "requirements" / "serve.txt"], check=True)
    row("and requirements/serve.txt", f"{size_of(environment) / 1e6:.0f}")
    print()
    print_costs(verify, folder, repeats)


VERIFY = ["verify", "a.wav", "b.wav"]


def main() -> None:
    """Print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often each command runs")
    parser.add_argument("--installed", action="store_true", help="install into a fresh environment")
    arguments = parser.parse_args()
    python, module = [sys.executable, "-c"], [sys.executable, "-m", "likeness"]
    parts = "import numpy, soundfile, onnx, onnxruntime"
    commands = {
        f"`{parts}`": [*python, parts],
        "`verify`, model.onnx": [*module, *VERIFY, "--model", "model.onnx"],
        "`embed`, model.onnx": [
            *(*module, "embed", "--model", "model.onnx", "--items", "."),
            *("--out", "out.npz"),
        ],
        "`import torch`": [*python, "import torch"],
        "`verify`, run folder": [*module, *VERIFY, "--model", "tiny.safetensors"],
        "`verify`, likeness:voice": [*module, *VERIFY],
        "`import numpy`": [*python, "import numpy"],
        "`import likeness`": [*python, "import likeness"],
        "`likeness --help`": [*module, "--help"],
    }
    with TemporaryDirectory() as name:
        folder = Path(name)
        process = get_context("spawn").Process(target=write_models, args=(name,))
        process.start()
        process.join()
        print_costs(commands, folder, arguments.repeats)
        if arguments.installed:
            print()
            print_sizes(folder, arguments.repeats)


if __name__ == "__main__":
    main()
