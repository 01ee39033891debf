"""Measures how well a quality of an image says that its retrieval goes wrong, on Omniglot.

    python benchmarks/uncertainty.py --data ../shared/data --out runs/omniglot-losses
        trains what is missing, then prints the table
    python benchmarks/uncertainty.py --data ../shared/data --out runs/try --variants arcface,vmf
        --seeds 1 --set schedule.steps=200
        a try of a minute

Measures: every variant and seed of recipes/image/omniglot_losses.py. Each image of the unseen
    alphabets is a query among all others. R-AUROC is the probability that a right query has a
    higher quality than a wrong one. AURC is the mean error of the queries that are kept, over all
    shares that are kept, and E-AURC what it exceeds that of the best order by. Each is the mean
    over seeds with its standard error, and the 95 % interval of that mean over characters.
    The qualities are the norm of the embedding and, where the loss has class vectors, the highest
    probability that it gives to a training class.
    OUT is the folder of `likeness compare image/omniglot_losses --tune 5 --out OUT`, or a new one.
    A run that is complete there is not trained again, and what is measured of it stays beside it.
    The settings that were picked there count for the probability, too.
Peers: none. The numbers of Kirchhof et al. 2023 (URL) are of other data and networks.
Limit: 0.5 is the R-AUROC of a quality that says nothing. E-AURC 0 is the best order.
Needs: omniglot/ in the folder of --data.
Takes: 40 CPU seconds a run that is missing, and about 10 a run for its qualities and intervals.
Gives: the rows of a table of docs/reference/results.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from performance import ROOT, parser_of, row, table

from eval import per_item
from eval.bootstrap import effective_number, t_interval
from eval.per_item import PerItem
from eval.uncertainty import METRICS, Ranking, draws_over_groups
from toolkit.data.items import Items
from toolkit.losses.contract import Classifier, Probabilistic
from toolkit.training.measure import TEST, load_model, run_test
from toolkit.training.recipe import Recipe, Retrieval, load, override, read
from toolkit.training.train import fit

RECIPE = ROOT / "recipes" / "image" / "omniglot_losses.py"
MEASURED = "uncertainty.npz"  # in the folder of a run
QUALITIES = {"norm": "norm", "probability": "class probability"}
_ROWS = 256  # images whose class probabilities are computed at once


def recipe_of(variant: str, seed: int, assignments: Sequence[str], folder: Path) -> Recipe:
    """The variant of the recipe with a seed and changed settings.

    Where the folder holds a run, the settings that a search may pick are those of the run.
    """
    recipe, _ = load(f"{RECIPE}:{variant}")
    stored = folder / "recipe.json"
    picked = []
    if stored.is_file():
        description = json.loads(stored.read_text(encoding="utf-8"))
        for field in read(str(RECIPE))["RANGES"].get(variant, {}):
            part, _, name = field.partition(".")
            values = description[part].get("args", description[part])
            if name in values:
                picked.append(f"{field}={values[name]}")
    return replace(override(recipe, [*picked, *assignments]), seed=seed)


@torch.no_grad()
def probabilities(recipe: Recipe, folder: Path, data: Path) -> NDArray[np.float64] | None:
    """The highest probability of a training class that the loss of a run gives to each test image.

    None where the loss has no class vectors. The draws of losses of distributions have seed 0.
    """
    assert isinstance(recipe.measure, Retrieval)
    model = load_model(folder, recipe)
    loss: Any = model.loss.eval()
    if not isinstance(loss, Classifier | Probabilistic):
        return None
    z = torch.from_numpy(model.embed(Items.of(recipe.measure.items(data)))).float()
    generator = torch.Generator().manual_seed(0)
    highest = []
    for start in range(0, len(z), _ROWS):
        rows = z[start : start + _ROWS]
        of_classes = (
            loss.posterior(rows, generator=generator)
            if isinstance(loss, Probabilistic)
            else loss.logits(rows).double().softmax(dim=1)
        )
        highest.append(of_classes.max(dim=1).values.double().numpy())
    return np.concatenate(highest)


def measured_of(
    variant: str, seed: int, assignments: Sequence[str], data: Path, out: Path
) -> PerItem:
    """What was measured on each test image of a run, which is trained unless it is complete."""
    folder = out / variant / f"seed-{seed}"
    if (folder / MEASURED).is_file():
        return per_item.read(folder / MEASURED)
    recipe = recipe_of(variant, seed, assignments, folder)
    if not (folder / TEST).is_file():
        fit(recipe, data=data, out=folder, resume=True)
        run_test(recipe, folder, data)
    tested = per_item.read(folder / TEST)
    columns = {name: tested.columns[name] for name in ("recall@1", "map@r", "norm")}
    found = probabilities(recipe, folder, data)
    if found is not None:
        columns["probability"] = found
    measured = PerItem(tested.ids, columns, tested.groups, tested.over)
    per_item.write(folder / MEASURED, measured)
    return measured


def cell(
    values: Sequence[float], draws: Sequence[NDArray[np.float64]], number: float, factor: int = 1
) -> str:
    """The mean of a metric over seeds, its standard error, and the interval over characters, of
    which there are effectively so many.
    """
    low, high = t_interval(np.mean(draws, axis=0), float(np.mean(values)), 0.95, number)
    digits = 3 if factor == 1 else 2
    error = ""
    if len(values) > 1:
        error = f" ± {factor * np.std(values, ddof=1) / math.sqrt(len(values)):.{digits}f}"
    ends = f"[{factor * low:.{digits}f}, {factor * high:.{digits}f}]"
    return f"{factor * np.mean(values):.{digits}f}{error} {ends}"


def print_rows(variant: str, runs: Sequence[PerItem]) -> None:
    """Print a row for each quality that all runs of a variant have."""
    for column, name in QUALITIES.items():
        if not all(column in run.columns for run in runs):
            continue
        values: dict[str, list[float]] = {metric: [] for metric in METRICS}
        draws: dict[str, list[NDArray[np.float64]]] = {metric: [] for metric in METRICS}
        for run in runs:
            there = ~np.isnan(run.columns["recall@1"])  # a query alone in its class has no answer
            assert run.groups is not None
            codes = np.unique(run.groups[there], return_inverse=True)[1]
            number = effective_number(np.bincount(codes))
            risk = 1 - run.columns["recall@1"][there]
            ranking = Ranking(run.columns[column][there], risk)
            for metric, of_draws in draws_over_groups(ranking, codes).items():
                values[metric].append(ranking.metric(metric))
                draws[metric].append(of_draws)
        right = [100 * per_item.mean(run.columns, column="recall@1") for run in runs]
        row(
            variant,
            name,
            len(runs),
            f"{np.mean(right):.2f}",
            cell(values["auroc"], draws["auroc"], number),
            *(cell(values[metric], draws[metric], number, 100) for metric in ("aurc", "e_aurc")),
        )


def main() -> None:
    """Train what is missing, then print the table."""
    variants = list(read(str(RECIPE))["RECIPES"])
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds omniglot/")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the runs, as `likeness compare` left it"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--variants", default=",".join(variants), help="of the recipe (default: all of them)"
    )
    parser.add_argument(
        "--set", action="append", default=[], help="change a setting, as schedule.steps=200"
    )
    arguments = parser.parse_args()
    names = arguments.variants.split(",")
    if unknown := sorted(set(names) - set(variants)):
        parser.error(f"--variants has {', '.join(unknown)}; there are {', '.join(variants)}")
    table("loss", "quality", "seeds", "R@1 %", "R-AUROC", "AURC %", "E-AURC %")
    for name in names:
        runs = [
            measured_of(name, seed, arguments.set, arguments.data, arguments.out)
            for seed in range(arguments.seeds)
        ]
        print_rows(name, runs)


if __name__ == "__main__":
    main()
