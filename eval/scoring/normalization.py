"""Score normalisation by a cohort of impostors, and mean subtraction.

A raw score s of enrolment e and probe p is set against the scores that either side gets with the C
members of a cohort, who are none of the trials' subjects:

    z_norm
        (s - mean_e) / std_e                      the enrolment's scores with the cohort (Reynolds
        1997)
    t_norm
        (s - mean_p) / std_p                      the probe's scores with the cohort (Auckenthaler
        et al. 2000)
    s_norm
        half the sum of both (Kenny 2010)
    as_norm
        the same, each side with its own top_n highest cohort scores only (Matejka et al. 2017,
        "as-norm1"; WeSpeaker's asnorm)

std is the population's (divided by C or top_n), as in WeSpeaker. The cohort statistics are worked
out once per distinct embedding and not once per trial, in blocks of rows: one matrix product and
one partial selection, no sort.
"""

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from likeness.eval.errors import LikenessError
from likeness.eval.metrics.similarity import make_scorer, matrix
from likeness.eval.progress import report
from likeness.eval.types import Floats, Floats32

_BLOCK = 1 << 22  # cohort scores at a time: 16 MB
_FLAT = 1e-6  # a standard deviation below this part of the scores' size is rounding


class CohortStatistics(NamedTuple):
    """(N,) mean and population standard deviation of each embedding's (highest) cohort scores; std
    is 0 where they are all alike.
    """

    mean: Floats
    std: Floats


