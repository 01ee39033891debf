"""The speakers of a recording as clusters of its windows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.clustering import Counts, Tree, tree_of
from eval.errors import LikenessError
from eval.similarity import matrix
from toolkit.models.loaded import Loaded

MOST_WINDOWS = 4_000  # that are clustered; of more, the others join the cluster that is nearest
_MOST_TRIED = 200  # cuts of a tree, until each of so many speakers has enough windows
_SAMPLED = 1_000  # windows whose pairs say where two speakers' scores end
# Where likeness:voice stops joining: the mean score of two clusters of windows.
# benchmarks/diarise.py chose it, on speakers that no table of docs/reference/results.md tests.
CHOSEN = {"268d51a03979046b": 8.5}


@dataclass(frozen=True)
class Clustering:
    """How windows become speakers.

    Attributes:
        threshold: Two clusters are joined if the mean score of their windows is at least this.
            None takes the number that was measured for likeness:voice; for any other model the
            number lies between two normal distributions, one of windows of one speaker and one of
            two, that are fitted to the scores of the recording's windows.
        least_speakers: So many speakers are found at least.
        most_speakers: So many are found at most; None sets no limit.
        window_seconds: The length of a window.
        step_seconds: From the start of a window to that of the next.
        least_windows: Clusters of fewer windows join the nearest one, unless all are so small.
    """

    threshold: float | None = None
    least_speakers: int = 1
    most_speakers: int | None = None
    window_seconds: float = 1.5
    step_seconds: float = 0.75
    least_windows: int = 5

    def __post_init__(self) -> None:
        most = np.inf if self.most_speakers is None else self.most_speakers
        if not 1 <= self.least_speakers <= most:
            raise LikenessError(
                f"from {self.least_speakers} to {self.most_speakers} speakers: give at least 1, "
                "and no smaller number as the most"
            )
        if self.threshold is not None and not np.isfinite(self.threshold):
            raise LikenessError(f"threshold {self.threshold} of the clusters: give a finite number")
        if not 0.1 <= self.step_seconds <= self.window_seconds <= 60:
            raise LikenessError(
                f"windows of {self.window_seconds:g} s every {self.step_seconds:g} s: windows of "
                "at most 60 s are allowed, every 0.1 s or more, which is not longer than they are"
            )


USUAL = Clustering()


def clustered(
    rows: NDArray[np.float32], model: Loaded, how: Clustering = USUAL
) -> tuple[Counts, str]:
    """Tell the speakers of windows apart.

    Args:
        rows: The embeddings of windows (W, D), in order of time.
        model: Says how they are compared.
        how: The threshold and the bounds.

    Returns:
        The speaker of each window (W,), numbered from 0 in the order of their first windows; and
        how they were told apart, as a sentence.
    """
    count = len(rows)
    if count == 1:
        return np.zeros(1, dtype=np.int64), "There is one window."
    every = -(-count // MOST_WINDOWS)
    some = rows[::every]
    tree = tree_of(some, model.similarity)
    least, most = how.least_speakers, how.most_speakers or len(some)
    if least == most:
        labels, why = _into(tree, least, how.least_windows), f"There are {least} by request."
    else:
        threshold, source = _threshold(some, model, how)
        labels = tree.at(threshold)
        labels, why = (
            _large(labels, how.least_windows),
            f"Clusters end at {threshold:.4g}, {source}.",
        )
        number = len(set(labels[labels > 0].tolist()))
        if not least <= number <= most:
            number = min(max(number, least), most)
            labels, why = _into(tree, number, how.least_windows), f"There are {number} by request."
    joined = _joined(rows, labels, every, model.similarity)
    _, first, inverse = np.unique(joined, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64), why


def _large(labels: Counts, least: int) -> Counts:
    """The clusters with so many windows or more; 0 for the windows of the others."""
    sizes = np.bincount(labels)
    if sizes[1:].max() < least:
        return labels
    return np.where(sizes[labels] >= least, labels, 0)


def _into(tree: Tree, number: int, least: int) -> Counts:
    """So many clusters, each with the least number of windows where a cut of the tree has them.

    The windows of smaller clusters, which are 0 then, are outliers: cut into exactly so many
    clusters, a tree of average linkage often has a window alone as one of them.
    """
    count = len(tree.links) + 1
    number = min(number, count)
    for cut in range(number, min(count, number + _MOST_TRIED) + 1):
        labels = tree.into(cut)
        if (np.bincount(labels)[1:] >= least).sum() == number:
            return _large(labels, least)
    return tree.into(number)


def _joined(rows: NDArray[np.float32], labels: Counts, every: int, similarity: str) -> Counts:
    """The clusters of all windows, of which every so many-th has one or 0.

    The others join the cluster whose mean is nearest.
    """
    whole = np.zeros(len(rows), dtype=np.int64)
    whole[::every] = labels
    names = np.unique(whole[whole > 0])
    means = np.stack([rows[whole == name].mean(axis=0, dtype=np.float64) for name in names])
    left = np.flatnonzero(whole == 0)
    if len(left):
        whole[left] = names[matrix(rows[left], means, similarity).argmax(axis=1)]
    return whole


def _threshold(rows: NDArray[np.float32], model: Loaded, how: Clustering) -> tuple[float, str]:
    """The mean score at which clusters end, and where it comes from."""
    if how.threshold is not None:
        return how.threshold, "a number of your own"
    usual = how.window_seconds, how.step_seconds
    chosen = CHOSEN.get(model.digest[:16])
    if chosen is not None and usual == (USUAL.window_seconds, USUAL.step_seconds):
        return chosen, "measured for this model"
    some = rows[:: -(-len(rows) // _SAMPLED)]
    scores = matrix(some, some, model.similarity).astype(np.float64)
    return between(scores[np.triu_indices(len(scores), 1)]), "estimated as if several people spoke"


def between(scores: NDArray[np.float64], *, rounds: int = 50) -> float:
    """Return the score at which two normal distributions of one variance are equally likely.

    They are fitted to the scores by expectation and maximisation. This is how VBx of Brno
    University of Technology finds its threshold (diarization_lib.py, twoGMMcalib_lin).

    Args:
        scores: (N,), at least one.
        rounds: How often the distributions are fitted.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = np.concatenate([rng.normal(0, 1, 5000), rng.normal(8, 1, 5000)])
        >>> round(between(scores), 1)
        4.0
    """
    spread = float(scores.std())
    if not spread:
        return float(scores[0])
    share, means = np.full(2, 0.5), scores.mean() + spread * np.array([-1.0, 1.0])
    variance = spread**2
    for _ in range(rounds):
        log = np.log(share) - (scores[:, None] - means) ** 2 / (2 * variance)
        weight = np.exp(log - np.logaddexp(log[:, 0], log[:, 1])[:, None])
        mass = np.maximum(weight.sum(axis=0), 1e-9)
        share = mass / mass.sum()
        means = weight.T @ scores / mass
        variance = float((weight * (scores[:, None] - means) ** 2).sum() / mass.sum())
        if not variance > 1e-12 * spread**2 or not means[1] > means[0]:
            break
    if not means[1] > means[0]:
        return float(scores.mean())
    lean = np.log(share[0] / share[1]) * variance / (means[1] - means[0])
    return float(means.mean() + lean)
