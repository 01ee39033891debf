"""Verification metrics against brute force over every threshold in exact fractions, golden files,
closed forms and published numbers.
"""

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.isotonic import IsotonicRegression

from likeness.eval.errors import LikenessError
from likeness.eval.formats.trials import read_scores, read_trials
from likeness.eval.metrics import verification
from likeness.eval.metrics.verification import cllr, eer, min_cllr, min_dcf, sort_scores, tar_at_far

GOLDEN = Path(__file__).parents[2] / "golden" / "verification_metrics__bruteforce.npz"

tied = st.lists(st.integers(-4, 4), min_size=1, max_size=14)
spread = st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=14)
pairs = st.one_of(st.tuples(tied, tied), st.tuples(spread, spread))
rates = st.one_of(st.sampled_from([0.0, 1e-4, 0.01, 0.1, 0.25, 1 / 3, 0.5, 1.0]), st.floats(0, 1))


def brute_points(target, nontarget):
    """Every operating point (threshold, far, frr) by ascending threshold, in exact fractions:
    accept iff score >= threshold.
    """
    points = []
    for t in [*sorted(set(target) | set(nontarget)), math.inf]:
        far = Fraction(sum(s >= t for s in nontarget), len(nontarget))
        points.append((t, far, Fraction(sum(s < t for s in target), len(target))))
    return points


def brute_eer(target, nontarget, method):
    points = [(far, frr) for _, far, frr in brute_points(target, nontarget)]

    def crossing(a, b):  # where the chord from a to b meets far = frr
        share = (a[0] - a[1]) / ((a[0] - a[1]) - (b[0] - b[1]))
        return a[0] + share * (b[0] - a[0])

    if method == "interpolated":
        i = max(i for i, (far, frr) in enumerate(points) if far >= frr)
        return crossing(points[i], points[i + 1])
    if method == "convex_hull":  # the lowest chord between any point on either side
        return min(crossing(a, b) for a in points if a[0] >= a[1] for b in points if b[0] < b[1])
    far, frr = min(points, key=lambda p: abs(p[0] - p[1]))
    return (far + frr) / 2


def brute_dcf(target, nontarget, p, c_miss, c_fa):
    p, c_miss, c_fa = Fraction(p), Fraction(c_miss), Fraction(c_fa)
    miss, fa = c_miss * p, c_fa * (1 - p)
    costs = [miss * frr + fa * far for _, far, frr in brute_points(target, nontarget)]
    return min(costs) / min(miss, fa)


def brute_tar(target, nontarget, far, rule):
    points = [(x, 1 - frr) for _, x, frr in brute_points(target, nontarget)]
    if rule == "strict":  # literally: sort, pick the threshold, compare
        allowed = verification.num_allowed(far, len(nontarget))
        if allowed + 1 > len(nontarget):
            return 1
        limit = sorted(nontarget, reverse=True)[allowed]
        return sum(s > limit for s in target) / len(target)
    # a product within rounding of a count is that count
    expected = Fraction(verification.num_allowed(far, len(nontarget)), len(nontarget))
    expected = expected if abs(float(expected) - far) < 1e-15 else Fraction(far)
    if rule == "nearest":
        nearest = min(abs(x - expected) for x, _ in points)
        chosen = max(x for x, _ in points if abs(x - expected) == nearest)
        return max(tar for x, tar in points if x == chosen)
    within = max(i for i, (x, _) in enumerate(sorted(points)) if x <= expected)
    (x0, y0), rest = sorted(points)[within], sorted(points)[within + 1 :]
    return y0 if not rest else y0 + (expected - x0) / (rest[0][0] - x0) * (rest[0][1] - y0)


@given(pairs)
def test_roc_has_one_point_per_distinct_score_and_both_ends(scores):
    target, nontarget = scores
    curve = verification.roc(target, nontarget)
    expected = brute_points(target, nontarget)
    np.testing.assert_array_equal(curve.thresholds, [t for t, _, _ in expected])
    np.testing.assert_array_equal(curve.far, [float(far) for _, far, _ in expected])
    np.testing.assert_array_equal(curve.frr, [float(frr) for _, _, frr in expected])
    assert (curve.far[0], curve.frr[0], curve.far[-1], curve.frr[-1]) == (1, 0, 0, 1)


@pytest.mark.parametrize("method", ["interpolated", "convex_hull", "nearest"])
@given(scores=pairs)
def test_eer_is_brute_force(method, scores):
    expected = float(brute_eer(*scores, method))
    assert eer(*scores, method=method) == pytest.approx(expected, abs=1e-12)


