"""Measures the metrics of retrieval at the sizes of CUB-200-2011 and Stanford Online Products.

    OMP_NUM_THREADS=1 python benchmarks/eval_retrieval.py [--sizes cub,sop] [--repeats 3]

Measures: everything that `retrieval_metrics` returns, MAP@1000 included, from synthetic unit
    vectors of 512 dims, each a class centre and noise: 5,924 of 100 classes, and 60,502 of 11,316
    classes (2 to 9 each). CPU seconds of one thread, the least of the repeats; each part in a
    forked process that has the input in memory. The peak is by how much that process grows.
Peer: pytorch-metric-learning (PML): precision at 1, R-precision and MAP@R, with faiss where it is
    installed, else with its own search in torch. k is "max_bin_count", its fastest setting. At
    SOP's size it gets a tenth of the queries: its time is scaled up, its memory is given as it is.
Limit: the float32 product in numpy of 1,024 queries at a time with all items.
Needs: `pip install "pytorch-metric-learning>=2.8,<3"`; without it the peer's cells hold "-". No
    data.
Takes: half a minute at CUB's size, five minutes of one core at SOP's.
Gives: section eval_retrieval of docs/reference/performance.md.
"""

from __future__ import annotations

import importlib.util
from functools import partial

import numpy as np
from performance import forked, is_installed, parser_of, row, table

from likeness.eval.retrieval import retrieval_metrics

SIZES = {"cub": (5_924, 100), "sop": (60_502, 11_316)}
DIM = 512
BLOCK = 1024


def data(size: str) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (N, 512) float32 and labels (N,), without temporaries of that size."""
    num_items, num_classes = SIZES[size]
    rng = np.random.default_rng(0)
    more = rng.integers(num_classes, size=num_items - 2 * num_classes)
    labels = rng.permutation(np.concatenate([np.tile(np.arange(num_classes), 2), more]))
    centres = rng.standard_normal((num_classes, DIM), dtype=np.float32)
    rows = np.empty((num_items, DIM), dtype=np.float32)
    for start in range(0, num_items, BLOCK):
        part = slice(start, start + BLOCK)
        noise = rng.standard_normal((labels[part].size, DIM), dtype=np.float32)
        rows[part] = centres[labels[part]] + 3.5 * noise
        rows[part] /= np.linalg.norm(rows[part], axis=1, keepdims=True)
    return rows, labels


def limit(rows: np.ndarray, labels: np.ndarray) -> None:
    """The product of all items with all, block by block, and nothing else."""
    scores = np.empty((min(BLOCK, len(rows)), len(rows)), dtype=np.float32)
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        np.matmul(part, rows.T, out=scores[: len(part)])


def num_queries(rows: np.ndarray) -> int:
    """How many queries the peer gets."""
    return len(rows) if len(rows) <= SIZES["cub"][0] else len(rows) // 10


def peer(rows: np.ndarray, labels: np.ndarray) -> None:
    """PML's three metrics."""
    import torch
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN

    torch.set_num_threads(1)
    has_faiss = importlib.util.find_spec("faiss") is not None
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=None if has_faiss else CustomKNN(CosineSimilarity(), batch_size=BLOCK),
    )
    x, y, queries = torch.from_numpy(rows), torch.from_numpy(labels), num_queries(rows)
    calculator.get_accuracy(x[:queries], y[:queries], x, y, ref_includes_query=True)


PARTS = {"limit": limit, "ours": retrieval_metrics, "peer": peer}


def print_row(size: str, repeats: int, parts: list[str]) -> None:
    """Measure every part at one size and print the row."""
    rows, labels = data(size)
    if "peer" in parts:
        peer(rows[:200], labels[:200])  # its imports are not its cost
    cost = {part: forked(partial(PARTS[part], rows, labels), repeats) for part in parts}
    (bare, _), (own, own_mb) = cost["limit"], cost["ours"]
    other, other_mb = cost.get("peer", (0.0, 0.0))
    other *= len(rows) / num_queries(rows)
    num_items, num_classes = SIZES[size]
    row(
        f"retrieval metrics, {num_items:,} x {DIM}, {num_classes:,} classes",
        f"{own:.2f} s",
        f"{other:.2f} s" if other else "-",
        f"{bare:.2f} s",
        f"{own / bare:.2f}",
        f"{own / other:.2f}" if other else "-",
        f"{own_mb:.0f}" + (f" (peer {other_mb:.0f})" if other else ""),
    )


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--sizes", default="cub,sop", help="cub or sop, or both")
    parser.add_argument("--repeats", type=int, default=3, help="at SOP's size one takes minutes")
    arguments = parser.parse_args()
    with_peer = is_installed("pytorch_metric_learning", "pytorch-metric-learning")
    table("work", "ours", "peer", "limit", "ours/limit", "ours/peer", "peak MB")
    for size in arguments.sizes.split(","):
        print_row(size, arguments.repeats, list(PARTS) if with_peer else ["limit", "ours"])


if __name__ == "__main__":
    main()
