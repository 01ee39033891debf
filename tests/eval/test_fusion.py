"""Fusion against scikit-learn, its equivariance, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from likeness.eval.calibration import Fusion, fit_fusion, load_fusion
from likeness.eval.errors import LikenessError


def trials(size: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Scores of three systems, of which two err together, and the labels."""
    rng = np.random.default_rng(0)
    target = rng.random(size) < 0.3
    shared = rng.standard_normal(size)
    noise = [shared + 0.3 * rng.standard_normal(size), shared, rng.standard_normal(size)]
    return np.stack(noise, axis=1) + target[:, None] * [2.0, 2.0, 1.5], target


@pytest.mark.parametrize("p_target", [0.5, 0.05])
def test_against_scikit_learn(p_target: float) -> None:
    scores, target = trials()
    quality = np.random.default_rng(1).standard_normal((len(target), 1)) + target[:, None]
    made = fit_fusion(
        scores, target, systems=("a", "b", "c"), quality=quality, names=("q",), p_target=p_target
    )
    share = np.where(target, p_target / target.sum(), (1 - p_target) / (~target).sum())
    other = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000).fit(
        np.column_stack([scores, quality]), target, share * target.size
    )
    fitted = [*made.weights, *made.quality_weights]
    np.testing.assert_allclose(fitted, other.coef_[0], rtol=1e-3, atol=1e-4)
    prior = np.log(p_target / (1 - p_target))
    assert made.offset == pytest.approx(other.intercept_[0] - prior, rel=1e-3, abs=1e-3)
    by_loop = [
        sum(weight * value for weight, value in zip(fitted, row, strict=True)) + made.offset
        for row in np.column_stack([scores, quality])
    ]
    np.testing.assert_allclose(made.apply(scores, quality), by_loop, rtol=1e-12, atol=1e-12)


def test_a_file_gives_back_the_same_and_others_are_refused(tmp_path: Path) -> None:
    made = Fusion((0.1, -2.5), 0.3, ("cosine, model ab", ""), (0.5, 0.25), ("x_low", "x_high"), 0.1)
    path = tmp_path / "fusion.json"
    made.save(path)
    assert load_fusion(path) == made
    document = json.loads(path.read_text())
    for change in (
        {"format": "likeness calibration 1"},
        {"weights": [1.0]},
        {"weights": [1.0, float("nan")]},
        {"names": []},
        {"p_target": 2.0},
        {"further": 1},
    ):
        path.write_text(json.dumps(document | change))
        with pytest.raises(LikenessError):
            load_fusion(path)