def cohort_statistics(
    embeddings: ArrayLike,
    cohort: ArrayLike,
    *,
    top_n: int | None = None,
    similarity: str = "cosine",
    as_probe: bool = False,
) -> CohortStatistics:
    """Mean and std of each row's scores with the cohort, or with its top_n most similar members.
    embeddings: (N, D) raw. cohort: (C, D) raw.

    as_probe: the rows stand on the probe side, which only matters for a similarity that is not
    symmetric (vmf_kl).
    LikenessError: fewer than two cohort members, top_n not in 2 ... C, D differs, unknown
    similarity.
    """
    rows, others = np.asarray(embeddings), np.asarray(cohort)
    size = len(others)
    check_cohort(size, top_n)
    count = size if top_n is None else top_n
    mean, std = np.empty(len(rows)), np.empty(len(rows))
    step, scores_of = max(1, _BLOCK // size), make_scorer(others, similarity)
    for start in range(0, len(rows), step):
        report("scoring the cohort", start, len(rows))
        part = slice(start, start + step)
        scores = (
            matrix(others, rows[part], similarity).T
            if as_probe and similarity.startswith("vmf_kl")
            else scores_of(rows[part])
        )
        if count < size:
            scores = np.partition(scores, size - count, axis=1)[:, size - count :]
        scores = scores.astype(np.float64)
        mean[part], spread = scores.mean(axis=1), scores.std(axis=1)
        std[part] = np.where(spread > _FLAT * np.abs(scores).max(axis=1), spread, 0)
    report("scoring the cohort", len(rows), len(rows))
    return CohortStatistics(mean, std)


def check_cohort(size: int, top_n: int | None) -> None:
    """ValueError unless a cohort of this size has a spread and the top_n members that are asked
    for; None stands for all of them.
    """
    if size < 2 or (top_n is not None and not 2 <= top_n <= size):
        needed = "two embeddings or more, and a top_n from 2 to their number"
        raise LikenessError(f"a cohort of {size} with top_n = {top_n}; give {needed}")


def z_norm(
    scores: ArrayLike,
    enrol: ArrayLike,
    cohort: ArrayLike,
    *,
    i: ArrayLike | None = None,
    **how: Any,
) -> Floats:
    """Scores normalised on the enrolment side.

    Arguments, shapes and errors as for `as_norm`; without top_n by the whole cohort.
    """
    return _half(scores, "enrolment", cohort_statistics(enrol, cohort, **how), i)


def t_norm(
    scores: ArrayLike,
    probe: ArrayLike,
    cohort: ArrayLike,
    *,
    j: ArrayLike | None = None,
    **how: Any,
) -> Floats:
    """Scores normalised on the probe side.

    Arguments, shapes and errors as for `as_norm`; without top_n by the whole cohort.
    """
    return _half(scores, "probe", cohort_statistics(probe, cohort, as_probe=True, **how), j)


def s_norm(
    scores: ArrayLike, enrol: ArrayLike, probe: ArrayLike, cohort: ArrayLike, **how: Any
) -> Floats:
    """The mean of z_norm and t_norm.

    Arguments, shapes and errors as for `as_norm`; without top_n by the whole cohort.
    """
    return as_norm(scores, enrol, probe, cohort, **{"top_n": None, **how})


def as_norm(
    scores: ArrayLike,
    enrol: ArrayLike,
    probe: ArrayLike,
    cohort: ArrayLike,
    *,
    top_n: int | None,
    i: ArrayLike | None = None,
    j: ArrayLike | None = None,
    similarity: str = "cosine",
) -> Floats:
    """Adaptive symmetric normalisation of scores (AS-norm).

    ((s - mean_e) / std_e + (s - mean_p) / std_p) / 2, where mean and std are over the top_n highest
    cohort scores of each side. An embedding that scores all of these alike, such as a zero vector,
    says nothing: its half becomes 0, with a warning.

    Args:
        scores: (P,).
        enrol: (N, D) raw embeddings.
        probe: (M, D) raw embeddings. If it is the same object as `enrol`, the cohort is scored
            once.
        cohort: (C, D) raw embeddings of subjects that are not in the trials.
        top_n: How many of the highest cohort scores are taken, from 2 to C; None for all.
        i: (P,) rows: trial p compares enrol[i[p]] with probe[j[p]]. Give each distinct embedding
            once. None where N = P and the rows pair up.
        j: (P,) rows of `probe`.
        similarity: The one that gave the scores.

    Returns:
        The normalised scores (P,), float64.

    Raises:
        LikenessError: Shapes do not fit, the cohort is smaller than top_n, top_n is below 2, or all
            embeddings of a side score the cohort alike.

    >>> cohort = [[1.0], [2.0], [0.0], [-9.0]]  # highest scores of enrol: 6, 3; of probe: 2, 1
    >>> as_norm([3.0], [[3.0]], [[1.0]], cohort, top_n=2, similarity="dot").tolist()
    [1.0]
    """
    how: dict[str, Any] = {"top_n": top_n, "similarity": similarity}
    of_enrol = of_probe = cohort_statistics(enrol, cohort, **how)
    if probe is not enrol or similarity.startswith("vmf_kl"):
        of_probe = cohort_statistics(probe, cohort, as_probe=True, **how)
    normed = _half(scores, "enrolment", of_enrol, i)
    normed += _half(scores, "probe", of_probe, j)
    normed /= 2
    return normed


def subtract_mean(embeddings: ArrayLike, cohort: ArrayLike) -> Floats32:
    """Subtract the mean of other embeddings. It changes norms: subtract from every side alike.

    Args:
        embeddings: (N, D).
        cohort: (C, D), in general embeddings of the training set.

    Returns:
        (N, D) float32.

    Raises:
        LikenessError: The shapes do not fit.

    >>> subtract_mean([[1.0, 2.0]], [[0.0, 1.0], [2.0, 1.0]]).tolist()
    [[0.0, 1.0]]
    """
    rows, others = np.asarray(embeddings), np.asarray(cohort)
    if rows.shape[1] != others.shape[1] or not len(others):
        shapes = f"shapes {rows.shape} and {others.shape}"
        raise LikenessError(f"subtract_mean: {shapes}; give (N, D) and (C >= 1, D) with one D")
    centred: Floats32 = (rows - others.mean(axis=0, dtype=np.float64)).astype(np.float32)
    return centred


def _half(
    scores: ArrayLike,
    side: Literal["enrolment", "probe"],
    statistics: CohortStatistics,
    index: ArrayLike | None,
) -> Floats:
    """The scores (P,) normalised on one side. index: the row of each score on that side, or None
    where scores and rows pair up.
    """
    values = np.asarray(scores, dtype=np.float64)
    at = np.asarray(range(statistics.std.size) if index is None else index)
    at = at if at.size else at.astype(np.intp)  # an empty list is one of floats
    if values.shape != at.shape:
        raise LikenessError(f"scores {values.shape} have {at.size} {side} rows; give one each")
    std = statistics.std
    flat = int(np.count_nonzero(std == 0))
    if flat and flat == std.size:
        raise LikenessError(f"all {flat} {side} embeddings score the cohort alike; check them")
    if flat:
        text = f"{flat} of {std.size} {side} embeddings score the whole cohort alike"
        warnings.warn(f"{text} (zero vectors?); their half is 0", stacklevel=4)
    inverse = np.divide(1.0, std, out=np.zeros_like(std), where=std > 0)
    normed: Floats = values - statistics.mean[at]
    normed *= inverse[at]
    return normed


def cohort_mean(embeddings: ArrayLike, cohort: ArrayLike, **how: Any) -> Floats:
    """(N,) mean score of each embedding with the (top_n closest of the) cohort: how much it looks
    like everybody. It is a measure of quality for calibrations. `cohort_statistics` has the other
    arguments, top_n and similarity, and the errors.
    """
    return cohort_statistics(embeddings, cohort, **how).mean
