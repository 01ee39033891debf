"""Retrieval metrics at the sizes of CUB-200-2011 and Stanford Online Products: ours,
pytorch-metric-learning, and the bare matrix product.

    OMP_NUM_THREADS=1 python benchmarks/eval_retrieval.py [--sizes cub,sop] [--repeats 3]

Synthetic unit vectors, 512 dims, class centre + noise: 5,924 of 100 classes, and 60,502 of 11,316
(2 to 9 each). CPU seconds (process time) of one thread, least of the repeats; each part in a fresh
process. Peak: growth of the largest resident size beyond that with the input in memory. Limit: the
numpy float32 product of 1,024 queries at a time against all. Ours: everything that
`retrieval_metrics` returns, MAP@1000 included. PML: P@1, R-precision, MAP@R with faiss where it is
installed (else its torch search), k = max_bin_count, the fastest setting; at SOP's size a tenth of
the queries, its time scaled up by the queries and its memory as it is. "PML default" ranks the
whole gallery (k = None), at CUB's size only: at SOP's it would need 44 GB.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from eval.retrieval import retrieval_metrics

SIZES = {"cub": (5_924, 100), "sop": (60_502, 11_316)}
DIM = 512
BLOCK = 1024


def data(size: str) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (N, 512) float32 and labels (N,), without temporaries of that size."""
    num_items, num_classes = SIZES[size]
    rng = np.random.default_rng(0)
    labels = np.sort(
        np.concatenate(
            [
                np.tile(np.arange(num_classes), 2),
                rng.integers(num_classes, size=num_items - 2 * num_classes),
            ]
        )
    )
    rows = np.empty((num_items, DIM), dtype=np.float32)
    centres = rng.standard_normal((num_classes, DIM), dtype=np.float32)
    order = rng.permutation(num_items)
    labels = labels[order]
    for start in range(0, num_items, BLOCK):
        part = slice(start, start + BLOCK)
        rows[part] = centres[labels[part]] + 3.5 * rng.standard_normal(
            (labels[part].size, DIM), dtype=np.float32
        )
        rows[part] /= np.linalg.norm(rows[part], axis=1, keepdims=True)
    return rows, labels


def ours(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return retrieval_metrics(rows, labels)


def limit(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    scores = np.empty((min(BLOCK, len(rows)), len(rows)), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        np.matmul(part, rows.T, out=scores[: len(part)])
    return {}


def peer(rows: np.ndarray, labels: np.ndarray, k: str | None = "max_bin_count") -> dict[str, float]:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    torch.set_num_threads(1)
    search = None
    if importlib.util.find_spec("faiss") is None:
        from pytorch_metric_learning.distances import CosineSimilarity

        search = CustomKNN(CosineSimilarity(), batch_size=BLOCK)
    metrics = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(
        include=metrics, k=k, device=torch.device("cpu"), knn_func=search
    )
    queries = len(rows) if len(rows) <= SIZES["cub"][0] else len(rows) // 10
    x, y = torch.from_numpy(rows), torch.from_numpy(labels)
    found: dict[str, float] = calculator.get_accuracy(
        x[:queries], y[:queries], x, y, ref_includes_query=True
    )
    return found | {"scale": len(rows) / queries}


def peer_default(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return peer(rows, labels, k=None)


PARTS = {"limit": limit, "ours": ours, "peer": peer, "peer_default": peer_default}


def run_part(size: str, part: str, repeats: int) -> None:
    """One part in this process: prints {"seconds", "megabytes", "result"}."""
    rows, labels = data(size)
    if part.startswith("peer"):
        peer(rows[:200], labels[:200])  # its imports are not its cost
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(repeats):
        started = time.process_time()
        result = PARTS[part](rows, labels)
        seconds.append(time.process_time() - started)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        json.dumps(
            {"seconds": min(seconds) * result.get("scale", 1), "megabytes": grown, "result": result}
        )
    )


def measure(size: str, part: str, repeats: int) -> dict | None:
    """run_part in a fresh process of one thread; None where the peer is not installed."""
    if part.startswith("peer") and importlib.util.find_spec("pytorch_metric_learning") is None:
        return None
    root = str(Path(__file__).parents[1])
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, __file__, "--part", f"{size}:{part}", "--repeats", str(repeats)]
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | threads | {"PYTHONPATH": path},
    )
    found: dict = json.loads(done.stdout.splitlines()[-1])
    print(f"{size} {part}: {found}", file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="cub,sop")
    parser.add_argument(
        "--repeats", type=int, default=3, help="at SOP's size one repeat takes minutes"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_part(*args.part.split(":"), repeats=args.repeats)
        return
    print(
        "| work | ours | peer | limit | ours/limit | ours/peer | peak MB "
        "|\n|---|---|---|---|---|---|---|"
    )
    for size in args.sizes.split(","):
        found = {
            part: measure(size, part, args.repeats)
            for part in PARTS
            if size == "cub" or part != "peer_default"
        }
        mine, bare = found["ours"], found["limit"]
        assert mine is not None
        assert bare is not None
        num_items, num_classes = SIZES[size]
        for part in ("peer", "peer_default"):
            if part == "peer_default" and part not in found:
                continue
            other = found[part]
            work = f"retrieval metrics, {num_items:,} x {DIM}, {num_classes:,} classes" + (
                " (PML default)" if part == "peer_default" else ""
            )
            theirs = (
                ("-", "-")
                if other is None
                else (f"{other['seconds']:.2f} s", f"{mine['seconds'] / other['seconds']:.2f}")
            )
            memory = f"{mine['megabytes']:.0f}" + (
                "" if other is None else f" (peer {other['megabytes']:.0f})"
            )
            ratio = f"{mine['seconds'] / bare['seconds']:.2f}"
            print(
                f"| {work} | {mine['seconds']:.2f} s | {theirs[0]} | {bare['seconds']:.2f} s | "
                f"{ratio} | {theirs[1]} | {memory} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
