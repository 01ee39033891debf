"""Measures the metrics of retrieval at the sizes of CUB-200-2011 and Stanford Online Products.

    OMP_NUM_THREADS=1 python benchmarks/eval_retrieval.py [--sizes cub,sop] [--repeats 3]

Measures: everything that `retrieval_metrics` returns, MAP@1000 included, from synthetic unit
    vectors of 512 dims, each a class centre and noise: 5,924 of 100 classes, and 60,502 of 11,316
    classes (2 to 9 each). CPU seconds of one thread, the least of the repeats; each part in a fresh
    process. The peak is the growth of the largest resident size beyond that with the input in
    memory.
Peer: pytorch-metric-learning (PML): precision at 1, R-precision and MAP@R, with faiss where it is
    installed, else with its own search in torch. k is "max_bin_count", its fastest setting. At
    SOP's size it gets a tenth of the queries: its time is scaled up, its memory is given as it is.
    "PML default" ranks the whole gallery (k = None), at CUB's size only; at SOP's it would need
    44 GB.
Limit: the float32 product in numpy of 1,024 queries at a time with all items.
Needs: `pip install "pytorch-metric-learning>=2.8,<3"`; without it the peer's cells hold "-". No
    data.
Takes: half a minute at CUB's size, five minutes of one core at SOP's.
Gives: section eval_retrieval of docs/reference/performance.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import sys
from typing import Any

import numpy as np
from performance import (
    is_installed,
    json_of_process,
    least_cpu_seconds,
    parser_of,
    row,
    table,
)

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
    """All metrics of retrieval that eval has."""
    return retrieval_metrics(rows, labels)


def limit(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The product of all items with all, block by block, and nothing else."""
    scores = np.empty((min(BLOCK, len(rows)), len(rows)), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        np.matmul(part, rows.T, out=scores[: len(part)])
    return {}


def peer(rows: np.ndarray, labels: np.ndarray, k: str | None = "max_bin_count") -> dict[str, float]:
    """PML's three metrics, and the factor by which its time is to be scaled up."""
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
    metrics_of_peer: dict[str, float] = calculator.get_accuracy(
        x[:queries], y[:queries], x, y, ref_includes_query=True
    )
    return metrics_of_peer | {"scale": len(rows) / queries}


def peer_default(rows: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """PML with the k that it takes where none is named: the whole gallery."""
    return peer(rows, labels, k=None)


PARTS = {"limit": limit, "ours": ours, "peer": peer, "peer_default": peer_default}


def run_part(size: str, part: str, repeats: int) -> None:
    """Run one part in this process; prints {"seconds", "megabytes", "result"} as JSON."""
    rows, labels = data(size)
    if part.startswith("peer"):
        peer(rows[:200], labels[:200])  # its imports are not its cost
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds, result = least_cpu_seconds(lambda: PARTS[part](rows, labels), repeats)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        json.dumps(
            {"seconds": seconds * result.get("scale", 1), "megabytes": grown, "result": result}
        )
    )


def print_rows(size: str, repeats: int, with_peer: bool) -> None:
    """Measure every part at one size and print its rows."""
    cost: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        if part.startswith("peer") and not with_peer:
            continue
        if part == "peer_default" and size != "cub":
            continue
        cost[part] = json_of_process(
            __file__, "--part", f"{size}:{part}", "--repeats", str(repeats)
        )
        print(f"{size} {part}: {cost[part]}", file=sys.stderr)
    own, bare = cost["ours"], cost["limit"]
    num_items, num_classes = SIZES[size]
    work = f"retrieval metrics, {num_items:,} x {DIM}, {num_classes:,} classes"
    for part in ("peer", "peer_default"):
        if part == "peer_default" and part not in cost:
            continue
        other = cost.get(part)
        row(
            work + (" (PML default)" if part == "peer_default" else ""),
            f"{own['seconds']:.2f} s",
            f"{other['seconds']:.2f} s" if other else "-",
            f"{bare['seconds']:.2f} s",
            f"{own['seconds'] / bare['seconds']:.2f}",
            f"{own['seconds'] / other['seconds']:.2f}" if other else "-",
            f"{own['megabytes']:.0f}" + (f" (peer {other['megabytes']:.0f})" if other else ""),
        )


def main() -> None:
    """Print the table, or run the one part that a parent process asks for."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", default="cub,sop", help="cub or sop, or both")
    parser.add_argument(
        "--repeats", type=int, default=3, help="at SOP's size one repeat takes minutes"
    )
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        run_part(*arguments.part.split(":"), repeats=arguments.repeats)
        return
    with_peer = is_installed("pytorch_metric_learning", "pytorch-metric-learning")
    table("work", "ours", "peer", "limit", "ours/limit", "ours/peer", "peak MB")
    for size in arguments.sizes.split(","):
        print_rows(size, arguments.repeats, with_peer)


if __name__ == "__main__":
    main()
