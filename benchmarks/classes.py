"""Measures what the number of classes does to losses: softmax and SimPLE on 50 to 633 characters.

    python benchmarks/classes.py --data ../shared/data --out runs/classes

Measures: R@1 and MAP@R on the ten unseen alphabets of Omniglot, of variants of
    recipes/image/omniglot_losses.py that are trained on 50, 100, 200, 400 and all 633 characters
    of the other alphabets, three seeds each. The characters are drawn once; a larger number holds
    the smaller ones. All have the same number of steps. In brackets is the 95 % interval over the
    tested characters. What is in OUT is not run again.
    Variants: softmax; simple by its own similarity, and the same embeddings by cosine; simple
    without its memory bank, in both ways.
Peers: none. Limit: none.
Needs: omniglot/ in the folder of --data.
Takes: 40 CPU seconds a run, 45 runs.
Gives: a table of docs/reference/results.md that says whether SimPLE needs many classes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from performance import parser_of, row, table
from uncertainty import cell, measured_of, recipe_of

from eval import per_item
from eval.per_item import PerItem
from toolkit.training.measure import load_model, measure_items
from toolkit.training.recipe import Retrieval

NUMBERS = (50, 100, 200, 400, 633)
COLUMNS = ("recall@1", "map@r")
BY_COSINE = "by_cosine.npz"  # in the folder of a run


def by_cosine(variant: str, seed: int, assignments: list[str], data: Path, out: Path) -> PerItem:
    """What is measured on each test image by the cosine of a run's embeddings."""
    folder = out / variant / f"seed-{seed}"
    if not (folder / BY_COSINE).is_file():
        recipe = recipe_of(variant, seed, assignments, folder)
        assert isinstance(recipe.measure, Retrieval)
        measure = replace(recipe.measure, similarity="cosine")
        model = load_model(folder, recipe)
        per_item.write(folder / BY_COSINE, measure_items(model, data, measure))
    return per_item.read(folder / BY_COSINE)


def print_row(name: str, number: int, runs: list[PerItem]) -> None:
    """Print the row of a variant and a number of characters."""
    cells = []
    for column in COLUMNS:
        metric = {column: lambda columns, name=column: per_item.mean(columns, column=name)}
        values = [per_item.mean(run.columns, column=column) for run in runs]
        draws = [per_item.resample(metric, run)[column] for run in runs]
        cells.append(cell(values, [np.asarray(draw) for draw in draws], 3))
    row(name, number, len(runs), *cells)


def main() -> None:
    """Train what is missing, then print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds omniglot/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", default="softmax,simple,simple_no_bank")
    arguments = parser.parse_args()
    table("loss", "characters", "seeds", "R@1", "MAP@R")
    for number in NUMBERS:
        out = arguments.out / str(number)
        settings = [f"items.num_classes={number}"]
        for variant in arguments.variants.split(","):
            runs, cosines = [], []
            for seed in range(arguments.seeds):
                runs.append(measured_of(variant, seed, settings, arguments.data, out))
                if variant != "softmax":
                    cosines.append(by_cosine(variant, seed, settings, arguments.data, out))
            print_row(variant, number, runs)
            if cosines:
                print_row(f"{variant}, by cosine", number, cosines)


if __name__ == "__main__":
    main()
