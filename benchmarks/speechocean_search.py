"""Compares settings of the recipe speaker/speechocean on its training speakers only.

    python benchmarks/speechocean_search.py --data ../shared/data --out runs/speechocean-search
        ['as it is' 'shrinkage .1' ...]

Measures: EER and minDCF(.01) of every candidate, by its own similarity and by cosine with AS-norm
    (as benchmarks/speechocean.py does it). The speakers are those that fold 0 of the recipe trains
    on. They are divided into three inner folds with the same rule and another seed; a candidate
    is trained on two and scores all pairs of the third, and the trials of the three are pooled. The
    test speakers of fold 0 are never read. Those of the other folds are among the speakers that
    this script sees, as in any choice by cross-validation: so fold 0 is given by itself as well.
Peers: none. Limit: none.
Needs: speechocean/ in the folder of --data.
Takes: 4 to 5 minutes of one core a candidate of statistics.
Gives: the settings of recipes/speaker/speechocean.py, and what docs/reference/results.md says of
    them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from folds import METRICS, pooled, train_and_score
from performance import ROOT, parser_of, row, table

from modalities.speaker import speechocean
from modalities.speaker.audio import speed_copies
from modalities.speaker.augment import train_view
from modalities.speaker.folds import stratified_folds
from toolkit.data.items import Items
from toolkit.data.pairs import all_pairs
from toolkit.training import recipe as recipes
from toolkit.training.recipe import Recipe, Schedule

NUM_INNER = 3
RECIPE = ROOT / "recipes" / "speaker" / "speechocean.py"
Change = Callable[[Recipe], Recipe]


def backbone(**settings: object) -> Change:
    """Other settings of the backbone."""
    return lambda recipe: replace(recipe, backbone=partial(recipe.backbone, **settings))


def crops(low: float, high: float) -> Change:
    """Crops of other lengths, in seconds."""
    return lambda recipe: replace(recipe, augment=partial(train_view, seconds=(low, high)))


def steps(number: int) -> Change:
    """Another number of steps."""
    return lambda recipe: replace(
        recipe, schedule=Schedule(steps=number, warmup_steps=number // 10, save_every=number)
    )


# Candidate: the variant of the recipe, and what is changed.
CANDIDATES: dict[str, tuple[str, tuple[Change, ...]]] = {
    "as it is": ("arcface", ()),
    "statistics of AN4": (
        "arcface",
        (backbone(differences=(), num_correlated=0),),
    ),
    "shrinkage .1": ("arcface", (backbone(shrinkage=0.1),)),
    "shrinkage .5": ("arcface", (backbone(shrinkage=0.5),)),
    "no differences": ("arcface", (backbone(differences=()),)),
    "no correlations": ("arcface", (backbone(num_correlated=0),)),
    "correlations of 40 groups": ("arcface", (backbone(num_correlated=40),)),
    "256 dimensions": ("arcface", (backbone(dim=256, num_directions=256),)),
    "crops of 1.5 to 4 s": ("arcface", (crops(1.5, 4.0),)),
    "500 steps": ("arcface", (steps(500),)),
    "2,000 steps": ("arcface", (steps(2000),)),
    "estimated": ("estimated", ()),
    "estimated, correlations of 40 groups": ("estimated", (backbone(num_correlated=40),)),
    "estimated, statistics of AN4": ("estimated", (backbone(differences=(), num_correlated=0),)),
    "estimated, shrinkage .1": ("estimated", (backbone(shrinkage=0.1),)),
    "estimated, 200 directions": ("estimated", (backbone(num_directions=200, dim=200),)),
    "estimated, crops of 1.5 to 4 s": ("estimated", (crops(1.5, 4.0),)),
    "start as a rotation": ("arcface", (backbone(start="rotation"),)),
    "start as a rotation, 300 steps": ("arcface", (backbone(start="rotation"), steps(300))),
    "dropout .7": ("arcface", (backbone(dropout=0.7),)),
    "softmax": ("softmax", ()),
    "simple": ("simple", ()),
    "ecapa": ("ecapa", ()),
    "resnet": ("resnet", ()),
}


def divided(data: Path, number: int) -> tuple[Items, Items]:
    """The recordings of the speakers to train on and to measure on, of one inner fold."""
    known = speechocean.speakers(data)
    every = speechocean.items(data, split="train", fold=0)
    groups = speechocean.groups_of(sorted({str(item.label) for item in every}), known)
    inner = stratified_folds(groups, NUM_INNER, seed=1)
    held_out = inner[number]
    training = [item for item in every if item.label not in held_out]
    tested = [item for item in every if item.label in held_out]
    return Items.of(training), Items.of(tested)


def main() -> None:
    """Train what is missing, and print a row for each candidate."""
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", help="candidates (default: all)")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds speechocean/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and scores")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(CANDIDATES)):
        parser.error(f"no candidate is named {unknown[0]!r}; they are: {', '.join(CANDIDATES)}")
    table("candidate", "EER %", "minDCF(.01)", "EER %, AS-norm", "minDCF(.01), AS-norm")
    for name in arguments.names or CANDIDATES:
        variant, changes = CANDIDATES[name]
        recipe, _ = recipes.load(f"{RECIPE}:{variant}")
        for change in changes:
            recipe = change(recipe)
        folder = arguments.out / name.replace(" ", "_")
        for number in range(NUM_INNER):
            training, tested = divided(arguments.data, number)
            said = train_and_score(
                recipe,
                speed_copies(training, (0.9, 1.1)),
                tested,
                all_pairs(tested),
                data=arguments.data,
                folder=folder,
                name=f"inner{number}",
            )
            print(said, file=sys.stderr, flush=True)
        cells = []
        for ending in (".txt", ".as_norm.txt"):
            trials, values = pooled([folder / f"inner{k}{ending}" for k in range(NUM_INNER)])
            sides = values[trials.target], values[~trials.target]
            cells += [f"{100 * METRICS['eer'](*sides):.2f}", f"{METRICS['min_dcf'](*sides):.3f}"]
        row(name, *cells)


if __name__ == "__main__":
    main()
