"""Scores one file of trials with one tool, in a process of its own; scorers.py starts it.

    python benchmarks/scorers_peers.py --installed
        prints which scorers this Python can import
    python benchmarks/scorers_peers.py pyeer --rows rows.npz
        prints what pyeer says of the rows in rows.npz

Measures: EER and minDCF of each order of the rows.
Peers: SCORERS below, each called as its documentation or the usual recipe has it. The rules that
    are not in a package are written here anew, as loops where the rule is a loop.
    tests/benchmarks/test_scorers.py derives them once more.
Limit: none.
Needs: only numpy and the scorer's own package, so that it runs in virtual environments of others.
Takes: up to half a minute a process.
Gives: one line of JSON, which scorers.py reads.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Rows = np.ndarray  # (P,) scores as float64, or (P,) labels as int64, in the order of the file
P_TARGETS = (0.05, 0.01)
TOY = (np.array([0.9, 0.6, 0.3, 0.7, 0.1]), np.array([1, 1, 1, 0, 0]))


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
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    num_targets = int(sum(labels))
    num_nontargets = len(labels) - num_targets
    misses, rejected = 0, 0
    frr, far = [], []
    for i in order:
        misses += int(labels[i])
        rejected += 1 - int(labels[i])
        frr.append(misses / num_targets)
        far.append(1 - rejected / num_nontargets)
    return frr, far


def cheapest(frr: Any, far: Any, p_target: float) -> float:
    """The least normalised cost over operating points, for unit costs."""
    cost = p_target * np.asarray(frr) + (1 - p_target) * np.asarray(far)
    return float(cost.min()) / min(p_target, 1 - p_target)


def min_dcf_by_row(scores: Rows, labels: Rows, p_target: float) -> float:
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
    from eval.verification import eer

    return eer(scores, labels=labels, method=method)


def eer_ours_hull(scores: Rows, labels: Rows) -> float:
    return eer_ours(scores, labels, "convex_hull")


def eer_ours_nearest(scores: Rows, labels: Rows) -> float:
    return eer_ours(scores, labels, "nearest")


def min_dcf_ours(scores: Rows, labels: Rows, p_target: float) -> float:
    from eval.verification import min_dcf

    return min_dcf(scores, labels=labels, p_target=p_target)


def tensors(scores: Rows, labels: Rows) -> tuple[Any, Any]:
    import torch

    positive, negative = sides(scores.astype(np.float32), labels)
    return torch.from_numpy(positive), torch.from_numpy(negative)


def speechbrain_metrics() -> Any:
    """Its module of metrics, also where the compiled part of torchaudio cannot be loaded."""
    from toolkit.backbones.torchaudio_cpu import import_torchaudio

    import_torchaudio()
    from speechbrain.utils import metric_stats

    return metric_stats


def eer_speechbrain(scores: Rows, labels: Rows) -> float:
    return float(speechbrain_metrics().EER(*tensors(scores, labels))[0])


def min_dcf_speechbrain(scores: Rows, labels: Rows, p_target: float) -> float:
    return float(speechbrain_metrics().minDCF(*tensors(scores, labels), p_target=p_target)[0])


def eer_argmin(scores: Rows, labels: Rows) -> float:
    """A recipe that is often copied: the FAR where both rates differ least."""
    from sklearn.metrics import roc_curve

    far, tar, _ = roc_curve(labels, scores, pos_label=1)
    return float(far[np.nanargmin(np.abs(1 - tar - far))])


def min_dcf_roc_curve(scores: Rows, labels: Rows, p_target: float) -> float:
    from sklearn.metrics import roc_curve

    far, tar, _ = roc_curve(labels, scores, pos_label=1)
    return cheapest(1 - tar, far, p_target)


def eer_torchmetrics(scores: Rows, labels: Rows) -> float:
    import torch
    from torchmetrics.functional.classification import binary_eer

    values = torch.from_numpy(scores.astype(np.float32))
    return float(binary_eer(values, torch.from_numpy(labels)))


def eer_pyeer(scores: Rows, labels: Rows) -> float:
    from pyeer.eer_info import get_eer_stats

    return float(get_eer_stats(*sides(scores, labels)).eer)


def eer_llreval(scores: Rows, labels: Rows) -> float:
    from eer import eer

    return float(eer(scores, labels))


def min_dcf_llreval(scores: Rows, labels: Rows, p_target: float) -> float:
    from llreval.pav_rocch import PAV, ROCCH

    curve = ROCCH(PAV(scores, labels.astype(np.float64)))
    risk = curve.Bayes_error_rate(math.log(p_target / (1 - p_target)))
    return float(np.squeeze(risk)) / min(p_target, 1 - p_target)


def eer_bob(scores: Rows, labels: Rows) -> float:
    import bob.measure

    target, nontarget = sides(scores, labels)
    return float(bob.measure.eer(nontarget, target))


def min_dcf_bob(scores: Rows, labels: Rows, p_target: float) -> float:
    import bob.measure

    target, nontarget = sides(scores, labels)
    threshold = bob.measure.min_weighted_error_rate_threshold(nontarget, target, 1 - p_target)
    far, frr = bob.measure.farfrr(nontarget, target, threshold)
    return cheapest([frr], [far], p_target)


def eer_espnet(scores: Rows, labels: Rows) -> float:
    from espnet2.utils.eer import tuneThresholdfromScore

    return float(tuneThresholdfromScore(scores, labels, [1, 0.1])[1]) / 100


def min_dcf_espnet(scores: Rows, labels: Rows, p_target: float) -> float:
    from espnet2.utils.eer import ComputeErrorRates, ComputeMinDcf

    rates = ComputeErrorRates(scores.tolist(), labels.tolist())
    return float(ComputeMinDcf(*rates, p_target, 1, 1)[0])


def eer_s3prl(scores: Rows, labels: Rows) -> float:
    from s3prl.metric.common import compute_eer

    return float(compute_eer(labels.tolist(), scores.tolist())[0])


def min_dcf_s3prl(scores: Rows, labels: Rows, p_target: float) -> float:
    from s3prl.metric.common import compute_minDCF

    return float(compute_minDCF(labels.tolist(), scores.tolist(), p_target=p_target)[0])


def min_dcf_a_dcf(scores: Rows, labels: Rows, p_target: float) -> float:
    """Its cost is of targets, nontargets and spoofs; one spoof of the lowest score, of prior 0,
    makes it the minDCF. Its own function for files uses np.float, which numpy no longer has.
    """
    from a_dcf.a_dcf import CostModel, compute_a_det_curve, normalize

    costs = CostModel(Pspf=0.0, Pnontrg=1 - p_target, Ptrg=p_target, Cmiss=1, Cfa_asv=1, Cfa_cm=1)
    far, _, frr, _ = compute_a_det_curve(*sides(scores, labels), scores.min(keepdims=True))
    cost = costs.Ptrg * np.array(frr) + costs.Pnontrg * np.array(far)
    return float(normalize(cost, costs).min())


@dataclass(frozen=True)
class Scorer:
    """A tool and how it is called.

    Attributes:
        package: The name under which pip installs it; "" for a rule that stands here.
        module: The package that must be importable for it.
        eer: Scores and labels, in the order of the rows, to the EER as a fraction; None if it has
            none.
        min_dcf: The same with p_target to the minDCF as the tool gives it; None if it has none.
    """

    package: str
    module: str
    eer: Callable[[Rows, Rows], float] | None = None
    min_dcf: Callable[[Rows, Rows, float], float] | None = None


SKLEARN = ("scikit-learn", "sklearn")
SCORERS = {
    "Likeness": Scorer("likeness", "eval", eer_ours, min_dcf_ours),
    "Likeness, convex_hull": Scorer("likeness", "eval", eer_ours_hull),
    "Likeness, nearest": Scorer("likeness", "eval", eer_ours_nearest),
    "one point per row": Scorer("", "numpy", eer_by_row, min_dcf_by_row),
    "ESPnet": Scorer("espnet", "espnet2", eer_espnet, min_dcf_espnet),
    "a-dcf": Scorer("a-dcf", "a_dcf", min_dcf=min_dcf_a_dcf),
    "SpeechBrain": Scorer("speechbrain", "speechbrain", eer_speechbrain, min_dcf_speechbrain),
    "scikit-learn, argmin": Scorer(*SKLEARN, eer_argmin, min_dcf_roc_curve),
    "s3prl": Scorer("s3prl", "s3prl", eer_s3prl, min_dcf_s3prl),
    "torchmetrics": Scorer("torchmetrics", "torchmetrics", eer_torchmetrics),
    "pyeer": Scorer("pyeer", "pyeer", eer_pyeer),
    "eer, llreval": Scorer("eer", "eer", eer_llreval, min_dcf_llreval),
    "bob.measure": Scorer("bob.measure", "bob.measure", eer_bob, min_dcf_bob),
    "Kaldi's compute-eer": Scorer("", "numpy", eer_kaldi),
}
# Score sets so small that every answer can be counted by hand: target scores, nontarget scores.
TINY = {
    "separable": ([0.9, 0.8, 0.7], [0.3, 0.2, 0.1]),
    "inverted": ([0.1, 0.2], [0.8, 0.9]),
    "five trials": ([0.9, 0.6, 0.3], [0.7, 0.1]),
    "half tied": ([0.5, 0.5, 0.9, 0.9], [0.5, 0.5, 0.1, 0.1]),
    "all equal": ([0.5] * 4, [0.5] * 4),
    "straight run": ([0.2, 0.3, 0.4, 0.5], [0.1, 0.6, 0.7, 0.8]),
}


# ---------------------------------------------------------------- the process


def is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def values_of(scorer: Scorer, scores: Rows, labels: Rows) -> dict[str, Any]:
    """What the scorer says of rows: "eer" and "min_dcf(0.05)" to a number, or to why it failed."""
    works: dict[str, Callable[[], float]] = {}
    if (eer := scorer.eer) is not None:
        works["eer"] = lambda: eer(scores, labels)
    if (min_dcf := scorer.min_dcf) is not None:
        works |= {
            f"min_dcf({p:g})": lambda p=p: min_dcf(scores, labels, p)  # type: ignore[misc]
            for p in P_TARGETS
        }
    values: dict[str, Any] = {}
    for name, work in works.items():
        try:
            value = float(work())
            values[name] = value if math.isfinite(value) else str(value)
        except Exception as error:
            values[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return values


def scored(name: str, rows: Path, limit_gb: float) -> dict[str, Any]:
    """Score every order in the file of rows; scores (P,), labels (P,) and orders (K, P)."""
    with np.load(rows) as file:
        scores, labels, orders = file["scores"], file["labels"], file["orders"]
    values_of(SCORERS[name], *TOY)  # imports what it needs
    if limit_gb:
        limit = int(limit_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    return {"values": [values_of(SCORERS[name], scores[order], labels[order]) for order in orders]}


def tiny(name: str) -> dict[str, Any]:
    """What the scorer says of the tiny sets, target scores before nontarget scores and after."""
    found: dict[str, Any] = {}
    for title, (target, nontarget) in TINY.items():
        scores = np.array([*target, *nontarget])
        labels = np.array([1] * len(target) + [0] * len(nontarget))
        found[title] = [
            values_of(SCORERS[name], scores, labels),
            values_of(SCORERS[name], scores[::-1].copy(), labels[::-1].copy()),
        ]
    return {"values": found}


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scorer", nargs="?", choices=list(SCORERS))
    parser.add_argument("--installed", action="store_true", help="say what can be imported")
    parser.add_argument("--rows", type=Path, help=".npz; without it the tiny sets are scored")
    parser.add_argument("--limit-gb", type=float, default=0.0, help="memory; 0: no limit")
    arguments = parser.parse_args()
    if arguments.installed:
        answer: Any = [name for name, scorer in SCORERS.items() if is_importable(scorer.module)]
    elif arguments.scorer is None:
        parser.error("name a scorer, or ask with --installed")
    elif arguments.rows is None:
        answer = tiny(arguments.scorer)
    else:
        answer = scored(arguments.scorer, arguments.rows, arguments.limit_gb)
    sys.stdout.flush()
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