@given(
    pairs,
    st.sampled_from([0.001, 0.01, 0.05, 0.5, 0.9]),
    st.sampled_from([1, 10]),
    st.sampled_from([1, 3]),
)
def test_min_dcf_is_brute_force_and_its_threshold_reaches_it(scores, p, c_miss, c_fa):
    target, nontarget = map(np.array, scores)
    value = min_dcf(target, nontarget, p_target=p, c_miss=c_miss, c_fa=c_fa)
    assert value == pytest.approx(float(brute_dcf(*scores, p, c_miss, c_fa)), abs=1e-12)
    ordered = sort_scores(target, nontarget)
    threshold = verification.measured_min_dcf(ordered, p, c_miss, c_fa).threshold
    rates = np.mean(target < threshold), np.mean(nontarget >= threshold)
    costs = c_miss * p, c_fa * (1 - p)
    assert np.dot(costs, rates) / min(costs) == pytest.approx(value, abs=1e-12)


@given(pairs)
def test_balanced_accuracy_is_the_best_mean_of_two_shares_of_right_decisions(scores):
    best = max(1 - (far + frr) / 2 for _, far, frr in brute_points(*scores))
    assert verification.balanced_accuracy(*scores) == pytest.approx(float(best), abs=1e-12)


@pytest.mark.parametrize("bits", [(1, 1), (3, 2), (4, 4), (13, 4)])
def test_the_search_for_the_minimum_cost_misses_nothing(monkeypatch, bits):
    """Branch and bound from ever coarser starts gives the first minimum over all corners, bit for
    bit: with ties, one class, flat, separated or inverted.
    """
    monkeypatch.setattr(verification, "_COARSE_BITS", bits[0])
    monkeypatch.setattr(verification, "_FINER_BITS", bits[1])
    rng = np.random.default_rng(0)
    for distance in (0.0, 0.5, 3.0, 20.0, -20.0):
        for digits in (0, 1, 6):
            for num_targets, num_nontargets in ((1, 50), (400, 7), (300, 300), (37, 900)):
                target = (rng.standard_normal(num_targets) + distance).round(digits)
                nontarget = rng.standard_normal(num_nontargets).round(digits)
                for p in (0.01, 0.5, 0.9):
                    thresholds = np.unique(target)
                    misses = np.append([np.sum(target < t) for t in thresholds], num_targets)
                    accepts = np.append([np.sum(nontarget >= t) for t in thresholds], 0)
                    cost = misses * (p / min(p, 1 - p) / num_targets)
                    cost = cost + accepts * ((1 - p) / min(p, 1 - p) / num_nontargets)
                    assert min_dcf(target, nontarget, p_target=p) == cost.min()
                    best = np.append(thresholds, np.inf)[np.argmin(cost)]
                    ordered = sort_scores(target, nontarget)
                    assert verification.measured_min_dcf(ordered, p).threshold == best


@pytest.mark.parametrize("rule", ["strict", "nearest", "interpolated"])
@given(scores=pairs, far=rates)
@example(scores=([1], [0]), far=0.9)
def test_tar_at_far_is_brute_force(rule, scores, far):
    value = tar_at_far(*scores, far, rule=rule)
    assert value == pytest.approx(float(brute_tar(*scores, far, rule)), abs=1e-9)
    if rule == "strict":  # whose threshold keeps the rate
        target, nontarget = map(np.array, scores)
        threshold = verification.measured_tar(sort_scores(target, nontarget), far).threshold
        assert np.sum(nontarget >= threshold) <= verification.num_allowed(far, nontarget.size)
        assert np.mean(target >= threshold) == pytest.approx(value, abs=1e-12)


