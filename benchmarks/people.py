"""Measures a recipe by five-fold cross-validation over its people, beside peers.

    python benchmarks/people.py an4 --data ../shared/data --out runs/an4-results
    python benchmarks/people.py speechocean --data ../shared/data --out runs/speechocean
    python benchmarks/people.py orl --data ../shared/data --out runs/orl
        trains what is missing, then prints the table (`make results`)

Measures: variants of recipes/speaker/an4.py and speechocean.py, and recipes/face/orl.py. A model is
    trained on four fifths of the people and scores all pairs of the rest, by its own similarity and
    by cosine with AS-norm; the trials of the five folds are pooled. Intervals are a bootstrap over
    people. The last column is paired: the difference to the first peer on the same draws of people.
    Every fold's embeddings and scores stay in OUT. What is there is not run again, so the command
    can be stopped and repeated.
Peers: those of peers.py on the same folds; the first one is LDA or pixels.
Limit: none; this is about errors, not about time.
Needs: speechbrain and scikit-learn, which come with Likeness, and an4/, speechocean/ or orl/ in the
    folder of --data.
Takes: one to three CPU minutes a fold of statistics, seven one of ecapa, 5.5 one of SpeechBrain's;
    seconds one of faces.
Gives: the tables "AN4 and speechocean" and "ORL" of docs/reference/results.md.
"""

import sys
from pathlib import Path
from typing import Any

from folds import Errors, difference, errors_of, pooled, score_peer, train_and_score, with_interval
from peers import FACE_PEERS, PEERS
from performance import ROOT, parser_of, row, table

from likeness.data import an4, orl, speechocean
from likeness.toolkit.training import recipe as recipes

NUM_FOLDS = 5
DATASETS: dict[str, Any] = {"an4": an4, "speechocean": speechocean, "orl": orl}
VARIANTS = {
    "an4": "arcface,simple,softmax,arcface_cmn",
    "orl": "estimated,arcface,simple",
    "speechocean": "arcface,estimated,mixture,mixture_arcface,softmax,simple,arcface_cmn,ecapa",
}
ENDINGS = {".txt": "", ".as_norm.txt": ", AS-norm"}  # of score files, and how a row says it


def run_fold(dataset: str, system: str, fold: int, data: Path, out: Path) -> str:
    """Train a fold of a peer or a variant; returns what it took, "" where it is there already."""
    source, name = DATASETS[dataset], f"fold{fold}"
    tested, trials = source.trials(data, fold=fold)
    peers = FACE_PEERS | PEERS
    if system in peers:
        training = source.items(data, split="train", fold=fold)
        return score_peer(peers[system], training, tested, trials, out / system / f"{name}.txt")
    folder = "face" if dataset == "orl" else "speaker"
    recipe, _ = recipes.load(f"{ROOT / 'recipes' / folder / dataset}.py:{system}")
    recipe = recipes.override(recipe, [f"items.fold={fold}"])
    training = recipe.items(data)
    return train_and_score(recipe, training, tested, trials, data, out / system / name)


def print_row(name: str, folder: Path, ending: str, first: Errors | None) -> Errors:
    """Print the row of a system; first are the errors to which its EER is compared."""
    errors = errors_of(*pooled([folder / f"fold{fold}{ending}" for fold in range(NUM_FOLDS)]))
    compared = "" if first is None else difference(errors, first, "eer")
    row(name, with_interval(errors, "eer"), with_interval(errors, "min_dcf"), compared)
    return errors


def main() -> None:
    """Train what is missing, then print the table."""
    variants = ("variants", "", "of the recipe (default: the table's)")
    peers = ("peers", "", "names of peers.py (default: the table's)")
    parser = parser_of(__doc__, "data", "out", variants, peers)
    parser.add_argument("dataset", choices=list(DATASETS))
    arguments = parser.parse_args()
    usual = FACE_PEERS if arguments.dataset == "orl" else PEERS
    peers = arguments.peers.split(",") if arguments.peers else list(usual)
    variants = (arguments.variants or VARIANTS[arguments.dataset]).split(",")
    for system in (*peers, *variants):
        for fold in range(NUM_FOLDS):
            taken = run_fold(arguments.dataset, system, fold, arguments.data, arguments.out)
            print(taken, file=sys.stderr, flush=True)
    table("system", "EER %", "minDCF(.01)", f"EER minus that of {peers[0]}, paired")
    first: Errors | None = None
    for name in peers:
        errors = print_row(name, arguments.out / name, ".txt", first)
        first = first or errors
    for name in variants:
        for ending, text in ENDINGS.items():
            print_row(f"{name}{text}", arguments.out / name, ending, first)


if __name__ == "__main__":
    main()
