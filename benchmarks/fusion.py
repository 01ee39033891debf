"""Measures what the fusion of several systems gains, on the five folds of speechocean.

    python benchmarks/speechocean.py --data ../shared/data --out runs/speechocean
    python benchmarks/fusion.py --scores runs/speechocean --data ../shared/data

Measures: EER, minDCF(.01) and Cllr of each system, and of their logistic fusion as `likeness score
    --fuse` fits and applies it. The fusion of a fold is fitted on the trials of the four other
    folds, whose speakers are others, and the five folds are then pooled. A system alone is
    calibrated in the same way. "with length" has a further column: the lower logarithm of the
    lengths of both recordings. A gain is the difference to the best system alone, on the same draws
    of speakers. The best is the one with the lowest EER in the table, which makes gains look
    smaller, not larger. A system whose scores are not there is left out.
Peers: none. The fit is compared with scikit-learn's in tests/eval.
Limit: none.
Needs: the scores that benchmarks/speechocean.py left, and speechocean/ in the folder of --data.
Takes: two minutes.
Gives: section "Fusion" of docs/reference/results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import soundfile
from folds import (
    NUM_FOLDS,
    Errors,
    difference,
    errors_of,
    pooled,
    score_files,
    with_interval,
)
from numpy.typing import NDArray
from performance import parser_of, row, table

from eval.calibration import fit_calibration, fit_fusion
from eval.formats.trials import read_scores
from eval.types import Trials
from eval.verification import cllr
from modalities.speaker import speechocean

# Name in the table: the folder of the scores, and how its files end.
SYSTEMS = {
    "LDA": ("lda", ".txt"),
    "ECAPA (SpeechBrain)": ("speechbrain", ".txt"),
    "arcface": ("arcface/seed0", ".txt"),
    "arcface, AS-norm": ("arcface/seed0", ".as_norm.txt"),
    "arcface_averaged, AS-norm": ("arcface_averaged/seed0", ".as_norm.txt"),
    "estimated, AS-norm": ("estimated/seed0", ".as_norm.txt"),
    "mixture_arcface, AS-norm": ("mixture_arcface/seed0", ".as_norm.txt"),
    "mixture, AS-norm": ("mixture/seed0", ".as_norm.txt"),
    "ecapa, AS-norm": ("ecapa/seed0", ".as_norm.txt"),
}
COMBINED = (
    ("arcface", "LDA"),
    ("arcface", "arcface, AS-norm"),
    ("arcface, AS-norm", "estimated, AS-norm"),
    ("arcface, AS-norm", "arcface_averaged, AS-norm"),
    ("arcface, AS-norm", "mixture_arcface, AS-norm"),
    ("estimated, AS-norm", "mixture, AS-norm"),
    ("arcface, AS-norm", "ECAPA (SpeechBrain)"),
    ("arcface, AS-norm", "ecapa, AS-norm"),
    ("estimated, AS-norm", "mixture, AS-norm", "ECAPA (SpeechBrain)"),
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


def present(folder: Path) -> list[str]:
    """The systems whose scores of all folds are in a folder."""
    return [
        name
        for name, (where, ending) in SYSTEMS.items()
        if all(file.exists() for file in score_files(folder / where, ending))
    ]


def read_fold(number: int, names: Sequence[str], folder: Path, seconds: dict[str, float]) -> Fold:
    """The trials of a fold with the scores of the systems, which have them in one order."""
    scores, lists = {}, []
    for name in names:
        where, ending = SYSTEMS[name]
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

    errors: Errors
    cllr: float


def measured(trials: Trials, values: NDArray[Any]) -> Measured:
    """The errors of calibrated scores."""
    assert trials.target is not None
    return Measured(errors_of(trials, values), cllr(values[trials.target], values[~trials.target]))


def print_row(name: str, own: Measured, best: Measured | None) -> None:
    """Print the row of a system or a fusion; best is what it is compared with."""
    gains = ["", ""]
    if best is not None:
        ours, theirs = own.errors, best.errors
        gains = [
            f"{100 * (ours.eer - theirs.eer):+.2f} {difference(ours, theirs, 'eer')}",
            f"{ours.min_dcf - theirs.min_dcf:+.3f} {difference(ours, theirs, 'min_dcf')}",
        ]
    errors = [with_interval(own.errors, metric) for metric in ("eer", "min_dcf")]
    row(name, *errors, f"{own.cllr:.3f}", *gains)


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
    names = present(arguments.scores)
    folds = [read_fold(number, names, arguments.scores, seconds) for number in range(NUM_FOLDS)]
    where, ending = SYSTEMS[names[0]]
    trials, _ = pooled(score_files(arguments.scores / where, ending))
    table("system", "EER %", "minDCF(.01)", "Cllr", "gain in EER", "gain in minDCF")
    alone = {name: measured(trials, calibrated(folds, [name], with_length=False)) for name in names}
    best = min(alone, key=lambda name: alone[name].errors.eer)
    for name, own in alone.items():
        print_row(name, own, None)
    combined = [tuple(name for name in systems if name in names) for systems in COMBINED]
    for systems in dict.fromkeys(chosen for chosen in combined if len(chosen) > 1):
        for with_length in (False, True):
            said = " + ".join(systems) + (", with length" if with_length else "")
            scores = calibrated(folds, systems, with_length=with_length)
            print_row(said, measured(trials, scores), alone[best])


if __name__ == "__main__":
    main()
