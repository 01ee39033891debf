"""Omniglot: raw pixels, and pytorch-metric-learning's losses in the loop of
recipes/image/omniglot.py: same batches, views, network, start and optimiser.

    python benchmarks/omniglot_peers.py --data ../shared/data --seeds 3 --out runs/omniglot-peers
    python benchmarks/omniglot_peers.py --data ../shared/data --peers "" --out runs/omniglot-peers
        raw pixels alone: seconds

The step's loss is PML's, computed on our class vectors (so that they start and are optimised as in
the recipe), everything else is `likeness train`'s. Prints a row a system: mean over seeds, standard
error, and the interval of that mean over characters. Finished runs in --out are not done again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning import losses, miners
from torch import Tensor

from eval import per_item
from eval.bootstrap import percentile_interval
from eval.per_item import PerItem
from eval.retrieval import query_metrics
from modalities.image import omniglot
from toolkit.data.batch import Batch
from toolkit.training.measure import TEST, run_test
from toolkit.training.recipe import Recipe, load
from toolkit.training.run import Run
from toolkit.training.train import fit

RECIPE = Path(__file__).resolve().parents[1] / "recipes" / "image" / "omniglot.py"
METRICS = ("recall@1", "map@r", "r_precision")


def arcface(dim: int, classes: int) -> tuple[torch.nn.Module, str]:
    return losses.ArcFaceLoss(classes, dim, margin=math.degrees(0.2), scale=30), "W"


def cosine(dim: int, classes: int) -> tuple[torch.nn.Module, str]:
    return losses.NormalizedSoftmaxLoss(classes, dim, temperature=1 / 16), "W"


def proxy_anchor(dim: int, classes: int) -> tuple[torch.nn.Module, str]:
    return losses.ProxyAnchorLoss(classes, dim, margin=0.1, alpha=32), "proxies"


def multi_similarity(dim: int, classes: int) -> tuple[torch.nn.Module, str]:
    return losses.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), ""


PEERS: dict[str, Callable[[int, int], tuple[torch.nn.Module, str]]] = {
    "arcface": arcface,
    "cosine": cosine,
    "proxy_anchor": proxy_anchor,
    "multi_similarity": multi_similarity,
}


def step_with(
    make: Callable[[int, int], tuple[torch.nn.Module, str]], mined: bool
) -> Callable[[Run, Batch, Recipe], Tensor]:
    """toolkit.training.train.step with PML's loss."""
    made: dict[str, Any] = {}

    def step(run: Run, batch: Batch, recipe: Recipe) -> Tensor:
        with torch.no_grad():
            features, _ = run.embedder.frontend(batch.inputs, batch.lengths)
        z = run.network(features, None)
        if not made:
            made["loss"], made["name"] = make(z.shape[1], getattr(run.loss, "num_classes", 0))
            made["miner"] = miners.MultiSimilarityMiner(epsilon=0.1)
        if mined:
            return torch.as_tensor(made["loss"](z, batch.labels, made["miner"](z, batch.labels)))
        proxies = run.loss.proxies
        held = {made["name"]: proxies.T if made["name"] == "W" else proxies}
        return torch.as_tensor(torch.func.functional_call(made["loss"], held, (z, batch.labels)))

    return step


def pixels(data: Path, edge: int, *, apart: bool = False) -> PerItem:
    """Cosine of the raw pixels at edge x edge. apart: an image is searched among those of its own
    alphabet, a job of 14 to 55 characters instead of 331.
    """
    items = omniglot.items(data, split="test")
    rows = np.stack([omniglot.read(one, edge=edge).ravel() for one in items])
    labels = np.unique([str(one.label) for one in items], return_inverse=True)[1]
    if not apart:
        return PerItem(
            tuple(one.id for one in items),
            query_metrics(rows, labels, ks=(1,)),
            labels.astype(np.int32),
            "classes",
        )
    alphabets = np.array([str(one.label).partition("/")[0] for one in items])
    columns = {name: np.zeros(len(items)) for name in METRICS}
    for alphabet in np.unique(alphabets):
        members = np.flatnonzero(alphabets == alphabet)
        found = query_metrics(rows[members], labels[members], ks=(1,))
        for name, values in columns.items():
            values[members] = found[name]
    return PerItem(tuple(one.id for one in items), columns, labels.astype(np.int32), "classes")


def row(name: str, runs: Sequence[PerItem]) -> str:
    cells = [name, str(len(runs))]
    for column in METRICS:
        metric = {column: lambda columns, column=column: per_item.mean(columns, column=column)}
        values = [100 * metric[column](one.columns) for one in runs]
        drawn = 100 * np.mean([per_item.resample(metric, one)[column] for one in runs], axis=0)
        low, high = percentile_interval(drawn, 0.95)
        error = (
            f" ± {np.std(values, ddof=1) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
        )
        cells.append(f"{np.mean(values):.2f}{error} [{low:.1f}, {high:.1f}]")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--peers",
        default=",".join(PEERS),
        help="names of our variants, separated by commas; empty: raw pixels alone (default: all)",
    )
    given = parser.parse_args()
    print("| system | seeds | R@1 % | MAP@R % | R-precision % |\n|---|---|---|---|---|", flush=True)
    for edge in (10, 32, 105):
        print(row(f"raw pixels {edge} x {edge}", [pixels(given.data, edge)]), flush=True)
    print(
        row("raw pixels 16 x 16, each alphabet by itself", [pixels(given.data, 16, apart=True)]),
        flush=True,
    )
    for name in filter(None, given.peers.split(",")):
        recipe, _ = load(f"{RECIPE}:{name}")
        runs = []
        for seed in range(given.seeds):
            out = given.out / name / f"seed-{seed}"
            if not (out / TEST).is_file():
                seeded = Recipe(**{**vars(recipe), "seed": seed})
                fit(
                    seeded,
                    data=given.data,
                    out=out,
                    resume=True,
                    step=step_with(PEERS[name], name == "multi_similarity"),
                )
                run_test(seeded, out, given.data)
            runs.append(per_item.read(out / TEST))
        print(row(f"PML {name}", runs), flush=True)


if __name__ == "__main__":
    main()
