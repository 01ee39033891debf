"""Figures of a report against loops and known distributions: curves, positions of the threshold,
the map of embeddings, errors by subject; the frame of a page.
"""

import json
import re
from typing import Any

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup

from likeness.eval.formats.embeddings import Embeddings
from likeness.eval.reports._map import embedding_map, neighbours, plane
from likeness.eval.reports._subjects import errors_by_subject, who_errs
from likeness.eval.reports.figures import det_figure, drawn, histogram_edges
from likeness.eval.reports.page import document
from likeness.eval.reports.verification import positions
from likeness.eval.types import Scores, Trials


def made(num: int, gap: float = 2.0, share: float = 0.3, seed: int = 0) -> Scores:
    rng = np.random.default_rng(seed)
    target = rng.random(num) < share
    target[:2] = True, False
    return Scores(gap * target + rng.standard_normal(num), target)


def test_what_is_drawn_does_not_grow_with_the_trials():
    small, large = ({"a": made(num)} for num in (20_000, 200_000))
    longer, shorter = (drawn(det_figure, scores, alt="") for scores in (large, small))
    assert len(longer) < 1.3 * len(shorter) < 125_000


def test_the_eer_point_of_few_errors_is_inside_the_axes():
    nontargets = np.append(np.linspace(0, 0.9, 997), [0.95, 0.96, 0.97])
    values = np.append(nontargets, np.linspace(0.945, 1, 100))
    figure = det_figure({"a": Scores(values, np.arange(1100) >= 1000)})
    (point,) = figure.select({"name": "threshold of a"})
    for name, ends in (("x", figure.x_range), ("y", figure.y_range)):
        (at,) = point.data_source.data[name]
        assert ends.start < at < ends.end


@example(0.0, 91, 36)  # denormal numbers
@given(st.floats(-1e300, 1e300), st.integers(0, 200), st.sampled_from([36, 72]))
def test_histograms_of_nearly_equal_scores_have_edges(start, spacings, num_bins):
    values = np.array([start, start + spacings * np.spacing(abs(start))])
    edges = histogram_edges(values, num_bins)
    assert edges.shape == (num_bins + 1,)
    assert np.all(np.diff(edges) > 0)
    assert np.histogram(values, edges)[0].sum() == 2


def test_the_frame_escapes_headings_and_leaves_out_what_is_empty():
    sections = {"<One>": Markup("<p>1</p>"), "Gone": Markup(""), "Two words": Markup("<p>2</p>")}
    page = document("<t>", "<a>", {**sections, "Made by no block": "<p>3</p>"})
    assert '<h2 id="one-heading">&lt;One&gt;</h2><p>1</p></section>' in page
    assert "Gone" not in page
    assert '<a href="#two-words">Two words</a>' in page
    assert "&lt;p&gt;3&lt;/p&gt;" in page
    assert "<t>" not in page


@given(st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=60))
def test_every_distinct_score_of_a_short_list_is_a_position(pairs):
    values, target = (np.array(each) for each in zip(*pairs, strict=True))
    target[:2] = True, False
    made = positions(Scores(values.astype(float), target))
    assert made.thresholds[:-1].tolist() == sorted(set(values.tolist()))
    for i, threshold in enumerate(made.thresholds):
        assert made.false_accepts[i] == np.count_nonzero((values >= threshold) & ~target)
        assert made.false_rejects[i] == np.count_nonzero((values < threshold) & target)
    assert (made.false_accepts[-1], made.false_rejects[-1]) == (0, target.sum())


def test_positions_of_a_long_list_are_bounded_exact_and_close_where_errors_are_rare():
    rng = np.random.default_rng(0)
    target = rng.random(300_000) < 0.1
    scores = Scores((2 * target + rng.standard_normal(300_000)).astype(np.float32), target)
    made = positions(scores, wanted=[0.5, 1.25])
    assert made.thresholds.size <= 2010
    assert {0.5, 1.25} <= set(made.thresholds.tolist())
    for i in range(0, made.thresholds.size, 97):
        accepted = scores.values >= made.thresholds[i]
        assert made.false_accepts[i] == np.count_nonzero(accepted & ~target)
        assert made.false_rejects[i] == np.count_nonzero(~accepted & target)
    # The first false accepts and the first false rejects have a position each.
    assert set(range(10)) <= set(made.false_accepts.tolist())
    assert set(range(10)) <= set(made.false_rejects.tolist())
    assert np.abs(np.diff(made.false_accepts)).max() < 0.005 * (~target).sum()
    assert np.abs(np.diff(made.false_rejects)).max() < 0.005 * target.sum()


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


def test_a_map_keeps_classes_together():
    contents, labels = clusters(4, 15, 20)
    points = plane(contents.unit())
    number = np.array([int(labels[item_id][1:]) for item_id in contents.ids])
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(60)
    assert np.mean(number[distance.argmin(axis=1)] == number) > 0.95
    # no spread, one dimension, zero rows
    for matrix in (np.full((9, 3), 3**-0.5), np.ones((9, 1)), np.eye(9, 4)):
        assert np.isfinite(plane(matrix)).all()


def test_a_map_is_bounded_and_says_what_it_shows():
    contents, labels = clusters(30, 12, 6)
    text = embedding_map(contents, labels, num_points=40)
    assert "40 of 360 items, from 10 of 30 classes" in text
    assert len(points_of(text)["ids"]) == 40
    assert "40 of 360 items; on" in embedding_map(contents, num_points=40)
    assert "too few" in embedding_map(*clusters(2, 3, 6))


def test_a_point_is_told_its_neighbours():
    contents, labels = clusters(3, 4, 6)
    unit = contents.matrix / np.linalg.norm(contents.matrix, axis=1, keepdims=True)
    similar = unit @ unit.T - 9 * np.eye(12)
    assert neighbours(contents.unit(), 3).tolist() == np.argsort(-similar, axis=1)[:, :3].tolist()
    points = points_of(embedding_map(contents, labels))
    assert points["neighbours"] == neighbours(contents.unit()).tolist()


def test_errors_by_subject_are_those_of_a_loop_and_named_on_the_page():
    """Ids say their side, so that a subject has other ids as an enrolment than as a probe."""
    enrol, probe = (tuple(f"{side}{k}" for k in range(20)) for side in "ep")
    first, second = (each.ravel() for each in np.indices((20, 20)))
    target = first // 5 == second // 5
    scores = Scores(2 * target + np.random.default_rng(0).standard_normal(400), target)
    trials = Trials(enrol, probe, first, second, target)
    subject_of = {id: f"</script><b>{int(id[1:]) // 5}" for id in (*enrol, *probe)}
    names, counts = errors_by_subject(trials, scores, subject_of, 1.0)
    for k, name in enumerate(names):
        is_first, is_second = first // 5 == k, second // 5 == k
        others = (is_first | is_second) & ~target
        missed, accepted = scores.values < 1, scores.values >= 1
        own = is_first & target
        expected = [own.sum(), (own & missed).sum(), others.sum(), (others & accepted).sum()]
        assert counts[:, k].tolist() == expected, name
    text = who_errs(trials, scores, subject_of)
    assert text.count("&lt;/script&gt;&lt;b&gt;") == 4
    assert "<b>" not in text
    assert not who_errs(trials, scores, dict.fromkeys(subject_of, "one"))
