"""Puts one public score file through the scorers that come with Likeness: the numbers differ.

    python benchmarks/scorers.py --data ../shared/data

Measures: EER and minDCF(.05) of the 49,987 trials of VoxSRC 2023's validation set. The file has
    three decimals. It is scored as it is, rounded to two and to one, and without ties: each score
    plus a number from -.0005 to .0005 (uniform, seed 0), as the scores may have been before they
    were rounded. Each of them is scored in three orders of the rows: as the file has them, all
    targets first, and all nontargets first. A stable sort keeps the order of the file within a tie,
    so that the last two are the extremes of a tool that counts row by row. Then come six score sets
    of a few trials, whose exact answers can be counted by hand.
Peers: SCORERS below. The rules that are not in a package are written here anew, as loops where the
    rule is a loop. tests/benchmarks/test_scripts.py derives them once more.
Limit: none; this is about numbers.
Needs: protocols/voxsrc23_val/ in the folder of --data, speechbrain and scikit-learn.
Takes: a minute of one core.
Gives: rows of the tables of docs/explanation/comparing.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from performance import parser_of, row, table
from sklearn.metrics import roc_curve

from likeness import read_trials
from likeness.data import read_scores
from likeness.metrics import eer, min_dcf
from likeness.toolkit.backbones.ecapa import import_torchaudio

Rows = np.ndarray  # (P,) scores as float64, or (P,) labels as int64, in the order of the file
Sets = dict[str, tuple[Rows, Rows]]
Scorer = Callable[[Rows, Rows], float]  # scores and labels in the order of the rows -> a number
ROUNDINGS = {"untied": "no ties", "as_is": "as it is", "2": "2 decimals", "1": "1 decimal"}
P_TARGET = 0.05


def sides(scores: Rows, labels: Rows) -> tuple[Rows, Rows]:
    """The scores of target and of nontarget trials."""
    return scores[labels == 1], scores[labels == 0]


# ---------------------------------------------------------------- rules without a package


def rates_by_row(scores: Rows, labels: Rows) -> tuple[list[float], list[float]]:
    """FRR and FAR after each row of a stable ascending sort, so that a tie has many points.

    This is the rule of Kaldi's compute_min_dcf.py, which the VoxSRC challenges and many toolkits
    have taken over: the trials up to a row are rejected, those after it are accepted. Rows of equal
    score stay in the order of the file.
    """
    ordered = [int(labels[i]) for i in sorted(range(len(scores)), key=lambda i: scores[i])]
    num_targets = sum(ordered)
    misses, frr, far = 0, [], []
    for number, label in enumerate(ordered, 1):
        misses += label
        frr.append(misses / num_targets)
        far.append(1 - (number - misses) / (len(ordered) - num_targets))
    return frr, far


def cheapest(frr: Any, far: Any, p_target: float) -> float:
    """The least normalised cost over operating points, for unit costs."""
    cost = p_target * np.asarray(frr) + (1 - p_target) * np.asarray(far)
    return float(cost.min()) / min(p_target, 1 - p_target)


def min_dcf_by_row(scores: Rows, labels: Rows, p_target: float = P_TARGET) -> float:
    return cheapest(*rates_by_row(scores, labels), p_target)


def eer_by_row(scores: Rows, labels: Rows) -> float:
    """The mean of both rates after the row where they differ least."""
    frr, far = map(np.asarray, rates_by_row(scores, labels))
    nearest = int(np.argmin(np.abs(frr - far)))
    return float(frr[nearest] + far[nearest]) / 2


def eer_kaldi(scores: Rows, labels: Rows) -> float:
    """Kaldi's compute-eer: each class is sorted by itself, and the first target position is taken
    whose counterpart among the nontargets is lower.
    """
    target, nontarget = (np.sort(side).tolist() for side in sides(scores, labels))
    position = 0
    while position + 1 < len(target):
        counterpart = len(nontarget) - 1 - int(len(nontarget) * position / len(target))
        if nontarget[max(counterpart, 0)] < target[position]:
            break
        position += 1
    return position / len(target)


# ---------------------------------------------------------------- packages


def eer_ours(scores: Rows, labels: Rows, method: Any = "interpolated") -> float:
    return eer(*sides(scores, labels), method=method)


def min_dcf_ours(scores: Rows, labels: Rows) -> float:
    return min_dcf(*sides(scores, labels), p_target=P_TARGET)


def eer_argmin(scores: Rows, labels: Rows) -> float:
    """A recipe that is often copied: the FAR where both rates differ least."""
    far, tar, _ = roc_curve(labels, scores, pos_label=1)
    return float(far[np.nanargmin(np.abs(1 - tar - far))])


def speechbrain(name: str, scores: Rows, labels: Rows) -> float:
    """Its function EER or minDCF."""
    import_torchaudio()  # also where its compiled part cannot be loaded
    import torch
    from speechbrain.utils import metric_stats

    positive, negative = map(torch.from_numpy, sides(scores.astype(np.float32), labels))
    settings = {"p_target": P_TARGET} if name == "minDCF" else {}
    return float(getattr(metric_stats, name)(positive, negative, **settings)[0])


EERS: dict[str, Scorer] = {
    "Likeness": eer_ours,
    "Likeness, convex_hull": partial(eer_ours, method="convex_hull"),
    "Likeness, nearest": partial(eer_ours, method="nearest"),
    "one point per row": eer_by_row,
    "SpeechBrain": partial(speechbrain, "EER"),
    "scikit-learn, argmin": eer_argmin,
    "Kaldi's compute-eer": eer_kaldi,
}
# Without ties SpeechBrain's minDCF needs 10 GB, so it is not asked.
MIN_DCFS: dict[str, Scorer] = {"Likeness": min_dcf_ours, "one point per row": min_dcf_by_row}
# Score sets so small that every answer can be counted by hand: target scores, nontarget scores.
TINY = {
    "separable": ([0.9, 0.8, 0.7], [0.3, 0.2, 0.1]),
    "inverted": ([0.1, 0.2], [0.8, 0.9]),
    "five trials": ([0.9, 0.6, 0.3], [0.7, 0.1]),
    "half tied": ([0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 0.1, 0.1]),
    "all equal": ([0.5] * 4, [0.5] * 4),
    "straight run": ([0.2, 0.3, 0.4, 0.5], [0.1, 0.6, 0.7, 0.8]),
}


# ---------------------------------------------------------------- the tables


def variant(scores: Rows, rounding: str) -> Rows:
    """The scores as one of ROUNDINGS has them."""
    if rounding == "as_is":
        return scores
    if rounding == "untied":
        return scores + np.random.default_rng(0).uniform(-0.0005, 0.0005, scores.size)
    return np.round(scores, int(rounding))


def tiny(title: str) -> tuple[Rows, Rows]:
    """The scores and labels of one of TINY, target scores first."""
    target, nontarget = TINY[title]
    return np.array([*target, *nontarget]), np.repeat([1, 0], [len(target), len(nontarget)])


def print_table(heading: str, scorers: dict[str, Scorer], sets: Sets, digits: int) -> None:
    """Print the number that every scorer gives each set of scores and labels.

    It is given in brackets for all targets first, and all nontargets first, where it differs.
    """
    table(heading, *sets)
    for name, scorer in scorers.items():
        cells = []
        for scores, labels in sets.values():
            orders = (slice(None), *(np.argsort(s * labels, kind="stable") for s in (-1, 1)))
            texts = [f"{scorer(scores[order], labels[order]):.{digits}f}" for order in orders]
            cells.append(texts[0] if len({*texts}) == 1 else f"{texts[0]} ({', '.join(texts[1:])})")
        row(name, *cells)
    print()


def main() -> None:
    """Ask every scorer, and print the tables."""
    folder = parser_of(__doc__, "data").parse_args().data / "protocols" / "voxsrc23_val"
    trials, scores = read_scores(folder / "scores.txt.gz", read_trials(folder / "trials.txt.gz"))
    labels = trials.target.astype(np.int64)
    rounded = {title: (variant(scores, key), labels) for key, title in ROUNDINGS.items()}
    small = {title: tiny(title) for title in TINY}
    for heading, scorers in (("EER", EERS), ("minDCF(.05)", MIN_DCFS)):
        print_table(heading, scorers, rounded, 6)
        print_table(f"{heading} of tiny sets", scorers, small, 3)


if __name__ == "__main__":
    main()
