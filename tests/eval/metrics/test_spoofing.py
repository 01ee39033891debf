"""Three classes of trials: each rate by counting, on ASVspoof 5, and by the command."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.metrics import spoofing
from likeness.eval.metrics.calibration import load_fusion
from tests.scripts import printed

CLASS = st.lists(st.integers(-4, 6).map(float), min_size=1, max_size=9)
THREE = st.tuples(CLASS, CLASS, CLASS)


def share(values, accepted) -> float:
    return sum(map(accepted, values)) / len(values)


def errors_at(three, limit: float) -> list[float]:
    """The shares of targets refused, of nontargets and of spoofs accepted."""
    missed = share(three[0], lambda x: x < limit)
    return [missed, *(share(of, lambda x: x >= limit) for of in three[1:])]


def limits(*classes) -> list[float]:
    return [*sorted({value for of in classes for value in of}), float("inf")]


@given(THREE)
def test_the_a_dcf_is_the_least_cost_of_all_thresholds(three):
    costs = [np.dot([0.9, 10 * 0.05, 20 * 0.05], errors_at(three, t)) for t in limits(*three)]
    assert spoofing.min_a_dcf(*three).value == pytest.approx(min(costs) / 0.9, abs=1e-12)
    cost = np.dot([0.9, 0.5, 1], errors_at(three, np.log((0.5 + 1) / 0.9)))
    assert spoofing.actual_a_dcf(*three) == pytest.approx(cost / 0.9, abs=1e-12)


@given(THREE)
def test_the_sasv_eer_is_that_of_both_kinds_of_others_together(three):
    target, *both = three
    others = [*both[0], *both[1]]
    points = [errors_at((target, others), t) for t in limits(*three)]
    k = next(k for k, (frr, far) in enumerate(points) if far <= frr)
    (m, a), (n, b) = points[max(k - 1, 0)], points[k]
    along = (a - m) / ((a - m) - (b - n)) if k else 0
    assert spoofing.sasv_eer(*three) == pytest.approx(a + along * (b - a), abs=1e-12)


def tandems(asv, cm) -> list[tuple[float, float, float, float, float]]:
    """Of each pair of thresholds: misses, false accepts and spoof accepts of the tandem, and the
    false accepts over the spoof accepts of the verifier, against those of the countermeasure.
    """
    bona_fide, found = [*cm[0], *cm[1]], []
    for a in limits(*asv):
        miss, fa, spoof = errors_at(asv, a)
        options = [errors_at((bona_fide, cm[2]), c) for c in limits(*cm)]
        apart = [abs(blocked + (1 - blocked) * (miss - fa)) for blocked, _ in options]
        first = next(k for k, gap in enumerate(apart) if gap <= min(apart) + 1e-12)
        blocked, passed = options[first]
        if miss < fa and spoof > 0 and blocked < 1:
            found.append((abs(fa / spoof - passed / (1 - blocked)), spoof * passed))
    return found


@example(([0], [0], [0]), ([0], [0, 0, 1, 2, 2, 2], [1]))
@given(THREE, THREE)
def test_the_t_eer_is_where_the_three_errors_meet(asv, cm):
    found = tandems(asv, cm)
    if found:
        least = min(crit for crit, _ in found)
        rates = [pytest.approx(rate, abs=1e-12) for crit, rate in found if crit <= least + 1e-9]
        assert spoofing.t_eer(asv, cm) in rates


@given(THREE, THREE)
def test_the_t_dcf_is_the_least_cost_of_the_tandem(asv, cm):
    at = likeness.metrics.verification_metrics(asv[0], asv[1])["eer"].threshold
    miss, fa, spoof = errors_at(asv, at)
    p_target, p_nontarget, p_spoof = 0.95 * 0.99, 0.95 * 0.01, 0.05
    first = p_target * (1 - miss) - 10 * p_nontarget * fa
    second = 10 * p_spoof * spoof
    if min(first, second) <= 0:  # a countermeasure cannot help
        assert np.isnan(spoofing.min_t_dcf(asv, cm))
        return
    both = ([*cm[0], *cm[1]], cm[2])
    costs = [np.dot([first, second], errors_at(both, t)) for t in limits(*cm)]
    assert spoofing.min_t_dcf(asv, cm) == pytest.approx(min(costs) / min(first, second), abs=1e-9)
    assert spoofing.TANDEM.weights == pytest.approx((p_target, 10 * p_nontarget, 10 * p_spoof))


@given(CLASS, CLASS)
def test_the_bpcer_keeps_the_apcer(bona_fide, spoof):
    allowed = [t for t in limits(bona_fide, spoof) if spoofing.apcer(spoof, t) <= 0.2]
    expected = min(share(bona_fide, lambda x, t=t: x < t) for t in allowed)
    assert spoofing.bpcer_at_apcer(bona_fide, spoof, 0.2) == pytest.approx(expected)


def test_the_apcer_is_that_of_the_worst_kind_of_attack():
    assert spoofing.apcer([1, 0, 1, 1, 0], 0.5, list("rrsss")) == pytest.approx(2 / 3)
    assert spoofing.apcer([1, 0, 1, 1, 0], 0.5) == pytest.approx(3 / 5)


# ---------------------------------------------------------------- ASVspoof 5


def test_asvspoof_has_the_published_values_and_those_of_counting(shared):
    path = shared / "data" / "asvspoof5" / "dev_scores_label.csv"
    if not path.is_file():
        pytest.skip("needs the scores of ASVspoof 5")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
    # 0 for targets, 1 for nontargets, 2 for spoofs
    classes = np.select([table[:, 2] == 1, table[:, 2] == 2], [0, 1], 2)
    asv, cm = ([table[classes == kind, k] for kind in range(3)] for k in (0, 1))
    table = table[:, :2]
    assert likeness.metrics.eer(asv[0], asv[1]) == pytest.approx(0.0186, abs=5e-5)
    assert likeness.metrics.eer(asv[0], asv[2]) == pytest.approx(0.203, abs=5e-4)
    standard = ((table - table.mean(axis=0)) / table.std(axis=0)).sum(axis=1)
    summed = [standard[classes == kind] for kind in range(3)]
    for three, value in ((asv, 0.380), (cm, 0.530), (summed, 0.038)):
        found = spoofing.min_a_dcf(*three)
        assert found.value == pytest.approx(value, abs=5e-4)
        costs = [  # at each distinct score, by another sum
            0.9 * np.mean(three[0] < t) + 0.5 * np.mean(three[1] >= t) + np.mean(three[2] >= t)
            for t in np.unique(three[0])[:: 1 if three is cm else 7]
        ]
        assert found.value <= min(costs) / 0.9 + 1e-9
        errors = (three[0] < found.threshold, *(of >= found.threshold for of in three[1:]))
        weighed = np.dot(spoofing.SpoofCosts().weights, [of.mean() for of in errors])
        assert found.value == pytest.approx(weighed / 0.9, abs=1e-9)


# ---------------------------------------------------------------- the command


def files(folder: Path) -> list[Path]:
    """Score files of a verifier and of a countermeasure, of 24 people."""
    rng, lines = np.random.default_rng(0), {"asv.txt": [], "cm.txt": []}
    for a in range(24):
        for b, kind in [(a, "target"), ((a + 1) % 24, "nontarget"), (a, "spoof")] * 4:
            attack = kind == "spoof"
            scores = 3.0 * (a == b) - attack, 4.0 * (not attack)
            probe = f"attack{len(lines['cm.txt'])}" if attack else f"p{b}"
            for name, score in zip(lines, scores, strict=True):
                item = f"p{a}/1 {probe}/{len(lines[name])}"
                lines[name].append(f"{item} {score + rng.normal():.3f} {kind}")
    for name, of in lines.items():
        (folder / name).write_text("\n".join(of) + "\n")
    return [folder / name for name in lines]


def test_the_commands_fit_apply_and_measure(tmp_path):
    asv, cm = files(tmp_path)
    fusion, fused = tmp_path / "fusion.json", tmp_path / "fused.txt"
    printed("fit", "fusion", asv, cm, "--method", "likelihood_ratio", "--out", fusion)
    assert load_fusion(fusion).against_spoofs is not None
    printed("score", asv, cm, "--fusion", fusion, "--out", fused)
    assert fused.read_text().splitlines()[2].endswith("spoof")
    assert "actual a-DCF" in printed("evaluate", fused, "--llr", "--resamples", "0")


def test_a_verifier_and_a_countermeasure_are_measured_together(tmp_path):
    asv, cm = files(tmp_path)
    settings = likeness.VerificationSettings(num_resamples=30)
    evaluation = likeness.evaluate(asv, settings, countermeasure=cm)
    found = {result.metric: result for result in evaluation.results}
    assert found["eer"].counts == {"targets": 96, "nontargets": 96, "subjects": 24}
    rows = [line.split() for line in asv.read_text().splitlines()]
    three = {"target": [], "nontarget": [], "spoof": []}
    for *_, score, kind in rows:
        three[kind].append(float(score))
    assert found["sasv_eer"].value == spoofing.sasv_eer(*three.values())
    assert found["min_a_dcf"].conventions["c_fa_spoof"] == 20
    assert all(found[name].interval for name in ("t_eer", "min_t_dcf", "sasv_eer"))


def test_a_countermeasure_without_spoofs_and_spoofs_without_ids_are_refused(tmp_path):
    scores = likeness.Scores([2.0, 1.0], [True, False])
    asv, cm = files(tmp_path)
    with pytest.raises(LikenessError, match="no ids"):
        likeness.evaluate(scores, countermeasure=cm)
    trials, values = likeness.eval.formats.trials.read_scores(asv)
    with pytest.raises(LikenessError, match="as text"):
        likeness.eval.formats.trials.write_scores(tmp_path / "x.parquet", trials, values)


def test_a_list_without_spoofs_does_not_hide_those_of_the_scores(tmp_path):
    asv, _ = files(tmp_path)
    lines = [line.split() for line in asv.read_text().splitlines()]
    listed = tmp_path / "trials.txt"
    listed.write_text("".join(f"{int(k == 'target')} {a} {b}\n" for a, b, _, k in lines))
    settings = likeness.VerificationSettings(num_resamples=0)
    found = likeness.evaluate(asv, settings, trials=listed)
    assert {"sasv_eer", "min_a_dcf"} <= {result.metric for result in found.results}


def test_draws_and_verifiers_without_spoofs_leave_numbers_out(tmp_path):
    people = "abcdefgh"
    lines = ["a/1 f/1 -9 spoof", *(f"{s}/1 {s}/2 1 target" for s in people)]
    lines += [f"{s}/1 {t}/2 -1 nontarget" for s, t in zip(people, "bcdefgha", strict=True)]
    (tmp_path / "scores.txt").write_text("\n".join(lines))
    settings = likeness.VerificationSettings(num_resamples=30)
    file = tmp_path / "scores.txt"
    evaluation = likeness.evaluate(file, settings, countermeasure=file)
    found = {result.metric: result for result in evaluation.results}
    assert found["sasv_eer"].value == 0
    assert "min_t_dcf" not in found  # the verifier rejects the only spoof
    evaluation.save(tmp_path / "results.json")
