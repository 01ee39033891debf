"""The map of embeddings in reports: against loops, bounded, and what is told of a point."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from likeness.eval.reports.map import embedding_map, neighbours, plane, principal_plane
from likeness.eval.types import Embeddings


def clusters(
    num_classes: int, num_each: int, dim: int, seed: int = 0
) -> tuple[Embeddings, dict[str, str]]:
    rng = np.random.default_rng(seed)
    centres = 6 * rng.standard_normal((num_classes, dim))
    matrix = np.repeat(centres, num_each, axis=0)
    matrix += rng.standard_normal(matrix.shape)
    ids = tuple(f"c{i // num_each}/{i}" for i in range(len(matrix)))
    return Embeddings(ids, matrix), {item_id: item_id.split("/")[0] for item_id in ids}


def points_of(text: str) -> dict[str, Any]:
    """What the page's script tells of the points of a map."""
    return json.loads(re.findall(r'<script type="application/json">(.*?)</script>', text, re.S)[-1])


def test_a_map_keeps_classes_together() -> None:
    contents, labels = clusters(4, 15, 20)
    points = plane(contents.unit())
    number = np.array([int(labels[item_id][1:]) for item_id in contents.ids])
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(60)
    assert np.mean(number[distance.argmin(axis=1)] == number) > 0.95
    # no spread, one dimension, zero rows
    for matrix in (np.full((9, 3), 3**-0.5), np.ones((9, 1)), np.eye(9, 4)):
        assert np.isfinite(plane(matrix)).all()


def test_a_map_is_bounded_and_says_what_it_shows() -> None:
    contents, labels = clusters(30, 12, 6)
    text = embedding_map(contents, labels, num_points=40, num_classes=5)
    assert "40 of 360 items, from 5 of 30 classes" in text
    points = points_of(text)
    assert len(points["ids"]) == len(points["planes"]["PCA"][0]) == len(points["neighbours"]) == 40
    assert {"PCA", "t-SNE"} <= set(points["planes"])
    assert "40 of 360 items; on" in embedding_map(contents, num_points=40)
    assert "too few" in embedding_map(*clusters(2, 3, 6))
    some = {id: f"${label}$" for id, label in labels.items() if label in ("c0", "c1")}
    assert "$c0$" in embedding_map(contents, some, num_points=40)


def test_the_first_plane_is_that_of_the_largest_variance() -> None:
    contents, _ = clusters(3, 20, 7)
    unit = contents.matrix / np.linalg.norm(contents.matrix, axis=1, keepdims=True)
    _, values, _ = np.linalg.svd(unit - unit.mean(axis=0))
    points = principal_plane(contents.unit())
    assert np.linalg.norm(points, axis=0) == pytest.approx(values[:2], rel=1e-4)
    assert principal_plane(np.ones((4, 1))).tolist() == [[0, 0]] * 4


def test_a_point_is_told_its_neighbours() -> None:
    contents, labels = clusters(3, 4, 6)
    unit = contents.matrix / np.linalg.norm(contents.matrix, axis=1, keepdims=True)
    similar = unit @ unit.T - 9 * np.eye(12)
    assert neighbours(contents.unit(), 3).tolist() == np.argsort(-similar, axis=1)[:, :3].tolist()
    points = points_of(embedding_map(contents, labels))
    assert points["neighbours"] == neighbours(contents.unit()).tolist()
