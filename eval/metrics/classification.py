"""Closed-set classification: accuracy, calibration error, temperature scaling, and whether a
confidence (the norm, say) tells right from wrong.

ECE after the vMF paper (supplement) and Nguyen and O'Connor 2015 (equal-mass bins), Naeini et al.
2015 (equal width); temperature scaling after Guo et al. 2017, Sec. 4.2; AUROC as the Mann-Whitney
statistic.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.intervals.uncertainty import quality_auroc
from likeness.eval.types import Floats, check_choice, check_counts

_RANGE = (-9.0, 9.0)  # of the log of a temperature, relative to the spread of the logits


def accuracy(probabilities: ArrayLike, labels: ArrayLike) -> float:
    """Share of items whose class has the highest probability (or logit); where k classes tie for
    the highest and the true one is among them, 1/k.

    probabilities: (N, C). labels: (N,) integers 0..C-1. LikenessError: shapes, NaN, labels outside.

    >>> accuracy([[0.8, 0.2], [0.5, 0.5], [0.9, 0.1]], [0, 1, 1])
    0.5
    """
    scores, classes = _scores("probabilities", probabilities, labels)
    own, best = scores[np.arange(len(scores)), classes], scores.max(axis=1)
    num_best = np.count_nonzero(scores == best[:, None], axis=1)
    return float(np.where(own == best, 1 / num_best, 0.0).mean())


def ece(
    confidence: ArrayLike,
    correct: ArrayLike,
    *,
    num_bins: int = 15,
    bins: Literal["mass", "width"] = "mass",
    power: Literal[1, 2] = 1,
) -> float:
    """Expected calibration error (sum_b n_b/N |accuracy_b - confidence_b|^power)^(1/power); empty
    bins count nothing.

    confidence: (N,) in [0, 1]. correct: (N,) booleans (or 0 and 1). bins: "mass", rank r of 0..N-1
    by rising confidence goes to bin floor(num_bins r / N); "width", bin floor(num_bins confidence),
    1 in the last. power=2 is what the vMF paper's released code reports.
    Equal-mass bins may part items of equal confidence. Each of these enters with the mean of their
    correctness, so that the order of rows does not matter, as it does in sequential code: on 50
    confidences of two digits power=2 moves by .02 on average.
    LikenessError: shapes, no items, values outside [0, 1], NaN.

    >>> round(ece([0.9, 0.9, 0.6, 0.6], [True, True, True, False], num_bins=2), 6)
    0.1
    """
    values, right = _confidence(confidence, correct)
    check_counts("num_bins", [num_bins])
    check_choice("bins", bins, ("mass", "width"))
    outside = np.count_nonzero((values < 0) | (values > 1))
    if outside:
        num = f"{outside} of {values.size} values"
        raise LikenessError(f"confidence: {num} are outside [0, 1]; give probabilities")
    if bins == "mass":
        size, mean, accuracy_of = equal_mass(values, right, num_bins)
    else:
        size, mean, accuracy_of = _binned(
            values, right, np.minimum((values * num_bins).astype(np.int64), num_bins - 1)
        )
    return float((size / values.size @ np.abs(accuracy_of - mean) ** power) ** (1 / power))


def equal_mass(
    values: Floats, correct: Floats, num_bins: int
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """(K,) size, mean of values (N,) and mean of correct (N,) of K = min(N, num_bins) bins: rank r
    of 0..N-1 by rising value goes to floor(num_bins r / N).

    Equal values may be parted over bins; each then counts as the mean of them all.

    >>> values, correct = np.array([1.0, 1.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0, 1.0])
    >>> [one.tolist() for one in equal_mass(values, correct, 2)]
    [[2, 2], [1.0, 3.0], [0.5, 1.0]]
    """
    order = np.argsort(values, kind="stable")
    _, group = np.unique(values, return_inverse=True)
    correct = (np.bincount(group, weights=correct) / np.bincount(group))[group]
    return _binned(values[order], correct[order], np.arange(values.size) * num_bins // values.size)


def _binned(
    values: Floats, correct: Floats, place: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Floats, Floats]:
    size = np.bincount(place)
    filled = size > 0
    mean, share = (
        np.bincount(place, weights=each)[filled] / size[filled] for each in (values, correct)
    )
    return size[filled], mean, share


def softmax(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    """(N, C) probabilities softmax(logits / temperature), float64, safe at any magnitude.

    >>> softmax([[0.0, 0.0], [-2000.0, 2000.0]], 2.0)
    array([[0.5, 0.5],
           [0. , 1. ]])
    """
    from scipy.special import softmax as of_logits  # slow to import, needed here only

    return of_logits(np.asarray(logits, dtype=np.float64) / temperature, axis=-1)


def fit_temperature(logits: ArrayLike, labels: ArrayLike) -> float:
    """The temperature T > 0 that minimises the mean negative log-likelihood of softmax(logits / T).

    Fit it on data that the model was not trained on.

    logits: (N, C) finite. labels: (N,) integers 0..C-1. The likelihood is convex in 1/T; the search
    runs over log T. Where every item is right (T -> 0) or the logits say nothing (T -> infinity)
    there is no minimum: ValueError. Also for shapes, NaN, labels outside.
    """
    from scipy.optimize import minimize_scalar  # slow to import, needed here only
    from scipy.special import log_softmax

    scores, classes = _scores("logits", logits, labels)
    spread = float(np.ptp(scores, axis=1).max())
    rows = np.arange(len(scores))
    # d NLL / d(1/T) at 0 and towards infinity: mean logit against the true one, largest logit
    # against the true one
    own = scores[rows, classes]
    if not (own - scores.mean(axis=1)).mean() > 0 or np.all(own == scores.max(axis=1)):
        raise LikenessError("logits: their likelihood has no maximum; fit on held-out data")

    def loss(log_temperature: float) -> float:
        scaled = scores / (spread * np.exp(log_temperature))
        return -float(log_softmax(scaled, axis=1)[rows, classes].mean())

    best = minimize_scalar(loss, bounds=_RANGE, method="bounded", options={"xatol": 1e-9})
    return spread * float(np.exp(best.x))


def auroc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Probability that a correct item has a higher confidence than a wrong one, ties half: how well
    the confidence, such as the norm, tells them apart.

    confidence: (N,) finite, any scale. correct: (N,) booleans (or 0 and 1), both present.
    ValueError otherwise.

    >>> auroc([3.0, 1.0, 2.0, 1.0], [True, True, False, False])
    0.625
    """
    values, right = _confidence(confidence, correct)
    return quality_auroc(values, 1 - right)


def _scores(name: str, scores: ArrayLike, labels: ArrayLike) -> tuple[Floats, NDArray[np.int64]]:
    values, classes = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise LikenessError(f"{name}: shape {values.shape}; give finite numbers (N, C)")
    num_items, num_classes = values.shape
    fits = classes.shape == (num_items,) and classes.dtype.kind in "iu"
    if not fits or ((classes < 0) | (classes >= num_classes)).any():
        what = f"({num_items},) integers from 0 to {num_classes - 1}"
        raise LikenessError(f"labels: {classes.dtype} of shape {classes.shape}; give {what}")
    return values, classes.astype(np.int64)


def _confidence(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    values, hits = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    fits = values.ndim == 1 and hits.shape == values.shape
    if not fits or not np.isin(hits, (0, 1)).all() or not np.isfinite(values).all():
        needed = "finite numbers (N,), and a boolean for each"
        raise LikenessError(f"confidence {values.shape}, correct {hits.shape}: give {needed}")
    return values, hits.astype(np.float64)
