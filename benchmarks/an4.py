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
Gives: the first table of docs/results.md, of section AN4.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from folds import Draws, errors_of, normalised, pooled
from performance import ROOT, environment, parser_of, row, table

from eval.bootstrap import percentile_interval
from eval.formats import embeddings
from eval.formats.trials import write_scores
from eval.similarity import score_trials
from eval.types import Trials
from eval.verification import eer

NUM_FOLDS = 5
RECIPE = ROOT / "recipes" / "speaker" / "an4.py"
PEERS = {
    "lda": ["lda"],
    "speechbrain": ["speechbrain"],
    "speechbrain_cmn": ["speechbrain", "--cmn"],
}


def run_fold(variant: str, seed: int, fold: int, data: Path, out: Path) -> str:
    """Train one fold and write its embeddings and scores.

    Returns:
        A line that says what it took; "" where the fold is there already.
    """
    from likeness.models.run import load_model
    from modalities.speaker import an4
    from toolkit.models.embed import embed
    from toolkit.training import recipe as recipes
    from toolkit.training.train import fit

    folder = out / variant / f"seed{seed}"
    if (folder / f"fold{fold}.txt").exists():
        return ""
    started, cpu = time.perf_counter(), time.process_time()
    recipe, _ = recipes.load(f"{RECIPE}:{variant}")
    recipe = recipes.override(recipe, [f"items.fold={fold}", f"trials.fold={fold}", f"seed={seed}"])
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_model(fit(recipe, data=data, out=folder / f"run{fold}", resume=True))
    items, trials = an4.trials(data, fold=fold)
    embedded, _ = embed(loaded.embedder, items, loaded.read, meta=loaded.meta)
    embeddings.write(folder / f"fold{fold}.npz", embedded)
    took = {
        "wall_seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    (folder / f"fold{fold}.json").write_text(json.dumps(took), encoding="utf-8")
    write_scores(
        folder / f"fold{fold}.txt",
        trials,
        score_trials(trials, embedded, similarity=loaded.similarity),
    )
    return f"{folder / f'fold{fold}.txt'} {took}"


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


def with_as_norm(folder: Path, data: Path) -> list[Path]:
    """Score files by cosine and AS-norm."""
    from likeness.models.run import load_model
    from modalities.speaker import an4
    from toolkit.models.embed import embed

    files = []
    for fold in range(NUM_FOLDS):
        files.append(folder / f"as_norm{fold}.txt")
        if files[-1].exists():
            continue
        loaded = load_model(folder / f"run{fold}")
        training = an4.items(data, split="train", fold=fold)
        known, _ = embed(loaded.embedder, training, loaded.read)
        tested = embeddings.read(folder / f"fold{fold}.npz")
        _, trials = an4.trials(data, fold=fold)
        labels = np.array([str(item.label) for item in training])
        write_scores(files[-1], trials, normalised(trials, tested, known, labels))
    return files


def same_sex_eer(trials: Trials, values: np.ndarray) -> float:
    """The EER of the trials between speakers of one sex, the first letter of their names."""
    sexes = np.array([name[0] for name in trials.enrol_ids])
    same = sexes[trials.enrol] == sexes[trials.probe]
    return eer(values[same & trials.target], values[same & ~trials.target])


def print_row(
    name: str, files: list[Path], lda: Draws | None = None, without: Draws | None = None
) -> Draws:
    """Print the row of a system.

    Args:
        name: What the row begins with.
        files: The system's five score files.
        lda: LDA's draws, to which the EER is compared.
        without: The draws of the same system without AS-norm.

    Returns:
        The system's own draws.
    """
    trials, values = pooled(files)
    errors = errors_of(trials, values)
    (low, high), (least, most) = errors.interval("eer"), errors.interval("min_dcf")
    compared = ""
    if lda is not None:
        less, more = percentile_interval(errors.draws["eer"] - lda["eer"], 0.95)
        compared = f"[{100 * less:+.1f}, {100 * more:+.1f}]"
    if without is not None:
        eers, costs = (
            percentile_interval(errors.draws[metric] - without[metric], 0.95)
            for metric in ("eer", "min_dcf")
        )
        compared += (
            f"; vs without: EER [{100 * eers[0]:+.2f}, {100 * eers[1]:+.2f}], "
            f"minDCF [{costs[0]:+.3f}, {costs[1]:+.3f}]"
        )
    row(
        name,
        f"{100 * errors.eer:.2f} [{100 * low:.1f}, {100 * high:.1f}]",
        f"{100 * same_sex_eer(trials, values):.2f}",
        f"{errors.min_dcf:.3f} [{least:.2f}, {most:.2f}]",
        compared,
    )
    return errors.draws


def score_files(folder: Path) -> list[Path]:
    """The five score files of a system."""
    return [folder / f"fold{fold}.txt" for fold in range(NUM_FOLDS)]


def train_peers(names: list[str], data: Path, out: Path) -> None:
    """Let voice_peers.py write the score files that are missing."""
    script = str(Path(__file__).with_name("voice_peers.py"))
    for name in names:
        arguments = [*PEERS[name], "--threads", "1", "--data", str(data), "--out", str(out / name)]
        subprocess.run([sys.executable, script, *arguments], check=True, env=environment())


def train_ours(seeds: dict[str, int], data: Path, out: Path, jobs: int) -> None:
    """Train the folds that are missing, several at a time."""
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(run_fold, name, seed, fold, data, out)
            for name, count in seeds.items()
            for seed in range(count)
            for fold in range(NUM_FOLDS)
        ]
        for future in futures:
            if future.result():
                print(future.result(), file=sys.stderr, flush=True)


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
            print_row(f"{name}, seed {seed}, AS-norm", with_as_norm(folder, data), lda, own)
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
    train_peers(peers, arguments.data, arguments.out)
    train_ours(seeds, arguments.data, arguments.out, arguments.jobs)
    print_table(peers, seeds, arguments.data, arguments.out)


if __name__ == "__main__":
    main()
