"""Measures what the fusion of several systems gains, on the five folds of speechocean.

    python benchmarks/speechocean.py --data ../shared/data --out runs/speechocean
    python benchmarks/fusion.py --scores runs/speechocean --data ../shared/data

Measures: EER, minDCF(.01) and Cllr of each system, and of their logistic fusion as `likeness score
    --fuse` fits and applies it. The fusion of a fold is fitted on the trials of the four other
    folds, whose speakers are others, and the five folds are then pooled. A system alone is
    calibrated in the same way. "with length" has a further column: the lower logarithm of the
    lengths of both recordings. A gain is the difference to the best system alone, on the same draws
    of speakers. The best is the one with the lowest EER in the table, which makes gains look
    smaller, not larger.
Peers: none. The fit is compared with scikit-learn's in tests/eval.
Limit: none.
Needs: the scores that benchmarks/speechocean.py left, and speechocean/ in the folder of --data.
Takes: two minutes.
Gives: section "Fusion" of docs/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from folds import METRICS, RESAMPLES, Draws
from numpy.typing import NDArray
from performance import parser_of, row, table

from eval.bootstrap import percentile_interval, resample
from eval.calibration import fit_calibration
from eval.formats.subjects import subjects_of
from eval.formats.trials import read_scores
from eval.fusion import fit_fusion
from eval.types import Scores, Trials
from eval.verification import cllr
from modalities.speaker import speechocean

NUM_FOLDS = 5
# Name in the table: the folder of the scores, and how its files end.
SYSTEMS = {
    "LDA": ("lda", ".txt"),
    "ECAPA (SpeechBrain)": ("speechbrain", ".txt"),
    "arcface": ("arcface/seed0", ".txt"),
    "arcface, AS-norm": ("arcface/seed0", ".as_norm.txt"),
}
COMBINED = (
    ("arcface", "LDA"),
    ("arcface", "ECAPA (SpeechBrain)"),
    ("arcface, AS-norm", "ECAPA (SpeechBrain)"),
    tuple(SYSTEMS),
)


class Fold(NamedTuple):
    """The trials of a fold with the scores of all systems.

    Attributes:
        trials: The trials.
        scores: Of each system, (P,) in the order of the trials.
        length: (P, 1), the lower logarithm of the lengths of both recordings in seconds.
    """

    trials: Trials
    scores: dict[str, NDArray[Any]]
    length: NDArray[Any]


def pairs_of(trials: Trials) -> list[tuple[str, str]]:
    """The ids of both sides of each trial."""
    return [
        (trials.enrol_ids[i], trials.probe_ids[j])
        for i, j in zip(trials.enrol.tolist(), trials.probe.tolist(), strict=True)
    ]


def read_fold(number: int, folder: Path, seconds: dict[str, float]) -> Fold:
    """The trials of a fold with the scores of all systems, which have them in one order."""
    scores, lists = {}, []
    for name, (where, ending) in SYSTEMS.items():
        trials, scores[name] = read_scores(folder / where / f"fold{number}{ending}")
        lists.append(pairs_of(trials))
    assert all(pairs == lists[0] for pairs in lists), f"fold {number}: trials in another order"
    lengths = [
        np.log([seconds[item] for item in ids])[side]
        for ids, side in ((trials.enrol_ids, trials.enrol), (trials.probe_ids, trials.probe))
    ]
    return Fold(trials, scores, np.minimum(*lengths)[:, None])


def calibrated(folds: Sequence[Fold], systems: Sequence[str], *, with_length: bool) -> NDArray[Any]:
    """Fused scores of all folds, each by what was fitted on the others."""
    values = []
    for fold in folds:
        others = [other for other in folds if other is not fold]
        target = np.concatenate([other.trials.target for other in others])
        columns = np.concatenate(
            [np.stack([other.scores[name] for name in systems], axis=1) for other in others]
        )
        own = np.stack([fold.scores[name] for name in systems], axis=1)
        if len(systems) == 1:
            values.append(fit_calibration(columns[:, 0], target).apply(own[:, 0]))
            continue
        length = np.concatenate([other.length for other in others])
        made = fit_fusion(
            columns,
            target,
            systems=systems,
            quality=length if with_length else None,
            names=["log seconds"] if with_length else (),
        )
        values.append(made.apply(own, fold.length if with_length else None))
    return np.concatenate(values)


class Measured(NamedTuple):
    """What a row of the table has."""

    values: dict[str, float]
    draws: Draws


def measured(folds: Sequence[Fold], scores: NDArray[Any]) -> Measured:
    """The errors of pooled scores, and their draws over speakers."""
    target = np.concatenate([fold.trials.target for fold in folds])
    pairs, before = [], 0
    for fold in folds:
        numbers, _ = subjects_of(fold.trials)
        assert numbers is not None
        own = np.stack([numbers[0][fold.trials.enrol], numbers[1][fold.trials.probe]], axis=1)
        pairs.append(own + before)
        before += int(own.max()) + 1
    every = Scores(scores, target)
    draws = resample(METRICS, every, np.concatenate(pairs), num_resamples=RESAMPLES, seed=0).values
    values = {name: float(of(every.targets, every.nontargets)) for name, of in METRICS.items()}
    return Measured(values | {"cllr": cllr(every.targets, every.nontargets)}, draws)


def print_row(name: str, own: Measured, best: Measured | None) -> None:
    """Print the row of a system or a fusion; best is what it is compared with."""
    cells = []
    for metric, factor, digits in (("eer", 100, 2), ("min_dcf", 1, 3)):
        low, high = percentile_interval(factor * own.draws[metric], 0.95)
        value = factor * own.values[metric]
        cells.append(f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]")
    cells.append(f"{own.values['cllr']:.3f}")
    for metric, factor, digits in (("eer", 100, 2), ("min_dcf", 1, 3)):
        if best is None:
            cells.append("")
            continue
        low, high = percentile_interval(factor * (own.draws[metric] - best.draws[metric]), 0.95)
        value = factor * (own.values[metric] - best.values[metric])
        cells.append(f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]")
    row(name, *cells)


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds speechocean/")
    parser.add_argument(
        "--scores", type=Path, required=True, help="the folder --out of speechocean.py"
    )
    arguments = parser.parse_args()
    seconds = {
        item.id: soundfile.info(item.path).duration
        for item in speechocean.items(arguments.data, split="all")
    }
    folds = [read_fold(number, arguments.scores, seconds) for number in range(NUM_FOLDS)]
    table("system", "EER %", "minDCF(.01)", "Cllr", "gain in EER", "gain in minDCF")
    alone = {
        name: measured(folds, calibrated(folds, [name], with_length=False)) for name in SYSTEMS
    }
    best = min(alone, key=lambda name: alone[name].values["eer"])
    for name, own in alone.items():
        print_row(name, own, None)
    for systems in COMBINED:
        for with_length in (False, True):
            said = " + ".join(systems) + (", with length" if with_length else "")
            scores = calibrated(folds, systems, with_length=with_length)
            print_row(said, measured(folds, scores), alone[best])


if __name__ == "__main__":
    main()
