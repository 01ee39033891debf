"""Norm grids, and norms of right and wrong answers: against loops, and bounded."""

from __future__ import annotations

import re

import numpy as np
import pytest

from eval.classification import auroc
from eval.reports.media import Media
from eval.reports.norms import accuracy_by_norm, norm_grid, norms_by_correct

PICTURES = Media(lambda id: np.zeros((8, 8), np.uint8))


def test_the_grid_holds_both_ends_in_order() -> None:
    norms = np.random.default_rng(0).permutation(100) / 7
    text = norm_grid([f"<{i}>" for i in range(100)], norms, PICTURES, num=5)
    assert "<7>" not in text
    matched = [int(number) for number in re.findall(r'alt="&lt;(\d+)&gt;"', text)]
    order = np.argsort(norms)
    assert matched == [*order[:5], *order[::-1][:5]]
    # an end has at most half of the items
    assert len(re.findall("<img", norm_grid(["a", "b", "c"], [1, 2, 3], PICTURES))) == 2
    assert "0.5700" in norm_grid(["a", "b"], [0.57, 1234.0], PICTURES)
    assert ">1234<" in norm_grid(["a", "b"], [0.57, 1234.0], PICTURES)
    names = norm_grid([f"i{i}" for i in range(100)], norms, Media(lambda id: None))
    assert names.count("<figure") == 16  # 8 lines at each end


def test_accuracy_by_norm_is_a_groupwise_mean_and_ties_share_their_answers() -> None:
    rng = np.random.default_rng(1)
    norms = rng.permutation(60) * 0.5
    correct = rng.random(60) < 0.4
    mean, share = accuracy_by_norm(norms, correct, num_bins=6)
    for k, chosen in enumerate(np.split(np.argsort(norms), 6)):
        assert mean[k] == pytest.approx(norms[chosen].mean())
        assert share[k] == pytest.approx(correct[chosen].mean())
    assert (
        accuracy_by_norm(np.ones(9), correct[:9], num_bins=3)[1].tolist()
        == [pytest.approx(correct[:9].mean())] * 3
    )


def test_norms_of_right_and_wrong_answers_are_shown_with_the_auroc() -> None:
    rng = np.random.default_rng(2)
    norms = rng.random(200)
    correct = rng.random(200) < norms
    text = norms_by_correct(norms, correct)
    assert f"AUROC of the norm: {auroc(norms, correct):.3f}" in text
    assert text.count('class="plot"') == 2
    assert "All are of one kind" in norms_by_correct(norms, np.ones(200, bool))


@pytest.mark.parametrize(
    "norms",
    [
        np.full(8, 3.0),
        3.0 + 4.4e-16 * np.arange(8),
        1e300 * (1 + 2.3e-16 * np.arange(8)),
        np.zeros(8),
    ],
)
def test_norms_that_hardly_differ_are_drawn(norms: np.ndarray) -> None:
    assert norms_by_correct(norms, np.arange(8) % 2).count('class="plot"') == 2
