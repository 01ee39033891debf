"""`metric(scores, labels=labels)` of every verification metric, and what is refused as labels in
place of scores.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

from likeness.eval import verification
from likeness.eval.errors import LikenessError
from likeness.eval.types import Scores
from likeness.eval.verification import eer

METRICS: dict[str, Any] = {
    name: function
    for name, function in vars(verification).items()
    if inspect.isfunction(function)
    and not name.startswith("_")
    and next(iter(inspect.signature(function).parameters), "") in ("target", "target_llr")
}
KEYWORDS: dict[str, dict[str, Any]] = {
    "min_dcf": {"p_target": 0.05},
    "min_dcf_threshold": {"p_target": 0.05},
    "actual_dcf": {"p_target": 0.05},
}
KEYWORDS |= {name: {"far": 0.1} for name in ("tar_at_far", "tar_threshold")}


def drawn(size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    labels = np.arange(size) % 2 == 0
    return rng.standard_normal(size) + labels, labels


@pytest.mark.parametrize("name", sorted(set(METRICS) - {"split_classes", "sort_scores"}))
def test_labels_give_what_the_split_classes_give(name: str) -> None:
    scores, labels = drawn()
    metric = partial(METRICS[name], **KEYWORDS.get(name, {}))
    expected = metric(scores[labels], scores[~labels])
    for inputs in (labels, labels.astype(int), labels.tolist(), labels.astype(np.uint8)):
        np.testing.assert_equal(metric(scores, labels=inputs), expected)
    for wrong in (labels, labels.astype(np.uint8), labels.astype(int)):
        for arguments in ((scores, wrong), (wrong, scores)):
            with pytest.raises(LikenessError):
                metric(*arguments)


@pytest.mark.parametrize(
    "labels",
    [
        [1.0, 0.5, 1.0],
        ["1", "0", "1"],
        [1, -1, 1],
        [1, 2, 1],
        [True, False],
        [[True, False, True]],
        [True, True, True],
        [0, 0, 0],
    ],
)
def test_labels_are_checked(labels: Any) -> None:
    with pytest.raises(LikenessError):
        eer([0.5, 0.25, 0.75], labels=labels)


@pytest.mark.parametrize("wrong", [[True, False], [True, True], [False], np.ones(30, dtype=bool)])
def test_booleans_are_never_scores(wrong: Any) -> None:
    """Also where numbers would pass: few of them, all the same, or of another count."""
    for inputs in ((wrong, [3.0, 2.0]), ([3.0, 2.0], wrong)):
        with pytest.raises(LikenessError):
            eer(*inputs)


def test_decisions_and_scores_that_labels_have_split_pass() -> None:
    """Two arrays of 0 and 1 are decisions; of unequal length or constant they cannot be labels; few
    whole numbers are no sign of them.
    """
    for repeats in (1, 3):
        assert eer([1, 1, 0, 1] * repeats, [0, 1, 0, 0] * repeats) == 0.25
    assert eer([0.9, 0.8, 0.5], [0, 1]) == pytest.approx(eer([0.9, 0.8, 0.5], [0.0, 1.0 + 1e-9]))
    assert eer([1.0, 1.0], [0.5, 0.25]) == 0
    assert eer([3.0, 2.0], [0.0, 1.0]) == 0
    values, target = np.array([1.0, 0.0] * 10 + [0.5, 0.25] * 10), np.arange(40) < 20
    split = Scores(values, target)
    assert eer(split.targets, split.nontargets) == eer(values, labels=target)
