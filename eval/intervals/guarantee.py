"""A threshold whose false-accept rate is at most what was asked for, with a stated confidence over
subjects.

The rate is that of one trial of two new subjects. A bound for independent trials (Clopper and
Pearson 1934) is no bound here: trials share subjects, and a subject who resembles many makes many
errors at once. So subjects are paired at random such that no subject is in two pairs, and one
trial of each pair is drawn at random. The scores of such trials are independent, because the
subjects are, and each is a score of two new subjects.

Let t be the (k + 1)-th largest of n such scores, and accept what is above t. The rate above t
exceeds far only if t lies below the highest scores that have the share far of all, so only if at
most k of the n scores are among these. The chance of that is at most

    sum_{i <= k} C(n, i) far^i (1 - far)^(n - i)

which is exact where scores do not tie. The largest k for which this is at most 1 - confidence is
taken; that is to say, the Clopper-Pearson bound of k in n is at most far. Where all trials show a
higher rate than far, t is raised until they do not, which keeps the guarantee. Even k = 0 needs
ln(1 - confidence) / ln(1 - far) pairs: 299 for 1 % at 95 %.

Bounds that take all trials exist, such as that of Hoeffding (1963, Sec. 5b) for the mean over all
pairs. They count for n pairs as well, since n is what bounds the dependence, and they replace the
binomial tail by a looser one. So they give a stricter threshold.

The draw has one seed, which is stored. Whoever drew until the threshold pleases would have no
confidence left.
"""

from __future__ import annotations  # numpy.random is imported when it is used

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.verification import num_allowed
from likeness.eval.types import Floats, Scores

SEED = 0  # of all stored thresholds

Pairs = NDArray[np.int64]


@dataclass(frozen=True)
class Guarantee:
    """What stands behind a threshold with a guaranteed false-accept rate.

    Attributes:
        confidence: The share of draws of subjects in which the rate is kept, such as 0.95.
        pairs: How many pairs of subjects, without a common one, were drawn.
        allowed: In how many of them a false accept was allowed.
        seed: Of the draw.
        measured_far: The share of all nontarget trials that the threshold accepts.
    """

    confidence: float
    pairs: int
    allowed: int
    seed: int
    measured_far: float


def check_confidence(confidence: float) -> None:
    """Refuses a confidence that is not strictly between 0 and 1.

    >>> check_confidence(95)
    Traceback (most recent call last):
    ...
    likeness.LikenessError: confidence 95: give a number between 0 and 1, such as 0.95
    """
    if not 0 < confidence < 1:
        raise LikenessError(f"confidence {confidence}: give a number between 0 and 1, such as 0.95")


def num_pairs_allowed(far: float, confidence: float, num_pairs: int) -> int:
    """In how many of n independent nontarget trials a false accept may be allowed.

    Args:
        far: The false-accept rate that has to be kept.
        confidence: With which confidence.
        num_pairs: n.

    Returns:
        The largest number below n; -1 if n is too small for any.

    Example:
        >>> [num_pairs_allowed(0.01, 0.95, num_pairs) for num_pairs in (298, 299, 473)]
        [-1, 0, 1]
    """
    from scipy.special import bdtr  # slow to import, needed here only

    if num_pairs < 1:
        return -1
    tails = bdtr(np.arange(num_pairs, dtype=np.float64), num_pairs, far)
    tail = (1 - confidence) * (1 + 1e-12)  # with room for rounding
    return int(np.count_nonzero(tails <= tail)) - 1


def pairs_needed(far: float, confidence: float) -> int:
    """The least number of independent nontarget trials behind a false-accept rate.

    Example:
        >>> pairs_needed(0.01, 0.95), pairs_needed(0.001, 0.95), pairs_needed(0.01, 0.99)
        (299, 2995, 459)
    """
    return math.ceil(math.log1p(-confidence) / math.log1p(-far))


