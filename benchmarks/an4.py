"""Measures our AN4 recipe by five-fold cross-validation over its 54 speakers, beside two peers.

    python benchmarks/an4.py --data ../shared/data --out runs/an4-results
        trains what is missing, then prints the table (`make results`)
    python benchmarks/an4.py --data ../shared/data --out runs/an4-results
        --peers lda,speechbrain,speechbrain_cmn
        has SpeechBrain's sentence mean normalisation, too

Measures: every variant and seed of recipes/speaker/an4.py. A model is trained on four fifths of the
    speakers and scores all pairs of the rest; the trials of the five folds are pooled. Intervals
    are a bootstrap over speakers. "vs LDA" is paired: the difference on the same draws of speakers.
    Every fold's embeddings and scores stay in OUT. What is there is not run again, so the command
    can be stopped and repeated.
Peers: LDA and SpeechBrain's ECAPA-TDNN on the same folds; voice_peers.py trains them.
Limit: none; this is about errors, not about time.
Needs: speechbrain and scikit-learn, which come with Likeness, and an4/ in the folder of --data.
Takes: 65 to 125 CPU seconds a fold of ours, 5.5 minutes of one core a fold of SpeechBrain: three
    hours of one core with the defaults.
Gives: the first table of docs/reference/results.md, of section AN4.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from folds import (
    NUM_FOLDS,
    Errors,
    difference,
    errors_of,
    pooled,
    score_files,
    train_missing,
    train_peers,
    with_interval,
)
from performance import parser_of, row, table

from eval.formats import embeddings
from eval.formats.trials import write_scores
from eval.similarity import score_trials
from eval.types import Trials
from eval.verification import eer

PEERS = {
    "lda": ["lda"],
    "speechbrain": ["speechbrain"],
    "speechbrain_cmn": ["speechbrain", "--cmn"],
}


def by_cosine(folder: Path, data: Path) -> list[Path]:
    """Score files of stored embeddings by cosine instead of the loss's own similarity."""
    from modalities.speaker import an4

    files = []
    for fold in range(NUM_FOLDS):
        files.append(folder / f"cosine{fold}.txt")
        _, trials = an4.trials(data, fold=fold)
        write_scores(
            files[-1], trials, score_trials(trials, embeddings.read(folder / f"fold{fold}.npz"))
        )
    return files


def same_sex_eer(trials: Trials, values: np.ndarray) -> float:
    """The EER of the trials between speakers of one sex, the first letter of their names."""
    sexes = np.array([name[0] for name in trials.enrol_ids])
    same = sexes[trials.enrol] == sexes[trials.probe]
    return eer(values[same & trials.target], values[same & ~trials.target])


def print_row(
    name: str, files: list[Path], lda: Errors | None = None, without: Errors | None = None
) -> Errors:
    """Print the row of a system.

    Args:
        name: What the row begins with.
        files: The system's five score files.
        lda: LDA's errors, to which the EER is compared.
        without: The errors of the same system without AS-norm.

    Returns:
        The system's own errors.
    """
    trials, values = pooled(files)
    errors = errors_of(trials, values)
    compared = "" if lda is None else difference(errors, lda, "eer")
    if without is not None:
        eers, costs = (difference(errors, without, metric) for metric in ("eer", "min_dcf"))
        compared += f"; vs without: EER {eers}, minDCF {costs}"
    row(
        name,
        with_interval(errors, "eer"),
        f"{100 * same_sex_eer(trials, values):.2f}",
        with_interval(errors, "min_dcf"),
        compared,
    )
    return errors


def print_table(peers: list[str], seeds: dict[str, int], data: Path, out: Path) -> None:
    """Print a row for LDA, each other peer, and every variant, seed and way of scoring."""
    table(
        "system",
        "EER % (over speakers)",
        "same-sex EER %",
        "minDCF(.01)",
        "EER vs LDA, paired",
    )
    lda = print_row("log-fbank mean+std, LDA", score_files(out / "lda"))
    for name in peers[1:]:
        print_row(name, score_files(out / name), lda)
    for name, count in seeds.items():
        for seed in range(count):
            folder = out / name / f"seed{seed}"
            own = print_row(f"{name}, seed {seed}", score_files(folder), lda)
            normalised = score_files(folder, ".as_norm.txt")
            print_row(f"{name}, seed {seed}, AS-norm", normalised, lda, own)
            if name == "simple":
                print_row(f"{name} by cosine, seed {seed}", by_cosine(folder, data), lda)


def main() -> None:
    """Train what is missing, then print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds an4/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and scores")
    parser.add_argument(
        "--variants",
        default="arcface,simple,softmax,arcface_cmn",
        help="of the recipe; arcface and simple get --seeds runs each, any other one run",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=2, help="folds trained at a time, one core each"
    )
    parser.add_argument(
        "--peers",
        default="lda,speechbrain",
        help="of lda, speechbrain, speechbrain_cmn; the last two take half an hour of one core "
        "each, and lda is always there",
    )
    arguments = parser.parse_args()
    seeds = {
        name: arguments.seeds if name in ("arcface", "simple") else 1
        for name in arguments.variants.split(",")
    }
    peers = ["lda", *(name for name in arguments.peers.split(",") if name != "lda")]
    if unknown := sorted(set(peers) - set(PEERS)):
        parser.error(f"--peers has {', '.join(unknown)}; the peers are {', '.join(PEERS)}")
    train_peers({name: PEERS[name] for name in peers}, arguments.data, arguments.out)
    runs = [(name, seed) for name, count in seeds.items() for seed in range(count)]
    train_missing("an4", runs, arguments.data, arguments.out, arguments.jobs)
    print_table(peers, seeds, arguments.data, arguments.out)


if __name__ == "__main__":
    main()
