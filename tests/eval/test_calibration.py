"""Calibration and fusion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likeness.eval.calibration import (
    Calibration,
    Fusion,
    by_side,
    error_versus_reject,
    fit_calibration,
    load_calibration,
    log_measure,
)
from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import read_scores, read_trials
from likeness.eval.verification import cllr, eer, min_cllr


def llrs(seed: int, size: int = 4000, separation: float = 2.0) -> tuple[np.ndarray, np.ndarray]:
    """Perfectly calibrated LLRs: for N(+-d^2/2, d^2) the log-likelihood ratio is the score."""
    rng = np.random.default_rng(seed)
    target = rng.random(size) < 0.3
    noise = rng.standard_normal(size) * separation
    return noise + np.where(target, 1, -1) * separation**2 / 2, target


@pytest.mark.parametrize("p_target", [0.5, 0.05])
def test_calibrated_scores_stay_what_they_are(p_target):
    scores, target = llrs(0, 200_000)
    result = fit_calibration(scores, target, p_target=p_target)
    assert result.slope == pytest.approx(1, abs=0.02)
    assert result.offset == pytest.approx(0, abs=0.04)


@settings(max_examples=12)
@given(st.integers(0, 99), st.floats(0.01, 1000), st.floats(-100, 100))
def test_a_shift_and_a_scale_change_no_llr(seed, scale, shift):
    scores, target = llrs(seed, 500, 1.0)
    plain = fit_calibration(scores, target).apply(scores)
    moved = scale * scores + shift
    np.testing.assert_allclose(
        fit_calibration(moved, target).apply(moved), plain, rtol=1e-3, atol=1e-4
    )
    order = np.random.default_rng(seed).permutation(scores.size)
    np.testing.assert_allclose(
        fit_calibration(scores[order], target[order]).apply(scores), plain, rtol=1e-4, atol=1e-5
    )
    assert (np.diff(fit_calibration(scores, target).apply(np.sort(scores))) >= 0).all()


def test_voxsrc23(shared):
    """Fitted on one half of the real list, applied to the other."""
    folder = shared / "data" / "protocols" / "voxsrc23_val"
    trials, scores = read_scores(folder / "scores.txt.gz", read_trials(folder / "trials.txt.gz"))
    half = np.random.default_rng(0).random(scores.size) < 0.5
    llr = fit_calibration(scores[half], trials.target[half]).apply(scores[~half])
    target, nontarget = llr[trials.target[~half]], llr[~trials.target[~half]]
    raw = scores[~half]
    before = cllr(raw[trials.target[~half]], raw[~trials.target[~half]])
    after = cllr(target, nontarget)
    assert after < 0.25 * before
    assert min_cllr(target, nontarget) <= after < 1.1 * min_cllr(target, nontarget)
    assert eer(target, nontarget) == pytest.approx(
        eer(raw[trials.target[~half]], raw[~trials.target[~half]]), abs=1e-12
    )


def test_save_and_load(tmp_path):
    scores, target = llrs(7)
    result = fit_calibration(
        scores, target, quality=np.abs(scores), names=["size"], system="cosine"
    )
    result.save(tmp_path / "c.json")
    assert load_calibration(tmp_path / "c.json") == result


SCORES, TARGET = llrs(8, 100)


@given(st.integers(0, 999), st.sampled_from([0, 0.1, 0.25, 0.5, 0.9]))
def test_error_versus_reject_against_a_loop(seed, fraction):
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(40)
    target = np.arange(40) % 3 == 0
    quality = rng.integers(0, 9, 40).astype(float)
    curve = error_versus_reject(scores, target, quality, fractions=[fraction])
    limit = sorted(quality)[round(fraction * 40)]
    kept = [k for k in range(40) if quality[k] >= limit]
    assert curve.rejected[0] == pytest.approx(1 - len(kept) / 40)
    assert curve.rejected[0] <= fraction + 1e-12
    sides = [scores[k] for k in kept if target[k]], [scores[k] for k in kept if not target[k]]
    assert (
        curve.values[0] == pytest.approx(eer(*sides)) if all(sides) else np.isnan(curve.values[0])
    )
    order = rng.permutation(40)
    assert (
        error_versus_reject(
            scores[order], target[order], quality[order], fractions=[fraction]
        ).thresholds
        == curve.thresholds
    )


def test_measures():
    assert by_side([1.0, 5.0], [3.0, 0.0], [0, 1], [0, 1]).tolist() == [[1, 3], [0, 5]]
    np.testing.assert_allclose(log_measure("seconds", [1.0, np.e]), [0, 1])
    with pytest.raises(LikenessError):
        log_measure("seconds", [0.0, 1.0, np.nan])


@pytest.mark.parametrize(
    ("scores", "target", "quality"),
    [
        ([0.0, 1.0, 2.0], [True] * 3, None),  # a class is empty
        ([0.0, np.nan, 2.0], [True, False, True], None),
        ([1.0] * 4, [True, False] * 2, None),  # constant
        ([2.0, 3.0, 0.0, 1.0], [True, True, False, False], None),  # separated
        ([0.0, 2.0, 1.0, 3.0], [True, True, False, False], None),  # the wrong way round
        ([0.0, 2.0, 1.0, 1.5], [True, True, False, False], [1.0, 2.0]),  # too few
    ],
)
def test_what_cannot_be_fitted_is_refused(scores, target, quality):
    with pytest.raises(LikenessError):
        fit_calibration(scores, target, quality=quality)


def test_apply_wants_the_measures_of_the_fit():
    for fitted in (Calibration(1.0, 0.0), Fusion((1.0, 2.0), 0.0, ("a", "b"))):
        with pytest.raises(LikenessError):
            fitted.apply([0.5, 1.0], [[1.0], [2.0]])
