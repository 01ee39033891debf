"""Measures the recipe speaker/speechocean over five folds of its speakers, beside two peers.

    python benchmarks/speechocean.py --data ../shared/data --out runs/speechocean

Measures: EER and minDCF(.01) of variants and seeds of recipes/speaker/speechocean.py, by their own
    similarity and by cosine with AS-norm. A model is trained on four fifths of the speakers and
    scores all pairs of the rest; the trials of the five folds are pooled. Intervals are a bootstrap
    over speakers. "vs LDA" is paired: the difference on the same draws of speakers. Then error
    rates by age and by sex, at the threshold of all trials and at the group's own; and the misses
    at the threshold of the EER by age and by how much speech the shorter recording of a trial has:
    frames of 10 ms within 35 dB of the loudest. What is in OUT is not run again, so the command can
    be stopped and repeated.
Peers: LDA and SpeechBrain's ECAPA-TDNN on the same folds; voice_peers.py trains them.
Limit: none; this is about errors, not about time.
Needs: speechbrain and scikit-learn, which come with Likeness, and speechocean/ in the folder of
    --data.
Takes: two to three CPU minutes a fold of statistics, seven a fold of ecapa, and what --steps gives
    SpeechBrain.
Gives: section "speechocean, five folds" of docs/reference/results.md.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from folds import (
    Errors,
    difference,
    errors_of,
    pooled,
    score_files,
    subject_pairs,
    train_missing,
    train_peers,
    with_interval,
)
from performance import parser_of, row, table

from eval import groups
from eval.protocols.verification import VerificationSettings
from eval.types import Scores
from eval.verification import verification_metrics
from modalities.speaker import audio, speechocean

ENDINGS = ((".txt", ""), (".as_norm.txt", ", AS-norm"))  # of score files, and how a row says it
FRAME, LOUD_DB = 160, 35.0  # samples of a frame, and dB below the loudest frame
SEEDED = ("arcface",)  # the variants that get all seeds


def print_row(
    name: str, files: list[Path], lda: Errors | None, without: Errors | None = None
) -> Errors:
    """Print the row of a system; lda are the errors to which its EER is compared.

    The errors of the same system without AS-norm are `without`.
    """
    errors = errors_of(*pooled(files))
    compared = "" if lda is None else difference(errors, lda, "eer")
    if without is not None:
        compared += f"; vs without AS-norm: {difference(errors, without, 'eer')}"
    row(name, with_interval(errors, "eer"), with_interval(errors, "min_dcf"), compared)
    return errors


def print_groups(name: str, files: list[Path], data: Path) -> None:
    """Print error rates within and across bands of age, and the same for sexes."""
    trials, values = pooled(files)
    pairs = subject_pairs(trials)
    known = speechocean.speakers(data)
    speaker_of = {item: item.partition("/")[0] for item in {*trials.enrol_ids, *trials.probe_ids}}
    settings = VerificationSettings(fars=(0.01,), num_resamples=1000)
    for group_of in (
        {who: speaker.band for who, speaker in known.items()},
        {who: speaker.sex for who, speaker in known.items()},
    ):
        sides, names = groups.sides_of(trials, group_of, speaker_of)
        grouped = groups.evaluate_groups(
            name, Scores(values, trials.target), pairs, sides, names, settings=settings
        )
        for caption, head, body in groups.blocks(grouped):
            print(f"\n{caption}\n", flush=True)
            table(*head)
            for cells in body:
                row(*(cell.strip() for cell in cells))


def speech_seconds(data: Path) -> dict[str, float]:
    """How much speech each recording has, in seconds."""
    seconds = {}
    for item in speechocean.items(data, split="all"):
        wave = audio.read(item)
        frames = wave[: len(wave) // FRAME * FRAME].reshape(-1, FRAME)
        levels = 10 * np.log10(np.square(frames).mean(axis=1) + 1e-10)
        seconds[item.id] = 0.01 * np.count_nonzero(levels > levels.max() - LOUD_DB)
    return seconds


def print_misses(name: str, files: list[Path], data: Path) -> None:
    """Print the misses at the threshold of the EER, by band of age and by amount of speech."""
    trials, values = pooled(files)
    assert trials.target is not None
    target = trials.target
    measured = verification_metrics(values[target], values[~target], p_targets=(), fars=())
    threshold = float(measured["eer"].threshold)
    known, seconds = speechocean.speakers(data), speech_seconds(data)
    bands = np.array([known[item.partition("/")[0]].band for item in trials.enrol_ids])
    shorter = np.minimum(
        np.array([seconds[item] for item in trials.enrol_ids])[trials.enrol],
        np.array([seconds[item] for item in trials.probe_ids])[trials.probe],
    )
    low, high = np.quantile(shorter[target], (1 / 3, 2 / 3))
    print(f"\n{name}: misses at the threshold of the EER, {threshold:.3g}\n", flush=True)
    table(
        "target trials of",
        "mean score",
        "deviation",
        f"below {low:.1f} s of speech",
        f"{low:.1f} to {high:.1f} s",
        f"from {high:.1f} s",
    )
    for band in ("child", "teenager", "adult"):
        own = target & (bands[trials.enrol] == band)
        cells = []
        for third in (shorter < low, (shorter >= low) & (shorter < high), shorter >= high):
            number = np.count_nonzero(own & third)
            missed = np.count_nonzero(own & third & (values < threshold))
            cells.append(f"{100 * missed / number:.1f} % of {number}")
        row(band, f"{values[own].mean():.2f}", f"{values[own].std():.2f}", *cells)


def main() -> None:
    """Train what is missing, then print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds speechocean/")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and scores")
    parser.add_argument(
        "--variants",
        default="arcface,arcface_averaged,estimated,mixture,mixture_arcface,"
        "softmax,simple,arcface_cmn,ecapa",
        help="of the recipe; arcface gets --seeds runs, any other one run",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--jobs", type=int, default=2, help="folds trained at a time, one core each"
    )
    parser.add_argument("--peers", default="lda,speechbrain", help="lda, or lda,speechbrain")
    parser.add_argument("--steps", type=int, default=500, help="of SpeechBrain's ECAPA")
    arguments = parser.parse_args()
    peers = ["lda", *(name for name in arguments.peers.split(",") if name != "lda")]
    data, out = arguments.data, arguments.out
    runs = [
        (variant, seed)
        for variant in arguments.variants.split(",")
        for seed in range(arguments.seeds if variant in SEEDED else 1)
    ]
    common = ["--dataset", "speechocean", "--steps", str(arguments.steps)]
    train_peers({name: [name, *common] for name in peers}, data, out)
    train_missing("speechocean", runs, data, out, arguments.jobs)
    table("system", "EER %", "minDCF(.01)", "EER vs LDA, paired")
    lda = print_row("LDA", score_files(out / "lda"), None)
    for name in peers[1:]:
        print_row(name, score_files(out / name), lda)
    for variant, seed in runs:
        folder = out / variant / f"seed{seed}"
        without: Errors | None = None
        for ending, said in ENDINGS:
            files = score_files(folder, ending)
            without = print_row(f"{variant}, seed {seed}{said}", files, lda, without)
    for variant in SEEDED:
        folder = out / variant / "seed0"
        for ending, said in ENDINGS:
            print_groups(f"{variant}{said}", score_files(folder, ending), data)
            print_misses(f"{variant}{said}", score_files(folder, ending), data)


if __name__ == "__main__":
    main()
