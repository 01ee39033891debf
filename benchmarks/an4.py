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
Peers: LDA and SpeechBrain's ECAPA-TDNN on the same folds; an4_peers.py trains them.
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
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from performance import ROOT, environment, parser_of, row, table

from eval.bootstrap import percentile_interval, resample
from eval.formats import embeddings
from eval.formats.subjects import subjects_of
from eval.formats.trials import read_scores, write_scores
from eval.similarity import score_trials
from eval.types import Embeddings, Scores, Trials
from eval.verification import eer, min_dcf

NUM_FOLDS = 5
RECIPE = ROOT / "recipes" / "speaker" / "an4.py"
PEERS = {
    "lda": ["lda"],
    "speechbrain": ["speechbrain"],
    "speechbrain_cmn": ["speechbrain", "--cmn"],
}
METRICS = {"eer": eer, "min_dcf": partial(min_dcf, p_target=0.01)}


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


def pooled(files: list[Path]) -> tuple[Trials, np.ndarray]:
    """The trials of all folds as one list, and their scores.

    Their ids never meet, because the speakers of two folds are disjoint.
    """
    lists, values = zip(*(read_scores(file) for file in files), strict=True)
    enrol = [trials.enrol_ids[i] for trials in lists for i in trials.enrol]
    probe = [trials.probe_ids[i] for trials in lists for i in trials.probe]
    names = tuple(dict.fromkeys([*enrol, *probe]))
    place = {name: i for i, name in enumerate(names)}
    i, j = (np.array([place[name] for name in side], dtype=np.int32) for side in (enrol, probe))
    target = np.concatenate([trials.target for trials in lists])
    return Trials(names, names, i, j, target), np.concatenate(values)


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
    """Score files by cosine and AS-norm, WeSpeaker's way.

    The training mean is subtracted, and the cohort is the training speakers, a mean unit embedding
    each.
    """
    from eval.scoring.normalization import as_norm
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
        centre = known.matrix.mean(axis=0)
        unit = Embeddings(known.ids, known.matrix - centre).unit()
        labels = np.array([item.label for item in training])
        cohort = np.stack([unit[labels == label].mean(axis=0) for label in np.unique(labels)])
        plain = score_trials(
            trials, Embeddings(tested.ids, tested.matrix - centre), similarity="cosine"
        )
        enrol, probe = (
            tested.matrix[tested.rows(ids)] - centre for ids in (trials.enrol_ids, trials.probe_ids)
        )
        write_scores(
            files[-1],
            trials,
            as_norm(plain, enrol, probe, cohort, top_n=len(cohort), i=trials.enrol, j=trials.probe),
        )
    return files


Draws = dict[str, np.ndarray]  # of each metric, its value in every draw of speakers


class Errors(NamedTuple):
    """What a system's pooled scores give."""

    eer: float
    same_sex_eer: float
    min_dcf: float
    draws: Draws


def errors_of(files: list[Path]) -> Errors:
    """The errors of five score files, pooled."""
    trials, values = pooled(files)
    subjects, _ = subjects_of(trials)
    assert subjects is not None
    pairs = np.stack([subjects[0][trials.enrol], subjects[1][trials.probe]], axis=1)
    scores = Scores(values, trials.target)
    draws = resample(METRICS, scores, pairs, num_resamples=1000, seed=0).values
    sexes = np.array([name[0] for name in trials.enrol_ids])
    same = sexes[trials.enrol] == sexes[trials.probe]
    return Errors(
        eer(scores.targets, scores.nontargets),
        eer(values[same & trials.target], values[same & ~trials.target]),
        METRICS["min_dcf"](scores.targets, scores.nontargets),
        draws,
    )


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
    errors = errors_of(files)
    (low, high), (least, most) = (
        percentile_interval(errors.draws[metric], 0.95) for metric in ("eer", "min_dcf")
    )
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
        f"{100 * errors.same_sex_eer:.2f}",
        f"{errors.min_dcf:.3f} [{least:.2f}, {most:.2f}]",
        compared,
    )
    return errors.draws


def score_files(folder: Path) -> list[Path]:
    """The five score files of a system."""
    return [folder / f"fold{fold}.txt" for fold in range(NUM_FOLDS)]


def train_peers(names: list[str], data: Path, out: Path) -> None:
    """Let an4_peers.py write the score files that are missing."""
    script = str(Path(__file__).with_name("an4_peers.py"))
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
