"""AN4 by five-fold cross-validation over its 54 speakers: our recipe's variants and seeds beside
LDA and SpeechBrain's ECAPA on the same folds.

    python benchmarks/an4.py --data ../shared/data --out runs/an4-results
        trains what is missing, then prints the table of docs/results.md

Train on four fifths of the speakers, score all pairs of the rest, pool the trials of the five
folds. Every fold's embeddings and scores stay in OUT; what is there is not run again, so the
command can be stopped and repeated. Intervals: bootstrap over speakers. "vs LDA": paired, on the
same draws of speakers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from eval.bootstrap import percentile_interval, resample
from eval.formats import embeddings
from eval.formats.subjects import subjects_of
from eval.formats.trials import read_scores, write_scores
from eval.similarity import score_trials
from eval.types import Embeddings, Scores, Trials
from eval.verification import eer, min_dcf

NUM_FOLDS = 5
RECIPE = Path(__file__).parents[1] / "recipes" / "speaker" / "an4.py"
METRICS = {"eer": eer, "min_dcf": partial(min_dcf, p_target=0.01)}


def run_fold(variant: str, seed: int, fold: int, data: Path, out: Path) -> str:
    """Train one fold and write its embeddings and scores."""
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
    """The trials of all folds as one list: their ids never meet, because their speakers are
    disjoint.
    """
    lists, values = zip(*(read_scores(file) for file in files), strict=True)
    enrol = [one.enrol_ids[i] for one in lists for i in one.enrol]
    probe = [one.probe_ids[i] for one in lists for i in one.probe]
    names = tuple(dict.fromkeys([*enrol, *probe]))
    row = {name: i for i, name in enumerate(names)}
    index = [np.array([row[name] for name in side], dtype=np.int32) for side in (enrol, probe)]
    return Trials(
        names, names, index[0], index[1], np.concatenate([one.target for one in lists])
    ), np.concatenate(values)


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
    """Score files by cosine after subtracting the training mean, AS-normalised with the training
    speakers, a mean unit embedding each (WeSpeaker's way).
    """
    from eval.normalization import as_norm
    from likeness.models.run import load_model
    from modalities.speaker import an4
    from toolkit.models.embed import embed

    files = []
    for fold in range(NUM_FOLDS):
        files.append(folder / f"as_norm{fold}.txt")
        if files[-1].exists():
            continue
        loaded = load_model(folder / f"run{fold}")
        trained = an4.items(data, split="train", fold=fold)
        known, _ = embed(loaded.embedder, trained, loaded.read)
        tested = embeddings.read(folder / f"fold{fold}.npz")
        _, trials = an4.trials(data, fold=fold)
        centre = known.matrix.mean(axis=0)
        unit = Embeddings(known.ids, known.matrix - centre).unit()
        labels = np.array([item.label for item in trained])
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


def row(
    name: str,
    files: list[Path],
    against: dict[str, np.ndarray] | None = None,
    plain: dict[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Print one Markdown row; returns the bootstrap draws for paired differences."""
    trials, values = pooled(files)
    subjects, _ = subjects_of(trials)
    assert subjects is not None
    pairs = np.stack([subjects[0][trials.enrol], subjects[1][trials.probe]], axis=1)
    scores = Scores(values, trials.target)
    drawn = resample(METRICS, scores, pairs, num_resamples=1000, seed=0).values
    low, high = percentile_interval(drawn["eer"], 0.95)
    sexes = np.array([[name[0] for name in trials.enrol_ids]])[0]
    same = sexes[trials.enrol] == sexes[trials.probe]
    within = eer(values[same & trials.target], values[same & ~trials.target])
    d = METRICS["min_dcf"](scores.targets, scores.nontargets)
    d_low, d_high = percentile_interval(drawn["min_dcf"], 0.95)
    paired = ""
    if against is not None:
        less, more = percentile_interval(drawn["eer"] - against["eer"], 0.95)
        paired = f"[{100 * less:+.1f}, {100 * more:+.1f}]"
    if plain is not None:
        eers, costs = (
            percentile_interval(drawn[name] - plain[name], 0.95) for name in ("eer", "min_dcf")
        )
        paired += (
            f"; vs without: EER [{100 * eers[0]:+.2f}, {100 * eers[1]:+.2f}], "
            f"minDCF [{costs[0]:+.3f}, {costs[1]:+.3f}]"
        )
    cells = [
        name,
        f"{100 * eer(scores.targets, scores.nontargets):.2f} [{100 * low:.1f}, {100 * high:.1f}]",
        f"{100 * within:.2f}",
    ]
    print(
        "| " + " | ".join([*cells, f"{d:.3f} [{d_low:.2f}, {d_high:.2f}]", paired]) + " |",
        flush=True,
    )
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds an4/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--variants",
        default="arcface,simple,softmax,arcface_cmn",
        help="variants with --seeds runs each; the last two run once",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=2, help="folds trained at a time, one core each"
    )
    parser.add_argument(
        "--peers",
        default="lda,speechbrain",
        help="of lda, speechbrain, speechbrain_cmn; the last two take half an hour of one core "
        "each",
    )
    given = parser.parse_args()
    seeds = {
        name: given.seeds if name in ("arcface", "simple") else 1
        for name in given.variants.split(",")
    }
    peers = {
        "lda": ["lda"],
        "speechbrain": ["speechbrain"],
        "speechbrain_cmn": ["speechbrain", "--cmn"],
    }
    chosen = ["lda", *(name for name in given.peers.split(",") if name != "lda")]
    for name, arguments in ((name, peers[name]) for name in chosen):
        script = str(Path(__file__).with_name("an4_peers.py"))
        subprocess.run(
            [
                sys.executable,
                script,
                *arguments,
                "--threads",
                "1",
                "--data",
                str(given.data),
                "--out",
                str(given.out / name),
            ],
            check=True,
        )
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        jobs = [
            pool.submit(run_fold, name, seed, fold, given.data, given.out)
            for name in seeds
            for seed in range(seeds[name])
            for fold in range(NUM_FOLDS)
        ]
        for job in jobs:
            if job.result():
                print(job.result(), file=sys.stderr, flush=True)
    print(
        "| system | EER % (over speakers) | same-sex EER % | minDCF(.01) | EER vs LDA, paired "
        "|\n|---|---|---|---|---|"
    )
    lda = row(
        "log-fbank mean+std, LDA",
        [given.out / "lda" / f"fold{fold}.txt" for fold in range(NUM_FOLDS)],
    )
    for name in chosen[1:]:
        row(name, [given.out / name / f"fold{fold}.txt" for fold in range(NUM_FOLDS)], lda)
    for name, count in seeds.items():
        for seed in range(count):
            folder = given.out / name / f"seed{seed}"
            own = row(
                f"{name}, seed {seed}",
                [folder / f"fold{fold}.txt" for fold in range(NUM_FOLDS)],
                lda,
            )
            row(f"{name}, seed {seed}, AS-norm", with_as_norm(folder, given.data), lda, own)
            if name == "simple":
                row(f"{name} by cosine, seed {seed}", by_cosine(folder, given.data), lda)


if __name__ == "__main__":
    main()
