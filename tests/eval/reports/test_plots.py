"""Curves of a report against loops and known distributions; bounded drawing; the norm as a trial's
quality.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2.exceptions import UndefinedError
from markupsafe import Markup

from eval.reports.curves import (
    histogram_figure,
    llr_points,
    reliability_figure,
    roc_figure,
    roc_points,
    trade_off,
)
from eval.reports.figures import drawn, histogram_edges
from eval.reports.norms import reject_curves, reject_figure, reliability
from eval.reports.page import block, document
from eval.types import Scores
from eval.verification import eer, tar_at_far


def made(num: int, gap: float = 2.0, share: float = 0.3, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    target = rng.random(num) < share
    target[:2] = True, False
    return Scores(gap * target + rng.standard_normal(num), target)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40))
def test_roc_points_are_what_tar_at_far_says_ties_and_all(pairs) -> None:
    values, target = (np.array(value) for value in zip(*pairs, strict=True))
    target[:2] = True, False
    scores = Scores(values, target)
    far, tar = roc_points(scores)
    size = scores.nontargets.size
    assert far.tolist() == [k / size for k in range(size + 1)]
    assert tar[-1] == 1
    for rate, value in zip(far[:-1], tar[:-1], strict=True):
        assert (
            value
            == pytest.approx(tar_at_far(scores.targets, scores.nontargets, float(rate)), abs=1e-12)
            if rate
            else True
        )
    assert tar[0] == pytest.approx(np.mean(scores.targets > scores.nontargets.max()))


def test_what_is_drawn_does_not_grow_with_the_trials() -> None:
    small, large = ({"a": made(num)} for num in (20_000, 200_000))
    assert roc_points(large["a"])[0].size <= 1500
    assert len(trade_off(large)) < 1.3 * len(trade_off(small)) < 250_000


def test_calibrated_ratios_lie_on_the_diagonal_and_overconfident_ones_below() -> None:
    # Gaussian LLRs: mean +-delta, variance 2 delta
    rng, num, delta = np.random.default_rng(3), 40_000, 2.0
    target = np.arange(num) < num // 4
    llr = np.where(target, delta, -delta) + np.sqrt(2 * delta) * rng.standard_normal(num)
    good = llr_points(Scores(llr, target))
    assert good.stated.size == 12
    assert np.mean(np.abs(good.observed - good.stated) < good.half_width) >= 10 / 12
    bold = llr_points(Scores(2 * llr, target))
    slope = np.polyfit(bold.stated, bold.observed, 1)[0]
    assert 0.4 < slope < 0.65
    # what is observed depends on the order only
    np.testing.assert_allclose(bold.observed, good.observed)


def test_ratio_bins_by_hand_with_ties_and_extremes() -> None:
    scores = Scores(
        np.array([-800.0, -800.0, 1.0, 1.0, 800.0]), np.array([False, False, False, True, True])
    )
    result = llr_points(scores, num_bins=3)
    # equal scores share a bin, and nothing overflows
    assert result.stated == pytest.approx([-800.0, 1.0, 800.0])
    t, n = np.array([0, 1, 1]), np.array([2, 1, 0])
    assert result.observed == pytest.approx(np.log((t + 0.5) / 3) - np.log((n + 0.5) / 4))
    assert result.half_width == pytest.approx(1.96 * np.sqrt(1 / (t + 0.5) + 1 / (n + 0.5)))
    constant = llr_points(Scores(np.zeros(4), np.array([True, True, False, False])))
    assert constant.stated == constant.observed == pytest.approx([0.0])


def test_the_reliability_of_a_classifier_states_its_error() -> None:
    rng = np.random.default_rng(6)
    confidence = rng.uniform(0.5, 1, 3000)
    text = reliability(confidence, rng.random(3000) < confidence - 0.2)
    error = float(text.split("error ")[1].split(" %")[0])
    assert error == pytest.approx(20, abs=2)
    assert text.count('class="plot"') == 1
    assert reliability(np.ones(5), np.array([True, False, True, True, True])).startswith(
        "<p>Expected calibration error 20.00 %"
    )
    with pytest.raises(ValueError, match="outside"):
        reliability([1.2], [True])


def test_the_drawn_bins_of_a_classifier_are_those_of_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seven of ten confidences tied: with them in one bin the points would not add up to the number
    above them.
    """
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    monkeypatch.setattr(
        "eval.reports.norms.drawn",
        lambda _, mean, share, **more: kept.append((mean, share)) or "",
    )
    confidence = np.array([0.5, 0.55, 0.6, *[0.9] * 7])
    right = np.array([0, 1, 0, 1, 0, 1, 0, 0, 1, 0])
    text = reliability(confidence, right, num_bins=5)
    mean, share = kept[0]
    assert mean.size == 5
    # every bin holds two of the ten
    assert f"error {100 * np.mean(np.abs(mean - share)):.2f} %" in text


