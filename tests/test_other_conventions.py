"""What docs/reference/protocols.md says of other tools' numbers: their rules written anew, and the
stated difference from ours.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from likeness.metrics import eer, retrieval_metrics, ten_fold_accuracy


def clova_eer(target: np.ndarray, nontarget: np.ndarray, *, drop: bool = True) -> float:
    """tuneThresholdfromScore: the larger of both rates where they differ least, on scikit-learn's
    ROC, which drops points on a straight line.
    """
    labels = np.r_[np.ones(len(target)), np.zeros(len(nontarget))]
    fpr, tpr, _ = roc_curve(labels, np.r_[target, nontarget], pos_label=1, drop_intermediate=drop)
    nearest = np.nanargmin(np.absolute(1 - tpr - fpr))
    return float(max(fpr[nearest], 1 - tpr[nearest]))


def test_clovas_dropped_points_can_double_the_eer():
    """Of the scores n t t t t n n n (rising) the ROC has a straight run of four targets, whose
    inner points scikit-learn drops.
    """
    target, nontarget = np.array([2.0, 3.0, 4.0, 5.0]), np.array([1.0, 6.0, 7.0, 8.0])
    assert eer(target, nontarget) == clova_eer(target, nontarget, drop=False) == 0.75
    assert clova_eer(target, nontarget) == 1.0


def test_facexzoos_standard_error_is_a_third_of_the_ten_folds_deviation():
    rng = np.random.default_rng(0)
    same = np.tile(np.arange(60) < 30, 10)
    scores = rng.standard_normal(600) + 1.5 * same
    result = ten_fold_accuracy(scores, same)
    accepted = scores.reshape(10, 60) >= np.array(result.thresholds)[:, None]
    accuracies = (accepted == same.reshape(10, 60)).mean(axis=1)
    assert result.mean == pytest.approx(np.mean(accuracies))
    assert np.std(accuracies, ddof=1) / np.sqrt(10) == pytest.approx(result.std / 3)


def revisitop_ap(ranks: list[int], num_relevant: int) -> float:
    """compute_ap: trapezoids below precision over recall; ranks from 0."""
    total = 0.0
    for j, rank in enumerate(ranks):
        before = 1.0 if rank == 0 else j / rank
        total += (before + (j + 1) / (rank + 1)) / 2 / num_relevant
    return total


@given(st.lists(st.booleans(), min_size=1, max_size=40).filter(any))
def test_revisitops_average_precision_is_lower_by_the_stated_sum(relevant):
    """Ours: one query before a gallery that it ranks in this order, R@K and MAP@1000 over the whole
    of it.
    """
    places = [rank for rank, value in enumerate(relevant) if value]
    num = len(places)
    angles = np.linspace(0.1, 1.5, len(relevant))
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    labels = [int(value) for value in relevant]
    query = np.array([[1.0, 0.0]])
    measured = retrieval_metrics(query, [1], gallery=gallery, gallery_labels=labels)
    lower = sum((rank - j) / (rank * (rank + 1)) for j, rank in enumerate(places) if rank)
    assert revisitop_ap(places, num) == pytest.approx(measured["map@1000"] - lower / (2 * num))
    assert revisitop_ap([1], 1) == 0.25  # one relevant item in the second place: ours is 0.5


def test_supcon_of_a_batch_without_negatives_costs_the_choice_among_positives():
    import torch

    from likeness.toolkit.losses.contrast import SupCon

    for num in (3, 8):
        loss = SupCon(4)(torch.ones(num, 4).double(), torch.zeros(num, dtype=torch.int64))
        assert float(loss) == pytest.approx(math.log(num - 1))


def test_the_floor_under_the_root_of_pooled_deviations():
    """WeSpeaker's 1e-7, which is ours, against 3D-Speaker's 1e-8 (ERes2Net) and none (CAM++): most
    for a constant channel.
    """
    import torch

    from likeness.toolkit.backbones.pooling import statistics

    frames = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [1.0, -1.0, 1.0, -1.0]]], dtype=torch.float64)
    deviation = statistics(frames)[0, 2:]
    variance = frames[0].var(dim=-1)
    for floor, constant in ((1e-8, 2.2e-4), (0.0, 3.2e-4)):
        apart = deviation - (variance + floor).sqrt()
        assert float(apart[0]) == pytest.approx(constant, rel=0.02)
        changing = (1e-7 - floor) / (2 * float(variance[1].sqrt()))
        assert float(apart[1]) == pytest.approx(changing, rel=1e-6)