def independent_scores(nontarget: ArrayLike, subjects: ArrayLike, *, seed: int = SEED) -> Floats:
    """Scores of nontarget trials of which no two share a subject.

    The pairs of subjects that have trials are taken in a random order, each unless one of its
    subjects is taken already; then a trial is drawn of each pair. Where all subjects were compared
    with each other, this leaves out one of them at most. Nothing depends on the order of rows, or
    on which side is the enrolled one.

    Args:
        nontarget: (N,) scores.
        subjects: (N, 2) integers, the subjects of both sides. The draw depends on their numbers.
        seed: Of the draw.

    Returns:
        (n,) scores, at most one for two subjects.

    Example:
        >>> independent_scores([0.5, 0.25], [[0, 1], [2, 3]]).tolist()
        [0.5, 0.25]
        >>> len(independent_scores([0.5, 0.25], [[0, 1], [1, 2]]))
        1
    """
    values, pairs = np.asarray(nontarget, dtype=np.float64), np.asarray(subjects)
    assert (pairs[:, 0] != pairs[:, 1]).all(), "a nontarget trial has two subjects"
    if not values.size:
        return np.empty(0)
    number = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape).astype(np.int64)
    size = int(number.max()) + 1
    keys, of_trial = np.unique(number.min(axis=1) * size + number.max(axis=1), return_inverse=True)
    rng = np.random.default_rng(seed)
    chosen = _matching(np.stack([keys // size, keys % size], axis=1), size, rng)
    rows = np.flatnonzero(np.isin(of_trial, chosen))
    # In the order of their scores, the trials of a pair have numbers that no order of rows changes.
    rows = rows[np.lexsort((values[rows], of_trial[rows]))]
    first = np.flatnonzero(np.append(True, np.diff(of_trial[rows]) != 0))
    counts = np.diff(np.append(first, rows.size))
    drawn: Floats = values[rows[first + rng.integers(counts)]]
    return drawn


def _matching(pairs: Pairs, size: int, rng: np.random.Generator) -> Pairs:
    """The numbers, ascending, of the pairs (M, 2) that are taken in a random order, each unless it
    shares a subject with one that was taken before.

    A pair that comes before all others of both of its subjects is surely taken, so all such pairs
    are taken at once, and those that share a subject with them are dropped.
    """
    place = rng.permutation(len(pairs))
    left = np.arange(len(pairs))
    taken = []
    while left.size:
        earliest = np.full(size, len(pairs))
        for side in pairs[left].T:
            np.minimum.at(earliest, side, place[left])
        is_first = (earliest[pairs[left]] == place[left, None]).all(axis=1)
        taken.append(left[is_first])
        used = np.zeros(size, dtype=np.bool_)
        used[pairs[left[is_first]]] = True
        left = left[~used[pairs[left]].any(axis=1)]
    return np.sort(np.concatenate(taken))


def guaranteed_threshold(
    scores: Scores, subjects: ArrayLike, far: float, *, confidence: float = 0.95
) -> tuple[float, Guarantee]:
    """The lowest threshold whose false-accept rate is at most `far`, with confidence over subjects.

    With at least this confidence the subjects are such that a trial of two new subjects of their
    kind is accepted with a probability of at most `far`. The subjects must have had no part in
    training the model or in choosing it.

    Args:
        scores: P trials with labels.
        subjects: (P, 2) integers, the subjects of both sides of each trial.
        far: The false-accept rate, between 0 and 1.
        confidence: Between 0 and 1.

    Returns:
        The threshold, and what stands behind it. A trial is accepted if its score is at least this.

    Raises:
        LikenessError: There are too few subjects; the message says how many would do. Or every
            trial has to be rejected.

    Example:
        >>> pairs = [(i, j) for i in range(60) for j in range(i, 60)]
        >>> values = [1.0 if i == j else (i * j) % 59 / 100 for i, j in pairs]
        >>> scores = Scores(values, [i == j for i, j in pairs])
        >>> threshold, guarantee = guaranteed_threshold(scores, pairs, 0.1)
        >>> guarantee.pairs, guarantee.allowed, threshold <= 1.0
        (30, 0, True)
    """
    check_confidence(confidence)
    if not 0 < far < 1:
        raise LikenessError(f"far {far}: a guaranteed false-accept rate lies between 0 and 1")
    pairs = np.asarray(subjects)[~scores.target]
    drawn = np.sort(independent_scores(scores.nontargets, pairs))
    allowed = num_pairs_allowed(far, confidence, drawn.size)
    if allowed < 0:
        needed = pairs_needed(far, confidence)
        raise LikenessError(
            f"FAR {100 * far:.3g} % with {100 * confidence:g} % confidence needs {needed:,} "
            f"nontarget trials without a common subject, so at least {2 * needed:,} subjects, but "
            f"there are {drawn.size:,} of {np.unique(pairs).size:,}; ask for a higher FAR"
        )
    most = np.sort(scores.nontargets)[-1 - num_allowed(far, scores.nontargets.size)]
    limit = max(drawn[drawn.size - allowed - 1], most)  # nor is the measured rate above far
    above = scores.values[scores.values > limit]
    if not above.size:
        rate = f"FAR {100 * far:.3g} % with {100 * confidence:g} % confidence"
        raise LikenessError(f"{rate}: a nontarget trial scores highest; ask for a higher FAR")
    threshold = float(above.min())
    measured = float(np.mean(scores.nontargets >= threshold))
    return threshold, Guarantee(confidence, int(drawn.size), allowed, SEED, measured)
