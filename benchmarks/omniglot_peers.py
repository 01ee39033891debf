"""Measures Omniglot by raw pixels, and with the losses of pytorch-metric-learning in our loop.

    python benchmarks/omniglot_peers.py --data ../shared/data --seeds 3 --out runs/omniglot-peers
    python benchmarks/omniglot_peers.py --data ../shared/data --peers "" --out runs/omniglot-peers
        raw pixels alone

Measures: R@1, MAP@R and R-precision of each system: the mean over seeds, its standard error, and
    the interval of that mean over characters. Runs that are complete in OUT are not done again.
Peers: the losses of pytorch-metric-learning (PML) in the loop of recipes/image/omniglot.py, with
    the same batches, views, network, start and optimiser. The step's loss is PML's, computed on our
    class vectors, so that they start and are optimised as in the recipe; everything else is
    `likeness train`'s.
Limit: the cosine of raw pixels, without any training.
Needs: `pip install "pytorch-metric-learning>=2.8,<3"`; without it only raw pixels are measured.
    omniglot/ in the folder of --data.
Takes: raw pixels half a minute; 40 CPU seconds a run, so eight minutes for four losses and three
    seeds.
Gives: the rows of raw pixels and PML in section Omniglot of docs/reference/results.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from performance import ROOT, is_installed, parser_of, row, table
from torch import Tensor

from eval import per_item
from eval.bootstrap import effective_number, t_interval
from eval.per_item import PerItem
from eval.retrieval import query_metrics
from modalities.image import omniglot
from toolkit.data.batch import Batch
from toolkit.training.measure import TEST, run_test
from toolkit.training.recipe import Recipe, load
from toolkit.training.run import Run
from toolkit.training.train import fit

RECIPE = ROOT / "recipes" / "image" / "omniglot.py"
METRICS = ("recall@1", "map@r", "r_precision")


Made = tuple[torch.nn.Module, str]  # a loss of PML, and the name of its class vectors in it


def arcface(dim: int, classes: int) -> Made:
    """PML's ArcFace with the recipe's margin and scale."""
    from pytorch_metric_learning import losses

    return losses.ArcFaceLoss(classes, dim, margin=math.degrees(0.2), scale=30), "W"


def cosine(dim: int, classes: int) -> Made:
    """PML's normalised softmax with the recipe's temperature."""
    from pytorch_metric_learning import losses

    return losses.NormalizedSoftmaxLoss(classes, dim, temperature=1 / 16), "W"


def proxy_anchor(dim: int, classes: int) -> Made:
    """PML's Proxy Anchor with the recipe's margin and alpha."""
    from pytorch_metric_learning import losses

    return losses.ProxyAnchorLoss(classes, dim, margin=0.1, alpha=32), "proxies"


def multi_similarity(dim: int, classes: int) -> Made:
    """PML's Multi-Similarity, which has no class vectors."""
    from pytorch_metric_learning import losses

    return losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), ""


PEERS: dict[str, Callable[[int, int], Made]] = {
    "arcface": arcface,
    "cosine": cosine,
    "proxy_anchor": proxy_anchor,
    "multi_similarity": multi_similarity,
}


