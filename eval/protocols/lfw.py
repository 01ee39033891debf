"""The LFW protocol (Huang et al. 2007): ten-fold accuracy on scores, and pairs.txt.

On nine folds the threshold of best accuracy is chosen, and on the tenth it is applied. The mean
over folds and the population standard deviation are reported. FaceX-Zoo reports the standard error
of the mean in place of the latter: for ten folds that is a third of this deviation.

The field's code (facenet, insightface, AdaFace) tries the thresholds 0, .01, .. 3.99 on squared
distances of unit vectors. Here a higher score means more similar, and any distinct score can be the
threshold.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likeness.eval.errors import LikenessError
from likeness.eval.formats.files import text_lines
from likeness.eval.types import Bools, Floats, Ints, Scores, Trials, nfc

Folds = int | Sequence[int] | NDArray[np.integer]
Numbers = NDArray[np.intp]  # (P,) the fold of each pair


class TenFold(NamedTuple):
    """Accuracy over folds.

    Attributes:
        mean: The mean over folds, a fraction.
        std: The population standard deviation over folds.
        thresholds: The threshold of each fold; a pair is accepted if score >= threshold.
    """

    mean: float
    std: float
    thresholds: Floats


def ten_fold_accuracy(scores: ArrayLike, same: ArrayLike, *, folds: Folds = 10) -> TenFold:
    """Computes the verification accuracy by cross-validation over folds.

    The threshold of a fold is the first that is best on the other folds, from the strictest on,
    which rejects everything. The others are the distinct scores of the other folds.

    Args:
        scores: (P,), where a higher score means more similar.
        same: (P,) bool.
        folds: The number of consecutive blocks in the order of the file, whose sizes differ by one
            at most; or the fold number of each pair (P,), with which the order of rows does not
            matter.

    Returns:
        Mean, standard deviation and thresholds.

    Raises:
        LikenessError: Scores are NaN or infinite, a class has no pairs, there are fewer than two
            folds, or a fold is empty.

    Example:
        >>> scores, labels = [0.9, 0.1, 0.8, 0.2, 0.7, 0.8], [1, 0, 1, 0, 1, 0]
        >>> ten_fold_accuracy(scores, labels, folds=[0, 0, 1, 1, 2, 2])
        TenFold(mean=0.5, std=0.408248290463863, thresholds=array([0.7, 0.9, 0.8]))
    """
    values, labels, fold = _checked(scores, same, folds)
    candidates = np.append(np.inf, np.unique(values)[::-1])
    accepted = _accepted(values, labels, fold, candidates)
    num_different = np.bincount(fold[~labels], minlength=len(accepted))[:, None]
    right = accepted[:, 0] + (num_different - accepted[:, 1])  # decisions, (folds, candidates)
    others = right.sum(axis=0) - right
    # A score that occurs in the fold alone may not be its threshold.
    occurs = np.diff(accepted.sum(axis=1), axis=1) > 0
    others[:, 1:][(occurs.sum(axis=0) - occurs) == 0] = -1
    best = np.argmax(others, axis=1)
    accuracy = right[np.arange(len(right)), best] / np.bincount(fold)
    return TenFold(float(accuracy.mean()), float(accuracy.std()), candidates[best])


def read_pairs(path: str | Path, *, suffix: str = "") -> tuple[Trials, Ints]:
    """Reads LFW's pairs.txt.

    The first line states `folds n`; a single number `n` stands for one fold. Each fold has n lines
    `name i j` (same), then n lines `name1 i name2 j` (different).

    Args:
        path: The file.
        suffix: What the ids end in, ".jpg" for the names of the files themselves.

    Returns:
        The P trials, with ids NAME/NAME_0001 + suffix, and the fold of each trial (P,), from 0.

    Raises:
        LikenessError: The header is damaged, there are fewer or more lines than it says, or a line
            is of another kind.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pairs.txt"
        ...     _ = path.write_text("1 1" + chr(10) + "Ann 1 2" + chr(10) + "Ann 1 Bob 4")
        ...     trials, folds = read_pairs(path)
        >>> trials.probe_ids[trials.probe[1]], trials.target.tolist(), folds.tolist()
        ('Bob/Bob_0004', [True, False], [0, 0])
    """
    path = Path(path)
    lines = [(number, nfc(line)) for number, line in text_lines(path)]
    header = lines[0][1].split() if lines else []
    num_folds, each = 0, 0
    if len(header) in (1, 2) and all(map(str.isdecimal, header)):
        num_folds, each = int(header[0]) if len(header) == 2 else 1, int(header[-1])
    if not num_folds * each or len(lines) - 1 != 2 * num_folds * each:
        size = f"its {max(0, len(lines) - 1)} pairs are not as many as its first line says"
        raise LikenessError(f"{path}: {size}, {' '.join(header)!r}; fetch it again")
    pairs: list[tuple[str, str, bool]] = []
    for place, (number, line) in enumerate(lines[1:]):
        fields, same = line.split(), place // each % 2 == 0
        complete = len(fields) == 4 - same and fields[1].isdecimal() and fields[-1].isdecimal()
        if not complete or (not same and fields[0] == fields[2]):
            raise LikenessError(f"{path}, line {number}: {line[:80]!r} is no pair; fetch it again")
        first, second = fields[0], fields[0] if same else fields[2]
        a, b = int(fields[1]), int(fields[-1])
        paths = (f"{first}/{first}_{a:04d}{suffix}", f"{second}/{second}_{b:04d}{suffix}")
        pairs.append((*paths, same))
    return make_trials(pairs), np.arange(len(pairs), dtype=np.int32) // (2 * each)


def make_trials(pairs: Sequence[tuple[str, str, bool]]) -> Trials:
    """Make trials of pairs (first id, second id, same)."""
    ids = tuple(dict.fromkeys(id for pair in pairs for id in pair[:2]))
    row = {id: i for i, id in enumerate(ids)}
    index = np.array([[row[a], row[b]] for a, b, _ in pairs], dtype=np.int32)
    return Trials(ids, ids, index[:, 0], index[:, 1], np.array([same for *_, same in pairs], bool))


def _checked(scores: ArrayLike, same: ArrayLike, folds: Folds) -> tuple[Floats, Bools, Numbers]:
    """The scores, the labels and the fold numbers, checked and converted."""
    checked = Scores(scores, same)  # type: ignore[arg-type]  # which makes arrays of them
    values, labels = checked.values, checked.target
    numbers = np.asarray(folds)
    if isinstance(folds, int | np.integer):
        sizes = [len(part) for part in np.array_split(values, max(1, int(folds)))]
        numbers = np.repeat(np.arange(len(sizes)), sizes)
    one_kind = labels.all() or not labels.any()
    if one_kind or numbers.shape != values.shape or np.unique(numbers).size < 2:
        num = f"{np.count_nonzero(labels)} of {labels.size} pairs are the same"
        raise LikenessError(f"lfw: {num}, in folds {numbers.shape}; give both kinds, and two folds")
    return values, labels, np.unique(numbers, return_inverse=True)[1]


def _accepted(
    values: Floats, labels: Bools, fold: Numbers, candidates: Floats
) -> NDArray[np.int64]:
    """How many pairs of each fold each of K thresholds accepts: (folds, 2, K), same first."""
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