def test_floor_of_far_times_n_survives_floating_point():
    for n in (3, 7, 100, 1000, 15_638_932):
        for count in {0, 1, 2, n // 3, n - 1, n}:
            assert verification.num_allowed(count / n, n) == count
    for far, allowed in ((0.29, 29), (0.57, 57), (0.01, 1), (0.0199, 1), (0, 0), (1, 100)):
        assert verification.num_allowed(far, 100) == allowed
    assert int(0.29 * 100) == 28  # what would go wrong


def test_a_far_of_1_accepts_and_one_of_0_may_reject_everything():
    assert verification.measured_tar(sort_scores([-5.0, 1.0], [0.0, 2.0]), 1.0).threshold == -5.0
    assert verification.measured_tar(sort_scores([1.0], [2.0]), 0.0).threshold == math.inf


@given(pairs)
def test_min_cllr_is_pav_on_tied_groups(scores):
    target, nontarget = (np.array(score, dtype=float) for score in scores)
    x, y = np.concatenate([target, nontarget]), np.repeat([1.0, 0.0], [target.size, nontarget.size])
    # ranks: scikit-learn takes scores within 1e-15 or so for tied
    x = np.unique(x, return_inverse=True)[1]
    p = IsotonicRegression(y_min=0, y_max=1).fit(x, y).predict(x)
    with np.errstate(divide="ignore"):
        llr = np.log(p) - np.log1p(-p) - np.log(target.size / nontarget.size)
    costs = [np.mean(np.logaddexp(0, sign * llr[y == of])) for of, sign in ((1, -1), (0, 1))]
    assert min_cllr(target, nontarget) == pytest.approx(sum(costs) / 2 / np.log(2), abs=1e-7)
    assert -1e-12 <= min_cllr(target, nontarget) <= min(1.0, cllr(target, nontarget)) + 1e-12


@given(pairs)
def test_det_holds_the_inner_points_of_the_roc_and_all_its_turns(scores):
    curve, full = verification.det(*scores), verification.roc(*scores)
    inside = (full.far > 0) & (full.far < 1) & (full.frr > 0) & (full.frr < 1)
    points = {*zip(full.far[inside], full.frr[inside], strict=True)}
    assert {*zip(curve.far, curve.frr, strict=True)} <= points
    np.testing.assert_allclose(norm.cdf(curve.far_deviate), curve.far, atol=1e-12)
    np.testing.assert_allclose(norm.cdf(curve.frr_deviate), curve.frr, atol=1e-12)
    # a point left out lies on a horizontal run
    for far, frr in points:
        assert frr in curve.frr or not curve.frr.size or far in curve.far


@given(pairs, st.randoms(use_true_random=False))
def test_combined_metrics_are_the_single_ones_in_any_order_of_rows(scores, random):
    shuffled = [random.sample(score, len(score)) for score in scores]
    assert min_cllr(*scores) == min_cllr(*shuffled)
    measured = verification.verification_metrics(*shuffled, p_targets=[0.01, 0.3], fars=[0.1])
    assert list(measured) == ["eer", "min_dcf(0.01)", "min_dcf(0.3)", "tar_at_far(0.1)"]
    ordered = sort_scores(*scores)
    at_eer, at_far = verification.measured_eer(ordered), verification.measured_tar(ordered, 0.1)
    least = verification.measured_min_dcf(ordered, 0.3)
    assert measured["eer"] == (eer(*scores), at_eer.threshold)
    assert measured["min_dcf(0.3)"] == (min_dcf(*scores, p_target=0.3), least.threshold)
    assert measured["tar_at_far(0.1)"] == (tar_at_far(*scores, 0.1), at_far.threshold)
    nearest = verification.verification_metrics(*scores, fars=[0.1], tar_rule="nearest")
    assert nearest["tar_at_far(0.1)"].value == tar_at_far(*scores, 0.1, rule="nearest")


@pytest.mark.parametrize("values", [(0, 1), (-1, 1), (1, 2), (5, 5)])
@pytest.mark.parametrize("measure", [eer, sort_scores, cllr])
def test_labels_in_place_of_scores_are_refused(measure, values):
    """Booleans always, also few of them, all the same or of another count; integers of eight on."""
    scores, labels = np.linspace(-1, 1, 20), np.array(values * 10)
    of_first = labels == values[0]
    for wrong in (labels, abs(labels).astype(np.uint8), of_first, of_first[:1], of_first[:15]):
        for classes in ((scores, wrong), (wrong, scores)):
            with pytest.raises(LikenessError, match="these are labels"):
                measure(*classes)


@pytest.mark.parametrize("case", ["c0", "c1", "c2", "c3"])
def test_golden(case):
    golden = np.load(GOLDEN)
    scores, labels = golden[f"{case}/scores"], golden[f"{case}/labels"] == 1
    classes = scores[labels], scores[~labels]
    names = {"interp": "interpolated", "rocch": "convex_hull", "argmin_mean": "nearest"}
    found = {f"eer_{name}": eer(*classes, method=method) for name, method in names.items()}
    for p in ("0.5", "0.1", "0.05", "0.01", "0.001"):
        found[f"mindcf_p{p}"] = min_dcf(*classes, p_target=float(p))
    found["mindcf_p0.01_cmiss10"] = min_dcf(*classes, p_target=0.01, c_miss=10)
    for far in ("0.0001", "0.001", "0.01", "0.1"):
        found[f"tar@far{far}"] = tar_at_far(*classes, float(far))
    expected = {name: float(golden[f"{case}/{name}"]) for name in found}
    assert found == pytest.approx(expected, abs=1e-12)


def test_voxsrc23_published_numbers(shared):
    folder = shared / "data" / "protocols" / "voxsrc23_val"
    trials, scores = read_scores(folder / "scores.txt.gz", read_trials(folder / "trials.txt.gz"))
    target, nontarget = scores[trials.target], scores[~trials.target]
    assert round(100 * eer(target, nontarget), 4) == 4.0948
    for p, cost in ((0.05, 0.214243), (0.01, 0.323345), (0.001, 0.484323)):
        assert round(min_dcf(target, nontarget, p_target=p), 6) == cost
    for far, tar in ((0.1, 0.979528), (0.01, 0.906726), (0.001, 0.774264)):
        assert round(tar_at_far(target, nontarget, far), 6) == tar


def test_gaussians_have_the_closed_form_eer_and_min_dcf():
    rng, distance, n = np.random.default_rng(0), 2.5, 200_000
    target, nontarget = rng.standard_normal(n) + distance, rng.standard_normal(n)
    expected = norm.cdf(-distance / 2)
    for method in ("interpolated", "convex_hull", "nearest"):
        found = eer(target, nontarget, method=method)
        assert found == pytest.approx(expected, abs=4 * math.sqrt(expected / n))
    at = verification.measured_eer(sort_scores(target, nontarget)).threshold
    assert at == pytest.approx(distance / 2, abs=0.02)
    bayes = math.log((1 - 0.05) / 0.05) / distance + distance / 2
    dcf = norm.cdf(bayes - distance) + norm.sf(bayes) * 0.95 / 0.05
    assert min_dcf(target, nontarget, p_target=0.05) == pytest.approx(dcf, abs=0.01)
    # perfectly calibrated: nothing is lost to calibration
    llr = [distance * (value - distance / 2) for value in (target, nontarget)]
    assert verification.actual_dcf(*llr, p_target=0.05) == pytest.approx(dcf, abs=0.01)
    assert cllr(*llr) == pytest.approx(min_cllr(*llr), abs=0.002)


def test_calibration_costs():
    assert cllr([0.0], [0.0]) == 1.0
    assert cllr([800.0], [-800.0]) == 0.0
    assert cllr([-800.0], [-800.0]) == pytest.approx(400 / math.log(2))  # large, not infinite
    bits = [math.log2(1 + math.exp(-x)) for x in (3, 1, 2)]
    found = cllr(np.float32([3.0, 1.0]), np.float32([-2.0]))
    assert found == pytest.approx((bits[0] + bits[1]) / 4 + bits[2] / 2, abs=1e-12)
    assert min_cllr([2.0, 3.0], [0.0, 1.0]) == 0.0
    assert min_cllr([0.0], [0.0, 1.0]) == 1.0
    assert verification.actual_dcf([5.0, -5.0], [-5.0], p_target=0.5) == 0.5
    assert verification.actual_dcf([0.0], [0.0], p_target=0.5) == 1.0  # score >= threshold accepts
    # normalised, but not bounded by 1
    assert verification.actual_dcf([9.0], [9.0], p_target=0.01) == pytest.approx(99)


def test_float32_stays_float32_and_inputs_stay_as_they_are():
    target, nontarget = np.float32([0.5, 0.2, 0.9]), np.float32([0.7, 0.1])
    kept = target.copy(), nontarget.copy()
    ordered = sort_scores(target, nontarget)
    arrays = ordered.target, ordered.nontarget, verification.roc(target, nontarget).thresholds
    assert {values.dtype.name for values in arrays} == {"float32"}
    in_float64 = verification.verification_metrics(target.astype(float), nontarget.astype(float))
    assert verification.verification_metrics(target, nontarget) == in_float64
    np.testing.assert_array_equal([*target, *nontarget], [*kept[0], *kept[1]])
    third = np.float32(1 / 3)  # compared in float64 with 1/3 itself, which it exceeds
    assert eer([1 / 3], np.float32([third])) == eer([0.0], [1.0]) == 1.0


BAD = {
    "target": ([], [[0.0]], ["a"], [True, False], [0.0, math.nan], [0.0, math.inf], [-math.inf]),
    "p_target": (0.0, 1.0, math.nan),
    "c_miss": (0.0, -1.0, math.inf, math.nan),
    "far": (-0.1, 1.1, math.nan),
    "method": ("hull",),
    "rule": ("loose",),
}


@pytest.mark.parametrize("switch", BAD)
@pytest.mark.parametrize(
    ("metric", "good"),
    [
        (eer, {"method": "nearest"}),
        (min_cllr, {}),
        (cllr, {}),
        (verification.roc, {}),
        (verification.det, {}),
        (min_dcf, {"p_target": 0.1, "c_miss": 1.0}),
        (verification.actual_dcf, {"p_target": 0.1, "c_miss": 1.0}),
        (tar_at_far, {"far": 0.1, "rule": "strict"}),
    ],
)
def test_bad_scores_and_switches_are_refused(metric, good, switch):
    scores = [0.0, 1.0]
    for bad in BAD[switch]:
        if switch in good:
            with pytest.raises(LikenessError):
                metric(scores, scores, **good | {switch: bad})
        elif switch == "target":
            for sides in ((bad, scores), (scores, bad)):
                with pytest.raises(LikenessError):
                    metric(*sides, **good)
