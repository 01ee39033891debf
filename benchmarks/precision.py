"""Measures exported models in float32, float16 and int8: their size, their time, and how far their
cosines are from those of float32.

    OMP_NUM_THREADS=1 python benchmarks/precision.py [--repeats 5]

Measures: MB of the file of `likeness export`; wall-clock milliseconds of one recording of 3 s or
    one image on one thread, the least of the repeats; and the largest difference between cosines of
    pairs of 16 synthetic items. int8 is calibrated on these items. ResNet34 and IResNet18 have
    random weights.
Peer: none.
Limit: none.
Needs: the extra `train`. No data.
Takes: three minutes.
Gives: the table "Precision" of docs/reference/performance.md.
"""

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from performance import in_turn, parser_of, row, table
from train import items, write
from use import exported, inputs_of, model_of

from likeness.models.bundled import run_of
from likeness.models.load import load_named
from likeness.toolkit.models.loaded import Loaded


def print_rows(name: str, model: Loaded, folder: Path, repeats: int) -> None:
    """Print the rows of a model."""
    listed = items(folder, ".wav" if model.modality == "speaker" else ".png")[:16]
    read: Any = model.read
    views = [read(item)[None] for item in listed]
    whole = None
    for precision in ("float32", "float16", "int8"):
        file = folder / "model.onnx"
        calibration = listed if precision == "int8" else []
        side = exported(model, file, precision=precision, calibration=calibration)
        rows = np.concatenate([side.embedder.embed_batch(view) for view in views])
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = rows @ rows.T
        whole = cosines if whole is None else whole
        one = partial(side.embedder.embed_batch, inputs_of(model)[:1])
        ((seconds, _),) = in_turn([one], repeats, clock=time.perf_counter)
        differ = f"{np.abs(cosines - whole).max():.4f}" if cosines is not whole else ""
        sizes = f"{file.stat().st_size / 1e6:.1f}", f"{1e3 * seconds:.1f}"
        row(f"{name}: {precision}", *sizes, differ)


def main() -> None:
    """Print the table."""
    repeats = parser_of(__doc__, ("repeats", 5)).parse_args().repeats
    table("model: precision", "MB", "ms", "cosines differ by")
    with TemporaryDirectory() as folder:
        write(Path(folder))
        print_rows("ResNet34, voices", model_of("ResNet34"), Path(folder), repeats)
        print_rows("IResNet18, faces", model_of("IResNet18"), Path(folder), repeats)
        voice = load_named(run_of("likeness:voice"))
        print_rows("likeness:voice", voice, Path(folder), repeats)


if __name__ == "__main__":
    main()
