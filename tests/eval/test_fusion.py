"""Fusion against scikit-learn, its equivariance, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from likeness.eval.calibration import Fusion, fit_fusion, fit_ratio_fusion, load_fusion
from likeness.eval.errors import LikenessError
from likeness.eval.verification import cllr, eer, tar_at_far


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


def on_other_scales(seed: int, size: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Two systems whose scores are exponentials of good ones, as a matcher's own scale may be."""
    rng = np.random.default_rng(seed)
    target = np.arange(size) % 20 == 0
    scores = rng.standard_normal((size, 2)) + 2.5 * target[:, None]
    return np.stack([np.exp(scores[:, 0]), -np.exp(-scores[:, 1])], axis=1), target


def test_likelihood_ratios_do_not_depend_on_the_scale_of_scores_as_a_sum_does() -> None:
    gains = []
    for seed in range(5):
        scores, target = on_other_scales(seed)
        tests, truth = on_other_scales(seed + 100)
        summed = fit_fusion(scores, target, systems=("a", "b")).apply(tests)
        fused = fit_ratio_fusion(scores, target, systems=("a", "b")).apply(tests)
        tars = [tar_at_far(of[truth], of[~truth], 0.001) for of in (fused, summed)]
        gains.append(tars[0] - tars[1])
    assert np.mean(gains) > 0.05


def test_a_missing_score_counts_as_one_that_says_nothing(tmp_path: Path) -> None:
    scores, target = on_other_scales(0, 40_000)
    made = fit_ratio_fusion(scores, target, systems=("voice", "face"))
    tests, truth = on_other_scales(1)
    for missing in (0, 1):
        partly = tests.copy()
        partly[:, missing] = np.nan
        fused = made.apply(partly)
        alone = tests[:, 1 - missing]
        assert np.isfinite(fused).all()
        assert eer(fused[truth], fused[~truth]) < eer(alone[truth], alone[~truth]) + 0.02
        assert cllr(fused[truth], fused[~truth]) < 0.6
    path = tmp_path / "fusion.json"
    made.save(path)
    np.testing.assert_array_equal(load_fusion(path).apply(partly), fused)


def test_with_spoofs_it_is_the_ratio_to_either_of_the_others() -> None:
    rng = np.random.default_rng(0)
    kind = np.arange(3000) % 3  # target, nontarget, spoof
    scores = rng.standard_normal((3000, 2)) + np.array([[2, 2], [0, 2], [2, 0]])[kind]
    made = fit_ratio_fusion(scores, kind == 0, systems=("asv", "cm"), spoof=kind == 2)
    fused = made.apply(scores)
    exact = -np.logaddexp(-(2 * scores[:, 0] - 2), -(2 * scores[:, 1] - 2)) + np.log(2)
    assert np.corrcoef(fused, exact)[0, 1] > 0.9
    assert abs(np.median(fused - exact)) < 0.1


def test_separated_trials_are_fused_all_the_same() -> None:
    target = np.arange(100) < 50
    scores = np.stack([target * 2.0 + np.arange(100) / 100, target + np.arange(100) / 50], axis=1)
    fused = fit_ratio_fusion(scores, target, systems=("a", "b")).apply(scores)
    assert fused[target].min() > fused[~target].max()
