"""The LFW protocol (Huang et al. 2007): ten-fold verification accuracy and VAL@FAR on scores; the
fold structure of pairs.txt.

On nine folds the threshold of best accuracy is chosen, on the tenth it is applied; the mean over
folds and the population standard deviation are reported. FaceX-Zoo reports the standard error of
the mean in its place: of ten folds a third of this deviation. The field's code (facenet,
insightface, AdaFace) does this on squared distances d of unit vectors with the thresholds 0, .01,
.. 3.99 and accepts d < threshold. Here scores are compared, higher = more similar, and any distinct
score can be the threshold; a distance is the special case score = -d, and thresholds="grid" then
gives the published procedure, number for number. For cosines, d = 2 - 2 cos.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.formats.files import bounded
from eval.types import Bools, Floats, Ints, SplitScores, Trials, nfc
from eval.verification import tar_threshold

Thresholds = Literal["scores", "grid"]
Folds = int | Sequence[int] | NDArray[np.integer]
_MAX_BYTES = 1 << 26


class TenFold(NamedTuple):
    """Mean and population standard deviation of the accuracy over folds (fractions), and each
    fold's threshold (accept iff score >= threshold).
    """

    mean: float
    std: float
    thresholds: Floats


class ValAtFar(NamedTuple):
    """Mean and population standard deviation over folds of VAL (the share of same pairs accepted),
    and the mean FAR met on the folds held out.
    """

    mean: float
    std: float
    far: float


def ten_fold_accuracy(
    scores: ArrayLike, same: ArrayLike, *, folds: Folds = 10, thresholds: Thresholds = "scores"
) -> TenFold:
    """Verification accuracy by cross-validation over folds.

    scores: (P,), higher = more similar. same: (P,) bool. folds: how many consecutive blocks (in
    file order; sizes differ by one at most), or each pair's fold number (P,), with which row order
    does not matter. The threshold of a fold is the first best on the others, from the strictest on.
    thresholds: scores (every distinct score of the other folds, and reject all), grid (the field's:
    scores must be -d, d the squared distance of unit vectors in [0, 4]).
    ValueError: NaN or infinite scores, a class without pairs, fewer than two folds or an empty one,
    a grid for scores that are no -d.

    >>> scores, labels = [0.9, 0.1, 0.8, 0.2, 0.7, 0.8], [1, 0, 1, 0, 1, 0]
    >>> ten_fold_accuracy(scores, labels, folds=[0, 0, 1, 1, 2, 2])
    TenFold(mean=0.5, std=0.408248290463863, thresholds=array([0.7, 0.9, 0.8]))
    """
    if thresholds not in get_args(Thresholds):
        raise ValueError(
            f"ten_fold_accuracy: unknown thresholds {thresholds!r}; choose one of "
            f"{', '.join(get_args(Thresholds))}"
        )
    values, labels, fold = _checked(scores, same, folds)
    if thresholds == "grid":
        values = _negative_distances(values)
    candidates = (
        np.append(np.inf, np.unique(values)[::-1]) if thresholds == "scores" else _grid(0.01)
    )
    accepted = _accepted(values, labels, fold, candidates)
    right = accepted[:, 0] + (
        np.bincount(fold[~labels], minlength=len(accepted))[:, None] - accepted[:, 1]
    )  # (folds, candidates) right decisions
    others = right.sum(axis=0) - right
    if thresholds == "scores":  # a score that only the fold itself holds may not be its threshold
        held = np.diff(accepted.sum(axis=1), axis=1) > 0
        others[:, 1:][(held.sum(axis=0) - held) == 0] = -1
    best = np.argmax(others, axis=1)
    accuracy = right[np.arange(len(right)), best] / np.bincount(fold)
    return TenFold(float(accuracy.mean()), float(accuracy.std()), candidates[best])


def val_at_far(
    scores: ArrayLike,
    same: ArrayLike,
    far: float = 1e-3,
    *,
    folds: Folds = 10,
    thresholds: Thresholds = "scores",
) -> ValAtFar:
    """VAL on each fold at the threshold that has a FAR of `far` on the others.

    Arguments and errors as for `ten_fold_accuracy`.

    thresholds: scores (the strict rule of eval.verification.tar_at_far on the other folds), grid
    (facenet's: thresholds 0, .001, .. 3.999 on d, linear between the two around `far`; 0, accepting
    nothing, where the whole grid stays below it). facenet's own code stops here since scipy 1.10 or
    so: its interpolation refuses equal FARs. Of the grid points with one FAR the last is taken
    here.
    """
    if thresholds not in get_args(Thresholds):
        raise ValueError(
            f"val_at_far: unknown thresholds {thresholds!r}; choose one of "
            f"{', '.join(get_args(Thresholds))}"
        )
    if not 0 <= far <= 1:
        raise ValueError(f"far = {far}: a false accept rate lies between 0 and 1")
    values, labels, fold = _checked(scores, same, folds)
    grid = None
    if thresholds == "grid":
        values, grid = _negative_distances(values), _grid(0.001)
    rates = []
    for number in range(int(fold.max()) + 1):
        test = fold == number
        target, nontarget = values[~test & labels], values[~test & ~labels]
        if not (
            values[test & labels].size
            and values[test & ~labels].size
            and target.size
            and nontarget.size
        ):
            raise ValueError(
                f"val_at_far: fold {number + 1} or the others lack same or different pairs; every "
                "fold needs both"
            )
        limit = (
            tar_threshold(target.view(SplitScores), nontarget, far)
            if grid is None
            else _interpolated(nontarget, grid, far)
        )
        rates.append(
            (np.mean(values[test & labels] >= limit), np.mean(values[test & ~labels] >= limit))
        )
    val, met = np.array(rates).T
    return ValAtFar(float(val.mean()), float(val.std()), float(met.mean()))


def read_pairs(path: str | Path, *, suffix: str = "") -> tuple[Trials, Ints]:
    """Reads LFW's pairs.txt: its trials, with ids NAME/NAME_0001 + suffix (".jpg" for the files
    themselves), and each trial's fold (P,), from 0.

    The first line says `folds n` (`n` alone: one fold): each fold has n lines `name i j` (same),
    then n lines `name1 i name2 j` (different).
    ValueError: a damaged header, fewer or more lines, lines of another kind (all counted, the first
    named).
    """
    path = Path(path)
    try:
        lines = nfc(bounded(path, _MAX_BYTES).decode()).splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: {error.object[error.start : error.start + 40]!r} is not UTF-8 text; fetch "
            "the file again, or convert it to UTF-8"
        ) from None
    while lines and not lines[-1].strip():
        lines.pop()
    header = lines[0].split() if lines else []
    if len(header) not in (1, 2) or not all(one.isdecimal() and int(one) for one in header):
        raise ValueError(
            f"{path}: line 1 is {' '.join(header)!r}, but must say how many folds and pairs per "
            "class there are, e.g. `10 300`"
        )
    num_folds, each = int(header[0]) if len(header) == 2 else 1, int(header[-1])
    if len(lines) - 1 != 2 * num_folds * each:
        raise ValueError(
            f"{path}: {len(lines) - 1} pairs, but the header announces {num_folds} folds of 2 x "
            f"{each}; fetch the file again"
        )
    sides: list[tuple[str, str]] = []
    bad = []
    for number, line in enumerate(lines[1:]):
        fields, same = line.split(), number // each % 2 == 0
        if (
            len(fields) != 4 - same
            or not (fields[1].isdecimal() and fields[-1].isdecimal())
            or (not same and fields[0] == fields[2])
        ):
            bad.append(number + 2)
            continue
        first, second = (fields[0], fields[1]), (fields[0] if same else fields[2], fields[-1])
        sides.append(
            tuple(f"{name}/{name}_{int(index):04d}{suffix}" for name, index in (first, second))  # type: ignore[arg-type]
        )
    if bad:
        raise ValueError(
            f"{path}: {len(bad)} lines are not `name i j` or `name1 i name2 j` as their place asks "
            f"(first: line {bad[0]}); correct them"
        )
    ids = tuple(dict.fromkeys(one for pair in sides for one in pair))
    row = {one: i for i, one in enumerate(ids)}
    index = np.array([[row[a], row[b]] for a, b in sides], dtype=np.int32)
    block = np.arange(len(sides), dtype=np.int32) // each
    return Trials(ids, ids, index[:, 0], index[:, 1], block % 2 == 0), (block // 2).astype(np.int32)


def _checked(
    scores: ArrayLike, same: ArrayLike, folds: Folds
) -> tuple[Floats, Bools, NDArray[np.intp]]:
    values, labels = np.asarray(scores), np.asarray(same)
    if values.ndim != 1 or values.dtype.kind not in "fiu" or labels.shape != values.shape:
        raise ValueError(
            f"lfw: scores {values.dtype} {values.shape} and labels {labels.shape} must both be "
            "(P,), one number and one label per pair"
        )
    if labels.dtype.kind not in "biu" or not np.isin(labels, (0, 1)).all():
        raise ValueError(
            "lfw: labels must be true for same and false for different pairs, but are "
            f"{labels.dtype}"
        )
    values, labels = values.astype(np.float64), labels.astype(np.bool_)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"lfw: {bad.size} of {values.size} scores are NaN or infinite (first: pair "
            f"{int(bad[0]) + 1}); score these pairs again"
        )
    if labels.all() or not labels.any():
        raise ValueError(
            f"lfw: {np.count_nonzero(labels)} same and {np.count_nonzero(~labels)} different "
            "pairs; accuracy needs both"
        )
    if isinstance(folds, int | np.integer):
        if not 2 <= folds <= values.size:
            raise ValueError(
                f"lfw: {folds} folds for {values.size} pairs; choose 2 folds at least, and no more "
                "than pairs"
            )
        return (
            values,
            labels,
            np.repeat(np.arange(folds), [len(part) for part in np.array_split(values, int(folds))]),
        )
    numbers = np.asarray(folds)
    if (
        numbers.shape != values.shape
        or numbers.dtype.kind not in "iu"
        or np.unique(numbers).size < 2
    ):
        raise ValueError(
            f"lfw: folds must be ({values.size},) integers of at least two folds, but are "
            f"{numbers.dtype} of shape {numbers.shape}"
        )
    return values, labels, np.unique(numbers, return_inverse=True)[1]


def _negative_distances(values: Floats) -> Floats:
    """Scores -d, none above 0: what rounding puts there (2 cos - 2) would pass the threshold d < 0,
    which accepts nothing. ValueError: others.
    """
    if values.max() > 1e-4 or values.min() < -4 - 1e-4:
        raise ValueError(
            "lfw: thresholds='grid' takes scores -d, d the squared distance of unit vectors in "
            f"[0, 4], but they reach from {values.min():g} to "
            f"{values.max():g}; pass 2 cos - 2 for cosines, or use thresholds='scores'"
        )
    return np.minimum(values, 0.0)


def _grid(step: float) -> Floats:
    """The thresholds of the field on d, as scores -d from the strictest on; d < t is score > -t, so
    the next float above -t is the one to reach.
    """
    grid: Floats = np.nextafter(-np.arange(0, 4, step), np.inf)
    return grid


def _accepted(
    values: Floats, labels: Bools, fold: NDArray[np.intp], candidates: Floats
) -> NDArray[np.int64]:
    """(folds, 2, K): same and different pairs of each fold that each of K thresholds accepts."""
    groups = [
        [np.sort(values[(fold == number) & (labels == kind)]) for kind in (True, False)]
        for number in range(int(fold.max()) + 1)
    ]
    return np.array(
        [
            [group.size - np.searchsorted(group, candidates, side="left") for group in pair]
            for pair in groups
        ]
    )


def _interpolated(nontarget: Floats, grid: Floats, far: float) -> float:
    """facenet's threshold: where the FAR, linear between grid points, reaches `far`."""
    ordered = np.sort(nontarget)
    met = (ordered.size - np.searchsorted(ordered, grid, side="left")) / ordered.size
    if met[-1] < far:
        return float(grid[0])
    within = int(np.searchsorted(met, far, side="right")) - 1
    if within + 1 == grid.size:
        return float(grid[within])
    share = (far - met[within]) / (met[within + 1] - met[within])
    distance = -grid[within] + share * (grid[within] - grid[within + 1])
    return float(np.nextafter(-distance, np.inf))
