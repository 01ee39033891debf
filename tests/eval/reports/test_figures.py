"""Figures of a report against loops and known distributions, bounded; norms of right and wrong
answers; the frame of a page.
"""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup

from likeness.eval.classification import auroc
from likeness.eval.reports.figures import (
    det_figure,
    drawn,
    histogram_edges,
    norms_by_correct,
)
from likeness.eval.reports.page import document
from likeness.eval.types import Scores


def made(num: int, gap: float = 2.0, share: float = 0.3, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    target = rng.random(num) < share
    target[:2] = True, False
    return Scores(gap * target + rng.standard_normal(num), target)


def test_what_is_drawn_does_not_grow_with_the_trials() -> None:
    small, large = ({"a": made(num)} for num in (20_000, 200_000))
    longer, shorter = (drawn(det_figure, scores, alt="") for scores in (large, small))
    assert len(longer) < 1.3 * len(shorter) < 125_000


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


def test_the_frame_escapes_headings_and_leaves_out_what_is_empty() -> None:
    sections = {"<One>": Markup("<p>1</p>"), "Gone": Markup(""), "Two words": Markup("<p>2</p>")}
    page = document("<t>", "<a>", {**sections, "Made by no block": "<p>3</p>"})
    assert '<h2 id="one-heading">&lt;One&gt;</h2><p>1</p></section>' in page
    assert "Gone" not in page
    assert '<a href="#two-words">Two words</a>' in page
    assert "&lt;p&gt;3&lt;/p&gt;" in page
    assert "<t>" not in page


def test_norms_of_right_and_wrong_answers_are_shown_with_the_auroc() -> None:
    rng = np.random.default_rng(2)
    norms = rng.random(200)
    correct = rng.random(200) < norms
    text = norms_by_correct(norms, correct)
    assert f"AUROC of the norm: {auroc(norms, correct):.3f}" in text
    assert text.count('class="plot"') == 1
    assert "All are of one kind" in norms_by_correct(norms, np.ones(200, bool))
