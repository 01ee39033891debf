"""Measures Omniglot by raw pixels, and with the losses of pytorch-metric-learning in our loop.

    python benchmarks/omniglot_peers.py --data ../shared/data --seeds 3 --out runs/omniglot-peers

Measures: R@1, MAP@R and R-precision of each system: the mean over seeds, its standard error, and
    the interval of that mean over characters. Runs that are complete in OUT are not done again.
Peers: the losses of pytorch-metric-learning (PML) in the loop of recipes/image/omniglot.py, with
    the same batches, views, network, start and optimiser. The step's loss is PML's, computed on our
    class vectors, so that they start and are optimised as in the recipe; everything else is
    `likeness train`'s.
Limit: the cosine of raw pixels, without any training.
Needs: `pip install "pytorch-metric-learning>=2.8,<3"`, and omniglot/ in the folder of --data.
Takes: raw pixels half a minute; 40 CPU seconds a run, so eight minutes for four losses and three
    seeds.
Gives: the rows of raw pixels and PML in section Omniglot of docs/reference/results.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from performance import ROOT, is_installed, parser_of, row, table
from torch import Tensor

from likeness.data import small_sets
from likeness.eval.intervals.bootstrap import effective_number, t_interval
from likeness.eval.intervals.per_item import PerItem
from likeness.metrics import per_item, query_metrics
from likeness.recipe import Recipe, fit
from likeness.toolkit.data.batch import Batch
from likeness.toolkit.training.measure import TEST, run_test
from likeness.toolkit.training.recipe import load
from likeness.toolkit.training.run import Run

RECIPE = ROOT / "recipes" / "image" / "omniglot.py"
METRICS = ("recall@1", "map@r", "r_precision")


# Our variants: the class of PML, its settings, and the name of its class vectors.
PEERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "arcface": ("ArcFaceLoss", {"margin": math.degrees(0.2), "scale": 30}, "W"),
    "cosine": ("NormalizedSoftmaxLoss", {"temperature": 1 / 16}, "W"),
    "proxy_anchor": ("ProxyAnchorLoss", {"margin": 0.1, "alpha": 32}, "proxies"),
    "multi_similarity": ("MultiSimilarityLoss", {"alpha": 2, "beta": 50, "base": 0.5}, ""),
}


def step_with(name: str) -> Callable[[Run, Batch, Recipe], Tensor]:
    """A step for fit() that is likeness.toolkit.training.train.step with PML's loss.

    A loss without class vectors gets PML's miner of pairs, as its paper has it.
    """
    from pytorch_metric_learning import losses, miners

    kind, settings, vectors = PEERS[name]
    miner = miners.MultiSimilarityMiner(epsilon=0.1)
    made: list[Any] = []  # at the first step, when the embeddings' dimension is known

    def step(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        with torch.no_grad():
            features, _ = run.embedder.frontend(batch.inputs, batch.lengths)
        z = run.network(features, None)
        if not made:
            sizes = [run.loss.num_classes, z.shape[1]] if vectors else []
            made.append(getattr(losses, kind)(*sizes, **settings))
        if not vectors:
            return torch.as_tensor(made[0](z, batch.labels, miner(z, batch.labels)))
        proxies = run.loss.proxies
        weights = {vectors: proxies.T if vectors == "W" else proxies}
        return torch.as_tensor(torch.func.functional_call(made[0], weights, (z, batch.labels)))

    return step


def pixels(data: Path, edge: int) -> PerItem:
    """The metrics of every image by the cosine of raw pixels, reduced to edge x edge."""
    items = small_sets.omniglot_items(data, split="test")
    rows = np.stack([small_sets.read(item, edge=edge).ravel() for item in items])
    labels = np.unique([str(item.label) for item in items], return_inverse=True)[1]
    metrics = query_metrics(rows, labels, ks=(1,))
    return PerItem(tuple(item.id for item in items), metrics, labels.astype(np.int32), "classes")


def print_row(name: str, runs: Sequence[PerItem]) -> None:
    """Print the row of a system: each metric's mean over its runs, with error and interval."""
    cells = []
    for column in METRICS:
        metric = {column: lambda columns, column=column: per_item.mean(columns, column=column)}
        values = [100 * metric[column](run.columns) for run in runs]
        draws = np.mean([per_item.resample(metric, run)[column] for run in runs], axis=0)
        number = effective_number(np.unique(runs[0].groups, return_counts=True)[1])
        low, high = t_interval(draws, np.mean(values) / 100, 0.95, number)
        error = ""
        if len(values) > 1:
            error = f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.2f}"
        cells.append(f"{np.mean(values):.2f}{error} [{100 * low:.1f}, {100 * high:.1f}]")
    row(name, len(runs), *cells)


def run_with(name: str, seed: int, data: Path, out: Path) -> PerItem:
    """Train and test the recipe's variant with PML's loss, unless the run is complete."""
    folder = out / name / f"seed-{seed}"
    if not (folder / TEST).is_file():
        recipe = replace(load(f"{RECIPE}:{name}")[0], seed=seed)
        fit(recipe, data=data, out=folder, resume=True, step=step_with(name))
        run_test(recipe, folder, data)
    return per_item.read(folder / TEST)


def main() -> None:
    """Print the rows of raw pixels, then those of PML's losses."""
    arguments = parser_of(__doc__, "data", "out", ("seeds", 3)).parse_args()
    table("system", "seeds", "R@1 %", "MAP@R %", "R-precision %")
    print_row("raw pixels 10 x 10", [pixels(arguments.data, 10)])
    if is_installed("pytorch_metric_learning", "pytorch-metric-learning"):
        for name in PEERS:
            seeds = range(arguments.seeds)
            runs = [run_with(name, seed, arguments.data, arguments.out) for seed in seeds]
            print_row(f"PML {name}", runs)


if __name__ == "__main__":
    main()