def step_with(make: Callable[[int, int], Made]) -> Callable[[Run, Batch, Recipe], Tensor]:
    """A step for fit() that is toolkit.training.train.step with PML's loss.

    A loss without class vectors gets PML's miner of pairs, as its paper has it.
    """
    from pytorch_metric_learning import miners

    miner = miners.MultiSimilarityMiner(epsilon=0.1)
    made: list[Made] = []  # at the first step, when the embeddings' dimension is known

    def step(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        with torch.no_grad():
            features, _ = run.embedder.frontend(batch.inputs, batch.lengths)
        z = run.network(features, None)
        if not made:
            made.append(make(z.shape[1], getattr(run.loss, "num_classes", 0)))
        loss, name = made[0]
        if not name:
            return torch.as_tensor(loss(z, batch.labels, miner(z, batch.labels)))
        proxies = run.loss.proxies
        weights = {name: proxies.T if name == "W" else proxies}
        return torch.as_tensor(torch.func.functional_call(loss, weights, (z, batch.labels)))

    return step


def pixels(data: Path, edge: int, *, apart: bool = False) -> PerItem:
    """The metrics of every image by the cosine of raw pixels at edge x edge.

    Args:
        data: The folder that holds omniglot/.
        edge: The images are reduced to that many pixels a side.
        apart: An image is searched among those of its own alphabet, a job of 14 to 55 characters
            instead of 331.
    """
    items = omniglot.items(data, split="test")
    rows = np.stack([omniglot.read(item, edge=edge).ravel() for item in items])
    labels = np.unique([str(item.label) for item in items], return_inverse=True)[1]
    ids = tuple(item.id for item in items)
    if not apart:
        metrics = query_metrics(rows, labels, ks=(1,))
        return PerItem(ids, metrics, labels.astype(np.int32), "classes")
    alphabets = np.array([str(item.label).partition("/")[0] for item in items])
    columns = {name: np.zeros(len(items)) for name in METRICS}
    for alphabet in np.unique(alphabets):
        members = np.flatnonzero(alphabets == alphabet)
        metrics = query_metrics(rows[members], labels[members], ks=(1,))
        for name, values in columns.items():
            values[members] = metrics[name]
    return PerItem(ids, columns, labels.astype(np.int32), "classes")


def print_row(name: str, runs: Sequence[PerItem]) -> None:
    """Print the row of a system: each metric's mean over its runs, with error and interval."""
    cells = []
    for column in METRICS:
        metric = {column: lambda columns, column=column: per_item.mean(columns, column=column)}
        values = [100 * metric[column](run.columns) for run in runs]
        draws = np.mean([per_item.resample(metric, run)[column] for run in runs], axis=0)
        number = effective_number(np.unique(runs[0].groups, return_counts=True)[1])
        low, high = t_interval(draws, np.mean(values) / 100, 0.95, number)
        error = (
            f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        )
        cells.append(f"{np.mean(values):.2f}{error} [{100 * low:.1f}, {100 * high:.1f}]")
    row(name, len(runs), *cells)


def run_with(name: str, seed: int, data: Path, out: Path) -> PerItem:
    """Train and test the recipe's variant with PML's loss, unless the run is complete."""
    folder = out / name / f"seed-{seed}"
    if not (folder / TEST).is_file():
        recipe = replace(load(f"{RECIPE}:{name}")[0], seed=seed)
        fit(recipe, data=data, out=folder, resume=True, step=step_with(PEERS[name]))
        run_test(recipe, folder, data)
    return per_item.read(folder / TEST)


def main() -> None:
    """Print the rows of raw pixels, then those of PML's losses."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds omniglot/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="names of our variants, separated by commas; empty: raw pixels alone (default: all)",
    )
    arguments = parser.parse_args()
    names = list(filter(None, arguments.peers.split(",")))
    if unknown := sorted(set(names) - set(PEERS)):
        parser.error(f"--peers has {', '.join(unknown)}; there are {', '.join(PEERS)}")
    table("system", "seeds", "R@1 %", "MAP@R %", "R-precision %")
    for edge in (10, 32, 105):
        print_row(f"raw pixels {edge} x {edge}", [pixels(arguments.data, edge)])
    print_row(
        "raw pixels 16 x 16, each alphabet by itself", [pixels(arguments.data, 16, apart=True)]
    )
    if names and is_installed("pytorch_metric_learning", "pytorch-metric-learning"):
        for name in names:
            runs = [
                run_with(name, seed, arguments.data, arguments.out)
                for seed in range(arguments.seeds)
            ]
            print_row(f"PML {name}", runs)


if __name__ == "__main__":
    main()
