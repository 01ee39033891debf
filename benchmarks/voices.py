"""Measures a speaker recipe by five-fold cross-validation over its speakers, beside two peers.

    python benchmarks/voices.py an4 --data ../shared/data --out runs/an4-results
    python benchmarks/voices.py speechocean --data ../shared/data --out runs/speechocean
        trains what is missing, then prints the table (`make results`)
    python benchmarks/voices.py an4 --data ../shared/data --out runs/an4-results
        --peers lda,speechbrain,speechbrain_cmn
        has SpeechBrain's sentence mean normalisation, too

Measures: variants of recipes/speaker/an4.py or speechocean.py. A model is trained on four
    fifths of the speakers and scores all pairs of the rest, by its own similarity and by cosine
    with AS-norm; the trials of the five folds are pooled. Intervals are a bootstrap over speakers.
    "vs LDA" is paired: the difference on the same draws of speakers. Every fold's embeddings and
    scores stay in OUT. What is there is not run again, so the command can be stopped and repeated.
Peers: LDA and SpeechBrain's ECAPA-TDNN on the same folds; voice_peers.py trains them.
Limit: none; this is about errors, not about time.
Needs: speechbrain and scikit-learn, which come with Likeness, and an4/ or speechocean/ in the
    folder of --data.
Takes: one to three CPU minutes a fold of statistics, seven one of ecapa, 5.5 one of SpeechBrain's.
Gives: the tables of sections AN4 and speechocean of docs/reference/results.md.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from folds import Errors, difference, errors_of, pooled, score_peer, train_and_score, with_interval
from performance import ROOT, parser_of, row, table
from voice_peers import PEERS

from likeness.modalities.speaker import an4, speechocean
from likeness.toolkit.training import recipe as recipes

NUM_FOLDS = 5
DATASETS: dict[str, Any] = {"an4": an4, "speechocean": speechocean}
VARIANTS = {
    "an4": "arcface,simple,softmax,arcface_cmn",
    "speechocean": "arcface,estimated,mixture,mixture_arcface,softmax,simple,arcface_cmn,ecapa",
}
ENDINGS = {".txt": "", ".as_norm.txt": ", AS-norm"}  # of score files, and how a row says it


def run_fold(dataset: str, system: str, fold: int, data: Path, out: Path) -> str:
    """Train a fold of a peer or a variant; returns what it took, "" where it is there already."""
    source, name = DATASETS[dataset], f"fold{fold}"
    tested, trials = source.trials(data, fold=fold)
    if system in PEERS:
        training = source.items(data, split="train", fold=fold)
        return score_peer(PEERS[system], training, tested, trials, out / system / f"{name}.txt")
    recipe, _ = recipes.load(f"{ROOT / 'recipes' / 'speaker' / dataset}.py:{system}")
    recipe = recipes.override(recipe, [f"items.fold={fold}"])
    training = recipe.items(data)
    folder = out / system
    return train_and_score(recipe, training, tested, trials, data=data, folder=folder, name=name)


def print_row(name: str, folder: Path, ending: str, lda: Errors | None) -> Errors:
    """Print the row of a system; lda are the errors to which its EER is compared."""
    errors = errors_of(*pooled([folder / f"fold{fold}{ending}" for fold in range(NUM_FOLDS)]))
    compared = "" if lda is None else difference(errors, lda, "eer")
    row(name, with_interval(errors, "eer"), with_interval(errors, "min_dcf"), compared)
    return errors


def main() -> None:
    """Train what is missing, then print the table."""
    parser = parser_of(__doc__, "data", "out")
    parser.add_argument("dataset", choices=list(DATASETS))
    parser.add_argument("--variants", default="", help="of the recipe (default: the table's)")
    parser.add_argument("--peers", default="lda,speechbrain", help=f"of {', '.join(PEERS)}")
    arguments = parser.parse_args()
    peers = ["lda", *(name for name in arguments.peers.split(",") if name != "lda")]
    variants = (arguments.variants or VARIANTS[arguments.dataset]).split(",")
    for system in (*peers, *variants):
        for fold in range(NUM_FOLDS):
            taken = run_fold(arguments.dataset, system, fold, arguments.data, arguments.out)
            print(taken, file=sys.stderr, flush=True)
    table("system", "EER %", "minDCF(.01)", "EER vs LDA, paired")
    lda = print_row("lda", arguments.out / "lda", ".txt", None)
    for name in peers[1:]:
        print_row(name, arguments.out / name, ".txt", lda)
    for name in variants:
        for ending, text in ENDINGS.items():
            print_row(f"{name}{text}", arguments.out / name, ending, lda)


if __name__ == "__main__":
    main()
