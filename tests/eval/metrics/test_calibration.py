"""Calibration and fusion against scikit-learn, their equivariance, and what is refused."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from likeness.eval.errors import LikenessError
from likeness.eval.metrics import calibration
from likeness.eval.metrics.calibration import Fusion, fit_fusion, fit_ratio_fusion, load_fusion
from likeness.eval.metrics.verification import cllr, eer, tar_at_far


def llrs(seed: int, size: int = 4000, separation: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Perfectly calibrated LLRs: for N(+-d^2/2, d^2) the log-likelihood ratio is the score."""
    rng = np.random.default_rng(seed)
    target = rng.random(size) < 0.3
    noise = rng.standard_normal(size) * separation
    return noise + np.where(target, 1, -1) * separation**2 / 2, target


@settings(max_examples=12)
@given(st.integers(0, 99), st.floats(0.01, 1000), st.floats(-100, 100))
def test_a_shift_and_a_scale_change_no_llr(seed, scale, shift):
    scores, target = llrs(seed, 500, 1.0)
    plain = fit_fusion(scores, target).apply(scores)
    moved = scale * scores + shift
    of_moved = fit_fusion(moved, target).apply(moved)
    np.testing.assert_allclose(of_moved, plain, rtol=1e-3, atol=1e-4)
    order = np.random.default_rng(seed).permutation(scores.size)
    of_shuffled = fit_fusion(scores[order], target[order]).apply(scores)
    np.testing.assert_allclose(of_shuffled, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("p_target", [0.5, 0.05])
def test_against_scikit_learn(p_target):
    """Three systems, of which two err together, and a quality."""
    rng = np.random.default_rng(0)
    target = rng.random(3000) < 0.3
    shared = rng.standard_normal(3000)
    noise = [shared + 0.3 * rng.standard_normal(3000), shared, rng.standard_normal(3000)]
    scores = np.stack(noise, axis=1) + target[:, None] * [2.0, 2.0, 1.5]
    quality = rng.standard_normal((3000, 1)) + target[:, None]
    made = fit_fusion(
        scores, target, systems=("a", "b", "c"), quality=quality, names=("q",), p_target=p_target
    )
    share = np.where(target, p_target / target.sum(), (1 - p_target) / (~target).sum())
    columns = np.column_stack([scores, quality])
    other = LogisticRegression(C=1e12, tol=1e-10, max_iter=10_000)
    other.fit(columns, target, share * target.size)
    fitted = [*made.weights, *made.quality_weights]
    np.testing.assert_allclose(fitted, other.coef_[0], rtol=1e-3, atol=1e-4)
    prior = np.log(p_target / (1 - p_target))
    assert made.offset == pytest.approx(other.intercept_[0] - prior, rel=1e-3, abs=1e-3)
    by_loop = [sum(map(np.multiply, fitted, row)) + made.offset for row in columns]
    np.testing.assert_allclose(made.apply(scores, quality), by_loop, rtol=1e-12, atol=1e-12)


def test_a_file_gives_back_the_same(tmp_path):
    names = "x_low", "x_high"
    made = Fusion((0.1, -2.5), 0.3, ("cosine, model ab", ""), (0.5, 0.25), names, 0.1)
    made.save(tmp_path / "fusion.json")
    assert load_fusion(tmp_path / "fusion.json") == made


@pytest.mark.parametrize(
    ("scores", "target", "quality"),
    [
        ([0.0, 1.0, 2.0], [True] * 3, None),  # a class is empty
        ([0.0, np.nan, 2.0], [True, False, True], None),
        ([1.0] * 4, [True, False] * 2, None),  # constant
        ([2.0, 3.0, 0.0, 1.0], [True, True, False, False], None),  # separated
        ([0.0, 2.0, 1.0, 3.0], [True, True, False, False], None),  # the wrong way round
        ([0.0, 2.0, 1.0, 1.5], [True, True, False, False], [1.0, 2.0]),  # too few
        (llrs(0, 100)[0], llrs(0, 100)[1], llrs(1, 100)[0]),  # a quality without a name
    ],
)
def test_what_cannot_be_fitted_is_refused(scores, target, quality):
    with pytest.raises(LikenessError):
        fit_fusion(scores, target, quality=quality)


def test_apply_wants_the_systems_and_measures_of_the_fit():
    for fitted in (Fusion((1.0,), 0.0), Fusion((1.0, 2.0), 0.0, ("a", "b"))):
        with pytest.raises(LikenessError):
            fitted.apply([0.5, 1.0], [[1.0], [2.0]])


def on_other_scales(seed: int, size: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Two systems whose scores are exponentials of good ones, as a matcher's own scale may be."""
    rng = np.random.default_rng(seed)
    target = np.arange(size) % 20 == 0
    scores = rng.standard_normal((size, 2)) + 2.5 * target[:, None]
    return np.stack([np.exp(scores[:, 0]), -np.exp(-scores[:, 1])], axis=1), target


def test_likelihood_ratios_do_not_depend_on_the_scale_of_scores_as_a_sum_does():
    gains = []
    for seed in range(5):
        scores, target = on_other_scales(seed)
        tests, truth = on_other_scales(seed + 100)
        tars = []
        for fit in (fit_ratio_fusion, fit_fusion):
            of = fit(scores, target, systems=("a", "b")).apply(tests)
            tars.append(tar_at_far(of[truth], of[~truth], 0.001))
        gains.append(tars[0] - tars[1])
    assert np.mean(gains) > 0.05


def test_a_missing_score_counts_as_one_that_says_nothing(tmp_path):
    made = fit_ratio_fusion(*on_other_scales(0, 40_000), systems=("voice", "face"))
    tests, truth = on_other_scales(1)
    for missing in (0, 1):
        partly = tests.copy()
        partly[:, missing] = np.nan
        fused = made.apply(partly)
        alone = tests[:, 1 - missing]
        assert eer(fused[truth], fused[~truth]) < eer(alone[truth], alone[~truth]) + 0.02
        assert cllr(fused[truth], fused[~truth]) < 0.6
    made.save(tmp_path / "fusion.json")
    np.testing.assert_array_equal(load_fusion(tmp_path / "fusion.json").apply(partly), fused)


def test_with_spoofs_it_is_the_ratio_to_either_of_the_others():
    rng = np.random.default_rng(0)
    kind = np.arange(3000) % 3  # target, nontarget, spoof
    scores = rng.standard_normal((3000, 2)) + np.array([[2, 2], [0, 2], [2, 0]])[kind]
    made = fit_ratio_fusion(scores, kind == 0, systems=("asv", "cm"), spoof=kind == 2)
    fused = made.apply(scores)
    exact = -np.logaddexp(-(2 * scores[:, 0] - 2), -(2 * scores[:, 1] - 2)) + np.log(2)
    assert np.corrcoef(fused, exact)[0, 1] > 0.9
    assert abs(np.median(fused - exact)) < 0.1


def test_separated_trials_are_fused_all_the_same():
    target = np.arange(100) < 50
    scores = np.stack([target * 2.0 + np.arange(100) / 100, target + np.arange(100) / 50], axis=1)
    fused = fit_ratio_fusion(scores, target, systems=("a", "b")).apply(scores)
    assert fused[target].min() > fused[~target].max()


@given(st.integers(0, 999), st.sampled_from([0, 0.1, 0.25, 0.5, 0.9]))
def test_error_versus_reject_against_a_loop(seed, fraction):
    rng = np.random.default_rng(seed)
    scores, quality = rng.standard_normal(40), rng.integers(0, 9, 40).astype(float)
    target = np.arange(40) % 3 == 0
    curve = calibration.error_versus_reject(scores, target, quality, fractions=[fraction])
    limit = sorted(quality)[round(fraction * 40)]
    assert curve.thresholds == limit
    kept = [k for k in range(40) if quality[k] >= limit]
    assert curve.rejected[0] == pytest.approx(1 - len(kept) / 40)
    sides = [[scores[k] for k in kept if target[k] == of] for of in (True, False)]
    expected = eer(*sides) if all(sides) else np.nan
    assert curve.values[0] == pytest.approx(expected, nan_ok=True)


def test_measures():
    assert calibration.by_side([1.0, 5.0], [3.0, 0.0], [0, 1], [0, 1]).tolist() == [[1, 3], [0, 5]]
    np.testing.assert_allclose(calibration.log_measure("seconds", [1.0, np.e]), [0, 1])
    with pytest.raises(LikenessError):
        calibration.log_measure("seconds", [0.0, 1.0, np.nan])


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "likeness plda 2"},
        {"weights": [1.0, 2.0]},
        {"weights": [float("nan")]},
        {"names": ["x"]},
        {"quality_weights": [0.5]},
        {"p_target": 2.0},
        {"further": 1},
        {"weights": [1e308]},
        {"offset": -1e308},
        {"against_spoofs": []},
        {"against_spoofs": "DEEP"},
        {"against_spoofs": "no"},
        {"knots": [[]], "ratios": [[]], "weights": [1.0, 1.0], "neutral": [0.0]},
        {"knots": [[0.0, 1.0]], "ratios": [[0.0]]},
        {"knots": "ab", "ratios": "ab"},
        {"quality_weights": "", "names": "", "weights": ["1"]},
    ],
    ids=str,
)
def test_a_fusion_of_another_shape_is_refused(wrong, tmp_path):
    path = tmp_path / "fusion.json"
    Fusion((2.0,), -1.0).save(path)
    fields = json.loads(path.read_text()) | wrong
    deep = '{"weights": [1.0], "offset": 0.0, "against_spoofs": ' * 400 + "null" + "}" * 400
    path.write_text(json.dumps(fields).replace('"DEEP"', deep))
    with pytest.raises(LikenessError, match="likeness fit"):
        load_fusion(path)
