"""PAV, devPAV and ELUB bounds by loops over thresholds and segments; pAUC by discarding."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

from likeness.eval.formats.trials import read_scores
from likeness.eval.intervals.uncertainty import discard_area
from likeness.eval.metrics.evidence import dev_pav, elub, pav
from tests.scripts import run_command

LLRS = st.lists(st.integers(-6, 6).map(lambda x: x / 2), min_size=1, max_size=12)


@given(LLRS, LLRS)
def test_the_pav_is_that_of_scikit_learn(target, nontarget):
    scores, llrs = pav(target, nontarget)
    labels = np.array([1.0] * len(target) + [0.0] * len(nontarget))
    share = IsotonicRegression().fit([*target, *nontarget], labels).predict(scores)
    odds = share / np.maximum(1 - share, 1e-300)
    ratios = odds * len(nontarget) / len(target)
    inside = (share > 1e-9) & (share < 1 - 1e-9)
    np.testing.assert_allclose(llrs[inside], np.log(ratios[inside]), atol=1e-9)
    assert (np.isinf(llrs) == ~inside).all()


@given(LLRS, LLRS)
def test_the_dev_pav_is_the_mean_distance_in_fine_steps(target, nontarget):
    scores, llrs = pav(target, nontarget)
    known = np.isfinite(llrs)
    found = dev_pav(target, nontarget)
    if not known.any():
        assert np.isnan(found)
        return
    x, y = scores[known] / np.log(10), llrs[known] / np.log(10)
    if len(x) == 1:
        assert found == pytest.approx(abs(y[0] - x[0]))
        return
    steps = np.linspace(x[0], x[-1], 40_001)
    assert found == pytest.approx(np.abs(np.interp(steps, x, y) - steps).mean(), rel=2e-3, abs=1e-4)


@given(LLRS, LLRS)
def test_between_the_elub_bounds_no_threshold_does_worse_than_none(target, nontarget):
    lower, upper = elub(target, nontarget)
    assert lower <= 0 <= upper

    def worth(t: float) -> bool:
        """Whether ratios help at the threshold log t, with a misleading trial more of each kind."""
        missed = (sum(x <= t for x in target) + 1) / (len(target) + 1)
        passed = (sum(x > t for x in nontarget) + 1) / (len(nontarget) + 1)
        return missed + np.exp(t) * passed <= min(1.0, np.exp(t)) + 1e-9

    for t in np.linspace(0, upper * np.log(10), 30)[1:-1] if upper else ():
        assert worth(t - 1e-9)
    if 0 < upper < 5:
        assert not worth(upper * np.log(10) + 1e-6)
    for t in np.linspace(0, lower * np.log(10), 30)[1:-1] if lower else ():
        missed = (sum(x < t for x in target) + 1) / (len(target) + 1)
        passed = (sum(x >= t for x in nontarget) + 1) / (len(nontarget) + 1)
        assert missed + np.exp(t) * passed <= np.exp(t) + 1e-6


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 1)), min_size=1, max_size=12),
    st.sampled_from([0.1, 0.2, 0.5]),
)
def test_the_area_is_that_of_discarding_trial_by_trial(rows, limit):
    quality, missed = map(list, zip(*rows, strict=True))
    total, steps = 0.0, 4000
    for step in range(steps):
        share = limit * (step + 0.5) / steps
        kept = missed
        for least in sorted(set(quality)):
            left = [m for q, m in rows if q >= least]
            if len(rows) - len(left) <= share * len(rows) + 1e-9 and left:
                kept = left
        total += sum(kept) / len(kept) / steps
    assert discard_area(quality, missed, limit) == pytest.approx(total, abs=2e-3)


def test_the_command_gives_the_evidence_and_the_discard_area(tmp_path):
    rng, lines, quality = np.random.default_rng(0), [], []
    for a in range(30):
        quality.append(f"p{a}/1 {a % 5}\np{a}/2 {(a + 1) % 5}\n")
        for b in (a, (a + 1) % 30, (a + 7) % 30):
            score = rng.normal(2 if a == b else -2, 2 + (a % 5 == 0))
            lines.append(f"p{a}/1 p{b}/2 {score:.3f} {int(a == b)}\n")
    (tmp_path / "llr.txt").write_text("".join(lines))
    (tmp_path / "quality.txt").write_text("".join(quality))
    report = tmp_path / "report"
    more = ["--llr", "--quality", tmp_path / "quality.txt", "--resamples", "40"]
    assert run_command("evaluate", tmp_path / "llr.txt", *more, "--report", report) == 0
    document = json.loads((report / "report.json").read_text())
    found = {result["metric"]: result for result in document["results"]}
    assert found["elub_lower"]["value"] < 0 < found["elub_upper"]["value"]
    assert found["dev_pav"]["value"] > 0
    area = found["edc_pauc(0.05)"]
    trials, scores = read_scores(tmp_path / "llr.txt")
    missed = scores[trials.target] < area["threshold"]
    assert missed.sum() == 1  # 5 % of 30 trials
    assert area["value"] == discard_area([min(a % 5, (a + 1) % 5) for a in range(30)], missed)
    assert "Tippett" in (report / "index.html").read_text()
    assert "no certificate" in document["test_report"]["What this is"]
    assert "30 subjects" in document["test_report"]["Data"]