@example(0.0, 91, 36)  # denormal numbers
@given(st.floats(-1e300, 1e300), st.integers(0, 200), st.sampled_from([36, 72]))
def test_histograms_of_nearly_equal_scores_have_edges(
    start: float, spacings: int, num_bins: int
) -> None:
    values = np.array([start, start + spacings * np.spacing(abs(start))])
    edges = histogram_edges(values, num_bins)
    assert edges.shape == (num_bins + 1,)
    assert np.all(np.diff(edges) > 0)
    assert np.histogram(values, edges)[0].sum() == 2


def test_histograms_of_other_scores_have_the_usual_edges() -> None:
    values = made(500).values
    np.testing.assert_allclose(
        histogram_edges(values, 72), np.histogram_bin_edges(values, bins=72), rtol=1e-12, atol=1e-12
    )


def test_nearly_constant_scores_are_drawn() -> None:
    values = np.full(40, 0.7)
    values[0] = np.nextafter(0.7, 1)
    assert (
        drawn(histogram_figure, Scores(values, np.arange(40) < 3), 0.7, alt="h").count(
            'class="plot"'
        )
        == 1
    )


def test_rejecting_by_a_telling_quality_lowers_the_error() -> None:
    rng = np.random.default_rng(5)
    quality = rng.random(4000)
    target = rng.random(4000) < 0.3
    scores = Scores(4 * quality * target + rng.standard_normal(4000), target)
    curve = reject_curves({"a": scores}, {"a": quality})["a"]
    kept = quality >= np.sort(quality)[1600]
    at = int(np.argmin(np.abs(curve.rejected - 0.4)))
    assert curve.values[at] == pytest.approx(
        eer(scores.values[kept & target], scores.values[kept & ~target])
    )
    assert curve.values[-1] < 0.7 * curve.values[0]
    figure = reject_figure({"a": curve})
    assert figure.select(name="a")[0].data_source.data["x"].size == curve.values.size


def test_names_are_text_wherever_they_stand() -> None:
    scores = {"$x_1$<&": made(300), "$": made(300, seed=1)}
    for figure in (roc_figure, reliability_figure):
        text = drawn(figure, scores, alt="ROC of $x$ <b>")
        assert "$x_1$\\u003c\\u0026" in text
        assert "<&" not in text
        assert "&lt;b&gt;" in text


def test_extreme_systems_are_drawn() -> None:
    perfect = Scores(np.array([1.0, 0.0]), np.array([True, False]))
    constant = Scores(np.zeros(40), np.arange(40) < 3)
    assert (
        trade_off(
            {
                "perfect": perfect,
                "constant": constant,
                "huge": Scores(1e300 * made(40).values, made(40).target),
            }
        ).count('class="plot"')
        == 2
    )
    assert drawn(reliability_figure, {"constant": constant}, alt="r").count('class="plot"') == 1


def test_the_frame_escapes_headings_and_leaves_out_what_is_empty() -> None:
    page = document(
        "<t>",
        "<a>",
        {
            "<One>": Markup("<p>1</p>"),
            "Gone": Markup(""),
            "Two words": Markup("<p>2</p>"),
            "Made by no block": "<p>3</p>",
        },
    )
    assert '<h2 id="one-heading">&lt;One&gt;</h2><p>1</p></section>' in page
    assert "Gone" not in page
    assert '<a href="#two-words">Two words</a>' in page
    assert "&lt;p&gt;3&lt;/p&gt;" in page
    assert "<t>" not in page


def test_a_block_whose_values_are_missing_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        block("figure", item={})
    with pytest.raises(AttributeError):
        block("no such block")
