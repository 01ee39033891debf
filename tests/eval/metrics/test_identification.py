"""Identification against loops over probes in plain Python, golden files, tie orders by
enumeration, and blocks and tiles against the whole.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import likeness
from likeness.eval.errors import LikenessError
from likeness.eval.metrics import identification
from likeness.eval.metrics.identification import cmc, search, search_embeddings, tpir, tpir_at_fpir
from likeness.eval.metrics.similarity import single
from likeness.eval.metrics.verification import num_allowed

SIMILARITIES = ["cosine", "dot", "simple:0.3", "euclidean", "poincare", "vmf_el", "vmf_kl"]
GOLDEN = Path(__file__).parents[2] / "golden" / "identification_metrics__bruteforce.npz"


@st.composite
def cases(draw, closed=False):
    """scores (Q, G) with many ties, gallery subjects with repeated templates, probe subjects; at
    least one mated, and one non-mated unless closed.
    """
    num_templates, num_probes = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    gallery = draw(st.lists(st.integers(0, 3), min_size=num_templates, max_size=num_templates))
    who = st.sampled_from(gallery if closed else [0, 1, 2, 3, 9])
    probes = draw(st.lists(who, min_size=num_probes, max_size=num_probes))
    if not closed:
        probes = [*probes, gallery[0], 9]
    row = st.lists(st.integers(0, 3), min_size=num_templates, max_size=num_templates)
    scores = draw(st.lists(row, min_size=len(probes), max_size=len(probes)))
    return np.array(scores, dtype=float), np.array(gallery), np.array(probes)


def best_per_subject(row, gallery):
    return {
        subject: max(score for score, value in zip(row, gallery, strict=True) if value == subject)
        for subject in set(gallery)
    }


def brute_rank_k(scores, gallery, probes, k):
    """Mean over every order of the subjects, each sorted stably by score: ties in all orders."""
    rates = []
    for row, subject in zip(scores.tolist(), probes.tolist(), strict=True):
        best = best_per_subject(row, gallery.tolist())
        orders = [sorted(order, key=lambda one: -best[one]) for order in permutations(best)]
        rates.append(np.mean([subject in order[:k] for order in orders]))
    return np.mean(rates)


def brute_tpir(scores, gallery, probes, fpir, protocol):
    """The rate, and the score of each mated probe that may count."""
    rows = [best_per_subject(row, gallery.tolist()) for row in scores.tolist()]
    mates = [row.pop(own, None) for row, own in zip(rows, probes.tolist(), strict=True)]
    rivals = [max(row.values(), default=-math.inf) for row in rows]
    both = list(zip(mates, rivals, strict=True))
    if protocol == "closed":
        limits = [score for row in rows for score in row.values()]
        floor = num_allowed(fpir, len(probes))
        place = max(1, floor if abs(fpir * len(probes) - floor) < 1e-9 else floor + 1) - 1
        may = mates
    else:
        limits = [rival for mate, rival in both if mate is None]
        allowed = num_allowed(fpir, len(limits))
        place = allowed if protocol == "open" else max(allowed - 1, 0)
        may = [mate if mate > rival else -math.inf for mate, rival in both if mate is not None]
    limit = sorted(limits, reverse=True)[place] if place < len(limits) else -math.inf
    return np.mean([score > limit for score in may]), may


@given(cases(closed=True))
def test_rank_k_is_the_mean_over_tie_orders(case):
    scores, gallery, probes = case
    num_subjects = len(set(gallery.tolist()))
    expected = [brute_rank_k(*case, k) for k in range(1, num_subjects + 1)]
    np.testing.assert_allclose(cmc(*case), expected, atol=1e-12)
    first = identification.rank_k(scores, gallery, probes, 1)
    assert first == pytest.approx(expected[0], abs=1e-12)
    assert cmc(*case)[-1] == 1.0
    assert np.all(np.diff(cmc(*case)) >= 0)


@pytest.mark.parametrize("protocol", ["open", "ijb_evals", "closed"])
@given(data=st.data(), fpir=st.sampled_from([0.0, 0.01, 0.25, 1 / 3, 0.5, 0.9, 1.0]))
def test_tpir_is_brute_force_and_its_threshold_reproduces_it(protocol, data, fpir):
    case = data.draw(cases(closed=protocol == "closed"))
    expected, hits = brute_tpir(*case, fpir, protocol)
    assert tpir_at_fpir(*case, fpir, protocol=protocol) == pytest.approx(expected, abs=1e-12)
    value, threshold = tpir(search(*case, keep=1000), fpir, protocol=protocol)
    assert value == np.mean([score >= threshold for score in hits])


@settings(max_examples=40)
@given(cases(), st.lists(st.integers(0, 3), min_size=8, max_size=8), st.sampled_from([0.1, 0.5]))
def test_weights_are_repeated_probes(case, weights, fpir):
    scores, gallery, probes = case
    w = np.array(weights)[: len(probes)]
    w[-2:] = np.maximum(w[-2:], 1)
    repeated = np.repeat(np.arange(len(probes)), w)
    mated = np.isin(probes, gallery)
    for protocol, some in (("open", w >= 0), ("ijb_evals", w >= 0), ("closed", mated)):
        searched = search(scores[some], gallery, probes[some], keep=1000)
        value = tpir(searched, fpir, protocol=protocol, weights=w[some]).value
        rows = repeated[some[repeated]]
        expected = tpir_at_fpir(scores[rows], gallery, probes[rows], fpir, protocol=protocol)
        assert value == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_golden(case):
    golden = np.load(GOLDEN)
    names = ("gallery_scores_mated", "mated_ids", "gallery_scores_nonmated")
    mated, own, others = (golden[f"{case}/{name}"] for name in names)
    gallery, probes = np.arange(mated.shape[1]), np.append(own, np.full(len(others), -1))
    for fpir in ("0.001", "0.01", "0.1", "0.5"):
        value = tpir_at_fpir(np.concatenate([mated, others]), gallery, probes, float(fpir))
        assert value == pytest.approx(float(golden[f"{case}/tpir@fpir{fpir}"]), abs=1e-12)
        assert value == pytest.approx(float(golden[f"{case}/tpir@fpir{fpir}_sortrule"]), abs=1e-12)
    low, high = float(golden[f"{case}/rank1_argmax"]), float(golden[f"{case}/rank1_optimistic"])
    # the expected value lies between file order's luck and the best
    assert low - 1e-12 <= identification.rank_k(mated, gallery, own, 1) <= high + 1e-12
    broken = mated - 1e-9 * gallery  # ties broken by column, as argmax does
    assert identification.rank_k(broken, gallery, own, 1) == pytest.approx(low, abs=1e-12)


def test_equal_embeddings_tie_exactly_and_score_chance():
    rows = np.tile(np.random.default_rng(0).standard_normal(37).astype(np.float32), (101, 1))
    result = search_embeddings(rows, rows[:7], np.arange(7), np.arange(101) % 7)
    rates = [identification.rank_rate(result, k) for k in (1, 3, 7)]
    assert rates == pytest.approx([1 / 7, 3 / 7, 1.0])
    result = search_embeddings(rows, rows[:7], np.arange(7), np.arange(101) % 14)
    # a tie for first place identifies nobody
    assert [tpir(result, fpir).value for fpir in (0.0, 0.5, 1.0)] == [0.0, 0.0, 0.0]
    # duplicates far apart in the gallery
    copies = np.concatenate([rows[:3], rows[:3] + 1, rows[:3]])
    result = search_embeddings(rows[:5], copies, np.arange(9), np.zeros(5, dtype=int))
    assert result.tied.tolist() == [5] * 5


def test_embeddings_in_any_order_give_the_same_bits():
    rng = np.random.default_rng(0)
    centres, subject = rng.standard_normal((60, 24)), np.repeat(np.arange(60), 6)
    probes = centres[subject] + 3 * rng.standard_normal((360, 24))
    order, columns = rng.permutation(360), rng.permutation(60)
    first = search_embeddings(probes, centres, np.arange(60), subject, keep=50)
    two = search_embeddings(probes[order], centres[columns], columns, subject[order], keep=50)
    np.testing.assert_array_equal(first.mate[order], two.mate)
    np.testing.assert_array_equal(first.rival[order], two.rival)
    np.testing.assert_array_equal(first.highest, two.highest)


GOOD = np.array([[0.9, 0.1], [0.8, 0.3]])


@pytest.mark.parametrize(
    "arguments",
    [
        (GOOD, [0, 1], [0, 7], 0.1, "closed"),  # a probe without a mate
        (GOOD, [0, 1], [0, 1], 0.1, "open"),  # none without a mate
        (GOOD, [0, 1], [5, 6], 0.1, "open"),
        ([[0.1, 0.2], [math.nan, 0.1]], [0, 1], [0, 7], 0.1, "open"),
        (GOOD, [0.0, 1.0], [0, 7], 0.1, "open"),
        (GOOD, ["0", "1"], [0, 7], 0.1, "open"),
        (GOOD, [0, 1], [0, 1, 7], 0.1, "open"),
        (GOOD, [0, 1], [0, 7], 0.1, "both"),
        (GOOD, [0, 1], [0, 7], math.nan, "open"),
    ],
)
def test_bad_input_is_refused(arguments):
    with pytest.raises(LikenessError):
        tpir_at_fpir(*arguments[:4], protocol=arguments[4])


@contextmanager
def in_tiles(tile: int) -> Iterator[None]:
    """Tiles of so many rows, blocks of three probes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identification, "TILE", tile)
        patch.setattr(identification, "CELLS", 3 * tile)
        patch.setattr(identification, "_OWN_ROWS", 4)
        yield


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Rows of small integers: float32 inner products are exact, and full of ties."""
    return rng.integers(-1, 3, shape).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 12),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["cosine", "dot", "simple"]),
)
def test_embeddings_in_tiles_are_the_whole_matrix(seed, tile, templates, has_ties, similarity):
    rng = np.random.default_rng(seed)
    draw = integers if has_ties else lambda rng, *shape: rng.standard_normal(shape)
    gallery, probes = draw(rng, 25, 3), draw(rng, 20, 3)
    enrolled, who = rng.integers(0, 25 // templates, 25), rng.integers(0, 30 // templates, 20)
    scores = single(probes[:, None], gallery[None], similarity)
    whole = search(scores, enrolled, who, keep=9)
    with in_tiles(tile):
        parted = search_embeddings(probes, gallery, enrolled, who, similarity=similarity, keep=9)
    for name in ("mate", "rival", "highest"):
        np.testing.assert_allclose(getattr(parted, name), getattr(whole, name), atol=1e-5)
    if similarity == "dot":  # exact, so that others tie as well
        np.testing.assert_array_equal(parted.above, whole.above)
        np.testing.assert_array_equal(parted.tied, whole.tied)
    assert parted.num_subjects == whole.num_subjects
    mates = np.unique(enrolled) == who[:, None]
    best = [scores[:, enrolled == name].max(axis=1) for name in np.unique(enrolled)]
    others = np.where(mates, -np.inf, np.stack(best, axis=1))
    np.testing.assert_allclose(whole.highest, np.sort(others.ravel())[::-1][:9], atol=1e-5)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_equal_rows_in_different_tiles_tie_exactly(similarity):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 37)).astype(np.float32)
    gallery, probes = np.concatenate([rows, rows[::-1]]), rng.standard_normal((31, 37))
    names = np.arange(80), np.arange(31)
    with in_tiles(13):
        found = search_embeddings(probes, gallery, *names, similarity=similarity)
    assert found.tied.tolist() == [1] * 31


def test_templates_that_differ_in_length_alone_tie_in_tiles():
    rows = np.random.default_rng(0).standard_normal((15, 7)).astype(np.float32)
    rows[:, 0] = 0.0
    longer = 2 * rows
    longer[:, 0] = -0.0
    gallery = np.concatenate([rows, longer])
    with in_tiles(13):
        found = search_embeddings(rows + 0.1, gallery, np.arange(30), np.arange(15))
    assert found.tied.tolist() == [1] * 15
    assert not found.first.any()


def test_where_every_probe_is_found_there_is_the_exact_bound_over_subjects():
    items = np.eye(6, dtype=np.float32)
    gallery = likeness.Embeddings(tuple(f"p{i}/1" for i in range(6)), items)
    probes = likeness.Embeddings(tuple(f"p{i}/{k}" for k in (2, 3) for i in range(6)), [*items] * 2)
    settings = likeness.IdentificationSettings(fpirs=(), ranks=(1,), num_resamples=20)
    found = likeness.identify(gallery, probes, settings).results[0]
    assert (found.value, found.interval[1]) == (1, 1)
    assert found.interval[0] == pytest.approx(0.05 ** (1 / 6))
