"""Measures what a command costs before it does anything: processor time and memory from its start
to its end.

    python benchmarks/start_up.py [--repeats 5]

Measures: the least processor seconds (user and system) of several runs, with all processes that the
    command starts, and the memory of the largest of these. `verify` compares two recordings of 3 s
    with an untrained ResNet of 2 channels, as a run folder in torch and as an .onnx file, so that
    nearly all of the time is importing; `likeness:voice` is the model that comes with Likeness.
    `evaluate` measures 1,000 trials with 1,000 resamples.
Limit: for a run folder, a process that only imports torch; for the others, one that only imports
    numpy.
Needs: the extra `train`, and Linux.
Takes: two minutes.
Gives: the table "Start-up" of docs/reference/performance.md.
"""

import sys
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from performance import cost, parser_of, row, table
from use_serve import prepare


def write_models(folder: str) -> None:
    """Write run.safetensors, model.onnx, a.wav, b.wav and scores.txt; in a process of its own, with
    torch.
    """
    import likeness

    sides = [(i, i % 20, i // 20 % 20) for i in range(1000)]
    rows = [f"a{a}/1 a{b}/{i} {a == b:d} {i % 97}" for i, a, b in sides]
    Path(folder, "scores.txt").write_text("\n".join(rows))
    path, _ = prepare(Path(folder), "tiny")
    likeness.load(path).export(Path(folder) / "model.onnx")


def print_costs(commands: dict[str, list[str]], folder: Path, repeats: int) -> None:
    """Print a row for each command, which are run in turn."""
    rounds = [[cost(command, folder) for command in commands.values()] for _ in range(repeats)]
    table("process", "CPU s", "peak MB")
    for name, several in zip(commands, zip(*rounds, strict=True), strict=True):
        seconds = min(run.cpu_seconds for run in several)
        row(name, f"{seconds:.2f}", f"{max(run.megabytes for run in several):.0f}")


def main() -> None:
    """Print the tables."""
    repeats = parser_of(__doc__, ("repeats", 5, "how often each command runs")).parse_args().repeats
    python, module = [sys.executable, "-c"], [sys.executable, "-m", "likeness"]
    verify = [*module, "verify", "a.wav", "b.wav"]
    commands = {
        "`verify`, model.onnx": [*verify, "--model", "model.onnx"],
        "`import torch`": [*python, "import torch"],
        "`verify`, run folder": [*verify, "--model", "tiny.safetensors"],
        "`verify`, likeness:voice": verify,
        "`evaluate`, 1,000 trials": [*module, "evaluate", "scores.txt"],
        "`import numpy`": [*python, "import numpy"],
        "`likeness --help`": [*module, "--help"],
    }
    with TemporaryDirectory() as name:
        process = get_context("spawn").Process(target=write_models, args=(name,))
        process.start()
        process.join()
        print_costs(commands, Path(name), repeats)


if __name__ == "__main__":
    main()
