"""Norm grids, norms of right and wrong answers, and maps: against loops, and bounded."""

from __future__ import annotations

import re

import numpy as np
import pytest

from eval.classification import auroc
from eval.reports.embeddings import (
    accuracy_by_norm,
    embedding_map,
    norm_grid,
    norms_by_correct,
    plane,
    project,
    space_3d,
)
from eval.reports.media import Media
from eval.types import Embeddings

PICTURES = Media(lambda id: np.zeros((8, 8), np.uint8))


def clusters(
    num_classes: int, num_each: int, dim: int, seed: int = 0
) -> tuple[Embeddings, dict[str, str]]:
    rng = np.random.default_rng(seed)
    centres = 6 * rng.standard_normal((num_classes, dim))
    matrix = np.repeat(centres, num_each, axis=0) + rng.standard_normal(
        (num_classes * num_each, dim)
    )
    ids = tuple(f"c{i // num_each}/{i}" for i in range(len(matrix)))
    return Embeddings(ids, matrix), {item_id: item_id.split("/")[0] for item_id in ids}


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
    with pytest.raises(ValueError, match="1 of shape"):
        norm_grid(["a", "b"], [1.0, np.nan], PICTURES)


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
    assert text.count("<svg") == 2
    assert "All are of one kind" in norms_by_correct(norms, np.ones(200, bool))
    with pytest.raises(ValueError, match="one boolean for each"):
        norms_by_correct([1.0, 2.0], [0.5, 1.0])


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
    assert norms_by_correct(norms, np.arange(8) % 2).count("<svg") == 2


def test_a_map_keeps_classes_together() -> None:
    contents, labels = clusters(4, 15, 20)
    points = plane(contents.matrix)
    number = np.array([int(labels[item_id][1:]) for item_id in contents.ids])
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(60)
    assert np.mean(number[distance.argmin(axis=1)] == number) > 0.95
    # no spread, one dimension, zero rows
    for matrix in (np.ones((9, 3)), np.ones((9, 1)), np.vstack([np.zeros((5, 4)), np.eye(4)])):
        assert np.isfinite(plane(matrix)).all()


def test_a_map_is_bounded_and_says_what_it_shows() -> None:
    contents, labels = clusters(30, 12, 6)
    text = embedding_map(contents, labels, num_points=40, num_classes=5)
    assert "40 of 360 items, from 5 of 30 classes" in text
    assert 40 <= text.count("<use") <= 60
    assert "40 of 360 items; on" in embedding_map(contents, num_points=40)
    assert "too few" in embedding_map(*clusters(2, 3, 6))
    assert "$c0$" in embedding_map(
        contents,
        {
            item_id: f"${labels[item_id]}$"
            for item_id in contents.ids
            if labels[item_id] in ("c0", "c1")
        },
        num_points=40,
    )


def test_three_dimensions_are_seen_from_the_diagonal() -> None:
    flat, near = project(np.eye(3))
    assert near == pytest.approx(np.full(3, 3**-0.5))
    # the three axes look alike
    assert np.linalg.norm(flat, axis=1) == pytest.approx(np.full(3, (2 / 3) ** 0.5))
    points = np.random.default_rng(3).standard_normal((50, 3))
    flat, near = project(points)
    assert np.linalg.norm(flat, axis=1) ** 2 + near**2 == pytest.approx(
        np.linalg.norm(points, axis=1) ** 2
    )
    contents, labels = clusters(10, 20, 3)
    text = space_3d(contents, labels)
    assert text.count("<svg") == 2
    assert "200 of 200 items" in text
    assert "c9" in text
    with pytest.raises(ValueError, match="embeddings of 6 dimensions"):
        space_3d(clusters(2, 2, 6)[0])
